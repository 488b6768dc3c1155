//! The provider behind the service under test: it counts what really went out, whatever the service says.
//!
//! Every request is answered with a small JSON document, or goes on to a real provider. A request counts
//! for a tag if the tag occurs anywhere in it.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use semel::Nonce;
use semel::runtime::Boxed;
use serde_json::json;
use tokio::net::TcpListener;

use super::setup::Effects;
use crate::gateway::fetch::{Fetched, Http};

/// Largest request read.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Most requests recorded; beyond it nothing is counted rather than counted wrong.
const REQUESTS_MAX: u32 = 1_000_000;
/// Most texts like tags in one request.
const TAGS_MAX: usize = 1000;
/// How long the real provider may take.
const FORWARD_MAX: Duration = Duration::from_secs(60);
/// `GET` this and a tag: how often it was seen. For scripts; not recorded.
pub(super) const COUNT_PATH: &str = "/.semel/count/";

/// A listening provider. Clones share what was recorded.
#[derive(Clone)]
pub(super) struct Provider {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    requests: u32,
    /// Texts that could be tags, and the requests they stood in.
    seen: HashMap<String, Vec<u32>>,
    overflowed: bool,
}

#[derive(Clone)]
struct Served {
    book: Arc<Mutex<Book>>,
    forward: Option<(Http, String)>,
}

impl Provider {
    /// Listens and answers in the background, for as long as the process lives. `forward` is the real
    /// provider's base URL.
    pub(super) async fn listen(address: SocketAddr, forward: Option<(Http, String)>) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the provider cannot listen on {address}: {error}");
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let book = Arc::<Mutex<Book>>::default();
        let served = Served { book: book.clone(), forward };
        let router = Router::new().fallback(answer).with_state(served);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, book })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests came, tagged or not.
    pub(super) fn requests(&self) -> u32 {
        lock(&self.book).requests
    }
}

impl Effects for Provider {
    fn count(&self, tag: &str) -> Boxed<Result<u64, String>> {
        let counted = lock(&self.book).count(tag);
        Box::pin(async move { counted })
    }

    fn shell(&self) -> Option<String> {
        Some(format!("curl -sS \"http://{}{COUNT_PATH}$tag\"", self.address))
    }
}

fn lock(book: &Mutex<Book>) -> std::sync::MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    fn enter(&mut self, texts: &[&[u8]]) {
        if self.requests >= REQUESTS_MAX {
            self.overflowed = true;
            return;
        }
        self.requests += 1;
        let mut tags = BTreeSet::new();
        for text in texts {
            like_tags(text, &mut tags);
        }
        self.overflowed |= tags.len() > TAGS_MAX;
        for tag in tags.into_iter().take(TAGS_MAX) {
            self.seen.entry(tag).or_default().push(self.requests);
        }
    }

    fn count(&self, tag: &str) -> Result<u64, String> {
        if self.overflowed {
            return Err("the provider got more than it can count; restart it".into());
        }
        // What surrounds a tag can look like more of it: `order-t-1` gives `order-t-1-refund` to its provider.
        let with = self.seen.iter().filter(|(text, _)| text.contains(tag));
        let requests: BTreeSet<u32> = with.flat_map(|(_, requests)| requests.iter().copied()).collect();
        Ok(requests.len() as u64)
    }
}

/// All that begins with `t-` and goes on as a tag does.
fn like_tags(text: &[u8], found: &mut BTreeSet<String>) {
    let mut at = 0;
    while let Some(next) = memchr::memmem::find(&text[at..], b"t-") {
        let start = at + next;
        let goes_on = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_lowercase() || *byte == b'-';
        let length = text[start..].iter().take_while(|byte| goes_on(byte)).count();
        if length > 2 && found.len() <= TAGS_MAX {
            found.insert(String::from_utf8_lossy(&text[start..start + length]).into_owned());
        }
        at = start + length;
    }
}

async fn answer(State(served): State<Served>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if let Some(tag) = head.uri.path().strip_prefix(COUNT_PATH) {
        return match lock(&served.book).count(tag) {
            Ok(count) => format!("{count}\n").into_response(),
            Err(said) => (StatusCode::SERVICE_UNAVAILABLE, said).into_response(),
        };
    }
    let Ok(body) = axum::body::to_bytes(body, BODY_BYTES_MAX).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large, or broke off\n").into_response();
    };
    {
        let target = head.uri.to_string();
        let mut texts = vec![target.as_bytes(), &body];
        texts.extend(head.headers.iter().map(|(_, value)| value.as_bytes()));
        texts.extend(head.headers.iter().map(|(name, _)| name.as_str().as_bytes()));
        lock(&served.book).enter(&texts);
    }
    match served.forward {
        Some((http, base)) => forward(&http, &base, head, body).await,
        None => axum::Json(json!({"ok": true, "id": Nonce::random().to_string()})).into_response(),
    }
}

