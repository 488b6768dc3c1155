//! `semel relay`: publishes what is in an outbox until it is told to stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use semel::error::Kind;
use semel::outbox::{BATCH_MAX, LANES_MAX, Lane};
use semel::relay::{Beyond, Ended, Relay, Retry, Settings, Tally};
use semel::runtime::Tokio;
use semel::sinks::{self, Address, Format, Sink, Trouble};
use semel::{Backoff, Nonce};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::value::duration;

/// How long lanes have to finish their batches after SIGTERM. What is not saved by then comes again.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How often it is said what was done.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The database was restored: an operator must rebase.
const STOPPED: u8 = 3;

pub(crate) const HELP: &str = "\
Examples:
  semel relay --store sqlite:shop.db --to stdout:
  semel relay --store postgres://shop@db/shop --to nats://broker:4222/shop
  semel relay --store postgres://shop@db/shop --to 'kafka://broker:9092?transactional=true'
  semel relay --store sqlite:shop.db --to https://warehouse.example/messages

SIGTERM finishes the batches at hand, gives the lanes back and ends. Exit code 3: the database was
restored or moved, and `semel outbox rebase` is needed.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The store whose outbox is published: `sqlite:PATH`, `postgres://…` or `mysql://…`
    #[arg(
        long,
        env = "SEMEL_STORE",
        default_value = "sqlite:semel.db",
        hide_env_values = true,
        value_name = "URL"
    )]
    store: String,
    /// Where to: `stdout:`, `http://…`, `https://…`, `nats://HOST:PORT[/PREFIX]`, `kafka://HOST:PORT`
    #[arg(long, env = "SEMEL_RELAY_TO", hide_env_values = true, value_name = "URL")]
    to: String,
    /// How messages are written
    #[arg(long, value_enum, default_value = "ce-binary")]
    format: Written,
    /// The source of CloudEvents [default: one that names the store]
    #[arg(long, value_name = "URI")]
    source: Option<String>,
    /// Only these lanes: `0-3,7` [default: all]
    #[arg(long, value_parser = lanes, value_name = "LANES")]
    lanes: Option<Lanes>,
    /// Lanes to take at once where several relays run; more only where nobody else does [default: all]
    #[arg(long, value_name = "COUNT")]
    share: Option<u16>,
    /// Most messages published and saved together
    #[arg(long, default_value_t = Settings::default().batch, value_parser = batch)]
    batch: usize,
    /// How long a lane stays with a relay that is gone
    #[arg(long, default_value = "10s", value_parser = duration)]
    lease: Duration,
    /// How long a message that fails is tried before it is a dead letter
    #[arg(long, default_value = "1h", value_parser = duration)]
    retry_horizon: Duration,
    /// What to do if that is longer than the sink recognizes copies
    #[arg(long, value_enum, default_value = "warn")]
    beyond_dedup: BeyondDedup,
    #[command(flatten)]
    metrics: crate::metrics::Metrics,
    /// What is logged, as in `info,semel=debug`
    #[arg(long, env = "SEMEL_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
    /// Log as JSON, one object per line
    #[arg(long)]
    log_json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Written {
    /// The payload, with headers of Semel's own
    Plain,
    /// The same with the attributes of CloudEvents 1.0 as headers
    CeBinary,
    /// A JSON document of CloudEvents 1.0
    CeStructured,
}

#[derive(Clone, Copy, ValueEnum)]
enum BeyondDedup {
    /// Say so and begin
    Warn,
    /// Do not begin
    Refuse,
}

#[derive(Clone, Debug)]
struct Lanes(Vec<Lane>);

