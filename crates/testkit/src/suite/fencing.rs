//! A stale attempt is refused and told; what it brings is kept as evidence.

use std::sync::Arc;

use semel_core::claim::Claim;
use semel_core::history::{EVENTS_MAX, EVIDENCE_MAX, Kind};
use semel_core::record::{Recovery, State};
use semel_core::verbs::{Change, Completion, Finding, Renewal, Stale};
use semel_core::{Holder, Nonce, Token};

use crate::Rig;
use crate::scene::{LEASE, MINUTE, Shop, TTL, is_refused, operation, settled_by_operator};

/// Every write a holder can make, by one who is not the holder: refused, and but for evidence
/// nothing changes.
async fn all_refused(shop: &Shop, stale: Holder, why: &str) {
    let before = shop.get(stale.operation).await;
    assert!(matches!(shop.renew(stale).await, Renewal::Lost(_)), "{why}: renew");
    assert!(is_refused(shop.release(stale).await), "{why}: release");
    assert!(is_refused(shop.report_unknown(stale).await), "{why}: mark unknown");
    assert_eq!(shop.get(stale.operation).await, before, "{why}: nothing changes");
    let refused = shop.complete(stale, "a second effect").await;
    assert!(matches!(refused, Completion::Refused(_)), "{why}: complete");
    let after = shop.get(stale.operation).await;
    match (before, after) {
        (None, after) => assert_eq!(after, None, "{why}: no record comes into being"),
        (Some(mut before), Some(after)) => {
            assert!(after.history.possible_double_effect(), "{why}: the outcome is kept as evidence");
            before.history = after.history.clone();
            assert_eq!(before, after, "{why}: only the evidence is new");
        }
        (Some(_), None) => panic!("{why}: the record is gone"),
    }
}

// G-9
pub(super) async fn a_stale_token_or_nonce_is_refused_by_every_write(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for (state, key) in [
        (State::InProgress, "stale-in-progress"),
        (State::Completed, "stale-completed-0"),
        (State::Released, "stale-released-00"),
        (State::Unknown, "stale-unknown-000"),
        (State::Tombstone, "stale-tombstone-0"),
    ] {
        let order = operation(key);
        let first = shop.grant(&order, Recovery::Hold).await.holder;
        shop.release(first).await;
        let newest = shop.grant(&order, Recovery::Hold).await.holder;
        match state {
            State::InProgress => {}
            State::Completed => assert_eq!(shop.complete(newest, "paid").await, Completion::Stored),
            State::Released => assert_eq!(shop.release(newest).await, Change::Made),
            State::Unknown => assert_eq!(shop.report_unknown(newest).await, Change::Made),
            State::Tombstone => {
                shop.complete(newest, "paid").await;
                assert_eq!(shop.purge(order.id()).await, Change::Made);
            }
        }
        assert_eq!(shop.state(order.id()).await, Some(state));
        all_refused(&shop, first, "the attempt before").await;
        let wrong_nonce = Holder { nonce: Nonce::random(), ..newest };
        all_refused(&shop, wrong_nonce, "the right token with another nonce").await;
        let wrong_token = Holder { token: first.token, ..newest };
        all_refused(&shop, wrong_token, "the right nonce with an older token").await;
        let ahead = Holder { token: Token(newest.token.0 + 1_000_000), ..newest };
        all_refused(&shop, ahead, "a token never given").await;
        assert_eq!(shop.state(order.id()).await, Some(state));
    }
    let nowhere = operation("stale-nowhere-000").id();
    all_refused(&shop, Holder { operation: nowhere, token: Token(1), nonce: Nonce::random() }, "absent")
        .await;
}

// G-9
pub(super) async fn a_token_never_restarts(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("tokens-000000001");
    let mut seen = vec![];
    seen.push(shop.grant(&order, Recovery::Rerun).await.holder);
    shop.shift(LEASE);
    seen.push(shop.grant(&order, Recovery::Rerun).await.holder);
    shop.release(seen[1]).await;
    seen.push(shop.grant(&order, Recovery::Hold).await.holder);
    shop.complete(seen[2], "paid").await;
    shop.purge(order.id()).await;
    // Expired and not swept.
    shop.shift(TTL);
    seen.push(shop.grant(&order, Recovery::Hold).await.holder);
    shop.complete(seen[3], "paid").await;
    // Expired and swept: not even a record is left to remember the token.
    shop.shift(2 * TTL);
    shop.sweep().await;
    shop.sweep().await;
    shop.0.reopen().await;
    seen.push(shop.grant(&order, Recovery::Hold).await.holder);
    assert!(seen.is_sorted_by(|a, b| a.token < b.token), "{seen:?}");
    for stale in &seen[..4] {
        all_refused(&shop, *stale, "an attempt of an earlier life").await;
    }
    assert_eq!(shop.complete(seen[4], "paid again").await, Completion::Stored);
}

// G-9, G-15
pub(super) async fn a_takeover_fences_the_attempt_before(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("takeover-0000001");
    let first = shop.grant(&order, Recovery::Rerun).await;
    shop.shift(LEASE);
    let second = shop.grant(&order, Recovery::Rerun).await;
    assert!(second.holder.token > first.holder.token);
    assert_eq!(second.attempt, 2);
    let record = shop.record(order.id()).await;
    assert_eq!(record.history.events()[0].kind, Kind::TakenOver);
    assert_eq!(record.history.events()[0].token, first.holder.token);
    let told = shop.complete(first.holder, "the late one").await;
    let newest = Some(second.holder.token);
    let stale = Stale { state: Some(State::InProgress), token: newest, evidence_kept: true };
    assert_eq!(told, Completion::Refused(stale));
    assert_eq!(shop.complete(second.holder, "the new one").await, Completion::Stored);
    let record = shop.record(order.id()).await;
    assert_eq!(record.outcome, Some("the new one".into()));
    assert!(record.history.possible_double_effect());
    let kept = record.history.events().iter().find(|event| event.kind == Kind::RefusedOutcome);
    let kept = kept.expect("the refused outcome is in the history");
    assert_eq!((kept.token, kept.nonce), (first.holder.token, first.holder.nonce));
    assert_eq!(kept.evidence, Some("the late one".into()));
}

