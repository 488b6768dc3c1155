//! The example services of docs/reconcile.md, run as what they are and asked by a real recoverer.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rusqlite::{Connection, OptionalExtension, params};
use semel::claim::{self, Claim};
use semel::runtime::Tokio;
use semel::{
    Ask, EffectStore, Fingerprinter, Holder, MemoryStore, Nonce, Operation, OperationId, Outcome, Policy,
    Question, Record, Recoverer, Recovery, Reply, Scope, State, Token,
};
use semel_testkit::ManualClock;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::Reconcile;
use crate::gateway::fetch::{Http, over};
use crate::gateway::net::RealNetwork;

fn derived(operation: OperationId) -> String {
    semel::attempt::derive(operation, "upstream", 1)
}

fn policy() -> Policy {
    Policy::builder().recovery(Recovery::Ask).build().unwrap()
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/reconcile")
}

/// A store, a recoverer that asks somebody, and a clock that is moved.
struct Room {
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    recoverer: Recoverer,
}

impl Room {
    fn new(whom: Arc<dyn Ask>) -> Self {
        let clock = ManualClock::new();
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        let recoverer = Recoverer::new(store.clone(), Arc::new(Tokio::new())).every(Duration::ZERO);
        let recoverer = recoverer.ask("charge", policy(), whom);
        Self { store, clock, recoverer }
    }

