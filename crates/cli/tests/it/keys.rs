//! `semel keys` as an operator uses it: the real binary, on stores filled through the library.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use semel::claim::{Claim, Request};
use semel::record::{Recovery, Terms};
use semel::runtime::Tokio;
use semel::stores::sqlite::Options;
use semel::verbs::{Change, Complete, Completion, MarkUnknown, Release, Witness};
use semel::{
    Clock, EffectStore, Lease, Nonce, Once, Operation, Origin, Outcome, Policy, Scope, SqliteStore, State,
    SystemClock, Timestamp,
};
use serde_json::{Value, json};

use crate::engines::engines;

const HOUR: Duration = Duration::from_secs(3600);
const BODY: &[u8] = br#"{"amount": 350}"#;

/// A store filled by hand, and the operator's shell.
struct Desk {
    store: Arc<dyn EffectStore>,
    url: String,
}

/// Runs a test on a fresh store of every engine there is.
fn on_every_engine(test: impl AsyncFn(&Desk)) {
    for engine in engines() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = engine.fresh(dir.path());
        let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
        runtime.block_on(async {
            let store = semel::stores::open(&url).await.expect("the store opens");
            test(&Desk { store, url: url.clone() }).await;
        });
        drop(runtime);
        engine.remove(&url);
        semel_testkit::ledger("keys", engine.name, 1);
    }
}

impl Desk {
    /// On SQLite with a clock that is behind: what it leaves behind is old.
    fn of_long_ago(dir: &Path) -> Self {
        let path = dir.join("semel.db");
        let options = Options { clock: Arc::new(TwoHoursAgo), ..Options::default() };
        let store = SqliteStore::open_with(&path, options).expect("the store opens");
        Self { store: Arc::new(store), url: format!("sqlite:{}", path.display()) }
    }

    async fn claim(&self, order: &Operation, recovery: Recovery, subject: Option<&str>) -> Lease {
        let request = Request {
            operation: Arc::new(order.clone()),
            nonce: Nonce::random(),
            print: self.once().fingerprinter().await.expect("keys").of_json(BODY).current().clone(),
            terms: Terms { recovery, lease: HOUR, run_max: HOUR, ttl: 24 * HOUR, retry_window: 8 * HOUR },
            subject: subject.map(Into::into),
        };
        match self.store.claim(&request).await.expect("the store answers") {
            Claim::Granted(lease) => lease,
            other => panic!("the claim should be granted, not {other:?}"),
        }
    }

    async fn completed(&self, order: &Operation, answer: &str, subject: Option<&str>) {
        let lease = self.claim(order, Recovery::Hold, subject).await;
        assert_eq!(self.complete(&lease, answer).await, Completion::Stored);
    }

    async fn complete(&self, lease: &Lease, answer: &str) -> Completion {
        let outcome = Outcome { status: 201, ..Outcome::text(answer) }.encode().into();
        let complete = Complete { holder: lease.holder, outcome, ttl_min: None };
        self.store.complete(&complete).await.expect("the store answers")
    }

    async fn unknown(&self, order: &Operation) {
        let lease = self.claim(order, Recovery::Hold, None).await;
        let mark = MarkUnknown { witness: Witness::Holder(lease.holder), note: "the bank hung up".into() };
        assert_eq!(self.store.mark_unknown(&mark).await.expect("the store answers"), Change::Made);
    }

    /// An operation whose second attempt completed, and whose first then brought an answer too.
    async fn doubled(&self, order: &Operation) {
        let first = self.claim(order, Recovery::Hold, None).await;
        let release = Release { holder: first.holder };
        assert_eq!(self.store.release(&release).await.expect("the store answers"), Change::Made);
        self.completed(order, "the second charge", None).await;
        assert!(matches!(self.complete(&first, "the first charge").await, Completion::Refused(_)));
    }

    async fn state(&self, order: &Operation) -> State {
        self.store.get(order.id()).await.expect("the store answers").expect("there is a record").state
    }

    fn once(&self) -> Once {
        Once::new(self.store.clone(), Arc::new(Tokio::new()))
    }

