//! Databases that went back, by whichever way, and how that is noticed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::error::Kind;
use semel_core::store::{EffectStore, RESTORE_GAP};
use semel_core::verbs::Renew;
use semel_stores::postgres::{Options, PostgresStore};

use super::rig::{Database, complete, connect, granted, patient, persist, request, with_database};

fn with_witness(database: &Database, witness: &Path) -> Options {
    let mut options = patient(database.url());
    options.witness = Some(witness.to_owned());
    options
}

// G-13
#[test]
fn a_sequence_set_back_under_a_running_store_closes_it() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        for n in 0..10 {
            granted(store.claim(&request(&format!("before-{n}"))).await.unwrap());
        }
        database.run("SELECT setval('semel_token', 3)").await;
        let error = store.claim(&request("after")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::WentBack, "{error}");
        assert!(error.outcome_is_unknown(), "it was written before it was seen to be wrong");
        let error = store.claim(&request("later")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::WentBack, "{error}");
        assert!(!error.outcome_is_unknown());
        let status = store.status().await.unwrap();
        assert!(status.went_back_from.unwrap().token.0 >= 10);
        let mark = store.acknowledge_restore("ops").await.unwrap();
        assert!(mark.token.0 > RESTORE_GAP);
        let lease = granted(store.claim(&request("again")).await.unwrap());
        assert!(lease.holder.token > mark.token);
    });
}

// G-13: a pooler keeps connections open while it leads them to another server.
#[test]
fn a_connection_that_is_led_to_a_server_without_the_last_record_grants_nothing() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        granted(store.claim(&request("before")).await.unwrap());
        let swept = granted(store.claim(&request("swept")).await.unwrap());
        store.complete(&complete(&swept, "paid")).await.unwrap();
        // What a sweeper deletes is not missed.
        database.run("DELETE FROM semel_operation WHERE key = 'swept'").await;
        granted(store.claim(&request("lost")).await.unwrap());
        // As if it had never come, without a word of it, under the feet of whoever is connected.
        let forget = "SET session_replication_role = replica; DELETE FROM semel_operation WHERE key = 'lost'";
        database.run(forget).await;
        for key in ["other", "lost"] {
            let error = store.claim(&request(key)).await.unwrap_err();
            assert_eq!(error.kind(), Kind::WentBack, "{error}");
            assert!(error.to_string().contains("a record that was committed is not there"), "{error}");
            assert!(!error.outcome_is_unknown(), "{error}");
        }
        let written = "SELECT count(*) FROM semel_operation WHERE key IN ('other', 'lost')";
        assert_eq!(database.number(written).await, 0);
        store.acknowledge_restore("ops").await.unwrap();
        granted(store.claim(&request("lost")).await.unwrap());
    });
}

// G-13: who asks alone hears of it as well.
#[test]
fn a_verb_that_takes_over_on_a_server_without_the_last_record_is_refused() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        let first = request("again");
        let lease = granted(store.claim(&first).await.unwrap());
        store.release(&semel_core::verbs::Release { holder: lease.holder }).await.unwrap();
        granted(store.claim(&request("lost")).await.unwrap());
        let forget = "SET session_replication_role = replica; DELETE FROM semel_operation WHERE key = 'lost'";
        database.run(forget).await;
        let error = store.claim(&request("again")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::WentBack, "{error}");
        let attempts = "SELECT attempts::bigint FROM semel_operation WHERE key = 'again'";
        assert_eq!(database.number(attempts).await, 1);
    });
}

// G-13
#[test]
fn a_sequence_set_back_is_noticed_on_reconnect_by_verbs_that_draw_no_token() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        let lease = granted(store.claim(&request("held")).await.unwrap());
        let admin = database.admin().await;
        database.run("SELECT setval('semel_token', 1, false)").await;
        let hang_up = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1";
        admin.query(hang_up, &[&database.name]).await.unwrap();
        let renew = Renew { holder: lease.holder, lease: lease.granted };
        let error = store.renew(&renew).await.unwrap_err();
        assert_eq!(error.kind(), Kind::WentBack, "{error}");
        store.acknowledge_restore("ops").await.unwrap();
        persist(async || store.renew(&renew).await).await;
    });
}

// G-13
#[test]
fn a_record_ahead_of_the_sequence_closes_the_store() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        granted(store.claim(&request("ahead")).await.unwrap());
        database.run("UPDATE semel_operation SET token = 1000000").await;
        let told = store.claim(&request("ahead")).await.unwrap();
        assert!(matches!(told, semel_core::Claim::WentBack { held } if held.0 == 1_000_000), "{told:?}");
        assert_eq!(store.claim(&request("next")).await.unwrap_err().kind(), Kind::WentBack);
        let mark = store.acknowledge_restore("ops").await.unwrap();
        assert!(mark.token.0 > 1_000_000);
        granted(store.claim(&request("next")).await.unwrap());
    });
}

