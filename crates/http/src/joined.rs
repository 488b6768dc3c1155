//! Operations that live in the handler's own transaction.
//!
//! On a route declared [`same_transaction`](crate::route::Builder::same_transaction) the layer reads the key, the
//! client and the body as everywhere, and then asks no store: the handler gets a [`Joined`], begins with
//! [`Joined::call`] in its transaction, and answers with what came of it. What the database says after the commit is
//! the truth; the layer keeps nothing beside it. A handler that answers in its own words has said nothing about the
//! operation, and a retry asks the database again.
//!
//! A client that goes away may take the handler with it. Its transaction is then rolled back, or committed and found
//! by the retry.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use semel_core::joined::{Call, Committed};
use semel_core::outcome::{Body, Outcome};
use semel_core::policy::DEFAULTS;
use semel_core::{Error, Key, Refusal, mutant};

use crate::problem::{Kind, Problem};
use crate::{ReplyBody, Route, observer, stored};

/// An answer for the client, marked as what it is.
pub type Answer = Response<ReplyBody<Full<Bytes>>>;

/// One attempt at an operation in the handler's own transaction. With the feature `axum` it is an extractor.
#[derive(Clone, Debug)]
pub struct Joined {
    call: Call,
    route: Arc<Route>,
}

/// Left in the extensions of an answer, for the layer.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) kind: observer::Kind,
    pub(crate) key_not_loaded: bool,
}

impl Joined {
    pub(crate) fn new(call: Call, route: Arc<Route>) -> Self {
        Self { call, route }
    }

    /// What to begin with in the transaction.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The client's key.
    pub fn key(&self) -> &Key {
        self.call.operation().key()
    }

    /// What is stored of a response: hand it to `finish`, and the response to [`fresh`](Self::fresh) afterwards.
    pub fn outcome(&self, response: &Response<Bytes>) -> Outcome {
        let body = Body::Kept(response.body().clone());
        stored::outcome(response.status(), response.headers(), None, body, &self.route)
    }

    /// The response itself, for the client who caused it. Only a commit makes the proof this takes.
    pub fn fresh(&self, committed: Committed, response: Response<Bytes>) -> Answer {
        if committed.operation() != self.call.operation().id() && !mutant::on("foreign-commit-believed") {
            tracing::error!(operation = %self.call.operation(), "answered with the commit of another operation");
            return self.problem(Refusal::OutcomeUnknown { retry_after: DEFAULTS.retry_after_max }.into());
        }
        let (mut head, body) = response.into_parts();
        crate::header::strip(&mut head.headers);
        marked(observer::Kind::Fresh, Response::from_parts(head, ReplyBody::whole(body, None)))
    }

    /// A stored outcome, with the marks of any replay.
    pub fn replay(&self, outcome: Outcome) -> Answer {
        match stored::replay(outcome, &self.route) {
            Ok(response) => marked(observer::Kind::Replayed, response),
            Err(stored::NotHttp) => self.problem(Problem::new(Kind::OutcomeUnreadable)),
        }
    }

    /// Why there is no answer.
    pub fn refused(&self, refusal: Refusal) -> Answer {
        let key_not_loaded = matches!(refusal, Refusal::KeyNotLoaded { .. });
        let mut answer = self.problem(refusal.into());
        if let Some(mark) = answer.extensions_mut().get_mut::<Mark>() {
            mark.key_not_loaded = key_not_loaded;
        }
        answer
    }

    /// The database failed. If the commit may have been applied the client is told that nobody knows yet, and its
    /// retry will find out; else that nothing was run.
    pub fn failed(&self, error: &Error) -> Answer {
        tracing::warn!(operation = %self.call.operation(), %error, "an operation failed in its transaction");
        if error.outcome_is_unknown() {
            let unknown = Refusal::OutcomeUnknown { retry_after: DEFAULTS.retry_after_min };
            return self.problem(Problem::from(unknown).with_status(StatusCode::SERVICE_UNAVAILABLE));
        }
        self.problem(Problem::new(Kind::StoreUnavailable).retry_after(DEFAULTS.retry_after_min))
    }

    fn problem(&self, problem: Problem) -> Answer {
        let kind = observer::Kind::Refused(problem.kind());
        marked(kind, problem.described_by(self.route.described_by()).into_reply())
    }
}

fn marked(kind: observer::Kind, mut answer: Answer) -> Answer {
    answer.extensions_mut().insert(Mark { kind, key_not_loaded: false });
    answer
}