    /// What a client hears that tries again.
    async fn retry(&self, order: &Operation) -> semel::Answer {
        let once = self.once();
        let print = once.fingerprinter().await.expect("keys").of_json(BODY);
        let (scope, key) = (order.scope().clone(), order.key().clone());
        let effect = async |_| Outcome::text("charged again");
        once.run(scope, key, print, &Policy::default(), effect).await.expect("there is an answer")
    }

    fn keys(&self, arguments: &[&str]) -> Said {
        semel_keys(&[arguments, &["--store", &self.url]].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.keys(&[arguments, &["--json"]].concat());
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
        serde_json::from_str(&said.out).expect("--json prints JSON")
    }
}

struct TwoHoursAgo;

impl Clock for TwoHoursAgo {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemClock.now().as_micros() - 7_200_000_000)
    }
}

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn semel_keys(arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("keys").args(arguments).env_remove("SEMEL_STORE").env("USER", "nora");
    let Output { status, stdout, stderr } = command.output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints UTF-8");
    let said = Said { code: status.code().expect("it ends by itself"), out: text(stdout), err: text(stderr) };
    assert!(!said.err.contains("panicked"), "{arguments:?}: {}", said.err);
    said
}

fn order(tenant: Option<&str>, route: &str, key: &str) -> Operation {
    let scope = match tenant {
        Some(tenant) => Scope::new("shop", tenant, route),
        None => Scope::shared("shop", route),
    };
    Operation::new(scope.expect("a scope"), key.parse().expect("a key"))
}

fn ids(listing: &Value) -> Vec<&str> {
    let operations = listing["operations"].as_array().expect("a list of operations");
    operations.iter().map(|each| each["id"].as_str().expect("an id")).collect()
}

#[test]
fn an_operator_finds_operations_by_key_state_route_and_tenant() {
    // G-81
    on_every_engine(async |desk| {
        let alice = order(Some("alice"), "charge", "order-1042-payment");
        let bob = order(Some("bob"), "charge", "order-1042-payment");
        let nobody = order(None, "refund", "order-7-refund-key");
        let doubled = order(Some("alice"), "refund", "order-8-refund-key");
        desk.completed(&alice, "paid", None).await;
        desk.unknown(&bob).await;
        desk.claim(&nobody, Recovery::Hold, None).await;
        desk.doubled(&doubled).await;
        let [a, b, n, d] = [&alice, &bob, &nobody, &doubled].map(|order| order.id().to_string());

        for (arguments, expected) in [
            (vec![], vec![&a, &b, &n, &d]),
            (vec!["--state", "unknown"], vec![&b]),
            (vec!["--state", "in-progress,completed"], vec![&a, &n, &d]),
            (vec!["--key", "order-1042-payment"], vec![&a, &b]),
            (vec!["--key", "\"order-1042-payment\"", "--tenant", "bob"], vec![&b]),
            (vec!["--route", "refund"], vec![&n, &d]),
            (vec!["--no-tenant"], vec![&n]),
            (vec!["--namespace", "another"], vec![]),
            (
                vec![
                    "--key",
                    "order-7-refund-key",
                    "--no-tenant",
                    "--route",
                    "refund",
                    "--namespace",
                    "shop",
                ],
                vec![&n],
            ),
        ] {
            let listing = desk.json(&[&["list"], &arguments[..]].concat());
            assert_eq!(ids(&listing), expected, "{arguments:?}");
            assert_eq!(listing["next"], Value::Null);
        }

        let mut after = 0;
        for expected in [&a, &b, &n, &d] {
            let page = desk.json(&["list", "--limit", "1", "--after", &after.to_string()]);
            assert_eq!(ids(&page), [expected], "one by one");
            after = page["next"].as_u64().unwrap_or(u64::MAX >> 1);
        }

        let said = desk.keys(&["list"]);
        let lines: Vec<&str> = said.out.lines().collect();
        assert_eq!((said.code, lines.len()), (0, 5), "{}", said.out);
        assert!(lines[0].starts_with("ID ") && lines[0].contains("ATTEMPTS"), "{}", said.out);
        let column = lines[0].find("STATE").expect("a column of states");
        for (line, state) in lines[1..].iter().zip(["completed", "unknown", "in_progress", "completed"]) {
            assert!(line[column..].starts_with(state), "{}", said.out);
        }
        assert!(lines[4].ends_with("POSSIBLE DOUBLE EFFECT") && !lines[1].contains("DOUBLE"), "{}", said.out);
    });
}

