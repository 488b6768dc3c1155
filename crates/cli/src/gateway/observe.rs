//! What the gateway counts, for Prometheus (G-80).
//!
//! Labels are route ids, names of decisions and names of causes: all of them known beforehand. A raw
//! path never becomes one. It can hold what a client typed, and each new one would be a new series.
//! docs/operating.md lists every metric; a test compares it with what is registered.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use semel::error::Kind;

/// The label of requests that match no configured route.
pub(crate) const DEFAULT_ROUTE: &str = "default";
/// Most routes with series of their own, counted over all reloads; the rest are counted as `default`.
const ROUTES_MAX: usize = 1000;

/// Decisions that can be taken about a request, with the class their latency is kept under.
const DECISIONS: &[(&str, Class)] = &[
    ("fresh", Class::Ran),
    ("replayed", Class::Replayed),
    ("passed", Class::Passed),
    ("unprotected", Class::Ran),
    ("released", Class::Ran),
    ("abandoned", Class::Unknown),
    ("outcome-unknown", Class::Unknown),
    ("in-flight", Class::Refused),
    ("key-reused", Class::Refused),
    ("key-missing", Class::Refused),
    ("key-malformed", Class::Refused),
    ("key-repeated", Class::Refused),
    ("key-not-usable", Class::Refused),
    ("key-expired", Class::Refused),
    ("method-override-refused", Class::Refused),
    ("tenant-undeclared", Class::Refused),
    ("tenant-missing", Class::Refused),
    ("tenant-unverified", Class::Refused),
    ("auth-refused", Class::Refused),
    ("request-too-large", Class::Refused),
    ("request-cut", Class::Refused),
    ("request-slow", Class::Refused),
    ("store-unavailable", Class::Refused),
    ("too-many-operations", Class::Refused),
    ("body-not-kept", Class::Replayed),
    ("outcome-purged", Class::Refused),
    ("outcome-unreadable", Class::Refused),
    ("upstream-unreachable", Class::Passed),
    ("upstream-timeout", Class::Passed),
    ("too-many-connections", Class::Refused),
    ("other", Class::Refused),
];

/// What a latency is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Ran,
    Replayed,
    Passed,
    Unknown,
    Refused,
}

impl Class {
    const ALL: [(Self, &str); 5] = [
        (Self::Ran, "ran"),
        (Self::Replayed, "replayed"),
        (Self::Passed, "passed"),
        (Self::Unknown, "unknown"),
        (Self::Refused, "refused"),
    ];
}

/// From half a millisecond, which a replay takes, to the longest a gateway usually waits.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

