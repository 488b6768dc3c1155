//! An unknown is never forgotten and never guessed at; it ends by its own late answer or by somebody's word.

use std::sync::Arc;

use semel_core::claim::Claim;
use semel_core::history::Kind;
use semel_core::record::{Recovery, State};
use semel_core::verbs::{Change, Completion, Finding, Renewal, Settle, Settler};
use semel_core::{Nonce, Token};

use crate::Rig;
use crate::scene::{
    DAY, LEASE, MINUTE, RECOVERIES, RUN_MAX, Shop, granted, is_refused, micros, operation, request,
    settled_by_operator,
};

// G-10
pub(super) async fn an_unknown_never_expires_and_still_answers_years_later(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("forgotten-000001");
    let first = shop.grant(&order, Recovery::Hold).await;
    shop.release(first.holder).await;
    let lease = shop.unknown(&order, Recovery::Hold).await;
    // Evidence and paths make it bulky.
    shop.complete(first.holder, "refused").await;
    let whole = shop.record(order.id()).await;
    for days in [1, 5, 30, 400, 3000] {
        shop.shift(days * DAY);
        shop.sweep().await;
        let told = shop.ask(&order, Recovery::Hold).await;
        assert!(matches!(told, Claim::Unknown { .. }), "after {days} more days: {told:?}");
    }
    let mut small = shop.record(order.id()).await;
    assert!(small.history.events().iter().all(|event| event.evidence.is_none()), "old evidence is dropped");
    assert!(small.history.possible_double_effect(), "that there was some is not");
    assert_eq!(small.history.events().len(), whole.history.events().len());
    assert!(small.print.paths.is_empty());
    small.print.paths = whole.print.paths.clone();
    small.history = whole.history.clone();
    assert_eq!(small, whole, "the rest stays");
    let mismatch = shop.claim(&request(&order, "another body", Recovery::Hold)).await;
    assert!(matches!(mismatch, Claim::Mismatch { .. }), "and is still compared: {mismatch:?}");
    assert_eq!(shop.complete(lease.holder, "ten years late").await, Completion::Stored);
}

// G-10
pub(super) async fn a_young_unknown_keeps_its_evidence_through_a_sweep(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("young-0000000001");
    let first = shop.grant(&order, Recovery::Hold).await;
    shop.release(first.holder).await;
    shop.unknown(&order, Recovery::Hold).await;
    shop.complete(first.holder, "refused").await;
    let whole = shop.record(order.id()).await;
    shop.shift(7 * DAY - MINUTE);
    shop.sweep().await;
    assert_eq!(shop.record(order.id()).await, whole);
}

// G-9
pub(super) async fn the_newest_attempts_late_outcome_ends_an_unknown(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for recovery in RECOVERIES {
        let order = operation(&format!("late-{recovery:?}-00003"));
        let lease = shop.unknown(&order, recovery).await;
        assert!(
            matches!(shop.renew(lease.holder).await, Renewal::Lost(_)),
            "an unknown has no lease to keep"
        );
        assert_eq!(shop.report_unknown(lease.holder).await, Change::Made, "but reported again");
        shop.shift(DAY);
        assert_eq!(shop.complete(lease.holder, "paid after all").await, Completion::Stored);
        assert_eq!(shop.complete(lease.holder, "paid after all").await, Completion::Stored);
        let record = shop.record(order.id()).await;
        assert_eq!((record.state, record.outcome), (State::Completed, Some("paid after all".into())));
        let kinds: Vec<Kind> = record.history.events().iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [Kind::ReportedUnknown, Kind::LateOutcome]);
        assert!(!record.history.possible_double_effect());
    }
}

