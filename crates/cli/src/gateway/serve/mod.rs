//! Clients come in here: a listener, its connections, and how they end.
//!
//! HTTP/1.1 and HTTP/2 on one port, plain or TLS. The service behind gets requests that were cleaned
//! ([`edge`]) with [`Peer`] and perhaps [`ClientCertificate`] as extensions. Slow, oversized and
//! ambiguous requests end here. What a request means is not decided here.

mod body;
mod edge;
mod framing;
mod link;
mod san;
mod stream;
mod tls;
mod wire;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use semel::Runtime;
use semel::http::problem::Kind;
use tokio::io::AsyncWriteExt;
use tower_service::Service;

use super::BoxError;
use super::alarm::Clock;
use super::crew::Crew;
use super::net::{Listener, Stream, Timer, within};
use super::{headers, problem};
use crate::config::resolved::{ClientLimits, Network};
use edge::Edge;
use framing::Framing;
use link::{Census, Link, Origin, Overdue};
use stream::Streams;
use wire::{Client, Wire};

pub(crate) use body::ClientBody;
pub(crate) use edge::Peer;
pub(crate) use link::Held;
pub(crate) use tls::Certificates;

/// Hyper's buffers need this much.
const BUFFER_BYTES_MIN: usize = 64 * 1024;
/// Requests that one HTTP/2 client may have open.
const STREAMS_MAX: u32 = 256;
/// How often an HTTP/2 client is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(30);
/// After an error that is not one client's (no more file descriptors), accepting pauses.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client that is turned away may take to read why, and how many may at once.
const TURN_AWAY_WITHIN: Duration = Duration::from_secs(1);
const TURNED_AWAY_MAX: usize = 64;

/// How clients are served.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limits: ClientLimits,
    pub(crate) trusted_proxies: Vec<Network>,
    pub(crate) tls: Option<Arc<Certificates>>,
    /// How long requests in flight may take after the end has been announced.
    pub(crate) drain: Duration,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Who attends to connections of HTTP/1; the runtime if nobody does.
    pub(crate) crew: Option<Arc<Crew>>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Every connection came to its own end.
    Fully,
    /// This many were cut.
    Cut(usize),
}

struct Shared<S> {
    settings: Settings,
    service: S,
    clock: Arc<Clock<Link>>,
}

/// Serves clients until `shutdown`, then lets requests in flight end.
///
/// # Cancellation
///
/// Dropped, it stops listening; connections go on until they end by themselves.
pub(crate) async fn run<S, B>(
    mut listener: Box<dyn Listener>,
    settings: Settings,
    service: S,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let (runtime, drain) = (settings.runtime.clone(), settings.drain);
    let shortest = settings.limits.header_timeout.min(settings.limits.idle_timeout);
    let clock = Clock::start(&runtime, shortest);
    let (census, turned_away) = (Arc::new(Census::default()), Arc::new(Census::default()));
    let shared = Arc::new(Shared { settings, service, clock: clock.clone() });
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, peer) = match select(shutdown.as_mut(), listener.accept()).await {
            Either::Left(_) => break,
            Either::Right((Ok(accepted), _)) => accepted,
            Either::Right((Err(error), _)) => {
                if !is_of_one_client(&error) {
                    tracing::error!(%error, "no client can be accepted");
                    runtime.sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        match census.admit(shared.settings.limits.connections_max) {
            Some(place) => runtime.spawn(Box::pin(attend(shared.clone(), stream, peer, place))),
            None => turn_away(&shared, &turned_away, stream),
        }
    }
    drop(listener);
    clock.stop();
    match within(&*runtime, drain, census.wait_until_empty()).await {
        Some(()) => Drained::Fully,
        None => {
            let left = census.count();
            clock.cut();
            Drained::Cut(left)
        }
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Says why, if that is cheap: not over TLS, and not to everybody at once.
fn turn_away<S>(shared: &Shared<S>, turned_away: &Arc<Census>, mut stream: Stream) {
    tracing::warn!("a client was turned away: connections_max is reached");
    let Some(place) = turned_away.admit(TURNED_AWAY_MAX).filter(|_| shared.settings.tls.is_none()) else {
        return;
    };
    let runtime = shared.settings.runtime.clone();
    shared.settings.runtime.spawn(Box::pin(async move {
        let answer = problem::raw(Kind::TooManyConnections, "All places are taken.");
        let _ = within(&*runtime, TURN_AWAY_WITHIN, async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        })
        .await;
        drop(place);
    }));
}

/// One connection, from its first byte to the choice of who attends to it.
async fn attend<S, B>(shared: Arc<Shared<S>>, stream: Stream, peer: SocketAddr, place: Held)
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let settings = &shared.settings;
    let (runtime, limits) = (&settings.runtime, &settings.limits);
    let (mut client, negotiated, certificate) = match &settings.tls {
        None => (Client::Plain(stream), false, None),
        Some(certificates) => {
            match within(&**runtime, limits.header_timeout, certificates.accept(stream)).await {
                Some(Ok(stream)) => {
                    let (http2, shown) = (tls::speaks_http2(&stream), tls::certificate(&stream));
                    (Client::Tls(Box::new(stream)), http2, shown)
                }
                Some(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                None => return tracing::debug!("a TLS handshake took too long"),
            }
        }
    };
    let origin = Origin {
        peer,
        is_trusted: headers::is_in(peer.ip(), &settings.trusted_proxies),
        is_secure: settings.tls.is_some(),
        certificate,
    };
    let link = Link::new(origin, limits, runtime, &shared.clock, place);
    let (http2, first) = match negotiated {
        true => (true, Bytes::new()),
        false => match until_overdue(&link, wire::sniff(&mut client)).await {
            Some(Ok(Some(sniffed))) => sniffed,
            _ => return,
        },
    };
    match (http2, &settings.crew) {
        (true, _) => speak_http2(&shared, client, first, link).await,
        (false, None) => speak_http1(&shared, client, first, link).await,
        (false, Some(crew)) => {
            let shared = shared.clone();
            crew.take(Box::pin(async move {
                match client.move_here() {
                    Ok(()) => speak_http1(&shared, client, first, link).await,
                    Err(error) => tracing::error!(%error, "a client's connection cannot be attended"),
                }
            }));
        }
    }
}

fn edge<S: Clone>(shared: &Shared<S>, link: &Arc<Link>) -> Edge<S> {
    let Settings { runtime, limits, .. } = &shared.settings;
    Edge {
        service: shared.service.clone(),
        link: link.clone(),
        runtime: runtime.clone(),
        body_timeout: limits.body_timeout,
    }
}

async fn speak_http2<S, B>(shared: &Shared<S>, client: Client, first: Bytes, link: Arc<Link>)
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let Settings { runtime, limits, .. } = &shared.settings;
    let io = TokioIo::new(Wire::new(client, first, link.clone(), None));
    let connection = http2::Builder::new(Streams(link.clone()))
        .timer(Timer::new(runtime.clone()))
        .keep_alive_interval(PING_EVERY)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX))
        .serve_connection(io, edge(shared, &link));
    let mut connection = pin!(connection);
    drive(&mut connection, &link).await;
}

