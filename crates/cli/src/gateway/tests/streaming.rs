//! Bodies that take their time, never end, or break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

use super::rig::*;

const MEGABYTE: usize = 1024 * 1024;
/// What sockets and buffers on the way may hold. Far less than the body.
const IN_FLIGHT_MAX: usize = 40 * MEGABYTE;

#[tokio::test]
async fn events_arrive_one_by_one() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET /events HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service
        .say("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    client.head().await;
    for number in 0..3 {
        service.say(format!("9\r\ndata: {number}\n\n\r\n")).await;
        // The next one is not sent before this one has arrived.
        client.until(&format!("data: {number}\n\n")).await;
    }
    service.say("0\r\n\r\n").await;
    client.until("0\r\n\r\n").await;
    client.say("GET /again HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(service.head().await.starts_with("GET /again "), "the connection went back to the pool");
}

#[tokio::test]
async fn a_request_arrives_while_it_is_sent() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    let mut service = stage.next().await;
    service.until("\r\n\r\nabc").await;
    client.say("def").await;
    service.until("def").await;
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(client.answer().await.text(), "ok");
}

#[tokio::test]
async fn a_conversation_in_one_request_goes_both_ways_at_once() {
    let (address, _) = echo(false).await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    client.say("4\r\nping\r\n").await;
    client.until("ping").await;
    client.say("4\r\npong\r\n0\r\n\r\n").await;
    client.until("pong\r\n0\r\n\r\n").await;
}

#[tokio::test]
async fn the_body_waits_until_the_service_wants_it() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n").await;
    let mut service = stage.next().await;
    assert!(service.head().await.contains("expect: 100-continue\r\n"));
    service.say("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.say("data").await;
    assert_eq!(service.exactly(4).await, b"data");
    service.say("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 201);
}

#[tokio::test]
async fn a_service_can_refuse_before_the_body_is_sent() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service.say("HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 413, "and no 100 before it");
    assert!(client.is_closed().await, "whether the body still comes is not certain, so nothing else may");
}

#[tokio::test]
async fn a_big_request_is_not_kept_in_memory() {
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    let (address, _) = service(false, move |request: Request<Incoming>| {
        let gate = gate.clone();
        async move {
            gate.notified().await;
            let (mut body, mut count) = (request.into_body(), 0);
            while let Some(frame) = body.frame().await {
                count += frame.unwrap().data_ref().map_or(0, Bytes::len);
            }
            reply(count.to_string())
        }
    })
    .await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    let size = 64 * MEGABYTE;
    client.say(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n")).await;
    let part = vec![7; 64 * 1024];
    let mut sent = 0;
    // Nobody reads yet: the client is stopped by what the way can hold.
    while let Ok(written) =
        tokio::time::timeout(Duration::from_millis(500), client.stream().write(&part)).await
    {
        sent += written.unwrap();
        assert!(sent < IN_FLIGHT_MAX, "{sent} bytes were taken that nobody read");
    }
    go.notify_one();
    while sent < size {
        let step = part.len().min(size - sent);
        sent += soon(client.stream().write(&part[..step])).await.unwrap();
    }
    assert_eq!(client.answer().await.text(), size.to_string());
}

#[tokio::test]
async fn a_big_answer_is_not_kept_in_memory() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let (address, _) = service(false, move |_| {
        let count = count.clone();
        let parts = futures_util::stream::iter(0..64).map(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Frame::data(Bytes::from(vec![7; MEGABYTE])))
        });
        async move { Response::new(BodyExt::boxed_unsync(StreamBody::new(parts))) }
    })
    .await;
    use futures_util::StreamExt;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    client.head().await;
    // The client stops reading: soon the service stops making parts.
    let mut before = usize::MAX;
    while before != made.load(Ordering::SeqCst) {
        before = made.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before * MEGABYTE < IN_FLIGHT_MAX, "{before} MB were taken that nobody read");
    let mut total = 0;
    let mut part = vec![0; MEGABYTE];
    let mut tail = Vec::new();
    while !tail.ends_with(b"0\r\n\r\n") {
        let count = soon(client.stream().read(&mut part)).await.unwrap();
        assert!(count > 0, "cut after {total}");
        total += count;
        tail.extend_from_slice(&part[count.saturating_sub(8)..count]);
    }
    assert!(total >= 64 * MEGABYTE);
}

