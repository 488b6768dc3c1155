//! What a request meets first: its trace, the pages the gateway serves itself, then the layer; and what
//! it meets last, on its way to the upstream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use pin_project_lite::pin_project;
use semel::Runtime;
use semel::http::header::{IDEMPOTENCY_KEY, KEY_ALIKE};
use semel::http::problem::Kind;
use semel::http::{Fate, Op, Problem, Protection, Reply, ReplyBody, RequestBody, Semel, SemelLayer};
use semel::policy::DEFAULTS;
use semel::runtime::Boxed;
use tower_layer::Layer;
use tower_service::Service;
use tracing::instrument::Instrumented;
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Span};

use super::WELL_KNOWN;
use super::observe::{self, Metrics, Running};
use super::serve::{ClientBody, Peer};
use super::table::{Entry, Table, Tables};
use super::trace::{CORRELATION_ID, Trace};
use super::upstream::{Body, Deadline, Protected, Upstream};

/// What goes to the upstream, and what comes back from it.
pub(crate) type Sent = RequestBody<ClientBody>;
pub(crate) type Answered = ReplyBody<Body<Sent>>;

/// The gateway as one service.
#[derive(Clone)]
pub(crate) struct Front {
    layered: Semel<Outward>,
    layer: SemelLayer,
    tables: Tables,
}

impl Front {
    pub(crate) fn new(layer: SemelLayer, tables: Tables, outward: Outward) -> Self {
        Self { layered: layer.layer(outward), layer, tables }
    }

    /// What the gateway answers by itself, if it is asked for that.
    fn own(&self, table: &Table, request: &Parts) -> Option<Boxed<Response<Bytes>>> {
        let rest = request.uri.path().strip_prefix(WELL_KNOWN)?;
        let (page, document) = &table.described;
        let now = |response| Some(Box::pin(std::future::ready(response)) as Boxed<Response<Bytes>>);
        match rest {
            "" | ".json" | "/status" if request.method != Method::GET => {
                now(plain(StatusCode::METHOD_NOT_ALLOWED, "text/plain", Bytes::from_static(b"GET only\n")))
            }
            "" => now(plain(StatusCode::OK, "text/html; charset=utf-8", page.clone())),
            ".json" => now(plain(StatusCode::OK, "application/json", document.clone())),
            "/status" => Some(self.status(table, request)),
            _ => None,
        }
    }

    /// The state of one's own operation: `?route=ID`, or `?method=POST&path=/payments`.
    fn status(&self, table: &Table, request: &Parts) -> Boxed<Response<Bytes>> {
        let refused = |detail: &str| {
            let response = Problem::new(Kind::KeyNotUsable).detail(detail).into_response();
            Box::pin(std::future::ready(response)) as Boxed<Response<Bytes>>
        };
        let query = request.uri.query().unwrap_or_default();
        let value = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
            Some(percent_encoding::percent_decode_str(pair).decode_utf8_lossy().into_owned())
        };
        let mut asked = request.clone();
        let entry = if let Some(id) = value("route") {
            table.by_id(&id)
        } else {
            asked.method = value("method").and_then(|method| method.parse().ok()).unwrap_or(Method::POST);
            let Some(path) = value("path").and_then(|path| path.parse::<Uri>().ok()) else {
                return refused("Name the operation's route with ?route=ID, or its ?method= and ?path=.");
            };
            asked.uri = path;
            table.find(&asked.method, asked.uri.path())
        };
        let Some(entry) = entry else { return refused("There is no such route here.") };
        let (layer, route) = (self.layer.clone(), entry.route.clone());
        Box::pin(async move { layer.status(&route, &asked).await })
    }
}

fn plain(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    response
}