#[test]
fn an_operator_sees_history_and_evidence_of_one_operation() {
    // G-9, G-81
    on_every_engine(async |desk| {
        let doubled = order(Some("alice"), "charge", "order-9-double-charge");
        desk.doubled(&doubled).await;
        let id = doubled.id().to_string();
        for which in [id.as_str(), "order-9-double-charge"] {
            let said = desk.keys(&["show", which, "--bodies"]);
            assert_eq!(said.code, 0, "{}", said.err);
            for part in [
                &id,
                "order-9-double-charge",
                "alice",
                "completed",
                "reclaimed",
                "refused outcome",
                "possible double effect",
                "the first charge",
                "the second charge",
            ] {
                assert!(said.out.contains(part), "{part:?} is missing: {}", said.out);
            }
        }
        let quiet = desk.keys(&["show", &id]);
        assert!(
            !quiet.out.contains("the first charge"),
            "bodies are shown only when asked for: {}",
            quiet.out
        );
        let json = desk.json(&["show", &id, "--bodies"]);
        assert_eq!(
            (json["outcome"]["status"].as_u64(), json["outcome"]["body"].as_str()),
            (Some(201), Some("the second charge"))
        );
        let history = json["history"].as_array().expect("a history");
        let refused = history.iter().find(|event| event["what"] == "refused_outcome").expect("the evidence");
        assert_eq!(refused["evidence"]["body"], "the first charge");
        assert!(json["possible_double_effect"].as_bool().expect("a flag"));

        desk.unknown(&order(Some("bob"), "charge", "order-9-double-charge")).await;
        for verb in [&["show"][..], &["free"], &["purge"], &["settle", "--never"]] {
            let said = desk.keys(&[verb, &["order-9-double-charge"]].concat());
            assert_eq!((said.code, said.out.as_str()), (1, ""), "{verb:?}");
            assert!(
                said.err.contains("2 operations have the key") && said.err.contains("bob"),
                "{}",
                said.err
            );
        }
        let one = desk.json(&["show", "order-9-double-charge", "--tenant", "bob"]);
        assert_eq!(one["state"], "unknown");
        let none = desk.keys(&["show", "never-heard-of-it"]);
        assert!(none.code == 1 && none.err.contains("no operation"), "{}", none.err);
    });
}

