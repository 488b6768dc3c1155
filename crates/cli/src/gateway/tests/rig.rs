//! A proxy, services behind it, and clients that can say anything.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel::Runtime;
use semel::runtime::{Boxed, Tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower_service::Service;

use super::super::BoxError;
use super::super::crew::Crew;
use super::super::door::{Door, Parts};
use super::super::net::{Network, RealNetwork};
use super::super::serve::{self, Certificates, ClientBody, Drained};
use super::super::upstream::{Body, Deadline, Protected, Upstream};
use crate::config::resolved;
use semel::http::Fate;

/// The longest a test waits for anything. Reached only by a failing one.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

pub(super) fn upstream_to(addresses: &[SocketAddr]) -> resolved::Upstream {
    let target = |address: &SocketAddr| resolved::Target::Url(format!("http://{address}").parse().unwrap());
    resolved::Upstream {
        targets: addresses.iter().map(target).collect(),
        http2: false,
        ca: None,
        health: None,
        connect_timeout: Duration::from_secs(5),
        response_timeout: Duration::from_secs(10),
        pool_idle: Duration::from_secs(30),
        pool_idle_protected: Duration::from_secs(10),
        pool_idle_connections_max: 64,
    }
}

pub(super) fn limits() -> resolved::ClientLimits {
    resolved::ClientLimits {
        header_timeout: Duration::from_secs(10),
        body_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(30),
        header_bytes_max: 16 * 1024,
        connections_max: 100,
    }
}

/// What a proxy is made of; tests change what they are about.
pub(super) struct Plan {
    pub(super) upstream: resolved::Upstream,
    pub(super) limits: resolved::ClientLimits,
    pub(super) trusted: Vec<resolved::Network>,
    pub(super) tls: Option<Arc<Certificates>>,
    pub(super) drain: Duration,
    pub(super) network: Arc<dyn Network>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) crew: Option<Arc<Crew>>,
}

impl Plan {
    pub(super) fn to(addresses: &[SocketAddr]) -> Self {
        Self {
            upstream: upstream_to(addresses),
            limits: limits(),
            trusted: Vec::new(),
            tls: None,
            drain: Duration::from_secs(5),
            network: Arc::new(RealNetwork),
            runtime: Arc::new(Tokio::new()),
            crew: None,
        }
    }

    pub(super) async fn start(self) -> Proxy {
        let runtime = self.runtime;
        let upstream = Upstream::new(&self.upstream, self.network, runtime.clone()).unwrap();
        let listener = RealNetwork.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address().unwrap();
        let settings = serve::Settings {
            limits: self.limits,
            trusted_proxies: self.trusted,
            tls: self.tls,
            drain: self.drain,
            runtime: runtime.clone(),
            crew: self.crew,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let service = forward(upstream.clone(), runtime);
        let ended = tokio::spawn(async move {
            serve::run(listener, settings, service, async move { drop(stopped.await) }).await
        });
        Proxy { address, upstream, stop: Some(stop), ended }
    }
}

/// Time that passes when a test says so.
pub(super) struct ByHand {
    tokio: Tokio,
    time: Mutex<Time>,
}

struct Time {
    now: Duration,
    sleepers: Vec<(Duration, oneshot::Sender<()>)>,
}

impl ByHand {
    pub(super) fn new() -> Arc<Self> {
        let time = Time { now: Duration::from_secs(1), sleepers: Vec::new() };
        Arc::new(Self { tokio: Tokio::new(), time: Mutex::new(time) })
    }

