//! `semel gateway`: Semel in front of a service written in any language.
//!
//! Clients come in by [`serve`], requests go out by [`upstream`]; between them stands the layer of
//! `semel-http` with the routes of [`table`]. [`door`] puts these together over a network and a clock
//! that come from outside; what is here starts it on this machine's, and listens to signals.

mod alarm;
pub(crate) mod ask;
mod crew;
mod door;
pub(crate) mod fetch;
mod front;
mod headers;
pub(crate) mod matching;
pub(crate) mod net;
pub(crate) mod observe;
mod problem;
pub(crate) mod requests;
mod serve;
#[cfg(test)]
mod simulation;
mod source;
mod table;
pub(crate) mod tenant;
#[cfg(test)]
mod tests;
pub(crate) mod trace;
pub(crate) mod unknowns;
mod upstream;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use axum::extract::{ConnectInfo, Request};
use axum::middleware::{self, Next};
use futures_util::FutureExt;
use semel::runtime::{Boxed, Tokio};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::{self, Admin};
use crate::config::flags::Arguments;
use crate::config::mistake::Mistake;
use crate::config::resolved::{self, Gateway, Target};
use crate::config::{self, Here, Resolved, Shown, check, reload};
use crate::demo::payments::Payments;
use crew::Crew;
use door::{Door, Parts};

pub(crate) use upstream::client_config;

/// An error of any kind, as bodies and services have them.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Where clients read about keys, and ask about their operations.
pub(crate) const WELL_KNOWN: &str = "/.well-known/idempotency";

/// Where the built-in payments service keeps its receipts.
const DEMO_RECEIPTS: &str = "semel-demo-payments.jsonl";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let resolved = match config::resolve(&arguments, &Here) {
        Ok(resolved) => resolved,
        Err(mistakes) => return Ok(check::refuse(&mistakes)),
    };
    let mut settings = resolved.gateway;
    let _logging = crate::log::init(settings.log.json, &settings.log.filter)?;
    warn(&resolved.warnings);
    // Before anything is opened: a signal from now on ends it properly.
    let (terminated, interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let hung_up = signal(SignalKind::hangup())?;
    start_demo(&mut settings).await?;
    let store = semel::stores::open(&settings.store.0).await.context("the store cannot be opened")?;
    // After the store: a place that turns out to be the store's is refused.
    let subject_keys = match &settings.subject_keys {
        Some(address) => {
            let opened = semel::stores::open_subject_keys(&address.0).await;
            Some(opened.context("the place of subjects' keys cannot be opened")?)
        }
        None => None,
    };
    let (network, runtime) = (Arc::new(net::RealNetwork), Arc::new(Tokio::new()));
    let mut door = Door::open(&settings, store, subject_keys, network, runtime).await?;
    door.employ(Crew::gather()?);
    let parts = door.shared.clone();
    let ending = Arc::new(AtomicBool::new(false));
    if let Some(admin) = &settings.admin {
        start_admin(admin, &settings, &parts, &ending).await?;
    }
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    println!("semel gateway listening on {scheme}://{}", door.address());
    let both = door::first_of(vec![until(terminated), until(interrupted)]);
    let noted = ending.clone();
    let shutdown: Boxed<()> = Box::pin(async move {
        both.await;
        noted.store(true, Ordering::Release);
        tracing::info!("told to end; finishing what began");
    });
    tokio::spawn(keep_reloading(hung_up, arguments, settings, resolved.shown, parts));
    let left = door.serve(shutdown.shared()).await;
    if left.connections + left.operations > 0 {
        let door::Left { connections, operations } = left;
        tracing::warn!(connections, operations, "the time to drain is over; these were cut or go unfinished");
    }
    Ok(ExitCode::SUCCESS)
}

fn warn(warnings: &[Mistake]) {
    for warning in warnings {
        tracing::warn!(place = %warning.place, "{}", warning.sentence);
    }
}

fn until(mut signal: tokio::signal::unix::Signal) -> Boxed<()> {
    Box::pin(async move {
        signal.recv().await;
    })
}

/// Starts the built-in payments service, if that is the upstream.
async fn start_demo(settings: &mut Gateway) -> anyhow::Result<()> {
    for target in settings.upstream.targets.iter_mut().filter(|target| **target == Target::Demo) {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the demo service has no port")?;
        let address = listener.local_addr()?;
        let payments = Payments::with_journal(Path::new(DEMO_RECEIPTS))?;
        tokio::spawn(async move { axum::serve(listener, payments.router()).await });
        *target = Target::Url(format!("http://{address}").parse()?);
        println!("demo payments service on http://{address}, receipts in {DEMO_RECEIPTS}");
    }
    Ok(())
}

async fn start_admin(
    settings: &resolved::Admin,
    gateway: &Gateway,
    parts: &Arc<Parts>,
    ending: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("the admin API cannot listen on {}", settings.listen))?;
    let address = listener.local_addr()?;
    let (up, end, tables) = (parts.clone(), ending.clone(), parts.tables.clone());
    let admin = Admin {
        store: parts.store.clone(),
        subject_keys: parts.subject_keys.clone(),
        runtime: parts.runtime.clone(),
        namespace: gateway.namespace.clone(),
        guard: admin::Guard::new(settings.token.as_ref(), &[]),
        not_ready: Box::new(move || {
            let draining = end.load(Ordering::Acquire).then(|| "the gateway is ending".to_owned());
            let alone = !(up.upstream_available)();
            draining.into_iter().chain(alone.then(|| "no upstream is available".to_owned())).collect()
        }),
        policy: Box::new(move |route| tables.load().keeper(route).policy().clone()),
        metrics: parts.metrics.clone(),
    };
    let router = admin::router(Arc::new(admin)).layer(middleware::from_fn(
        async |ConnectInfo(peer): ConnectInfo<std::net::SocketAddr>, mut request: Request, next: Next| {
            request.extensions_mut().insert(admin::Peer(peer));
            next.run(request).await
        },
    ));
    let service = router.into_make_service_with_connect_info::<std::net::SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    println!("semel admin listening on http://{address}");
    Ok(())
}

/// Reads the settings again on every SIGHUP. What is wrong, or would orphan records, changes nothing.
async fn keep_reloading(
    mut hung_up: tokio::signal::unix::Signal,
    arguments: Arguments,
    mut current: Gateway,
    started: Shown,
    parts: Arc<Parts>,
) {
    while hung_up.recv().await.is_some() {
        let Resolved { gateway: fresh, warnings, shown } = match config::resolve(&arguments, &Here) {
            Ok(resolved) => resolved,
            Err(mistakes) => {
                for mistake in mistakes {
                    tracing::error!("not reloaded: {mistake}");
                }
                continue;
            }
        };
        if let Err(reasons) = reload::orphans(&current, &fresh) {
            for reason in reasons {
                tracing::error!("not reloaded: {reason}");
            }
            continue;
        }
        match parts.reload(&fresh) {
            Ok(()) => {
                tracing::info!(routes = fresh.routes.len(), "reloaded: routes and certificates are in force");
                current = fresh;
                warn(&warnings);
                let changed = started.needs_restart(&shown);
                if !changed.is_empty() {
                    tracing::warn!(
                        settings = changed.join(", "),
                        "changed, and not in force before a restart"
                    );
                }
            }
            Err(error) => tracing::error!("not reloaded in full: {error:#}"),
        }
    }
}
