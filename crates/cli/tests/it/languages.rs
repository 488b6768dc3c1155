//! Operations from other languages, by plain SQL: the examples of docs/messaging/sql.md, run as they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use semel::runtime::Tokio;
use semel::{Once, Origin, Outcome, Policy, PostgresStore, Scope};

use crate::engines::{Engine, engines};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn semel(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_semel")).args(arguments).env_remove("SEMEL_STORE").output();
    output.expect("the binary starts")
}

/// Where the drivers of a language are, or nothing and a loud remark.
fn driver(language: &str) -> Option<String> {
    let found = Command::new(root().join("scripts/languages.sh")).arg(language).output();
    match found {
        Ok(found) if found.status.success() => Some(text(&found.stdout)),
        found => {
            let why = found.map_or_else(|error| error.to_string(), |found| text(&found.stderr));
            assert!(std::env::var("SEMEL_TEST_REQUIRE").is_err(), "{language} cannot be had: {why}");
            eprintln!("SKIPPED {language}: its driver cannot be had: {why}");
            None
        }
    }
}

/// How a program is called, with a URL, a key and an amount.
type Call = dyn Fn(&str, &str, &str) -> Command;

/// A program that pays once: given key and amount, it prints decision, status and body.
struct Program<'a> {
    engine: &'a Engine,
    url: String,
    command: Box<Call>,
}

impl Program<'_> {
    fn pay(&self, key: &str, amount: &str) -> String {
        let output = (self.command)(&self.url, key, amount).output().expect("the program starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn number(&self, sql: &str) -> String {
        self.engine.query(&self.url, sql).expect("a server").trim().to_owned()
    }
}

/// Both ways: what the program stored is replayed in Rust, and what Rust stored by the program.
fn both_ways(language: &str, command: impl Fn(&str, &str, &str) -> Command + 'static) {
    let engine = engines().into_iter().find(|engine| engine.name == "postgres");
    let Some(engine) = engine else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = Program { engine: &engine, url: engine.fresh(dir.path()), command: Box::new(command) };
    let migrated = semel(&["migrate", "--store", &program.url]);
    assert!(migrated.status.success(), "{}", text(&migrated.stderr));
    program.number(
        "CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY, tenant text NOT NULL, request bytea NOT NULL)",
    );

    let paid = r#"201 {"payment": 1}"#.to_owned();
    let spaced = |line: String| line.replace("\":1", "\": 1");
    assert_eq!(spaced(program.pay("order-1", "20 euro")), format!("fresh {paid}"));
    assert_eq!(spaced(program.pay("order-1", "20 euro")), format!("replay {paid}"));
    assert!(program.pay("order-1", "30 euro").starts_with("mismatch "));
    assert_eq!(program.number("SELECT count(*) FROM payment"), "1");
    assert_eq!(program.number("SELECT count(*) FROM semel_outbox WHERE key = 'payment-1'"), "1");

    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let store = Arc::new(PostgresStore::connect(&program.url).await.expect("the store opens"));
        let once = Once::new(store.clone(), Arc::new(Tokio::new()));
        let prints = once.fingerprinter().await.expect("keys");
        let scope = || Scope::new("shop", "alice", "pay").expect("a scope");
        let run = async |key: &str, print, answer: &'static str| {
            let effect = async move |_| Outcome { status: 201, ..Outcome::bytes("application/json", answer) };
            once.run(scope(), key.parse().expect("a key"), print, &Policy::default(), effect).await
        };
        let replayed = run("order-1", prints.of_bytes(b"20 euro"), "again").await.expect("it has happened");
        assert_eq!(replayed.origin, Origin::Replayed);
        assert_eq!(replayed.outcome.status, 201);
        assert_eq!(replayed.outcome.header("content-type").expect("a header"), "application/json");
        let body = replayed.outcome.body_bytes().expect("a body");
        assert_eq!(spaced(text(body)), r#"{"payment": 1}"#);
        let changed = run("order-1", prints.of_bytes(b"30 euro"), "again").await;
        assert!(matches!(changed, Err(semel::Refusal::Mismatch(_))), "{changed:?}");

        let fresh = run("order-2", prints.of_bytes(b"50 euro"), "from Rust").await.expect("it runs");
        assert_eq!(fresh.origin, Origin::Fresh);
        store.close().await;
    });
    assert_eq!(program.pay("order-2", "50 euro"), "replay 201 from Rust");
    assert_eq!(program.number("SELECT count(*) FROM payment"), "1");
    engine.remove(&program.url);
    semel_testkit::ledger(&format!("transactions from {language}"), "postgres", 1);
}

#[test]
fn from_python_an_operation_runs_once_and_is_replayed_by_everybody() {
    // G-30
    let Some(python) = driver("python") else { return };
    both_ways("python", move |url, key, amount| {
        let mut command = Command::new(&python);
        command.arg(root().join("examples/transactions/python/pay.py")).args([url, key, amount]);
        command
    });
}

#[test]
fn from_node_an_operation_runs_once_and_is_replayed_by_everybody() {
    // G-30
    let Some(home) = driver("node") else { return };
    both_ways("node", move |url, key, amount| {
        let mut command = Command::new("node");
        command.arg(root().join("examples/transactions/node/pay.mjs")).args([url, key, amount]);
        command.env("SEMEL_LANGUAGES_NODE", &home);
        command
    });
}

#[test]
fn from_psql_an_operation_runs_once_and_is_replayed_by_everybody() {
    // G-30
    both_ways("psql", move |url, key, amount| {
        let psql = std::env::var("SEMEL_TEST_PG_BIN").map_or("psql".into(), |bin| format!("{bin}/psql"));
        let mut command = Command::new(psql);
        command.args([url, "-qXAt", "-v", "ON_ERROR_STOP=1", "-v", &format!("key={key}")]);
        command.args(["-v", &format!("amount={amount}"), "-f"]);
        command.arg(root().join("examples/transactions/psql/pay.sql"));
        command
    });
}

#[test]
fn the_printed_script_makes_the_store_that_migrate_makes() {
    for engine in engines() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = engine.fresh(dir.path());
        let print = || {
            let printed = semel(&["migrate", "--print", "--store", &url]);
            assert!(printed.status.success(), "{}", text(&printed.stderr));
            text(&printed.stdout)
        };
        let script = print();
        assert!(script.contains("semel_operation") && script.ends_with("COMMIT;"), "{script}");
        assert_eq!(print(), script, "nothing was changed");
        match url.strip_prefix("sqlite:") {
            Some(path) => {
                assert!(!Path::new(path).exists(), "looking makes no file");
                rusqlite::Connection::open(path).expect("a file").execute_batch(&script).expect("it runs");
            }
            None => drop(engine.query(&url, &script)),
        }
        assert_eq!(print(), "");
        let again = semel(&["migrate", "--store", &url]);
        assert_eq!(text(&again.stdout), "the schema is up to date", "{}", text(&again.stderr));
        let status = semel(&["store", "status", "--store", &url]);
        assert!(text(&status.stdout).contains("standing       open"), "{}", text(&status.stdout));
        engine.remove(&url);
        semel_testkit::ledger("semel migrate", engine.name, 1);
    }
}

#[test]
fn a_store_that_cannot_be_migrated_says_why() {
    for (url, why) in [("memory:", "no schema"), ("redis://x", "not known"), ("sqlite:", "names no file")] {
        for mode in [&["migrate", "--store", url][..], &["migrate", "--print", "--store", url]] {
            let refused = semel(mode);
            assert!(!refused.status.success());
            assert!(text(&refused.stderr).contains(why), "{}", text(&refused.stderr));
        }
    }
}