    /// Lets time pass, and then everybody do what they do about it.
    pub(super) async fn pass(&self, by: Duration) {
        {
            let mut time = self.time.lock().unwrap();
            time.now += by;
            let now = time.now;
            time.sleepers.retain(|(at, _)| *at > now);
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

impl Runtime for ByHand {
    fn spawn(&self, work: Boxed<()>) {
        self.tokio.spawn(work);
    }

    fn sleep(&self, wait: Duration) -> Boxed<()> {
        let (sleeper, woken) = oneshot::channel();
        let mut time = self.time.lock().unwrap();
        let at = time.now + wait;
        time.sleepers.push((at, sleeper));
        Box::pin(async move { drop(woken.await) })
    }

    fn elapsed(&self) -> Duration {
        self.time.lock().unwrap().now
    }
}

/// Notices panics, which a task would otherwise take with it.
#[derive(Default)]
pub(super) struct Watchful {
    tokio: Tokio,
    panics: Arc<AtomicUsize>,
}

impl Watchful {
    pub(super) fn panics(&self) -> usize {
        self.panics.load(Ordering::SeqCst)
    }
}

impl Runtime for Watchful {
    fn spawn(&self, work: Boxed<()>) {
        let panics = self.panics.clone();
        self.tokio.spawn(Box::pin(async move {
            if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                panics.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }

    fn sleep(&self, wait: Duration) -> Boxed<()> {
        self.tokio.sleep(wait)
    }

    fn elapsed(&self) -> Duration {
        self.tokio.elapsed()
    }
}

pub(super) async fn proxy_to(address: SocketAddr) -> Proxy {
    Plan::to(&[address]).start().await
}

pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    pub(super) upstream: Upstream<ClientBody>,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Drained>,
}

impl Proxy {
    pub(super) async fn client(&self) -> Raw {
        Raw::connect(self.address).await
    }

    /// One request on a connection of its own; head and body of the answer.
    pub(super) async fn ask(&self, request: &str) -> Answer {
        let mut client = self.client().await;
        client.say(request).await;
        client.answer().await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\n\r\n")).await
    }

    pub(super) fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub(super) async fn ended(self) -> Drained {
        soon(self.ended).await.unwrap()
    }
}

/// A whole gateway, with its store in memory.
pub(super) struct WholeGateway {
    pub(super) address: SocketAddr,
    pub(super) parts: Arc<Parts>,
}

/// In front of `service`; `more` belongs under `[gateway]`, `routes` below it.
pub(super) async fn gateway_to(service: SocketAddr, more: &str, routes: &str) -> WholeGateway {
    let routes = if routes.is_empty() { "[defaults]\ntenant = \"none\"" } else { routes };
    let text =
        format!("[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{service}\"\n{more}\n{routes}\n");
    let settings = crate::config::resolved_for_tests(&text);
    let (store, runtime) = (Arc::new(semel::MemoryStore::new()), Arc::new(Tokio::new()));
    let door = Door::open(&settings, store, None, Arc::new(RealNetwork), runtime).await.unwrap();
    let (address, parts) = (door.address(), door.shared.clone());
    let never: Boxed<()> = Box::pin(std::future::pending());
    tokio::spawn(door.serve(never.shared()));
    WholeGateway { address, parts }
}

/// The service of a proxy with nothing in between.
pub(super) fn forward(upstream: Upstream<ClientBody>, runtime: Arc<dyn Runtime>) -> Marking {
    Marking { upstream, runtime }
}

/// Stands where the layer will: marks requests as tests ask, and shows their fate in a header.
#[derive(Clone)]
pub(super) struct Marking {
    upstream: Upstream<ClientBody>,
    runtime: Arc<dyn Runtime>,
}

impl Service<Request<ClientBody>> for Marking {
    type Response = Response<Body<ClientBody>>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.upstream.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ClientBody>) -> Self::Future {
        if request.headers_mut().remove("x-protected").is_some() {
            request.extensions_mut().insert(Protected);
        }
        if let Some(wait) = request.headers_mut().remove("x-deadline-ms") {
            let wait = Duration::from_millis(wait.to_str().unwrap().parse().unwrap());
            request.extensions_mut().insert(Deadline(self.runtime.elapsed() + wait));
        }
        if let Some(shown) = request.extensions().get::<semel::http::tenant::ClientCertificate>() {
            let san = HeaderValue::from_str(&shown.names.join(", ")).unwrap();
            request.headers_mut().insert("x-test-san", san);
        }
        // As the layer adds headers for the service.
        request.headers_mut().insert("x-layer", HeaderValue::from_static("1"));
        let peer = request.extensions().get::<serve::Peer>().expect("every request has a peer");
        assert!(peer.0.ip().is_loopback());
        let answer = self.upstream.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            let fate = match response.extensions().get::<Fate>() {
                Some(Fate::NothingHappened) => "nothing-happened",
                Some(Fate::Unknown(_)) => "unknown",
                None => return Ok(response),
            };
            response.headers_mut().insert("x-fate", HeaderValue::from_static(fate));
            Ok(response)
        })
    }
}

/// A client or a service that says bytes.
pub(super) struct Raw {
    stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Raw {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap())
    }

    pub(super) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    pub(super) fn split(&mut self) -> (tokio::net::tcp::ReadHalf<'_>, tokio::net::tcp::WriteHalf<'_>) {
        self.stream.split()
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    pub(super) async fn say(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).await.unwrap();
    }

    async fn more(&mut self) -> usize {
        soon(self.stream.read_buf(&mut self.buffer)).await.unwrap_or(0)
    }

    /// Everything up to and with `mark`; panics if the other side ends before.
    pub(super) async fn until(&mut self, mark: &str) -> String {
        loop {
            let found = self.buffer.windows(mark.len()).position(|part| part == mark.as_bytes());
            if let Some(at) = found {
                let rest = self.buffer.split_off(at + mark.len());
                return String::from_utf8(std::mem::replace(&mut self.buffer, rest)).unwrap();
            }
            let got = self.more().await;
            assert!(got > 0, "it ended before {mark:?}, after {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    pub(super) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    pub(super) async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(self.more().await > 0, "it ended early");
        }
        let rest = self.buffer.split_off(count);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Everything until the other side ends, however it ends.
    pub(super) async fn rest(&mut self) -> Vec<u8> {
        while self.more().await > 0 {}
        std::mem::take(&mut self.buffer)
    }

    /// One whole answer, by its length or its chunks.
    pub(super) async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        if let Some(length) = answer.header("content-length").map(|value| value.parse().unwrap()) {
            answer.body = self.exactly(length).await;
        } else if answer.header("transfer-encoding").is_some() {
            loop {
                let size = self.until("\r\n").await;
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                if size == 0 {
                    self.until("\r\n").await;
                    break;
                }
                answer.body.extend(self.exactly(size).await);
                self.until("\r\n").await;
            }
        }
        answer
    }

    pub(super) async fn is_closed(&mut self) -> bool {
        self.rest().await.is_empty()
    }
}

/// A place where a test plays the service itself, byte by byte.
pub(super) struct Stage(TcpListener);

impl Stage {
    pub(super) async fn open() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self(listener), address)
    }

