//! After `101 Switching Protocols`: bytes both ways, and nothing is understood any more.

use std::sync::Arc;

use http::Response;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use semel::Runtime;

use super::super::headers;
use super::body::{Body, Payload};
use super::pool::Leased;
use super::task::Switch;

/// Passes the answer on and connects both sides once the client's has switched too.
pub(super) fn open<B: Payload>(
    runtime: &Arc<dyn Runtime>,
    mut response: Response<Incoming>,
    leased: Leased<B>,
    switch: Switch,
) -> Response<Body<B>> {
    let upstream = hyper::upgrade::on(&mut response);
    leased.detach();
    runtime.spawn(Box::pin(async move {
        let Switch { client, held, .. } = switch;
        let both = futures_util::future::try_join(upstream, client).await;
        match both {
            Ok((upstream, client)) => {
                let (mut upstream, mut client) = (TokioIo::new(upstream), TokioIo::new(client));
                // Either side may cut a tunnel at any time; that is its end, not a fault.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            }
            Err(error) => tracing::debug!(%error, "a tunnel was not opened"),
        }
        drop(held);
    }));
    let protocol = response.headers().get(UPGRADE).cloned();
    headers::drop_hop_by_hop(response.headers_mut());
    let answer = response.headers_mut();
    answer.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        answer.insert(UPGRADE, protocol);
    }
    response.map(Body::whole)
}
