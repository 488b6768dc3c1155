//! What a running effect knows of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::codec::hex;
use crate::digest::sha256;
use crate::lease::{Lease, Nonce, Token};
use crate::runtime::Runtime;
use crate::{Operation, OperationId};

/// One try at an operation, handed to the effect.
#[derive(Clone)]
pub struct Attempt {
    operation: Arc<Operation>,
    lease: Option<Lease>,
    asked_at: Option<Duration>,
    runtime: Arc<dyn Runtime>,
    standing: Arc<Standing>,
}

/// How the lease stands, shared between the effect and the task that renews it.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Nanoseconds on this process's monotonic clock; zero once the lease is lost.
    deadline: AtomicU64,
    changed: Notify,
}

impl Standing {
    pub(crate) fn until(deadline: Duration) -> Self {
        Self { deadline: AtomicU64::new(nanos(deadline)), changed: Notify::new() }
    }

    pub(crate) fn extend(&self, deadline: Duration) {
        self.deadline.store(nanos(deadline), Ordering::Release);
    }

    pub(crate) fn lose(&self) {
        self.deadline.store(0, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.deadline().is_zero()
    }
}

fn nanos(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl Attempt {
    pub(crate) fn new(
        operation: Arc<Operation>,
        lease: Option<Lease>,
        asked_at: Option<Duration>,
        runtime: Arc<dyn Runtime>,
        standing: Arc<Standing>,
    ) -> Self {
        Self { operation, lease, asked_at, runtime, standing }
    }

    /// When its lease was asked for, in the runtime's time: a store cannot have counted from earlier.
    /// `None` if the attempt runs unprotected.
    pub fn asked_at(&self) -> Option<Duration> {
        self.asked_at
    }

    /// The operation.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// This attempt's token, to pass to whoever can refuse a stale one. `None` if the attempt
    /// runs unprotected.
    pub fn token(&self) -> Option<Token> {
        self.lease.map(|lease| lease.holder.token)
    }

    /// This attempt's nonce. `None` if the attempt runs unprotected.
    pub fn nonce(&self) -> Option<Nonce> {
        self.lease.map(|lease| lease.holder.nonce)
    }

    /// Which attempt this is, from 1.
    pub fn number(&self) -> u32 {
        self.lease.map_or(1, |lease| lease.attempt)
    }

    /// How long the lease still lasts if no renewal succeeds. Zero once it was lost.
    pub fn remaining(&self) -> Duration {
        self.standing.deadline().saturating_sub(self.runtime.elapsed())
    }

    /// Whether the lease is lost: another attempt or an operator has taken the operation over, or
    /// no renewal got through in time.
    pub fn is_lost(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Ends when the lease is lost. An effect that can still turn back should race against this;
    /// one that cannot goes on, and its outcome is judged when it comes.
    ///
    /// # Cancellation
    /// Safe; nothing is left behind.
    pub async fn lost(&self) {
        loop {
            let changed = self.standing.changed.notified();
            if self.is_lost() {
                return;
            }
            changed.await;
        }
    }

    /// A key for a downstream call of this operation: the same on every attempt, different for
    /// every step and `n`. Raise `n` only after a failure that is certain.
    pub fn derive(&self, step: &str, n: u32) -> String {
        derive(self.operation.id(), step, n)
    }
}

/// See [`Attempt::derive`]; for callers that hold only the operation's id.
pub fn derive(operation: OperationId, step: &str, n: u32) -> String {
    let length = (step.len() as u64).to_be_bytes();
    let parts: [&[u8]; 5] =
        [b"semel derived key 1", operation.as_bytes(), &length, step.as_bytes(), &n.to_be_bytes()];
    let digest = sha256(&parts.concat());
    let mut key = String::with_capacity(46);
    key.push_str("semel-");
    key.extend(digest[..20].iter().flat_map(|byte| hex(*byte)));
    key
}
