//! Leases lapse on the store's clock, and lapsing alone takes nothing from their holder.

use std::sync::Arc;

use semel_core::claim::Claim;
use semel_core::history::Kind;
use semel_core::record::{Recovery, State};
use semel_core::verbs::{Change, Completion, Renew, Renewal};
use semel_core::{Nonce, Token};

use crate::Rig;
use crate::scene::{
    COFFEE, DAY, HOUR, LEASE, MINUTE, RECOVERIES, Shop, is_refused, micros, operation, request,
};

// G-12
pub(super) async fn a_lease_lapses_at_its_deadline_and_not_before(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("deadline-0000001");
    let first = shop.grant(&order, Recovery::Rerun).await;
    shop.shift(LEASE - shop.edge());
    let early = shop.ask(&order, Recovery::Rerun).await;
    assert!(matches!(early, Claim::InFlight { .. }), "the lease still lives: {early:?}");
    shop.shift(shop.edge());
    let second = shop.grant(&order, Recovery::Rerun).await;
    assert!(second.holder.token > first.holder.token);
}

// G-15
pub(super) async fn lapsed_under_hold_or_ask_the_next_claim_finds_it_unknown(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for recovery in [Recovery::Hold, Recovery::Ask] {
        let order = operation(&format!("lapsed-{recovery:?}-0001"));
        let lease = shop.grant(&order, recovery).await;
        shop.shift(LEASE);
        // What the next caller would like does not count; what the record was claimed under does.
        let told = shop.ask(&order, Recovery::Rerun).await;
        let record = shop.record(order.id()).await;
        assert_eq!(record.state, State::Unknown);
        assert_eq!(told, Claim::Unknown { since: record.settled_at.unwrap_or_default(), recovery });
        assert_eq!((record.holder(), record.attempts), (lease.holder, 1), "nobody else got the lease");
        assert_eq!(record.history.events()[0].kind, Kind::Lapsed);
        assert_eq!(shop.ask(&order, recovery).await, told, "and it stays so");
    }
}

// G-15
pub(super) async fn a_lapse_seen_by_anybody_makes_it_unknown(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for recovery in [Recovery::Hold, Recovery::Ask] {
        let order = operation(&format!("witness-{recovery:?}-0001"));
        let token = shop.grant(&order, recovery).await.holder.token;
        shop.shift(LEASE - shop.edge());
        let early = shop.report_lapse(order.id(), token).await;
        assert!(is_refused(early), "the lease still lives");
        assert_eq!(shop.state(order.id()).await, Some(State::InProgress));
        shop.shift(shop.edge());
        let other = shop.report_lapse(order.id(), Token(token.0 + 1)).await;
        assert!(is_refused(other), "another attempt was seen");
        assert_eq!(shop.report_lapse(order.id(), token).await, Change::Made);
        assert_eq!(shop.report_lapse(order.id(), token).await, Change::Made, "repeating is harmless");
        let record = shop.record(order.id()).await;
        assert_eq!((record.state, record.history.events().len()), (State::Unknown, 1));
        assert_eq!(record.history.events()[0].note, "the answer was lost");
    }
    let order = operation("witness-Rerun-0001");
    let token = shop.grant(&order, Recovery::Rerun).await.holder.token;
    shop.shift(2 * LEASE);
    assert!(is_refused(shop.report_lapse(order.id(), token).await), "under rerun the next attempt runs");
    assert_eq!(shop.state(order.id()).await, Some(State::InProgress));
    assert!(is_refused(shop.report_lapse(operation("witness-none-0001").id(), token).await));
}

// G-17
pub(super) async fn a_renewed_lease_outlives_its_first_deadline(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for recovery in RECOVERIES {
        let order = operation(&format!("renewed-{recovery:?}-0001"));
        let lease = shop.grant(&order, recovery).await;
        let mut until = lease.until;
        for _ in 0..6 {
            shop.shift(LEASE / 2);
            match shop.renew(lease.holder).await {
                Renewal::Kept { until: later } => {
                    assert!(later > until);
                    until = later;
                }
                lost => panic!("the holder keeps its lease, not {lost:?}"),
            }
            let told = shop.ask(&order, recovery).await;
            assert!(matches!(told, Claim::InFlight { until: seen, .. } if seen == until), "{told:?}");
        }
        assert_eq!(shop.record(order.id()).await.lease_until, until);
    }
}

// G-12
pub(super) async fn a_renewal_never_shortens_a_lease(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("shorter-00000001");
    let lease = shop.grant(&order, Recovery::Hold).await;
    let brief = Renew { holder: lease.holder, lease: micros(MINUTE) };
    let kept = shop.store().renew(&brief).await.expect("a renewal is answered");
    assert_eq!(kept, Renewal::Kept { until: lease.until });
    shop.shift(-HOUR);
    assert_eq!(shop.renew(lease.holder).await, Renewal::Kept { until: lease.until }, "the clock went back");
    assert_eq!(shop.record(order.id()).await.lease_until, lease.until);
}