    /// The lease of an attempt, as a gateway would take it before it sends the request on.
    async fn attempt(&self, tenant: &str) -> Holder {
        let scope = Scope::new("shop", tenant, "charge").unwrap();
        let keys = self.store.status().await.unwrap().hash_keys;
        let request = claim::Request {
            operation: Arc::new(Operation::new(scope, "order-1".parse().unwrap())),
            nonce: Nonce::random(),
            print: Fingerprinter::new(keys).unwrap().of_bytes(b"body").current().clone(),
            terms: policy().terms(),
            subject: None,
        };
        match self.store.claim(&request).await.unwrap() {
            Claim::Granted(lease) => lease.holder,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Lets the longest run pass, and everything be asked about that is open.
    async fn recover(&mut self) {
        self.clock.shift(semel::clock::micros(policy().terms().run_max));
        self.recoverer.pass().await.unwrap();
    }

    async fn record(&self, attempt: Holder) -> Record {
        self.store.get(attempt.operation).await.unwrap().expect("the record is there")
    }

    async fn state(&self, attempt: Holder) -> State {
        self.record(attempt).await.state
    }

    async fn outcome(&self, attempt: Holder) -> Outcome {
        let stored = self.record(attempt).await.outcome.expect("an outcome is stored");
        policy().read(&stored, attempt.operation).await.unwrap()
    }
}

/// An example service in a process of its own, which ends with the test.
struct Service {
    address: String,
    program: &'static str,
    script: &'static str,
    process: Child,
    files: tempfile::TempDir,
}

impl Service {
    /// `None`, said aloud, where the language is not installed and nobody requires it.
    async fn start(program: &'static str, script: &'static str) -> Option<Self> {
        let files = tempfile::tempdir().unwrap();
        match spawned(program, script, &files) {
            Ok(mut process) => {
                let address = address(&mut process).await;
                Some(Self { address, program, script, process, files })
            }
            Err(error) if std::env::var("SEMEL_TEST_REQUIRE").is_ok() => {
                panic!("{program} does not start: {error}")
            }
            Err(error) => {
                eprintln!("SKIPPED {program}: it does not start ({error}); ./test installs it");
                None
            }
        }
    }

    /// Kills it and starts it again on the same files.
    async fn restart(&mut self) {
        self.process.kill().await.unwrap();
        self.process = spawned(self.program, self.script, &self.files).unwrap();
        self.address = address(&mut self.process).await;
    }

    fn asked(&self) -> Arc<dyn Ask> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.unwrap().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let http = Http::new(over(Arc::new(RealNetwork)), Arc::new(tls), Arc::new(Tokio::new()));
        let url = format!("http://{}/reconcile", self.address).parse().unwrap();
        Arc::new(Reconcile::new(url, derived, Arc::new(http)))
    }

    /// Sends what the gateway would: the attempt's headers and the client's body.
    async fn send(&self, path: &str, attempt: Holder, body: Value) -> (u16, Value) {
        let head = http::Request::post(path)
            .header("semel-token", attempt.token.0)
            .header("semel-nonce", attempt.nonce.to_string())
            .header("semel-derived-key", derived(attempt.operation));
        self.exchange(head, body).await
    }

    async fn charges(&self) -> u64 {
        let (_, counted) = self.exchange(http::Request::get("/charges"), json!({})).await;
        counted["charges"].as_u64().unwrap()
    }

    async fn exchange(&self, head: http::request::Builder, body: Value) -> (u16, Value) {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let head = head.header("host", &self.address).header("content-type", "application/json");
        let nonce = head.headers_ref().and_then(|headers| headers.get("semel-nonce").cloned());
        let answer =
            sender.send_request(head.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        if status == 409 {
            // Otherwise the refusal could become the outcome.
            assert_eq!(answer.headers().get("semel-hint").unwrap(), "nothing-happened");
            assert_eq!(answer.headers().get("semel-nonce"), nonce.as_ref());
        }
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

fn spawned(program: &str, script: &str, files: &tempfile::TempDir) -> std::io::Result<Child> {
    Command::new(program)
        .arg(examples().join(script))
        .args(["0".as_ref(), files.path().join("receipts").as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// Where it listens, as it says when it is ready.
async fn address(process: &mut Child) -> String {
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().expect("it says where it listens");
    line.strip_prefix("listening on http://").expect("it says where it listens").to_owned()
}

async fn done_is_replayed(service: &Service) {
    let mut room = Room::new(service.asked());
    let attempt = room.attempt("alice").await;
    let (status, body) = service.send("/charges", attempt, json!({ "amount": 350 })).await;
    assert_eq!((status, &body), (201, &json!({ "charged": 350 })), "it happened; its answer got lost");
    room.recover().await;
    assert_eq!(room.state(attempt).await, State::Completed);
    let outcome = room.outcome(attempt).await;
    assert_eq!(outcome.status, 201);
    assert_eq!(serde_json::from_slice::<Value>(outcome.body_bytes().unwrap()).unwrap(), body);
    assert_eq!(outcome.header("content-type").unwrap().as_ref(), b"application/json");
}

async fn never_is_fenced(service: &Service) {
    let mut room = Room::new(service.asked());
    let lost = room.attempt("bob").await;
    room.recover().await;
    assert_eq!(room.state(lost).await, State::Released, "the request never arrived");
    let before = service.charges().await;
    let (status, told) = service.send("/charges", lost, json!({ "amount": 350 })).await;
    assert_eq!(status, 409, "it arrives after all, and is refused: {told}");
    assert_eq!(service.charges().await, before, "no second effect");
    let next = room.attempt("bob").await;
    assert!(next.token > lost.token);
    let (status, _) = service.send("/charges", next, json!({ "amount": 350 })).await;
    assert_eq!(status, 201, "the next attempt runs");
    assert_eq!(service.charges().await, before + 1);
}

async fn cannot_tell_waits_for_the_bank(service: &Service) {
    let mut room = Room::new(service.asked());
    let attempt = room.attempt("carol").await;
    let (status, _) = service.send("/transfers", attempt, json!({ "amount": 900 })).await;
    assert_eq!(status, 504);
    room.recover().await;
    assert_eq!(room.state(attempt).await, State::Unknown, "it began, and nobody knows how it ended");
    let said = json!({ "derived_key": derived(attempt.operation), "amount": 900 });
    service.send("/bank", attempt, said).await;
    room.recover().await;
    assert_eq!(room.state(attempt).await, State::Completed);
    let body = room.outcome(attempt).await.body_bytes().unwrap().clone();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({ "transferred": 900 }));
}

#[tokio::test]
async fn the_python_service_answers_done_never_and_cannot_tell() {
    // G-15
    let Some(service) = Service::start("python3", "python/service.py").await else { return };
    done_is_replayed(&service).await;
    never_is_fenced(&service).await;
    cannot_tell_waits_for_the_bank(&service).await;
}

#[tokio::test]
async fn the_node_service_answers_done_never_and_cannot_tell() {
    // G-15
    let Some(service) = Service::start("node", "node/service.mjs").await else { return };
    done_is_replayed(&service).await;
    never_is_fenced(&service).await;
    cannot_tell_waits_for_the_bank(&service).await;
}

#[tokio::test]
async fn receipts_and_fences_of_the_services_outlive_them() {
    // G-15
    for (program, script) in [("python3", "python/service.py"), ("node", "node/service.mjs")] {
        let Some(mut service) = Service::start(program, script).await else { continue };
        let mut room = Room::new(service.asked());
        let [done, lost] = [room.attempt("alice").await, room.attempt("bob").await];
        service.send("/charges", done, json!({ "amount": 350 })).await;
        room.recover().await;
        assert_eq!(room.state(lost).await, State::Released, "{program}");
        service.restart().await;
        let (status, _) = service.send("/charges", lost, json!({ "amount": 350 })).await;
        assert_eq!(status, 409, "{program}: the promise holds");
        let (status, body) = service.send("/charges", done, json!({ "amount": 350 })).await;
        assert_eq!((status, body), (201, json!({ "charged": 350 })), "{program}: the receipt is there");
        assert_eq!(service.charges().await, 1, "{program}");
    }
}

/// The statements of the SQL example, on SQLite.
#[derive(Clone)]
struct Ledger(Arc<Mutex<Connection>>);

fn statement(file: &str) -> String {
    std::fs::read_to_string(examples().join("sql").join(file)).unwrap()
}

fn number(token: Token) -> i64 {
    token.0.try_into().unwrap()
}

impl Ledger {
    fn new() -> Self {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch(&statement("receipts.sql")).unwrap();
        Self(Arc::new(Mutex::new(database)))
    }

    /// Whether the attempt may go on.
    fn begin(&self, attempt: Holder) -> bool {
        let database = self.0.lock().unwrap();
        let params = params![derived(attempt.operation), number(attempt.token)];
        let begun = database.query_row(&statement("begin.sql"), params, |row| row.get::<_, i64>(0));
        begun.optional().unwrap().is_some()
    }

    fn finish(&self, attempt: Holder, status: u16, body: &str) {
        let params = params![status, body, derived(attempt.operation)];
        let rows = self.0.lock().unwrap().execute(&statement("finish.sql"), params).unwrap();
        assert_eq!(rows, 1);
    }

    fn reconcile(&self, question: &Question) -> Reply {
        let params = params![derived(question.operation.id()), number(question.token)];
        let database = self.0.lock().unwrap();
        let (status, token, body, refused_through) = database
            .query_row(&statement("reconcile.sql"), params, |row| {
                let (status, token): (Option<u16>, Option<i64>) = (row.get(0)?, row.get(1)?);
                Ok((status, token, row.get::<_, Option<String>>(2)?, row.get::<_, i64>(3)?))
            })
            .unwrap();
        match (status, token) {
            (Some(status), _) => Reply::Done(Outcome { status, ..Outcome::text(body.unwrap_or_default()) }),
            (None, Some(_)) => Reply::CannotTell("it began".into()),
            (None, None) => Reply::Never { refused_through: Token(refused_through.unsigned_abs()) },
        }
    }

    fn asked(&self) -> Arc<dyn Ask> {
        let ledger = self.clone();
        Arc::new(move |question: Question| {
            let reply = ledger.reconcile(&question);
            async move { reply }
        })
    }
}

#[tokio::test]
async fn the_sql_statements_answer_done_never_and_cannot_tell() {
    // G-15
    let ledger = Ledger::new();
    let mut room = Room::new(ledger.asked());
    let [done, lost, begun] =
        [room.attempt("alice").await, room.attempt("bob").await, room.attempt("carol").await];
    assert!(ledger.begin(done) && !ledger.begin(done), "one of two copies goes on");
    ledger.finish(done, 201, "charged");
    assert!(ledger.begin(begun));
    room.recover().await;
    assert_eq!(room.state(done).await, State::Completed);
    assert_eq!(room.outcome(done).await.body_bytes().unwrap().as_ref(), b"charged");
    assert_eq!(room.state(lost).await, State::Released);
    assert_eq!(room.state(begun).await, State::Unknown);
    assert!(!ledger.begin(lost), "a late attempt is refused");
    let next = room.attempt("bob").await;
    assert!(ledger.begin(next), "the next one goes on");
    ledger.finish(begun, 200, "at last");
    room.recover().await;
    assert_eq!(room.state(begun).await, State::Completed);
    let question = Question {
        operation: room.record(next).await.operation,
        token: lost.token,
        nonce: lost.nonce,
        claimed_at: semel::Timestamp::default(),
    };
    assert!(matches!(ledger.reconcile(&question), Reply::CannotTell(_)), "an old question undoes nothing");
}

#[test]
fn the_manual_quotes_the_statements_as_they_are() {
    let manual = include_str!("../../../../../docs/reconcile.md");
    for file in ["begin.sql", "reconcile.sql"] {
        let whole = statement(file);
        let bare: Vec<&str> = whole.lines().filter(|line| !line.starts_with("--")).collect();
        assert!(manual.contains(&bare.join("\n")), "{file}");
    }
}
