//! Sweeping: bounded, patient, and out of everybody's way.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::State;
use semel_core::store::EffectStore;
use semel_core::verbs::Completion;
use semel_stores::postgres::{Options, PostgresStore};

use super::rig::{Database, complete, granted, request, with_database};

async fn with_clock(database: &Database) -> (PostgresStore, Arc<AtomicI64>) {
    let clock = Arc::new(AtomicI64::new(1_767_225_600_000_000));
    let mut options = Options::new(database.url());
    options.clock = Some(clock.clone());
    options.lock_timeout = Duration::from_millis(500);
    (PostgresStore::connect_with(options).await.unwrap(), clock)
}

// G-11
#[test]
fn a_row_in_use_does_not_stop_the_sweeper_and_is_met_again() {
    with_database(async |database| {
        let (store, clock) = with_clock(&database).await;
        for n in 0..600 {
            let lease = granted(store.claim(&request(&format!("old-{n}"))).await.unwrap());
            assert_eq!(store.complete(&complete(&lease, "paid")).await.unwrap(), Completion::Stored);
        }
        clock.fetch_add(3_600_000_000, Ordering::SeqCst);
        let mut other = database.client().await;
        let held = other.transaction().await.unwrap();
        held.query("SELECT 1 FROM semel_operation WHERE key = 'old-7' FOR UPDATE", &[]).await.unwrap();
        let mut deleted = 0;
        loop {
            let report = store.sweep(300, Duration::ZERO).await.unwrap();
            deleted += report.deleted;
            if !report.more {
                break;
            }
        }
        assert_eq!(deleted, 599);
        held.rollback().await.unwrap();
        assert_eq!(store.sweep(300, Duration::ZERO).await.unwrap().deleted, 1);
    });
}

// G-11: a sweeper that stands still in the middle of its work holds up neither others nor the operations they would take.
#[test]
fn a_sweeper_that_finds_another_at_work_holds_nothing() {
    with_database(async |database| {
        let (store, clock) = with_clock(&database).await;
        let lease = granted(store.claim(&request("old")).await.unwrap());
        store.complete(&complete(&lease, "paid")).await.unwrap();
        clock.fetch_add(3_600_000_000, Ordering::SeqCst);
        let mut other = database.client().await;
        let held = other.transaction().await.unwrap();
        held.execute("UPDATE semel_meta SET past_token = past_token", &[]).await.unwrap();
        let report = store.sweep(100, Duration::ZERO).await.unwrap();
        assert_eq!((report.deleted, report.more), (0, false));
        held.rollback().await.unwrap();
        assert_eq!(store.sweep(100, Duration::ZERO).await.unwrap().deleted, 1);
    });
}

// G-10: at creation plus TTL, not before the end plus the retry window, and to the microsecond.
#[test]
fn the_statement_that_deletes_agrees_with_the_rules() {
    with_database(async |database| {
        let (store, clock) = with_clock(&database).await;
        let claim = request("late-end");
        let lease = granted(store.claim(&claim).await.unwrap());
        let open = request("never-ends");
        granted(store.claim(&open).await.unwrap());
        clock.fetch_add(3_500_000_000, Ordering::SeqCst);
        store.complete(&complete(&lease, "paid")).await.unwrap();
        clock.fetch_add(599_999_999, Ordering::SeqCst);
        assert_eq!(store.sweep(100, Duration::ZERO).await.unwrap().deleted, 0);
        let sweep_at = "SELECT sweep_at FROM semel_operation WHERE key = 'late-end'";
        assert_eq!(database.number(sweep_at).await, 1_767_225_600_000_000 + 4_100_000_000);
        clock.fetch_add(1, Ordering::SeqCst);
        assert_eq!(store.sweep(100, Duration::ZERO).await.unwrap().deleted, 1);
        assert!(store.get(claim.operation.id()).await.unwrap().is_none());
        clock.fetch_add(1_000_000_000_000, Ordering::SeqCst);
        assert_eq!(store.sweep(100, Duration::ZERO).await.unwrap().deleted, 0);
        let record = store.get(open.operation.id()).await.unwrap().unwrap();
        assert_eq!(record.state, State::InProgress);
    });
}

// G-11: TTLs as long as numbers go must not overflow in the server.
#[test]
fn the_longest_terms_are_kept() {
    with_database(async |database| {
        let (store, _) = with_clock(&database).await;
        let mut claim = request("for-ever");
        claim.terms.ttl = Duration::MAX;
        claim.terms.lease = Duration::MAX;
        claim.terms.retry_window = Duration::MAX;
        let lease = granted(store.claim(&claim).await.unwrap());
        assert_eq!(lease.until.as_micros(), i64::MAX);
        store.complete(&complete(&lease, "paid")).await.unwrap();
        assert_eq!(store.sweep(100, Duration::ZERO).await.unwrap().deleted, 0);
    });
}
