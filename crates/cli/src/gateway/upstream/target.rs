//! One upstream target: where it is, how it is reached, and how it has been doing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use anyhow::Context as _;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use semel::Runtime;
use semel::http::problem::Kind;

use super::super::alarm::{Clock, millis};
use super::super::headers;
use super::super::net::{Network, within};
use super::body::{Body, Payload};
use super::exchange::{Lost, Wait, exchange};
use super::fate::Failure;
use super::http2::Http2;
use super::line::{BodyState, Gated, Line, Sealing};
use super::pool::{Busy, Connection, Count, Leased, Limits, Pool};
use super::task::Task;
use super::tls::{Connectors, Transport};
use super::tunnel;

/// A target that could not be reached is passed over for this long, if there is another.
const DOWN_FOR: Duration = Duration::from_secs(2);

/// Where a target is.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) authority: Authority,
    pub(super) host_header: HeaderValue,
    /// Set for https.
    pub(super) server_name: Option<ServerName<'static>>,
    /// Put before every path; empty or `/like/this`.
    pub(super) prefix: String,
}

impl Address {
    pub(super) fn of(url: &Uri) -> anyhow::Result<Self> {
        let authority = url.authority().with_context(|| format!("the upstream {url} names no host"))?.clone();
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let secure = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => anyhow::bail!("the upstream {url} must begin with http:// or https://"),
        };
        let server_name = secure
            .then(|| ServerName::try_from(host.clone()))
            .transpose()
            .with_context(|| format!("the upstream {url} has a host name TLS cannot check"))?;
        Ok(Self {
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            host_header: HeaderValue::from_str(authority.as_str())?,
            prefix: url.path().trim_end_matches('/').to_owned(),
            host,
            authority,
            server_name,
        })
    }

    pub(super) fn scheme(&self) -> Scheme {
        if self.server_name.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    pub(super) fn path(&self, path: &PathAndQuery) -> PathAndQuery {
        if self.prefix.is_empty() || path.as_str() == "*" {
            return path.clone();
        }
        let joined = format!("{}{path}", self.prefix);
        PathAndQuery::from_maybe_shared(bytes::Bytes::from(joined)).unwrap_or_else(|_| path.clone())
    }
}

/// How a target is reached, the same for all of them.
pub(super) struct Means {
    pub(super) network: Arc<dyn Network>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) connectors: Option<Connectors>,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    pub(super) clock: Arc<Clock<Line>>,
    pub(super) limits: Limits,
    pub(super) http2: bool,
}

/// What will be spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

pub(super) struct Target<B: Payload> {
    pub(super) address: Address,
    pub(super) means: Arc<Means>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) pool: Pool<B>,
    http2: Http2<B>,
    pub(super) busy: Count,
    /// As the last health check found it.
    healthy: AtomicBool,
    /// Milliseconds of the clock; 0: not down.
    down_until: AtomicU64,
}

