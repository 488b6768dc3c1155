//! A small payments service: the upstream of `semel gateway --upstream demo` and of `semel demo`.
//!
//! It is what most services are: it charges whenever it is told to, and does not look at keys. What
//! it adds is a receipt per charge, with the key and token it came with, so that it can be asked
//! afterwards (`POST /reconcile`) and can refuse an attempt it was told to refuse.
//!
//! `POST /payments` charges and `POST /refunds` pays back; both take a `reference`, by which
//! `GET /payments` and `GET /refunds` find and count, and a `note` for the receipt. An order in `XTS` is declined.
//! Whoever signs in is given a session, as a cookie.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use semel::http::header::{HINT, NONCE};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Longest delay a request may ask for.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// ISO 4217's code for tests. Its cards are declined.
const DECLINED: &str = "XTS";

/// The service. Clones share one book.
#[derive(Clone, Default)]
pub(crate) struct Payments(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    receipts: Vec<Receipt>,
    by_key: HashMap<String, Vec<usize>>,
    /// For each key, the highest token that is refused.
    fences: HashMap<String, u64>,
    journal: Option<(PathBuf, std::fs::File)>,
}

/// One charge or refund that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    id: String,
    amount: u64,
    currency: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// What a request asks for, and where its receipts can be found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Payment,
    Refund,
}

#[derive(Deserialize)]
struct Order {
    amount: u64,
    currency: String,
    /// The client's own name for it.
    reference: Option<String>,
    /// What is to stand on the receipt.
    note: Option<String>,
}

#[derive(Deserialize)]
struct Search {
    reference: Option<String>,
}

#[derive(Deserialize)]
struct Pace {
    /// Seconds to take before the charge, to have time to interrupt it.
    #[serde(default)]
    delay: f32,
}

#[derive(Deserialize)]
struct Question {
    key: String,
    token: u64,
}

impl Payments {
    /// Keeps receipts in a file, and reads back those of before.
    pub(crate) fn with_journal(path: &Path) -> anyhow::Result<Self> {
        let before = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mut book = Book::default();
        // A line cut short by a crash is no receipt: its answer was never given.
        for receipt in before.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            book.enter(receipt);
        }
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        book.journal = Some((path.to_owned(), file));
        Ok(Self(Arc::new(Mutex::new(book))))
    }

    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/payments", post(pay).get(payments))
            .route("/refunds", post(refund).get(refunds))
            .route("/reconcile", post(reconcile))
            .route("/healthz", get(|| async { "ok\n" }))
            .with_state(self.clone())
    }

    /// How often each key was charged.
    pub(crate) fn charges(&self) -> HashMap<String, u64> {
        self.book().by_key.iter().map(|(key, receipts)| (key.clone(), receipts.len() as u64)).collect()
    }

    /// All of a kind, or those of one reference.
    fn found(&self, kind: Kind, search: &Search) -> Vec<Receipt> {
        let wanted = |receipt: &&Receipt| {
            receipt.kind() == kind && (search.reference.is_none() || search.reference == receipt.reference)
        };
        self.book().receipts.iter().filter(wanted).cloned().collect()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn enter(&mut self, receipt: Receipt) {
        if let Some(key) = &receipt.key {
            self.by_key.entry(key.clone()).or_default().push(self.receipts.len());
        }
        self.receipts.push(receipt);
    }

    /// Charges or pays back, unless this attempt was fenced off.
    fn carry_out(
        &mut self,
        kind: Kind,
        order: Order,
        key: Option<String>,
        token: Option<u64>,
    ) -> Result<Receipt, (StatusCode, String)> {
        let fence = key.as_ref().and_then(|key| self.fences.get(key));
        if fence.is_some_and(|fence| token.is_some_and(|token| token <= *fence)) {
            return Err((StatusCode::CONFLICT, "this attempt was given up; it is refused".into()));
        }
        let Order { amount, currency, reference, note } = order;
        if currency == DECLINED {
            return Err((StatusCode::PAYMENT_REQUIRED, "the card was declined".into()));
        }
        let id = format!("{}{}", kind.prefix(), self.receipts.len() + 1);
        let receipt = Receipt { id, amount, currency, reference, note, key };
        if let Some((path, file)) = &mut self.journal {
            let line = serde_json::to_string(&receipt).map(|line| line + "\n").unwrap_or_default();
            if let Err(error) = file.write_all(line.as_bytes()) {
                let why = format!("cannot write {}: {error}", path.display());
                return Err((StatusCode::INTERNAL_SERVER_ERROR, why));
            }
        }
        self.enter(receipt.clone());
        Ok(receipt)
    }
}

