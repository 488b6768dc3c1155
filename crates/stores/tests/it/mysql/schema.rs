//! Making, checking and refusing the schema.

use std::sync::Arc;

use mysql_async::prelude::Queryable;
use semel_core::error::{Error, Kind};
use semel_core::store::EffectStore;
use semel_core::verbs::Release;
use semel_stores::mysql::{Migrate, MysqlStore, Options};

use super::rig::{Database, TABLES, complete, connect, granted, request, with_database};

const TABLES_THERE: &str = "SELECT COUNT(*) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name LIKE 'semel%'";

async fn refused(url: String) -> Error {
    MysqlStore::connect(&url).await.map(drop).unwrap_err()
}

#[test]
fn many_migrators_at_once_make_one_schema() {
    with_database(async |database| {
        let url: Arc<str> = database.url().into();
        let connecting: Vec<_> = (0..6)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move {
                    let store = connect(&url).await;
                    store.status().await.unwrap()
                })
            })
            .collect();
        let mut ids = Vec::new();
        for connected in connecting {
            let status = connected.await.unwrap();
            assert_eq!((status.hash_keys.len(), status.went_back_from), (1, None));
            ids.push(status.store_id);
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
        assert_eq!(database.number("SELECT COUNT(*) - MAX(version) FROM semel_schema").await, 0);
    });
}

#[test]
fn a_migration_that_was_edited_since_is_refused() {
    with_database(async |database| {
        connect(&database.url()).await;
        database.run("UPDATE semel_schema SET checksum = UNHEX(SHA2('edited', 256))").await;
        let error = refused(database.url()).await;
        assert_eq!(error.kind(), Kind::Schema);
        assert!(error.to_string().contains("migration 1"), "{error}");
    });
}

#[test]
fn a_newer_schema_is_used_if_it_says_so_and_refused_otherwise() {
    with_database(async |database| {
        connect(&database.url()).await;
        let newest = database.number("SELECT MAX(version) FROM semel_schema").await;
        let future =
            format!("INSERT INTO semel_schema VALUES ({}, 'from the future', 'x', 0, 1)", newest + 1);
        database.run(&future).await;
        let store = connect(&database.url()).await;
        granted(store.claim(&request("newer")).await.unwrap());
        let reader = format!("UPDATE semel_schema SET minimum_reader = {0} WHERE version = {0}", newest + 1);
        database.run(&reader).await;
        let error = refused(database.url()).await;
        assert_eq!(error.kind(), Kind::Schema);
        assert!(error.to_string().contains("upgrade"), "{error}");
    });
}

#[test]
fn a_store_told_only_to_check_changes_nothing() {
    with_database(async |database| {
        let mut options = Options::new(database.url());
        options.migrate = Migrate::Check;
        let error = MysqlStore::connect_with(options.clone()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Schema, "{error}");
        assert_eq!(database.number(TABLES_THERE).await, 0);
        connect(&database.url()).await;
        MysqlStore::connect_with(options).await.unwrap();
    });
}

/// A user who may see the database and nothing in it, and its address.
async fn clerk(database: &Database) -> (String, String) {
    let user = format!("clerk_{}", &database.name[8..20]);
    database.run(&format!("CREATE USER {user} IDENTIFIED BY 'clerk'")).await;
    let (url, name) = (database.url(), &database.name);
    database.run(&format!("GRANT CREATE TEMPORARY TABLES ON {name}.* TO {user}")).await;
    let place = url.rsplit_once('@').unwrap().1;
    (user.clone(), format!("mysql://{user}:clerk@{place}"))
}