fn labels(pairs: &[(&'static str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// Why an upstream gave no proper answer, by what that says of the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    NothingHappened,
    Unknown,
}

/// Counts of the core, by name: `|| once.tally().all()`.
pub(crate) type TallySource = Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// How many operations are under way: `|| once.operations()`.
pub(crate) type OperationsSource = Box<dyn Fn() -> usize + Send + Sync>;

/// All counters and gauges of a process.
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Counters,
    seconds: Histograms,
    routes: RwLock<HashMap<Box<str>, Arc<Route>>>,
    other: Arc<Route>,
    running: Gauge,
    unknowns: Gauge,
    unknown_oldest: Gauge<f64, AtomicU64>,
    store_up: Gauge,
    store_errors: Counters,
    upstream_failures: [Counter; 2],
    administered: Counters,
    tally: TallySource,
}

/// The series of one route. Counters stand from the start, so that the first event of a kind is an
/// increase that an alert can see; histograms come with their first request.
struct Route {
    id: Box<str>,
    decisions: Vec<Counter>,
    seconds: [OnceLock<Histogram>; Class::ALL.len()],
}

impl Metrics {
    /// Metrics for these routes.
    pub(crate) fn new<'a>(
        routes: impl IntoIterator<Item = &'a str>,
        tally: TallySource,
        operations: OperationsSource,
    ) -> Self {
        let mut book = Registry::with_prefix("semel");
        let decisions =
            counters(&mut book, "decisions", "Requests by route and by what was decided about them");
        let seconds: Histograms = Family::new_with_constructor(|| Histogram::new(SECONDS));
        let help = "From the head of a request to the head of its answer, by route and class of decision";
        book.register("request_seconds", help, seconds.clone());
        let (running, unknowns, store_up) = (Gauge::default(), Gauge::default(), Gauge::default());
        let unknown_oldest = Gauge::<f64, AtomicU64>::default();
        book.register("leases_in_flight", "Attempts this process is running", running.clone());
        book.register(
            "unknown_operations",
            "Operations of this namespace whose outcome is unknown",
            unknowns.clone(),
        );
        let help = "How long the oldest of them has been unknown; 0 without any";
        book.register("unknown_oldest_seconds", help, unknown_oldest.clone());
        book.register(
            "store_up",
            "1 if the store answered when it was last looked through",
            store_up.clone(),
        );
        let store_errors = counters(&mut book, "store_errors", "Failed calls of the store, by cause");
        let upstream =
            counters(&mut book, "upstream_failures", "Requests without a proper answer, by their fate");
        let administered = counters(&mut book, "admin_calls", "Calls of operators, by action and result");
        book.register_collector(Box::new(Tallied { tally: tally.clone(), operations }));
        for kind in KINDS {
            drop(store_errors.get_or_create(&labels(&[("kind", kind)])));
        }
        let other = Arc::new(Route::new(DEFAULT_ROUTE, &decisions));
        let metrics = Self {
            upstream_failures: ["nothing-happened", "unknown"]
                .map(|fate| upstream.get_or_create_owned(&labels(&[("fate", fate)]))),
            registry: book,
            routes: RwLock::default(),
            decisions,
            seconds,
            other,
            running,
            unknowns,
            unknown_oldest,
            store_up,
            store_errors,
            administered,
            tally,
        };
        metrics.add_routes(routes);
        metrics
    }

    /// Gives more routes series of their own, after a reload. Those there were stay.
    pub(crate) fn add_routes<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            if routes.len() < ROUTES_MAX && !routes.contains_key(id) {
                routes.insert(id.into(), Arc::new(Route::new(id, &self.decisions)));
            }
        }
    }

    /// Counts a decision. `route` is the id of a configured route; anything else counts as `default`.
    pub(crate) fn decided(&self, route: &str, decision: &str, took: Duration) {
        let route = self.route(route);
        let last = DECISIONS.len() - 1;
        let index = DECISIONS.iter().position(|(name, _)| *name == decision).unwrap_or(last);
        if !(semel::mutant::on("decision-uncounted") && decision == "in-flight") {
            route.decisions[index].inc();
        }
        let class = DECISIONS[index].1 as usize;
        let made = || {
            let labels = labels(&[("route", &route.id), ("class", Class::ALL[class].1)]);
            self.seconds.get_or_create_owned(&labels)
        };
        route.seconds[class].get_or_init(made).observe(took.as_secs_f64());
    }

    fn route(&self, id: &str) -> Arc<Route> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = routes.get(id) {
            return route.clone();
        }
        drop(routes);
        if semel::mutant::on("raw-path-as-label") {
            self.add_routes([id]);
            return self.route(id);
        }
        self.other.clone()
    }

    /// Counts an attempt as running until the guard is dropped.
    pub(crate) fn running(&self) -> Running {
        self.running.inc();
        Running(self.running.clone())
    }

    pub(crate) fn store_failed(&self, cause: Kind) {
        self.store_errors.get_or_create(&labels(&[("kind", kind(cause))])).inc();
    }

    pub(crate) fn upstream_failed(&self, fate: Fate) {
        self.upstream_failures[fate as usize].inc();
    }

    /// Counts a call to the admin API. Both names are fixed in the code.
    pub(crate) fn administered(&self, action: &'static str, result: &'static str) {
        self.administered.get_or_create(&labels(&[("action", action), ("result", result)])).inc();
    }

    /// The store was looked through: so many unknowns, the oldest this old.
    pub(crate) fn unknowns_seen(&self, count: u64, oldest: Option<Duration>) {
        self.store_up.set(1);
        if semel::mutant::on("unknowns-uncounted") {
            return;
        }
        self.unknowns.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.unknown_oldest.set(oldest.map_or(0.0, |age| age.as_secs_f64()));
    }

    /// The store could not be looked through. What was seen last still stands.
    pub(crate) fn store_away(&self) {
        self.store_up.set(0);
    }

    /// Counts of the core since the start.
    pub(crate) fn tally(&self) -> Vec<(&'static str, u64)> {
        (self.tally)()
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing to a string does not fail");
        text
    }
}

