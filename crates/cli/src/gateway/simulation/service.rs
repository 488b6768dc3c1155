//! The service behind the gateway: it charges, keeps receipts, and answers what became of an attempt.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use turmoil::net::TcpListener;

use super::Trace;
use super::coverage::Trouble;
use super::trouble::Dice;
use super::watch::Watch;
use crate::gateway::BoxError;

/// What it knows survives its own crashes.
#[derive(Clone)]
pub(super) struct Service {
    books: Arc<Mutex<Books>>,
    watch: Watch,
    trace: Trace,
}

struct Books {
    dice: Dice,
    /// How long it takes before and after the charge, at most.
    pace: Duration,
    /// In a hundred answers, how many get lost.
    losses: u64,
    rows: BTreeMap<String, Row>,
    serial: u64,
}

#[derive(Default)]
struct Row {
    /// Attempts with tokens up to this one are refused.
    refused_through: u64,
    charges: u32,
    receipt: Bytes,
}

/// What an attempt is told that comes below the fence.
pub(super) const TOO_LATE: &[u8] = b"the attempt came too late";
/// How long it usually takes.
pub(super) const BRISK: Duration = Duration::from_millis(200);
const LOSSES: u64 = 25;

impl Service {
    pub(super) fn new(trace: Trace, watch: Watch, seed: u64) -> Self {
        let (dice, rows) = (Dice::new(seed), BTreeMap::new());
        let books = Books { dice, pace: BRISK, losses: LOSSES, rows, serial: 0 };
        Self { books: Arc::new(Mutex::new(books)), watch, trace }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no panic")
    }

    pub(super) fn charges(&self, key: &str) -> u32 {
        self.books().rows.get(key).map_or(0, |row| row.charges)
    }

    pub(super) fn receipt(&self, key: &str) -> Bytes {
        self.books().rows.get(key).map(|row| row.receipt.clone()).unwrap_or_default()
    }

    /// From now on it takes up to this long, before the charge and after it.
    pub(super) fn slow(&self, pace: Duration) {
        self.books().pace = pace;
    }

    /// From now on it is quick, and no answer gets lost.
    pub(super) fn heal(&self) {
        let mut books = self.books();
        (books.pace, books.losses) = (BRISK, 0);
    }

    pub(super) async fn serve(self) -> turmoil::Result {
        let listener = TcpListener::bind("0.0.0.0:3000").await?;
        loop {
            let (stream, _) = listener.accept().await?;
            let service = self.clone();
            let answer = service_fn(move |request| service.clone().answer(request));
            let serving = hyper::server::conn::http1::Builder::new();
            tokio::task::spawn_local(serving.serve_connection(TokioIo::new(stream), answer));
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        // In a task of its own: whoever asked may hang up, and it happens all the same.
        let work = tokio::task::spawn_local(async move {
            match head.uri.path() {
                "/reconcile" => self.reconcile(&body).await,
                _ => self.charge(&head.headers).await,
            }
        });
        work.await?
    }

    async fn charge(&self, headers: &HeaderMap) -> Result<Response<Full<Bytes>>, BoxError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let key = text("idempotency-key").expect("every request has a key").to_owned();
        // A request that nobody protects has none, and no fence stops it.
        let token: u64 = text("semel-token").map_or(Ok(u64::MAX), str::parse)?;
        let [before, after] = self.takes();
        tokio::time::sleep(before).await;
        let (receipt, lost) = {
            let books = &mut *self.books();
            let row = books.rows.entry(key.clone()).or_default();
            if token <= row.refused_through {
                self.trace.tell(&format!("service {key}: attempt {token} came too late"));
                return Ok(refusal(headers));
            }
            books.serial += 1;
            row.charges += 1;
            row.receipt = Bytes::from(format!("charge {}", books.serial));
            (row.receipt.clone(), books.dice.roll(100) < books.losses)
        };
        self.watch.charged(&key, token);
        self.trace.tell(&format!("service {key}: {receipt:?}"));
        tokio::time::sleep(after).await;
        match lost {
            true => {
                self.watch.meets(Trouble::UpstreamLoss, &key);
                Err("the answer is lost with its connection".into())
            }
            false => Ok(answer(201, receipt)),
        }
    }

    async fn reconcile(&self, question: &[u8]) -> Result<Response<Full<Bytes>>, BoxError> {
        let question: Value = serde_json::from_slice(question)?;
        let key = question["key"].as_str().expect("a key");
        let _questioned = self.watch.questioned(key);
        let [before, after] = self.takes();
        tokio::time::sleep(before).await;
        let said = self.look_up(key, question["token"].as_u64().expect("a token"));
        self.trace.tell(&format!("service {key}: asked, {}", said["answer"]));
        tokio::time::sleep(after).await;
        Ok(answer(200, said.to_string().into()))
    }

    /// What became of attempts up to this one. What has not happened by now never will.
    fn look_up(&self, key: &str, token: u64) -> Value {
        let mut books = self.books();
        let row = books.rows.entry(key.to_owned()).or_default();
        if row.charges == 0 {
            row.refused_through = row.refused_through.max(token);
            return json!({ "answer": "never", "refused_through": row.refused_through });
        }
        let body = String::from_utf8_lossy(&row.receipt);
        let headers = json!({ "content-type": "text/plain", "content-length": body.len().to_string() });
        json!({ "answer": "done", "response": { "status": 201, "headers": headers, "body": body } })
    }

    /// How long it takes before and after what it does.
    fn takes(&self) -> [Duration; 2] {
        let books = &mut *self.books();
        [(); 2].map(|()| books.dice.within(books.pace))
    }
}

/// Says that nothing happened, as docs/reconcile.md asks: the answer of an attempt that came too late must
/// not become the outcome.
fn refusal(headers: &HeaderMap) -> Response<Full<Bytes>> {
    let mut response = answer(409, Bytes::from_static(TOO_LATE));
    response.headers_mut().insert("semel-hint", HeaderValue::from_static("nothing-happened"));
    if let Some(nonce) = headers.get("semel-nonce") {
        response.headers_mut().insert("semel-nonce", nonce.clone());
    }
    response
}

fn answer(status: u16, body: Bytes) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status).header("content-type", "text/plain");
    response.body(Full::new(body)).expect("the parts fit")
}
