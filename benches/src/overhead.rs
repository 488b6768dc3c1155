//! What Semel itself costs: new operations and replays on the memory store, and fingerprints.

use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use axum::body::Body;
use bytes::Bytes;
use semel_core::runtime::Tokio;
use semel_core::{Fingerprint, Key, MemoryStore, Once, Origin, Outcome, Policy, Scope};
use tokio::task::JoinSet;
use tower_service::Service;

use crate::board::Board;
use crate::load::BODY_BYTES;
use crate::{Effort, callgrind, runtime};

const NEW: &str = "new operation";
const REPLAY: &str = "replay";
const PRINT: &str = "fingerprint of 1 KB JSON";
/// Callers that share the runtime of two threads.
const CALLERS: usize = 64;

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let count = effort.pick(200_000, 4_000);
    // Loops on runtimes of their own need a thread that belongs to none.
    let times = tokio::task::spawn_blocking(move || times(effort.rounds, count)).await??;
    let counts = tokio::task::spawn_blocking(move || callgrind::measure(effort)).await??;
    Ok(vec![times.print(), counts.print()])
}

fn times(rounds: usize, count: usize) -> Result<Board> {
    let one = current_thread()?;
    let two = runtime();
    let mut board = Board::new("Core over the memory store", "µs/op");
    for _ in 0..rounds {
        let keys = keys(count);
        let bench = one.block_on(Bench::new())?;
        let us = |start: Instant| start.elapsed().as_secs_f64() * 1e6 / count as f64;

        let start = Instant::now();
        one.block_on(bench.all(&keys, Origin::Fresh))?;
        board.add(NEW, us(start));

        let start = Instant::now();
        one.block_on(bench.all(&keys, Origin::Replayed))?;
        board.add(REPLAY, us(start));

        let (prints, json) = (one.block_on(bench.once.fingerprinter())?, json_of_1_kb());
        let start = Instant::now();
        for _ in 0..count {
            black_box(prints.of_json(black_box(json.as_bytes())));
        }
        board.add(PRINT, us(start));

        let bench = two.block_on(Bench::new())?;
        for (name, origin) in [(NEW, Origin::Fresh), (REPLAY, Origin::Replayed)] {
            let start = Instant::now();
            two.block_on(at_once(&bench, &keys, origin))?;
            board.add(&format!("{name}, {CALLERS} callers on 2 threads"), us(start));
        }
    }
    board.note("The two loops on 2 threads are in wall time per operation.");
    let [new, replay, print] = [NEW, REPLAY, PRINT].map(|name| board.median(name));
    board.at_most("core: new operation", new, 3.0, " µs");
    board.at_most("core: replay", replay, 1.0, " µs");
    board.at_most("core: fingerprint of 1 KB JSON", print, 6.0, " µs");
    Ok(board)
}

/// A loop of `count` steps and nothing else, for counting instructions.
pub(crate) fn fixed(what: &str, count: usize) -> Result<()> {
    let runtime = current_thread()?;
    let keys = keys(count);
    let bench = runtime.block_on(Bench::new())?;
    match what {
        "new" => runtime.block_on(bench.all(&keys, Origin::Fresh)),
        // One operation, replayed: what is counted must not contain the operations it replays.
        "replay" => runtime.block_on(async {
            bench.all(&keys[..1], Origin::Fresh).await?;
            for _ in 0..count {
                bench.all(&keys[..1], Origin::Replayed).await?;
            }
            Ok(())
        }),
        "fingerprint" => {
            let (prints, json) = (runtime.block_on(bench.once.fingerprinter())?, json_of_1_kb());
            for _ in 0..count {
                black_box(prints.of_json(black_box(json.as_bytes())));
            }
            Ok(())
        }
        "layer-new" | "layer-replay" | "layer-bare" => runtime.block_on(through_layer(what, &keys)),
        _ => anyhow::bail!("no such loop: {what}"),
    }
}

