//! Any request and any answer, cut into any frames, through the layer. A retry runs nothing that happened,
//! nobody hears a Semel header, and what is replayed is what was answered. G-8, G-14, G-16, G-19, G-21
#![no_main]

use std::collections::VecDeque;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use libfuzzer_sys::arbitrary::{self, Unstructured};
use libfuzzer_sys::fuzz_target;
use semel::http::observer::{Decision, Kind, Observer};
use semel::http::{BoxError, ReplyBody, Route, SemelLayer, header, tenant};
use semel::runtime::Tokio;
use semel::{MemoryStore, Once, Policy};
use tower::{Layer, ServiceExt, service_fn};

/// Headers that mean something to the layer. What is beyond them is left to the values.
const NAMES: [&str; 14] = [
    "semel-hint",
    "semel-nonce",
    "semel-x",
    "content-type",
    "content-length",
    "content-encoding",
    "connection",
    "transfer-encoding",
    "trailer",
    "set-cookie",
    "idempotent-replayed",
    "idempotency-key",
    "digest",
    "x-a",
];

const VALUES: [&str; 14] = [
    "nothing-happened",
    "decided",
    "do-not-keep",
    "keep-longer=4294967295",
    "nothing-happened, decided",
    "application/problem+json",
    "application/json",
    "0",
    "7",
    "18446744073709551616",
    "gzip",
    "x-a, close",
    "text/plain",
    "",
];

const CODINGS: [&str; 7] = ["gzip", "deflate", "br", "gzip, deflate", "identity", "gzip, gzip, gzip", "zstd"];

const PROBLEM: &str = "{\"type\":\"urn:semel:problem:in-flight\",\"status\":409}";

const BODIES: [&str; 4] = ["{\"amount\":1}", PROBLEM, "a=1&b=2", ""];

fuzz_target!(|data: &[u8]| {
    // Input that ends early makes a shorter story.
    if let Ok(story) = Story::draw(&mut Unstructured::new(data)) {
        runtime(|runtime| runtime.block_on(story.tell()));
    }
});

/// Time is the runtime's own and jumps over every wait.
fn runtime(run: impl FnOnce(&tokio::runtime::Runtime)) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime with one thread");
    }
    RUNTIME.with(run);
}

/// One piece of a body.
#[derive(Clone, Debug)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    Cut,
}

#[derive(Clone, Debug, Default)]
struct Script(VecDeque<Piece>);

impl Body for Script {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front().map(|piece| match piece {
            Piece::Data(data) => Ok(Frame::data(data)),
            Piece::Trailers(trailers) => Ok(Frame::trailers(trailers)),
            Piece::Cut => Err("cut".into()),
        }))
    }
}

impl Script {
    fn draw(from: &mut Unstructured<'_>, whole: &[u8]) -> arbitrary::Result<Self> {
        let mut pieces = VecDeque::new();
        let mut rest = whole;
        while !rest.is_empty() && pieces.len() < 16 {
            let (now, later) = rest.split_at(from.int_in_range(0..=rest.len())?);
            pieces.push_back(Piece::Data(Bytes::copy_from_slice(now)));
            rest = later;
        }
        pieces.push_back(Piece::Data(Bytes::copy_from_slice(rest)));
        match from.int_in_range(0..=9)? {
            0 => pieces.push_back(Piece::Cut),
            1 | 2 => pieces.push_back(Piece::Trailers(draw_headers(from, None)?)),
            _ => {}
        }
        Ok(Self(pieces))
    }

    fn is_cut(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Cut))
    }
}

fn draw_headers(from: &mut Unstructured<'_>, nonce: Option<&HeaderValue>) -> arbitrary::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for _ in 0..from.int_in_range(0..=4)? {
        let name = HeaderName::from_static(from.choose(&NAMES)?);
        let value = match (nonce, from.int_in_range(0..=3)?) {
            (Some(nonce), 0) if name == header::NONCE => Ok(nonce.clone()),
            (_, 3) => HeaderValue::from_bytes(from.arbitrary::<&[u8]>()?),
            _ => HeaderValue::from_str(from.choose(&VALUES)?),
        };
        headers.extend(value.ok().map(|value| (name, value)));
    }
    // Most hints are believed, else none would ever be heard.
    if let Some(nonce) = nonce.filter(|_| headers.contains_key(header::HINT)) {
        headers.entry(header::NONCE).or_insert_with(|| nonce.clone());
    }
    Ok(headers)
}

