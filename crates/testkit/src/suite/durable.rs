//! Restarts lose nothing, and restores are noticed.

use std::collections::HashSet;
use std::sync::Arc;

use semel_core::claim::Claim;
use semel_core::error::{Error, Kind};
use semel_core::record::{Recovery, State};
use semel_core::store::Filter;
use semel_core::verbs::{
    Complete, Completion, Finding, MarkUnknown, Purge, Release, Renew, Renewal, Witness,
};
use semel_core::{Nonce, OperationId, Token};

use crate::Rig;
use crate::scene::{
    COFFEE, DAY, LEASE, RECOVERIES, Shop, granted, micros, operation, operation_in, request,
    settled_by_operator,
};

/// One operation in each state, with everything a record can hold.
async fn one_of_each(shop: &Shop) -> Vec<OperationId> {
    let part = format!("\u{1F980} ünï\u{301}-{}", "ß".repeat(200));
    let key = "~".repeat(255);
    let mut ids = Vec::new();
    for (at, recovery) in (0..6).zip(RECOVERIES.into_iter().cycle()) {
        let order = operation_in(&format!("{part}{at}"), Some(&part), &part, &key);
        let first = shop.grant(&order, recovery).await;
        shop.release(first.holder).await;
        let mut claim = request(&order, COFFEE, recovery);
        claim.subject = Some(format!("subject {part}").into());
        claim.terms.ttl = micros(DAY + at);
        let lease = granted(shop.claim(&claim).await);
        shop.shift(1);
        shop.complete(first.holder, vec![0, 255, at as u8]).await;
        match at {
            1 => drop(shop.complete(lease.holder, vec![0; 100_000]).await),
            2 => drop(shop.release(lease.holder).await),
            3 => drop(shop.report_unknown(lease.holder).await),
            4 => {
                shop.report_unknown(lease.holder).await;
                shop.settle(&settled_by_operator(&lease, Finding::Done("found".into()))).await;
            }
            5 => {
                shop.complete(lease.holder, "gone").await;
                shop.purge(order.id()).await;
            }
            _ => {}
        }
        ids.push(order.id());
    }
    ids
}

// G-9, G-10: what was answered survives.
pub(super) async fn a_restart_keeps_every_field_of_every_record(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let ids = one_of_each(&shop).await;
    let mut before = Vec::new();
    for id in &ids {
        before.push(shop.record(*id).await);
    }
    let status = shop.store().status().await.expect("a status is answered");
    for _ in 0..2 {
        shop.0.reopen().await;
        for (id, before) in ids.iter().zip(&before) {
            assert_eq!(&shop.record(*id).await, before);
        }
        let again = shop.store().status().await.expect("a status is answered");
        assert_eq!((again.store_id, again.went_back_from), (status.store_id, None));
        assert_eq!(again.mark.epoch, status.mark.epoch);
        assert!(again.mark.token >= status.mark.token);
    }
    let states: HashSet<State> = before.iter().map(|record| record.state).collect();
    assert_eq!(states.len(), 5, "every state was there");
    // And life goes on where it was.
    assert!(matches!(shop.renew(before[0].holder()).await, Renewal::Kept { .. }));
    assert_eq!(shop.complete(before[0].holder(), "paid").await, Completion::Stored);
    assert_eq!(shop.complete(before[3].holder(), "late").await, Completion::Stored);
    let newest = before.iter().map(|record| record.token).max().unwrap_or_default();
    assert!(shop.grant(&operation("after-restart-01"), Recovery::Hold).await.holder.token > newest);
}

/// What every verb says, in order.
async fn errors_of_all_verbs(shop: &Shop) -> Vec<(&'static str, Option<Error>)> {
    let store = shop.store();
    let claim = request(&operation("after-restore-01"), COFFEE, Recovery::Hold);
    let id = claim.operation.id();
    let holder = semel_core::Holder { operation: id, token: Token(1), nonce: claim.nonce };
    let lease = semel_core::Lease { holder, attempt: 1, until: Default::default(), granted: micros(LEASE) };
    let mark = MarkUnknown { witness: Witness::Holder(holder), note: String::new() };
    let purge = Purge { operation: id, nonce: Nonce::random(), note: String::new() };
    let settle = settled_by_operator(&lease, Finding::Never);
    vec![
        ("claim", store.claim(&claim).await.err()),
        ("renew", store.renew(&Renew { holder, lease: micros(LEASE) }).await.err()),
        ("complete", store.complete(&Complete { holder, outcome: "x".into(), ttl_min: None }).await.err()),
        ("release", store.release(&Release { holder }).await.err()),
        ("mark_unknown", store.mark_unknown(&mark).await.err()),
        ("settle", store.settle(&settle).await.err()),
        ("purge", store.purge(&purge).await.err()),
        ("purge_subject", store.purge_subject("s", purge.nonce, "", 10).await.err()),
        ("get", store.get(id).await.err()),
        ("list", store.list(&Filter::unsettled(), Token(0), 10).await.err()),
        ("sweep", store.sweep(10, micros(DAY)).await.err()),
        ("rotate_hash_key", store.rotate_hash_key().await.err()),
    ]
}

