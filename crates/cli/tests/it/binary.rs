//! The binary as a user meets it.

use std::process::{Command, Output};
use std::sync::Arc;

use semel::policy::Policy;
use semel::runtime::Tokio;
use semel::stores::sqlite::SqliteStore;
use semel::{Once, Outcome, Scope};

use crate::engines::engines;

fn semel(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_semel")).args(arguments).env_remove("SEMEL_STORE").output();
    output.expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_demo_shows_duplicates_without_semel_and_none_with_it() {
    // G-8, G-15
    for engine in engines() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = engine.fresh(dir.path());
        let output =
            semel(&["demo", "--workers", "40", "--payments", "10", "--crashes", "4", "--store", &url]);
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{shown}\n{}", text(&output.stderr));
        let counts = |row: &str| -> Vec<u64> {
            let line = shown.lines().rfind(|line| line.starts_with(row)).expect("the table has the row");
            line[row.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let [without, with] = ["without Semel", "with Semel"].map(counts);
        let (payments, crashes, charges, duplicates, missing) = (0, 3, 4, 5, 6);
        assert_eq!((with[charges], with[duplicates], with[missing]), (with[payments], 0, 0), "{shown}");
        assert_eq!(with[crashes], 4, "{shown}");
        assert!(without[duplicates] > 0, "nothing to protect from: {shown}");
        engine.remove(&url);
        semel_testkit::ledger("demo", engine.name, 1);
    }
}

#[test]
fn a_bad_store_address_is_a_sentence_not_a_panic() {
    for (address, hint) in [
        ("sqlite:/nonexistent/dir/semel.db", "/nonexistent/dir"),
        ("mongodb://localhost", "sqlite:"),
        ("postgres://user:secret@127.0.0.1:1/db", "127.0.0.1"),
        ("", "sqlite:"),
    ] {
        let output = semel(&["store", "status", "--store", address]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{address}: {said}");
        assert!(said.starts_with("semel: ") && said.contains(hint), "{address}: {said}");
        assert!(!said.contains("secret") && !said.contains("panicked"), "{address}: {said}");
    }
}

/// Gives out a token, and closes properly: only then has the witness certainly heard of it.
#[tokio::main]
async fn work_and_close(path: &std::path::Path) {
    let store = Arc::new(SqliteStore::open(path).expect("the store opens"));
    let once = Once::new(store.clone(), Arc::new(Tokio::new()));
    let prints = once.fingerprinter().await.expect("the store has keys");
    let scope = Scope::shared("restore", "pay").expect("the scope is fine");
    let key = "0123456789abcdef".parse().expect("the key is fine");
    let policy = Policy::default();
    let paid = once.run(scope, key, prints.of_bytes(b"100"), &policy, async |_| Outcome::text("paid")).await;
    assert!(paid.is_ok(), "{paid:?}");
    store.close().await;
}

#[tokio::main]
async fn make(path: &std::path::Path) {
    SqliteStore::open(path).expect("the store is made").close().await;
}

#[test]
fn whoever_reads_may_have_seen_enough() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("semel.db");
    make(&path);
    let url = format!("sqlite:{}", path.display());
    for arguments in [
        &["store", "status", "--store", &url][..],
        &["inbox", "--store", &url, "status"],
        &["verify", "--list"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        let ended = command.args(arguments).stdout(writer).output().expect("semel runs");
        assert!(ended.status.success() && ended.stderr.is_empty(), "{arguments:?}: {}", text(&ended.stderr));
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a full device");
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        let ended = command.args(arguments).stdout(full).output().expect("semel runs");
        assert!(
            text(&ended.stderr).contains("stdout takes no more"),
            "{arguments:?}: {}",
            text(&ended.stderr)
        );
    }
}

#[test]
fn an_operator_sees_and_accepts_a_restored_store() {
    // G-13
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("semel.db");
    let url = format!("sqlite:{}", path.display());
    let status = semel(&["store", "status", "--store", &url]);
    assert!(
        !status.status.success() && text(&status.stderr).contains("no store at"),
        "a name that was mistyped"
    );
    make(&path);
    let status = semel(&["store", "status", "--store", &url]);
    assert!(status.status.success(), "{}", text(&status.stderr));
    assert!(text(&status.stdout).contains("standing       open"));
    // As docs/stores.md has it: with its log, which a program that has just ended may leave behind.
    let (log, kept, kept_log) =
        (dir.path().join("semel.db-wal"), dir.path().join("backup"), dir.path().join("backup-wal"));
    std::fs::copy(&path, &kept).expect("the file is copied");
    let has_log = log.exists() && std::fs::copy(&log, &kept_log).is_ok();
    work_and_close(&path);
    for left in [&log, &dir.path().join("semel.db-shm")] {
        let _ = std::fs::remove_file(left);
    }
    std::fs::copy(&kept, &path).expect("the backup is put back");
    if has_log {
        std::fs::copy(&kept_log, &log).expect("its log is put back");
    }
    let closed = semel(&["store", "status", "--store", &url]);
    assert_eq!(closed.status.code(), Some(3), "{}{}", text(&closed.stdout), text(&closed.stderr));
    assert!(text(&closed.stdout).contains("CLOSED"));
    let accepted = semel(&["store", "acknowledge", "--by", "ops", "--store", &url]);
    assert!(accepted.status.success(), "{}", text(&accepted.stderr));
    let open = semel(&["store", "status", "--store", &url]);
    assert!(open.status.success() && text(&open.stdout).contains("standing       open"));
}
