//! Keeps an eye on what is unknown: how many operations, and since when (G-80).
//!
//! It reads only. Whoever asks or settles is elsewhere; this is what wakes a person when nobody does.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use semel::error::Kind;
use semel::store::Filter;
use semel::{EffectStore, Error, Runtime, State, Timestamp, Token};

use super::net::within;
use super::observe::Metrics;

/// Records looked at in one step.
const LOOK: u32 = 5000;
/// Most unknowns counted in one look; a number that large needs no precision.
const COUNTED_MAX: u64 = 100_000;
/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) count: u64,
    /// Age of the oldest, on the store's clock.
    pub(crate) oldest: Option<Duration>,
}

/// Looks once through the unknowns of a namespace.
pub(crate) async fn look(store: &dyn EffectStore, namespace: &str) -> Result<Seen, Error> {
    let filter = Filter {
        namespace: Some(namespace.to_owned()),
        states: Some(vec![State::Unknown]),
        ..Filter::default()
    };
    let (mut count, mut since) = (0, None::<Timestamp>);
    let mut after = Token(0);
    loop {
        let page = store.list(&filter, after, LOOK).await?;
        count += page.records.len() as u64;
        since = page.records.iter().filter_map(|record| record.settled_at).chain(since).min();
        match page.next {
            Some(next) if count < COUNTED_MAX => after = next,
            _ => return Ok(Seen { count, oldest: since.map(|since| page.now.since(since)) }),
        }
    }
}

/// Looks again and again until `shutdown` ends.
///
/// # Cancellation
/// Safe; it only reads.
pub(crate) async fn watch(
    store: Arc<dyn EffectStore>,
    namespace: String,
    metrics: Arc<Metrics>,
    runtime: Arc<dyn Runtime>,
    every: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    loop {
        let round = pin!(async {
            let looked = within(&*runtime, LOOK_TIMEOUT, look(&*store, &namespace)).await;
            let late = || Err(Error::new(Kind::TimedOut, format!("no answer within {LOOK_TIMEOUT:?}")));
            match looked.unwrap_or_else(late) {
                Ok(Seen { count, oldest }) => metrics.unknowns_seen(count, oldest),
                Err(error) => {
                    metrics.store_away();
                    metrics.store_failed(error.kind());
                    tracing::warn!(%error, "the unknown operations cannot be counted now");
                }
            }
            runtime.sleep(every).await;
        });
        if let Either::Left(_) = select(shutdown.as_mut(), round).await {
            return;
        }
    }
}