// G-13
#[test]
fn a_copy_in_another_database_needs_an_operators_word() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        let claim = request("copied");
        granted(store.claim(&claim).await.unwrap());
        store.close().await;
        drop(store);
        let copy = database.copy().await;
        let store = connect(&copy.url()).await;
        assert!(store.status().await.unwrap().went_back_from.is_some());
        let error = store.claim(&claim).await.unwrap_err();
        assert_eq!(error.kind(), Kind::WentBack, "{error}");
        assert!(error.to_string().contains("another cluster or database"), "{error}");
        store.acknowledge_restore("ops").await.unwrap();
        assert_eq!(granted(store.claim(&claim).await.unwrap()).attempt, 1);
        let again = connect(&copy.url()).await;
        assert_eq!(again.status().await.unwrap().went_back_from, None);
    });
}

// G-13
#[test]
fn a_witness_remembers_what_a_restarted_process_cannot() {
    with_database(async |database| {
        let folder = tempfile::tempdir().unwrap();
        let witness = folder.path().join("witness");
        let options = || with_witness(&database, &witness);
        let store = PostgresStore::connect_with(options()).await.unwrap();
        for n in 0..5 {
            granted(store.claim(&request(&format!("seen-{n}"))).await.unwrap());
        }
        store.close().await;
        database.run("SELECT setval('semel_token', 2)").await;
        let forgetful = connect(&database.url()).await;
        assert_eq!(forgetful.status().await.unwrap().went_back_from, None, "nobody told it");
        let store = PostgresStore::connect_with(options()).await.unwrap();
        let error = store.get(request("seen-0").operation.id()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::WentBack, "{error}");
        store.close().await;
        // An emptied database is an older state too.
        database.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public").await;
        let store = PostgresStore::connect_with(options()).await.unwrap();
        let error = store.claim(&request("seen-0")).await.unwrap_err();
        assert!(error.to_string().contains("another store"), "{error}");
        store.acknowledge_restore("ops").await.unwrap();
        granted(store.claim(&request("seen-0")).await.unwrap());
        store.close().await;
        let store = PostgresStore::connect_with(options()).await.unwrap();
        assert_eq!(store.status().await.unwrap().went_back_from, None);
    });
}

// G-13
#[test]
fn a_record_that_was_swept_is_not_missed() {
    with_database(async |database| {
        let clock = Arc::new(AtomicI64::new(1_767_225_600_000_000));
        let mut options = patient(database.url());
        options.clock = Some(clock.clone());
        let store = PostgresStore::connect_with(options).await.unwrap();
        let lease = granted(store.claim(&request("soon-gone")).await.unwrap());
        store.complete(&complete(&lease, "paid")).await.unwrap();
        clock.fetch_add(4_000_000_000, Ordering::SeqCst);
        assert_eq!(store.sweep(10, Duration::from_secs(1)).await.unwrap().deleted, 1);
        // It looks again.
        assert_eq!(store.status().await.unwrap().went_back_from, None);
        granted(store.claim(&request("next")).await.unwrap());
        assert_eq!(store.status().await.unwrap().went_back_from, None);
        database.run("TRUNCATE semel_operation").await;
        assert!(store.status().await.unwrap().went_back_from.is_some(), "that nobody did but a restore");
    });
}

// G-11, G-13: each claim reads the row that says how far records were deleted, and its old versions stay as long as anybody
// holds a snapshot.
#[test]
fn deletions_write_down_how_far_they_came_only_now_and_then() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        for n in 0..64 {
            granted(store.claim(&request(&format!("claimed-{n}"))).await.unwrap());
        }
        let mut versions = BTreeSet::new();
        for n in 0..32 {
            let oldest = "DELETE FROM semel_operation WHERE token = (SELECT min(token) FROM semel_operation) RETURNING token";
            let gone = database.number(oldest).await;
            versions.insert(database.number("SELECT xmin::text::bigint FROM semel_meta").await);
            assert!(database.number("SELECT past_token FROM semel_meta").await >= gone, "after {n}");
        }
        assert!(versions.len() < 16, "{}", versions.len());
        assert_eq!(store.status().await.unwrap().went_back_from, None);
        database.run("TRUNCATE semel_operation").await;
        assert!(store.status().await.unwrap().went_back_from.is_some(), "the newest are missed all the same");
    });
}

// G-13
#[test]
fn an_acknowledgement_in_another_process_is_noticed_here() {
    with_database(async |database| {
        let here = connect(&database.url()).await;
        for n in 0..5 {
            granted(here.claim(&request(&format!("before-{n}"))).await.unwrap());
        }
        database.run("SELECT setval('semel_token', 1)").await;
        assert_eq!(here.claim(&request("after")).await.unwrap_err().kind(), Kind::WentBack);
        let there = connect(&database.url()).await;
        there.acknowledge_restore("ops").await.unwrap();
        let lease = loop {
            match here.claim(&request("after-all")).await {
                Err(error) => assert_eq!(error.kind(), Kind::WentBack, "{error}"),
                Ok(claim) => break granted(claim),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        assert!(lease.holder.token.0 > RESTORE_GAP);
    });
}