#[test]
fn a_user_without_privileges_hears_what_to_grant_and_works_once_it_has_it() {
    with_database(async |database| {
        let (user, url) = clerk(&database).await;
        let error = refused(url.clone()).await;
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        connect(&database.url()).await;
        let error = refused(url.clone()).await;
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE"), "{error}");
        let name = &database.name;
        for table in TABLES {
            let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.{table} TO {user}");
            database.run(&grant).await;
        }
        let store = connect(&url).await;
        let lease = granted(store.claim(&request("clerk")).await.unwrap());
        store.complete(&complete(&lease, "paid")).await.unwrap();
        let other = granted(store.claim(&request("clerk-2")).await.unwrap());
        store.release(&Release { holder: other.holder }).await.unwrap();
        store.acknowledge_restore("clerk").await.unwrap();
        store.rotate_hash_key().await.unwrap();
        store.sweep(100, std::time::Duration::ZERO).await.unwrap();
        store.close().await;
        drop(store);
        database.run(&format!("DROP USER {user}")).await;
    });
}

// DDL commits by itself: whatever a migrator that died has made, the next one goes on.
#[test]
fn a_migration_left_half_done_is_done_by_the_next() {
    with_database(async |database| {
        let mut statements = 0;
        loop {
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "mysql::crash::the_process_that_crashes"])
                .env("SEMEL_CRASH_AT", "my-migrating")
                .env("SEMEL_CRASH_AFTER", statements.to_string())
                .env("SEMEL_CRASH_URL", database.url())
                .env("SEMEL_CRASH_VERB", "none")
                .env("SEMEL_CRASH_NONCE", semel_core::Nonce::random().to_string())
                .env_remove("SEMEL_TEST_LEDGER")
                .output()
                .unwrap();
            if status.status.success() {
                break;
            }
            statements += 1;
            let made = database.number(TABLES_THERE).await;
            assert!((1..=statements).contains(&made), "{made} tables of {statements} statements");
            let store = connect(&database.url()).await;
            granted(store.claim(&request("after")).await.unwrap());
            store.close().await;
            let drop = "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables
                WHERE table_schema = DATABASE() AND table_name LIKE 'semel%'";
            let tables: String = database.client().await.query_first(drop).await.unwrap().unwrap();
            database.run(&format!("DROP TABLE {tables}")).await;
        }
        assert!(statements > TABLES.len() as i64, "it died at every statement");
    });
}

#[test]
fn a_table_that_went_missing_is_a_matter_of_the_schema() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        database.run("DROP TABLE semel_operation").await;
        let error = store.claim(&request("no-table")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Schema, "{error}");
        assert!(!error.outcome_is_unknown());
    });
}

/// Runs a script in the server's shell.
fn shell(url: &str, script: &str) {
    use std::io::Write as _;
    let opts = mysql_async::Opts::from_url(url).unwrap();
    let password = opts.pass().unwrap_or_default();
    let mut mariadb = std::process::Command::new("mariadb")
        .args(["--skip-ssl", "-h", opts.ip_or_hostname(), "-P", &opts.tcp_port().to_string()])
        .args(["-u", opts.user().unwrap(), opts.db_name().unwrap()])
        .env("MYSQL_PWD", password)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    mariadb.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(mariadb.wait().unwrap().success());
}

#[test]
fn the_printed_script_makes_the_store_that_a_migration_makes() {
    with_database(async |database| {
        let missing = semel_stores::plan(&database.url()).await.unwrap();
        assert_eq!(missing.names, ["operations", "outbox", "fence", "inbox", "procedures", "since"]);
        assert_eq!(database.number(TABLES_THERE).await, 0, "looking changes nothing");
        shell(&database.url(), &missing.script);
        let left = semel_stores::plan(&database.url()).await.unwrap();
        assert_eq!((left.names, left.script), (Vec::new(), String::new()));
        let mut options = Options::new(database.url());
        options.migrate = Migrate::Check;
        let store = MysqlStore::connect_with(options).await.unwrap();
        let status = store.status().await.unwrap();
        assert_eq!((status.hash_keys.len(), status.went_back_from), (1, None));
        granted(store.claim(&request("printed")).await.unwrap());
        store.close().await;
    });
}