impl Arguments {
    fn settings(&self) -> Settings {
        Settings {
            lease: self.lease,
            margin: self.lease / 5,
            batch: self.batch,
            lanes: self.lanes.clone().map(|lanes| lanes.0),
            share: self.share,
            format: match self.format {
                Written::Plain => Format::Plain,
                Written::CeBinary => Format::CeBinary,
                Written::CeStructured => Format::CeStructured,
            },
            source: self.source.clone(),
            retry: Retry { horizon: self.retry_horizon, ..Retry::default() },
            beyond_dedup: match self.beyond_dedup {
                BeyondDedup::Warn => Beyond::Warn,
                BeyondDedup::Refuse => Beyond::Refuse,
            },
            ..Settings::default()
        }
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let _logging = crate::log::init(arguments.log_json, &arguments.log)?;
    // Before anything is opened: a signal from now on ends it properly.
    let mut signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let address = Address::parse(&arguments.to)?;
    let outbox = semel::stores::open_outbox(&arguments.store).await.context("the outbox cannot be opened")?;
    let Some(sink) = reach(&address, &mut signals).await? else { return Ok(ExitCode::SUCCESS) };

    let facts = outbox.facts();
    let about = sink.about();
    let relay = Relay::new(outbox.clone(), sink, Arc::new(Tokio::new()), arguments.settings())?;
    let tally = relay.tally();
    arguments.metrics.relay(tally.clone(), outbox).await?;
    // Not on stdout, which may be where messages go.
    eprintln!(
        "semel relay: publishing {} lanes of {} to {}, copies recognized: {}",
        arguments.lanes.as_ref().map_or(usize::from(facts.lanes), |lanes| lanes.0.len()),
        facts.engine,
        about.name,
        about.dedup
    );
    let (told, mut stopping) = tokio::sync::oneshot::channel();
    let work = relay.run(async {
        either(&mut signals).await;
        tracing::info!(target: "semel::relay", "told to stop: finishing the batches at hand");
        let _ = told.send(());
    });
    let overdue = async {
        // A relay that ends by itself drops the sender and is done.
        if (&mut stopping).await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(DRAIN_MAX).await;
    };
    let ended = tokio::select! {
        ended = work => ended,
        never = report(&tally) => match never {},
        () = overdue => bail!("not all lanes could finish within {DRAIN_MAX:?}; what is unsaved comes again"),
    };
    eprintln!("semel relay: published {}, dead letters {}", count(&tally.published), count(&tally.dead));
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(stopped) if is_stopped(&stopped) => {
            eprintln!("semel: {:#}", anyhow::Error::from(stopped));
            Ok(ExitCode::from(STOPPED))
        }
        Err(ended) => Err(ended.into()),
    }
}

/// Whether an operator has to look at the outbox first.
fn is_stopped(ended: &Ended) -> bool {
    match ended {
        Ended::Stopped(_) => true,
        Ended::Store(error) => error.kind() == Kind::WentBack,
        _ => false,
    }
}

/// Says now and then what was done.
async fn report(tally: &Tally) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        tracing::info!(
            target: "semel::relay",
            lanes = count(&tally.lanes),
            published = count(&tally.published),
            set_aside = count(&tally.set_aside),
            behind = count(&tally.behind),
            dead = count(&tally.dead),
            downs = count(&tally.downs),
            lost = count(&tally.lost),
            "so far"
        );
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Connects to the sink, waiting while it is down. `None`: told to stop meanwhile.
async fn reach(address: &Address, signals: &mut (Signal, Signal)) -> anyhow::Result<Option<Arc<dyn Sink>>> {
    let mut backoff = Backoff::new(Nonce::random());
    let mut told = false;
    loop {
        let reason = match sinks::open(address).await {
            Ok(sink) => return Ok(Some(sink)),
            Err(Trouble::Down(reason)) => reason,
            Err(trouble) => return Err(trouble).context("the sink cannot be used"),
        };
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(target: "semel::relay", reason, "the sink is down; messages wait");
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_pause()) => {}
            () = either(signals) => return Ok(None),
        }
    }
}

async fn either((terminated, interrupted): &mut (Signal, Signal)) {
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
}

fn batch(text: &str) -> Result<usize, String> {
    let wrong = || format!("a batch has 1 to {BATCH_MAX} messages");
    text.parse().ok().filter(|count| (1..=BATCH_MAX).contains(count)).ok_or_else(wrong)
}

/// `0-3,7`
fn lanes(text: &str) -> Result<Lanes, String> {
    let wrong = || format!("lanes look like 0-3,7 and are below {LANES_MAX}");
    let number = |text: &str| text.trim().parse().ok().filter(|lane| *lane < LANES_MAX).ok_or_else(wrong);
    let mut lanes: Vec<Lane> = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        lanes.extend((first..=last).map(Lane));
    }
    lanes.sort_unstable();
    lanes.dedup();
    Ok(Lanes(lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_numbers_and_ranges() {
        let read = |text| lanes(text).map(|lanes| lanes.0.iter().map(|lane| lane.0).collect::<Vec<_>>());
        assert_eq!(read("0-3,7"), Ok(vec![0, 1, 2, 3, 7]));
        assert_eq!(read("5"), Ok(vec![5]));
        assert_eq!(read("2,1-3"), Ok(vec![1, 2, 3]));
        for wrong in ["", "3-1", "a", "1,", "256", "-1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
