//! Requests that get no answer: what is said of them, and that they are not sent again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use semel::runtime::{Boxed, Tokio};
use tower_service::Service;

use super::super::net::{Listener, Network, RealNetwork, Stream};
use super::super::trace::Trace;
use super::super::upstream::Upstream;
use super::rig::*;
use crate::log::Page;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
const PROTECTED: &str = "POST / HTTP/1.1\r\nHost: a\r\nX-Protected: 1\r\nContent-Length: 0\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn verdict(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("x-fate"))
}

#[tokio::test]
async fn connections_are_used_again() {
    let (address, counts) = mirror().await;
    let proxy = proxy_to(address).await;
    for _ in 0..5 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    assert_eq!((counts.connections(), counts.requests()), (1, 5));
}

#[tokio::test]
async fn a_protected_request_takes_a_pooled_connection_only_if_it_is_young() {
    // G-21
    for (limit, connections) in [(Duration::from_secs(10), 1), (Duration::ZERO, 3)] {
        let (address, counts) = mirror().await;
        let mut plan = Plan::to(&[address]);
        plan.upstream.pool_idle_protected = limit;
        let proxy = plan.start().await;
        for _ in 0..3 {
            assert_eq!(proxy.ask(PROTECTED).await.status, 200);
        }
        assert_eq!(counts.connections(), connections, "with a limit of {limit:?}");
        assert_eq!(proxy.ask(GET).await.status, 200);
        assert_eq!(counts.connections(), connections, "an unprotected one takes what is there");
    }
}

/// Answers one request, then takes one more on the same connection and hangs up.
async fn hang_up_on_the_second(stage: &Stage) -> usize {
    let mut service = stage.next().await;
    service.head().await;
    service.say(OK).await;
    service.head().await;
    2
}

