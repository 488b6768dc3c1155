//! Clients of HTTP/2 that shut their windows, those that only wait, and those that take a request back.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason, RecvStream};
use http::{Request, Response};
use tokio::net::TcpStream;

use super::rig::*;

/// A client that lets this much of each answer come before it has to say more.
async fn with_window(address: std::net::SocketAddr, bytes: u32) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) =
        h2::client::Builder::new().initial_window_size(bytes).handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn send(client: &mut SendRequest<Bytes>, request: Request<()>) -> Response<RecvStream> {
    *client = client.clone().ready().await.unwrap();
    let (answer, _) = client.send_request(request, true).unwrap();
    soon(answer).await.unwrap()
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://shop.example{path}")).body(()).unwrap()
}

/// Reads until the answer is whole (`None`) or its stream is reset.
async fn end(answer: Response<RecvStream>) -> Option<Reason> {
    let mut body = answer.into_body();
    loop {
        match soon(body.data()).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return error.reason(),
            None => return None,
        }
    }
}

#[tokio::test]
async fn a_window_that_stays_shut_ends_its_stream_and_no_other() {
    // Once with no window at all, once with one that a part of the answer fits into.
    for window in [0, 1] {
        let (address, _) = service(false, async |request| match request.uri().path() {
            "/large" => reply("x".repeat(300_000)),
            _ => reply(""),
        })
        .await;
        let mut plan = Plan::to(&[address]);
        plan.limits.idle_timeout = Duration::from_millis(200);
        let proxy = plan.start().await;
        let mut client = with_window(proxy.address, window).await;
        let held = send(&mut client, get("/large")).await;
        assert_eq!(held.status(), 200);
        assert_eq!(end(held).await, Some(Reason::CANCEL), "window {window}");
        assert_eq!(send(&mut client, get("/small")).await.status(), 200, "the connection goes on");
    }
}

#[tokio::test]
async fn a_keyed_answer_that_is_not_taken_is_let_go_and_can_be_had_again() {
    // G-17
    let (address, counts) = service(false, async |_| reply("x".repeat(300_000))).await;
    let gateway = gateway_to(address, "idle_timeout = \"200ms\"", "").await;
    let request = || {
        let request =
            Request::post("http://shop.example/pay").header("idempotency-key", "order-1042-payment");
        request.body(()).unwrap()
    };
    let mut client = with_window(gateway.address, 1).await;
    let held = send(&mut client, request()).await;
    assert_eq!(end(held).await, Some(Reason::CANCEL));
    let mut patient = with_window(gateway.address, 1000).await;
    let again = send(&mut patient, request()).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let (mut body, mut taken) = (again.into_body(), 0);
    while let Some(part) = soon(body.data()).await {
        let part = part.unwrap();
        taken += part.len();
        body.flow_control().release_capacity(part.len()).unwrap();
    }
    assert_eq!(taken, 300_000, "a small window is no fault, if it opens again");
    assert_eq!(counts.requests(), 1);
}

#[tokio::test]
async fn a_client_that_takes_a_little_now_and_then_keeps_its_stream() {
    // Far less than one piece within idle_timeout. One that stops after that loses its stream.
    let (address, _) = service(false, async |_| reply("x".repeat(300_000))).await;
    let mut plan = Plan::to(&[address]);
    plan.limits.idle_timeout = Duration::from_secs(20);
    let time = ByHand::new();
    plan.runtime = time.clone();
    let proxy = plan.start().await;
    let mut client = with_window(proxy.address, 10).await;
    let mut body = send(&mut client, get("/large")).await.into_body();
    for round in 0..5 {
        let part = soon(body.data()).await.unwrap();
        let part = part.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(part.len(), 10);
        // All but the last time: then the window stays shut.
        if round < 4 {
            // Told again only when the time is nearly over, and taken before it is.
            time.pass(Duration::from_secs(15)).await;
            body.flow_control().release_capacity(part.len()).unwrap();
        }
    }
    time.pass(Duration::from_secs(15)).await;
    assert!(futures_util::FutureExt::now_or_never(body.data()).is_none(), "its time is not over");
    // Whoever looks may do so before the clock has struck: once more.
    for _ in 0..2 {
        time.pass(Duration::from_secs(15)).await;
    }
    let error = soon(body.data()).await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::CANCEL));
}

