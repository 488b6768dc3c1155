//! NATS JetStream, a real server.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, AckKind};
use futures_util::StreamExt;
use semel_core::runtime::Tokio;
use semel_workers::relay::{Beyond, Relay, Settings};
use semel_workers::sinks::{Address, Dedup, NatsSink, Trouble};

use super::*;

fn server() -> Option<String> {
    engine("nats", "SEMEL_TEST_NATS")
}

async fn sink(url: &str, rest: &str) -> NatsSink {
    NatsSink::connect(&Address::parse(&format!("{url}{rest}")).unwrap()).await.unwrap()
}

async fn stream(url: &str, config: Config) -> Stream {
    let client = async_nats::connect(url).await.unwrap();
    jetstream::new(client).create_stream(config).await.unwrap()
}

fn named(name: &str, prefix: &str) -> Config {
    Config { name: name.into(), subjects: vec![format!("{prefix}.>")], ..Config::default() }
}

/// Everything in a stream: subject, headers by name, text.
async fn contents(stream: &mut Stream) -> Vec<(String, async_nats::HeaderMap, String)> {
    let count = stream.info().await.unwrap().state.messages as usize;
    let consumer = stream.create_consumer(pull::Config::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap().take(count);
    let mut found = Vec::new();
    while let Some(message) = messages.next().await {
        let message = message.unwrap();
        message.ack_with(AckKind::Ack).await.unwrap();
        let text = String::from_utf8(message.payload.to_vec()).unwrap();
        found.push((message.subject.to_string(), message.headers.clone().unwrap_or_default(), text));
    }
    found
}

/// Runs a relay until nothing waits any more.
async fn relay_all(outbox: &Arc<MemoryOutbox>, sink: NatsSink) {
    let relay =
        Relay::new(outbox.clone(), Arc::new(sink), Arc::new(Tokio::new()), Settings::default()).unwrap();
    let done = async { until("all is settled", async || waiting(outbox).await == 0).await };
    relay.run(done).await.unwrap();
}

#[tokio::test]
async fn messages_land_in_the_order_of_their_keys_with_their_ids() {
    // G-41, G-43
    let Some(url) = server() else { return };
    let name = unique("order");
    let mut stream = stream(&url, named(&name, &name)).await;
    let outbox = Arc::new(MemoryOutbox::new(4));
    let messages: Vec<Message> = (0..2000)
        .map(|n| message("orders.paid", &format!("k{}", n % 37), format!("k{} {n}", n % 37)))
        .collect();
    outbox.write(messages.clone()).unwrap();
    relay_all(&outbox, sink(&url, &format!("/{name}")).await).await;
    let found = contents(&mut stream).await;
    assert_eq!(found.len(), 2000);
    for key in 0..37 {
        let of_key = found.iter().filter(|one| one.2.starts_with(&format!("k{key} ")));
        let numbers: Vec<u32> = of_key.map(|one| one.2.split(' ').nth(1).unwrap().parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
    let (subject, headers, text) = &found[0];
    let sent = messages.iter().find(|message| message.payload == text.as_bytes()).unwrap();
    assert_eq!(subject, &format!("{name}.orders.paid"));
    for header in ["Nats-Msg-Id", "semel-id", "ce-id"] {
        assert_eq!(headers.get(header).unwrap().as_str(), sent.id.to_string());
    }
    assert_eq!(headers.get("content-type").unwrap().as_str(), "application/json");
}

#[tokio::test]
async fn a_copy_is_dropped_by_the_stream() {
    // G-43
    let Some(url) = server() else { return };
    let name = unique("copy");
    let mut stream = stream(&url, named(&name, &name)).await;
    let sink = sink(&url, &format!("/{name}")).await;
    let messages: Vec<Message> = (0..20).map(|n| message("orders", "a", n.to_string())).collect();
    for epoch in [1, 2] {
        let receipts = publish(&mut *line(&sink, epoch).await, &parcels(&sink, epoch, &messages)).await;
        assert_eq!(receipts, vec![Receipt::Landed; 20]);
    }
    assert_eq!(contents(&mut stream).await.len(), 20);
}

#[tokio::test]
async fn what_no_stream_takes_and_what_is_too_large_is_a_dead_letter_with_the_reason() {
    // G-44
    let Some(url) = server() else { return };
    let name = unique("refused");
    let small = Config { max_message_size: 1000, ..named(&name, &format!("{name}.small")) };
    let mut kept = stream(&url, small).await;
    let outbox = Arc::new(MemoryOutbox::new(1));
    let large = "x".repeat(2000);
    let huge = Message { payload: vec![b'x'; 2 << 20].into(), ..message("small.huge", "c", "") };
    outbox
        .write([
            message("nowhere", "a", "no stream"),
            message("small.large", "b", large),
            huge,
            message("small.header", "d", "0").header("nats-rollup", "all"),
            message("small.good", "e", "good"),
        ])
        .unwrap();
    relay_all(&outbox, sink(&url, &format!("/{name}")).await).await;
    let dead = dead(&outbox).await;
    for (topic, part) in [
        ("nowhere", "no stream takes the subject"),
        ("small.large", "message size exceeds maximum allowed"),
        ("small.huge", "max payload size exceeded"),
        ("small.header", "nats-rollup"),
    ] {
        assert!(
            dead.iter().any(|(other, reason)| other == topic && reason.contains(part)),
            "{topic}: {dead:?}"
        );
    }
    assert_eq!(contents(&mut kept).await.len(), 1, "the others went on");
}

#[tokio::test]
async fn a_horizon_beyond_the_duplicate_window_is_refused_if_so_declared() {
    // G-43
    let Some(url) = server() else { return };
    let name = unique("window");
    let window = Duration::from_secs(60);
    stream(&url, Config { duplicate_window: window, ..named(&name, &name) }).await;
    let sink = sink(&url, &format!("/{name}")).await;
    assert_eq!(sink.about().dedup, Dedup::Window(window));
    let settings = Settings { beyond_dedup: Beyond::Refuse, ..Settings::default() };
    let relay = Relay::new(Arc::new(MemoryOutbox::new(1)), Arc::new(sink), Arc::new(Tokio::new()), settings);
    let refused = relay.map(drop).unwrap_err().to_string();
    assert!(refused.contains("60s"), "{refused}");
}

#[tokio::test]
async fn a_fenced_stream_takes_nothing_of_a_relay_that_was_replaced() {
    // G-42
    let Some(url) = server() else { return };
    let name = unique("fence");
    let mut stream = stream(&url, named(&format!("{name}-0"), &format!("{name}.0"))).await;
    let sink = sink(&url, &format!("/{name}.{{lane}}?fence={name}-{{lane}}")).await;
    let batch = |texts: std::ops::Range<u32>| -> Vec<Message> {
        texts.map(|n| message("orders", "a", n.to_string())).collect()
    };
    let mut zombie = line(&sink, 1).await;
    let first = parcels(&sink, 1, &batch(0..10));
    assert_eq!(publish(&mut *zombie, &first).await, vec![Receipt::Landed; 10]);
    let mut heir = line(&sink, 2).await;
    let next = parcels(&sink, 2, &batch(10..20));
    assert_eq!(publish(&mut *heir, &next).await, vec![Receipt::Landed; 10]);

    let late = publish(&mut *zombie, &parcels(&sink, 1, &batch(90..95))).await;
    assert!(late.iter().all(|receipt| matches!(receipt, Receipt::Down(_))), "{late:?}");
    // The next holder begins with what landed and was not saved.
    let mut next_heir = line(&sink, 3).await;
    let mixed = [&next[..], &parcels(&sink, 3, &batch(20..22))].concat();
    assert_eq!(publish(&mut *next_heir, &mixed).await, vec![Receipt::Landed; 12]);
    let texts: Vec<String> = contents(&mut stream).await.into_iter().map(|one| one.2).collect();
    let expected: Vec<String> = (0..22).map(|n| n.to_string()).collect();
    assert_eq!(texts, expected);
}

/// A server of the test's own, that can be killed and come back.
struct Own {
    bin: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Own {
    fn start(auth: &str) -> Option<Self> {
        let bin = engine("nats", "SEMEL_TEST_NATS_BIN")?.into();
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let conf = format!(
            "listen: 127.0.0.1:{port}\njetstream {{ store_dir: \"{}/js\", sync_interval: always }}\n{auth}\n",
            dir.path().display()
        );
        std::fs::write(dir.path().join("conf"), conf).unwrap();
        let mut own = Self { bin, dir, port, child: None };
        own.run();
        Some(own)
    }

    fn run(&mut self) {
        let mut command = Command::new(&self.bin);
        command.arg("-c").arg(self.dir.path().join("conf")).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    async fn ready(&self) {
        until("the server listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok()
        })
        .await;
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::test]
async fn a_crash_of_the_broker_costs_nothing_but_time() {
    // G-41, G-44
    let Some(mut own) = Own::start("") else { return };
    own.ready().await;
    let url = format!("nats://127.0.0.1:{}", own.port);
    let mut stream = stream(&url, named("orders", "orders")).await;
    let outbox = Arc::new(MemoryOutbox::new(2));
    let write = |from: u32, to: u32| {
        outbox
            .write((from..to).map(|n| message("orders.paid", &format!("k{}", n % 7), n.to_string())))
            .unwrap();
    };
    let sink = sink(&url, "").await;
    let relay =
        Relay::new(outbox.clone(), Arc::new(sink), Arc::new(Tokio::new()), Settings::default()).unwrap();
    let tally = relay.tally();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(async move { relay.run(async { drop(stopped.await) }).await });
    write(0, 500);
    until("the first are published", async || waiting(&outbox).await == 0).await;
    write(500, 1500);
    own.kill();
    until("the relay noticed", async || tally.downs.load(std::sync::atomic::Ordering::Relaxed) > 0).await;
    assert!(outbox.aside(None, 0, 10).await.unwrap().is_empty(), "nothing is set aside");
    own.run();
    until("the rest is published", async || waiting(&outbox).await == 0).await;
    drop(stop);
    task.await.unwrap().unwrap();
    assert_eq!(dead(&outbox).await, []);
    let found = contents(&mut stream).await;
    let mut seen: Vec<u32> = found.iter().map(|one| one.2.parse().unwrap()).collect();
    for key in 0..7 {
        let of_key: Vec<u32> = seen.iter().copied().filter(|n| n % 7 == key).collect();
        assert!(of_key.is_sorted(), "{key}: {of_key:?}");
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..1500).collect::<Vec<u32>>(), "each once: copies were dropped");
}

#[tokio::test]
async fn wrong_credentials_are_told_at_once() {
    let Some(own) = Own::start("authorization { user: relay, password: secret }") else { return };
    own.ready().await;
    let at = |user: &str| Address::parse(&format!("nats://{user}127.0.0.1:{}", own.port)).unwrap();
    for user in ["", "relay:wrong@"] {
        let refused = NatsSink::connect(&at(user)).await.map(drop).unwrap_err();
        assert!(matches!(refused, Trouble::Unusable(_)), "{refused}");
        assert!(!refused.to_string().contains("wrong"), "{refused}");
    }
    assert!(NatsSink::connect(&at("relay:secret@")).await.is_ok());
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_down_and_not_unusable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = Address::parse(&format!("nats://127.0.0.1:{port}")).unwrap();
    let down = NatsSink::connect(&address).await.map(drop).unwrap_err();
    assert!(matches!(down, Trouble::Down(_)), "{down}");
}