impl Route {
    fn new(id: &str, decisions: &Counters) -> Self {
        let counter =
            |name: &str| decisions.get_or_create_owned(&labels(&[("route", id), ("decision", name)]));
        Self {
            id: id.into(),
            decisions: DECISIONS.iter().map(|(name, _)| counter(name)).collect(),
            seconds: Default::default(),
        }
    }
}

/// An attempt that is running.
pub(crate) struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn counters(book: &mut Registry, name: &str, help: &str) -> Counters {
    let family = Counters::default();
    book.register(name, help, family.clone());
    family
}

/// The core's counts, read when somebody looks.
struct Tallied {
    tally: TallySource,
    operations: OperationsSource,
}

impl fmt::Debug for Tallied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tallied")
    }
}

impl Collector for Tallied {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Operations under way, also those whose clients have left; limited by operations_max";
        let under_way = i64::try_from((self.operations)()).unwrap_or(i64::MAX);
        let gauge = encoder.encode_descriptor("operations", help, None, MetricType::Gauge)?;
        ConstGauge::new(under_way).encode(gauge)?;
        let help = "What happened to operations in this process, by event";
        let mut events = encoder.encode_descriptor("events", help, None, MetricType::Counter)?;
        for (name, count) in (self.tally)() {
            let label = [("event", name)];
            ConstCounter::new(count).encode(events.encode_family(&label)?)?;
        }
        Ok(())
    }
}

