//! What can be wrong with a file, a directory, a disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use semel_core::error::Kind;

use super::*;

#[test]
fn a_missing_directory_is_named() {
    let disk = Disk::new();
    let text = refused(SqliteStore::open(disk.0.path().join("nowhere/semel.db")), Kind::Misconfigured);
    assert!(text.contains("nowhere") && text.contains("does not exist"), "{text}");
}

#[test]
fn a_directory_is_no_database() {
    let disk = Disk::new();
    let text = refused(SqliteStore::open(disk.0.path()), Kind::Misconfigured);
    assert!(text.contains("name a file"), "{text}");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let disk = Disk::new();
    let letter = "Dear Sir or Madam, ".repeat(1000);
    fs::write(disk.path(), &letter).unwrap();
    let text = refused(SqliteStore::open(disk.path()), Kind::Damaged);
    assert!(text.contains("no SQLite database"), "{text}");
    assert_eq!(fs::read_to_string(disk.path()).unwrap(), letter);
}

#[tokio::test]
async fn damaged_pages_are_an_error_and_no_panic() {
    let disk = Disk::new();
    let store = disk.open();
    for n in 0..100 {
        complete(&store, &claim(&store, &format!("page-{n}")).await, vec![b'x'; 300]).await;
    }
    store.close().await;
    let whole = fs::read(disk.path()).unwrap();
    // The header, the schema, and then every other page.
    for from in [0, 16, 100, 4096, 2 * 4096, 8 * 4096] {
        let mut damaged = whole.clone();
        let end = if from < 4096 { from + 64 } else { damaged.len() };
        damaged[from..end].fill(0xa5);
        fs::write(disk.path(), &damaged).unwrap();
        let store = match SqliteStore::open(disk.path()) {
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Damaged | Kind::Schema), "{from}: {error}");
                continue;
            }
            Ok(store) => store,
        };
        let error = store.claim(&request("page-50")).await.expect_err("a damaged page is noticed");
        assert!(matches!(error.kind(), Kind::Damaged | Kind::Schema), "{from}: {error}");
        store.close().await;
    }
    // A file cut short, as by a copy that was interrupted.
    fs::write(disk.path(), &whole[..whole.len() / 2]).unwrap();
    if let Ok(store) = SqliteStore::open(disk.path()) {
        let error = store.claim(&request("page-99")).await.expect_err("a cut file is noticed");
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        store.close().await;
    }
    fs::write(disk.path(), &whole).unwrap();
    assert!(matches!(disk.open().claim(&request("page-50")).await.unwrap(), Claim::Completed { .. }));
}

