//! A POST per message. The service that takes it tells copies apart by `Idempotency-Key`, which is the id.
//!
//! No redirects: a message must not travel further than the address somebody wrote.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use semel_core::outbox::{Facts, Term};
use semel_core::{Clock, SystemClock};
use serde_json::Value;

use super::{About, Address, Answer, Batch, Dedup, Line, Opened, Parcel, Receipt, Sink, Trouble, in_order};

/// Requests on their way at once, per lane.
const WIDTH: usize = 32;
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Most that is read of an answer: only problems are looked at.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Most of an answer that is repeated to people.
const SAID_CHARS_MAX: usize = 300;
/// What stands for the topic in an address; without it, the topic is one more part of the path.
const TOPIC: &str = "{topic}";
/// Headers that belong to the connection or to this sink. A message that has one is refused.
const NOT_FOR_MESSAGES: [&str; 11] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
];

type Connector = hyper_rustls::HttpsConnector<HttpConnector>;

/// A service that takes messages.
#[derive(Clone)]
pub struct HttpSink {
    client: Client<Connector, Full<Bytes>>,
    before: String,
    after: String,
    authorization: Option<HeaderValue>,
}

impl HttpSink {
    /// `http://HOST/PATH` or `https://…`, with `{topic}` where the topic goes, or at the end without.
    pub fn new(address: &Address) -> Result<Self, Trouble> {
        let unusable = |why: String| Trouble::Unusable(why);
        let query = address.whole().split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
        let base = format!("{}://{}{}", address.scheme, address.hosts, address.path);
        let (before, after) = match base.split_once(TOPIC) {
            Some((before, after)) => (before.to_owned(), format!("{after}{query}")),
            None => (format!("{}/", base.trim_end_matches('/')), query),
        };
        format!("{before}topic{after}")
            .parse::<Uri>()
            .map_err(|error| unusable(format!("the sink's address is no URL: {error}")))?;
        let authorization = address.user.as_ref().map(|(user, password)| {
            let pair = format!("{user}:{}", password.as_deref().unwrap_or_default());
            let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair)))
                .expect("base64 is visible ASCII");
            value.set_sensitive(true);
            value
        });
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_MAX));
        connector.set_nodelay(true);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| unusable(format!("the certificates of this machine cannot be read: {error}")))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, before, after, authorization })
    }

    fn request(&self, parcel: &Parcel) -> Result<Request<Full<Bytes>>, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in parcel.headers.iter() {
            if NOT_FOR_MESSAGES.contains(&&**name) {
                return Err(format!(
                    "its header `{name}` cannot be sent over HTTP: it belongs to the request"
                ));
            }
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
            headers
                .append(name, HeaderValue::from_bytes(value.as_bytes()).map_err(|error| error.to_string())?);
        }
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).map_err(|error| error.to_string());
        headers.insert(CONTENT_TYPE, value(&parcel.content_type)?);
        headers.insert("idempotency-key", value(&parcel.id.to_string())?);
        headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        let uri = format!("{}{}{}", self.before, parcel.topic, self.after);
        let mut request = Request::new(Full::new(parcel.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() =
            uri.parse().map_err(|_| "its topic makes no URL of the sink's address".to_owned())?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn send(&self, parcel: &Parcel) -> Receipt {
        let request = match self.request(parcel) {
            Ok(request) => request,
            Err(why) => return Receipt::Refused(why),
        };
        let failed = |reason: String| Receipt::Failed { reason, after: None };
        let exchange = async {
            let answer = match self.client.request(request).await {
                Ok(answer) => answer,
                Err(error) if error.is_connect() => {
                    return Receipt::Down(format!("no connection: {}", causes(&error)));
                }
                Err(error) => return failed(format!("no answer: {}", causes(&error))),
            };
            let (head, body) = answer.into_parts();
            // Read to its end, so that the connection can be used again.
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            receipt(head.status, &head.headers, &body)
        };
        match tokio::time::timeout(ANSWER_MAX, exchange).await {
            Ok(receipt) => receipt,
            Err(_) => failed(format!("no answer within {ANSWER_MAX:?}")),
        }
    }
}

impl Sink for HttpSink {
    fn about(&self) -> About {
        About { name: "http", dedup: Dedup::Receiver, attribute_prefix: "ce-" }
    }

    fn open(&self, _outbox: &Facts, _term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        Box::pin(async { Ok(Opened { line: Box::new(self.clone()), landed: None }) })
    }
}

impl Line for HttpSink {
    fn is_atomic(&self) -> bool {
        false
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        let sink: &HttpSink = self;
        Box::pin(in_order(batch.parcels, WIDTH, move |parcel| sink.send(parcel)))
    }
}

/// What an answer means.
fn receipt(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Receipt {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let reason = || format!("{status}{}", said(&problem, body));
    let in_flight = || problem["type"].as_str().is_some_and(|kind| kind.ends_with(":in-flight"));
    match status {
        status if status.is_success() => Receipt::Landed,
        // Nobody's message is wrong if we are not let in.
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => Receipt::Down(reason()),
        StatusCode::FORBIDDEN
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS => Receipt::Failed { reason: reason(), after: asked_wait(headers) },
        StatusCode::CONFLICT if in_flight() => {
            Receipt::Failed { reason: reason(), after: asked_wait(headers) }
        }
        status if status.is_server_error() => {
            Receipt::Failed { reason: reason(), after: asked_wait(headers) }
        }
        status if status.is_redirection() => {
            Receipt::Refused(format!("{status}: redirects are not followed; write the address it leads to"))
        }
        _ => Receipt::Refused(reason()),
    }
}

/// `Retry-After`: seconds, or a date.
fn asked_wait(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    let now = Duration::from_micros(SystemClock.now().as_micros().unsigned_abs());
    Some(at.saturating_sub(now))
}

/// What the service says about it, for people.
fn said(problem: &Value, body: &[u8]) -> String {
    let parts: Vec<&str> = ["title", "detail"].iter().filter_map(|part| problem[part].as_str()).collect();
    let text = match parts.is_empty() {
        true => std::str::from_utf8(body).unwrap_or_default().trim().to_owned(),
        false => parts.join(": "),
    };
    let plain: String = text.chars().filter(|c| !c.is_control()).take(SAID_CHARS_MAX).collect();
    if plain.is_empty() { plain } else { format!(": {plain}") }
}

/// An error and what caused it, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, headers: &[(&'static str, &str)], body: &str) -> Receipt {
        let pairs = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        receipt(StatusCode::from_u16(status).unwrap(), &pairs.collect(), body.as_bytes())
    }

    #[test]
    fn what_an_answer_means_is_told_by_its_status() {
        for status in [200, 201, 202, 204] {
            assert_eq!(told(status, &[], ""), Receipt::Landed);
        }
        for status in [403, 408, 425, 429, 500, 502, 503, 504] {
            assert!(matches!(told(status, &[], ""), Receipt::Failed { after: None, .. }), "{status}");
        }
        for status in [301, 308, 400, 404, 405, 409, 410, 413, 422] {
            assert!(matches!(told(status, &[], ""), Receipt::Refused(_)), "{status}");
        }
        assert!(matches!(told(401, &[], ""), Receipt::Down(_)), "wrong credentials kill no message");
        let busy = r#"{"type": "urn:semel:problem:in-flight", "title": "worked on"}"#;
        assert!(matches!(told(409, &[], busy), Receipt::Failed { .. }));
        let reused = r#"{"type": "urn:semel:problem:key-reused", "title": "another request"}"#;
        assert_eq!(told(409, &[], reused), Receipt::Refused("409 Conflict: another request".into()));
    }

    #[test]
    fn a_service_that_says_when_to_come_again_is_believed() {
        let after = |value: &str| match told(429, &[("retry-after", value)], "") {
            Receipt::Failed { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert!(after("Wed, 21 Oct 2065 07:28:00 GMT").unwrap() > Duration::from_secs(86_400));
        assert_eq!(after("soon"), None);
    }

    #[test]
    fn the_topic_goes_where_the_address_says() {
        let parcel = |sink: &HttpSink| {
            let message = semel_core::Message::new("orders.paid".parse().unwrap(), "{}");
            let facts = Facts { engine: "memory", store_id: [0; 16], lanes: 1 };
            let term = Term { lane: semel_core::outbox::Lane(0), epoch: 1 };
            let stamp = crate::sinks::Stamp::new(&facts, term, crate::sinks::Format::Plain, "ce-", None);
            let entry =
                semel_core::outbox::Entry { sequence: 1, message: message.into(), tries: 0, behind: false };
            sink.request(&stamp.parcel(&entry)).unwrap()
        };
        for (address, url) in [
            ("http://h:1", "http://h:1/orders.paid"),
            ("http://h/in/", "http://h/in/orders.paid"),
            ("http://h/t/{topic}/in?a=1", "http://h/t/orders.paid/in?a=1"),
            ("http://u:p@h/", "http://h/orders.paid"),
        ] {
            let sink = HttpSink::new(&Address::parse(address).unwrap()).unwrap();
            let request = parcel(&sink);
            assert_eq!(request.uri().to_string(), url);
            assert_eq!(request.headers().contains_key(AUTHORIZATION), address.contains('@'));
        }
    }
}
