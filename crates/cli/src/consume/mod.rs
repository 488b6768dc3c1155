//! `semel consume`: messages of a broker, as calls of a service in any language.
//!
//! The service is not in the ledger's transaction, so this is intent, call and result, and no more: a row
//! says that a call begins, the service is called with `Idempotency-Key` = the message's id, a row says
//! that it was done, and only then is the message acknowledged. A crash between call and result calls
//! again, with the same key. The service must take the second call for the first; the gateway in front of
//! it does that for any service.

mod arguments;
mod call;

use crate::say::say;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use semel::consumer::{Consumer, Source, Tally};
use semel::inbox::Inbox;
use semel::runtime::Tokio;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use arguments::{Arguments, HELP};

use crate::gateway::{client_config, fetch, net};

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let _logging = crate::log::init(arguments.log_json, &arguments.log)?;
    let (mut terminated, mut interrupted) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let shutdown = async move {
        tokio::select! { _ = terminated.recv() => {}, _ = interrupted.recv() => {} }
        tracing::info!("told to end; finishing the batch at hand");
    };
    let from = arguments.from()?;
    arguments.target()?;
    let inbox = semel::stores::open_inbox(&arguments.store).await.context("the store cannot be opened")?;
    match from {
        arguments::Origin::Nats { server, options } => {
            let client = async_nats_connect(&server).await?;
            let source = semel::sources::nats::Nats::open(client, options).await?;
            work(source, &arguments, inbox, shutdown).await
        }
        #[cfg(feature = "kafka")]
        arguments::Origin::Kafka { options } => {
            let source = semel::sources::kafka::Kafka::open(inbox.clone(), options).await?;
            work(source, &arguments, inbox, shutdown).await
        }
    }
}

async fn async_nats_connect(server: &str) -> anyhow::Result<semel::sources::nats::Client> {
    semel::sources::nats::connect(server).await.context("no connection to NATS")
}

async fn work(
    source: impl Source,
    arguments: &Arguments,
    inbox: Arc<dyn Inbox>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<ExitCode> {
    let tls = Arc::new(client_config(arguments.ca.as_deref())?);
    let runtime = Arc::new(Tokio::new());
    let http = fetch::Http::new(fetch::over(Arc::new(net::RealNetwork)), tls, runtime.clone());
    let target = arguments.target()?;
    let to = target.shown();
    let call = call::Call::new(inbox.clone(), http, target);
    let consumer = Consumer::new(source, Arc::new(call), inbox, runtime, arguments.options());
    let tally = consumer.tally();
    arguments.metrics.consumer(tally.clone()).await?;
    say!("semel consume: group {} from {} to {}", arguments.group, arguments.shown_from(), to);
    consumer.run(shutdown).await?;
    say!("{}", told(&tally));
    Ok(ExitCode::SUCCESS)
}

fn told(tally: &Tally) -> String {
    use std::sync::atomic::Ordering::Relaxed;
    format!(
        "applied {}, duplicates {}, set aside to try again {}, dead {}, conflicts {}, behind others {}, stale {}",
        tally.applied.load(Relaxed),
        tally.duplicates.load(Relaxed),
        tally.later.load(Relaxed),
        tally.dead.load(Relaxed),
        tally.conflicts.load(Relaxed),
        tally.behind.load(Relaxed),
        tally.stale.load(Relaxed),
    )
}
