//! Schemas of other builds.

use semel_core::error::Kind;

use super::*;

/// A database to which a later build has applied a migration of its own.
fn from_the_future(minimum_reader: u32) -> Disk {
    let disk = Disk::new();
    drop(disk.open());
    let sql = "INSERT INTO semel_schema (version, name, checksum, minimum_reader, applied_at) \
               SELECT max(version) + 1, 'later', x'00', max(version) + ?1, 0 FROM semel_schema";
    disk.meddle().execute(sql, [minimum_reader]).unwrap();
    disk
}

#[tokio::test]
async fn a_newer_schema_is_used_if_it_admits_this_build() {
    let disk = from_the_future(0);
    claim(&disk.open(), "newer").await;
}

#[test]
fn a_newer_schema_that_does_not_admit_this_build_is_refused() {
    let disk = from_the_future(1);
    let text = refused(SqliteStore::open(disk.path()), Kind::Schema);
    assert!(text.contains("upgrade"), "{text}");
}

#[test]
fn an_edited_migration_is_refused() {
    let disk = Disk::new();
    drop(disk.open());
    disk.meddle().execute("UPDATE semel_schema SET checksum = zeroblob(32)", []).unwrap();
    let text = refused(SqliteStore::open(disk.path()), Kind::Schema);
    assert!(text.contains("migration 1"), "{text}");
}

#[test]
fn a_new_file_opened_by_many_at_once_is_made_once() {
    let disk = Disk::new();
    let path = disk.path();
    let opened = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| SqliteStore::open(&path))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
    let made: (u32, u32) = disk
        .meddle()
        .query_row(
            "SELECT (SELECT count(*) FROM semel_meta), (SELECT count(*) FROM semel_hash_key)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!(made, (1, 1));
}

#[tokio::test]
async fn an_applications_own_tables_are_left_alone() {
    let disk = Disk::new();
    disk.meddle().execute_batch("CREATE TABLE account (id); INSERT INTO account VALUES (1)").unwrap();
    claim(&disk.open(), "beside").await;
    let accounts: u32 =
        disk.meddle().query_row("SELECT count(*) FROM account", [], |row| row.get(0)).unwrap();
    assert_eq!(accounts, 1);
}

#[tokio::test]
async fn tables_that_are_gone_are_named() {
    let disk = Disk::new();
    let store = disk.open();
    disk.meddle().execute_batch("DROP TABLE semel_operation").unwrap();
    let text = refused(store.claim(&request("no-table")).await, Kind::Schema);
    assert!(text.contains("semel_operation"), "{text}");
}
