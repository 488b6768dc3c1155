//! The reconcile contract: asking the service behind the gateway what became of an attempt.
//!
//! The question and its three answers are described, with programs that give them, in
//! docs/reconcile.md. Only a well-formed answer with status 200 counts. Everything else (an error
//! page, a time-out, a member nobody knows) means *cannot tell*: the operation stays unknown and is
//! asked about again. Whether a *never* is believed is not decided here but by the store, which
//! compares the tokens.

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, Uri};
use semel::runtime::Boxed;
use semel::{Ask, OperationId, Question, Reply, Token};
use serde::Deserialize;
use serde_json::json;

use super::fetch::{Fetch, Fetched};
use crate::time;
use crate::written::Response;

/// How much of a service's reason is kept in the log, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Asks a URL.
pub(crate) struct Reconcile {
    url: Uri,
    derived_key: fn(OperationId) -> String,
    fetch: Arc<dyn Fetch>,
}

impl Reconcile {
    /// `derived_key` makes what the service got in `Semel-Derived-Key`.
    pub(crate) fn new(url: Uri, derived_key: fn(OperationId) -> String, fetch: Arc<dyn Fetch>) -> Self {
        Self { url, derived_key, fetch }
    }

    fn question(&self, question: &Question) -> Bytes {
        let operation = &question.operation;
        let mut asked = json!({
            "key": operation.key().as_str(),
            "route": operation.scope().route(),
            "derived_key": (self.derived_key)(operation.id()),
            "token": question.token.0,
            "nonce": question.nonce.to_string(),
            "claimed_at": time::write(question.claimed_at),
        });
        if let Some(tenant) = operation.scope().tenant() {
            asked["tenant"] = tenant.into();
        }
        asked.to_string().into()
    }
}

impl Ask for Reconcile {
    fn ask(&self, question: Question) -> Boxed<Reply> {
        let asked = self.question(&question);
        let fetching = self.fetch.post(self.url.clone(), asked);
        let host = self.url.authority().map(ToString::to_string).unwrap_or_default();
        Box::pin(async move {
            let reply = match fetching.await {
                Ok(fetched) => read(&fetched),
                Err(failed) => Err(failed.to_string()),
            };
            reply.unwrap_or_else(|why| {
                let (operation, token) = (&question.operation, question.token);
                tracing::warn!(%operation, %token, asked = host, why, "no usable answer about an attempt; it stays unknown");
                Reply::CannotTell(why)
            })
        })
    }
}

/// The answers there are.
#[derive(Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case", deny_unknown_fields)]
enum Said {
    Done { response: Response },
    Never { refused_through: u64 },
    CannotTell { reason: Option<String> },
}

fn read(fetched: &Fetched) -> Result<Reply, String> {
    if fetched.status != StatusCode::OK && !semel::mutant::on("doubtful-answer-believed") {
        return Err(format!("status {} instead of 200", fetched.status.as_u16()));
    }
    match serde_json::from_slice(&fetched.body).map_err(|error| format!("not an answer: {error}"))? {
        Said::Done { response } => match response.into_outcome() {
            Ok(outcome) => Ok(Reply::Done(outcome)),
            Err(unusable) => Err(format!("done, but its response cannot be kept: {unusable}")),
        },
        Said::Never { refused_through } => Ok(Reply::Never { refused_through: Token(refused_through) }),
        Said::CannotTell { reason } => {
            let reason = reason.unwrap_or_else(|| "no reason given".into());
            let shown: String = reason.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
            Ok(Reply::CannotTell(shown))
        }
    }
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;
