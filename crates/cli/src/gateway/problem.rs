//! Problems that the network side answers by itself. What they are called is the library's business; how
//! they get onto a connection is ours.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http_body_util::Full;
use semel::http::Problem;
use semel::http::problem::Kind;

/// When a client that was turned away may come back.
const PLACE_AFTER: Duration = Duration::from_secs(1);

/// `detail` is for the client: it names no addresses behind the gateway.
pub(crate) fn response(kind: Kind, detail: &str) -> Response<Full<Bytes>> {
    let mut problem = Problem::new(kind).detail(detail);
    if kind == Kind::TooManyConnections {
        problem = problem.retry_after(PLACE_AFTER);
    }
    let mut response = problem.into_response();
    let length = HeaderValue::from(response.body().len());
    response.headers_mut().insert(CONTENT_LENGTH, length);
    response.map(Full::new)
}

/// The same as bytes of HTTP/1.1, for connections that hyper does not answer. They close after it.
pub(crate) fn raw(kind: Kind, detail: &str) -> String {
    let (head, body) = response(kind, detail).into_parts();
    let mut text = format!("HTTP/1.1 {}\r\nconnection: close\r\n", head.status);
    for (name, value) in &head.headers {
        write!(text, "{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes()))
            .expect("a String takes everything");
    }
    let document = body.into_inner().unwrap_or_default();
    text + "\r\n" + &String::from_utf8_lossy(&document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_problem_is_a_response_with_its_length_and_its_advice() {
        // G-22
        let raw = raw(Kind::TooManyConnections, "All \"places\" are taken.");
        let (head, body) = raw.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
        for line in ["connection: close", "retry-after: 1", &format!("content-length: {}", body.len())] {
            assert!(head.lines().any(|has| has == line), "{line} is missing in {head}");
        }
        let document: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(document["title"], Kind::TooManyConnections.title());
        assert_eq!(document["detail"], "All \"places\" are taken.");
    }
}