impl<B: Payload> Target<B> {
    pub(super) fn new(address: Address, means: Arc<Means>) -> Self {
        Self {
            address,
            runtime: means.runtime.clone(),
            pool: Pool::new(means.limits),
            http2: Http2::default(),
            busy: Count::new(0),
            healthy: AtomicBool::new(true),
            down_until: AtomicU64::new(0),
            means,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.runtime.elapsed()
    }

    pub(super) fn is_available(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
            && self.down_until.load(Ordering::Relaxed) <= self.means.clock.now()
    }

    pub(super) fn set_healthy(&self, healthy: bool) {
        if self.healthy.swap(healthy, Ordering::Relaxed) != healthy {
            tracing::info!(target_host = %self.address.authority, healthy, "upstream health changed");
        }
        if healthy {
            self.down_until.store(0, Ordering::Relaxed);
        }
    }

    /// Sends it and waits for the head of the answer. On a failure the task still has its request if
    /// no byte of it was sent.
    pub(super) async fn send(self: &Arc<Self>, task: &mut Task<B>) -> Result<Response<Body<B>>, Failure> {
        // Leaving HTTP is an HTTP/1.1 affair.
        match self.means.http2 && task.switch.is_none() {
            true => self.http2.send(self, task).await,
            false => self.send_http1(task).await,
        }
    }

    async fn send_http1(self: &Arc<Self>, task: &mut Task<B>) -> Result<Response<Body<B>>, Failure> {
        let wait = Wait::new(&self.means, task.deadline);
        let mut pooled = self.pool.take(self.now(), task.protected);
        loop {
            let connection = match pooled.take() {
                Some(connection) => connection,
                None => self.connect_http1(&wait).await?,
            };
            let mut leased = Leased::new(connection, Busy::new(self));
            let used = leased.connection.reused;
            let spare = if used { task.spare() } else { None };
            let line = leased.connection.line.clone();
            let Some(request) = task.take_http1(&self.address, line.clone(), &*self.runtime) else {
                return Err(already_sent());
            };
            match exchange(&mut leased, request, &wait).await {
                Ok(response) => return self.receive(response, leased, task),
                Err(Lost::Unsent(request, reason)) => {
                    task.put_back(*request);
                    if !used {
                        return Err(unreachable(reason));
                    }
                }
                Err(lost) => {
                    let sealing = line.seal();
                    drop(leased);
                    let (problem, reason) = lost.explain(line.body());
                    match spare.filter(|_| problem == Kind::UpstreamUnreachable) {
                        Some(spare) => task.restore(spare),
                        None => {
                            return Err(match sealing {
                                Sealing::NothingSent => Failure::nothing_happened(problem, reason),
                                Sealing::MaybeSent => Failure::unknown(problem, reason),
                            });
                        }
                    }
                }
            }
        }
    }

    /// The head of an answer is here: who drives the rest?
    fn receive(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
        mut leased: Leased<B>,
        task: &mut Task<B>,
    ) -> Result<Response<Body<B>>, Failure> {
        if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
            let Some(switch) = task.switch.take() else {
                let reason = "the upstream switched protocols unasked".to_owned();
                return Err(Failure::unknown(Kind::UpstreamUnreachable, reason));
            };
            return Ok(tunnel::open(&self.runtime, response, leased, switch));
        }
        if response.headers().contains_key(TRANSFER_ENCODING) {
            // Two lengths in one answer: the chunks are what was read, so they are what is said.
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        headers::drop_hop_by_hop(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        if leased.is_ready() {
            leased.give_back();
            return Ok(response.map(Body::whole));
        }
        if leased.has_ended() {
            return Ok(response.map(Body::whole));
        }
        if leased.connection.line.body() == BodyState::Untouched {
            task.keep_unwanted_body();
            leased.drive(&mut Context::from_waker(Waker::noop()));
        }
        if leased.connection.line.body() != BodyState::Done {
            // An answer before the end of the request: both go on, and neither waits for the other.
            leased.detach();
            return Ok(response.map(Body::whole));
        }
        Ok(response.map(|incoming| Body::driven(incoming, leased)))
    }

    async fn connect_http1(&self, wait: &Wait) -> Result<Box<Connection<B>>, Failure> {
        let line = Arc::new(Line::default());
        let transport = self.open(Protocol::Http1, line.clone(), wait).await?;
        let (sender, driver) = http1::handshake(TokioIo::new(transport))
            .await
            .map_err(|error| unreachable(format!("handshake with {}: {error}", self.address.authority)))?;
        self.means.clock.watch(&line);
        Ok(Box::new(Connection::new(sender, driver, line)))
    }

    /// A connection on which nothing was said yet.
    pub(super) async fn open(
        &self,
        protocol: Protocol,
        line: Arc<Line>,
        wait: &Wait,
    ) -> Result<Transport, Failure> {
        let patience = wait.until_deadline(self.now()).min(self.means.connect_timeout);
        let opened = within(&*self.runtime, patience, self.dial(protocol, line)).await;
        let place = &self.address.authority;
        let failure = match opened {
            Some(Ok(transport)) => {
                self.down_until.store(0, Ordering::Relaxed);
                return Ok(transport);
            }
            Some(Err(error)) => unreachable(format!("cannot connect to {place}: {error}")),
            None => unreachable(format!("no connection to {place} within {patience:?}")),
        };
        let until = self.means.clock.now().saturating_add(millis(DOWN_FOR));
        self.down_until.store(until, Ordering::Relaxed);
        Err(failure)
    }

    async fn dial(&self, protocol: Protocol, line: Arc<Line>) -> io::Result<Transport> {
        let stream = self.means.network.connect(&self.address.host, self.address.port).await?;
        let stream = Gated::new(stream, line);
        let (Some(name), Some(connectors)) = (&self.address.server_name, &self.means.connectors) else {
            return Ok(Transport::Plain(stream));
        };
        let connector = match protocol {
            Protocol::Http1 => &connectors.http1,
            Protocol::Http2 => &connectors.http2,
        };
        let stream = connector.connect(name.clone(), stream).await?;
        if protocol == Protocol::Http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the upstream does not speak HTTP/2"));
        }
        Ok(Transport::Tls(Box::new(stream)))
    }
}

pub(super) fn unreachable(reason: String) -> Failure {
    Failure::nothing_happened(Kind::UpstreamUnreachable, reason)
}

/// Cannot be: a task is sent by one target at a time. If it were, nobody could tell what happened.
pub(super) fn already_sent() -> Failure {
    Failure::unknown(Kind::UpstreamUnreachable, "the request was on its way already".to_owned())
}
