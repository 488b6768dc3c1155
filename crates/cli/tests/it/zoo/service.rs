//! The skeleton of every animal: routes, requests, answers, and the sound way through.
//!
//! `POST` and `PUT /payments` and `POST /refunds` take effect once per operation; `GET /count/TAG`
//! says how often it happened with that `reference`. Two members of an order are for experiments:
//! `pace_ms` is how long the effect takes, and `fail` asks for a 500 after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use semel::Nonce;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::habits::{Habits, Serving, Trouble};
use super::ledger::Ledger;
use super::store::Store;

pub(super) const KEY: &str = "idempotency-key";
const BODY_BYTES_MAX: usize = 1 << 20;
const PACE_MAX: Duration = Duration::from_secs(10);

/// Where an animal lives. Clones are the same place.
#[derive(Clone)]
pub(super) struct Den(Arc<Inner>);

pub(super) struct Inner {
    pub(super) habits: Habits,
    pub(super) store: Store,
    pub(super) ledger: Ledger,
    attempts: AtomicU64,
}

/// A request with a key.
#[derive(Clone, Default)]
pub(super) struct Ask {
    pub(super) user: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) content_type: String,
    pub(super) key: String,
    pub(super) body: String,
    pub(super) order: Value,
    pub(super) operation: String,
    pub(super) print: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl std::ops::Deref for Den {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Den {
    pub(super) fn open(home: &std::path::Path, habits: Habits) -> Self {
        let store = Store::open(home, habits.durable);
        let ledger = Ledger::at(&home.join("effects"));
        let den = Self(Arc::new(Inner { habits, store, ledger, attempts: AtomicU64::new(0) }));
        (habits.recover)(&den);
        den
    }

    pub(super) fn router(&self) -> Router {
        Router::new()
            .route("/payments", post(take).put(take))
            .route("/refunds", post(take))
            .route("/count/{tag}", get(count))
            .with_state(self.clone())
    }

    /// Takes effect, in the middle of its time.
    pub(super) async fn perform(&self, ask: &Ask) -> Answer {
        self.perform_as(ask, receipt(ask)).await
    }

    /// The same, when the answer is known before.
    pub(super) async fn perform_as(&self, ask: &Ask, receipt: Answer) -> Answer {
        let trouble = (self.habits.trouble)(self.attempts.fetch_add(1, Ordering::Relaxed));
        let mut pace = ask.order["pace_ms"].as_u64().map_or(self.habits.pace, Duration::from_millis);
        if trouble == Trouble::Late {
            pace = 3 * self.habits.patience;
        }
        let half = pace.min(PACE_MAX) / 2;
        let fails = trouble == Trouble::Fails || ask.order["fail"] == true;
        let answer = if fails { Answer::problem(500, "something broke after the payment") } else { receipt };
        tokio::time::sleep(half).await;
        self.ledger.enter(ask.tag(), &ask.operation, &answer);
        tokio::time::sleep(half).await;
        answer
    }
}

/// The sound way: claim, run, store, answer. A client that leaves stops nothing.
pub(super) fn once(den: Den, ask: Ask) -> Serving {
    Box::pin(async move {
        let token = match (den.habits.claim)(&den, &ask) {
            Ok(token) => token,
            Err(answer) => return answer,
        };
        let attempt = tokio::spawn(attempt(den.clone(), ask.clone(), token));
        match tokio::time::timeout(den.habits.patience, attempt).await {
            Ok(answer) => answer.expect("an attempt does not panic"),
            Err(_) => (den.habits.give_up)(&den, &ask, token),
        }
    })
}

async fn attempt(den: Den, ask: Ask, token: u64) -> Answer {
    let answer = den.perform(&ask).await;
    match (den.habits.keep)(&answer) {
        Some(kept) => den.store.complete(&ask.operation, token, kept).await,
        None => den.store.release(&ask.operation, token).await,
    }
    answer
}

/// What the client gets for a new effect.
pub(super) fn receipt(ask: &Ask) -> Answer {
    let id = format!("pay_{}", Nonce::random());
    let body = json!({ "id": id, "reference": ask.tag(), "order": ask.order });
    let headers = [
        ("content-type", "application/json".into()),
        ("location", format!("{}/{id}", ask.path)),
        ("x-receipt", format!("receipt of {id}")),
        ("set-cookie", format!("session={}", Nonce::random())),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value)).to_vec();
    Answer { status: 201, headers, body: body.to_string() }
}

impl Ask {
    pub(super) fn tag(&self) -> &str {
        self.order["reference"].as_str().unwrap_or_default()
    }

    fn read(habits: &Habits, head: &axum::http::request::Parts, body: &Bytes) -> Result<Self, Answer> {
        let key = (habits.key)(&head.headers)?;
        let text =
            std::str::from_utf8(body).ok().and_then(|text| Some((text, serde_json::from_str(text).ok()?)));
        let Some((body, order @ Value::Object(_))) = text else {
            return Err(Answer::problem(400, "the body is not a JSON object"));
        };
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let user = header("authorization").strip_prefix("Bearer ").unwrap_or("anonymous");
        let mut ask = Self {
            user: user.into(),
            method: head.method.to_string(),
            path: head.uri.path().into(),
            query: head.uri.query().unwrap_or_default().into(),
            content_type: header("content-type").into(),
            key,
            body: body.into(),
            order,
            ..Self::default()
        };
        ask.operation = (habits.operation)(&ask);
        ask.print = (habits.print)(&ask);
        Ok(ask)
    }
}

impl Answer {
    pub(super) fn problem(status: u16, why: &str) -> Self {
        let body = json!({ "type": "about:blank", "status": status, "title": why }).to_string();
        Self { status, headers: vec![("content-type".into(), "application/problem+json".into())], body }
    }

    /// Come back soon.
    pub(super) fn later(self) -> Self {
        self.with("retry-after", "1")
    }

    pub(super) fn replayed(&self) -> Self {
        self.clone().with("idempotent-replayed", "true")
    }

    pub(super) fn without(&self, goes: impl Fn(&str) -> bool) -> Self {
        let mut kept = self.clone();
        kept.headers.retain(|(name, _)| !goes(name));
        kept
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(Body::from(self.body)).expect("an answer is valid HTTP")
    }
}

async fn take(State(den): State<Den>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = match axum::body::to_bytes(body, BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(_) => return Answer::problem(413, "the request is too large").into_response(),
    };
    match Ask::read(&den.habits, &head, &body) {
        Ok(ask) => (den.habits.flow)(den.clone(), ask).await.into_response(),
        Err(refused) => refused.into_response(),
    }
}

async fn count(State(den): State<Den>, Path(tag): Path<String>) -> String {
    den.ledger.count(&tag).to_string()
}