async fn speak_http1<S, B>(shared: &Shared<S>, client: Client, first: Bytes, link: Arc<Link>)
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let Settings { runtime, limits, .. } = &shared.settings;
    let io = TokioIo::new(Wire::new(client, first, link.clone(), Some(Framing::new())));
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(limits.header_bytes_max)
        .max_buf_size(limits.header_bytes_max.max(BUFFER_BYTES_MIN))
        .serve_connection(io, edge(shared, &link))
        .with_upgrades();
    let ended = drive(&mut Pin::new(&mut connection), &link).await;
    if ended == Some(Overdue::Head)
        && let Some(parts) = connection.into_parts()
    {
        let mut client = parts.io.into_inner();
        let answer = problem::raw(Kind::RequestSlow, "The head of the request did not come to its end.");
        let _ = within(&**runtime, TURN_AWAY_WITHIN, async {
            client.write_all(answer.as_bytes()).await?;
            client.shutdown().await
        })
        .await;
    }
}

/// Awaits `work` as long as the connection's time is not up and nobody stops it.
async fn until_overdue<T>(link: &Link, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        // Looked at after the alarm is set, so that a stop in between is not missed.
        match link.overdue(cx).is_some() || link.is_stopping() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    })
    .await
}

/// A connection that can be asked to end after what it is doing.
trait Graceful: Future {
    fn finish(self: Pin<&mut Self>);
}

impl<I, S, B> Graceful for http1::UpgradeableConnection<I, S>
where
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B, E> Graceful for http2::Connection<I, S, E>
where
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: Body + 'static,
    B::Error: Into<BoxError>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a connection to its end: its own, or the one its link sets. Says so in the latter case.
async fn drive<C: Graceful>(connection: &mut Pin<&mut C>, link: &Link) -> Option<Overdue> {
    let mut finishing = false;
    poll_fn(|cx| {
        loop {
            if link.is_stopping() && !finishing {
                finishing = true;
                connection.as_mut().finish();
            }
            let cut_short = link.is_stopping() && semel::mutant::on("shutdown-cuts-requests");
            if connection.as_mut().poll(cx).is_ready() || link.is_cut() || cut_short {
                return Poll::Ready(None);
            }
            match link.overdue(cx) {
                // It says goodbye if it can, and gets one more such time for it.
                Some(Overdue::Idle) if !finishing => {
                    finishing = true;
                    link.rest();
                    connection.as_mut().finish();
                }
                Some(overdue) => return Poll::Ready(Some(overdue)),
                // Looked at after the alarm is set, so that a stop in between is not missed.
                None if link.is_stopping() && !finishing => {}
                None if link.is_cut() => return Poll::Ready(None),
                None => return Poll::Pending,
            }
        }
    })
    .await
}
