//! A client that wants every key charged, and asks until it hears so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use turmoil::net::TcpStream;

use super::trouble::Dice;
use super::{KEYS, Trace};
use crate::gateway::BoxError;

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

pub(super) struct Client {
    pub(super) name: String,
    /// Whether an unknown stays one until a person settles it.
    pub(super) holds: bool,
    pub(super) dice: Dice,
    pub(super) heard: Arc<Mutex<Vec<Heard>>>,
    pub(super) trace: Trace,
}

pub(super) fn key(at: usize) -> String {
    format!("simulated-intent-{at:04}")
}

impl Client {
    /// All keys side by side, each from some moment on: clients meet on some and are alone on others.
    pub(super) async fn run(mut self) -> turmoil::Result {
        let dice: Vec<Dice> = (0..KEYS).map(|_| Dice::new(self.dice.roll(u64::MAX))).collect();
        let intents = dice.into_iter().enumerate().map(|(at, dice)| self.insist(at, dice));
        join_all(intents).await;
        Ok(())
    }

    async fn insist(&self, at: usize, mut dice: Dice) {
        tokio::time::sleep(dice.millis(0, 15_000)).await;
        while !self.is_over(at).await {
            tokio::time::sleep(dice.millis(20, 1500)).await;
        }
    }

    /// Asks once. Whether there is nothing left to ask.
    async fn is_over(&self, at: usize) -> bool {
        let key = key(at);
        let answer = tokio::time::timeout(PATIENCE, ask(at, &key)).await;
        let (name, trace) = (&self.name, &self.trace);
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