impl Service<Request<ClientBody>> for Front {
    type Response = Response<Answered>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.layered.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ClientBody>) -> Answering {
        let (mut head, mut body) = request.into_parts();
        let trace = Trace::enter(&mut head.headers);
        let correlation = trace.correlation.clone();
        let tables = self.tables.clone();
        let table = tables.load();
        let entry = table.find(&head.method, head.uri.path());
        let peer = head.extensions.get::<Peer>().map(|Peer(address)| address.ip());
        table.strip(&mut head, entry.unwrap_or(table.fallback()), peer);
        body.bar(&table.judged_headers);
        // A span costs more than the rest of what is done here. Without a key there is nothing to log
        // about a request, unless it fails; the way to the upstream has the trace for that.
        let span = if is_logged(&head, entry) {
            trace.span()
        } else {
            head.extensions.insert(trace);
            Span::none()
        };
        if let Some(own) = self.own(&table, &head) {
            return Answering { way: Way::Own { own: own.instrument(span) }, correlation };
        }
        if let Some(entry) = entry {
            head.extensions.insert(RunMax(entry.settings.run_max));
        }
        let request = Request::from_parts(head, body);
        let layered = span.in_scope(|| self.layered.call(request)).instrument(span);
        Answering { way: Way::Layered { layered }, correlation }
    }
}

/// Whether something will be logged about a request that fares well.
fn is_logged(request: &Parts, entry: Option<&Entry>) -> bool {
    request.headers.contains_key(IDEMPOTENCY_KEY)
        || request.headers.contains_key(KEY_ALIKE)
        || entry.is_some_and(|entry| entry.route.protection() == Protection::Required)
        || LevelFilter::current() > LevelFilter::INFO
}

/// The longest the upstream may take for a protected request.
#[derive(Clone, Copy)]
struct RunMax(Duration);

pin_project! {
    /// An answer on its way.
    pub(crate) struct Answering {
        #[pin]
        way: Way,
        correlation: HeaderValue,
    }
}

pin_project! {
    #[project = WayProjection]
    enum Way {
        Own { own: Instrumented<Boxed<Response<Bytes>>> },
        Layered { #[pin] layered: Instrumented<Reply<Counted, Body<Sent>>> },
    }
}

impl Future for Answering {
    type Output = Result<Response<Answered>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.way.project() {
            WayProjection::Own { own } => {
                ready!(Pin::new(own).poll(cx)).map(|bytes| ReplyBody::whole(bytes, None))
            }
            WayProjection::Layered { layered } => ready!(layered.poll(cx))?,
        };
        response.headers_mut().entry(CORRELATION_ID).or_insert_with(|| this.correlation.clone());
        Poll::Ready(Ok(response))
    }
}

/// The way out: marks what must be sent once, and counts what came of it.
#[derive(Clone)]
pub(crate) struct Outward {
    pub(crate) upstream: Upstream<Sent>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Service<Request<Sent>> for Outward {
    type Response = Response<Body<Sent>>;
    type Error = Infallible;
    type Future = Counted;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.upstream.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Sent>) -> Counted {
        let extensions = request.extensions_mut();
        let asked_at = extensions.get::<Op>().map(|op| op.attempt().asked_at());
        let running = asked_at.is_some().then(|| self.metrics.running());
        if let Some(asked_at) = asked_at {
            // From the claim on, as the store counts: later, somebody may have been asked about it.
            let from = asked_at.unwrap_or_else(|| self.runtime.elapsed());
            let limit = extensions.get::<RunMax>().map_or(DEFAULTS.run_max, |RunMax(limit)| *limit);
            extensions.insert(Protected);
            extensions.insert(Deadline(from.saturating_add(limit)));
        }
        Counted { sending: self.upstream.call(request), metrics: self.metrics.clone(), _running: running }
    }
}

/// A request at the upstream.
pub(crate) struct Counted {
    sending: Boxed<Result<Response<Body<Sent>>, Infallible>>,
    metrics: Arc<Metrics>,
    _running: Option<Running>,
}

impl Future for Counted {
    type Output = Result<Response<Body<Sent>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Ok(response) = ready!(this.sending.as_mut().poll(cx));
        match response.extensions().get::<Fate>() {
            Some(Fate::NothingHappened) => this.metrics.upstream_failed(observe::Fate::NothingHappened),
            Some(Fate::Unknown(_)) => this.metrics.upstream_failed(observe::Fate::Unknown),
            None => {}
        }
        Poll::Ready(Ok(response))
    }
}
