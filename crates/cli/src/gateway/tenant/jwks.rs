//! Key sets that change while the gateway runs: read from a file or fetched from a URL, again and again.
//!
//! Requests only ever read the newest set that was good; a set that cannot be had or read leaves the one
//! before in place. A token that names an unknown key asks for a refresh out of turn, which happens at most
//! once in [`REFRESH_MIN`], however many ask. Fetching goes through [`Fetch`] and sleeping through `Runtime`,
//! so that all of it runs on a simulated network and clock.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::{Either, select};
use http::Uri;
use semel::runtime::{Boxed, Runtime};
use tokio::sync::{Notify, watch};

use super::jwk::{KeySet, parse_set};
use crate::config::resolved::JwtKeys;

/// How often a URL is fetched when nothing asks for it.
const FETCH_EVERY: Duration = Duration::from_secs(300);
/// How often a file is looked at.
const READ_EVERY: Duration = Duration::from_secs(5);
/// Least time between two looks.
pub(super) const REFRESH_MIN: Duration = Duration::from_secs(5);
/// The longest a fetch may take.
const FETCH_MAX: Duration = Duration::from_secs(5);
/// Largest key set read.
pub(crate) const SET_BYTES_MAX: usize = 1 << 20;

/// Fetches a document over whatever network there is.
pub(crate) trait Fetch: Send + Sync + 'static {
    /// The body of a 200 to a GET, or in a few words why there is none. Should stop reading beyond
    /// [`SET_BYTES_MAX`].
    fn fetch(&self, uri: &Uri) -> Boxed<Result<Vec<u8>, String>>;
}

/// The newest good set of one source.
#[derive(Debug)]
pub(crate) struct Keys {
    current: RwLock<Option<Arc<KeySet>>>,
    wanted: Notify,
    /// Set while a refresh out of turn would come too soon after the last one.
    resting: AtomicBool,
    /// Counts looks, successful or not.
    looks: watch::Sender<u64>,
}

impl Keys {
    fn new(first: Option<Arc<KeySet>>) -> Self {
        Self {
            current: RwLock::new(first),
            wanted: Notify::new(),
            resting: AtomicBool::new(false),
            looks: watch::channel(0).0,
        }
    }

    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks for a look and waits for it; `false` if one is not due or does not end before `timeout`.
    pub(super) async fn refreshed(&self, timeout: Boxed<()>) -> bool {
        if self.resting.load(Ordering::Acquire) {
            return false;
        }
        let mut looks = self.looks.subscribe();
        self.wanted.notify_one();
        let looked = std::pin::pin!(looks.changed());
        matches!(select(looked, timeout).await, Either::Left((Ok(()), _)))
    }

    fn looked(&self, found: Option<KeySet>) {
        if let Some(set) = found {
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(set));
        }
        self.resting.store(true, Ordering::Release);
        self.looks.send_modify(|count| *count += 1);
    }
}

/// All key sets of a gateway, each once however many routes use it.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    used: Vec<(JwtKeys, Arc<Keys>)>,
    /// Those of the configuration before a reload.
    before: Vec<(JwtKeys, Arc<Keys>)>,
}

impl Sources {
    /// For a reload: sets that both configurations use start with the keys that are known, so that no request
    /// waits for a fetch that was made long ago.
    pub(crate) fn after(before: &Sources) -> Self {
        Self { used: Vec::new(), before: before.used.clone() }
    }

    pub(super) fn keys(&mut self, source: &JwtKeys) -> Arc<Keys> {
        let of = |list: &[(JwtKeys, Arc<Keys>)]| {
            list.iter().find(|(known, _)| known == source).map(|(_, keys)| keys.clone())
        };
        if let Some(keys) = of(&self.used) {
            return keys;
        }
        // The first look at a file is taken at once: requests must not wait for a task to start.
        let first = match source {
            JwtKeys::JwksFile(path) => read(path).ok().and_then(|bytes| parse_set(&bytes).ok()).map(Arc::new),
            JwtKeys::Secret(_) | JwtKeys::JwksUrl(_) => None,
        };
        let known = of(&self.before).and_then(|keys| keys.current());
        let keys = Arc::new(Keys::new(first.or(known)));
        self.used.push((source.clone(), keys.clone()));
        keys
    }

    /// Starts a task per set that keeps it fresh until `stop` changes or its sender is gone.
    pub(crate) fn keep_fresh(
        &self,
        runtime: &Arc<dyn Runtime>,
        fetch: &Arc<dyn Fetch>,
        stop: &watch::Receiver<bool>,
    ) {
        for (source, keys) in &self.used {
            let keeper = Keeper {
                source: source.clone(),
                keys: keys.clone(),
                runtime: runtime.clone(),
                fetch: fetch.clone(),
                last: None,
            };
            let mut stop = stop.clone();
            runtime.spawn(Box::pin(async move {
                let work = std::pin::pin!(keeper.run());
                let stopped = std::pin::pin!(async move { _ = stop.changed().await });
                select(work, stopped).await;
            }));
        }
    }
}

struct Keeper {
    source: JwtKeys,
    keys: Arc<Keys>,
    runtime: Arc<dyn Runtime>,
    fetch: Arc<dyn Fetch>,
    /// What the newest set was made of.
    last: Option<Vec<u8>>,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let (found, every) = self.look().await;
            self.keys.looked(found);
            self.runtime.sleep(REFRESH_MIN).await;
            self.keys.resting.store(false, Ordering::Release);
            let wanted = std::pin::pin!(self.keys.wanted.notified());
            select(wanted, self.runtime.sleep(every.saturating_sub(REFRESH_MIN))).await;
        }
    }

    /// The set if it is new and good, and when to look again.
    async fn look(&mut self) -> (Option<KeySet>, Duration) {
        let (bytes, every) = match &self.source {
            JwtKeys::Secret(_) => return (None, FETCH_EVERY),
            JwtKeys::JwksFile(path) => (read(path), READ_EVERY),
            JwtKeys::JwksUrl(uri) => {
                let fetched = match select(self.fetch.fetch(uri), self.runtime.sleep(FETCH_MAX)).await {
                    Either::Left((fetched, _)) => fetched,
                    Either::Right(_) => Err(format!("no answer within {FETCH_MAX:?}")),
                };
                (fetched, FETCH_EVERY)
            }
        };
        let bytes = match bytes {
            Ok(bytes) if Some(&bytes) == self.last.as_ref() => return (None, every),
            Ok(bytes) if bytes.len() > SET_BYTES_MAX => Err("the key set is over 1 MiB".to_owned()),
            other => other,
        };
        match bytes.and_then(|bytes| parse_set(&bytes).map(|set| (bytes, set))) {
            Ok((bytes, set)) => {
                tracing::info!(source = %self.name(), keys = set.keys.len(), "key set loaded");
                self.last = Some(bytes);
                (Some(set), every)
            }
            Err(error) => {
                tracing::warn!(source = %self.name(), %error, "key set not loaded; the one before stays");
                // Sooner than usual: tokens may already be signed with a key that is missing here.
                (None, every.min(REFRESH_MIN * 6))
            }
        }
    }

    fn name(&self) -> String {
        match &self.source {
            JwtKeys::Secret(_) => "secret".into(),
            JwtKeys::JwksFile(path) => path.display().to_string(),
            JwtKeys::JwksUrl(uri) => uri.to_string(),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| error.to_string())
}
