//! The store's hash keys, loaded once and again when a newer one turns up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use futures_util::future::{Either, select};
use semel_core::Once;
use semel_core::error::{Error, Kind};
use semel_core::fingerprint::Fingerprinter;
use semel_core::policy::DEFAULTS;
use semel_core::store::Pending;

use crate::tenant::Hasher;

/// Counts loadings from 1.
static LOADINGS: AtomicU64 = AtomicU64::new(1);

/// What is made with the store's keys.
pub(crate) struct Loaded {
    /// Another one each time keys are loaded, in this process.
    pub(crate) loading: u64,
    pub(crate) prints: Fingerprinter,
    pub(crate) hasher: Hasher,
}

/// Keeps the keys between requests.
#[derive(Default)]
pub(crate) struct Keys(ArcSwapOption<Loaded>);

impl Keys {
    pub(crate) async fn get(&self, once: &Once) -> Result<Arc<Loaded>, Error> {
        match self.0.load_full() {
            Some(loaded) => Ok(loaded),
            None => self.reload(once).await,
        }
    }

    /// Asks the store. Several at once do no harm.
    pub(crate) async fn reload(&self, once: &Once) -> Result<Arc<Loaded>, Error> {
        let status = in_time(once, once.store().status()).await?;
        let hasher = Hasher::new(&status.hash_keys);
        let prints = Fingerprinter::new(status.hash_keys).map_err(|problem| {
            Error::new(Kind::Damaged, "the store's fingerprint keys cannot be used").because(problem)
        })?;
        let loading = LOADINGS.fetch_add(1, Ordering::Relaxed);
        let loaded = Arc::new(Loaded { loading, prints, hasher });
        self.0.store(Some(loaded.clone()));
        Ok(loaded)
    }
}

/// The answer to a question that changes nothing, or an error when it does not come in time.
pub(crate) async fn in_time<T>(once: &Once, question: Pending<'_, T>) -> Result<T, Error> {
    let patience = once.runtime().sleep(DEFAULTS.store_patience);
    match select(question, patience).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Error::new(Kind::TimedOut, "the store did not answer a question in time")),
    }
}

impl Loaded {
    /// For a call that will not reach the store, which is away: what it makes is never kept.
    pub(crate) fn blind() -> Self {
        let key = semel_core::fingerprint::HashKey::new(0, [0; 32]);
        let prints = Fingerprinter::new(vec![key]).expect("one key is enough");
        Self { loading: 0, prints, hasher: Hasher::blind() }
    }
}
