//! Operations from other languages, by plain SQL: the examples of docs/messaging/sql.md, run as they are.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use semel::runtime::Tokio;
use semel::{EffectStore, MysqlStore, Once, Origin, Outcome, Policy, PostgresStore, Scope};

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

/// In Rust: what a program stored under `order-1` is replayed, and `order-2` is stored for it.
async fn replays_and_stores(store: Arc<dyn EffectStore>) {
    let spaced = |line: String| line.replace("\":1", "\": 1");
    let once = Once::new(store, Arc::new(Tokio::new()));
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
        replays_and_stores(store.clone()).await;
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

/// The shell of MariaDB, with a database of this test's own.
struct Shell {
    server: String,
    url: String,
}

impl Shell {
    fn new(server: String) -> Self {
        let name = format!("semel_e2e_{}", &semel::Nonce::random().to_string()[..12]);
        let (base, _) = server.rsplit_once('/').expect("the URL names a database");
        let shell = Self { url: format!("{base}/{name}"), server };
        shell.at(&shell.server, &format!("CREATE DATABASE {name}"));
        shell
    }

    fn run(&self, script: &str) -> String {
        self.at(&self.url, script)
    }

    fn pay(&self, key: &str, amount: &str) -> String {
        let pay = std::fs::read_to_string(root().join("examples/transactions/mariadb/pay.sql"));
        let digits = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let values = format!("SET @key = x'{}', @amount = x'{}';\n", digits(key), digits(amount));
        self.run(&(values + &pay.expect("the example is there")))
    }

    fn at(&self, url: &str, script: &str) -> String {
        let done = self.ask(url, script);
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stdout)
    }

    fn ask(&self, url: &str, script: &str) -> Output {
        let (_, rest) = url.split_once("://").expect("a URL");
        let (login, place) = rest.split_once('@').expect("a URL with a user");
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (address, database) = place.split_once('/').expect("a URL with a database");
        let (host, port) = address.split_once(':').unwrap_or((address, "3306"));
        let mut child = Command::new("mariadb")
            .args(["--skip-ssl", "-N", "-h", host, "-P", port, "-u", user, database])
            .env("MYSQL_PWD", password)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the shell of MariaDB starts");
        let mut input = child.stdin.take().expect("it reads");
        input.write_all(script.as_bytes()).expect("it reads all");
        drop(input);
        child.wait_with_output().expect("it ends")
    }
}

#[test]
fn from_the_shell_of_mariadb_an_operation_runs_once_and_is_replayed_by_everybody() {
    // G-30
    let Ok(server) = std::env::var("SEMEL_TEST_MARIADB") else {
        assert!(std::env::var("SEMEL_TEST_REQUIRE").is_err(), "SEMEL_TEST_MARIADB is not set");
        eprintln!("SKIPPED mariadb: SEMEL_TEST_MARIADB is not set; ./test starts a server");
        return;
    };
    let shell = Shell::new(server);
    // By hand, as `--print` is for.
    let printed = semel(&["migrate", "--print", "--store", &shell.url]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    shell.run(&text(&printed.stdout));
    let migrated = semel(&["migrate", "--store", &shell.url]);
    assert_eq!(text(&migrated.stdout), "the schema is up to date", "{}", text(&migrated.stderr));
    shell.run("CREATE TABLE payment (id bigint AUTO_INCREMENT PRIMARY KEY, tenant text, request blob) ENGINE = InnoDB");

    assert_eq!(shell.pay("order-1", "20 euro"), r#"fresh 201 {"payment": 1}"#);
    assert_eq!(shell.pay("order-1", "20 euro"), r#"replay 201 {"payment": 1}"#);
    assert_eq!(shell.pay("order-1", "30 euro"), "mismatch");
    assert_eq!(shell.run("SELECT COUNT(*) FROM payment; SELECT COUNT(*) FROM semel_outbox"), "1\n1");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let store = Arc::new(MysqlStore::connect(&shell.url).await.expect("the store opens"));
        replays_and_stores(store.clone()).await;
        store.close().await;
    });
    assert_eq!(shell.pay("order-2", "50 euro"), "replay 201 from Rust");
    assert_eq!(shell.run("SELECT COUNT(*) FROM payment"), "1");

    // G-45, G-70: the ledger and fences.
    let consume = "CALL semel_consume('g', 'orders', 'm-1', 'a');";
    let taken =
        shell.run(&format!("START TRANSACTION; {consume} COMMIT; START TRANSACTION; {consume} ROLLBACK;"));
    assert_eq!(taken, "new\nduplicate");
    let leased = shell.run("CALL semel_lease('order/7'); CALL semel_lease('order/7');");
    let tokens: Vec<u64> = leased.lines().map(|line| line.parse().expect("a number")).collect();
    let [early, later] = tokens[..] else { panic!("two tokens, not {leased}") };
    assert!(early < later);
    shell.run(&format!("START TRANSACTION; CALL semel_pass('order/7', {later}); COMMIT;"));
    let late = shell.ask(&shell.url, &format!("START TRANSACTION; CALL semel_pass('order/7', {early});"));
    assert!(text(&late.stderr).contains("SM006"), "a later token has written");
    let name = shell.url.rsplit_once('/').expect("a name").1;
    shell.at(&shell.server, &format!("DROP DATABASE {name}"));
    semel_testkit::ledger("transactions from its shell", "mariadb", 1);
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