/// Requests of a kilobyte through the layer, without a network: what it adds to a handler that answers at once.
async fn through_layer(what: &str, keys: &[Key]) -> Result<()> {
    let app = crate::http::app();
    let mut app = if what == "layer-bare" { app } else { crate::http::with_semel(app)? };
    let json = Bytes::from(crate::http::json_of_1_kb());
    for at in 0..keys.len() {
        let key = if what == "layer-replay" { &keys[0] } else { &keys[at] };
        let request = axum::http::Request::post("/payments")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("idempotency-key", key.as_str())
            .body(Body::from(json.clone()))?;
        let response = app.call(request).await?;
        ensure!(response.status() == 200, "{key} was answered {}", response.status());
        black_box(response);
    }
    Ok(())
}

/// The same request again and again, under as many keys as are given.
#[derive(Clone)]
struct Bench {
    once: Once,
    scope: Scope,
    fingerprint: Fingerprint,
    policy: Policy,
    body: Bytes,
}

impl Bench {
    async fn new() -> Result<Self> {
        let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
        let fingerprint = once.fingerprinter().await?.of_json(json_of_1_kb().as_bytes());
        let scope = Scope::new("bench", "customer-42", "POST /charges")?;
        let body = Bytes::from(vec![b'x'; BODY_BYTES]);
        Ok(Self { once, scope, fingerprint, policy: Policy::default(), body })
    }

    async fn all(&self, keys: &[Key], expected: Origin) -> Result<()> {
        for key in keys {
            let (scope, print, body) = (self.scope.clone(), self.fingerprint.clone(), self.body.clone());
            let effect = async move |_op| Outcome::bytes("application/json", body);
            let answer = self.once.run(scope, key.clone(), print, &self.policy, effect).await?;
            ensure!(answer.origin == expected, "{key} was answered {:?}", answer.origin);
        }
        Ok(())
    }
}

async fn at_once(bench: &Bench, keys: &[Key], expected: Origin) -> Result<()> {
    let mut tasks = JoinSet::new();
    for share in keys.chunks(keys.len().div_ceil(CALLERS)) {
        let (bench, share) = (bench.clone(), share.to_vec());
        tasks.spawn(async move { bench.all(&share, expected).await });
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a caller panicked")??;
    }
    Ok(())
}

fn current_thread() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn keys(count: usize) -> Vec<Key> {
    (0..count).map(|n| format!("order-{n:08}-payment").parse().expect("a key of plain letters")).collect()
}

/// An order with a customer and its lines, as a payment API would get it: 1024 bytes.
fn json_of_1_kb() -> String {
    let mut json = String::from(
        r#"{"amount": 2000, "currency": "eur", "capture": true, "customer": {"id": "cus_8f3a2b",
        "email": "jo@example.org", "address": {"street": "Hauptstraße 7", "zip": "10115"}}, "lines": ["#,
    );
    for line in 0.. {
        let left = 1024 - json.len();
        if left < 200 {
            let head = r#"], "note": ""#;
            let _ = write!(json, r#"{head}{}"}}"#, "n".repeat(left - head.len() - 2));
            return json;
        }
        let comma = if line == 0 { "" } else { ", " };
        let _ = write!(
            json,
            r#"{comma}{{"sku": "A-{line:04}", "quantity": {line}, "price": 12.50, "tax": 0.19}}"#
        );
    }
    unreachable!("the lines fill a kilobyte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_1_kb_and_is_read_as_json() {
        let json = json_of_1_kb();
        assert_eq!(json.len(), 1024);
        let store = MemoryStore::new();
        let once = Once::new(Arc::new(store), Arc::new(Tokio::new()));
        let prints = current_thread().unwrap().block_on(once.fingerprinter()).unwrap();
        let spaced = json.replace("\": ", "\" :  ");
        assert_eq!(prints.of_json(json.as_bytes()).current(), prints.of_json(spaced.as_bytes()).current());
    }
}
