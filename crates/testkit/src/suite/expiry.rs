//! Only what has ended expires, at a moment that is known to the microsecond; sweeping is bounded and
//! takes nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::claim::Claim;
use semel_core::policy::TTL_MAX;
use semel_core::record::{Recovery, State};
use semel_core::verbs::{Change, Complete, Completion};

use crate::Rig;
use crate::scene::{DAY, LEASE, RETRY_WINDOW, Shop, TTL, micros, operation};

/// The operation expires `after` from now, not a moment earlier or later.
async fn expires_in(shop: &Shop, key: &str, after: i64, ended: State) {
    let order = operation(key);
    let stays = shop.record(order.id()).await;
    shop.shift(after - shop.edge());
    match (shop.ask(&order, Recovery::Hold).await, ended) {
        (Claim::Completed { .. }, State::Completed) | (Claim::Purged { .. }, State::Tombstone) => {}
        (Claim::Granted(lease), State::Released) => {
            assert_eq!(lease.attempt, stays.attempts + 1, "a released record still counts");
            shop.release(lease.holder).await;
        }
        (other, _) => panic!("just before its time a {ended:?} record still counts, not {other:?}"),
    }
    if ended != State::Released {
        assert_eq!(shop.record(order.id()).await, stays);
        shop.shift(shop.edge());
        let lease = shop.grant(&order, Recovery::Hold).await;
        assert_eq!(lease.attempt, 1, "an expired record counts as absent before it is swept");
        let fresh = shop.record(order.id()).await;
        assert!(fresh.created_at > stays.created_at && fresh.history.events().is_empty());
    }
}

// G-10
pub(super) async fn an_early_end_expires_at_creation_plus_ttl(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let lease = shop.grant(&operation("early-end-000001"), Recovery::Hold).await;
    shop.shift(LEASE);
    shop.complete(lease.holder, "paid").await;
    expires_in(&shop, "early-end-000001", TTL - LEASE, State::Completed).await;
}

// G-10
pub(super) async fn a_late_end_expires_after_the_retry_window(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let lease = shop.grant(&operation("late-end-0000001"), Recovery::Hold).await;
    shop.shift(TTL - LEASE);
    shop.complete(lease.holder, "paid").await;
    expires_in(&shop, "late-end-0000001", RETRY_WINDOW, State::Completed).await;
}

// G-10
pub(super) async fn a_purged_record_expires_when_it_would_have(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("purged-end-00001");
    shop.completed(&order, "paid").await;
    shop.shift(2 * LEASE);
    assert_eq!(shop.purge(order.id()).await, Change::Made);
    let until = shop.record(order.id()).await.expires_at().expect("a tombstone expires");
    assert_eq!(shop.ask(&order, Recovery::Hold).await, Claim::Purged { until });
    expires_in(&shop, "purged-end-00001", TTL - 2 * LEASE, State::Tombstone).await;
}

// G-10
pub(super) async fn a_released_record_expires_like_a_completed_one(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("release-end-0001");
    let lease = shop.grant(&order, Recovery::Hold).await;
    shop.release(lease.holder).await;
    expires_in(&shop, "release-end-0001", TTL, State::Released).await;
    // It was claimed and released once more just before; the retry window counts from there.
    shop.shift(RETRY_WINDOW - shop.edge());
    assert_eq!(shop.grant(&order, Recovery::Hold).await.attempt, 3);
    let lease = shop.record(order.id()).await.holder();
    shop.release(lease).await;
    shop.shift(RETRY_WINDOW);
    assert_eq!(shop.grant(&order, Recovery::Hold).await.attempt, 1);
}

// G-10
pub(super) async fn a_settled_unknown_expires_after_its_settlement(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("settled-end-0001");
    let lease = shop.unknown(&order, Recovery::Hold).await;
    shop.shift(100 * DAY);
    assert_eq!(shop.complete(lease.holder, "late").await, Completion::Stored);
    expires_in(&shop, "settled-end-0001", RETRY_WINDOW, State::Completed).await;
}

