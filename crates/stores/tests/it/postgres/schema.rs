//! Making, checking and refusing the schema.

use std::sync::Arc;

use semel_core::error::{Error, Kind};
use semel_core::store::EffectStore;
use semel_core::verbs::Release;
use semel_stores::postgres::{Migrate, Options, PostgresStore};

use super::rig::{Database, complete, connect, granted, request, with_database};

async fn refused(url: String) -> Error {
    PostgresStore::connect(&url).await.map(drop).unwrap_err()
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
        assert_eq!(database.number("SELECT count(*) - max(version) FROM semel_schema").await, 0);
    });
}

#[test]
fn a_migration_that_was_edited_since_is_refused() {
    with_database(async |database| {
        connect(&database.url()).await;
        database.run("UPDATE semel_schema SET checksum = sha256('edited')").await;
        let error = refused(database.url()).await;
        assert_eq!(error.kind(), Kind::Schema);
        assert!(error.to_string().contains("migration 1"), "{error}");
    });
}

#[test]
fn a_newer_schema_is_used_if_it_says_so_and_refused_otherwise() {
    with_database(async |database| {
        connect(&database.url()).await;
        let future = "INSERT INTO semel_schema
                      SELECT max(version) + 1, 'from the future', 'x', 0, 1 FROM semel_schema";
        database.run(future).await;
        let store = connect(&database.url()).await;
        granted(store.claim(&request("newer")).await.unwrap());
        let needed = "UPDATE semel_schema SET minimum_reader = version WHERE name = 'from the future'";
        database.run(needed).await;
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
        let error = PostgresStore::connect_with(options.clone()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Schema, "{error}");
        assert_eq!(database.number("SELECT count(*) FROM pg_class WHERE relname LIKE 'semel%'").await, 0);
        connect(&database.url()).await;
        PostgresStore::connect_with(options).await.unwrap();
    });
}

/// A role with nothing but the right to log in, and its address.
async fn clerk(database: &Database) -> (String, String) {
    let role = format!("clerk_{}", database.name);
    database.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'clerk'")).await;
    let url = database.url();
    let place = url.rsplit_once('@').unwrap().1;
    (role.clone(), format!("postgres://{role}:clerk@{place}"))
}

#[test]
fn a_role_without_privileges_hears_what_to_grant_and_works_once_it_has_it() {
    with_database(async |database| {
        let (role, url) = clerk(&database).await;
        let error = refused(url.clone()).await;
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("GRANT USAGE, CREATE ON SCHEMA public"), "{error}");
        connect(&database.url()).await;
        let error = refused(url.clone()).await;
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE"), "{error}");
        database
            .run(&format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON semel_schema, semel_meta, semel_hash_key, \
                 semel_operation TO {role}; GRANT USAGE, SELECT, UPDATE ON SEQUENCE semel_token TO {role}"
            ))
            .await;
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
        database.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    });
}

#[test]
fn the_tables_live_in_the_first_schema_of_the_search_path() {
    with_database(async |database| {
        let name = &database.name;
        database.run(&format!("ALTER DATABASE {name} SET search_path = nowhere")).await;
        let error = refused(database.url()).await;
        assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
        PostgresStore::connect(&format!("{}?options=-csearch_path%3Dpublic", database.url())).await.unwrap();
        database
            .run(&format!("CREATE SCHEMA shop; ALTER DATABASE {name} SET search_path = shop, public"))
            .await;
        let store = connect(&database.url()).await;
        granted(store.claim(&request("in-the-shop")).await.unwrap());
        assert_eq!(database.number("SELECT count(*) FROM shop.semel_operation").await, 1);
        assert_eq!(database.number("SELECT count(*) FROM public.semel_operation").await, 0);
    });
}

#[test]
fn a_table_that_went_missing_is_a_matter_of_the_schema() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        database.run("DROP TABLE semel_operation CASCADE").await;
        let error = store.claim(&request("no-table")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Schema, "{error}");
        assert!(!error.outcome_is_unknown());
    });
}

#[test]
fn a_server_that_does_not_tell_who_it_is_can_be_used_all_the_same() {
    with_database(async |database| {
        connect(&database.url()).await.close().await;
        let (role, url) = clerk(&database).await;
        database
            .run(&format!(
                "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; UPDATE semel_meta SET home = NULL; \
                 GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; \
                 GRANT ALL ON SEQUENCE semel_token TO {role}"
            ))
            .await;
        let store = connect(&url).await;
        assert_eq!(store.status().await.unwrap().went_back_from, None);
        granted(store.claim(&request("untold")).await.unwrap());
        store.acknowledge_restore("clerk").await.unwrap();
        granted(store.claim(&request("untold-2")).await.unwrap());
        store.close().await;
        drop(store);
        database.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    });
}
