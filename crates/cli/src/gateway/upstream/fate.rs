//! How a request ended that got no proper answer.

use http::Response;
use semel::http::Fate;
use semel::http::problem::Kind;

use super::super::problem;
use super::body::{Body, Payload};
use super::task::Task;

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) problem: Kind,
    /// For operators; clients do not see it.
    pub(super) reason: String,
    pub(super) fate: Fate,
}

impl Failure {
    pub(super) fn nothing_happened(problem: Kind, reason: String) -> Self {
        Self { problem, reason, fate: Fate::NothingHappened }
    }

    pub(super) fn unknown(problem: Kind, reason: String) -> Self {
        Self { problem, fate: Fate::Unknown(reason.clone()), reason }
    }

    pub(super) fn into_response<B: Payload>(mut self, task: &Task<B>) -> Response<Body<B>> {
        if task.was_lost {
            // Nothing is certain about a request of which a copy was lost before.
            self.fate = Fate::Unknown(self.reason.clone());
        }
        let detail = match self.fate {
            Fate::NothingHappened => "The request was not sent on.",
            Fate::Unknown(_) => "The request was sent on; whether it had an effect is not known.",
        };
        task.under_trace(|| {
            tracing::warn!(fate = ?self.fate, reason = %self.reason, "no answer from the upstream");
        });
        let mut response = problem::response(self.problem, detail).map(Body::own);
        response.extensions_mut().insert(self.fate);
        response
    }
}
