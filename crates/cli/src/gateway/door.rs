//! A gateway, put together: its listener, its routes, its way to the upstream, and what runs beside.
//!
//! Network, time and tasks come from outside ([`Network`], [`Runtime`]), so that a simulation opens the
//! same door.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::{Shared, select_all};
use semel::http::SemelLayer;
use semel::http::observer::{Decision, Observer};
use semel::runtime::Boxed;
use semel::{EffectStore, Once, Recalling, Recoverer, Runtime, SubjectKeys, Sweeper, subject};
use tokio::sync::watch;

use super::crew::Crew;
use super::fetch::{self, Http};
use super::front::{Front, Outward};
use super::net::{Listener, Network};
use super::observe::Metrics;
use super::serve::{self, Certificates, Drained};
use super::table::{Table, Tables};
use super::tenant::{Fetch, Sources};
use super::unknowns;
use super::upstream::{Upstream, client_config};
use crate::config::policy;
use crate::config::resolved::Gateway;

/// Passes of the recoverer are no further apart than this.
const RECOVER_EVERY_MAX: Duration = Duration::from_secs(10);
const RECOVER_EVERY_MIN: Duration = Duration::from_millis(50);
/// How often unknowns are counted.
const COUNT_EVERY: Duration = Duration::from_secs(15);

/// An open gateway.
pub(crate) struct Door {
    listener: Box<dyn Listener>,
    address: SocketAddr,
    front: Front,
    serving: serve::Settings,
    pub(crate) shared: Arc<Parts>,
}

/// What a reload and the admin listener need of it.
pub(crate) struct Parts {
    pub(crate) once: Once,
    pub(crate) tables: Tables,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) store: Arc<dyn EffectStore>,
    /// Where the keys of subjects are, if they have any.
    pub(crate) subject_keys: Option<Arc<dyn SubjectKeys>>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) upstream_available: Box<dyn Fn() -> bool + Send + Sync>,
    http: Arc<Http>,
    /// Ends the tasks that keep the key sets of the table in force.
    key_sets: watch::Sender<bool>,
    namespace: String,
}