    pub(super) async fn next(&self) -> Raw {
        Raw::over(soon(self.0.accept()).await.unwrap().0)
    }
}

/// An address where nobody listens.
pub(super) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

pub(super) type Reply = Response<UnsyncBoxBody<Bytes, BoxError>>;

pub(super) fn reply(text: impl Into<Bytes>) -> Reply {
    Response::new(Full::new(text.into()).map_err(|never| match never {}).boxed_unsync())
}

#[derive(Clone, Default)]
pub(super) struct Counts {
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Counts {
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// A service on hyper, HTTP/1.1 or HTTP/2, that counts.
pub(super) async fn service<H, F>(http2: bool, handler: H) -> (SocketAddr, Counts)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counts = Counts::default();
    let counted = counts.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counted.connections.fetch_add(1, Ordering::SeqCst);
            let (handler, counted) = (handler.clone(), counted.clone());
            let service = service_fn(move |request| {
                counted.requests.fetch_add(1, Ordering::SeqCst);
                let reply = handler(request);
                async move { Ok::<_, Infallible>(reply.await) }
            });
            let io = TokioIo::new(stream);
            tokio::spawn(async move {
                match http2 {
                    true => {
                        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        drop(builder.serve_connection(io, service).await);
                    }
                    false => {
                        let mut builder = hyper::server::conn::http1::Builder::new();
                        drop(builder.header_read_timeout(None).serve_connection(io, service).await);
                    }
                }
            });
        }
    });
    (address, counts)
}

/// Answers with method, path and headers of the request, a line each.
pub(super) async fn mirror() -> (SocketAddr, Counts) {
    service(false, async |request: Request<Incoming>| {
        let mut lines = format!("{} {}\n", request.method(), request.uri());
        for (name, value) in request.headers() {
            lines.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
        }
        reply(lines)
    })
    .await
}

/// Answers with the body of the request.
pub(super) async fn echo(http2: bool) -> (SocketAddr, Counts) {
    service(http2, async |request: Request<Incoming>| {
        Response::new(request.into_body().map_err(Into::into).boxed_unsync())
    })
    .await
}