async fn forward(http: &Http, base: &str, head: axum::http::request::Parts, body: Bytes) -> Response {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let Ok(uri) = format!("{}{target}", base.trim_end_matches('/')).parse::<Uri>() else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = uri;
    *request.headers_mut() = end_to_end(head.headers);
    match http.send(request, FORWARD_MAX).await {
        Ok(answer) => relayed(answer),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("the real provider: {error}\n")).into_response(),
    }
}

/// An answer as it goes on to another connection.
pub(super) fn relayed(answer: Fetched) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = end_to_end(answer.headers);
    response
}

/// Without what belongs to one connection.
pub(super) fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::HOST,
        header::PROXY_AUTHENTICATE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::EXPECT,
    ] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::client;

    async fn provider(forward: Option<(Http, String)>) -> Provider {
        Provider::listen("127.0.0.1:0".parse().unwrap(), forward).await.unwrap()
    }

    async fn send(provider: &Provider, path: &str, header: &str, body: &str) -> Fetched {
        let request = Request::post(format!("http://{}{path}", provider.address()))
            .header("x-reference", header)
            .body(Bytes::copy_from_slice(body.as_bytes()))
            .unwrap();
        client().unwrap().send(request, Duration::from_secs(20)).await.unwrap()
    }

    #[tokio::test]
    async fn a_request_counts_once_for_each_tag_in_it_wherever_it_stands() {
        let provider = provider(None).await;
        let answer = send(&provider, "/charge/t-a1?again=t-a1", "t-a1", "t-a1 and t-b2").await;
        assert_eq!(answer.status, StatusCode::OK);
        let first: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(first["ok"], true);
        let again = send(&provider, "/x", "for t-b2", "").await;
        assert_ne!(serde_json::from_slice::<serde_json::Value>(&again.body).unwrap()["id"], first["id"]);
        send(&provider, "/x?r=ordert-c3-refund", "-", "\u{fc}").await;
        for (tag, expected) in [("t-a1", 1), ("t-b2", 2), ("t-c3", 1), ("t-d4", 0)] {
            assert_eq!(provider.count(tag).await, Ok(expected), "{tag}");
        }
        assert_eq!(provider.requests(), 3);
    }

    #[tokio::test]
    async fn scripts_can_ask_and_asking_does_not_count() {
        let provider = provider(None).await;
        send(&provider, "/x", "t-a1", "").await;
        for _ in 0..2 {
            let counted = send(&provider, "/.semel/count/t-a1", "-", "").await;
            assert_eq!(counted.body, "1\n");
        }
        let expected = format!("curl -sS \"http://{}/.semel/count/$tag\"", provider.address());
        assert_eq!(provider.shell(), Some(expected));
    }

    #[tokio::test]
    async fn a_recording_provider_passes_on_to_the_real_one() {
        let real = provider(None).await;
        let http = client().unwrap();
        let between = provider(Some((http.clone(), format!("http://{}/base/", real.address())))).await;
        let answer = send(&between, "/charge?r=t-q", "h", "body").await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!((between.count("t-q").await, real.count("t-q").await), (Ok(1), Ok(1)));
        let lost = provider(Some((http, "http://127.0.0.1:1".into()))).await;
        assert_eq!(send(&lost, "/", "t-q", "").await.status, StatusCode::BAD_GATEWAY);
        // It may have happened: the request was on its way.
        assert_eq!(lost.count("t-q").await, Ok(1));
    }

    #[tokio::test]
    async fn a_taken_address_is_told() {
        let provider = provider(None).await;
        let said = Provider::listen(provider.address(), None).await.err().unwrap();
        assert!(said.contains(&provider.address().to_string()), "{said}");
    }

    #[test]
    fn an_overflow_is_told_rather_than_counted_wrong() {
        let mut book = Book::default();
        let many: String = (0..2000).map(|at| format!("t-{at} ")).collect();
        book.enter(&[many.as_bytes()]);
        assert!(book.count("t-1").is_err());
    }
}
