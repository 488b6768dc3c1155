//! The first and the last to touch a request: what a client may not say is taken out here.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, HOST, HeaderMap, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use semel::Runtime;
use semel::http::Fate;
use semel::http::problem::Kind;
use tower_service::Service;

use super::super::{headers, problem};
use super::body::{ClientBody, EdgeBody, Slow};
use super::link::{Flight, Link};
use super::stream::{Taken, Turn};

/// Who sent a request, as the socket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The edge of one connection, around a service that all connections share.
pub(super) struct Edge<S> {
    pub(super) service: S,
    pub(super) link: Arc<Link>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) body_timeout: Duration,
}

impl<S> Edge<S> {
    /// The request as the service may see it, or why it may not.
    fn admit(&self, request: Request<Incoming>) -> Result<(Request<ClientBody>, Option<Slow>), Refused> {
        if self.link.next_is_refused() {
            return Err(Refused::new(Kind::RequestMalformed, "The length of the body is given in two ways."));
        }
        if request.method() == Method::CONNECT {
            return Err(Refused::new(Kind::MethodRefused, "This is not a forward proxy."));
        }
        let (mut parts, incoming) = request.into_parts();
        address(&mut parts)?;
        leave_hop(&mut parts.headers, parts.version);
        headers::strip_claims(&mut parts.headers, self.link.is_trusted);
        let proto = if self.link.is_secure { "https" } else { "http" };
        headers::tell_client(&mut parts.headers, &self.link.forwarded_for, proto);
        parts.extensions.insert(Peer(self.link.peer));
        if let Some(certificate) = &self.link.certificate {
            parts.extensions.insert(certificate.clone());
        }
        if parts.headers.contains_key(UPGRADE) {
            parts.extensions.insert(self.link.place.clone());
        }
        let is_stream = parts.version == Version::HTTP_2;
        let (body, slow) = ClientBody::new(incoming, is_stream, &self.runtime, self.body_timeout);
        Ok((Request::from_parts(parts, body), slow))
    }
}

/// A request that goes no further, and the connection with it.
struct Refused {
    problem: Kind,
    detail: &'static str,
}

impl Refused {
    fn new(problem: Kind, detail: &'static str) -> Self {
        Self { problem, detail }
    }

    fn response<B>(&self) -> Response<EdgeBody<B>> {
        let mut response = problem::response(self.problem, self.detail).map(|body| EdgeBody::Own { body });
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if self.problem == Kind::MethodRefused {
            let methods = HeaderValue::from_static("GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE");
            response.headers_mut().insert(ALLOW, methods);
        }
        response
    }
}

/// Takes out what was for this hop, here already: a client must not be able to name, in `Connection`, the
/// headers that the gateway will add. A wish to switch protocols is kept.
fn leave_hop(headers: &mut HeaderMap, version: Version) {
    let protocol = (version == Version::HTTP_11).then(|| headers::upgrade(headers)).flatten();
    headers::drop_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// Brings the host into its header and the path alone into the address, whatever form they came in.
fn address(parts: &mut http::request::Parts) -> Result<(), Refused> {
    let malformed = |detail| Err(Refused::new(Kind::RequestMalformed, detail));
    if hosts(&parts.headers) > 1 {
        return malformed("There is more than one Host header.");
    }
    if let Some(authority) = parts.uri.authority() {
        if authority.as_str().contains('@') {
            return malformed("The address carries a user name.");
        }
        let Ok(host) = HeaderValue::from_str(authority.as_str()) else {
            return malformed("The host cannot be read.");
        };
        parts.headers.insert(HOST, host);
        parts.uri = match parts.uri.path_and_query() {
            Some(path) => Uri::from(path.clone()),
            None => Uri::from_static("/"),
        };
        return Ok(());
    }
    match parts.headers.get(HOST) {
        None if parts.version == Version::HTTP_11 => malformed("There is no Host header."),
        Some(host) if !is_host(host.as_bytes()) => malformed("The host cannot be read."),
        _ => Ok(()),
    }
}

fn hosts(headers: &HeaderMap) -> usize {
    headers.get_all(HOST).iter().take(2).count()
}

/// Characters that stand in host names, addresses and ports. Checked loosely: it must not be able to
/// mean something else further on.
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]%~!$&'()*+;=".contains(byte))
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Edge<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>> + Clone,
    B: Body<Data = Bytes>,
{
    type Response = Response<EdgeBody<B>>;
    type Error = S::Error;
    type Future = Answering<S, B>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let flight = Flight::begin(&self.link);
        let is_stream = request.version() == Version::HTTP_2;
        match self.admit(request) {
            Ok((request, slow)) => Answering {
                state: State::Waiting { service: self.service.clone(), request: Some(request) },
                slow,
                flight: Some(flight),
                is_stream,
            },
            Err(refused) => Answering {
                state: State::Refused { response: Some(refused.response()) },
                slow: None,
                flight: Some(flight),
                is_stream,
            },
        }
    }
}

pin_project! {
    /// A request on its way through the service.
    pub(super) struct Answering<S, B>
    where
        S: Service<Request<ClientBody>>,
    {
        #[pin]
        state: State<S, B>,
        slow: Option<Slow>,
        flight: Option<Flight>,
        // Whether it is answered on a stream of HTTP/2.
        is_stream: bool,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B>
    where
        S: Service<Request<ClientBody>>,
    {
        Refused { response: Option<Response<EdgeBody<B>>> },
        Waiting { service: S, request: Option<Request<ClientBody>> },
        Running { #[pin] answer: S::Future },
    }
}

impl<S, B> Future for Answering<S, B>
where
    S: Service<Request<ClientBody>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<EdgeBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let answer = match this.state.as_mut().project() {
                StateProjection::Refused { response } => {
                    Turn::Client.say();
                    return Poll::Ready(Ok(response.take().expect("polled after its end")));
                }
                StateProjection::Waiting { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    service.call(request.take().expect("a request is taken once"))
                }
                StateProjection::Running { answer } => {
                    let response = ready!(answer.poll(cx))?;
                    let flight = this.flight.take().expect("polled after its end");
                    Turn::Client.say();
                    return Poll::Ready(Ok(finish(response, flight, this.slow.as_ref(), *this.is_stream)));
                }
            };
            this.state.set(State::Running { answer });
        }
    }
}

fn finish<B>(
    mut response: Response<B>,
    flight: Flight,
    slow: Option<&Slow>,
    is_stream: bool,
) -> Response<EdgeBody<B>> {
    // What the service makes of a body that stopped coming is told to the client as what it is. An
    // answer of the upstream that came in spite of it stays.
    if slow.is_some_and(Slow::is_set) {
        let detail = match response.extensions().get::<Fate>() {
            Some(Fate::Unknown(_)) => Some("The body stopped coming. What came before had been passed on."),
            Some(Fate::NothingHappened) => Some("The body stopped coming."),
            None if response.status() == StatusCode::BAD_REQUEST => Some("The body stopped coming."),
            None => None,
        };
        if let Some(detail) = detail {
            return Refused::new(Kind::RequestSlow, detail).response();
        }
    }
    headers::strip_ours(response.headers_mut());
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        flight.link().tunnel();
    }
    let taken = is_stream.then(|| Taken::of_this_stream(flight.link()));
    response.map(|body| EdgeBody::answer(body, flight, taken))
}