// G-13
pub(super) async fn a_restored_store_answers_nothing_until_acknowledged(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let kept = operation("restore-00000001");
    shop.completed(&kept, "paid").await;
    shop.0.back_up().await;
    let before = shop.store().status().await.expect("a status is answered");
    let mut given = Vec::new();
    for n in 0..5 {
        given.push(shop.completed(&operation(&format!("lost-000000000{n}")), "paid").await.holder);
    }
    shop.0.restore().await;
    let status = shop.store().status().await.expect("a restored store still describes itself");
    let seen = status.went_back_from.expect("it is seen to have gone back");
    assert!(seen.token >= given[4].token || seen.epoch > status.mark.epoch, "{seen:?}");
    assert_eq!(status.store_id, before.store_id);
    for restart in [false, true] {
        if restart {
            shop.0.reopen().await;
        }
        for (verb, error) in errors_of_all_verbs(&shop).await {
            let error = error.unwrap_or_else(|| panic!("{verb} must not be answered"));
            assert_eq!(error.kind(), Kind::WentBack, "{verb}: {error}");
            assert!(!error.outcome_is_unknown(), "{verb} certainly did nothing");
        }
    }
    let mark = shop.store().acknowledge_restore("ops").await.expect("an operator may acknowledge");
    assert!(mark.epoch > before.mark.epoch);
    assert!(errors_of_all_verbs(&shop).await.iter().all(|(_, error)| error.is_none()));
    assert!(
        matches!(shop.ask(&kept, Recovery::Hold).await, Claim::Completed { .. }),
        "what was saved is there"
    );
    let next = shop.grant(&operation("lost-0000000000"), Recovery::Hold).await.holder;
    for lost in &given {
        assert!(next.token > lost.token, "no token that was given is given again");
        assert!(matches!(shop.renew(*lost).await, Renewal::Lost(_)));
        assert!(matches!(shop.complete(*lost, "late").await, Completion::Refused(_)));
    }
    shop.0.reopen().await;
    let status = shop.store().status().await.expect("a status is answered");
    assert_eq!(status.went_back_from, None, "it was acknowledged once and for all");
    assert!(shop.grant(&operation("restore-00000009"), Recovery::Hold).await.holder.token > next.token);
}

// G-6, G-13: a process may still hold the lost key, and what it stores must not pass for another request's.
pub(super) async fn a_key_made_after_a_restore_has_a_version_that_no_lost_key_had(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let rotate = async || shop.store().rotate_hash_key().await.expect("a rotation is answered");
    let kept = rotate().await;
    shop.0.back_up().await;
    let lost = [rotate().await, rotate().await];
    shop.completed(&operation("restore-key-00001"), "paid").await;
    shop.0.restore().await;
    shop.store().acknowledge_restore("ops").await.expect("an operator may acknowledge");
    let keys = shop.store().status().await.expect("a status is answered").hash_keys;
    assert_eq!(keys[0].version, kept, "acknowledging makes no key: the oldest one may name tenants");
    let fresh = rotate().await;
    assert!(lost.iter().all(|lost| fresh > *lost), "{fresh} after {lost:?}");
    assert_eq!(rotate().await, fresh + 1, "and it goes on from there");
    let keys = shop.store().status().await.expect("a status is answered").hash_keys;
    assert_eq!((keys[1].version, keys[2].version), (fresh, kept), "newest first");
}

// G-13
pub(super) async fn a_backup_put_back_at_once_needs_no_acknowledgement(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("restore-same-001");
    shop.completed(&order, "paid").await;
    shop.0.back_up().await;
    shop.0.restore().await;
    assert!(matches!(shop.ask(&order, Recovery::Hold).await, Claim::Completed { .. }));
    let before = shop.store().status().await.expect("a status is answered").mark;
    let mark = shop.store().acknowledge_restore("ops").await.expect("it may be acknowledged all the same");
    assert!(mark.epoch > before.epoch && mark.token >= before.token);
}

// G-20: a store keeps bytes, it does not read them.
pub(super) async fn a_damaged_outcome_never_makes_a_key_free(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("damaged-00000001");
    shop.completed(&order, "paid").await;
    if !shop.0.damage_outcome(order.id()).await {
        // This backend cannot be damaged from outside; garbage can still be stored.
        let other = operation("damaged-00000002");
        let lease = shop.grant(&other, Recovery::Hold).await;
        let garbage: Vec<u8> = (0..257u32).map(|n| (n * 89 % 251) as u8).collect();
        shop.complete(lease.holder, garbage.clone()).await;
        match shop.ask(&other, Recovery::Hold).await {
            Claim::Completed { outcome, .. } => assert_eq!(outcome, garbage),
            told => panic!("stored bytes come back, not {told:?}"),
        }
        return;
    }
    for _ in 0..2 {
        match shop.store().claim(&request(&order, COFFEE, Recovery::Rerun)).await {
            Ok(Claim::Completed { outcome, .. }) => assert_ne!(outcome, "paid"),
            Err(error) => assert_eq!(error.kind(), Kind::Damaged, "{error}"),
            told => panic!("a damaged record still counts, not {told:?}"),
        }
        shop.0.reopen().await;
    }
}

pub(super) async fn a_store_says_what_it_is(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let one = shop.store().capabilities();
    assert!(!one.engine.is_empty());
    assert!(one.time_precision <= std::time::Duration::from_millis(1));
    assert_eq!(shop.store().capabilities(), one, "constant for the life of the store");
    let status = shop.store().status().await.expect("a status is answered");
    assert_ne!(status.store_id, [0; 16]);
    assert_eq!(status.went_back_from, None);
    let token = shop.grant(&operation("status-000000001"), Recovery::Hold).await.holder.token;
    let later = shop.store().status().await.expect("a status is answered");
    assert!(later.mark.token >= token && later.mark.epoch == status.mark.epoch);
    assert_eq!(later.store_id, status.store_id);
}
