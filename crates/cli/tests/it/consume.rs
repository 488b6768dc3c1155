//! `semel consume` and `semel inbox` as an operator meets them: the real binary, a real stream, a service
//! that counts calls by key.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use semel::inbox::{Arrival, Aside, Batch, Id, Inbox, Incoming, SetAside};
use tokio::sync::Notify;

use crate::engines::engines;

const SEMEL: &str = env!("CARGO_BIN_EXE_semel");

/// A service that does what a payload says, and counts.
#[derive(Clone, Default)]
struct Service {
    /// Finished calls, by key, in order.
    done: Arc<Mutex<Vec<String>>>,
    /// Begun calls, by key.
    begun: Arc<Mutex<HashMap<String, u32>>>,
    release: Arc<Notify>,
}

impl Service {
    async fn start(&self) -> String {
        let service = self.clone();
        let work = move |headers: HeaderMap, body: Bytes| service.clone().work(headers, body);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let router = Router::new().route("/orders", post(work));
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/orders")
    }

    async fn work(self, headers: HeaderMap, body: Bytes) -> (StatusCode, &'static str) {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().expect("text").to_owned());
        let key = text("idempotency-key").expect("every call has a key");
        assert_eq!(text("traceparent").as_deref(), Some("00-1-2-01"));
        let first = {
            let mut begun = self.begun.lock().expect("nobody panicked");
            let count = begun.entry(key.clone()).or_insert(0);
            *count += 1;
            *count == 1
        };
        match &body[..] {
            b"never" => return (StatusCode::UNPROCESSABLE_ENTITY, "no such customer"),
            b"flaky" if first => return (StatusCode::SERVICE_UNAVAILABLE, "later"),
            b"hang" if first => self.release.notified().await,
            _ => {}
        }
        self.done.lock().expect("nobody panicked").push(key);
        (StatusCode::CREATED, "done")
    }

    fn done(&self) -> Vec<String> {
        self.done.lock().expect("nobody panicked").clone()
    }

    fn begun(&self, key: &str) -> u32 {
        self.begun.lock().expect("nobody panicked").get(key).copied().unwrap_or(0)
    }
}

async fn publish(context: &jetstream::Context, stream: &str, id: &str, key: &str, payload: &str) {
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("semel-id", id);
    headers.insert("semel-key", key);
    headers.insert("traceparent", "00-1-2-01");
    let sent = context.publish_with_headers(format!("{stream}.orders"), headers, payload.to_owned().into());
    sent.await.expect("NATS takes it").await.expect("NATS keeps it");
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn consume(from: &str, to: &str, store: &str) -> Killed {
    let mut command = Command::new(SEMEL);
    command.args(["consume", "--from", from, "--to", to, "--store", store, "--group", "shop"]);
    command.args(["--ledger-kept", "3d", "--dead-letters-kept", "1d", "--pause-max", "1s"]);
    Killed(command.stdout(Stdio::null()).spawn().expect("the binary starts"))
}

fn inbox(store: &str, arguments: &[&str]) -> String {
    let output = Command::new(SEMEL).arg("inbox").args(arguments).args(["--store", store]).output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "never so: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_message_is_a_call_with_its_id_as_the_key_and_a_dead_letter_parks_its_key() {
    // G-47
    let Ok(server) = std::env::var("SEMEL_TEST_NATS") else {
        assert!(std::env::var("SEMEL_TEST_REQUIRE").is_err(), "SEMEL_TEST_NATS is not set");
        return eprintln!("SKIPPED nats: SEMEL_TEST_NATS is not set");
    };
    for engine in engines() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = engine.fresh(dir.path());
        let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
        runtime.block_on(story(&server, &store));
        drop(runtime);
        engine.remove(&store);
        semel_testkit::ledger("consume", engine.name, 1);
    }
}