// G-16: who ran knows best what it did not do.
pub(super) async fn the_newest_attempts_word_that_nothing_happened_ends_an_unknown(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("nothing-000000001");
    let first = shop.grant(&order, Recovery::Hold).await;
    shop.release(first.holder).await;
    let lease = shop.grant(&order, Recovery::Hold).await;
    shop.shift(LEASE);
    assert_eq!(shop.report_lapse(order.id(), lease.holder.token).await, Change::Made);
    assert!(is_refused(shop.release(first.holder).await), "an older attempt has no say");
    assert_eq!(shop.state(order.id()).await, Some(State::Unknown));
    assert_eq!(shop.release(lease.holder).await, Change::Made);
    assert_eq!(shop.release(lease.holder).await, Change::Made, "repeating is harmless");
    assert_eq!(shop.state(order.id()).await, Some(State::Released));
    assert!(is_refused(shop.settle(&settled_by_operator(&lease, Finding::Done("x".into()))).await));
    assert!(shop.grant(&order, Recovery::Hold).await.holder.token > lease.holder.token);
}

// G-9
pub(super) async fn a_superseded_attempts_late_outcome_does_not_end_an_unknown(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("superseded-00001");
    let first = shop.grant(&order, Recovery::Hold).await;
    shop.release(first.holder).await;
    shop.unknown(&order, Recovery::Hold).await;
    assert!(matches!(shop.complete(first.holder, "late").await, Completion::Refused(_)));
    let record = shop.record(order.id()).await;
    assert_eq!((record.state, record.outcome), (State::Unknown, None));
    assert!(record.history.possible_double_effect());
}

// G-15
pub(super) async fn an_operator_settles_an_unknown_as_done(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for recovery in [Recovery::Hold, Recovery::Ask] {
        let order = operation(&format!("done-{recovery:?}-00001"));
        let lease = shop.unknown(&order, recovery).await;
        let settle = settled_by_operator(&lease, Finding::Done("found at the bank".into()));
        assert_eq!(shop.settle(&settle).await, Change::Made);
        assert_eq!(shop.settle(&settle).await, Change::Made, "a repeated settlement is the same one");
        let record = shop.record(order.id()).await;
        assert_eq!((record.state, &record.outcome), (State::Completed, &Some("found at the bank".into())));
        let last = record.history.events().last().expect("it was noted");
        assert_eq!((last.kind, last.nonce), (Kind::SettledDone, settle.nonce));
        assert_eq!(last.note, "ops: seen at the bank");
        assert_eq!(record.history.events().len(), 2);
        assert!(matches!(shop.ask(&order, recovery).await, Claim::Completed { .. }));
        // The holder comes back after all: it may be a second effect, or the same one.
        assert!(matches!(shop.complete(lease.holder, "mine").await, Completion::Refused(_)));
        let record = shop.record(order.id()).await;
        assert_eq!(record.outcome, Some("found at the bank".into()));
        assert!(record.history.possible_double_effect());
    }
}

// G-15
pub(super) async fn an_operator_settles_an_unknown_as_never(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("never-0000000001");
    let lease = shop.unknown(&order, Recovery::Hold).await;
    let settle = settled_by_operator(&lease, Finding::Never);
    assert_eq!(shop.settle(&settle).await, Change::Made);
    assert_eq!(shop.settle(&settle).await, Change::Made);
    assert_eq!(shop.state(order.id()).await, Some(State::Released));
    assert!(matches!(shop.complete(lease.holder, "late").await, Completion::Refused(_)));
    let next = shop.grant(&order, Recovery::Hold).await;
    assert!(next.holder.token > lease.holder.token);
    assert_eq!(shop.settle(&settle).await, Change::Made, "a late copy still hears that it was made");
    assert_eq!(shop.record(order.id()).await.holder(), next.holder, "and disturbs nobody");
    assert!(matches!(shop.complete(lease.holder, "late").await, Completion::Refused(_)));
    assert_eq!(shop.complete(next.holder, "paid").await, Completion::Stored);
}