// G-17
pub(super) async fn a_lapsed_lease_nobody_took_may_be_renewed_and_completed(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for recovery in RECOVERIES {
        let order = operation(&format!("late-{recovery:?}-00001"));
        let lease = shop.grant(&order, recovery).await;
        shop.shift(3 * LEASE);
        assert!(matches!(shop.renew(lease.holder).await, Renewal::Kept { .. }));
        let told = shop.ask(&order, recovery).await;
        assert!(matches!(told, Claim::InFlight { .. }), "it is held again: {told:?}");
        shop.shift(3 * LEASE);
        assert_eq!(shop.complete(lease.holder, "paid").await, Completion::Stored);
        assert!(matches!(shop.ask(&order, recovery).await, Claim::Completed { .. }));
        let order = operation(&format!("late-{recovery:?}-00002"));
        let lease = shop.grant(&order, recovery).await;
        shop.shift(3 * LEASE);
        assert_eq!(shop.release(lease.holder).await, Change::Made, "nor is its release refused");
    }
}

// G-10
pub(super) async fn an_operation_in_progress_never_expires(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let (held, run) = (operation("eternal-00000001"), operation("eternal-00000002"));
    let lease = shop.grant(&held, Recovery::Hold).await;
    shop.grant(&run, Recovery::Rerun).await;
    for _ in 0..3 {
        shop.shift(400 * DAY);
        shop.sweep().await;
        assert_eq!(shop.state(held.id()).await, Some(State::InProgress));
        assert_eq!(shop.state(run.id()).await, Some(State::InProgress));
    }
    assert_eq!(shop.grant(&run, Recovery::Rerun).await.attempt, 2, "it is a takeover, not a new operation");
    assert!(matches!(shop.ask(&held, Recovery::Hold).await, Claim::Unknown { .. }));
    assert_eq!(shop.complete(lease.holder, "paid").await, Completion::Stored);
}

// G-12
pub(super) async fn a_clock_that_jumps_back_ends_nothing_early(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let (running, done) = (operation("back-00000000001"), operation("back-00000000002"));
    let lease = shop.grant(&running, Recovery::Rerun).await;
    shop.completed(&done, "paid").await;
    shop.shift(-30 * DAY);
    shop.sweep().await;
    assert!(matches!(shop.ask(&running, Recovery::Rerun).await, Claim::InFlight { .. }));
    assert!(matches!(shop.ask(&done, Recovery::Hold).await, Claim::Completed { .. }));
    assert_eq!(shop.renew(lease.holder).await, Renewal::Kept { until: lease.until });
    let fresh = operation("back-00000000003");
    let newer = shop.grant(&fresh, Recovery::Hold).await;
    assert!(newer.holder.token > lease.holder.token, "tokens do not follow the clock");
    assert_eq!(shop.complete(newer.holder, "paid").await, Completion::Stored);
    assert_eq!(shop.complete(lease.holder, "paid").await, Completion::Stored);
    shop.shift(30 * DAY);
    assert!(matches!(shop.ask(&running, Recovery::Rerun).await, Claim::Completed { .. }));
}

// G-12, G-9
pub(super) async fn a_clock_that_jumps_forward_lets_leases_lapse_and_fences_their_holders(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let (run, held) = (operation("forward-00000001"), operation("forward-00000002"));
    let first = shop.grant(&run, Recovery::Rerun).await;
    let kept = shop.grant(&held, Recovery::Hold).await;
    shop.shift(2 * DAY);
    let second = shop.grant(&run, Recovery::Rerun).await;
    assert!(matches!(shop.ask(&held, Recovery::Hold).await, Claim::Unknown { .. }));
    // The clock is put right again: what was decided stays decided.
    shop.shift(-2 * DAY);
    assert!(matches!(shop.renew(first.holder).await, Renewal::Lost(_)));
    assert!(matches!(shop.complete(first.holder, "late").await, Completion::Refused(_)));
    assert!(matches!(shop.renew(kept.holder).await, Renewal::Lost(_)), "it was called unknown");
    assert!(matches!(shop.renew(second.holder).await, Renewal::Kept { .. }));
    assert_eq!(shop.complete(kept.holder, "late but the newest").await, Completion::Stored);
}

pub(super) async fn each_attempt_brings_its_own_terms(rig: Arc<dyn Rig>) {
    // G-15: the route was reconfigured between two attempts.
    let shop = Shop(rig);
    let order = operation("terms-0000000001");
    let lease = shop.grant(&order, Recovery::Rerun).await;
    shop.release(lease.holder).await;
    let mut claim = request(&order, COFFEE, Recovery::Ask);
    claim.nonce = Nonce::random();
    claim.terms.lease = micros(LEASE / 2);
    claim.terms.ttl = micros(9 * DAY);
    claim.subject = Some("customer-9".into());
    shop.claim(&claim).await;
    let record = shop.record(order.id()).await;
    assert_eq!((record.terms, record.subject.as_deref()), (claim.terms, Some("customer-9")));
    assert_eq!(record.lease_until, record.attempt_at.after(micros(LEASE / 2)));
    shop.shift(LEASE / 2);
    assert!(matches!(
        shop.ask(&order, Recovery::Rerun).await,
        Claim::Unknown { recovery: Recovery::Ask, .. }
    ));
}
