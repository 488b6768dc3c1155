//! More requests with keys than may be under way.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::rig::*;

fn pay(key: &str) -> String {
    format!("POST /pay HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nIdempotency-Key: {key}\r\n\r\n{{}}")
}

#[tokio::test]
async fn what_clients_leave_behind_fills_the_gateway_and_no_more() {
    // G-17, G-19, G-80
    let (gate, came) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (inside, rings) = (gate.clone(), came.clone());
    let (address, counts) = service(false, move |_| {
        let (gate, came) = (inside.clone(), rings.clone());
        async move {
            came.add_permits(1);
            gate.acquire().await.unwrap().forget();
            reply("paid")
        }
    })
    .await;
    let gateway = gateway_to(address, "operations_max = 2", "").await;
    let ask = async |request: String| {
        let mut client = Raw::connect(gateway.address).await;
        client.say(request).await;
        client.answer().await
    };
    for key in ["order-1042-payment", "order-1043-payment"] {
        let mut client = Raw::connect(gateway.address).await;
        client.say(pay(key)).await;
        soon(came.acquire()).await.unwrap().forget();
        // The client leaves, and what it asked for goes on.
        drop(client);
    }
    let refused = ask(pay("order-1044-payment")).await;
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("urn:semel:problem:too-many-operations"), "{}", refused.text());
    assert!(refused.header("retry-after").is_some() && refused.header("link").is_some(), "{}", refused.head);
    assert_eq!(ask(pay("order-1042-payment")).await.status, 409, "it is still being worked on");
    let metrics = gateway.parts.metrics.text();
    for line in [
        "semel_operations 2",
        "semel_decisions_total{route=\"default\",decision=\"too-many-operations\"} 1",
        "semel_events_total{event=\"turned_away\"} 1",
    ] {
        assert!(metrics.lines().any(|has| has == line), "{line} is missing in {metrics}");
    }
    assert_eq!(counts.requests(), 2);
    gate.add_permits(2);
    assert_eq!(soon(gateway.parts.once.drain(PATIENCE)).await, 0, "what ran was not stopped");
    let replay = ask(pay("order-1043-payment")).await;
    assert_eq!((replay.text(), replay.header("idempotent-replayed")), ("paid", Some("true")));
    gate.add_permits(1);
    assert_eq!(ask(pay("order-1044-payment")).await.text(), "paid", "there is a place again");
    assert_eq!(counts.requests(), 3);
    let reading = ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned());
    gate.add_permits(1);
    assert_eq!(reading.await.status, 200);
}