// G-7
pub(super) async fn a_settlement_of_another_attempt_or_state_is_refused(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let findings = [Finding::Done("x".into()), Finding::Never];
    for (at, state) in
        [State::InProgress, State::Completed, State::Released, State::Tombstone].into_iter().enumerate()
    {
        let order = operation(&format!("not-unknown-0000{at}"));
        let lease = shop.grant(&order, Recovery::Hold).await;
        match state {
            State::Completed => drop(shop.complete(lease.holder, "paid").await),
            State::Released => drop(shop.release(lease.holder).await),
            State::Tombstone => {
                shop.complete(lease.holder, "paid").await;
                shop.purge(order.id()).await;
            }
            _ => {}
        }
        let before = shop.record(order.id()).await;
        for finding in findings.clone() {
            assert!(is_refused(shop.settle(&settled_by_operator(&lease, finding)).await), "{state:?}");
        }
        assert_eq!(shop.record(order.id()).await, before);
    }
    let order = operation("not-that-one-001");
    let first = shop.grant(&order, Recovery::Hold).await;
    shop.release(first.holder).await;
    shop.unknown(&order, Recovery::Hold).await;
    for finding in findings.clone() {
        assert!(is_refused(shop.settle(&settled_by_operator(&first, finding)).await), "an older attempt");
    }
    assert_eq!(shop.state(order.id()).await, Some(State::Unknown));
    let nowhere = Settle {
        operation: operation("nowhere-0000001").id(),
        ..settled_by_operator(&first, Finding::Never)
    };
    assert!(is_refused(shop.settle(&nowhere).await));
}

// G-15
pub(super) async fn an_asked_party_is_believed_after_run_max_and_never_without_a_fence(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let asked = |token: Token, finding: Finding, refused_through: Token, key: &str| Settle {
        operation: operation(key).id(),
        token,
        nonce: Nonce::random(),
        finding,
        by: Settler::Asked { refused_through },
        note: String::new(),
    };
    for (key, finding) in
        [("asked-done-00001", Finding::Done("paid".into())), ("asked-never-0001", Finding::Never)]
    {
        let order = operation(key);
        let token = shop.unknown(&order, Recovery::Ask).await.holder.token;
        shop.shift(RUN_MAX - shop.edge());
        let early = shop.settle(&asked(token, finding.clone(), token, key)).await;
        assert!(is_refused(early), "the effect may still be on its way");
        shop.shift(shop.edge());
        let below = Token(token.0 - 1);
        if finding == Finding::Never {
            let open = shop.settle(&asked(token, finding.clone(), below, key)).await;
            assert!(is_refused(open), "it would still take this token");
            assert_eq!(shop.state(order.id()).await, Some(State::Unknown));
        }
        // Who says *done* need not refuse anything.
        let through = if finding == Finding::Never { token } else { below };
        let settle = asked(token, finding.clone(), through, key);
        assert_eq!(shop.settle(&settle).await, Change::Made);
        assert_eq!(shop.settle(&settle).await, Change::Made);
        let expected = if finding == Finding::Never { State::Released } else { State::Completed };
        assert_eq!(shop.state(order.id()).await, Some(expected));
    }
}

// G-15
pub(super) async fn run_max_counts_from_the_newest_attempt(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("run-max-00000001");
    let first = shop.grant(&order, Recovery::Ask).await;
    shop.shift(RUN_MAX);
    shop.release(first.holder).await;
    let lease = shop.unknown(&order, Recovery::Ask).await;
    shop.shift(LEASE);
    let settle = Settle {
        by: Settler::Asked { refused_through: lease.holder.token },
        ..settled_by_operator(&lease, Finding::Never)
    };
    assert!(is_refused(shop.settle(&settle).await));
    let record = shop.record(order.id()).await;
    assert_eq!(record.may_ask_at(), record.attempt_at.after(micros(RUN_MAX)));
    shop.shift(RUN_MAX - LEASE);
    assert_eq!(shop.settle(&settle).await, Change::Made);
}

// G-9
pub(super) async fn a_claims_own_nonce_finds_its_unknown(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("own-nonce-000001");
    let claim = request(&order, crate::scene::COFFEE, Recovery::Hold);
    let lease = granted(shop.claim(&claim).await);
    shop.report_unknown(lease.holder).await;
    let told = shop.claim(&claim).await;
    assert!(matches!(told, Claim::Unknown { recovery: Recovery::Hold, .. }), "{told:?}");
}
