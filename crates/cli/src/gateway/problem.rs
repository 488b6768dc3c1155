//! What the network side answers by itself: RFC 9457 problems with a stable type.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;

/// A problem this side of the gateway can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    UpstreamUnreachable,
    UpstreamTimeout,
    RequestSlow,
    TooManyConnections,
    /// A request that could be read in two ways, or in none.
    RequestMalformed,
    MethodRefused,
}

impl Problem {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Problem::UpstreamUnreachable => StatusCode::BAD_GATEWAY,
            Problem::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Problem::RequestSlow => StatusCode::REQUEST_TIMEOUT,
            Problem::TooManyConnections => StatusCode::SERVICE_UNAVAILABLE,
            Problem::RequestMalformed => StatusCode::BAD_REQUEST,
            Problem::MethodRefused => StatusCode::METHOD_NOT_ALLOWED,
        }
    }

    fn slug(self) -> &'static str {
        match self {
            Problem::UpstreamUnreachable => "upstream-unreachable",
            Problem::UpstreamTimeout => "upstream-timeout",
            Problem::RequestSlow => "request-slow",
            Problem::TooManyConnections => "too-many-connections",
            Problem::RequestMalformed => "request-malformed",
            Problem::MethodRefused => "method-refused",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Problem::UpstreamUnreachable => "The service behind this gateway gave no proper answer.",
            Problem::UpstreamTimeout => "The service behind this gateway did not answer in time.",
            Problem::RequestSlow => "The request came too slowly.",
            Problem::TooManyConnections => "This gateway has as many connections as it may have. Try again.",
            Problem::RequestMalformed => "The request cannot be read, or can be read in two ways.",
            Problem::MethodRefused => "This gateway does not take this method.",
        }
    }

    /// The document. `detail` is for the client: it names no addresses behind the gateway.
    pub(crate) fn document(self, detail: &str) -> String {
        let mut escaped = String::with_capacity(detail.len());
        for character in detail.chars() {
            match character {
                '"' | '\\' => escaped.extend(['\\', character]),
                control if control.is_control() => escaped.push(' '),
                plain => escaped.push(plain),
            }
        }
        format!(
            r#"{{"type":"urn:semel:problem:{}","title":"{}","status":{},"detail":"{escaped}"}}"#,
            self.slug(),
            self.title(),
            self.status().as_u16()
        )
    }

    pub(crate) fn response(self, detail: &str) -> Response<Full<Bytes>> {
        let document = self.document(detail);
        let length = HeaderValue::from(document.len());
        let mut response = Response::new(Full::new(Bytes::from(document)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CONTENT_LENGTH, length);
        response
    }

    /// The same as bytes of HTTP/1.1, for connections that hyper does not answer. They close after it.
    pub(crate) fn raw(self, detail: &str) -> String {
        let document = self.document(detail);
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{document}",
            self.status(),
            document.len()
        )
    }
}