#[test]
fn a_settled_answer_is_what_retries_get_and_it_never_changes() {
    // G-7, G-15, G-81
    on_every_engine(async |desk| {
        let order = order(Some("alice"), "charge", "order-10-unknown");
        desk.unknown(&order).await;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let body = dir.path().join("answer.json");
        std::fs::write(&body, r#"{"id": "ch_7"}"#).expect("the body is written");
        let body = body.display().to_string();
        let done = [
            "settle",
            "order-10-unknown",
            "--done",
            "--status",
            "201",
            "--body-file",
            &body,
            "--header",
            "Content-Type: application/json",
        ];
        let settled = desk.json(&[&done[..], &["--note", "seen at the bank"]].concat());
        assert_eq!(
            (&settled["result"], &settled["operation"]["state"]),
            (&json!("made"), &json!("completed"))
        );
        let history = settled["operation"]["history"].as_array().expect("a history");
        let note = history.last().expect("the settlement")["note"].as_str().expect("a note");
        assert!(note.starts_with("nora@") && note.ends_with(": seen at the bank"), "{note}");

        let answer = desk.retry(&order).await;
        assert_eq!((answer.origin, answer.outcome.status), (Origin::Replayed, 201));
        assert_eq!(answer.outcome.body_bytes().expect("a body").as_ref(), br#"{"id": "ch_7"}"#);
        assert_eq!(answer.outcome.header("content-type").expect("a header").as_ref(), b"application/json");

        for verb in [&done[..], &["settle", "order-10-unknown", "--never"], &["free", "order-10-unknown"]] {
            let said = desk.keys(verb);
            assert!(said.code == 1 && said.err.contains("never changes"), "{verb:?}: {}", said.err);
        }
        assert_eq!(desk.retry(&order).await, answer, "nothing changed");
    });
}

#[test]
fn what_is_in_flight_cannot_be_ended_and_what_is_freed_runs_again() {
    // G-15, G-81
    on_every_engine(async |desk| {
        let running = order(None, "charge", "order-11-running");
        desk.claim(&running, Recovery::Hold, None).await;
        for verb in
            [&["free"][..], &["settle", "--never"], &["settle", "--done", "--status", "200"], &["purge"]]
        {
            let said = desk.keys(&[verb, &["order-11-running"]].concat());
            assert_eq!(said.code, 1, "{verb:?}: {}", said.out);
            assert!(said.err.contains("is in flight") && said.err.contains("Wait"), "{verb:?}: {}", said.err);
            assert_eq!(desk.state(&running).await, State::InProgress);
        }
        let lost = order(None, "charge", "order-12-lost");
        desk.unknown(&lost).await;
        let refused = desk.keys(&["purge", "order-12-lost"]);
        assert!(refused.code == 1 && refused.err.contains("Settle it first"), "{}", refused.err);
        let freed =
            desk.json(&["free", "order-12-lost", "--by", "the night shift", "--note", "not at the bank"]);
        assert_eq!(freed["operation"]["state"], "released");
        let history = freed["operation"]["history"].as_array().expect("a history");
        assert_eq!(history.last().expect("the settlement")["note"], "the night shift: not at the bank");
        assert_eq!(desk.retry(&lost).await.origin, Origin::Fresh, "the next attempt runs");
    });
}

#[test]
fn a_lease_that_lapsed_unnoticed_can_be_ended_but_not_under_rerun() {
    // G-15, G-81
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let desk = Desk::of_long_ago(dir.path());
        let lapsed = order(None, "charge", "order-13-lapsed");
        desk.claim(&lapsed, Recovery::Hold, None).await;
        let said = desk.keys(&["list"]);
        assert!(said.out.contains("lease lapsed") && said.out.contains("2h"), "{}", said.out);
        let settled = desk.json(&["settle", "order-13-lapsed", "--never"]);
        assert_eq!(settled["operation"]["state"], "released");
        let what: Vec<&str> = settled["operation"]["history"]
            .as_array()
            .expect("a history")
            .iter()
            .map(|event| event["what"].as_str().expect("a kind"))
            .collect();
        assert_eq!(what, ["lapsed", "settled_never"]);

        let again = order(None, "charge", "order-14-rerun");
        desk.claim(&again, Recovery::Rerun, None).await;
        let said = desk.keys(&["free", "order-14-rerun"]);
        assert!(said.code == 1 && said.err.contains("runs by itself"), "{}", said.err);
    });
}

#[test]
fn a_purge_leaves_the_key_used_and_a_subject_is_purged_whole() {
    // G-10, G-81
    on_every_engine(async |desk| {
        let one = order(Some("alice"), "charge", "order-15-purged");
        desk.completed(&one, "card 4242", Some("customer-3")).await;
        let said = desk.keys(&["purge", "order-15-purged", "--note", "asked to"]);
        assert!(said.code == 0 && said.out.contains("stays used until"), "{}{}", said.out, said.err);
        assert_eq!(desk.state(&one).await, State::Tombstone);
        let shown = desk.json(&["show", "order-15-purged", "--bodies"]);
        assert_eq!((&shown["outcome"], &shown["subject"]), (&Value::Null, &Value::Null));
        let note = shown["history"][0]["note"].as_str().expect("a note");
        assert!(note.starts_with("nora@") && note.ends_with(": asked to"), "{note}");

        let [two, three] =
            ["order-16-purged", "order-17-open"].map(|key| order(Some("alice"), "charge", key));
        desk.completed(&two, "card 4242", Some("customer-4")).await;
        desk.claim(&three, Recovery::Hold, Some("customer-4")).await;
        let purged = desk.json(&["purge", "--subject", "customer-4"]);
        assert_eq!((&purged["purged"], &purged["open"]), (&json!(1), &json!(1)));
        assert_eq!((desk.state(&two).await, desk.state(&three).await), (State::Tombstone, State::InProgress));
    });
}

