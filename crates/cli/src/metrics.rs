//! `--metrics`: what a relay or a consumer counts, for Prometheus (G-80).
//!
//! Counts are read when somebody looks. What the outbox holds is asked of the database at an interval of our own: how
//! often somebody looks must cost it nothing.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use clap::Args;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use semel::outbox::{Outbox, Overview};
use semel::{consumer, relay};
use tokio::net::TcpListener;

/// How often the outbox is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Most topics with series of their own; the rest are counted as `other`.
const TOPICS_MAX: usize = 200;
const OTHER: &str = "other";

#[derive(Args)]
pub(crate) struct Metrics {
    /// Serve metrics for Prometheus on this address, as in `127.0.0.1:9464`
    #[arg(long = "metrics", env = "SEMEL_METRICS", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

impl Metrics {
    /// Serves a relay's, if it is wished.
    pub(crate) async fn relay(
        &self,
        tally: Arc<relay::Tally>,
        outbox: Arc<dyn Outbox>,
    ) -> anyhow::Result<()> {
        let Some(address) = self.listen else { return Ok(()) };
        let seen = Arc::<Seen>::default();
        tokio::spawn(look(outbox, seen.clone()));
        serve(address, Relayed { tally, seen }).await
    }

    /// Serves a consumer's, if it is wished.
    pub(crate) async fn consumer(&self, tally: Arc<consumer::Tally>) -> anyhow::Result<()> {
        match self.listen {
            Some(address) => serve(address, Consumed(tally)).await,
            None => Ok(()),
        }
    }
}

async fn serve(address: SocketAddr, collector: impl Collector + 'static) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("metrics cannot be served on {address}"))?;
    let address = listener.local_addr()?;
    let mut registry = Registry::with_prefix("semel");
    registry.register_collector(Box::new(collector));
    let registry = Arc::new(registry);
    let page = get(async move || {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(CONTENT_TYPE, kind)], text(&registry))
    });
    let router = Router::new().route("/metrics", page);
    tokio::spawn(async move { axum::serve(listener, router).await });
    // Not on stdout, which may be where messages go.
    eprintln!("semel: metrics on http://{address}/metrics");
    Ok(())
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)
        .expect("writing to a string does not fail");
    text
}

/// The outbox as it was last seen; nothing if it could not be.
#[derive(Default)]
struct Seen(Mutex<Option<Overview>>);

async fn look(outbox: Arc<dyn Outbox>, seen: Arc<Seen>) {
    loop {
        let found = outbox.overview().await;
        if let Err(error) = &found {
            tracing::warn!(target: "semel::relay", %error, "the outbox cannot be looked at; its metrics are absent");
        }
        *seen.0.lock().unwrap_or_else(PoisonError::into_inner) = found.ok();
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

struct Relayed {
    tally: Arc<relay::Tally>,
    seen: Arc<Seen>,
}

impl Collector for Relayed {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let tally = &self.tally;
        let fates = [
            ("published", &tally.published),
            ("later", &tally.set_aside),
            ("behind", &tally.behind),
            ("dead", &tally.dead),
        ];
        let help = "Messages by what this relay did with them";
        counters(&mut encoder, "relay_messages", help, "fate", &fates)?;
        let troubles = [("sink-down", &tally.downs), ("lane-lost", &tally.lost)];
        counters(
            &mut encoder,
            "relay_troubles",
            "How often work had to stop, by reason",
            "reason",
            &troubles,
        )?;
        gauge(&mut encoder, "relay_lanes", "Lanes this relay holds", count(&tally.lanes) as f64)?;
        let seen = self.seen.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Some(overview) => backlog(&mut encoder, overview),
            None => Ok(()),
        }
    }
}

fn backlog(encoder: &mut DescriptorEncoder<'_>, overview: &Overview) -> Result<(), fmt::Error> {
    let mut topics = std::collections::BTreeMap::<&str, ([u64; 3], Duration)>::new();
    for line in &overview.backlog {
        let name = line.topic.as_str();
        let full = topics.len() >= TOPICS_MAX && !topics.contains_key(name);
        let (counts, oldest) = topics.entry(if full { OTHER } else { name }).or_default();
        for (count, more) in counts.iter_mut().zip([line.waiting, line.aside, line.dead]) {
            *count += more;
        }
        *oldest = (*oldest).max(line.oldest.unwrap_or_default());
    }
    let help = "Messages in the outbox, when last counted";
    let mut messages = encoder.encode_descriptor("outbox_messages", help, None, MetricType::Gauge)?;
    for (topic, (counts, _)) in &topics {
        for (state, count) in ["waiting", "aside", "dead"].into_iter().zip(counts) {
            ConstGauge::new(*count as f64)
                .encode(messages.encode_family(&[("topic", *topic), ("state", state)])?)?;
        }
    }
    let help = "How long the oldest message of a topic has waited to be published";
    let mut ages = encoder.encode_descriptor("outbox_oldest_seconds", help, None, MetricType::Gauge)?;
    for (topic, (_, oldest)) in &topics {
        ConstGauge::new(oldest.as_secs_f64()).encode(ages.encode_family(&[("topic", *topic)])?)?;
    }
    let stopped = f64::from(u8::from(overview.stopped.is_some()));
    gauge(
        encoder,
        "outbox_stopped",
        "1 if the database was restored and waits for `semel outbox rebase`",
        stopped,
    )
}