impl Kind {
    /// What ids begin with.
    fn prefix(self) -> &'static str {
        match self {
            Self::Payment => "pay_",
            Self::Refund => "ref_",
        }
    }
}

impl Receipt {
    fn kind(&self) -> Kind {
        if self.id.starts_with(Kind::Refund.prefix()) { Kind::Refund } else { Kind::Payment }
    }

    fn location(&self) -> String {
        match self.kind() {
            Kind::Payment => format!("/payments/{}", self.id),
            Kind::Refund => format!("/refunds/{}", self.id),
        }
    }

    /// What the client is told.
    fn told(&self) -> Value {
        let Self { id, amount, currency, .. } = self;
        let status = if self.kind() == Kind::Payment { "charged" } else { "refunded" };
        let mut told = json!({ "id": id, "amount": amount, "currency": currency, "status": status });
        if let Some(note) = &self.note {
            told["note"] = note.as_str().into();
        }
        told
    }
}

async fn pay(
    State(payments): State<Payments>,
    Query(pace): Query<Pace>,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> Response {
    order(Kind::Payment, payments, pace, headers, body).await
}

async fn refund(
    State(payments): State<Payments>,
    Query(pace): Query<Pace>,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> Response {
    order(Kind::Refund, payments, pace, headers, body).await
}

async fn order(
    kind: Kind,
    payments: Payments,
    pace: Pace,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> Response {
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let wrong = json!({ "error": format!("not an order: {error}") });
            return (StatusCode::BAD_REQUEST, Json(wrong)).into_response();
        }
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = text("idempotency-key").map(|key| key.trim_matches('"').to_owned());
    let token = text("semel-token").and_then(|token| token.parse().ok());
    let delay = Duration::try_from_secs_f32(pace.delay).unwrap_or_default().min(DELAY_MAX);
    // In a task of its own: what has been handed to the bank goes on when the caller leaves.
    let carried_out = tokio::spawn(async move {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        payments.book().carry_out(kind, order, key, token)
    });
    let mut response = match carried_out.await {
        Ok(Ok(receipt)) => created(&receipt),
        Ok(Err((StatusCode::CONFLICT, why))) => fenced_off(why, &headers),
        Ok(Err((status, why))) => (status, Json(json!({ "error": why }))).into_response(),
        Err(lost) => (StatusCode::INTERNAL_SERVER_ERROR, lost.to_string()).into_response(),
    };
    if headers.contains_key(header::AUTHORIZATION) {
        let session = format!("session={}; HttpOnly; SameSite=Strict", semel::Nonce::random());
        if let Ok(session) = HeaderValue::try_from(session) {
            response.headers_mut().insert(header::SET_COOKIE, session);
        }
    }
    response
}

/// Refuses an attempt that was given up, and says that nothing happened: a plain 409 would be an outcome.
fn fenced_off(why: String, headers: &HeaderMap) -> Response {
    let mut response = (StatusCode::CONFLICT, Json(json!({ "error": why }))).into_response();
    if let Some(nonce) = headers.get(NONCE) {
        response.headers_mut().insert(NONCE, nonce.clone());
        response.headers_mut().insert(HINT, HeaderValue::from_static("nothing-happened"));
    }
    response
}

fn created(receipt: &Receipt) -> Response {
    (StatusCode::CREATED, [(header::LOCATION, receipt.location())], Json(receipt.told())).into_response()
}

async fn payments(State(payments): State<Payments>, Query(search): Query<Search>) -> Json<Value> {
    let found = payments.found(Kind::Payment, &search);
    Json(json!({ "charges": found.len(), "payments": found }))
}

async fn refunds(State(payments): State<Payments>, Query(search): Query<Search>) -> Json<Value> {
    let found = payments.found(Kind::Refund, &search);
    Json(json!({ "refunds": found }))
}

/// Did this attempt happen? If not, its token and all before it are refused from now on.
async fn reconcile(State(payments): State<Payments>, Json(question): Json<Question>) -> Json<Value> {
    let mut book = payments.book();
    let first = book.by_key.get(&question.key).and_then(|receipts| receipts.first()).copied();
    if let Some(receipt) = first.map(|at| book.receipts[at].clone()) {
        return Json(json!({
            "answer": "done",
            "response": {
                "status": 201,
                "headers": [["content-type", "application/json"], ["location", receipt.location()]],
                "body": receipt.told().to_string(),
            },
        }));
    }
    let fence = book.fences.entry(question.key).or_default();
    *fence = (*fence).max(question.token);
    Json(json!({ "answer": "never", "refused_through": question.token }))
}
