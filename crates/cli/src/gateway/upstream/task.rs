//! A request as it will go upstream: without what belonged to the client's hop.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode, Uri, Version};
use hyper::upgrade::OnUpgrade;
use semel::Runtime;

use super::super::headers;
use super::super::serve::Held;
use super::super::trace::Trace;
use super::body::Payload;
use super::line::Line;
use super::outgoing::{Go, Outgoing};
use super::target::Address;

/// Marks a request whose effect must happen once: it takes only connections that are certainly alive,
/// and is never sent again after its first byte (G-21).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protected;

/// The moment, in the runtime's time, after which nobody waits for the answer any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(pub(crate) Duration);

/// A client that asked to leave HTTP.
pub(super) struct Switch {
    protocol: HeaderValue,
    pub(super) client: OnUpgrade,
    /// The client's place at the gateway, kept while the tunnel lives.
    pub(super) held: Option<Held>,
}

pub(super) struct Task<B> {
    /// `None` while it is out.
    request: Option<(Parts, Option<B>)>,
    path: PathAndQuery,
    pub(super) protected: bool,
    pub(super) deadline: Option<Duration>,
    pub(super) switch: Option<Switch>,
    expects_continue: bool,
    /// Of a request without a span of its own.
    trace: Option<Trace>,
    /// Held by the body that waits for the upstream's word.
    go: Option<Arc<Go>>,
    /// Whether a first copy of it was sent and lost.
    pub(super) was_lost: bool,
    /// Whether repeating it is the same as sending it once, by its method.
    repeatable: bool,
}

impl<B: Payload> Task<B> {
    pub(super) fn new(request: Request<B>) -> Self {
        let (mut parts, body) = request.into_parts();
        let protected = parts.extensions.remove::<Protected>().is_some();
        let deadline = parts.extensions.remove::<Deadline>().map(|Deadline(at)| at);
        let switch = switch(&mut parts);
        let trace = parts.extensions.remove::<Trace>();
        // What the gateway's own parts told each other ends here.
        parts.extensions.clear();
        headers::drop_hop_by_hop(&mut parts.headers);
        headers::keep_te_trailers(&mut parts.headers);
        let body = (!body.is_end_stream()).then_some(body);
        let length = body.as_ref().map_or(Some(0), |body| body.size_hint().exact());
        frame(&mut parts, length);
        let expects_continue = expects_continue(&mut parts, protected || body.is_none());
        let path = parts.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let harmless = match semel::mutant::on("effect-sent-again") {
            true => parts.method.is_idempotent(),
            false => parts.method.is_safe(),
        };
        let repeatable = harmless && !protected;
        let repeatable = repeatable || semel::mutant::on("protected-sent-again");
        Self {
            request: Some((parts, body)),
            path,
            protected,
            deadline,
            switch,
            expects_continue,
            trace,
            go: None,
            was_lost: false,
            repeatable,
        }
    }

    /// The request for an HTTP/1.1 connection to `address`.
    pub(super) fn take_http1(
        &mut self,
        address: &Address,
        line: Arc<Line>,
        runtime: &dyn Runtime,
    ) -> Option<Request<Outgoing<B>>> {
        let (mut parts, body) = self.request.take()?;
        parts.version = Version::HTTP_11;
        parts.uri = Uri::from(address.path(&self.path));
        let headers = &mut parts.headers;
        if !headers.contains_key(HOST) {
            headers.insert(HOST, address.host_header.clone());
        }
        if let Some(switch) = &self.switch {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, switch.protocol.clone());
        } else if headers.contains_key(TE) {
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        let mut request = outgoing(parts, body, line);
        if self.expects_continue {
            let go = request.body_mut().hold(runtime);
            self.go = Some(go.clone());
            hyper::ext::on_informational(&mut request, move |said| {
                if said.status() == StatusCode::CONTINUE {
                    go.say();
                }
            });
        }
        Some(request)
    }