#[test]
fn wrong_use_is_told_apart_from_what_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = format!("sqlite:{}", dir.path().join("missing.db").display());
    for arguments in [
        &["show"][..],
        &["show", "two words"],
        &["list", "--state", "gone"],
        &["list", "--limit", "0"],
        &["settle", "key"],
        &["settle", "key", "--done"],
        &["settle", "key", "--done", "--never", "--status", "200"],
        &["settle", "key", "--done", "--status", "100"],
        &["settle", "key", "--done", "--status", "200", "--header", "Semel-Hint: decided"],
        &["free", "key", "--by", " "],
        &["free", "key", "--by", "ops: root"],
        &["free", "key", "--note", &"x".repeat(401)],
        &["purge"],
        &["list", "--tenant", "a", "--no-tenant"],
        &["list", "--admin", "http://127.0.0.1:1"],
    ] {
        let said = semel_keys(&[arguments, &["--store", &url]].concat());
        assert_eq!(said.code, 2, "{arguments:?}: {}{}", said.out, said.err);
    }
    let said = semel_keys(&["list", "--store", &url]);
    assert!(said.code == 1 && said.err.contains("no store at"), "{}", said.err);
    assert!(!dir.path().join("missing.db").exists(), "looking makes nothing");
    let said = semel_keys(&["list", "--admin", "http://127.0.0.1:1"]);
    assert!(said.code == 1 && said.err.contains("does not answer"), "{}", said.err);
    let said = semel_keys(&["list", "--admin", "https://127.0.0.1:1"]);
    assert!(said.code == 1 && said.err.contains("plain HTTP"), "{}", said.err);
}

/// What a stand-in gateway was sent: request line, headers, body.
type Call = (String, String, Value);

/// In place of a status: the answer gets lost.
const HANG_UP: u16 = 0;

/// A stand-in for the admin API: answers calls in their order, and tells what was sent.
fn gateway(answers: Vec<(u16, Value)>) -> (String, mpsc::Receiver<Call>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for (status, answer) in answers {
            let (stream, _) = listener.accept().expect("a call comes");
            // Whoever listens may have given up.
            let _ = tell.send(serve(stream, status, &answer.to_string()));
        }
    });
    (address, told)
}