// G-7, G-10
pub(super) async fn a_completion_may_ask_to_be_remembered_longer_never_shorter(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let forever = Duration::MAX;
    for (key, asked, ttl) in [
        ("kept-shorter-0001", micros(TTL / 2), micros(TTL)),
        ("kept-longer-00001", micros(30 * TTL), micros(30 * TTL)),
        ("kept-forever-0001", forever, TTL_MAX),
    ] {
        let order = operation(key);
        let holder = shop.grant(&order, Recovery::Hold).await.holder;
        let complete = Complete { holder, outcome: "paid".into(), ttl_min: Some(asked) };
        // Twice: a completion can be repeated.
        for _ in 0..2 {
            let stored = shop.store().complete(&complete).await.expect("a completion is answered");
            assert_eq!(stored, Completion::Stored);
            let record = shop.record(order.id()).await;
            assert_eq!((record.terms.ttl, record.outcome), (ttl, Some("paid".into())), "{key}");
        }
        // What is stored does not change any more, nor does how long it is kept.
        let longer = Complete { ttl_min: Some(forever), ..complete };
        assert_eq!(shop.store().complete(&longer).await.expect("answered"), Completion::Stored);
        assert_eq!(shop.record(order.id()).await.terms.ttl, ttl, "{key}");
    }
    // An unknown's late answer may ask for it too.
    let late = operation("kept-late-0000001");
    let holder = shop.unknown(&late, Recovery::Hold).await.holder;
    let complete = Complete { holder, outcome: "late".into(), ttl_min: Some(micros(30 * TTL)) };
    assert_eq!(shop.store().complete(&complete).await.expect("answered"), Completion::Stored);
    shop.shift(TTL);
    assert_eq!(shop.sweep().await, 1, "the one that asked for less");
    shop.shift(29 * TTL - shop.edge());
    assert_eq!(shop.sweep().await, 0, "nothing else is due yet");
    assert!(matches!(shop.ask(&late, Recovery::Hold).await, Claim::Completed { .. }));
    shop.shift(shop.edge());
    assert_eq!(shop.sweep().await, 2, "a month later the two that asked for a month");
    assert!(matches!(
        shop.ask(&operation("kept-forever-0001"), Recovery::Hold).await,
        Claim::Completed { .. }
    ));
    assert_eq!(shop.grant(&late, Recovery::Hold).await.attempt, 1, "the key is free again");
}

// G-10
pub(super) async fn a_sweep_deletes_what_expired_and_nothing_else(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let orders: Vec<_> = (0..5).map(|n| operation(&format!("sweep-0000000000{n}"))).collect();
    let late = shop.grant(&orders[0], Recovery::Hold).await;
    shop.grant(&orders[1], Recovery::Hold).await;
    shop.unknown(&orders[2], Recovery::Hold).await;
    shop.completed(&orders[3], "paid").await;
    shop.completed(&orders[4], "paid").await;
    shop.purge(orders[4].id()).await;
    assert_eq!(shop.sweep().await, 0, "nothing is due");
    shop.shift(TTL - LEASE);
    shop.complete(late.holder, "paid").await;
    shop.shift(LEASE - shop.edge());
    assert_eq!(shop.sweep().await, 0, "nothing is due yet");
    shop.shift(shop.edge());
    assert_eq!(shop.sweep().await, 2, "the completed one and the tombstone");
    for (at, order) in orders.iter().enumerate() {
        assert_eq!(shop.get(order.id()).await.is_some(), at < 3, "{at}");
    }
    shop.shift(RETRY_WINDOW);
    assert_eq!(shop.sweep().await, 1, "the one that ended late");
    assert_eq!(shop.state(orders[1].id()).await, Some(State::InProgress));
    assert_eq!(shop.state(orders[2].id()).await, Some(State::Unknown));
    assert_eq!(shop.sweep().await, 0);
}

// G-11
pub(super) async fn a_sweep_does_no_more_than_its_limit(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for n in 0..25 {
        shop.completed(&operation(&format!("limit-0000000000{n}")), "paid").await;
    }
    shop.shift(2 * TTL);
    let (mut deleted, mut rounds) = (0, 0);
    loop {
        let report = shop.store().sweep(10, micros(DAY)).await.expect("a sweep is answered");
        assert!(report.deleted <= 10, "{report:?}");
        deleted += report.deleted;
        rounds += 1;
        assert!(rounds < 10, "a sweep comes to an end");
        if !report.more {
            break;
        }
    }
    assert_eq!(deleted, 25);
    assert!(rounds >= 3);
}

// G-8, G-10, G-11: sweepers and claimers at the same expired keys.
pub(super) async fn a_sweep_and_claims_at_once_lose_and_double_nothing(rig: Arc<dyn Rig>) {
    const KEYS: usize = 24;
    const CLAIMS_PER_KEY: usize = 6;
    let shop = Shop(rig);
    for n in 0..KEYS {
        shop.completed(&operation(&format!("sweep-race-0000{n:02}")), "the old one").await;
    }
    shop.shift(2 * TTL);
    let granted = Arc::new(AtomicU64::new(0));
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..KEYS * CLAIMS_PER_KEY {
        let (claimer, sweeper, granted) = (shop.clone(), shop.clone(), granted.clone());
        crowd.spawn(async move {
            let order = operation(&format!("sweep-race-0000{:02}", n % KEYS));
            match claimer.ask(&order, Recovery::Hold).await {
                Claim::Granted(lease) => {
                    granted.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(claimer.complete(lease.holder, "the new one").await, Completion::Stored);
                }
                Claim::InFlight { .. } => {}
                Claim::Completed { outcome, .. } => assert_eq!(outcome, "the new one"),
                other => panic!("an expired key is claimed once, not {other:?}"),
            }
        });
        if n % 16 == 0 {
            crowd.spawn(async move {
                sweeper.sweep().await;
            });
        }
    }
    crowd.join_all().await;
    assert_eq!(granted.load(Ordering::Relaxed), KEYS as u64, "one new attempt per key");
    for n in 0..KEYS {
        let record = shop.record(operation(&format!("sweep-race-0000{n:02}")).id()).await;
        assert_eq!(record.outcome, Some("the new one".into()), "no sweep took a live record");
    }
}