async fn story(server: &str, store: &str) {
    let stream = format!("C{}", semel::Nonce::random());
    let context = jetstream::new(async_nats::connect(server).await.expect("NATS is there"));
    let config = jetstream::stream::Config {
        name: stream.clone(),
        subjects: vec![format!("{stream}.>")],
        max_age: Duration::from_secs(86_400),
        ..Default::default()
    };
    context.create_stream(config).await.expect("the stream is made");
    let service = Service::default();
    let to = service.start().await;
    let from = format!("{server}/{stream}?ack_wait=2s");

    for (id, key, payload) in [
        ("a1", "a", "plain"),
        ("a2", "a", "never"),
        ("b1", "b", "flaky"),
        ("a3", "a", "plain"),
        ("b2", "b", "plain"),
        ("a1", "a", "plain"),
    ] {
        publish(&context, &stream, id, key, payload).await;
    }
    let running = consume(&from, &to, store);
    until("the other key is done", || service.done().len() == 3).await;
    assert_eq!(service.done(), ["a1", "b1", "b2"], "in order, and a1 once");
    assert_eq!((service.begun("a1"), service.begun("b1"), service.begun("a3")), (1, 2, 0));

    until("the letter is there", || inbox(store, &["dead", "--group", "shop"]).contains("no such customer"))
        .await;
    let status = inbox(store, &["status"]);
    assert!(status.lines().any(|line| line.starts_with("shop ")), "{status}");
    let dead = inbox(store, &["dead", "--group", "shop"]);
    let number = dead.split_whitespace().next().expect("a number").to_owned();
    assert!(dead.contains("id a2"), "{dead}");
    inbox(store, &["discard", "--group", "shop", &number]);
    until("what waited behind it goes on", || service.done().len() == 4).await;
    assert_eq!(service.done()[3], "a3");

    // Killed between call and result: called again, with the same key.
    publish(&context, &stream, "c1", "c", "hang").await;
    until("the call has begun", || service.begun("c1") == 1).await;
    drop(running);
    let _running = consume(&from, &to, store);
    until("it is called again", || service.done().contains(&"c1".to_owned())).await;
    assert_eq!(service.begun("c1"), 2);
    context.delete_stream(&stream).await.expect("the stream goes");
}

/// What is refused, and why.
fn refused(store: &str, arguments: &[&str]) -> String {
    let output = Command::new(SEMEL).arg("inbox").args(arguments).args(["--store", store]).output();
    let output = output.expect("the binary starts");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_known_id_and_a_topic_nobody_reads_are_refused_in_a_sentence() {
    // G-45, G-47
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("semel.db");
    let store = format!("sqlite:{}", path.display());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let ledger = semel::SqliteStore::open(&path).expect("it opens").inbox();
    let message = Incoming { source: "orders".into(), place: "1".into(), ..Incoming::default() };
    let known = Arrival::of(Id::parse("order-1").expect("an id"), message.clone());
    let batch = Batch { group: "shop".into(), arrivals: vec![known], offsets: Vec::new() };
    let letter = SetAside {
        message: &message,
        id: None,
        letter: None,
        aside: Aside::Dead,
        reason: "it has no id".into(),
        tries: 0,
        again_in: Duration::ZERO,
    };
    runtime.block_on(async {
        ledger.intend(&batch).await.expect("it is written down");
        ledger.finish(&batch, &[Duration::ZERO]).await.expect("it is done");
        ledger.set_aside("shop", &[letter], &[]).await.expect("it is kept");
    });
    let why = refused(&store, &["replay", "--group", "shop", "1", "--id", "order-1"]);
    assert!(why.contains("applied already") && why.contains("semel inbox discard --group shop 1"), "{why}");
    let replayed = inbox(&store, &["replay", "--group", "shop", "1", "--id", "order-2"]);
    assert!(replayed.contains("letter 1 is applied again"), "{replayed}");

    let rewind = ["rewind", "--group", "shop", "--topic", "orders", "--to", "3"];
    let why = refused(&store, &rewind);
    assert!(why.contains("the group shop has taken no such partition of the topic orders"), "{why}");
    runtime.block_on(ledger.assign("shop", "orders", 0)).expect("it is given");
    let said = inbox(&store, &rewind);
    assert!(
        said.contains("that shop reads on at 3: 1.") && said.contains("forgotten or never knew"),
        "{said}"
    );
    let next = runtime.block_on(ledger.assign("shop", "orders", 0)).expect("it is given").next;
    assert_eq!(next, Some(3));
    let help = inbox(&store, &["rewind", "--help"]);
    assert!(help.contains("not before the first that is still there") && !help.contains("0 for"), "{help}");
}