#[tokio::test]
async fn a_service_that_says_nothing_for_long_loses_no_client() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.idle_timeout = Duration::from_millis(200);
    let time = ByHand::new();
    plan.runtime = time.clone();
    let proxy = plan.start().await;
    let mut client = with_window(proxy.address, 1000).await;
    let asked = tokio::spawn(async move {
        let answer = send(&mut client, get("/events")).await;
        (client, answer)
    });
    let mut service = stage.next().await;
    service.head().await;
    time.pass(Duration::from_secs(9)).await;
    service.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let (_client, answer) = soon(asked).await.unwrap();
    let mut events = answer.into_body();
    for _ in 0..3 {
        for _ in 0..20 {
            time.pass(Duration::from_secs(1)).await;
        }
        service.say("5\r\nevent\r\n").await;
        assert_eq!(soon(events.data()).await.unwrap().unwrap(), "event");
    }
    service.say("0\r\n\r\n").await;
    // Its end may come in an empty part of its own.
    let last = soon(events.data()).await.transpose().unwrap().unwrap_or_default();
    assert!(last.is_empty() && soon(events.data()).await.is_none(), "it comes to its own end");
}

/// A client that can ask whether what it said has arrived.
async fn with_ping(address: std::net::SocketAddr) -> (SendRequest<Bytes>, PingPong) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, mut connection) = h2::client::handshake(stream).await.unwrap();
    let ping = connection.ping_pong().unwrap();
    tokio::spawn(connection);
    (sender, ping)
}

fn pay() -> http::request::Builder {
    Request::post("http://shop.example/pay")
}

#[tokio::test]
async fn a_request_that_is_reset_without_an_error_does_not_end_upstream() {
    // G-21: hyper takes such a reset for the end of the body.
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let (mut client, _ping) = with_ping(proxy.address).await;
    let (_answer, mut body) = client.send_request(pay().body(()).unwrap(), false).unwrap();
    body.send_data(Bytes::from_static(b"half"), false).unwrap();
    let mut service = stage.next().await;
    service.until("\r\nhalf\r\n").await;
    body.send_reset(Reason::NO_ERROR);
    let rest = String::from_utf8(service.rest().await).unwrap();
    assert_eq!(rest, "", "the service heard that the request is whole");
}

#[tokio::test]
async fn a_keyed_request_that_is_reset_within_its_body_claims_nothing() {
    // G-8, G-21
    let (address, counts) = echo(false).await;
    let gateway = gateway_to(address, "", "").await;
    let (mut client, mut ping) = with_ping(gateway.address).await;
    let keyed = || pay().header("idempotency-key", "order-1042-payment").body(()).unwrap();
    let (_answer, mut body) = client.send_request(keyed(), false).unwrap();
    body.send_data(Bytes::from_static(b"half"), false).unwrap();
    soon(ping.ping(Ping::opaque())).await.unwrap();
    body.send_reset(Reason::NO_ERROR);
    soon(ping.ping(Ping::opaque())).await.unwrap();
    let (answer, mut body) = client.ready().await.unwrap().send_request(keyed(), false).unwrap();
    body.send_data(Bytes::from_static(b"half and half"), true).unwrap();
    let answer = soon(answer).await.unwrap();
    assert_eq!(answer.status(), 200, "half a request was taken for another one");
    assert_eq!(soon(answer.into_body().data()).await.unwrap().unwrap(), "half and half");
    assert_eq!(counts.requests(), 1);
}
