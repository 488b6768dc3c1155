//! A gateway whose disk is full, read-only or damaged. Nothing runs twice, and nobody is told of a
//! success that is not stored.

use std::process::Stdio;

use tokio::process::Command;

use super::rig::{Caller, Gateway, Heard, ORDER, PATIENCE, Upstream, until};

/// Bytes a file may have on the full disk, and the most requests it takes to get there.
const ROOM: u64 = 800_000;
const REQUESTS_MAX: usize = 3000;

fn store(home: &std::path::Path) -> String {
    format!("sqlite:{}", home.join("semel.db").display())
}

#[tokio::test]
async fn on_a_full_disk_nothing_is_promised_and_with_room_again_all_is_done_once() {
    // G-17, G-18
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let (url, store) = (upstream.url(), store(home.path()));
    // A limit on the size of files is a full disk that needs no root. The signal that comes with it would
    // end the process; ignored, the write fails.
    let limit = format!("--fsize={ROOM}:unlimited");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec prlimit \"$@\"", "sh", &limit, env!("CARGO_BIN_EXE_semel")]);
    command.args(["gateway", "--listen", "127.0.0.1:0", "--upstream", &url, "--store", &store]);
    command.args(["--tenant", "none", "--store-patience", "200ms"]).stderr(Stdio::null());
    let gateway = Gateway::ready(&mut command).await;
    let caller = Caller::of(&gateway.address);
    let name = |at: usize| (format!("/pay/{at}"), format!("disk-full-{at:08}"));
    let (mut heard, mut refused): (Vec<Heard>, usize) = Default::default();
    while refused < 10 {
        assert!(heard.len() < REQUESTS_MAX, "the disk never filled up");
        let (path, key) = name(heard.len());
        let answer = caller.post(&path, &key, ORDER).await;
        match answer.status {
            201 => assert_eq!(answer.header("idempotency-unprotected"), None, "nothing runs unprotected"),
            503 if answer.problem() == "store-unavailable" => {
                assert_eq!(upstream.count(&path), 0, "nothing runs");
                refused += 1;
            }
            // It ran, and its outcome waits for room.
            503 => {
                assert_eq!(answer.problem(), "outcome-unknown");
                refused += 1;
            }
            _ => panic!("{answer:?}"),
        }
        heard.push(answer);
    }
    assert!(heard.len() > 10 + refused, "some were stored before");

    let process = gateway.child.id().expect("it runs").to_string();
    let lifted = Command::new("prlimit").args(["--pid", &process, "--fsize=unlimited"]).status().await;
    assert!(lifted.expect("prlimit runs").success());
    for (at, before) in heard.iter().enumerate() {
        let (path, key) = name(at);
        let now = until(&caller, &path, &key, |heard| heard.status == 201).await;
        if before.status == 201 {
            assert!(now.is_replay() && now.body == before.body, "{path}: {before:?}, then {now:?}");
        }
        assert_eq!(upstream.count(&path), 1, "{path}");
    }
    semel_testkit::ledger("gateway on a full disk", "sqlite", 1);
}

#[tokio::test]
async fn a_gateway_on_a_read_only_disk_says_so_and_takes_no_request() {
    // G-18
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let key = "disk-read-only-0001";
    let first = Caller::of(&gateway.address).post("/pay", key, ORDER).await;
    gateway.child.kill().await.expect("it is killed");

    // The same directory, read-only for one process. A user who is not root may be root in a namespace.
    let script = "mount --bind \"$D\" \"$D\" && mount -o remount,bind,ro \"$D\" || exit 77; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    command.args([env!("CARGO_BIN_EXE_semel"), "gateway", "--listen", "127.0.0.1:0", "--tenant", "none"]);
    command.args(["--upstream", &upstream.url(), "--store", &store(home.path())]).env("D", home.path());
    let ended = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await;
    let ended = ended.expect("it ends by itself").expect("unshare runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    if ended.status.code() == Some(77) || said.starts_with("unshare:") {
        assert!(std::env::var_os("CI").is_none(), "no disk can be made read-only here: {said}");
        eprintln!("NOT RUN: no disk can be made read-only here: {said}");
        return;
    }
    assert!(!ended.status.success() && said.contains("takes no writes"), "{said}");
    assert!(!String::from_utf8_lossy(&ended.stdout).contains("listening"), "{ended:?}");

    let gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let again = Caller::of(&gateway.address).post("/pay", key, ORDER).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    assert_eq!(upstream.count("/pay"), 1);
    semel_testkit::ledger("gateway on a read-only disk", "sqlite", 1);
}

#[tokio::test]
async fn a_damaged_page_frees_no_key_and_changes_no_answer() {
    // G-7, G-17
    const KEYS: usize = 120;
    const PAGE: usize = 4096;
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let caller = Caller::of(&gateway.address);
    let name = |at: usize| (format!("/pay/{at}"), format!("disk-damaged-{at:06}"));
    let mut first = Vec::new();
    for at in 0..KEYS {
        let (path, key) = name(at);
        first.push(caller.post(&path, &key, ORDER).await);
    }
    gateway.signal("-TERM");
    tokio::time::timeout(PATIENCE, gateway.child.wait()).await.expect("it ends").expect("it is waited for");
    let file = home.path().join("semel.db");
    let log = rusqlite::Connection::open(&file).expect("it opens");
    log.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("all is in one file");
    log.close().expect("it closes");
    let whole = std::fs::read(&file).expect("it is read");
    let pages = whole.len() / PAGE;
    assert!(pages > 8, "{pages} pages are too few to damage one in the middle");
    let mut unreadable = 0;
    for page in [pages / 4, pages / 2, pages * 3 / 4] {
        let mut damaged = whole.clone();
        damaged[page * PAGE..(page + 1) * PAGE].fill(0xa5);
        std::fs::write(&file, &damaged).expect("it is written");
        let gateway = Gateway::start(
            home.path(),
            &upstream.url(),
            &["--store-patience", "200ms", "--log-filter", "off"],
        )
        .await;
        let caller = Caller::of(&gateway.address);
        for (at, before) in first.iter().enumerate() {
            let (path, key) = name(at);
            let now = caller.post(&path, &key, ORDER).await;
            match now.status {
                201 => assert!(now.is_replay() && now.body == before.body, "page {page}, {key}: {now:?}"),
                503 => {
                    assert_eq!(now.problem(), "store-unavailable");
                    unreadable += 1;
                }
                _ => panic!("page {page}, {key}: {now:?}"),
            }
            assert_eq!(upstream.count(&path), 1, "page {page}: {key} ran again");
        }
    }
    assert!(unreadable > 0, "the damage was met");
    semel_testkit::ledger("gateway on a damaged disk", "sqlite", 3);
}
