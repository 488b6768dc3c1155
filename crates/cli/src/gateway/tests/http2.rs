//! HTTP/2 on either side.

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

/// A service that speaks HTTP/2 frame by frame: answers the first DATA frame with `frames`.
async fn after_data(frames: &'static [u8]) -> std::net::SocketAddr {
    let (stage, address) = Stage::open().await;
    tokio::spawn(async move {
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
        service.say(frames).await;
        service.rest().await;
    });
    address
}

async fn fate_after(frames: &'static [u8]) -> String {
    let mut plan = Plan::to(&[after_data(frames).await]);
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
