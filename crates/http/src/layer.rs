//! The tower layer and its service.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use semel_core::operation::Invalid;
use semel_core::{Clock, Once, Scope, SystemClock, mutant};
use tower_layer::Layer;
use tower_service::Service;

use crate::entry::{self, Entry};
use crate::future::{Reply, Way};
use crate::keys::Keys;
use crate::observer::{Decision, Kind, Observer};
use crate::routes::Single;
use crate::{BoxError, ReplyBody, RequestBody, Route, Routes, keyed};

/// Unless [`SemelLayer::namespace`] says otherwise.
const NAMESPACE: &str = "default";

/// Protects the service inside: a request with a key runs once, and every retry gets its answer.
///
/// Apply it inside of what authenticates clients, so that its tenant source sees who they are, and
/// outside of what performs effects. Clones share everything.
#[derive(Clone)]
pub struct SemelLayer {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) once: Once,
    pub(crate) keys: Arc<Keys>,
    pub(crate) namespace: Box<str>,
    pub(crate) clock: Arc<dyn Clock>,
    routes: Arc<dyn Routes>,
    observer: Option<Arc<dyn Observer>>,
}

impl SemelLayer {
    /// One route for every request that comes by.
    pub fn new(once: Once, route: impl Into<Arc<Route>>) -> Self {
        Self::routed(once, Single(route.into()))
    }

    /// Looks the route of each request up. Give it a [`Switch`](crate::Switch) to exchange routes at run
    /// time.
    pub fn routed(once: Once, routes: impl Routes) -> Self {
        let shared = Shared {
            once,
            keys: Arc::default(),
            namespace: NAMESPACE.into(),
            clock: Arc::new(SystemClock),
            routes: Arc::new(routes),
            observer: None,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The deployment's name, part of every operation's identity. A gateway and a layer behind it that
    /// share a store need different ones.
    pub fn namespace(mut self, namespace: &str) -> Result<Self, Invalid> {
        Scope::shared(namespace, "route")?;
        Arc::make_mut(&mut self.shared).namespace = namespace.into();
        Ok(self)
    }

    /// Tells every decision to this.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        Arc::make_mut(&mut self.shared).observer = Some(observer);
        self
    }

    /// The clock that ages of keys are measured with; the machine's unless set.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        Arc::make_mut(&mut self.shared).clock = clock;
        self
    }

    /// What runs the operations: drain it on shutdown.
    pub fn once(&self) -> &Once {
        &self.shared.once
    }
}

impl Shared {
    pub(crate) fn decided(&self, decision: &Decision<'_>) {
        if mutant::on("decisions-untold") {
            return;
        }
        decision.log();
        if let Some(observer) = &self.observer {
            observer.decided(decision);
        }
    }

    fn at_once(&self, route: Option<&Route>, kind: Kind, status: Option<u16>) {
        let route = route.map(Route::label);
        self.decided(&Decision { route, kind, key: None, status, latency: Duration::ZERO });
    }
}

impl<S> Layer<S> for SemelLayer {
    type Service = Semel<S>;

    fn layer(&self, inner: S) -> Semel<S> {
        Semel { inner, shared: self.shared.clone() }
    }
}

/// A service under protection. See [`SemelLayer`].
#[derive(Clone)]
pub struct Semel<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, B, R> Service<Request<B>> for Semel<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ReplyBody<R>>;
    type Error = S::Error;
    type Future = Reply<S::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let way = match entry::sort(&mut head, &*self.shared.routes) {
            Entry::Pass(route) => {
                self.shared.at_once(route.as_deref(), Kind::Passed, None);
                let request = Request::from_parts(head, RequestBody::passed(body));
                Way::Passing { inner: self.inner.call(request) }
            }
            Entry::Refuse(route, problem) => {
                let status = problem.status().as_u16();
                self.shared.at_once(Some(&route), Kind::Refused(problem.kind()), Some(status));
                let response = problem.described_by(route.described_by()).into_reply();
                Way::Refused { response: Some(Box::new(response)) }
            }
            Entry::Keyed(route, key) => {
                // The clone that is ready goes with the request; the other one waits for its turn.
                let next = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, next);
                let request = Request::from_parts(head, body);
                let work = keyed::answer(self.shared.clone(), ready, request, route, key);
                Way::Keyed { work: Box::pin(work) }
            }
        };
        way.into()
    }
}