fn serve(mut stream: TcpStream, status: u16, answer: &str) -> Call {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let lines = reader.by_ref().lines().map(|line| line.expect("a head is readable"));
    let mut head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let call = head.remove(0);
    let head = head.join("\n").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a length"))];
    reader.read_exact(&mut body).expect("the body comes");
    let length = answer.len();
    if status == HANG_UP {
        return (call, head, serde_json::from_slice(&body).unwrap_or(Value::Null));
    }
    write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}")
        .expect("the answer leaves");
    (call, head, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// The calls that came; that many must have.
fn calls(told: &mpsc::Receiver<Call>, count: usize) -> Vec<Call> {
    let next = |_| told.recv_timeout(Duration::from_secs(10)).expect("the gateway was called as often");
    (0..count).map(next).collect()
}

fn shown(state: &str) -> Value {
    json!({
        "id": order(None, "charge", "order-20").id().to_string(), "namespace": "shop", "tenant": null,
        "route": "charge", "key": "order-20", "state": state, "token": 7, "nonce": "00", "attempts": 1,
        "recovery": "hold", "subject": null, "created_at": "2026-11-16T04:00:00.000000Z",
        "attempt_at": "2026-11-16T04:00:00.000000Z", "lease_until": "2026-11-16T04:00:30.000000Z", "may_run_until": "2026-11-16T04:05:00.000000Z",
        "settled_at": "2026-11-16T04:01:00.000000Z", "expires_at": null, "possible_double_effect": false,
    })
}

#[test]
fn the_admin_api_is_asked_the_same_questions() {
    // G-81
    let dir = tempfile::tempdir().expect("a temporary directory");
    let token = dir.path().join("token");
    std::fs::write(&token, "s3cret\n").expect("the token is written");
    let (token, id) = (token.display().to_string(), order(None, "charge", "order-20").id().to_string());
    let page = json!({ "operations": [shown("unknown")], "next": null });
    let changed = |state| json!({ "result": "made", "operation": shown(state) });

    let (url, served) = gateway(vec![(200, page.clone())]);
    let said = semel_keys(&[
        "list",
        "--state",
        "unknown",
        "--no-tenant",
        "--route",
        "POST /x",
        "--admin",
        &url,
        "--token-file",
        &token,
    ]);
    assert!(said.code == 0 && said.out.contains("order-20"), "{}", said.err);
    let sent = calls(&served, 1);
    assert_eq!(
        sent[0].0,
        "GET /v1/operations?after=0&limit=50&route=POST%20%2Fx&tenant=&state=unknown HTTP/1.1"
    );
    assert!(sent[0].1.contains("authorization: bearer s3cret"), "{}", sent[0].1);

    let (url, served) = gateway(vec![(200, page), (200, shown("unknown")), (200, changed("completed"))]);
    let said = semel_keys(&[
        "settle", "order-20", "--done", "--status", "201", "--header", "etag: x", "--by", "ops", "--admin",
        &url,
    ]);
    assert_eq!(said.code, 0, "{}", said.err);
    let sent = calls(&served, 3);
    assert_eq!(sent[2].0, format!("POST /v1/operations/{id}/settle HTTP/1.1"));
    let outcome = json!({ "status": 201, "headers": [["etag", "x"]], "body": "" });
    assert_eq!(
        sent[2].2,
        json!({ "token": 7, "finding": "done", "outcome": outcome, "by": "ops", "note": "" })
    );

    let (url, served) = gateway(vec![(200, shown("unknown")), (200, changed("released"))]);
    let said = semel_keys(&["free", &id, "--by", "ops", "--note", "sure", "--admin", &url]);
    assert_eq!(said.code, 0, "{}", said.err);
    let sent = calls(&served, 2);
    assert_eq!(sent[1].0, format!("POST /v1/operations/{id}/free HTTP/1.1"));
    assert_eq!(sent[1].2, json!({ "token": 7, "by": "ops", "note": "sure" }));

    // G-9: an answer that got lost is found out by saying the same again.
    let (url, served) =
        gateway(vec![(200, shown("unknown")), (HANG_UP, Value::Null), (200, changed("released"))]);
    let said = semel_keys(&["free", &id, "--by", "ops", "--admin", &url]);
    assert_eq!(said.code, 0, "{}", said.err);
    let sent = calls(&served, 3);
    assert_eq!((&sent[1].0, &sent[1].2), (&sent[2].0, &sent[2].2));

    let problem =
        json!({ "title": "The operation is not in a state that allows this", "detail": "it is completed" });
    let (url, served) = gateway(vec![(200, shown("completed")), (409, problem)]);
    let said = semel_keys(&["purge", &id, "--by", "ops", "--admin", &url]);
    assert!(said.code == 1 && said.err.contains("it is completed"), "{}", said.err);
    calls(&served, 2);

    let (url, served) = gateway(vec![(200, json!({ "purged": 3, "open": 1, "more": false }))]);
    let said = semel_keys(&["purge", "--subject", "a/b c", "--by", "ops", "--json", "--admin", &url]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(calls(&served, 1)[0].0, "POST /v1/subjects/a%2Fb%20c/purge HTTP/1.1");

    let (url, served) = gateway(vec![(401, json!({ "title": "A valid token is needed" }))]);
    let said = semel_keys(&["list", "--admin", &url]);
    assert!(said.code == 1 && said.err.contains("--token-file"), "{}", said.err);
    calls(&served, 1);

    let (url, served) = gateway(vec![(404, json!({})), (200, json!({ "operations": [], "next": null }))]);
    let said = semel_keys(&["show", &id, "--admin", &url]);
    assert!(said.code == 1 && said.err.contains("no operation"), "{}", said.err);
    calls(&served, 2);
}