struct Consumed(Arc<consumer::Tally>);

impl Collector for Consumed {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let tally = &self.0;
        let fates = [
            ("applied", &tally.applied),
            ("duplicate", &tally.duplicates),
            ("conflict", &tally.conflicts),
            ("stale", &tally.stale),
            ("behind", &tally.behind),
            ("later", &tally.later),
            ("dead", &tally.dead),
        ];
        let help = "Deliveries by what this consumer did with them";
        counters(&mut encoder, "consumer_messages", help, "fate", &fates)?;
        let batches = [("divided", &tally.divided), ("fenced", &tally.fenced)];
        counters(
            &mut encoder,
            "consumer_batches",
            "Batches that did not go through as they were",
            "fate",
            &batches,
        )
    }
}

impl fmt::Debug for Relayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relayed")
    }
}

impl fmt::Debug for Consumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Consumed")
    }
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    counts: &[(&str, &AtomicU64)],
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, counter) in counts {
        ConstCounter::new(count(counter)).encode(family.encode_family(&[(label, *value)])?)?;
    }
    Ok(())
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> Result<(), fmt::Error> {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use semel::outbox::{Backlog, Lane};

    use super::*;

    fn written(collector: impl Collector + 'static) -> String {
        let mut registry = Registry::with_prefix("semel");
        registry.register_collector(Box::new(collector));
        text(&registry)
    }

    fn relayed(topics: impl Iterator<Item = String>) -> String {
        let line = |name: String| Backlog {
            topic: name.parse().unwrap(),
            lane: Lane(0),
            waiting: 2,
            oldest: Some(Duration::from_millis(1500)),
            aside: 1,
            dead: 3,
        };
        let backlog = topics.map(line).collect();
        let overview = Overview { lanes: vec![], backlog, delayed: 0, more: false, stopped: None };
        let tally = Arc::new(relay::Tally::default());
        tally.published.store(7, Ordering::Relaxed);
        written(Relayed { tally, seen: Arc::new(Seen(Mutex::new(Some(overview)))) })
    }

    #[test]
    fn what_a_relay_did_and_what_waits_is_shown() {
        // G-80
        let text = relayed(["orders.paid".to_owned()].into_iter());
        for line in [
            r#"semel_relay_messages_total{fate="published"} 7"#,
            r#"semel_relay_messages_total{fate="dead"} 0"#,
            r#"semel_relay_troubles_total{reason="sink-down"} 0"#,
            "semel_relay_lanes 0.0",
            r#"semel_outbox_messages{topic="orders.paid",state="waiting"} 2.0"#,
            r#"semel_outbox_messages{topic="orders.paid",state="dead"} 3.0"#,
            r#"semel_outbox_oldest_seconds{topic="orders.paid"} 1.5"#,
            "semel_outbox_stopped 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn topics_beyond_the_most_are_counted_together() {
        // G-80
        let text = relayed((0..TOPICS_MAX + 50).map(|n| format!("t.{n}")));
        assert_eq!(text.matches("semel_outbox_oldest_seconds{").count(), TOPICS_MAX + 1);
        assert!(text.contains(r#"semel_outbox_messages{topic="other",state="waiting"} 100.0"#), "{text}");
    }

    #[test]
    fn what_a_consumer_did_is_shown() {
        // G-80
        let tally = Arc::new(consumer::Tally::default());
        tally.duplicates.store(2, Ordering::Relaxed);
        let text = written(Consumed(tally));
        assert!(text.contains(r#"semel_consumer_messages_total{fate="duplicate"} 2"#), "{text}");
        assert!(text.contains(r#"semel_consumer_batches_total{fate="fenced"} 0"#), "{text}");
    }

    #[test]
    fn the_manuals_list_every_metric_and_no_other() {
        // G-80
        let pages = [
            (include_str!("../../../docs/messaging/relay.md"), relayed(["t".to_owned()].into_iter())),
            (include_str!("../../../docs/messaging/consumer.md"), written(Consumed(Arc::default()))),
        ];
        for (page, all) in pages {
            let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next());
            let listed: Vec<String> =
                rows.filter(|name| name.starts_with("semel_")).map(str::to_owned).collect();
            let types = all.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
            let names = types.map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                _ => name.to_owned(),
            });
            assert_eq!(listed, names.collect::<Vec<_>>());
        }
    }
}
