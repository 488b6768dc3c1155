//! `semel relay` and `semel outbox` as users meet them: the real binary, an outbox in SQLite, messages written in
//! the application's own transactions, and a service on a real port that takes them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use semel::stores::sqlite::outbox::{SqliteOutbox, enqueue};
use semel::{Message, MessageId};
use serde_json::Value;

/// Every core may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// An application's database.
struct Shop {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Shop {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("shop.db");
        SqliteOutbox::open(&path).expect("the outbox opens");
        Self { path, _dir: dir }
    }

    /// One commit.
    fn write(&self, messages: &[Message]) {
        let mut connection = rusqlite::Connection::open(&self.path).expect("the database opens");
        connection.busy_timeout(PATIENCE).expect("a time-out is set");
        connection.pragma_update(None, "synchronous", "FULL").expect("a pragma is set");
        let transaction = connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .expect("a transaction begins");
        enqueue(&transaction, messages).expect("messages are written");
        transaction.commit().expect("it commits");
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn relay(&self, to: &str, more: &[&str]) -> Relay {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["relay", "--store", &self.url(), "--to", to]).args(more);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the relay starts");
        let mut said = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut begun = String::new();
        while !begun.contains("semel relay: publishing") {
            let read = said.read_line(&mut begun).expect("stderr can be read");
            assert!(read > 0, "the relay ended before it began: {begun}");
        }
        // Nobody must wait for what it says later.
        let later = Arc::new(Mutex::new(String::new()));
        let heard = later.clone();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                eprintln!("{line}");
                *heard.lock().expect("nobody panicked") += &(line + "\n");
            }
        });
        Relay(child, begun, later)
    }

    fn outbox(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["outbox", "--store", &self.url()]).args(arguments);
        command.output().expect("semel outbox runs")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.outbox(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The process, what it said until it began, and what it said then.
struct Relay(Child, String, Arc<Mutex<String>>);

impl Relay {
    fn said(&self) -> String {
        self.2.lock().expect("nobody panicked").clone()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }

    fn end(mut self) -> std::process::ExitStatus {
        self.signal("-TERM");
        self.0.wait().expect("it ends")
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service that takes messages: what came, and what it answers.
#[derive(Default)]
struct Taken {
    came: Mutex<Vec<(String, String)>>,
    /// Bodies that are refused.
    refused: Mutex<Vec<&'static str>>,
    /// Requests wait for this many permits before they are answered.
    held: Option<tokio::sync::Semaphore>,
}

async fn take(State(taken): State<Arc<Taken>>, headers: HeaderMap, body: String) -> StatusCode {
    let id = headers["idempotency-key"].to_str().expect("an id is ASCII").to_owned();
    taken.came.lock().expect("nobody panicked").push((id, body.clone()));
    if let Some(held) = &taken.held {
        let _permit = held.acquire().await;
    }
    match taken.refused.lock().expect("nobody panicked").contains(&&*body) {
        true => StatusCode::UNPROCESSABLE_ENTITY,
        false => StatusCode::OK,
    }
}

struct Service {
    taken: Arc<Taken>,
    url: String,
    _runtime: tokio::runtime::Runtime,
}

impl Service {
    fn start(taken: Taken) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
        let taken = Arc::new(taken);
        let listener =
            runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("there is a port");
        let url = format!("http://{}/in", listener.local_addr().expect("it has an address"));
        let router = Router::new().route("/in/{topic}", post(take)).with_state(taken.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { taken, url, _runtime: runtime }
    }

    fn came(&self) -> Vec<(String, String)> {
        self.taken.came.lock().expect("nobody panicked").clone()
    }

    fn bodies(&self) -> Vec<String> {
        self.came().into_iter().map(|(_, body)| body).collect()
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn message(key: &str, text: &str) -> Message {
    Message::new("orders".parse().expect("a topic"), text.to_owned()).key(key)
}

fn ids(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.id.to_string()).collect()
}

#[test]
fn messages_come_out_as_lines_in_order_and_sigterm_ends_it_well() {
    // G-41
    let shop = Shop::new();
    let messages: Vec<Message> = (0..50).map(|n| message("a", &n.to_string())).collect();
    messages.chunks(7).for_each(|some| shop.write(some));
    let mut relay = shop.relay("stdout:", &["--format", "plain"]);
    let out = BufReader::new(relay.0.stdout.take().expect("stdout is piped"));
    let lines: Vec<Value> = out
        .lines()
        .take(50)
        .map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON"))
        .collect();
    let found: Vec<&str> = lines.iter().map(|line| line["id"].as_str().expect("an id")).collect();
    assert_eq!(found, ids(&messages));
    assert!(relay.end().success());
    let status = shop.json(&["status"]);
    assert_eq!(status["waiting"], 0, "{status}");
    assert!(
        status["lanes"].as_array().expect("lanes").iter().all(|lane| lane["holder"].is_null()),
        "{status}"
    );
}

#[test]
fn what_it_does_and_what_waits_is_counted_for_prometheus() {
    // G-80
    let shop = Shop::new();
    let service = Service::start(Taken { refused: Mutex::new(vec!["bad"]), ..Taken::default() });
    shop.write(&[message("a", "good"), message("b", "bad"), message("b", "after bad")]);
    let relay = shop.relay(&service.url, &["--metrics", "127.0.0.1:0"]);
    let url =
        relay.1.lines().find_map(|line| line.strip_prefix("semel: metrics on ")).expect("it says where");
    let page =
        || ureq::get(url).call().expect("it is served").body_mut().read_to_string().expect("it is text");
    let shows = |line: &str| page().lines().any(|found| found == line);
    until("one is published", || shows(r#"semel_relay_messages_total{fate="published"} 1"#));
    until("one is dead", || shows(r#"semel_relay_messages_total{fate="dead"} 1"#));
    until("the outbox is counted", || shows(r#"semel_outbox_messages{topic="orders",state="dead"} 1.0"#));
    let taken = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["relay", "--store", &shop.url(), "--to", "stdout:", "--metrics"])
        .arg(url.trim_start_matches("http://").trim_end_matches("/metrics"))
        .output()
        .expect("it runs");
    assert!(!taken.status.success());
    let said = String::from_utf8_lossy(&taken.stderr);
    assert!(said.contains("metrics cannot be served on 127.0.0.1:"), "{said}");
}

#[test]
fn a_dead_letter_is_seen_shown_edited_and_discarded_from_the_shell() {
    // G-44
    let shop = Shop::new();
    let service = Service::start(Taken { refused: Mutex::new(vec!["bad", "worse"]), ..Taken::default() });
    let (bad, worse) = (message("a", "bad"), message("b", "worse"));
    shop.write(&[bad.clone(), message("a", "after bad"), worse.clone(), message("b", "after worse")]);
    let relay = shop.relay(&service.url, &[]);
    let dead = || shop.json(&["dead"])["messages"].as_array().expect("messages").clone();
    until("both are dead", || dead().len() == 2);
    assert!(dead().iter().all(|one| one["reason"].as_str().is_some_and(|why| why.contains("422"))));
    let table = String::from_utf8(shop.outbox(&["dead"]).stdout).expect("UTF-8");
    assert!(table.contains(&bad.id.to_string()) && table.contains("REASON"), "{table}");
    let status = String::from_utf8(shop.outbox(&["status"]).stdout).expect("UTF-8");
    assert!(status.contains("TOPIC") && status.contains("orders"), "{status}");
    let shown = shop.json(&["show", &bad.id.to_string(), "--payload"]);
    assert_eq!((&shown["state"], &shown["payload"]), (&"dead".into(), &"bad".into()));

    let good = shop.path.with_file_name("good");
    std::fs::write(&good, "good").expect("a file is written");
    let good = good.to_str().expect("UTF-8");
    assert!(shop.outbox(&["replay", &bad.id.to_string(), "--payload-file", good]).status.success());
    assert!(shop.outbox(&["discard", &worse.id.to_string()]).status.success());
    until("the rest is published", || {
        service.bodies().iter().filter(|body| body.starts_with("after")).count() == 2
    });
    let of_a: Vec<(String, String)> =
        service.came().into_iter().filter(|(_, body)| body == "good" || body == "after bad").collect();
    assert_eq!([&*of_a[0].1, &*of_a[1].1], ["good", "after bad"], "in its place");
    assert_ne!(of_a[0].0, bad.id.to_string(), "an edited message is another one");
    let again = shop.outbox(&["discard", &worse.id.to_string()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(relay.end().success());
}

#[test]
fn a_dead_letter_older_than_consumers_remember_is_published_only_on_demand() {
    // G-46
    let shop = Shop::new();
    let service = Service::start(Taken { refused: Mutex::new(vec!["old"]), ..Taken::default() });
    let eight_days = Duration::from_secs(8 * 86_400);
    let made = (std::time::UNIX_EPOCH.elapsed().expect("the clock is right") - eight_days).as_millis() as u64;
    let mut id = [0x5e; 16];
    id[..6].copy_from_slice(&made.to_be_bytes()[2..]);
    (id[6], id[8]) = (0x70, 0x80);
    let old = Message { id: MessageId::from_bytes(id), ..message("a", "old") };
    shop.write(std::slice::from_ref(&old));
    let relay = shop.relay(&service.url, &[]);
    let id = old.id.to_string();
    until("it is dead", || shop.json(&["dead"])["messages"].as_array().is_some_and(|all| all.len() == 1));
    service.taken.refused.lock().expect("nobody panicked").clear();
    let refused = shop.outbox(&["replay", &id]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("8d old") && said.contains("--kept"), "{said}");
    assert_eq!(service.bodies(), ["old"], "tried once, and refused");
    assert!(shop.outbox(&["replay", &id, "--kept", "30d"]).status.success());
    until("it is published", || service.bodies() == ["old", "old"]);
    assert!(relay.end().success());
}

#[test]
fn a_database_that_is_set_back_under_a_relay_ends_it_with_a_code_of_its_own() {
    // G-44
    let shop = Shop::new();
    let service = Service::start(Taken::default());
    shop.write(&[message("a", "1"), message("a", "2"), message("a", "3")]);
    let mut relay = shop.relay(&service.url, &[]);
    until("all are saved", || shop.json(&["status"])["waiting"] == 0);
    let connection = rusqlite::Connection::open(&shop.path).expect("the database opens");
    connection.busy_timeout(PATIENCE).expect("a time-out is set");
    // What a backup would have, as far as numbers go.
    let back = "UPDATE sqlite_sequence SET seq = seq - 2 WHERE name = 'semel_outbox'";
    connection.execute(back, []).expect("it is set back");
    assert_eq!(relay.0.wait().expect("it ends").code(), Some(3));
    until("it says why", || relay.said().contains("semel outbox rebase"));
    let status = shop.outbox(&["status"]);
    assert_eq!(status.status.code(), Some(3), "{}", String::from_utf8_lossy(&status.stdout));
    assert!(shop.outbox(&["rebase", "--by", "ops"]).status.success());
    shop.write(&[message("a", "4")]);
    let relay = shop.relay(&service.url, &[]);
    until("it goes on", || service.bodies() == ["1", "2", "3", "4"]);
    assert!(relay.end().success());
}

#[test]
fn what_cannot_be_used_is_said_in_one_line() {
    let shop = Shop::new();
    let fails = |arguments: &[&str], part: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_semel")).args(arguments).output().expect("semel runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{arguments:?}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    };
    fails(&["relay", "--store", &shop.url(), "--to", "amqp://u:hunter2@h"], "scheme of the sink");
    fails(&["relay", "--store", &shop.url(), "--to", "nats://h:1?speed=fast"], "not `speed`");
    fails(&["relay", "--store", &shop.url(), "--to", "stdout:", "--lanes", "200"], "no lane 200");
    fails(
        &["outbox", "--store", &shop.url(), "show", &MessageId::new().to_string()],
        "does not hold message",
    );
    fails(&["outbox", "--store", &shop.url(), "replay", "not-an-id"], "UUID");
    fails(&["outbox", "--store", "sqlite:/no/such/shop.db", "status"], "no store at");
}

/// Tests that kill processes.
mod crash {
    use super::*;

    #[test]
    fn kill_9_between_publish_and_save_publishes_again_under_the_same_ids() {
        // G-42, G-43
        let shop = Shop::new();
        let service =
            Service::start(Taken { held: Some(tokio::sync::Semaphore::new(0)), ..Taken::default() });
        let messages: Vec<Message> = (0..5).map(|n| message(&format!("k{n}"), &n.to_string())).collect();
        shop.write(&messages);
        let relay = shop.relay(&service.url, &["--lease", "2s"]);
        until("all are there and none is answered", || service.came().len() == 5);
        relay.signal("-KILL");
        drop(relay);
        service.taken.held.as_ref().expect("it holds").add_permits(1000);
        let heir = shop.relay(&service.url, &["--lease", "2s"]);
        until("they come again", || service.came().len() == 10);
        until("they are saved", || shop.json(&["status"])["waiting"] == 0);
        assert!(heir.end().success());
        let came: Vec<String> = service.came().into_iter().map(|(id, _)| id).collect();
        let sorted = |ids: &[String]| {
            let mut ids = ids.to_vec();
            ids.sort();
            ids
        };
        assert_eq!(sorted(&came[..5]), sorted(&ids(&messages)));
        assert_eq!(sorted(&came[5..]), sorted(&ids(&messages)));
    }

    #[test]
    fn a_relay_stopped_past_its_lease_is_replaced_and_publishes_nothing_when_it_wakes_up() {
        // G-42
        let shop = Shop::new();
        let (late, other) = (Service::start(Taken::default()), Service::start(Taken::default()));
        let zombie = shop.relay(&late.url, &["--lease", "2s"]);
        shop.write(&[message("a", "first")]);
        until("the first is published", || late.bodies() == ["first"]);
        until("and saved", || shop.json(&["status"])["waiting"] == 0);
        zombie.signal("-STOP");
        let heir = shop.relay(&other.url, &["--lease", "2s"]);
        shop.write(&[message("a", "second")]);
        until("the heir took over", || other.bodies() == ["second"]);
        shop.write(&[message("a", "third")]);
        zombie.signal("-CONT");
        until("the third is published", || other.bodies() == ["second", "third"]);
        assert!(zombie.end().success(), "it gives up what it no longer has");
        assert!(heir.end().success());
        assert_eq!(late.bodies(), ["first"]);
    }
}