fn draw_bytes(from: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    match from.int_in_range(0..=BODIES.len())? {
        0 => Ok(from.arbitrary::<&[u8]>()?.to_vec()),
        at => Ok(BODIES[at - 1].as_bytes().to_vec()),
    }
}

/// A request sent twice, and how it is answered.
#[derive(Debug)]
struct Story {
    key: HeaderValue,
    plain: Vec<u8>,
    coding: Option<&'static str>,
    gzipped: bool,
    announced: Option<usize>,
    sent: [Script; 2],
    request_bytes_max: usize,
    outcome_bytes_max: usize,
    status: StatusCode,
    fails: bool,
    answer: Vec<u8>,
    // The rest of the input says how the answers look.
    rest: Vec<u8>,
    said: Mutex<Said>,
}

/// What an answer says about its effect.
#[derive(Clone, Debug, Default)]
struct Said {
    /// Hints beside the nonce of the attempt, all in one.
    hint: String,
    /// It is another Semel's refusal.
    is_problem: bool,
}

impl Story {
    fn draw(from: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let plain = draw_bytes(from)?;
        let coding = if from.ratio(1, 3)? { Some(*from.choose(&CODINGS)?) } else { None };
        let gzipped = coding == Some("gzip") && from.ratio(3, 4)?;
        let body = if gzipped { gzip(&plain) } else { plain.clone() };
        let key = match from.ratio(1, 8)? {
            true => {
                HeaderValue::from_bytes(from.arbitrary()?).map_err(|_| arbitrary::Error::IncorrectFormat)?
            }
            false => HeaderValue::from_static("order-1042-payment"),
        };
        Ok(Self {
            key,
            coding,
            gzipped,
            announced: if from.ratio(1, 4)? { Some(from.int_in_range(0..=body.len() + 2)?) } else { None },
            sent: [Script::draw(from, &body)?, Script::draw(from, &body)?],
            request_bytes_max: *from.choose(&[8, 64, 4096])?,
            outcome_bytes_max: *from.choose(&[8, 64, 4096])?,
            status: StatusCode::from_u16(from.int_in_range(100..=999)?).expect("three digits"),
            fails: from.ratio(1, 16)?,
            answer: draw_bytes(from)?,
            rest: from.bytes(from.len())?.to_vec(),
            said: Mutex::default(),
            plain,
        })
    }

    async fn tell(self) {
        let seen = Arc::new(Seen::default());
        let runs = Arc::new(AtomicUsize::new(0));
        let story = Arc::new(self);
        let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
        let policy = Policy::builder()
            .request_bytes_max(story.request_bytes_max)
            .outcome_bytes_max(story.outcome_bytes_max)
            .build()
            .expect("small limits are no nonsense");
        let route = Route::builder("fuzz")
            .attempt_headers(true)
            .tenant(tenant::Nobody)
            .policy(policy)
            .build()
            .expect("a plain route");
        let (inner, counted) = (story.clone(), runs.clone());
        let service = service_fn(move |request: Request<semel::http::RequestBody<Script>>| {
            counted.fetch_add(1, Ordering::SeqCst);
            let story = inner.clone();
            async move { story.answer(request).await }
        });
        let service = SemelLayer::new(once, route).observer(seen.clone()).layer(service);

        let first =
            Got::read(service.clone().oneshot(story.request(0)).await.expect("the layer never fails")).await;
        let (kind, ran) = (seen.last(), runs.load(Ordering::SeqCst));
        story.check_first(&first, kind, ran);
        let second = Got::read(service.oneshot(story.request(1)).await.expect("the layer never fails")).await;
        let ran_again = runs.load(Ordering::SeqCst) > ran;
        story.check_second(&first, kind, ran > 0, &second, seen.last(), ran_again);
    }

    fn request(&self, at: usize) -> Request<Script> {
        let mut request = Request::new(self.sent[at].clone());
        *request.method_mut() = http::Method::POST;
        let headers = request.headers_mut();
        headers.insert(header::IDEMPOTENCY_KEY, self.key.clone());
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("semel-nonce", HeaderValue::from_static("forged"));
        if let Some(coding) = self.coding {
            headers.insert("content-encoding", HeaderValue::from_static(coding));
        }
        if let Some(announced) = self.announced {
            headers.insert("content-length", HeaderValue::from(announced));
        }
        request
    }

