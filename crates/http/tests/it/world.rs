//! A service under the layer, a store that can misbehave, and bodies that do as they are told.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use semel_core::runtime::Tokio;
use semel_core::{MemoryStore, Once};
use semel_http::observer::{Decision, Kind, Observer};
use semel_http::{BoxError, ReplyBody, RequestBody, Route, SemelLayer};
use semel_testkit::{Fault, FaultyStore, ManualClock, Verb};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

pub(crate) type App = BoxCloneSyncService<Request<Script>, Response<ReplyBody<Script>>, Infallible>;

/// A body that plays frames, and may break off.
pub(crate) struct Script {
    frames: VecDeque<Result<Frame<Bytes>, BoxError>>,
    length: Option<u64>,
    stalls: bool,
    pub(crate) polls: Arc<AtomicUsize>,
}

impl Script {
    pub(crate) fn frames(frames: impl IntoIterator<Item = Result<Frame<Bytes>, BoxError>>) -> Self {
        Self { frames: frames.into_iter().collect(), length: None, stalls: false, polls: Arc::default() }
    }

    pub(crate) fn chunks<const N: usize>(chunks: [&'static str; N]) -> Self {
        Self::frames(chunks.map(|chunk| Ok(Frame::data(chunk.into()))))
    }

    pub(crate) fn cut(sent: &'static str, error: impl Into<BoxError>) -> Self {
        Self::frames([Ok(Frame::data(sent.into())), Err(error.into())])
    }

    /// Sends this much, and then neither more nor an end.
    pub(crate) fn stalled(sent: &'static str) -> Self {
        Self { stalls: true, ..Self::chunks([sent]) }
    }
}

impl<T: Into<Bytes>> From<T> for Script {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        let length = Some(bytes.len() as u64);
        Self { frames: [Ok(Frame::data(bytes))].into(), length, stalls: false, polls: Arc::default() }
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        match self.frames.pop_front() {
            None if self.stalls => Poll::Pending,
            frame => Poll::Ready(frame),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

/// Route, kind, key and status of a decision.
pub(crate) type Told = (Option<String>, Kind, Option<String>, Option<u16>);

/// Keeps every decision it hears of.
#[derive(Default)]
pub(crate) struct Seen(Mutex<Vec<Told>>);

impl Observer for Seen {
    fn decided(&self, decision: &Decision<'_>) {
        let key = decision.key.map(|key| key.as_str().to_owned());
        let route = decision.route.map(str::to_owned);
        self.0.lock().unwrap().push((route, decision.kind, key, decision.status));
    }
}

impl Seen {
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().map(|(_, kind, ..)| kind.label()).collect()
    }

    pub(crate) fn last(&self) -> Told {
        self.0.lock().unwrap().last().cloned().expect("something was decided")
    }
}

pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) once: Once,
    pub(crate) effects: Arc<AtomicUsize>,
    pub(crate) seen: Arc<Seen>,
}

impl World {
    pub(crate) fn new() -> Self {
        crate::log::listen();
        let clock = ManualClock::in_tokio_time();
        let memory = Arc::new(MemoryStore::with_clock(clock.clone()));
        let store = FaultyStore::new(memory, |_| Fault::None);
        let once = Once::new(store.clone(), Arc::new(Tokio::new()));
        Self { clock, store, once, effects: Arc::default(), seen: Arc::default() }
    }

    pub(crate) fn layer(&self, route: impl Into<Arc<Route>>) -> SemelLayer {
        SemelLayer::new(self.once.clone(), route).observer(self.seen.clone()).clock(self.clock.clone())
    }

    /// The handler under a layer with this route; its calls are counted.
    pub(crate) fn app<F, Answered>(&self, route: Route, handler: F) -> App
    where
        F: Fn(Request<RequestBody<Script>>) -> Answered + Clone + Send + Sync + 'static,
        Answered: Future<Output = Response<Script>> + Send + 'static,
    {
        self.under(&self.layer(route), handler)
    }

    fn under<F, Answered>(&self, layer: &SemelLayer, handler: F) -> App
    where
        F: Fn(Request<RequestBody<Script>>) -> Answered + Clone + Send + Sync + 'static,
        Answered: Future<Output = Response<Script>> + Send + 'static,
    {
        let effects = self.effects.clone();
        let service = service_fn(move |request| {
            effects.fetch_add(1, Ordering::SeqCst);
            let answered = handler(request);
            async move { Ok::<_, Infallible>(answered.await) }
        });
        BoxCloneSyncService::new(layer.layer(service))
    }

    /// A handler that answers 201 with the number of the call.
    pub(crate) fn counting(&self, route: Route) -> App {
        self.counting_under(&self.layer(route))
    }

    pub(crate) fn counting_under(&self, layer: &SemelLayer) -> App {
        let effects = self.effects.clone();
        self.under(layer, move |_| {
            let answer = format!("effect {}", effects.load(Ordering::SeqCst));
            async move { respond(201, answer) }
        })
    }

    pub(crate) fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }

    /// Calls of the store of any kind.
    pub(crate) fn store_calls(&self) -> u64 {
        let verbs = [Verb::Claim, Verb::Renew, Verb::Complete, Verb::Release, Verb::MarkUnknown, Verb::Other];
        verbs.into_iter().map(|verb| self.store.calls(verb)).sum()
    }
}

pub(crate) fn respond(status: u16, body: impl Into<Script>) -> Response<Script> {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A POST with a key.
pub(crate) fn post(key: &str, body: impl Into<Script>) -> Request<Script> {
    Request::post("/charges?eu=1")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(body.into())
        .unwrap()
}

/// A route whose clients are all one.
pub(crate) fn open_route() -> semel_http::route::Builder {
    Route::builder("charge").tenant(semel_http::tenant::Nobody).attempt_headers(true)
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Result<Bytes, String>,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Got {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(self.body.as_ref().unwrap()).unwrap()
    }

    pub(crate) fn replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    /// The end of the problem's type.
    pub(crate) fn problem(&self) -> String {
        let document: serde_json::Value = serde_json::from_slice(self.body.as_ref().unwrap()).unwrap();
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(document["status"], self.status);
        document["type"].as_str().unwrap().strip_prefix("urn:semel:problem:").unwrap().to_owned()
    }

    pub(crate) fn document(&self) -> serde_json::Value {
        serde_json::from_slice(self.body.as_ref().unwrap()).unwrap()
    }
}

pub(crate) async fn send(app: &App, request: Request<Script>) -> Got {
    read(app.clone().oneshot(request).await.unwrap()).await
}

pub(crate) async fn read(response: Response<ReplyBody<Script>>) -> Got {
    let (head, body) = response.into_parts();
    let (body, trailers) = match body.collect().await {
        Ok(collected) => {
            let trailers = collected.trailers().cloned();
            (Ok(collected.to_bytes()), trailers)
        }
        Err(error) => (Err(error.to_string()), None),
    };
    Got { status: head.status.as_u16(), headers: head.headers, body, trailers }
}
