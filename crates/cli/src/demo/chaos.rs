//! A bad network between the demo's clients and what they call: it delays, repeats and loses.
//!
//! An answer is lost after the request was served: that is the case that makes clients retry what
//! has happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Notify;

/// A client that hears nothing for this long sends its request again.
const PATIENCE: Duration = Duration::from_millis(1000);
const DELAY_MAX: Duration = Duration::from_millis(40);
/// Out of a hundred.
const LOST: u8 = 30;
const TWICE: u8 = 10;
const DELAYED: u8 = 40;

pub(super) struct Chaos {
    target: String,
    client: Client<HttpConnector, Full<Bytes>>,
    attempts: AtomicU64,
    lost: AtomicU64,
    copies: AtomicUsize,
    quiet: Notify,
}

/// What a client heard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    Paid,
    /// An answer that asks to come back.
    NotNow,
    Nothing,
}

impl Chaos {
    pub(super) fn new(target: String) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (attempts, lost, copies, quiet) = Default::default();
        Self { target, client, attempts, lost, copies, quiet }
    }

    /// Sends one payment as the network likes.
    pub(super) async fn send(self: Arc<Self>, key: &str) -> Heard {
        let [lost, twice, delayed, long, ..] = *semel::Nonce::random().as_bytes();
        if delayed % 100 < DELAYED {
            tokio::time::sleep(DELAY_MAX * u32::from(long) / 255).await;
        }
        if twice % 100 < TWICE {
            let (copy, key) = (self.clone(), key.to_owned());
            self.copies.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                copy.deliver(&key).await;
                copy.copies.fetch_sub(1, Ordering::SeqCst);
                copy.quiet.notify_waiters();
            });
        }
        let heard = self.deliver(key).await;
        if heard == Heard::Paid && lost % 100 < LOST {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Heard::Nothing;
        }
        if heard != Heard::Paid {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        heard
    }

    async fn deliver(&self, key: &str) -> Heard {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let request = Request::post(format!("http://{}/payments", self.target))
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::new(Bytes::from_static(b"{\"amount\":100,\"currency\":\"EUR\"}")));
        let Ok(request) = request else { return Heard::Nothing };
        let answer = async {
            let response = self.client.request(request).await.ok()?;
            let status = response.status();
            response.into_body().collect().await.ok()?;
            Some(status)
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Some(StatusCode::CREATED)) => Heard::Paid,
            Ok(Some(_)) => Heard::NotNow,
            _ => Heard::Nothing,
        }
    }

    /// Waits for copies that are still on their way: they count too.
    pub(super) async fn settle(&self) {
        loop {
            let quiet = self.quiet.notified();
            if self.copies.load(Ordering::SeqCst) == 0 {
                return;
            }
            let _ = tokio::time::timeout(PATIENCE, quiet).await;
        }
    }

    pub(super) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
