//! Callers that ask again and again for a while, and how long they waited.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use semel_core::fingerprint::Print;
use semel_core::record::{Record, Terms};
use semel_core::verbs::{Complete, Completion};
use semel_core::{Claim, EffectStore, Fingerprinter, Nonce, Operation, Policy, Scope, claim};
use tokio::task::JoinSet;

use crate::Effort;
use crate::board::{Latency, Sample};

/// Size of the outcome stored by every contestant, and of a raw log's record.
pub(crate) const BODY_BYTES: usize = 300;
/// Waits above this are counted as this.
const WAIT_US_MAX: u64 = 60_000_000;

/// One request as a contestant serves it: two durable waits, a claim's and a completion's.
pub(crate) trait Contestant: Send + Sync + 'static {
    /// Serves a request with a key nobody used, and says how long each wait took.
    fn request(&self) -> impl Future<Output = Result<[Duration; 2]>> + Send;
}

/// Lets `callers` ask at once for one window. The sample is requests per second, and the time of
/// single waits.
pub(crate) async fn window<C: Contestant>(
    contestant: &Arc<C>,
    callers: usize,
    effort: Effort,
) -> Result<Sample> {
    let from = Instant::now() + effort.warm_up;
    let until = from + effort.window;
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let contestant = contestant.clone();
        tasks.spawn(async move {
            let (mut waits, mut served) = (waits(), 0_u64);
            loop {
                let times = contestant.request().await?;
                let now = Instant::now();
                if now >= until {
                    return anyhow::Ok((waits, served));
                }
                if now >= from {
                    served += 1;
                    times.iter().for_each(|time| record(&mut waits, *time));
                }
            }
        });
    }
    let (mut all, mut served) = (waits(), 0);
    while let Some(task) = tasks.join_next().await {
        let (waits, count) = task.context("a caller panicked")??;
        all.add(waits).context("histograms of one shape")?;
        served += count;
    }
    let value = served as f64 / effort.window.as_secs_f64();
    Ok(Sample { value, latency: Some(latency(&all)) })
}

/// An empty histogram of waits in microseconds, good to one percent.
pub(crate) fn waits() -> Histogram<u64> {
    Histogram::new_with_bounds(1, WAIT_US_MAX, 2).expect("bounds in order")
}

pub(crate) fn record(waits: &mut Histogram<u64>, time: Duration) {
    waits.saturating_record(time.as_micros().clamp(1, u128::from(WAIT_US_MAX)) as u64);
}

pub(crate) fn latency(waits: &Histogram<u64>) -> Latency {
    let at = |quantile| waits.value_at_quantile(quantile) as f64 / 1000.0;
    Latency { p50_ms: at(0.5), p99_ms: at(0.99) }
}

/// A store of ours, asked through its trait.
pub(crate) struct Direct {
    pub(crate) store: Arc<dyn EffectStore>,
    scope: Scope,
    print: Print,
    terms: Terms,
    outcome: Bytes,
}

impl Direct {
    pub(crate) async fn new(store: Arc<dyn EffectStore>) -> Result<Self> {
        Self::with_terms(store, Policy::default().terms()).await
    }

    pub(crate) async fn with_terms(store: Arc<dyn EffectStore>, terms: Terms) -> Result<Self> {
        let scope = Scope::new("bench", "customer-42", "POST /charges")?;
        let prints = Fingerprinter::new(store.status().await?.hash_keys)?;
        let print = prints.of_json(br#"{"amount":2000,"currency":"eur"}"#).current().clone();
        Ok(Self { store, scope, print, terms, outcome: Bytes::from(vec![b'x'; BODY_BYTES]) })
    }

    /// Writes records like this one: as large an outcome, evidence about as many leaves.
    pub(crate) fn like(store: Arc<dyn EffectStore>, record: &Record) -> Result<Self> {
        let outcome = record.outcome.clone().context("a record without an outcome")?;
        let scope = record.operation.scope().clone();
        Ok(Self { store, scope, print: record.print.clone(), terms: record.terms, outcome })
    }

    /// What one record holds beside its identity.
    pub(crate) fn sizes(&self) -> String {
        format!("outcome {} B, evidence {} B", self.outcome.len(), self.print.paths.encode().len())
    }

    /// Claims a key nobody used.
    pub(crate) async fn claim(&self) -> Result<semel_core::Lease> {
        let nonce = Nonce::random();
        let operation = Arc::new(Operation::new(self.scope.clone(), nonce.to_string().parse()?));
        let (print, terms) = (self.print.clone(), self.terms);
        let request = claim::Request { operation, nonce, print, terms, subject: None };
        match self.store.claim(&request).await? {
            Claim::Granted(lease) => Ok(lease),
            other => anyhow::bail!("a claim of a new key was answered {other:?}"),
        }
    }

    pub(crate) async fn complete(&self, lease: semel_core::Lease) -> Result<()> {
        let complete = Complete { holder: lease.holder, outcome: self.outcome.clone(), ttl_min: None };
        let completion = self.store.complete(&complete).await?;
        ensure!(completion == Completion::Stored, "a completion was answered {completion:?}");
        Ok(())
    }
}

impl Contestant for Direct {
    async fn request(&self) -> Result<[Duration; 2]> {
        let start = Instant::now();
        let lease = self.claim().await?;
        let claimed = start.elapsed();
        self.complete(lease).await?;
        Ok([claimed, start.elapsed() - claimed])
    }
}