    async fn answer(
        &self,
        request: Request<semel::http::RequestBody<Script>>,
    ) -> Result<Response<Script>, BoxError> {
        let nonce = request.headers()[header::NONCE].clone();
        assert_ne!(nonce, "forged", "a client spoke for Semel");
        let body = request.into_body().collect().await.expect("the body was read before").to_bytes();
        assert_eq!(body, self.body(), "the service got another body");
        if self.fails {
            return Err("the service failed".into());
        }
        let from = &mut Unstructured::new(&self.rest);
        // Where the input ends the answer is plain.
        let headers = draw_headers(from, Some(&nonce)).unwrap_or_default();
        *self.said.lock().expect("nobody panics while it is held") = self.said(&headers, &nonce);
        let body = Script::draw(from, &self.answer).unwrap_or_default();
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    fn said(&self, headers: &HeaderMap, nonce: &HeaderValue) -> Said {
        let echoed = headers.get_all(header::NONCE).iter().eq([nonce]);
        let hints = headers.get_all(header::HINT).iter().filter(|_| echoed);
        let hint = hints.map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned()).collect();
        let is_problem = headers.get("content-type").is_some_and(|kind| kind == "application/problem+json")
            && !headers.contains_key("content-encoding")
            && self.answer == PROBLEM.as_bytes();
        Said { hint, is_problem }
    }

    fn body(&self) -> Vec<u8> {
        if self.gzipped { gzip(&self.plain) } else { self.plain.clone() }
    }

    fn check_first(&self, got: &Got, kind: Kind, runs: usize) {
        got.check(kind);
        assert!(runs <= 1, "one request ran {runs} times");
        let short = self.announced.is_some_and(|announced| announced > self.body().len());
        if self.sent[0].is_cut() || short || self.body().len() > self.request_bytes_max {
            assert_eq!(runs, 0, "half a request ran");
            assert!(matches!(kind, Kind::Refused(_)), "{kind:?}");
        }
        assert!(runs == 1 || matches!(kind, Kind::Refused(_)), "{kind:?} without a run");
        let Said { hint, is_problem } = self.said.lock().expect("nobody panics while it is held").clone();
        if kind == Kind::Released {
            let released = self.status == StatusCode::TOO_MANY_REQUESTS && !hint.contains("decided");
            assert!(released || hint.contains("nothing-happened"), "released by {} {hint:?}", self.status);
        }
        if kind == Kind::Fresh && hint.is_empty() {
            assert!(!is_problem, "another Semel's refusal is no outcome");
            let doubtful = matches!(self.status.as_u16(), 100..200 | 408 | 425 | 502..=504 | 520..=529);
            assert!(!doubtful, "{} is no outcome", self.status);
        }
    }

    fn check_second(&self, first: &Got, before: Kind, ran: bool, second: &Got, kind: Kind, ran_again: bool) {
        second.check(kind);
        assert!(!(ran && ran_again) || before == Kind::Released, "{before:?}, and it ran again");
        if kind == Kind::Replayed {
            assert_eq!(before, Kind::Fresh);
            assert_eq!((first.status, &first.body), (second.status, &second.body), "another answer");
        }
    }
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).expect("a Vec takes everything");
    encoder.finish().expect("a Vec takes everything")
}

#[derive(Default)]
struct Seen(Mutex<Option<Kind>>);

impl Observer for Seen {
    fn decided(&self, decision: &Decision<'_>) {
        *self.0.lock().expect("nobody panics while it is held") = Some(decision.kind);
    }
}

impl Seen {
    fn last(&self) -> Kind {
        self.0.lock().expect("nobody panics while it is held").take().expect("every request is decided")
    }
}

/// An answer, read to its end.
struct Got {
    status: StatusCode,
    headers: HeaderMap,
    trailers: HeaderMap,
    /// None: it broke off.
    body: Option<Bytes>,
}

impl Got {
    async fn read(response: Response<ReplyBody<Script>>) -> Self {
        let (head, body) = response.into_parts();
        let collected = body.collect().await.ok();
        let trailers = collected.as_ref().and_then(|body| body.trailers().cloned()).unwrap_or_default();
        let body = collected.map(|body| body.to_bytes());
        Self { status: head.status, headers: head.headers, trailers, body }
    }

    fn check(&self, kind: Kind) {
        let ours = self.headers.keys().chain(self.trailers.keys()).find(|name| header::is_ours(name));
        assert_eq!(ours, None, "the client hears {ours:?}");
        if let Kind::Refused(problem) = kind {
            let body = self.body.as_ref().expect("a problem is whole");
            let document: serde_json::Value = serde_json::from_slice(body).expect("a problem is JSON");
            assert_eq!(document["status"], self.status.as_u16());
            assert_eq!(document["type"], format!("urn:semel:problem:{}", problem.slug()));
        }
    }
}
