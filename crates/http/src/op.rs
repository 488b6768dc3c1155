//! The operation, in the hands of the service that performs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use semel_core::{Attempt, Key, Nonce, OperationId, Token};

use crate::header;
use crate::hints::Hints;

/// The step of the derived key that goes into the header.
const UPSTREAM: &str = "upstream";

const NOTHING_HAPPENED: u8 = 1;
const DECIDED: u8 = 2;
const DO_NOT_KEEP: u8 = 4;

/// One attempt at an operation. The layer puts it into the extensions of every protected request; with
/// the feature `axum` it is an extractor, and so is `Option<Op>` where keys are optional.
///
/// What it is told counts when the service has answered. A service that panics after saying anything has
/// still panicked: its outcome is unknown.
#[derive(Clone)]
pub struct Op {
    attempt: Attempt,
    said: Arc<Said>,
}

#[derive(Default)]
struct Said {
    flags: AtomicU8,
    keep_longer_seconds: AtomicU32,
}

impl Op {
    pub(crate) fn new(attempt: Attempt) -> Self {
        Self { attempt, said: Arc::default() }
    }

    /// The client's key.
    pub fn key(&self) -> &Key {
        self.attempt.operation().key()
    }

    /// The attempt, with everything the semantics know of it.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The attempt's token, to pass to whoever can refuse a stale one. `None` if it runs unprotected.
    pub fn token(&self) -> Option<Token> {
        self.attempt.token()
    }

    /// The attempt's nonce. `None` if it runs unprotected.
    pub fn nonce(&self) -> Option<Nonce> {
        self.attempt.nonce()
    }

    /// Which attempt this is, from 1.
    pub fn number(&self) -> u32 {
        self.attempt.number()
    }

    /// How long the lease still lasts if no renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.attempt.remaining()
    }

    /// Ends when the lease is lost. See [`Attempt::lost`].
    ///
    /// # Cancellation
    /// Safe; nothing is left behind.
    pub async fn lost(&self) {
        self.attempt.lost().await;
    }

    /// A key for a call downstream: the same on every attempt, different for every step and `n`.
    pub fn derive(&self, step: &str, n: u32) -> String {
        self.attempt.derive(step, n)
    }

    /// Says that the effect certainly did not happen: the key is free again, whatever is answered.
    pub fn nothing_happened(&self) {
        self.said.flags.fetch_or(NOTHING_HAPPENED, Ordering::AcqRel);
    }

    /// Says that what is answered is the outcome, whatever its status.
    pub fn decided(&self) {
        self.said.flags.fetch_or(DECIDED, Ordering::AcqRel);
    }

    /// Says that the body of the answer must not be stored. A replay will say that it happened.
    pub fn do_not_keep(&self) {
        self.said.flags.fetch_or(DO_NOT_KEEP, Ordering::AcqRel);
    }

    /// Asks for the operation to be remembered at least so long from its creation, in whole seconds.
    pub fn keep_longer(&self, time: Duration) {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self.said.keep_longer_seconds.fetch_max(seconds, Ordering::AcqRel);
    }

    /// What was said so far.
    pub(crate) fn hints(&self) -> Hints {
        let flags = self.said.flags.load(Ordering::Acquire);
        let seconds = self.said.keep_longer_seconds.load(Ordering::Acquire);
        Hints {
            nothing_happened: flags & NOTHING_HAPPENED != 0,
            decided: flags & DECIDED != 0,
            do_not_keep: flags & DO_NOT_KEEP != 0,
            keep_longer: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
        }
    }

    /// The attempt as headers. The client's key is there already.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap) {
        let text = |text: String| HeaderValue::try_from(text).expect("hex digits make a header value");
        if let (Some(token), Some(nonce)) = (self.token(), self.nonce()) {
            headers.insert(header::TOKEN, HeaderValue::from(token.0));
            headers.insert(header::NONCE, text(nonce.to_string()));
        }
        headers.insert(header::ATTEMPT, HeaderValue::from(self.number()));
        headers.insert(header::DERIVED_KEY, text(derived_key(self.attempt.operation().id())));
    }
}

/// What the service gets in `Semel-Derived-Key`: the same on every attempt of an operation.
pub fn derived_key(operation: OperationId) -> String {
    semel_core::attempt::derive(operation, UPSTREAM, 1)
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Op")
            .field("key", self.key())
            .field("token", &self.token())
            .field("attempt", &self.number())
            .finish_non_exhaustive()
    }
}
