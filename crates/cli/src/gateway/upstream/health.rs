//! Asking targets how they are, and closing connections nobody needs.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use semel::Runtime;

use super::super::net::{Spawner, within};
use super::body::Payload;
use super::exchange::Wait;
use super::line::Line;
use super::target::{Protocol, Target};
use crate::config::resolved::Health;

/// The longest time between two sweeps of a pool.
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(1);

/// Asks every target again and again until the upstream is dropped.
pub(super) fn watch<B: Payload>(targets: &[Arc<Target<B>>], health: &Health) {
    for target in targets {
        let (weak, health) = (Arc::downgrade(target), health.clone());
        let runtime = target.runtime.clone();
        target.runtime.spawn(Box::pin(watch_one(weak, runtime, health)));
    }
}

async fn watch_one<B: Payload>(target: Weak<Target<B>>, runtime: Arc<dyn Runtime>, health: Health) {
    while let Some(target) = target.upgrade() {
        let status = within(&*runtime, health.timeout, ask(&target, &health.path)).await.flatten();
        target.set_healthy(status.is_some_and(|status| status.is_success() || status.is_redirection()));
        drop(target);
        runtime.sleep(health.every).await;
    }
}

/// A connection of its own: a pooled one would say how the pool is.
async fn ask<B: Payload>(target: &Arc<Target<B>>, path: &str) -> Option<StatusCode> {
    let wait = Wait::new(&target.means, None);
    let protocol = if target.means.http2 { Protocol::Http2 } else { Protocol::Http1 };
    let transport = target.open(protocol, Arc::new(Line::default()), &wait).await.ok()?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::GET;
    let io = TokioIo::new(transport);
    let response = match protocol {
        Protocol::Http1 => {
            *request.uri_mut() = path.parse().ok()?;
            request.headers_mut().insert(http::header::HOST, target.address.host_header.clone());
            let (mut sender, connection) = http1::handshake(io).await.ok()?;
            let answer = sender.send_request(request);
            drive(target, connection);
            answer.await.ok()?
        }
        Protocol::Http2 => {
            *request.uri_mut() = Uri::builder()
                .scheme(target.address.scheme())
                .authority(target.address.authority.clone())
                .path_and_query(path)
                .build()
                .ok()?;
            let spawner = Spawner(target.runtime.clone());
            let (mut sender, connection) = http2::handshake(spawner, io).await.ok()?;
            let answer = sender.send_request(request);
            drive(target, connection);
            answer.await.ok()?
        }
    };
    Some(response.status())
}

fn drive<B: Payload>(
    target: &Target<B>,
    connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
) {
    target.runtime.spawn(Box::pin(async move {
        // What breaks it breaks the answer too.
        let _ = connection.await;
    }));
}

/// Sweeps the pools until the upstream is dropped.
pub(super) fn sweep<B: Payload>(targets: &[Arc<Target<B>>], idle: Duration) {
    let every = (idle / 2).clamp(Duration::from_millis(10), SWEEP_EVERY_MAX);
    for target in targets {
        let (weak, runtime) = (Arc::downgrade(target), target.runtime.clone());
        target.runtime.spawn(Box::pin(async move {
            loop {
                runtime.sleep(every).await;
                let Some(target) = weak.upgrade() else { return };
                target.pool.sweep(target.now());
            }
        }));
    }
}
