//! A response as somebody wrote it down: an operator who settles an operation, or a service that is asked
//! what became of an attempt.
//!
//! Reading is strict. A settled outcome is replayed to clients for as long as its operation is
//! remembered, so a name, a value or a status that cannot stand in an HTTP response is refused here,
//! not discovered then.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use semel::http::header;
use semel::outcome::{Body, Line, Outcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most header lines read; a sane answer has far fewer.
const LINES_MAX: usize = 1000;

/// Never replayed from a settlement: they speak of one connection, or to one client.
const FOREIGN: &[&str] = &[
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "set-cookie2",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Status, headers and body of a response.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Response {
    pub(crate) status: u16,
    #[serde(default)]
    headers: Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// Header lines: pairs in their order, or an object where none repeats.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Headers {
    Pairs(Vec<(String, String)>),
    Object(serde_json::Map<String, Value>),
}

impl Default for Headers {
    fn default() -> Self {
        Self::Pairs(Vec::new())
    }
}

/// A written response that cannot be an outcome.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("status {0} is not one of a final response (200 to 599)")]
    Status(u16),
    #[error("header name {0:?} is not valid")]
    HeaderName(String),
    #[error("the value of header {0:?} is not valid; it must be a string that HTTP can carry")]
    HeaderValue(String),
    #[error("more than {LINES_MAX} header lines")]
    TooManyHeaders,
    #[error("`body` and `body_base64` are both given; give one")]
    TwoBodies,
    #[error("`body_base64` is not base64")]
    Base64,
    #[error("a response with status {0} has no body")]
    BodyNotAllowed(u16),
}

impl Response {
    /// Of its pieces. A body that is no text is written as base64.
    pub(crate) fn new(status: u16, headers: Vec<(String, String)>, body: Vec<u8>) -> Self {
        let (body, body_base64) = match String::from_utf8(body) {
            Ok(text) => (Some(text), None),
            Err(binary) => (None, Some(STANDARD.encode(binary.as_bytes()))),
        };
        Self { status, headers: Headers::Pairs(headers), body, body_base64 }
    }

    /// The outcome it tells of.
    pub(crate) fn into_outcome(self) -> Result<Outcome, Unusable> {
        if !(200..600).contains(&self.status) {
            return Err(Unusable::Status(self.status));
        }
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => return Err(Unusable::TwoBodies),
            (Some(text), None) => text.into_bytes(),
            (None, Some(encoded)) => STANDARD.decode(encoded).map_err(|_| Unusable::Base64)?,
            (None, None) => Vec::new(),
        };
        if matches!(self.status, 204 | 205 | 304) && !body.is_empty() {
            return Err(Unusable::BodyNotAllowed(self.status));
        }
        let headers = self.headers.into_lines()?;
        Ok(Outcome { status: self.status, headers, body: Body::Kept(body.into()), ..Outcome::default() })
    }
}

impl Headers {
    fn into_lines(self) -> Result<Vec<Line>, Unusable> {
        let pairs = match self {
            Self::Pairs(pairs) => pairs,
            Self::Object(object) => object.into_iter().map(pair).collect::<Result<_, _>>()?,
        };
        if pairs.len() > LINES_MAX {
            return Err(Unusable::TooManyHeaders);
        }
        let mut lines = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
                return Err(Unusable::HeaderName(name));
            };
            let Ok(value) = HeaderValue::from_str(&value) else { return Err(Unusable::HeaderValue(name)) };
            if !is_foreign(&parsed) {
                let value = bytes::Bytes::copy_from_slice(value.as_bytes());
                lines.push(Line { name: Line::name_of(parsed.as_str()), value });
            }
        }
        Ok(lines)
    }
}

fn is_foreign(name: &HeaderName) -> bool {
    FOREIGN.contains(&name.as_str()) || header::is_ours(name)
}

