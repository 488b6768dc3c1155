//! A client that wants every key charged, and asks until it hears so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
use turmoil::net::TcpStream;

use super::coverage::Trouble;
use super::service::TOO_LATE;
use super::trouble::Dice;
use super::watch::Watch;
use super::{KEYS, Trace};
use crate::gateway::BoxError;

/// Every key is asked for by then.
const STARTS_WITHIN_MILLIS: u64 = 7_000;
/// How long it waits for one answer.
const PATIENCE: Duration = Duration::from_millis(2500);

/// A success it was told of.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    pub(super) key: String,
    pub(super) is_replay: bool,
    /// But for those that are about this one answer.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What befalls a client from outside, for each key.
#[derive(Clone, Default)]
pub(super) struct Orders(Arc<[Order; KEYS]>);

#[derive(Default)]
struct Order {
    repeat: Notify,
    hang_up: Notify,
}

impl Orders {
    /// The network delivers a request once more.
    pub(super) fn repeat(&self, at: usize) {
        self.0[at].repeat.notify_one();
    }

    /// It waits for no answer any more.
    pub(super) fn hang_up(&self) {
        self.0.iter().for_each(|order| order.hang_up.notify_waiters());
    }
}

#[derive(Clone)]
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) name: String,
    /// Whether an unknown stays one until a person settles it.
    pub(super) holds: bool,
    pub(super) orders: Orders,
    pub(super) watch: Watch,
    pub(super) heard: Arc<Mutex<Vec<Heard>>>,
    pub(super) trace: Trace,
}

pub(super) fn name(at: usize) -> String {
    format!("client-{at}")
}

pub(super) fn key(at: usize) -> String {
    format!("simulated-intent-{at:04}")
}

impl Client {
    /// All keys side by side, each from some moment on: clients meet on some and are alone on others.
    pub(super) async fn run(self, mut dice: Dice) -> turmoil::Result {
        for at in 0..KEYS {
            tokio::task::spawn_local(self.clone().repeat(at));
        }
        let dice: Vec<Dice> = (0..KEYS).map(|_| Dice::new(dice.roll(u64::MAX))).collect();
        let intents = dice.into_iter().enumerate().map(|(at, dice)| self.insist(at, dice));
        join_all(intents).await;
        Ok(())
    }

    async fn insist(&self, at: usize, mut dice: Dice) {
        tokio::time::sleep(dice.millis(0, STARTS_WITHIN_MILLIS)).await;
        while !self.is_over(at).await {
            tokio::time::sleep(dice.millis(20, 1500)).await;
        }
    }

    /// Copies of its requests, whenever the network makes one.
    async fn repeat(self, at: usize) {
        loop {
            self.orders.0[at].repeat.notified().await;
            let client = self.clone();
            tokio::task::spawn_local(async move { client.is_over(at).await });
        }
    }

    /// Asks once. Whether there is nothing left to ask.
    async fn is_over(&self, at: usize) -> bool {
        let key = key(at);
        let (name, trace) = (&self.name, &self.trace);
        let asking = self.watch.asks(self.number, &key);
        let hung_up = self.orders.0[at].hang_up.notified();
        let answer = tokio::select! {
            biased;
            () = hung_up => {
                trace.tell(&format!("{name} {key}: hung up"));
                return false;
            }
            answer = tokio::time::timeout(PATIENCE, ask(at, &key)) => answer,
        };
        if answer.is_err() {
            self.watch.meets(Trouble::ClientGone, &key);
        }
        drop(asking);
        let (status, headers, body) = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                trace.tell(&format!("{name} {key}: the connection broke"));
                return false;
            }
            Err(_) => {
                trace.tell(&format!("{name} {key}: no answer"));
                return false;
            }
        };
        if status == 201 {
            let is_replay = headers.contains_key("idempotent-replayed");
            trace.tell(&format!("{name} {key}: 201 {body:?}, a replay: {is_replay}"));
            let mut headers = headers;
            for about_one in ["idempotent-replayed", "x-correlation-id", "date"] {
                headers.remove(about_one);
            }
            self.heard.lock().expect("no panic").push(Heard { key, is_replay, headers, body });
            return true;
        }
        if status == 409 && body == TOO_LATE {
            trace.tell(&format!("{name} {key}: 409, too late"));
            assert!(!headers.contains_key("idempotent-replayed"), "{key}: a refusal became the outcome");
            return false;
        }
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let kind = problem["type"].as_str().unwrap_or("?").replace("urn:semel:problem:", "");
        trace.tell(&format!("{name} {key}: {status} {kind}"));
        let expected = [
            (409, "in-flight"),
            (409, "outcome-unknown"),
            (502, "upstream-unreachable"),
            (502, "outcome-unknown"),
            (503, "outcome-unknown"),
            (503, "outcome-unstored"),
            (503, "store-unavailable"),
            (503, "upstream-unreachable"),
            (504, "outcome-unknown"),
        ];
        assert!(expected.contains(&(status, kind.as_str())), "{key} was answered {status} {problem}");
        self.holds && (status, kind.as_str()) == (409, "outcome-unknown")
    }
}

async fn ask(at: usize, key: &str) -> Result<(u16, HeaderMap, Bytes), BoxError> {
    let stream = TcpStream::connect(("gateway", 8080)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { drop(connection.await) });
    // A request without a body is the easiest to send again by mistake.
    let body = if at.is_multiple_of(2) { Bytes::new() } else { Bytes::from_static(b"{\"amount\":100}") };
    let request = Request::post("/pay")
        .header("host", "gateway:8080")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Full::new(body))?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok((head.status.as_u16(), head.headers, body.collect().await?.to_bytes()))
}
