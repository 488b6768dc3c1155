//! A service that takes messages, over real connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use semel_core::inbox::Fence;
use semel_core::runtime::Tokio;
use semel_workers::relay::{Relay, Settings};
use semel_workers::sinks::{Address, HttpSink};
use tokio::net::TcpListener;

use super::*;

#[derive(Default)]
struct Warehouse {
    /// Topic, headers and body of each request.
    requests: Mutex<Vec<(String, HeaderMap, String)>>,
    /// What to say to a body, by how often it came.
    says: HashMap<&'static str, Vec<u16>>,
}

async fn take(
    State(warehouse): State<Arc<Warehouse>>,
    Path(topic): Path<String>,
    headers: HeaderMap,
    body: String,
) -> impl IntoResponse {
    let mut requests = warehouse.requests.lock().unwrap();
    let before = requests.iter().filter(|(_, _, other)| *other == body).count();
    requests.push((topic, headers, body.clone()));
    let status = warehouse.says.get(&*body).and_then(|says| says.get(before).or(says.last())).copied();
    StatusCode::from_u16(status.unwrap_or(200)).unwrap()
}

async fn serve(listener: TcpListener, warehouse: Arc<Warehouse>) {
    let router = Router::new().route("/in/{topic}", post(take)).with_state(warehouse);
    tokio::spawn(async move { axum::serve(listener, router).await });
}

async fn port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn sink(address: SocketAddr) -> HttpSink {
    HttpSink::new(&Address::parse(&format!("http://{address}/in")).unwrap()).unwrap()
}

fn relay(outbox: &Arc<MemoryOutbox>, sink: HttpSink) -> Arc<Relay> {
    Arc::new(Relay::new(outbox.clone(), Arc::new(sink), Arc::new(Tokio::new()), Settings::default()).unwrap())
}

#[tokio::test]
async fn a_message_is_posted_with_its_id_as_idempotency_key() {
    // G-43
    let (listener, address) = port().await;
    let warehouse = Arc::new(Warehouse::default());
    serve(listener, warehouse.clone()).await;
    let sink = sink(address);
    let sent = message("orders.paid", "a", "{}").header("x-shop", "köln").correlation("req-1");
    let receipts = publish(&mut *line(&sink, 3).await, &parcels(&sink, 3, std::slice::from_ref(&sent))).await;
    assert_eq!(receipts, [Receipt::Landed]);
    let requests = warehouse.requests.lock().unwrap();
    let (topic, headers, body) = &requests[0];
    assert_eq!((topic.as_str(), body.as_str()), ("orders.paid", "{}"));
    let id = sent.id.to_string();
    for (name, value) in [
        ("idempotency-key", &*id),
        ("ce-id", &*id),
        ("semel-id", &*id),
        ("semel-correlation", "req-1"),
        ("x-shop", "köln"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(headers[name].as_bytes(), value.as_bytes(), "{name}");
    }
    let fence = Fence::parse(headers["semel-fence"].to_str().unwrap()).unwrap();
    assert_eq!((fence.epoch, fence.sequence), (3, 1));
}

#[tokio::test]
async fn what_a_service_refuses_is_dead_and_what_it_fails_is_tried_again_in_order() {
    // G-41, G-44
    let (listener, address) = port().await;
    let says = HashMap::from([("a 0", vec![503, 500, 200]), ("b 0", vec![422])]);
    let warehouse = Arc::new(Warehouse { says, ..Warehouse::default() });
    serve(listener, warehouse.clone()).await;
    let outbox = Arc::new(MemoryOutbox::new(1));
    outbox
        .write([
            message("t", "a", "a 0"),
            message("t", "b", "b 0"),
            message("t", "a", "a 1"),
            message("t", "b", "b 1"),
        ])
        .unwrap();
    let relay = relay(&outbox, sink(address));
    let running = relay.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(async move { running.run(async { drop(stopped.await) }).await });
    until("all is settled", async || waiting(&outbox).await == 0).await;
    drop(stop);
    task.await.unwrap().unwrap();
    let requests = warehouse.requests.lock().unwrap().clone();
    let of = |key: &str| -> Vec<String> {
        requests.iter().map(|(_, _, body)| body.clone()).filter(|body| body.starts_with(key)).collect()
    };
    assert_eq!(of("a"), ["a 0", "a 0", "a 0", "a 1"]);
    assert_eq!(of("b"), ["b 0"], "what is behind a dead letter waits");
    let keys: Vec<_> =
        requests.iter().filter(|(_, _, body)| body == "a 0").map(|one| &one.1["idempotency-key"]).collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "each try has the same key");
    let dead = dead(&outbox).await;
    assert!(matches!(&dead[..], [(_, reason)] if reason.contains("422")), "{dead:?}");
}

#[tokio::test]
async fn a_service_that_is_gone_or_lets_nobody_in_kills_no_message() {
    // G-44
    let (listener, address) = port().await;
    drop(listener);
    let outbox = Arc::new(MemoryOutbox::new(1));
    outbox.write([message("t", "a", "a 0"), message("t", "b", "b 0")]).unwrap();
    let relay = relay(&outbox, sink(address));
    let (running, tally) = (relay.clone(), relay.tally());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(async move { running.run(async { drop(stopped.await) }).await });
    let downs = || tally.downs.load(std::sync::atomic::Ordering::Relaxed);
    until("it is down", async || downs() > 2).await;
    assert_eq!(waiting(&outbox).await, 2, "nothing is set aside");

    let says = HashMap::from([("a 0", vec![401, 401, 200]), ("b 0", vec![401, 200])]);
    let warehouse = Arc::new(Warehouse { says, ..Warehouse::default() });
    serve(TcpListener::bind(address).await.unwrap(), warehouse.clone()).await;
    until("all is published", async || waiting(&outbox).await == 0).await;
    drop(stop);
    task.await.unwrap().unwrap();
    assert_eq!(dead(&outbox).await, []);
    assert!(outbox.aside(None, 0, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_header_that_belongs_to_the_request_is_refused_with_the_reason() {
    // G-44
    let (_listener, address) = port().await;
    let sink = sink(address);
    let bad = [message("t", "a", "0").header("transfer-encoding", "chunked")];
    let receipts = publish(&mut *line(&sink, 1).await, &parcels(&sink, 1, &bad)).await;
    assert!(
        matches!(&receipts[..], [Receipt::Refused(why)] if why.contains("transfer-encoding")),
        "{receipts:?}"
    );
}