#[tokio::test]
async fn a_protected_request_is_never_sent_twice() {
    // G-21
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let service = tokio::spawn(async move {
        let mut count = hang_up_on_the_second(&stage).await;
        // Whatever comes after it on a new connection.
        let mut again = stage.next().await;
        let head = again.head().await;
        again.say(OK).await;
        count += 1;
        (count, head)
    });
    assert_eq!(proxy.ask(GET).await.status, 200);
    assert_eq!(verdict(&proxy.ask(PROTECTED).await), (502, Some("unknown")));
    assert_eq!(proxy.ask("GET /after HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
    let (count, head) = soon(service).await.unwrap();
    assert_eq!(count, 3);
    assert!(head.starts_with("GET /after "), "nothing came in between: {head}");
}

#[tokio::test]
async fn an_unprotected_request_for_an_effect_is_not_sent_twice_either() {
    // G-21
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let (stage, address) = Stage::open().await;
        let proxy = proxy_to(address).await;
        let service = tokio::spawn(async move {
            hang_up_on_the_second(&stage).await;
            let mut again = stage.next().await;
            let head = again.head().await;
            again.say(OK).await;
            head
        });
        assert_eq!(proxy.ask(GET).await.status, 200);
        let effect = POST.replace("POST", method);
        assert_eq!(verdict(&proxy.ask(&effect).await), (502, Some("unknown")), "{method}");
        assert_eq!(proxy.ask("GET /after HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
        assert!(soon(service).await.unwrap().starts_with("GET /after "), "{method}");
    }
}

#[tokio::test]
async fn a_get_that_met_a_dead_connection_is_sent_once_more() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let service = tokio::spawn(async move {
        hang_up_on_the_second(&stage).await;
        let mut again = stage.next().await;
        again.head().await;
        again.say(OK).await;
    });
    assert_eq!(proxy.ask(GET).await.status, 200);
    assert_eq!(proxy.ask(GET).await.text(), "ok");
    soon(service).await.unwrap();
}

#[tokio::test]
async fn a_get_is_sent_at_most_twice() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let service = tokio::spawn(async move {
        hang_up_on_the_second(&stage).await;
        stage.next().await.head().await;
        let mut after = stage.next().await;
        let head = after.head().await;
        after.say(OK).await;
        head
    });
    assert_eq!(proxy.ask(GET).await.status, 200);
    assert_eq!(verdict(&proxy.ask(GET).await), (502, Some("unknown")));
    assert_eq!(proxy.ask("GET /after HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
    assert!(soon(service).await.unwrap().starts_with("GET /after "));
}

#[tokio::test]
async fn a_get_that_was_lost_is_not_said_to_have_stayed_here() {
    // G-16
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let service = tokio::spawn(async move {
        let mut service = stage.next().await;
        service.head().await;
        service.say(OK).await;
        service.head().await;
        // Nobody listens any more when it is sent once more.
        drop(stage);
    });
    assert_eq!(proxy.ask(GET).await.status, 200);
    assert_eq!(verdict(&proxy.ask(GET).await), (502, Some("unknown")));
    soon(service).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_not_used() {
    // G-21
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let service = tokio::spawn(async move {
        for _ in 0..2 {
            let mut service = stage.next().await;
            service.head().await;
            service.say(OK).await;
        }
    });
    assert_eq!(proxy.ask(PROTECTED).await.text(), "ok");
    assert_eq!(
        proxy.ask(PROTECTED).await.text(),
        "ok",
        "on a new connection, for nothing was sent on the old"
    );
    soon(service).await.unwrap();
}

#[tokio::test]
async fn nobody_there_means_that_nothing_happened() {
    // G-16
    let proxy = proxy_to(nobody().await).await;
    let mut client = proxy.client().await;
    for request in [PROTECTED, GET] {
        client.say(request).await;
        let answer = client.answer().await;
        assert_eq!(verdict(&answer), (502, Some("nothing-happened")));
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert!(answer.text().contains("urn:semel:problem:upstream-unreachable"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_request_without_a_span_fails_under_its_trace() {
    // G-80
    let page = Page::default();
    let out = page.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || out.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let to = upstream_to(&[nobody().await]);
    let mut upstream = Upstream::new(&to, Arc::new(RealNetwork), Arc::new(Tokio::new())).unwrap();
    let trace = Trace::enter(&mut http::HeaderMap::new());
    let mut request = http::Request::new(Full::new(Bytes::new()));
    request.extensions_mut().insert(trace.clone());
    let answer = soon(upstream.call(request)).await.unwrap();
    assert_eq!(answer.status(), 502);
    let (shown, id) = (page.text(), trace.parent.trace_id());
    assert!(shown.contains("no answer from the upstream") && shown.contains(&id), "{shown}");
}

#[tokio::test]
async fn a_request_that_was_sent_and_not_answered_is_unknown() {
    // G-16
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    for answer in ["", "HTTP/1.1 2", "complete nonsense\r\n\r\n"] {
        let mut client = proxy.client().await;
        client.say(PROTECTED).await;
        let mut service = stage.next().await;
        service.head().await;
        service.say(answer).await;
        drop(service);
        assert_eq!(verdict(&client.answer().await), (502, Some("unknown")), "{answer:?}");
    }
}

#[tokio::test]
async fn half_a_request_is_unknown_too() {
    // G-16
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc").await;
    let mut service = stage.next().await;
    service.until("abc").await;
    drop(service);
    assert_eq!(verdict(&client.answer().await), (502, Some("unknown")));
}

#[tokio::test]
async fn silence_is_a_timeout_and_unknown() {
    // G-16
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.upstream.response_timeout = Duration::from_millis(100);
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say(PROTECTED).await;
    let mut service = stage.next().await;
    service.head().await;
    let answer = client.answer().await;
    assert_eq!(verdict(&answer), (504, Some("unknown")));
    assert!(answer.text().contains("urn:semel:problem:upstream-timeout"), "{}", answer.text());
    assert!(service.is_closed().await, "nobody waits for it any more");
    client.say(GET).await;
    let mut service = stage.next().await;
    service.head().await;
    service.say(OK).await;
    assert_eq!(client.answer().await.text(), "ok", "the client's connection goes on");
}

#[tokio::test]
async fn a_client_that_sends_slowly_is_not_the_service_being_slow() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.upstream.response_timeout = Duration::from_millis(100);
    let time = ByHand::new();
    plan.runtime = time.clone();
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    let mut service = stage.next().await;
    service.until("abc").await;
    // Many times the limit, of the client's own making.
    for _ in 0..20 {
        time.pass(Duration::from_millis(50)).await;
    }
    client.say("def").await;
    service.until("def").await;
    // From here on it is the service's time.
    for _ in 0..20 {
        time.pass(Duration::from_millis(50)).await;
    }
    assert_eq!(verdict(&client.answer().await), (504, Some("unknown")));
}

#[tokio::test]
async fn a_deadline_ends_the_wait() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nX-Deadline-Ms: 50\r\nContent-Length: 0\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    assert_eq!(verdict(&client.answer().await), (504, Some("unknown")));
}

/// A network on which nobody ever answers.
struct Void;

impl Network for Void {
    fn connect(&self, _: &str, _: u16) -> Boxed<io::Result<Stream>> {
        Box::pin(std::future::pending())
    }

    fn bind(&self, _: SocketAddr) -> Boxed<io::Result<Box<dyn Listener>>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_connection_that_takes_too_long_is_given_up_and_nothing_happened() {
    // G-16
    let mut plan = Plan::to(&[nobody().await]);
    plan.upstream.connect_timeout = Duration::from_millis(50);
    plan.network = Arc::new(Void);
    let proxy = plan.start().await;
    assert_eq!(verdict(&proxy.ask(PROTECTED).await), (502, Some("nothing-happened")));
}

/// Connects, but takes no byte and then says that the other side is gone.
struct Deaf;

struct DeafStream(u8);

impl tokio::io::AsyncRead for DeafStream {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        self.0 += 1;
        if self.0 < 4 {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for DeafStream {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        _: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

impl Network for Deaf {
    fn connect(&self, _: &str, _: u16) -> Boxed<io::Result<Stream>> {
        Box::pin(async { Ok(Stream::Other(Box::new(DeafStream(0)))) })
    }

    fn bind(&self, _: SocketAddr) -> Boxed<io::Result<Box<dyn Listener>>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_request_of_which_no_byte_was_taken_did_not_happen() {
    // G-16: hyper has taken the request and speaks of a broken message; the line knows better.
    let mut plan = Plan::to(&[nobody().await]);
    plan.network = Arc::new(Deaf);
    let proxy = plan.start().await;
    assert_eq!(verdict(&proxy.ask(PROTECTED).await), (502, Some("nothing-happened")));
}

#[tokio::test]
async fn who_is_answered_early_may_finish_sending_before_the_connection_closes() {
    let (stage, address) = Stage::open().await;
    let proxy = Plan::to(&[address]).start().await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\nbegin").await;
    let mut service = stage.next().await;
    service.head().await;
    service.say("HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text()), (413, "big"));
    assert!(client.is_closed().await, "nothing more is said");
    // Closed for good, the second part would meet a reset.
    for part in [1_000_000, 2_999_995] {
        soon(client.say(vec![b'x'; part])).await;
    }
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc").await;
    let mut service = stage.next().await;
    service.until("abc").await;
    service.say("HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text()), (413, "big"));
}