/// Reads `name: value`. What would be left out is refused: whoever typed it meant it.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written `name: value`")?;
    let value = value.trim();
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("{name:?} is not the name of a header"))?;
    if HeaderValue::from_str(value).is_err() {
        return Err(format!("the value of {parsed} has a control character"));
    }
    if is_foreign(&parsed) {
        return Err(format!(
            "{parsed} belongs to one connection, one client or Semel, not to a stored answer; leave it out"
        ));
    }
    Ok((parsed.as_str().to_owned(), value.to_owned()))
}

fn pair((name, value): (String, Value)) -> Result<(String, String), Unusable> {
    match value {
        Value::String(value) => Ok((name, value)),
        _ => Err(Unusable::HeaderValue(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(written: &str) -> Result<Outcome, Unusable> {
        serde_json::from_str::<Response>(written).expect("the shape is right").into_outcome()
    }

    #[test]
    fn a_written_response_becomes_an_outcome() {
        let pairs =
            read(r#"{"status":201,"headers":[["X-A","1"],["x-a","2"]],"body":"{\"id\":7}"}"#).unwrap();
        assert_eq!((pairs.status, pairs.body_bytes().unwrap().as_ref()), (201, br#"{"id":7}"#.as_slice()));
        let values: Vec<_> = pairs.headers.iter().map(|line| (&*line.name, line.value.as_ref())).collect();
        assert_eq!(values, [("x-a", b"1".as_slice()), ("x-a", b"2".as_slice())]);
        let object =
            read(r#"{"status":200,"headers":{"content-type":"text/plain"},"body_base64":"/wA="}"#).unwrap();
        assert_eq!(object.body_bytes().unwrap().as_ref(), [0xff, 0]);
        assert_eq!(object.header("content-type").unwrap().as_ref(), b"text/plain");
    }

    #[test]
    fn what_belongs_to_one_connection_or_one_client_is_left_out() {
        let lines = r#"[["Transfer-Encoding","chunked"],["Content-Length","9"],["Set-Cookie","a=b"],["Semel-Hint","decided"],["etag","x"]]"#;
        let outcome = read(&format!(r#"{{"status":200,"headers":{lines}}}"#)).unwrap();
        assert_eq!(outcome.headers.iter().map(|line| &*line.name).collect::<Vec<_>>(), ["etag"]);
    }

    #[test]
    fn what_http_cannot_carry_is_refused_by_name() {
        for (written, expected) in [
            (r#"{"status":99}"#, Unusable::Status(99)),
            (r#"{"status":100}"#, Unusable::Status(100)),
            (r#"{"status":200,"headers":{"a b":"c"}}"#, Unusable::HeaderName("a b".into())),
            (r#"{"status":200,"headers":{"a":"b\r\nc: d"}}"#, Unusable::HeaderValue("a".into())),
            (r#"{"status":200,"headers":{"a":1}}"#, Unusable::HeaderValue("a".into())),
            (r#"{"status":200,"body":"","body_base64":""}"#, Unusable::TwoBodies),
            (r#"{"status":200,"body_base64":"?"}"#, Unusable::Base64),
            (r#"{"status":204,"body":"x"}"#, Unusable::BodyNotAllowed(204)),
        ] {
            assert_eq!(read(written), Err(expected), "{written}");
        }
    }

    #[test]
    fn a_header_is_a_name_and_a_value_that_http_can_carry() {
        assert_eq!(header("Location: /charges/7"), Ok(("location".into(), "/charges/7".into())));
        assert_eq!(header("x-empty:"), Ok(("x-empty".into(), String::new())));
        for bad in ["no colon", ": x", "a b: c", "a: b\r\nc: d", "Content-Length: 9", "Semel-Hint: decided"] {
            assert!(header(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_response_of_pieces_is_read_as_it_was_written() {
        for body in [vec![0xff, 0], b"{}".to_vec(), Vec::new()] {
            let response = Response::new(200, vec![("etag".into(), "x".into())], body.clone());
            let json = serde_json::to_string(&response).unwrap();
            assert_eq!(json.contains("body_base64"), body == [0xff, 0], "{json}");
            let outcome = response.into_outcome().unwrap();
            assert_eq!(outcome.body_bytes().unwrap().as_ref(), body);
            assert_eq!(read(&json), Ok(outcome));
        }
    }
}
