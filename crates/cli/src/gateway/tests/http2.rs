//! HTTP/2 on either side.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::rig::*;

async fn client(address: std::net::SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(method: Method, path: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("http://shop.example{path}"))
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap()
}

#[tokio::test]
async fn http2_clients_reach_http1_services() {
    let (address, counts) = mirror().await;
    let proxy = proxy_to(address).await;
    let mut client = client(proxy.address).await;
    let answer = soon(client.send_request(request(Method::GET, "/x?y=1", ""))).await.unwrap();
    assert_eq!((answer.status(), answer.version()), (http::StatusCode::OK, Version::HTTP_2));
    let seen = String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert!(seen.starts_with("GET /x?y=1\n"), "{seen}");
    assert!(seen.contains("\nhost: shop.example\n"), "{seen}");
    assert_eq!(counts.requests(), 1);
}

#[tokio::test]
async fn http1_clients_reach_http2_services() {
    let (address, counts) = echo(true).await;
    let mut plan = Plan::to(&[address]);
    plan.upstream.http2 = true;
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    for _ in 0..3 {
        client
            .say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
            .await;
        assert_eq!(client.answer().await.text(), "hello");
    }
    assert_eq!((counts.connections(), counts.requests()), (1, 3));
}

#[tokio::test]
async fn both_sides_on_http2_carry_bodies_and_trailers() {
    let (address, _) = service(true, async |request: Request<Incoming>| {
        assert_eq!(request.uri().authority().unwrap(), "shop.example");
        assert_eq!(request.headers()["x-forwarded-host"], "shop.example");
        let whole = request.into_body().collect().await.unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let mut reply = reply("");
        *reply.body_mut() = Full::new(whole.to_bytes())
            .with_trailers(async move { Some(Ok(trailers)) })
            .map_err(|never| match never {})
            .boxed_unsync();
        reply
    })
    .await;
    let mut plan = Plan::to(&[address]);
    plan.upstream.http2 = true;
    let proxy = plan.start().await;
    let mut client = client(proxy.address).await;
    let answer = soon(client.send_request(request(Method::POST, "/call", "message"))).await.unwrap();
    let whole = soon(answer.into_body().collect()).await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(whole.to_bytes(), "message");
}

#[tokio::test]
async fn many_streams_share_a_connection_on_each_side() {
    let (address, counts) = echo(true).await;
    let mut plan = Plan::to(&[address]);
    plan.upstream.http2 = true;
    let proxy = plan.start().await;
    let client = client(proxy.address).await;
    let answers = (0..50).map(|_| {
        let mut client = client.clone();
        async move {
            let answer = client.send_request(request(Method::POST, "/", "abc")).await.unwrap();
            answer.into_body().collect().await.unwrap().to_bytes()
        }
    });
    let answers = soon(futures_util::future::join_all(answers)).await;
    assert!(answers.iter().all(|answer| answer == "abc"));
    assert_eq!((counts.connections(), counts.requests()), (1, 50));
}

