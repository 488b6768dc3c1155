//! Sending requests to the real service, once.
//!
//! A tower service for any body. What it promises the layer around it is to tell the truth about a
//! request that got no answer ([`Fate`]), and never to send a [`Protected`] one again after its first
//! byte (G-21). It follows no redirects, keeps no cookies, and does not look into bodies.

mod body;
mod exchange;
mod fate;
mod health;
mod http2;
mod line;
mod outgoing;
mod pool;
mod target;
mod task;
mod tls;
mod tunnel;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::{Request, Response};
use semel::Runtime;
use semel::http::problem::Kind;
use semel::runtime::Boxed;
use tower_service::Service;

use super::alarm::Clock;
use super::net::Network;
use crate::config::resolved;
use fate::Failure;
use target::{Address, Means, Target};
use task::Task;

pub(crate) use body::{Body, Payload};
pub(crate) use task::{Deadline, Protected};
pub(crate) use tls::client_config;

/// All targets behind the gateway, as one service.
pub(crate) struct Upstream<B: Payload> {
    shared: Arc<Shared<B>>,
}

impl<B: Payload> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<B: Payload> {
    targets: Vec<Arc<Target<B>>>,
    /// Where the next request starts to look.
    next: AtomicUsize,
}

impl<B: Payload> Upstream<B> {
    /// Starts the tasks beside it (health checks, sweeps, alarms); they end when the last clone is
    /// dropped. Connects to nobody yet.
    pub(crate) fn new(
        settings: &resolved::Upstream,
        network: Arc<dyn Network>,
        runtime: Arc<dyn Runtime>,
    ) -> anyhow::Result<Self> {
        let addresses = settings
            .targets
            .iter()
            .map(|target| match target {
                resolved::Target::Url(url) => Address::of(url),
                resolved::Target::Demo => anyhow::bail!("the demo service has to be started first"),
            })
            .collect::<anyhow::Result<Vec<Address>>>()?;
        anyhow::ensure!(!addresses.is_empty(), "the gateway needs at least one upstream");
        let secure = addresses.iter().any(|address| address.server_name.is_some());
        let connectors = secure.then(|| tls::Connectors::new(settings.ca.as_deref())).transpose()?;
        let means = Arc::new(Means {
            network,
            clock: Clock::start(&runtime, settings.response_timeout),
            runtime,
            connectors,
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            limits: pool::Limits {
                idle: settings.pool_idle,
                idle_protected: settings.pool_idle_protected,
                connections_max: settings.pool_idle_connections_max,
            },
            http2: settings.http2,
        });
        let targets: Vec<_> =
            addresses.into_iter().map(|address| Arc::new(Target::new(address, means.clone()))).collect();
        health::sweep(&targets, settings.pool_idle);
        if let Some(health) = &settings.health {
            health::watch(&targets, health);
        }
        Ok(Self { shared: Arc::new(Shared { targets, next: AtomicUsize::new(0) }) })
    }

    /// Whether at least one target is believed to be up.
    pub(crate) fn is_available(&self) -> bool {
        self.shared.targets.iter().any(|target| target.is_available())
    }
}

impl<B: Payload> Shared<B> {
    /// The targets in the order in which to try them: available ones by how busy they are, in turn
    /// where they are equally busy; then the others, which may be up again.
    fn order(&self) -> Vec<Arc<Target<B>>> {
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.targets.len();
        let mut order: Vec<_> = (0..count).map(|step| self.targets[(start + step) % count].clone()).collect();
        order.sort_by_key(|target| (!target.is_available(), target.busy.load(Ordering::Relaxed)));
        order
    }

    async fn send(&self, request: Request<B>) -> Response<Body<B>> {
        let mut task = Task::new(request);
        if let [target] = &*self.targets {
            let answer = target.send(&mut task).await;
            return answer.unwrap_or_else(|failure| failure.into_response(&task));
        }
        let mut failure = None;
        for target in self.order() {
            match target.send(&mut task).await {
                Ok(response) => return response,
                // Nothing was sent, so another may have it, protected or not.
                Err(unsent) if task.is_here() => failure = Some(unsent),
                Err(lost) => return lost.into_response(&task),
            }
        }
        failure
            .unwrap_or_else(|| Failure::nothing_happened(Kind::UpstreamUnreachable, "no target".to_owned()))
            .into_response(&task)
    }
}

impl<B: Payload> Service<Request<B>> for Upstream<B> {
    type Response = Response<Body<B>>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = self.shared.clone();
        Box::pin(async move { Ok(shared.send(request).await) })
    }
}
