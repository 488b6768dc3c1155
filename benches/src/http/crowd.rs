//! Crowds: a thousand at once on one key, a storm of retries on a hot key beside others' traffic, ten
//! thousand connections that do nothing, and a long mixed load over a hundred thousand live keys.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::servers::Server;
use super::wrk::{Traffic, Wrk};
use crate::Effort;
use crate::board::{Board, Latency, Sample};

/// How long the slow service takes for one request.
pub(super) const HANDLER: Duration = Duration::from_millis(200);
/// Others who wait meanwhile for keys of their own, one request each and a pause.
const OTHERS: usize = 16;
const PAUSE: Duration = Duration::from_millis(20);
/// The storm: so many clients that never stop asking for one key.
const STORM: usize = 64;
const STORM_PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let semel = super::build_semel().await?;
    Ok(vec![
        race(&semel, effort).await?.print(),
        storm(&semel, effort).await?.print(),
        memory(&semel, effort).await?.print(),
    ])
}

/// One client with one connection.
struct Client {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl Client {
    async fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, seen: Vec::with_capacity(4096) })
    }

    /// Sends a request and reads its whole answer; gives the status.
    async fn ask(&mut self, request: &[u8]) -> Result<u16> {
        self.stream.write_all(request).await?;
        self.seen.clear();
        loop {
            ensure!(
                self.stream.read_buf(&mut self.seen).await? > 0,
                "the connection ended before its answer"
            );
            let Some(end) = self.seen.windows(4).position(|at| at == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.seen[..end])?.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.context("an answer without a length")?.trim().parse()?;
            if self.seen.len() >= end + 4 + length {
                return Ok(head.split(' ').nth(1).context("no status")?.parse()?);
            }
        }
    }
}