/// A service that speaks HTTP/2 frame by frame: answers the first DATA frame with `frames`. Tells when somebody
/// asks once more.
async fn after_data(frames: impl Into<Vec<u8>>) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let (stage, address) = Stage::open().await;
    let (frames, asked) = (frames.into(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    tokio::spawn(async move {
        loop {
            let mut service = stage.next().await;
            service.exactly(24).await;
            service.say([0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
            loop {
                let head = service.exactly(9).await;
                let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                service.exactly(length).await;
                if head[3] == 0 {
                    break;
                }
            }
            count.fetch_add(1, Ordering::SeqCst);
            service.say(&frames).await;
            tokio::spawn(async move { service.rest().await });
        }
    });
    (address, asked)
}

async fn fate_after(frames: &'static [u8]) -> String {
    let mut plan = Plan::to(&[after_data(frames).await.0]);
    plan.upstream.http2 = true;
    let proxy = plan.start().await;
    let answer =
        proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nX-Protected: 1\r\nContent-Length: 4\r\n\r\ndata").await;
    assert_eq!(answer.status, 502);
    answer.header("x-fate").unwrap().to_owned()
}

#[tokio::test]
async fn a_refused_stream_did_not_happen() {
    // G-16: RST_STREAM on stream 1, REFUSED_STREAM.
    assert_eq!(fate_after(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7]).await, "nothing-happened");
}

#[tokio::test]
async fn a_stream_above_the_last_one_did_not_happen() {
    // G-16: GOAWAY with last stream 0, NO_ERROR.
    assert_eq!(fate_after(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await, "nothing-happened");
}

#[tokio::test]
async fn a_stream_that_was_looked_at_and_then_lost_is_unknown() {
    // G-16: GOAWAY with last stream 1 and an error, then RST_STREAM with INTERNAL_ERROR.
    let lost: &[u8] = &[
        0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, //
        0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2,
    ];
    assert_eq!(fate_after(lost).await, "unknown");
    // RST_STREAM with CANCEL.
    assert_eq!(fate_after(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8]).await, "unknown");
}

/// On stream 1: 200, and "half" of a body.
const HALF: &[u8] = &[
    0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88, //
    0, 0, 4, 0, 0, 0, 0, 0, 1, b'h', b'a', b'l', b'f',
];
/// An empty DATA frame with END_STREAM.
const END: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 0, 1];
/// RST_STREAM with NO_ERROR.
const RESET: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0];
/// GOAWAY below the stream, with NO_ERROR.
const GIVEN_UP: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[tokio::test]
async fn an_answer_whose_stream_is_reset_without_an_error_is_not_whole() {
    // G-16
    for broken_off in [RESET, GIVEN_UP] {
        // Where nothing is stored it breaks off for the client, too.
        let mut plan = Plan::to(&[after_data([HALF, broken_off].concat()).await.0]);
        plan.upstream.http2 = true;
        let proxy = plan.start().await;
        let mut client = proxy.client().await;
        let request = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndata";
        client.say(request).await;
        let heard = String::from_utf8(client.rest().await).unwrap();
        assert!(!heard.ends_with("\r\n0\r\n\r\n"), "{heard}");

        let (address, asked) = after_data([HALF, broken_off].concat()).await;
        let gateway = gateway_to(address, "upstream_http2 = true", "").await;
        let request = "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: order-1042-payment\r\n\
                       Content-Length: 4\r\n\r\ndata";
        for _ in 0..2 {
            let mut client = Raw::connect(gateway.address).await;
            client.say(request).await;
            let answer = client.answer().await;
            assert_eq!(answer.status, 409, "{}", answer.text());
            assert!(answer.text().contains("urn:semel:problem:outcome-unknown"), "{}", answer.text());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "what may have happened is not tried again");
    }
}

#[tokio::test]
async fn an_answer_that_is_whole_before_its_stream_is_reset_is_the_outcome() {
    // G-16: a service may end an upload that it does not need, once it has answered.
    let (address, asked) = after_data([HALF, END, RESET].concat()).await;
    let gateway = gateway_to(address, "upstream_http2 = true", "").await;
    for replayed in [None, Some("true")] {
        let mut client = Raw::connect(gateway.address).await;
        let head = "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: order-1042-payment\r\n\
                    Content-Length: 500000\r\n\r\n";
        client.say(head).await;
        client.say(vec![b'x'; 500_000]).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.text()), (200, "half"));
        assert_eq!(answer.header("idempotent-replayed"), replayed);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn nobody_there_is_the_same_over_http2() {
    // G-16
    let mut plan = Plan::to(&[nobody().await]);
    plan.upstream.http2 = true;
    let proxy = plan.start().await;
    let answer = proxy.get("/").await;
    assert_eq!((answer.status, answer.header("x-fate")), (502, Some("nothing-happened")));
}

#[tokio::test]
async fn protected_requests_take_a_new_http2_connection_when_the_old_one_is_too_quiet() {
    // G-21
    let (address, counts) = echo(true).await;
    let mut plan = Plan::to(&[address]);
    plan.upstream.http2 = true;
    plan.upstream.pool_idle_protected = std::time::Duration::ZERO;
    let proxy = plan.start().await;
    for _ in 0..3 {
        let answer =
            proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nX-Protected: 1\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(answer.text(), "ok");
    }
    assert_eq!(counts.connections(), 3);
}
