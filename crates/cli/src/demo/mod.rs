//! `semel demo`: clients pay over a bad network, once straight to a payments service and once through
//! `semel gateway`, which is killed now and then. What happened is counted in the service.

use crate::say::say;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use chaos::{Chaos, Heard};
use payments::Payments;

mod chaos;
pub(crate) mod payments;
mod triangle;

/// Nothing in the demo takes longer; a run that does has lost something.
const GIVE_UP: Duration = Duration::from_secs(180);

#[derive(Args)]
pub(crate) struct Arguments {
    /// Clients that pay at the same time.
    #[arg(long, default_value_t = 100)]
    workers: usize,
    /// Payments each client makes.
    #[arg(long, default_value_t = 20)]
    payments: usize,
    /// How often the gateway is killed without warning.
    #[arg(long, default_value_t = 4)]
    crashes: u32,
    /// Where Semel remembers: `sqlite:PATH`, `postgres://…` or `mysql://…`; a temporary SQLite file if not given.
    #[arg(long, env = "SEMEL_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Show instead what a key, an outbox and a ledger keep from leaking: with all three, and without each.
    #[arg(long, conflicts_with_all = ["workers", "payments", "crashes", "store"])]
    triangle: bool,
    /// Of the accidents in the triangle.
    #[arg(long, default_value_t = 1, requires = "triangle")]
    seed: u64,
}

/// Orders in the triangle.
const ORDERS: u64 = 200;

/// What one run came to.
struct Tally {
    attempts: u64,
    lost: u64,
    crashes: u32,
    effects: u64,
    duplicates: u64,
    missing: u64,
    took: Duration,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { workers, payments, crashes, store, triangle, seed } = arguments;
    if triangle {
        return triangle::run(ORDERS, seed).await;
    }
    let intents = workers * payments;
    say!(
        "{workers} clients make {payments} payments each and retry until they hear that they have paid. The"
    );
    say!("network loses 3 answers in 10, sends 1 request in 10 twice and delays many; with Semel, the");
    say!("gateway is also killed {crashes} times with kill -9.\n");
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let store = store.unwrap_or(format!("sqlite:{}/demo.db", scratch.path().display()));
    let mut rows = Vec::new();
    for (name, store) in [("without Semel", None), ("with Semel", Some(store))] {
        let bar = ProgressBar::new(intents as u64).with_prefix(name);
        bar.set_style(ProgressStyle::with_template("{prefix:>13} {wide_bar} {pos}/{len}").context("a bar")?);
        let crashes = if store.is_some() { crashes } else { 0 };
        rows.push((name, play(workers, payments, crashes, store, &bar).await.with_context(|| name)?));
        bar.finish();
    }
    say!("               intents  attempts  answers lost  crashes  effects  DUPLICATES  missing   time");
    for (name, tally) in &rows {
        say!(
            "{name:<13}  {intents:>7}  {:>8}  {:>12}  {:>7}  {:>7}  {:>10}  {:>7}  {:>4.1}s",
            tally.attempts,
            tally.lost,
            tally.crashes,
            tally.effects,
            tally.duplicates,
            tally.missing,
            tally.took.as_secs_f32()
        );
    }
    say!("\nCounted in the payments service: a duplicate is a client charged again, missing is paid but");
    say!("never charged.");
    let safe = rows.last().is_some_and(|(_, tally)| tally.duplicates == 0 && tally.missing == 0);
    Ok(if safe { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One run: all clients, the network, the service, and perhaps a gateway between them.
async fn play(
    workers: usize,
    payments: usize,
    crashes: u32,
    store: Option<String>,
    bar: &ProgressBar,
) -> anyhow::Result<Tally> {
    let start = Instant::now();
    let service = Payments::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("no port on loopback")?;
    let upstream = listener.local_addr()?;
    let router = service.router();
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    let mut gateway = match store {
        Some(store) => Some(Gateway::start(format!("http://{upstream}"), store).await?),
        None => None,
    };
    let target = gateway.as_ref().map_or(upstream.to_string(), |gateway| gateway.address.clone());
    let chaos = Arc::new(Chaos::new(target));
    let paid = Arc::new(AtomicU64::new(0));
    let run = semel::Nonce::random().to_string();
    let keys: Vec<Vec<String>> =
        (0..workers).map(|worker| (0..payments).map(|n| format!("{run}-{worker}-{n}")).collect()).collect();
    let mut clients = JoinSet::new();
    for keys in keys.clone() {
        clients.spawn(client(chaos.clone(), keys, paid.clone(), bar.clone()));
    }
    let intents = (workers * payments) as u64;
    let mut killed = 0;
    let deadline = start + GIVE_UP;
    while !clients.is_empty() {
        anyhow::ensure!(Instant::now() < deadline, "some client never heard that it had paid");
        let _ = tokio::time::timeout(Duration::from_millis(5), clients.join_next()).await;
        // Spread over the run: the next crash comes once its share of payments was made.
        let due = intents * u64::from(killed + 1) / u64::from(crashes + 1);
        if let Some(gateway) = &mut gateway
            && killed < crashes
            && paid.load(Ordering::Relaxed) >= due
        {
            gateway.crash().await?;
            killed += 1;
        }
    }
    chaos.settle().await;
    drop(gateway);
    serving.abort();
    let charges = service.charges();
    let missing = keys.iter().flatten().filter(|key| !charges.contains_key(*key)).count() as u64;
    Ok(Tally {
        attempts: chaos.attempts(),
        lost: chaos.lost(),
        crashes: killed,
        effects: charges.values().sum(),
        duplicates: charges.values().map(|count| count - 1).sum(),
        missing,
        took: start.elapsed(),
    })
}

/// A client: sends each payment under one key until it hears that it was made.
async fn client(chaos: Arc<Chaos>, keys: Vec<String>, paid: Arc<AtomicU64>, bar: ProgressBar) {
    for key in keys {
        while chaos.clone().send(&key).await != Heard::Paid {}
        paid.fetch_add(1, Ordering::Relaxed);
        bar.inc(1);
    }
}

/// `semel gateway` as a process of its own, so that it can be killed.
struct Gateway {
    child: Child,
    address: String,
    upstream: String,
    store: String,
}

impl Gateway {
    async fn start(upstream: String, store: String) -> anyhow::Result<Self> {
        let (child, address) = launch("127.0.0.1:0", &upstream, &store).await?;
        Ok(Self { child, address, upstream, store })
    }

    async fn crash(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("the gateway cannot be killed")?;
        self.child = launch(&self.address, &self.upstream, &self.store).await?.0;
        Ok(())
    }
}

async fn launch(listen: &str, upstream: &str, store: &str) -> anyhow::Result<(Child, String)> {
    let own = std::env::current_exe().context("this program does not know where it is")?;
    let recovery = format!("ask:{upstream}/reconcile");
    // Short times, so that the demo recovers from each crash while you watch.
    let mut child = Command::new(own)
        .args(["gateway", "--listen", listen, "--upstream", upstream, "--store", store])
        .args(["--tenant", "none", "--recovery", &recovery, "--lease", "400ms", "--run-max", "300ms"])
        .args(["--wait", "500ms", "--log-filter", "off"])
        .env_remove("SEMEL_STORE")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("the gateway does not start")?;
    let stdout = child.stdout.take().context("the gateway has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some(address) = line.strip_prefix("semel gateway listening on http://") {
            return Ok((child, address.to_owned()));
        }
    }
    anyhow::bail!("the gateway ended before it was ready")
}