fn post(key: &str) -> Vec<u8> {
    let body = super::json_of_1_kb();
    format!(
        "POST /payments HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

async fn effects(upstream: &Server) -> Result<u64> {
    let mut stream = TcpStream::connect(&upstream.address).await?;
    stream.write_all(b"GET /effects HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text.rsplit("\r\n\r\n").next().unwrap_or_default().trim().parse()?)
}

async fn race(semel: &Path, effort: Effort) -> Result<Board> {
    let racers = effort.pick(1000, 50);
    let upstream = Server::part(&["slow"]).await?;
    let target = format!("http://{}", upstream.address);
    let mut board = Board::new(format!("{racers} at once on one key, handler of {HANDLER:?}"), "ms");
    for (name, wait) in [("told to come back (409)", "0s"), ("waiting for the answer", "10s")] {
        let gateway = Server::gateway(semel, &["--upstream", &target, "--wait", wait], true).await?;
        for round in 0..effort.rounds {
            let before = effects(&upstream).await?;
            let (statuses, slowest) =
                burst(&gateway.address, &format!("race-{wait}-{round}-of-a-crowd"), racers).await?;
            let ran = effects(&upstream).await? - before;
            ensure!(ran == 1, "{ran} effects of one key");
            let bad = statuses.keys().any(|status| !matches!(status, 200 | 409));
            ensure!(!bad, "somebody was answered neither 200 nor 409: {statuses:?}");
            board.add(name, slowest.as_secs_f64() * 1e3);
        }
        let slowest = board.median(name);
        board.at_most(
            format!("Race, {name}: the slowest answer"),
            slowest,
            2.0 * HANDLER.as_secs_f64() * 1e3,
            " ms",
        );
    }
    board.note("Each value is the slowest answer of a round. One effect in every round; nobody got anything but 200 or 409.");
    Ok(board)
}

/// All on one key at the same moment. Statuses with their counts, and the slowest answer.
async fn burst(address: &str, key: &str, racers: usize) -> Result<(BTreeMap<u16, usize>, Duration)> {
    let barrier = Arc::new(Barrier::new(racers));
    let request: Arc<[u8]> = post(key).into();
    let mut tasks = JoinSet::new();
    for _ in 0..racers {
        let (barrier, request) = (barrier.clone(), request.clone());
        let mut client = Client::connect(address).await?;
        tasks.spawn(async move {
            barrier.wait().await;
            let start = Instant::now();
            Ok::<_, anyhow::Error>((client.ask(&request).await?, start.elapsed()))
        });
    }
    let (mut statuses, mut slowest) = (BTreeMap::new(), Duration::ZERO);
    while let Some(answered) = tasks.join_next().await {
        let (status, took) = answered??;
        *statuses.entry(status).or_default() += 1;
        slowest = slowest.max(took);
    }
    Ok((statuses, slowest))
}

async fn storm(semel: &Path, effort: Effort) -> Result<Board> {
    let upstream = Server::part(&["bare"]).await?;
    let gateway =
        Server::gateway(semel, &["--upstream", &format!("http://{}", upstream.address)], true).await?;
    let (calm, stormy) = ("new keys, undisturbed", "new keys beside the storm");
    let mut board = Board::new(format!("A storm of {STORM} clients on one hot key"), "req/s");
    for round in 0..effort.rounds {
        for (name, storming) in [(calm, false), (stormy, true)] {
            let end = Arc::new(AtomicBool::new(false));
            let mut retriers = JoinSet::new();
            for _ in 0..if storming { STORM } else { 0 } {
                let (mut client, end) = (Client::connect(&gateway.address).await?, end.clone());
                let request = post("the-hot-key-of-the-storm");
                retriers.spawn(async move {
                    let mut answers = 0_u64;
                    while !end.load(Ordering::Relaxed) {
                        let status = client.ask(&request).await?;
                        ensure!(matches!(status, 200 | 409), "the hot key was answered {status}");
                        answers += 1;
                        tokio::time::sleep(STORM_PAUSE).await;
                    }
                    Ok(answers)
                });
            }
            let sample = others(&gateway.address, &format!("{round}-{storming}"), effort.window).await;
            end.store(true, Ordering::Relaxed);
            let mut answers = 0;
            while let Some(retrier) = retriers.join_next().await {
                answers += retrier??;
            }
            board.add(name, sample?);
            if storming && round == 0 {
                board.note(format!(
                    "The storm was answered {answers} times in the first round, never with a 5xx."
                ));
            }
        }
    }
    let times = board.latency(stormy).p99_ms / board.latency(calm).p99_ms;
    board.at_most("Storm: p99 of other keys against undisturbed", times, 2.0, "×");
    Ok(board)
}

/// Clients with keys of their own, at a steady pace.
async fn others(address: &str, round: &str, window: Duration) -> Result<Sample> {
    let mut tasks = JoinSet::new();
    for other in 0..OTHERS {
        let (mut client, round) = (Client::connect(address).await?, round.to_owned());
        tasks.spawn(async move {
            let (start, mut times) = (Instant::now(), Vec::new());
            while start.elapsed() < window {
                let request = post(&format!("one-of-the-others-{round}-{other}-{}", times.len()));
                let sent = Instant::now();
                let status = client.ask(&request).await?;
                ensure!(status == 200, "a new key was answered {status}");
                times.push(sent.elapsed().as_secs_f64() * 1e3);
                tokio::time::sleep(PAUSE).await;
            }
            Ok::<_, anyhow::Error>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(other) = tasks.join_next().await {
        times.extend(other??);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let latency = Latency { p50_ms: at(0.5), p99_ms: at(0.99) };
    Ok(Sample { value: times.len() as f64 / window.as_secs_f64(), latency: Some(latency) })
}

async fn memory(semel: &Path, effort: Effort) -> Result<Board> {
    let wrk = Wrk::ready().await?;
    let upstream = Server::part(&["bare"]).await?;
    let gateway =
        Server::gateway(semel, &["--upstream", &format!("http://{}", upstream.address)], true).await?;
    let mut board = Board::new("Memory of the gateway process", "MiB");
    board.add("at rest", gateway.resident_mib()?);

    let idle = effort.pick(10_000, 200);
    let mut held = Vec::with_capacity(idle);
    for _ in 0..idle {
        held.push(Client::connect(&gateway.address).await?);
    }
    // The last ones connected are served: the gateway has taken all of them.
    for client in held.iter_mut().rev().take(10) {
        ensure!(
            client.ask(&post("one-of-many-idle-connections")).await? == 200,
            "it serves beside idle connections"
        );
    }
    board.add(&format!("with {idle} idle connections"), gateway.resident_mib()?);
    drop(held);

    // New keys until enough are live, then everything mixed for a while.
    let live = effort.pick(100_000.0, 1_000.0);
    let (mut keys, second) = (0.0, Duration::from_secs(1));
    while keys < live {
        keys += wrk.window(&gateway, Traffic::NewKeys, second).await?.value;
    }
    let (first, last) =
        (format!("{} live keys, mixed load begins", live as u64), "mixed load ends".to_owned());
    for round in 0..effort.pick(20, 2) {
        wrk.window(&gateway, Traffic::Replays(1000), effort.window).await?;
        wrk.window(&gateway, Traffic::Post, effort.window).await?;
        wrk.window(&gateway, Traffic::NewKeys, second).await?;
        // The first rounds fill caches that stay.
        if round == effort.pick(5, 0) {
            board.add(&first, gateway.resident_mib()?);
        }
    }
    board.add(&last, gateway.resident_mib()?);
    let growth = 100.0 * (board.median(&last) / board.median(&first) - 1.0);
    board.at_most("Memory: growth over a mixed load with live keys", growth, 10.0, " %");
    Ok(board)
}