#[tokio::test]
async fn a_client_that_leaves_cuts_the_request_at_the_service() {
    let (ended, mut endings) = mpsc::unbounded_channel();
    let (address, _) = service(false, move |request: Request<Incoming>| {
        let ended = ended.clone();
        async move {
            let whole = request.into_body().collect().await;
            ended.send(whole.is_ok()).unwrap();
            reply("")
        }
    })
    .await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    drop(client);
    assert_eq!(soon(endings.recv()).await, Some(false), "half a body must not look whole");
}

#[tokio::test]
async fn an_answer_that_breaks_is_seen_to_break() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let heads =
        ["Content-Length: 100\r\n\r\n0123456789", "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n"];
    for head in heads {
        let mut client = proxy.client().await;
        client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut service = stage.next().await;
        service.head().await;
        service.say(format!("HTTP/1.1 200 OK\r\n{head}")).await;
        client.until("0123456789").await;
        drop(service);
        let rest = client.rest().await;
        assert!(!String::from_utf8_lossy(&rest).contains("0\r\n\r\n"), "it must not look whole: {rest:?}");
    }
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_is_whole() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service.say("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhel").await;
    client.until("hel").await;
    service.say("lo").await;
    drop(service);
    client.until("lo\r\n0\r\n\r\n").await;
    client.say("GET /next HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(stage.next().await.head().await.starts_with("GET /next "), "the client's connection goes on");
}

#[tokio::test]
async fn a_switched_protocol_is_tunnelled() {
    let (stage, address) = Stage::open().await;
    let mut proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client
        .say("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n")
        .await;
    let mut service = stage.next().await;
    let asked = service.head().await;
    assert!(asked.contains("upgrade: websocket\r\n") && asked.contains("connection: upgrade\r\n"), "{asked}");
    assert!(asked.contains("sec-websocket-key: k\r\n"), "{asked}");
    // The first bytes of the new protocol come with the answer.
    service
        .say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello\n")
        .await;
    let switched = client.head().await;
    assert!(
        switched.starts_with("HTTP/1.1 101 ") && switched.contains("upgrade: websocket\r\n"),
        "{switched}"
    );
    client.until("hello\n").await;
    let message = b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n\x00\xff";
    client.say(message).await;
    assert_eq!(service.exactly(message.len()).await, message);
    service.say("bye\n").await;
    client.until("bye\n").await;
    drop(service);
    assert!(client.is_closed().await);
    drop(client);
    proxy.stop();
    assert_eq!(proxy.ended().await, super::super::serve::Drained::Fully, "a tunnel gives its place back");
}

#[tokio::test]
async fn a_tunnel_may_be_silent() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.idle_timeout = Duration::from_millis(50);
    let time = ByHand::new();
    plan.runtime = time.clone();
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service
        .say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello\n")
        .await;
    client.until("hello\n").await;
    for _ in 0..10 {
        time.pass(Duration::from_secs(10)).await;
    }
    client.say("still there?\n").await;
    service.until("still there?\n").await;
    service.say("yes\n").await;
    client.until("yes\n").await;
}

#[tokio::test]
async fn a_refused_switch_is_a_plain_answer() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service.say("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").await;
    assert_eq!(client.answer().await.text(), "no");
    client.say("GET /next HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(service.head().await.starts_with("GET /next "), "both connections go on");
}

#[tokio::test]
async fn a_switch_that_nobody_asked_for_is_refused() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service.say("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("x-fate")), (502, Some("unknown")));
}