impl Door {
    pub(crate) async fn open(
        settings: &Gateway,
        store: Arc<dyn EffectStore>,
        subject_keys: Option<Arc<dyn SubjectKeys>>,
        network: Arc<dyn Network>,
        runtime: Arc<dyn Runtime>,
    ) -> anyhow::Result<Self> {
        let tls = Arc::new(client_config(settings.upstream.ca.as_deref())?);
        let http = Arc::new(Http::new(fetch::over(network.clone()), tls, runtime.clone()));
        let table = Table::new(settings, Sources::default(), subject_keys.as_ref(), &http, &runtime)?;
        let tables = Tables::new(table);
        let store: Arc<dyn EffectStore> = match settings.replay_memory {
            Duration::ZERO => store,
            moment => Arc::new(Recalling::new(store, runtime.clone(), moment)),
        };
        let once = Once::new(store.clone(), runtime.clone()).operations_max(settings.operations_max);
        let (counted, under_way) = (once.clone(), once.clone());
        let tally = Arc::new(move || counted.tally().all());
        let metrics =
            Arc::new(Metrics::new(tables.load().labels(), tally, Box::new(move || under_way.operations())));
        let layer = SemelLayer::routed(once.clone(), tables.clone())
            .namespace(&settings.namespace)?
            .observer(Arc::new(Counting(metrics.clone())));
        let upstream = Upstream::new(&settings.upstream, network.clone(), runtime.clone())?;
        let watched = upstream.clone();
        let outward = Outward { upstream, runtime: runtime.clone(), metrics: metrics.clone() };
        let certificates = settings.tls.clone().map(Certificates::load).transpose()?;
        if let Some(certificates) = &certificates {
            certificates.watch(&runtime);
        }
        let listener = network.bind(settings.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", settings.listen))?;
        let address = listener.address().context("the listener has no address")?;
        let serving = serve::Settings {
            limits: settings.client.clone(),
            trusted_proxies: settings.trusted_proxies.clone(),
            tls: certificates.clone(),
            drain: settings.drain,
            runtime: runtime.clone(),
            crew: None,
        };
        let parts = Parts {
            once,
            tables: tables.clone(),
            metrics,
            store,
            subject_keys,
            runtime,
            certificates,
            upstream_available: Box::new(move || watched.is_available()),
            http,
            key_sets: watch::channel(false).0,
            namespace: settings.namespace.clone(),
        };
        parts.keep_key_sets();
        parts.rewrap(settings)?;
        let front = Front::new(layer, tables, outward);
        Ok(Self { listener, address, front, serving, shared: Arc::new(parts) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets these threads attend to clients.
    pub(crate) fn employ(&mut self, crew: Crew) {
        self.serving.crew = Some(Arc::new(crew));
    }

    /// Serves until `shutdown` ends, then finishes what began. Returns what could not be finished in
    /// the time there is.
    pub(crate) async fn serve(self, shutdown: Shared<Boxed<()>>) -> Left {
        let Self { listener, front, serving, shared, .. } = self;
        let drain = serving.drain;
        let end = Ending::begin(&shared);
        let told = Arc::new(OnceLock::new());
        let (noted, runtime) = (told.clone(), shared.runtime.clone());
        let noting = async move {
            shutdown.await;
            let _ = noted.set(runtime.elapsed());
        };
        let drained = serve::run(listener, serving, front, noting).await;
        let connections = match drained {
            Drained::Fully => 0,
            Drained::Cut(count) => count,
        };
        // Work whose client went away has no connection, and is waited for all the same; both together have
        // the time to drain, since whoever ends processes waits no longer than that.
        let passed = told.get().map_or(Duration::ZERO, |at| shared.runtime.elapsed().saturating_sub(*at));
        let operations = shared.once.drain(drain.saturating_sub(passed)).await;
        drop(end);
        Left { connections, operations }
    }
}

/// What was not finished.
pub(crate) struct Left {
    pub(crate) connections: usize,
    pub(crate) operations: usize,
}

/// Ends the tasks beside a gateway when it is dropped.
struct Ending(#[expect(dead_code, reason = "its end is the signal")] watch::Sender<bool>);

impl Ending {
    /// Starts them: recoverer, sweeper, the count of unknowns.
    fn begin(parts: &Arc<Parts>) -> Self {
        let (end, ended) = watch::channel(false);
        let stop = || {
            let mut ended = ended.clone();
            async move { while ended.changed().await.is_ok() {} }
        };
        let Parts { store, runtime, tables, metrics, namespace, .. } = &**parts;
        let finder = tables.clone();
        let every = (tables.load().shortest_lease() / 3).clamp(RECOVER_EVERY_MIN, RECOVER_EVERY_MAX);
        let recoverer =
            Recoverer::new(store.clone(), runtime.clone()).every(every).ask_by(move |operation| {
                let table = finder.load();
                let entry = table.owner(operation)?;
                Some((entry.policy().clone(), entry.ask.clone()?))
            });
        let sweeper = Sweeper::new(store.clone(), runtime.clone());
        let counting = unknowns::watch(
            store.clone(),
            namespace.clone(),
            metrics.clone(),
            runtime.clone(),
            COUNT_EVERY,
            stop(),
        );
        runtime.spawn(Box::pin(recoverer.run(stop())));
        let stopped = stop();
        runtime.spawn(Box::pin(async move { sweeper.run(stopped).await }));
        runtime.spawn(Box::pin(counting));
        Self(end)
    }
}

impl Parts {
    /// Puts other routes in force, from the next request on.
    pub(crate) fn reload(&self, settings: &Gateway) -> anyhow::Result<()> {
        let sources = Sources::after(&self.tables.load().sources);
        let table = Table::new(settings, sources, self.subject_keys.as_ref(), &self.http, &self.runtime)?;
        // Whatever can fail comes first: settings are in force whole, or not at all.
        if let Some(certificates) = &self.certificates {
            certificates.reload()?;
        }
        self.metrics.add_routes(table.labels());
        self.tables.set(table);
        self.keep_key_sets();
        self.rewrap(settings)
    }

    /// Wraps the keys of subjects with the newest key of the ring, beside everything else: until it is done, the
    /// older ones open them.
    fn rewrap(&self, settings: &Gateway) -> anyhow::Result<()> {
        let (Some(place), Some(keys)) = (self.subject_keys.clone(), &settings.encryption) else {
            return Ok(());
        };
        let ring = policy::keyring(keys).map_err(anyhow::Error::msg)?;
        self.runtime.spawn(Box::pin(async move {
            match subject::rewrap_all(&*place, &ring).await {
                Ok(subject::Rewrapped { rewrapped: 0, shut: 0 }) => {}
                Ok(subject::Rewrapped { rewrapped, shut: 0 }) => {
                    tracing::info!(rewrapped, by = ring.active(), "keys of subjects were wrapped anew");
                }
                Ok(subject::Rewrapped { rewrapped, shut }) => {
                    tracing::error!(rewrapped, shut, "some keys of subjects do not open; is a key of the ring wrong?");
                }
                Err(error) => {
                    tracing::warn!(%error, "not all keys of subjects were wrapped anew; the next start goes on");
                }
            }
        }));
        Ok(())
    }

    fn keep_key_sets(&self) {
        // Those of the table before end; requests that still use it keep the keys it has.
        self.key_sets.send_modify(|flag| *flag = !*flag);
        let fetch: Arc<dyn Fetch> = self.http.clone();
        self.tables.load().sources.keep_fresh(&self.runtime, &fetch, &self.key_sets.subscribe());
    }
}

/// Counts what the layer decides.
struct Counting(Arc<Metrics>);

impl Observer for Counting {
    fn decided(&self, decision: &Decision<'_>) {
        let route = decision.route.unwrap_or_default();
        self.0.decided(route, decision.kind.label(), decision.latency);
    }
}

/// Ends with the first of these.
pub(crate) async fn first_of(signals: Vec<Boxed<()>>) {
    select_all(signals).map(drop).await;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::Method;
    use semel::MemoryStore;
    use semel::http::Protection;
    use semel::runtime::Tokio;

    use super::*;
    use crate::config::resolved::ServerTls;
    use crate::gateway::net::RealNetwork;

    fn settings(home: &Path, route: &str) -> Gateway {
        let text = format!("[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:9\"\n{route}");
        let mut settings = crate::config::resolved_for_tests(&text);
        let (certificate, key) = (home.join("certificate.pem"), home.join("key.pem"));
        settings.tls = Some(ServerTls { certificate, key, client_ca: None });
        settings
    }

    #[tokio::test]
    async fn a_reload_that_fails_at_its_certificates_changes_no_route() {
        // G-1: else the next reload would be compared with settings that are not in force.
        let home = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["gateway.example".to_owned()]).unwrap();
        std::fs::write(home.path().join("certificate.pem"), made.cert.pem()).unwrap();
        std::fs::write(home.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let before = settings(home.path(), "[[route]]\npath = \"/pay\"\nprotection = \"off\"\n");
        let after =
            settings(home.path(), "[[route]]\nid = \"pay\"\npath = \"/pay\"\nprotection = \"required\"\n");
        let (store, runtime) = (Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
        let door = Door::open(&before, store, None, Arc::new(RealNetwork), runtime).await.unwrap();
        let protection = || door.shared.tables.load().find(&Method::POST, "/pay").unwrap().route.protection();
        std::fs::write(home.path().join("key.pem"), "not a key").unwrap();
        assert!(door.shared.reload(&after).is_err());
        assert_eq!(protection(), Protection::Off);
        std::fs::write(home.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        door.shared.reload(&after).unwrap();
        assert_eq!(protection(), Protection::Required);
    }
}
