//! Several services behind one gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::rig::*;
use crate::config::resolved::Health;

#[tokio::test]
async fn targets_take_turns() {
    let (first, first_counts) = mirror().await;
    let (second, second_counts) = mirror().await;
    let proxy = Plan::to(&[first, second]).start().await;
    for _ in 0..10 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    assert_eq!((first_counts.requests(), second_counts.requests()), (5, 5));
}

#[tokio::test]
async fn the_least_busy_target_is_asked() {
    let (stage, slow) = Stage::open().await;
    let (quick, counts) = mirror().await;
    let proxy = Plan::to(&[slow, quick]).start().await;
    let mut waiting = proxy.client().await;
    waiting.say("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    for _ in 0..6 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    assert_eq!(counts.requests(), 6, "all of them, since the other is still at work");
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(waiting.answer().await.status, 200);
}

#[tokio::test]
async fn a_target_that_is_away_is_passed_over_even_by_protected_requests() {
    // G-16: a connection that was refused carried nothing.
    let (address, counts) = mirror().await;
    let proxy = Plan::to(&[nobody().await, address]).start().await;
    for _ in 0..6 {
        let answer =
            proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nX-Protected: 1\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!(counts.requests(), 6);
}

#[tokio::test]
async fn a_request_with_a_body_moves_on_whole() {
    let (address, _) = echo(false).await;
    let proxy = Plan::to(&[nobody().await, address]).start().await;
    for _ in 0..2 {
        let answer = proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello").await;
        assert_eq!(answer.text(), "hello");
    }
}

#[tokio::test]
async fn all_away_is_said_once_everybody_was_tried() {
    let proxy = Plan::to(&[nobody().await, nobody().await]).start().await;
    let answer = proxy.get("/").await;
    assert_eq!((answer.status, answer.header("x-fate")), (502, Some("nothing-happened")));
}

/// A service whose health can be switched, and which tells when it was asked for it.
async fn patient(
    ill: Arc<AtomicBool>,
) -> (std::net::SocketAddr, mpsc::UnboundedReceiver<()>, Arc<AtomicBool>) {
    let (asked, asks) = mpsc::unbounded_channel();
    let used = Arc::new(AtomicBool::new(false));
    let (uses, state) = (used.clone(), ill.clone());
    let (address, _) = service(false, move |request: Request<Incoming>| {
        let (asked, uses, state) = (asked.clone(), uses.clone(), state.clone());
        async move {
            let mut reply = reply("");
            match request.uri().path() {
                "/health" => {
                    let _ = asked.send(());
                    if state.load(Ordering::SeqCst) {
                        *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    }
                }
                _ => uses.store(true, Ordering::SeqCst),
            }
            reply
        }
    })
    .await;
    (address, asks, used)
}

async fn twice(asks: &mut mpsc::UnboundedReceiver<()>) {
    while asks.try_recv().is_ok() {}
    // When the next but one begins, the answer to the next has been heard.
    for _ in 0..3 {
        soon(asks.recv()).await.unwrap();
    }
}

#[tokio::test]
async fn health_checks_take_targets_out_and_bring_them_back() {
    let ill = Arc::new(AtomicBool::new(true));
    let (weak, mut asks, used) = patient(ill.clone()).await;
    let (strong, _, _) = patient(Arc::new(AtomicBool::new(false))).await;
    let mut plan = Plan::to(&[weak, strong]);
    plan.upstream.health = Some(Health {
        path: "/health".into(),
        every: Duration::from_millis(10),
        timeout: Duration::from_secs(5),
    });
    let proxy = plan.start().await;
    twice(&mut asks).await;
    for _ in 0..6 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    assert!(!used.load(Ordering::SeqCst), "an ill target gets nothing");
    assert!(proxy.upstream.is_available());
    ill.store(false, Ordering::SeqCst);
    twice(&mut asks).await;
    for _ in 0..2 {
        assert_eq!(proxy.get("/").await.status, 200);
    }
    assert!(used.load(Ordering::SeqCst), "a target that recovered is used again");
}

#[tokio::test]
async fn a_lonely_ill_target_is_still_tried() {
    let (weak, mut asks, _) = patient(Arc::new(AtomicBool::new(true))).await;
    let mut plan = Plan::to(&[weak]);
    plan.upstream.health = Some(Health {
        path: "/health".into(),
        every: Duration::from_millis(10),
        timeout: Duration::from_secs(5),
    });
    let proxy = plan.start().await;
    twice(&mut asks).await;
    assert!(!proxy.upstream.is_available());
    assert_eq!(proxy.get("/").await.status, 200, "the service knows better than its health page");
}
