//! `semel demo`: 200 clients pay through a service that is killed again and again, once without
//! Semel and once with it. What happened is counted at the bank, outside of everything that crashes.

use std::collections::HashMap;
use std::process::ExitCode;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use wire::{FromService, ToService};

pub(crate) mod service;
mod wire;

/// A client that hears nothing for this long sends its request again.
const PATIENCE: Duration = Duration::from_millis(250);
/// One answer in this many is lost on its way to the client.
const LOST_ONE_IN: u64 = 10;
/// Nothing in the demo takes longer; a run that does has lost something.
const GIVE_UP: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct Arguments {
    /// Clients that pay at the same time.
    #[arg(long, default_value_t = 200)]
    workers: usize,
    /// Payments each client makes.
    #[arg(long, default_value_t = 20)]
    payments: usize,
    /// How often the service is killed without warning.
    #[arg(long, default_value_t = 8)]
    crashes: u32,
    /// Where Semel remembers: `sqlite:PATH` or `postgres://…`; a temporary SQLite file if not given.
    #[arg(long, env = "SEMEL_STORE", hide_env_values = true)]
    store: Option<String>,
}

/// What one run came to.
struct Tally {
    attempts: u64,
    crashes: u32,
    effects: u64,
    duplicates: u64,
    missing: u64,
    took: Duration,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let intents = arguments.workers * arguments.payments;
    let Arguments { workers, payments, crashes, .. } = arguments;
    println!("{workers} clients make {payments} payments each. One answer in ten is lost, and the service");
    println!("is killed {crashes} times with kill -9. Clients retry until they hear that they have paid.\n");
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let store = arguments.store.clone().unwrap_or(format!("sqlite:{}/demo.db", scratch.path().display()));
    let mut rows = Vec::new();
    for (name, store) in [("without Semel", None), ("with Semel", Some(store))] {
        println!("{name} …");
        rows.push((name, Run::new(&arguments, store).play().await?));
    }
    println!("\n                 payments  attempts  crashes  charges  DUPLICATES  missing   time");
    for (name, tally) in &rows {
        println!(
            "{name:<15}  {intents:>8}  {:>8}  {:>7}  {:>7}  {:>10}  {:>7}  {:>4.1}s",
            tally.attempts,
            tally.crashes,
            tally.effects,
            tally.duplicates,
            tally.missing,
            tally.took.as_secs_f32()
        );
    }
    println!(
        "\nCounted at the bank: a duplicate is a client charged again, missing is paid but never charged."
    );
    let safe = rows.last().is_some_and(|(_, tally)| tally.duplicates == 0 && tally.missing == 0);
    Ok(if safe { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One run: the clients, the bank, and the service between them.
struct Run {
    workers: usize,
    payments: usize,
    crashes: u32,
    store: Option<String>,
    bank: Mutex<BankBook>,
    clients: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
    requests: AtomicU64,
    heard: AtomicU64,
    done: AtomicBool,
    to_service: Mutex<Option<mpsc::UnboundedSender<ToService>>>,
}

/// Charges per key, and the tokens the bank refuses.
#[derive(Default)]
struct BankBook {
    charges: HashMap<String, u64>,
    fences: HashMap<String, u64>,
}

impl Run {
    fn new(arguments: &Arguments, store: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            workers: arguments.workers,
            payments: arguments.payments,
            crashes: arguments.crashes,
            store,
            bank: Mutex::default(),
            clients: Mutex::default(),
            requests: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            done: AtomicBool::new(false),
            to_service: Mutex::new(None),
        })
    }

    async fn play(self: Arc<Self>) -> anyhow::Result<Tally> {
        let start = Instant::now();
        let nonce = semel::Nonce::random().to_string();
        let keys: Vec<Vec<String>> = (0..self.workers)
            .map(|worker| (0..self.payments).map(|n| format!("{}-{worker}-{n}", &nonce[..12])).collect())
            .collect();
        let clients: Vec<_> =
            keys.iter().cloned().map(|keys| tokio::spawn(self.clone().client(keys))).collect();
        let served = tokio::spawn(self.clone().keep_serving());
        let all = async {
            for client in clients {
                client.await.context("a client stopped")?;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(GIVE_UP, all).await.context("some client never heard that it had paid")??;
        self.done.store(true, Ordering::SeqCst);
        lock(&self.to_service).take();
        let crashes = served.await.context("the service's keeper stopped")??;
        let bank = lock(&self.bank);
        let intents = keys.iter().flatten();
        let missing = intents.clone().filter(|key| !bank.charges.contains_key(*key)).count() as u64;
        let effects = bank.charges.values().sum();
        let duplicates = bank.charges.values().map(|count| count - 1).sum();
        let attempts = self.requests.load(Ordering::Relaxed);
        Ok(Tally { attempts, crashes, effects, duplicates, missing, took: start.elapsed() })
    }

    /// A client: sends each payment under one key until it hears that it was made.
    async fn client(self: Arc<Self>, keys: Vec<String>) {
        for key in keys {
            loop {
                let id = self.requests.fetch_add(1, Ordering::Relaxed);
                let (tell, hear) = oneshot::channel();
                lock(&self.clients).insert(id, tell);
                self.send(ToService::Pay { id, key: key.clone() });
                let heard = tokio::time::timeout(PATIENCE, hear).await;
                lock(&self.clients).remove(&id);
                if let Ok(Ok(true)) = heard {
                    break;
                }
                tokio::time::sleep(PATIENCE / 10).await;
            }
        }
    }

    /// Starts the service, kills it at random moments, and starts it again.
    async fn keep_serving(self: Arc<Self>) -> anyhow::Result<u32> {
        let mut crashes = 0;
        let intents = (self.workers * self.payments) as u64;
        loop {
            let mut service = self.start()?;
            if crashes == self.crashes || self.done.load(Ordering::SeqCst) {
                service.wait().await.context("the service cannot be waited for")?;
                return Ok(crashes);
            }
            // Spread over the run: the next crash comes once its share of payments was made.
            let due = intents * u64::from(crashes + 1) / u64::from(self.crashes + 1);
            while self.heard.load(Ordering::Relaxed) < due && !self.done.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if !self.done.load(Ordering::SeqCst) {
                service.kill().await.context("the service cannot be killed")?;
                crashes += 1;
            }
        }
    }

    fn start(self: &Arc<Self>) -> anyhow::Result<Child> {
        let own = std::env::current_exe().context("this program does not know where it is")?;
        let mut command = Command::new(own);
        command.arg("demo-service").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command.args(self.store.iter().flat_map(|store| ["--store", store]));
        let mut child = command.spawn().context("the demo's service does not start")?;
        let (send, mut lines) = mpsc::unbounded_channel::<ToService>();
        if !self.done.load(Ordering::SeqCst) {
            *lock(&self.to_service) = Some(send);
        }
        let mut stdin = child.stdin.take().context("the service has no input")?;
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                if stdin.write_all(line.line().as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let stdout = child.stdout.take().context("the service has no output")?;
        let run = self.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                run.hear(&line);
            }
        });
        Ok(child)
    }

    fn send(&self, line: ToService) {
        if let Some(service) = lock(&self.to_service).as_ref() {
            let _ = service.send(line);
        }
    }

    fn hear(&self, line: &str) {
        match FromService::parse(line) {
            Some(FromService::Answer { id, paid }) => {
                let lost = u64::from(semel::Nonce::random().as_bytes()[15]).is_multiple_of(LOST_ONE_IN);
                let client = lock(&self.clients).remove(&id);
                if let Some(client) = client.filter(|_| !lost) {
                    self.heard.fetch_add(u64::from(paid), Ordering::Relaxed);
                    let _ = client.send(paid);
                }
            }
            Some(FromService::Charge { call, key, token }) => {
                let done = lock(&self.bank).charge(key, token);
                self.send(ToService::Bank { call, done });
            }
            Some(FromService::Ask { call, key, token }) => {
                let done = lock(&self.bank).ask(key, token);
                self.send(ToService::Bank { call, done });
            }
            None => {}
        }
    }
}

impl BankBook {
    /// Charges, unless this token was fenced off. Without Semel there are no tokens, and no fences.
    fn charge(&mut self, key: String, token: u64) -> bool {
        if self.fences.get(&key).is_some_and(|fence| token <= *fence) {
            return false;
        }
        *self.charges.entry(key).or_default() += 1;
        true
    }

    /// Whether it was charged; if not, refuses this token and all before it from now on.
    fn ask(&mut self, key: String, token: u64) -> bool {
        if self.charges.contains_key(&key) {
            return true;
        }
        let fence = self.fences.entry(key).or_default();
        *fence = (*fence).max(token);
        false
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
