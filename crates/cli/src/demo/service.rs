//! The service in the middle: takes payments from clients, charges them at the bank, and is killed
//! without warning. With Semel it wraps the charge in `Once::run`; without, it just charges.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use semel::policy::Policy;
use semel::runtime::Tokio;
use semel::{
    Attempt, Ending, Fingerprinter, Once, Origin, Outcome, Question, Recoverer, Recovery, Reply, Scope, Token,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};

use super::wire::{FromService, ToService};

/// The service holds a charge this long before and after calling the bank, so that crashes hit everywhere.
const WORK: Duration = Duration::from_millis(4);

#[derive(Args)]
pub(crate) struct Arguments {
    /// Protect payments with this store; without it, nothing is protected.
    #[arg(long)]
    store: Option<String>,
}

/// The line to the bank.
struct Bank {
    out: mpsc::UnboundedSender<FromService>,
    calls: AtomicU64,
    open: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (out, lines) = mpsc::unbounded_channel();
    tokio::spawn(write_lines(lines));
    let bank = Arc::new(Bank { out, calls: AtomicU64::new(0), open: Mutex::default() });
    let shield = match &arguments.store {
        Some(url) => Some(Shield::raise(url, bank.clone()).await?),
        None => None,
    };
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = input.next_line().await.context("the demo went away")? {
        match ToService::parse(&line) {
            Some(ToService::Pay { id, key }) => {
                let (bank, shield) = (bank.clone(), shield.clone());
                tokio::spawn(async move {
                    let paid = match shield {
                        Some(shield) => shield.pay(&key, bank.clone()).await,
                        None => charge(&bank, &key, 0).await,
                    };
                    let _ = bank.out.send(FromService::Answer { id, paid });
                });
            }
            Some(ToService::Bank { call, done }) => bank.hear(call, done),
            None => anyhow::bail!("the demo sent a line that means nothing: {line:?}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn write_lines(mut lines: mpsc::UnboundedReceiver<FromService>) {
    let mut output = tokio::io::stdout();
    while let Some(line) = lines.recv().await {
        if output.write_all(line.line().as_bytes()).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

/// The effect: some work, the charge, some more work.
async fn charge(bank: &Bank, key: &str, token: u64) -> bool {
    tokio::time::sleep(WORK).await;
    let done = bank.call(|call| FromService::Charge { call, key: key.into(), token }).await;
    tokio::time::sleep(WORK).await;
    done
}

impl Bank {
    async fn call(&self, line: impl FnOnce(u64) -> FromService) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let (tell, hear) = oneshot::channel();
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(call, tell);
        let _ = self.out.send(line(call));
        hear.await.unwrap_or(false)
    }

    fn hear(&self, call: u64, done: bool) {
        let tell = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
        if let Some(tell) = tell {
            let _ = tell.send(done);
        }
    }
}

/// What a service adds to be safe.
#[derive(Clone)]
struct Shield {
    once: Once,
    prints: Fingerprinter,
    policy: Policy,
}

impl Shield {
    async fn raise(url: &str, bank: Arc<Bank>) -> anyhow::Result<Self> {
        let store = semel::stores::open(url).await.context("the demo's store cannot be opened")?;
        let runtime = Arc::new(Tokio::new());
        let once = Once::new(store.clone(), runtime.clone());
        let prints = once.fingerprinter().await?;
        // Short times, so that the demo recovers from each crash while you watch.
        let policy = Policy::builder()
            .recovery(Recovery::Ask)
            .lease(Duration::from_millis(400))
            .run_max(Duration::from_millis(200))
            .wait(Duration::from_millis(500))
            .build()?;
        let ask = move |question: Question| {
            let bank = bank.clone();
            async move {
                let (key, token) = (question.operation.key().to_string(), question.token);
                let done = bank.call(|call| FromService::Ask { call, key, token: token.0 }).await;
                if done {
                    Reply::Done(Outcome::text("paid"))
                } else {
                    Reply::Never { refused_through: token }
                }
            }
        };
        let recoverer = Recoverer::new(store, runtime).every(Duration::from_millis(100)).ask(
            "pay",
            policy.clone(),
            Arc::new(ask),
        );
        tokio::spawn(recoverer.run(std::future::pending()));
        Ok(Self { once, prints, policy })
    }

    async fn pay(&self, key: &str, bank: Arc<Bank>) -> bool {
        let Ok(scope) = Scope::shared("demo", "pay") else { return false };
        let Ok(parsed) = key.parse() else { return false };
        let effect = async move |op: Attempt| {
            let token = op.token().unwrap_or(Token(0)).0;
            if charge(&bank, op.operation().key().as_str(), token).await {
                Ending::Done(Outcome::text("paid"))
            } else {
                Ending::Unknown("the bank refused a stale attempt".into())
            }
        };
        let fingerprint = self.prints.of_bytes(key.as_bytes());
        let answer = self.once.run(scope, parsed, fingerprint, &self.policy, effect).await;
        answer.is_ok_and(|answer| matches!(answer.origin, Origin::Fresh | Origin::Replayed))
    }
}