// G-9
pub(super) async fn a_refused_outcome_repeated_is_one_piece_of_evidence(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("evidence-0000001");
    let first = shop.grant(&order, Recovery::Hold).await.holder;
    shop.release(first).await;
    shop.grant(&order, Recovery::Hold).await;
    for _ in 0..3 {
        assert!(matches!(shop.complete(first, "late").await, Completion::Refused(_)));
    }
    let record = shop.record(order.id()).await;
    let refused = record.history.events().iter().filter(|event| event.kind == Kind::RefusedOutcome);
    assert_eq!(refused.count(), 1);
}

// G-9
pub(super) async fn evidence_and_history_are_bounded_and_survive_a_restart(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("bounded-00000001");
    let mut holders = Vec::new();
    for _ in 0..EVENTS_MAX + 8 {
        let lease = shop.grant(&order, Recovery::Rerun).await;
        shop.release(lease.holder).await;
        holders.push(lease.holder);
    }
    let newest = shop.grant(&order, Recovery::Rerun).await;
    for late in &holders[..EVIDENCE_MAX + 2] {
        shop.complete(*late, format!("late outcome of {}", late.token)).await;
    }
    let record = shop.record(order.id()).await;
    let events = record.history.events();
    assert_eq!(events.len(), EVENTS_MAX);
    assert!(record.history.dropped() > 0);
    assert!(record.history.possible_double_effect());
    assert_eq!(events.iter().filter(|event| event.evidence.is_some()).count(), EVIDENCE_MAX);
    assert_eq!(record.attempts as usize, EVENTS_MAX + 9);
    shop.0.reopen().await;
    assert_eq!(shop.record(order.id()).await, record);
    assert_eq!(shop.complete(newest.holder, "paid").await, Completion::Stored);
}

// G-7
pub(super) async fn a_completed_outcome_never_changes(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("forever-00000001");
    let lease = shop.completed(&order, "paid").await;
    let stored = shop.record(order.id()).await;
    shop.shift(MINUTE);
    assert_eq!(shop.complete(lease.holder, "paid").await, Completion::Stored, "a copy of the same write");
    assert_eq!(shop.record(order.id()).await, stored, "and it writes nothing");
    let other = shop.complete(lease.holder, "not paid").await;
    assert!(matches!(other, Completion::Refused(_)), "other bytes by the same attempt are refused");
    assert!(is_refused(shop.release(lease.holder).await));
    assert!(is_refused(shop.report_unknown(lease.holder).await));
    assert!(is_refused(shop.report_lapse(order.id(), lease.holder.token).await));
    assert!(matches!(shop.renew(lease.holder).await, Renewal::Lost(_)));
    for finding in [Finding::Done("settled".into()), Finding::Never] {
        assert!(is_refused(shop.settle(&settled_by_operator(&lease, finding)).await));
    }
    shop.shift(2 * LEASE);
    assert!(matches!(shop.ask(&order, Recovery::Rerun).await, Claim::Completed { .. }));
    let now = shop.record(order.id()).await;
    assert_eq!(
        (now.state, now.outcome, now.settled_at),
        (State::Completed, stored.outcome, stored.settled_at)
    );
    assert!(now.history.possible_double_effect());
}

// G-9: the completion and everything that could overtake it, at once.
pub(super) async fn a_completion_races_a_takeover_and_one_of_them_wins(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for round in 0..16 {
        let order = operation(&format!("race-00000000-{round:03}"));
        let first = shop.grant(&order, Recovery::Rerun).await;
        shop.shift(LEASE);
        let (late, claim) =
            tokio::join!(shop.complete(first.holder, "late"), shop.ask(&order, Recovery::Rerun));
        let record = shop.record(order.id()).await;
        match (late, claim) {
            (Completion::Stored, Claim::Completed { outcome, .. }) => {
                assert_eq!((record.state, outcome), (State::Completed, "late".into()));
            }
            (Completion::Refused(_), Claim::Granted(lease)) => {
                assert_eq!((record.state, record.holder()), (State::InProgress, lease.holder));
                assert!(record.history.possible_double_effect());
            }
            other => panic!("either the late outcome or the takeover counts, not {other:?}"),
        }
        shop.shift(-LEASE);
    }
}

// G-9: a shrunk record has no evidence left, and still knows that there was some.
pub(super) async fn a_possible_double_effect_is_remembered_as_long_as_the_record(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("remembered-00001");
    let first = shop.grant(&order, Recovery::Hold).await.holder;
    shop.release(first).await;
    let doubted = shop.unknown(&order, Recovery::Hold).await;
    shop.complete(first, "a second effect").await;
    shop.shift(30 * TTL);
    shop.sweep().await;
    assert_eq!(shop.settle(&settled_by_operator(&doubted, Finding::Never)).await, Change::Made);
    for _ in 0..EVENTS_MAX {
        let lease = shop.grant(&order, Recovery::Hold).await;
        shop.release(lease.holder).await;
    }
    let record = shop.record(order.id()).await;
    assert_eq!(record.history.events().len(), EVENTS_MAX);
    assert!(record.history.possible_double_effect(), "plain events go first");
}