const KINDS: [&str; 13] = [
    "unreachable",
    "timed-out",
    "busy",
    "full",
    "too-large",
    "read-only",
    "went-back",
    "schema",
    "damaged",
    "denied",
    "misconfigured",
    "closed",
    "other",
];

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Unreachable => "unreachable",
        Kind::TimedOut => "timed-out",
        Kind::Busy => "busy",
        Kind::Full => "full",
        Kind::TooLarge => "too-large",
        Kind::ReadOnly => "read-only",
        Kind::WentBack => "went-back",
        Kind::Schema => "schema",
        Kind::Damaged => "damaged",
        Kind::Denied => "denied",
        Kind::Misconfigured => "misconfigured",
        Kind::Closed => "closed",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new(["charge", "refund"], Arc::new(|| vec![("refused_outcomes", 3)]), Box::new(|| 5))
    }

    /// The names of all metrics there are, as samples have them.
    fn names() -> Vec<String> {
        let metrics = metrics();
        // A family without series is not written.
        metrics.decided("charge", "fresh", Duration::ZERO);
        metrics.administered("settle", "made");
        let text = metrics.text();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        types
            .map(|(name, kind)| if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
            .collect()
    }

    fn value(text: &str, series: &str) -> Option<f64> {
        let line =
            text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    #[test]
    fn every_decision_is_counted_under_its_route() {
        // G-80
        let metrics = metrics();
        for (name, _) in DECISIONS {
            metrics.decided("charge", name, Duration::from_millis(3));
        }
        metrics.decided("charge", "replayed", Duration::from_millis(3));
        let text = metrics.text();
        for (name, _) in DECISIONS {
            let series = format!(r#"semel_decisions_total{{route="charge",decision="{name}"}}"#);
            let expected = if *name == "replayed" { 2.0 } else { 1.0 };
            assert_eq!(value(&text, &series), Some(expected), "{series}");
        }
        let replays = r#"semel_request_seconds_count{route="charge",class="replayed"}"#;
        assert_eq!(value(&text, replays), Some(3.0), "two replays and one whose body was not kept");
    }

    #[test]
    fn a_raw_path_never_becomes_a_label() {
        // G-80
        let metrics = metrics();
        for number in 0..50 {
            metrics.decided(&format!("POST /cards/4242{number}"), "fresh", Duration::ZERO);
            metrics.decided("charge", &format!("made-up-{number}"), Duration::ZERO);
        }
        let text = metrics.text();
        assert!(!text.contains("4242") && !text.contains("made-up"), "{text}");
        assert_eq!(value(&text, r#"semel_decisions_total{route="default",decision="fresh"}"#), Some(50.0));
        assert_eq!(value(&text, r#"semel_decisions_total{route="charge",decision="other"}"#), Some(50.0));
    }

    #[test]
    fn the_first_event_of_a_kind_is_an_increase() {
        // G-80: a series that begins at 1 would raise no alert.
        let text = metrics().text();
        assert_eq!(value(&text, r#"semel_decisions_total{route="refund",decision="in-flight"}"#), Some(0.0));
        assert_eq!(value(&text, r#"semel_store_errors_total{kind="timed-out"}"#), Some(0.0));
        assert_eq!(value(&text, r#"semel_upstream_failures_total{fate="unknown"}"#), Some(0.0));
    }

    #[test]
    fn gauges_and_counts_of_the_core_are_shown() {
        // G-80
        let metrics = metrics();
        metrics.unknowns_seen(4, Some(Duration::from_secs(90)));
        let one = metrics.running();
        let two = metrics.running();
        drop(one);
        metrics.upstream_failed(Fate::NothingHappened);
        metrics.store_failed(Kind::Busy);
        let text = metrics.text();
        for (series, expected) in [
            ("semel_unknown_operations", 4.0),
            ("semel_unknown_oldest_seconds", 90.0),
            ("semel_store_up", 1.0),
            ("semel_leases_in_flight", 1.0),
            ("semel_operations", 5.0),
            (r#"semel_upstream_failures_total{fate="nothing-happened"}"#, 1.0),
            (r#"semel_store_errors_total{kind="busy"}"#, 1.0),
            (r#"semel_events_total{event="refused_outcomes"}"#, 3.0),
        ] {
            assert_eq!(value(&text, series), Some(expected), "{series} in {text}");
        }
        drop(two);
        metrics.store_away();
        assert_eq!(value(&metrics.text(), "semel_store_up"), Some(0.0));
        assert_eq!(
            value(&metrics.text(), "semel_unknown_operations"),
            Some(4.0),
            "what was seen last stands"
        );
    }

    #[test]
    fn routes_of_a_reload_get_series_up_to_a_limit() {
        let metrics = metrics();
        let ids: Vec<String> = (0..2 * ROUTES_MAX).map(|number| format!("route-{number}")).collect();
        metrics.add_routes(ids.iter().map(String::as_str));
        metrics.decided("route-1", "fresh", Duration::ZERO);
        metrics.decided(&ids[2 * ROUTES_MAX - 1], "fresh", Duration::ZERO);
        let text = metrics.text();
        assert_eq!(value(&text, r#"semel_decisions_total{route="route-1",decision="fresh"}"#), Some(1.0));
        assert_eq!(value(&text, r#"semel_decisions_total{route="default",decision="fresh"}"#), Some(1.0));
        assert_eq!(metrics.routes.read().unwrap().len(), ROUTES_MAX);
    }

    #[test]
    fn the_manual_lists_every_metric_and_no_other() {
        // G-80
        let manual = include_str!("../../../../docs/operating.md");
        let listed: Vec<&str> = manual
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next())
            .filter(|name| name.starts_with("semel_"))
            .collect();
        assert_eq!(listed, names());
    }

    #[test]
    fn alerts_speak_of_metrics_that_exist() {
        // G-80
        let alerts = include_str!("../../../../docs/alerts.yml");
        let known = names();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut named = 0;
        for word in alerts.split(|c| !is_part(c)).filter(|word| word.starts_with("semel_")) {
            let base =
                ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
            assert!(known.iter().any(|name| name == base), "{word} is no metric");
            named += 1;
        }
        assert!(named >= 6, "the alerts name {named} metrics: this test would check little");
        let events = semel::Tally::default().all();
        for (label, is_known) in [
            ("decision=", &|name: &str| DECISIONS.iter().any(|(known, _)| *known == name)),
            ("event=", &|name: &str| events.iter().any(|(known, _)| *known == name)),
        ] as [(&str, &dyn Fn(&str) -> bool); 2]
        {
            for (at, _) in alerts.match_indices(label) {
                let quoted = alerts[at..].split('"').nth(1).expect("a label has a value");
                let unknown: Vec<&str> = quoted.split('|').filter(|name| !is_known(name)).collect();
                assert!(unknown.is_empty(), "{label} has no {unknown:?}");
            }
        }
    }
}
