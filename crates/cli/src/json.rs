//! Times and outcomes as Semel writes and reads them in JSON: in the admin API, in its logs, and in
//! the answers of services that are asked what became of an attempt.
//!
//! Reading is strict. A settled outcome is replayed to clients for as long as its operation is
//! remembered, so a name, a value or a status that cannot stand in an HTTP response is refused here,
//! not discovered then.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use semel::clock::Timestamp;
use semel::outcome::{Body, Line, Outcome};
use serde::Deserialize;
use serde_json::{Value, json};

/// Most header lines read; a sane answer has far fewer.
const LINES_MAX: usize = 1000;

/// Never replayed from a settlement: they speak of one connection, or to one client, or are Semel's own.
const DROPPED: &[&str] = &[
    "connection",
    "content-length",
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

/// RFC 3339 in UTC, to the microsecond.
pub(crate) fn time(at: Timestamp) -> String {
    const DAY: i64 = 86_400_000_000;
    let (days, micros) = (at.as_micros().div_euclid(DAY), at.as_micros().rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

/// Year, month and day of a number of days since 1970-01-01. Counted in years that begin in March,
/// so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let since = days + 719_468;
    let (era, day_of_era) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// Whether a body is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bodies {
    Shown,
    /// Only its size is.
    Hidden,
}

/// An outcome for people.
pub(crate) fn outcome(outcome: &Outcome, bodies: Bodies) -> Value {
    let lines = |lines: &[Line]| -> Vec<Value> {
        lines.iter().map(|line| json!([line.name, String::from_utf8_lossy(&line.value)])).collect()
    };
    let mut shown = json!({
        "status": outcome.status,
        "headers": lines(&outcome.headers),
        "redacted": outcome.redacted,
    });
    if !outcome.trailers.is_empty() {
        shown["trailers"] = lines(&outcome.trailers).into();
    }
    match &outcome.body {
        Body::NotKept { bytes } => shown["body_not_kept"] = json!({ "bytes": bytes }),
        Body::Kept(body) => {
            shown["body_bytes"] = body.len().into();
            match std::str::from_utf8(body) {
                _ if bodies == Bodies::Hidden => {}
                Ok(text) => shown["body"] = text.into(),
                Err(_) => shown["body_base64"] = STANDARD.encode(body).into(),
            }
        }
    }
    shown
}

/// A response as somebody wrote it down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Response {
    status: u16,
    #[serde(default)]
    headers: Headers,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    body_base64: Option<String>,
}

/// Header lines: pairs in their order, or an object where none repeats.
#[derive(Debug, Deserialize)]
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
            let dropped = DROPPED.contains(&parsed.as_str()) || parsed.as_str().starts_with("semel-");
            if !dropped {
                let value = bytes::Bytes::copy_from_slice(value.as_bytes());
                lines.push(Line { name: parsed.as_str().to_owned(), value });
            }
        }
        Ok(lines)
    }
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
    fn times_are_written_as_people_read_them() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199_000_001, "2024-02-29T23:59:59.000001Z"),
            (1_794_796_800_123_456, "2026-11-16T02:40:00.123456Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(time(Timestamp::from_micros(micros)), expected);
        }
    }

    #[test]
    fn a_written_response_becomes_an_outcome() {
        let pairs =
            read(r#"{"status":201,"headers":[["X-A","1"],["x-a","2"]],"body":"{\"id\":7}"}"#).unwrap();
        assert_eq!((pairs.status, pairs.body_bytes().unwrap().as_ref()), (201, br#"{"id":7}"#.as_slice()));
        let values: Vec<_> =
            pairs.headers.iter().map(|line| (line.name.as_str(), line.value.as_ref())).collect();
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
        assert_eq!(outcome.headers.iter().map(|line| line.name.as_str()).collect::<Vec<_>>(), ["etag"]);
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
    fn a_body_is_shown_only_when_asked_for() {
        let kept = Outcome::text("card 4242");
        assert!(!outcome(&kept, Bodies::Hidden).to_string().contains("4242"));
        assert_eq!(outcome(&kept, Bodies::Hidden)["body_bytes"], 9);
        assert_eq!(outcome(&kept, Bodies::Shown)["body"], "card 4242");
        let binary = Outcome::bytes("application/octet-stream", vec![0xff, 0]);
        assert_eq!(outcome(&binary, Bodies::Shown)["body_base64"], "/wA=");
    }
}
