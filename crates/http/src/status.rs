//! A client asks about its own operation.
//!
//! The same key and the same tenant rules as for running it; nothing is claimed and nothing runs. What is
//! absent here may be on its way: only sending the request again tells.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Response};
use semel_core::error::Error;
use semel_core::policy::DEFAULTS;
use semel_core::store::Filter;
use semel_core::{Key, Operation, Outcome, Record, State, Timestamp, Token, mutant};
use serde_json::{Value, json};

use crate::entry::sentence;
use crate::keys::in_time;
use crate::problem::{Kind, Problem};
use crate::{Route, SemelLayer, header, keyed};

impl SemelLayer {
    /// The state of one operation, for the client it belongs to, as JSON. `request` has the key and the
    /// credentials of the question, and the method and path of the operation asked about: both count
    /// where the route has no id.
    ///
    /// # Cancellation
    /// Safe; it only reads.
    pub async fn status(&self, route: &Route, request: &Parts) -> Response<Bytes> {
        match self.look_up(route, request).await {
            Ok(state) => answer(&state),
            Err(Refused::Problem(problem)) => problem.described_by(route.described_by()).into_response(),
            Err(Refused::ByCheck(response)) => *response,
        }
    }

    async fn look_up(&self, route: &Route, request: &Parts) -> Result<Value, Refused> {
        let key = key_of(request)?;
        let keys = self.shared.keys.get(&self.shared.once).await.map_err(away)?;
        let tenant = keyed::known(keyed::tenant_of(route, request, &keys.hasher).await)?
            .filter(|_| !mutant::on("status-for-everybody"));
        if let Some(check) = route.auth_check() {
            check.check(request).await.map_err(|response| Refused::ByCheck(Box::new(response)))?;
        }
        let scope = self.shared.scope(route, tenant.as_deref(), &request.method, &request.uri)?;
        let operation = Operation::new(scope, key);
        let store = self.shared.once.store();
        let record = in_time(&self.shared.once, store.get(operation.id())).await.map_err(away)?;
        // The store's own time says whether the record still counts.
        let page = in_time(&self.shared.once, store.list(&Filter::unsettled(), Token(u64::MAX), 1))
            .await
            .map_err(away)?;
        Ok(match record.filter(|record| !record.is_expired(page.now)) {
            Some(record) => {
                let kept = record.outcome.as_ref().filter(|_| record.state == State::Completed);
                let outcome = match kept {
                    // What cannot be read, now or ever, is not told.
                    Some(stored) => route.policy().read(stored, operation.id()).await.ok(),
                    None => None,
                };
                describe(&record, outcome.as_ref(), page.now)
            }
            None => json!({
                "state": "absent",
                "detail": "No attempt is recorded under this key. One may be on its way: send the request again \
                           with the same key to be sure.",
            }),
        })
    }
}

enum Refused {
    Problem(Box<Problem>),
    ByCheck(Box<Response<Bytes>>),
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

fn away(error: Error) -> Problem {
    tracing::warn!(%error, "the store did not answer a question about an operation");
    Problem::new(Kind::StoreUnavailable).retry_after(DEFAULTS.retry_after_min)
}

fn key_of(request: &Parts) -> Result<Key, Problem> {
    let mut lines = request.headers.get_all(header::IDEMPOTENCY_KEY).iter();
    let line = lines.next().ok_or_else(|| Problem::new(Kind::KeyMissing))?;
    if lines.next().is_some() {
        return Err(Problem::new(Kind::KeyRepeated));
    }
    Key::parse(line.as_bytes())
        .map_err(|invalid| Problem::new(Kind::KeyMalformed).detail(sentence(&invalid.to_string())))
}

fn describe(record: &Record, outcome: Option<&Outcome>, now: Timestamp) -> Value {
    let (state, detail) = match record.state {
        State::InProgress if record.is_lapsed(now) => {
            ("unknown", "The attempt ended without an outcome; it may or may not have happened.")
        }
        State::InProgress => ("in-progress", "An attempt is running."),
        State::Completed => ("completed", "It happened; sending the request again gives its answer."),
        State::Released => ("released", "It did not happen; the same request may be sent again."),
        State::Unknown => ("unknown", "It may or may not have happened; that is being found out."),
        State::Tombstone => ("purged", "It ended, and its answer was removed."),
    };
    let mut found = json!({
        "state": state,
        "detail": detail,
        "attempts": record.attempts,
        "created_at": seconds(record.created_at),
    });
    if let Some(at) = record.expires_at() {
        found["expires_at"] = seconds(at).into();
    }
    if let Some(outcome) = outcome {
        found["outcome_status"] = outcome.status.into();
        found["body_kept"] = outcome.body_bytes().is_some().into();
    }
    found
}

/// Seconds since 1970.
fn seconds(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

fn answer(state: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(state.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
