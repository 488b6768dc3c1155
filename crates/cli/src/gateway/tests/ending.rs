//! How it stops: what has begun is brought to its end, nothing new is begun.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::super::crew::Crew;
use super::super::serve::Drained;
use super::rig::*;

#[tokio::test]
async fn requests_in_flight_are_answered_and_the_connection_closes() {
    // G-17
    let (stage, address) = Stage::open().await;
    let mut proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    let mut idle = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    proxy.stop();
    assert!(idle.is_closed().await, "who waits for nothing is let go");
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let answer = client.answer().await;
    assert_eq!(answer.text(), "ok");
    assert_eq!(answer.header("connection"), Some("close"), "the client hears that it is the last one");
    assert!(client.is_closed().await);
    let place = proxy.address;
    assert_eq!(proxy.ended().await, Drained::Fully);
    assert!(TcpStream::connect(place).await.is_err(), "nobody is accepted any more");
}

#[tokio::test]
async fn a_crew_finishes_what_it_has_begun() {
    // G-17
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.crew = Some(Arc::new(Crew::gather().unwrap()));
    let mut proxy = plan.start().await;
    let (mut client, mut idle) = (proxy.client().await, proxy.client().await);
    for client in [&mut client, &mut idle] {
        client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut service = stage.next().await;
        service.head().await;
        service.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert_eq!(client.answer().await.text(), "ok");
        drop(service);
    }
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    proxy.stop();
    assert!(idle.is_closed().await, "who waits for nothing is let go");
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let answer = client.answer().await;
    assert_eq!((answer.text(), answer.header("connection")), ("ok", Some("close")));
    assert!(client.is_closed().await);
    assert_eq!(proxy.ended().await, Drained::Fully);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_cut() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.drain = Duration::from_millis(100);
    let mut proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    proxy.stop();
    assert_eq!(proxy.ended().await, Drained::Cut(1));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn http2_clients_are_told_to_go_away_after_their_answers() {
    // G-17
    let (stage, address) = Stage::open().await;
    let mut proxy = proxy_to(address).await;
    let stream = TcpStream::connect(proxy.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let ended = tokio::spawn(connection);
    let request =
        http::Request::builder().uri("http://a/").body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
    let answer = tokio::spawn(sender.send_request(request));
    let mut service = stage.next().await;
    service.head().await;
    proxy.stop();
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(soon(answer).await.unwrap().unwrap().status(), 200);
    assert_eq!(proxy.ended().await, Drained::Fully);
    soon(ended).await.unwrap().unwrap();
}