#[test]
fn the_file_is_for_its_owner_alone() {
    let disk = Disk::new();
    let _store = disk.open();
    for name in ["semel.db", "semel.db-wal", "semel.db-shm"] {
        let mode = fs::metadata(disk.0.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
    }
}

// G-13: what is answered must be found again under the path.
#[tokio::test]
async fn a_file_replaced_or_deleted_while_open_is_noticed_and_may_be_put_back() {
    let disk = Disk::new();
    let store = disk.open();
    claim(&store, "before").await;
    let aside = disk.0.path().join("aside.db");
    fs::rename(disk.path(), &aside).unwrap();
    let text = refused(store.claim(&request("gone")).await, Kind::Unreachable);
    assert!(text.contains("while it was in use"), "{text}");
    fs::write(disk.path(), "").unwrap();
    refused(store.claim(&request("gone")).await, Kind::Unreachable);
    refused(store.get(request("before").operation.id()).await, Kind::Unreachable);
    refused(store.status().await, Kind::Unreachable);
    fs::rename(&aside, disk.path()).unwrap();
    claim(&store, "gone").await;
}

#[tokio::test]
async fn bodies_of_every_size_come_back() {
    let disk = Disk::new();
    let store = disk.open();
    for bytes in [0, 1, 300, 4095, 4096, 4097, 100_000, 1 << 20] {
        let wish = request(&format!("body-{bytes}"));
        let lease = granted(store.claim(&wish).await.unwrap());
        let body: Vec<u8> = (0..bytes).map(|at: u32| (at % 251) as u8).collect();
        complete(&store, &lease, body.clone()).await;
        assert_eq!(store.get(wish.operation.id()).await.unwrap().unwrap().outcome.unwrap(), body);
        match store.claim(&request(&format!("body-{bytes}"))).await.unwrap() {
            Claim::Completed { outcome, .. } => assert_eq!(outcome, body),
            other => panic!("the outcome was expected, not {other:?}"),
        }
    }
}

/// Runs a child test in a file system of its own, mounted at a directory only it sees.
fn on_a_disk_of(size: &str, test: &str) {
    let disk = Disk::new();
    let inner = child(test, disk.0.path());
    let script = format!("mount -t tmpfs -o size={size} none \"$SEMEL_TEST_CHILD\" || exit 77; exec \"$@\"");
    let mut command = Command::new("unshare");
    // A user who is not root may be root in a namespace of their own.
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
    command.arg(inner.get_program()).args(inner.get_args()).env("SEMEL_TEST_CHILD", disk.0.path());
    match command.output() {
        Ok(done) if done.status.success() => {}
        Ok(done) if done.status.code().is_some_and(|code| code != 77 && code != 1) => {
            panic!("{}\n{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
        }
        other => {
            let why = format!("no small disk can be mounted here: {other:?}");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("NOT RUN: {test}: {why}");
        }
    }
}

#[test]
fn a_full_disk_refuses_and_a_disk_with_room_again_serves() {
    on_a_disk_of("2m", "sqlite::files::child_on_a_full_disk");
}

#[tokio::test]
async fn child_on_a_full_disk() {
    let Some(disk) = given_to_child() else { return };
    let ballast = disk.join("ballast");
    fs::write(&ballast, vec![0; 256 << 10]).unwrap();
    let store = SqliteStore::open(disk.join("semel.db")).unwrap();
    let (mut stored, mut full) = (Vec::new(), 0);
    for n in 0..2000 {
        let wish = request(&format!("full-{n}"));
        let lease = match store.claim(&wish).await {
            Ok(claim) => granted(claim),
            Err(error) => {
                assert!(refused::<()>(Err(error), Kind::Full).contains("free space"));
                full += 1;
                if full > 20 {
                    break;
                }
                continue;
            }
        };
        let complete = Complete { holder: lease.holder, outcome: vec![b'x'; 5000].into(), ttl_min: None };
        match store.complete(&complete).await {
            Ok(_) => stored.push(n),
            Err(error) => drop(refused::<()>(Err(error), Kind::Full)),
        }
    }
    assert!(full > 20, "the disk filled up");
    assert!(stored.len() > 10);
    fs::remove_file(&ballast).unwrap();
    claim(&store, "room-again").await;
    store.close().await;
    let store = SqliteStore::open(disk.join("semel.db")).unwrap();
    for n in stored {
        let told = store.claim(&request(&format!("full-{n}"))).await.unwrap();
        assert!(matches!(told, Claim::Completed { .. }), "what was answered is there, not {told:?}");
    }
}

#[test]
fn a_read_only_disk_is_refused() {
    on_a_disk_of("4m", "sqlite::files::child_on_a_read_only_disk");
}

#[tokio::test]
async fn child_on_a_read_only_disk() {
    let Some(disk) = given_to_child() else { return };
    let path = disk.join("semel.db");
    let store = SqliteStore::open(&path).unwrap();
    claim(&store, "written").await;
    store.close().await;
    let remount = |how: &str| {
        let status = Command::new("mount").args(["-o", how]).arg(&disk).status().unwrap();
        assert!(status.success(), "{how}");
    };
    remount("remount,ro");
    let text = refused(SqliteStore::open(&path), Kind::ReadOnly);
    assert!(text.contains("writable"), "{text}");
    let text = refused(SqliteStore::open(disk.join("new.db")), Kind::ReadOnly);
    assert!(text.contains("read-only file system"), "{text}");
    remount("remount,rw");
    claim(&SqliteStore::open(&path).unwrap(), "again").await;
}