    /// The request for an HTTP/2 connection to `address`.
    pub(super) fn take_http2(&mut self, address: &Address, line: Arc<Line>) -> Option<Request<Outgoing<B>>> {
        let (mut parts, body) = self.request.take()?;
        parts.version = Version::HTTP_2;
        let host = parts.headers.remove(HOST);
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(address.scheme());
        uri.authority = host
            .and_then(|host| host.to_str().ok()?.parse().ok())
            .or_else(|| Some(address.authority.clone()));
        uri.path_and_query = Some(address.path(&self.path));
        parts.uri = Uri::from_parts(uri).unwrap_or_else(|_| Uri::from_static("/"));
        parts.headers.remove(CONNECTION);
        parts.headers.remove(TRANSFER_ENCODING);
        // Hyper does not tell of interim answers here, and a stream can be refused at any time.
        parts.headers.remove(EXPECT);
        Some(outgoing(parts, body, line))
    }

    /// It came back without a byte sent.
    pub(super) fn put_back(&mut self, request: Request<Outgoing<B>>) {
        let (mut parts, body) = request.into_parts();
        // HTTP/2 has the host in the address.
        if let Some(authority) = parts.uri.authority().filter(|_| !parts.headers.contains_key(HOST))
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            parts.headers.insert(HOST, host);
        }
        self.request = Some((parts, body.into_inner()));
    }

    /// A copy to send once more if this one is lost on a used connection: only where the method asks for no
    /// effect, and there is no body that would be gone. A second DELETE may delete another thing.
    pub(super) fn spare(&self) -> Option<Parts> {
        match &self.request {
            Some((parts, None)) if self.repeatable && self.switch.is_none() => Some(parts.clone()),
            _ => None,
        }
    }

    /// The upstream has answered: a body it did not ask for stays where it is.
    pub(super) fn keep_unwanted_body(&self) {
        if let Some(go) = &self.go {
            go.refuse();
        }
    }

    /// It was lost, and is sent once more.
    pub(super) fn restore(&mut self, spare: Parts) {
        self.was_lost = true;
        self.request = Some((spare, None));
    }

    /// Does what may be logged, under the request's trace.
    pub(super) fn under_trace<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.trace {
            Some(trace) => trace.span().in_scope(work),
            None => work(),
        }
    }

    pub(super) fn is_here(&self) -> bool {
        self.request.is_some()
    }
}

fn outgoing<B: Payload>(parts: Parts, body: Option<B>, line: Arc<Line>) -> Request<Outgoing<B>> {
    let body = match body {
        Some(body) => Outgoing::new(body, line),
        None => Outgoing::empty(line),
    };
    Request::from_parts(parts, body)
}

fn switch(parts: &mut Parts) -> Option<Switch> {
    let held = parts.extensions.remove::<Held>();
    let client = parts.extensions.remove::<OnUpgrade>()?;
    let protocol = headers::upgrade(&parts.headers)?;
    (parts.version == Version::HTTP_11 && parts.method != Method::CONNECT).then_some(Switch {
        protocol,
        client,
        held,
    })
}

/// The framing is ours: whatever length the client named, the next hop hears the length of the body
/// that will be sent.
fn frame(parts: &mut Parts, length: Option<u64>) {
    let headers = &mut parts.headers;
    match length {
        None => {
            // Hyper leaves the body of a GET away unless told how it is framed.
            if !headers.contains_key(CONTENT_LENGTH) {
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        Some(length) => {
            let named = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
            if headers.contains_key(CONTENT_LENGTH) && named != Some(length) {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
        }
    }
}

/// Whether the body waits for the upstream's word. A body that is here already does not.
fn expects_continue(parts: &mut Parts, body_is_here: bool) -> bool {
    let expects =
        parts.headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if expects && body_is_here {
        parts.headers.remove(EXPECT);
    }
    expects && !body_is_here
}
