//! A small payments service: the upstream of `semel gateway --upstream demo` and of `semel demo`.
//!
//! It is what most services are: it charges whenever it is told to, and does not look at keys. What
//! it adds is a receipt per charge, with the key and token it came with, so that it can be asked
//! afterwards (`POST /reconcile`) and can refuse an attempt it was told to refuse.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Longest delay a request may ask for.
const DELAY_MAX: Duration = Duration::from_secs(60);

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

/// One charge that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    id: String,
    amount: u64,
    currency: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[derive(Deserialize)]
struct Order {
    amount: u64,
    currency: String,
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
            .route("/payments", post(pay).get(list))
            .route("/reconcile", post(reconcile))
            .route("/healthz", get(|| async { "ok\n" }))
            .with_state(self.clone())
    }

    /// How often each key was charged.
    pub(crate) fn charges(&self) -> HashMap<String, u64> {
        self.book().by_key.iter().map(|(key, receipts)| (key.clone(), receipts.len() as u64)).collect()
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

    /// Charges, unless this attempt was fenced off.
    fn charge(
        &mut self,
        order: Order,
        key: Option<String>,
        token: Option<u64>,
    ) -> Result<Receipt, (StatusCode, String)> {
        let fence = key.as_ref().and_then(|key| self.fences.get(key));
        if fence.is_some_and(|fence| token.is_some_and(|token| token <= *fence)) {
            return Err((StatusCode::CONFLICT, "this attempt was given up; it is refused".into()));
        }
        let Order { amount, currency } = order;
        let receipt = Receipt { id: format!("pay_{}", self.receipts.len() + 1), amount, currency, key };
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

async fn pay(
    State(payments): State<Payments>,
    Query(pace): Query<Pace>,
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
    let delay = Duration::try_from_secs_f32(pace.delay).unwrap_or_default().min(DELAY_MAX);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = text("idempotency-key").map(|key| key.trim_matches('"').to_owned());
    let token = text("semel-token").and_then(|token| token.parse().ok());
    match payments.book().charge(order, key, token) {
        Ok(receipt) => created(&receipt),
        Err((status, why)) => (status, Json(json!({ "error": why }))).into_response(),
    }
}

fn created(receipt: &Receipt) -> Response {
    let Receipt { id, amount, currency, .. } = receipt;
    let body = json!({ "id": id, "amount": amount, "currency": currency, "status": "charged" });
    (StatusCode::CREATED, [(header::LOCATION, format!("/payments/{id}"))], Json(body)).into_response()
}

async fn list(State(payments): State<Payments>) -> Json<Value> {
    let book = payments.book();
    Json(json!({ "charges": book.receipts.len(), "payments": book.receipts }))
}

/// Did this attempt happen? If not, its token and all before it are refused from now on.
async fn reconcile(State(payments): State<Payments>, Json(question): Json<Question>) -> Json<Value> {
    let mut book = payments.book();
    let first = book.by_key.get(&question.key).and_then(|receipts| receipts.first()).copied();
    if let Some(receipt) = first.map(|at| book.receipts[at].clone()) {
        let Receipt { id, amount, currency, .. } = receipt;
        let body = json!({ "id": id, "amount": amount, "currency": currency, "status": "charged" });
        return Json(json!({
            "answer": "done",
            "response": {
                "status": 201,
                "headers": [["content-type", "application/json"], ["location", format!("/payments/{id}")]],
                "body": body.to_string(),
            },
        }));
    }
    let fence = book.fences.entry(question.key).or_default();
    *fence = (*fence).max(question.token);
    Json(json!({ "answer": "never", "refused_through": question.token }))
}
