//! The store goes away, answers get lost, callers leave.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use semel_core::policy::Outage;
use semel_core::record::{Recovery, State};
use semel_core::verbs::Completion;
use semel_core::{Origin, Outcome, Policy, Refusal};
use tokio::sync::Notify;

use super::plain::origin;
use super::{Till, breathe, brisk, charged, order, patient, policy};
use crate::Rig;
use crate::faulty::{Fault, Verb};
use crate::scene::{COFFEE, DAY, granted, request};

const KEY: &str = "a-key-nobody-guesses-4";

// G-9
pub(super) async fn a_lost_claim_answer_is_found_out_with_the_same_nonce(rig: Arc<dyn Rig>) {
    for faults in [
        &[Fault::LoseAnswer][..],
        &[Fault::LoseAnswer, Fault::LoseAnswer, Fault::LoseCall],
        &[Fault::LoseCall, Fault::Refuse, Fault::LoseAnswer],
    ] {
        let till = Till::scripted(rig.clone(), Verb::Claim, faults);
        let key = format!("{KEY}-{}", faults.len() * 10 + usize::from(faults[0] == Fault::LoseCall));
        assert_eq!(origin(&till.charge(&key, &Policy::default()).await), Origin::Fresh);
        let record = till.record(&key).await.expect("there is a record");
        assert_eq!((record.attempts, record.state), (1, State::Completed), "it was one attempt all along");
        assert_eq!((till.effects(), till.once.tally().withdrawn()), (1, 0));
        assert_eq!(till.faulty.calls(Verb::Claim) as usize, faults.len() + 1);
    }
}

// G-9
pub(super) async fn a_lost_completion_answer_is_found_out_with_the_same_bytes(rig: Arc<dyn Rig>) {
    for (at, faults) in [
        &[Fault::LoseAnswer][..],
        &[Fault::LoseCall, Fault::LoseAnswer],
        &[Fault::Refuse, Fault::Refuse, Fault::LoseAnswer],
    ]
    .into_iter()
    .enumerate()
    {
        let till = Till::scripted(rig.clone(), Verb::Complete, faults);
        let ring = semel_core::Keyring::new("k", &[1; 32]).expect("the id is usable");
        for (kind, policy) in
            [("plain", Policy::default()), ("sealed", policy(Policy::builder().encrypt(ring)))]
        {
            let key = format!("{KEY}-{kind}-{at}");
            let heard = till.charge(&key, &policy).await.expect("there is an answer");
            assert_eq!(heard.origin, Origin::Fresh);
            let again = till.charge(&key, &policy).await.expect("there is an answer");
            assert_eq!((again.origin, again.outcome), (Origin::Replayed, heard.outcome));
            let record = till.record(&key).await.expect("there is a record");
            assert!(record.history.events().is_empty(), "a repeated write is no second outcome");
        }
        assert_eq!((till.effects(), till.once.tally().refused_outcomes()), (2, 0));
    }
}

// G-9
pub(super) async fn doubled_and_late_copies_change_nothing(rig: Arc<dyn Rig>) {
    for verb in [Verb::Claim, Verb::Complete, Verb::Release, Verb::MarkUnknown] {
        for fault in [Fault::Twice, Fault::Late] {
            let till = Till::scripted(rig.clone(), verb, &[fault, fault, fault]);
            let done = format!("{KEY}-done-{verb:?}-{fault:?}");
            assert_eq!(origin(&till.charge(&done, &Policy::default()).await), Origin::Fresh);
            till.faulty.deliver().await;
            assert_eq!(origin(&till.charge(&done, &Policy::default()).await), Origin::Replayed);
            let freed = format!("{KEY}-freed-{verb:?}-{fault:?}");
            let heard = till.run(&freed, &Policy::default(), async |_| {
                semel_core::Ending::NothingHappened(Outcome::text("no"))
            });
            assert_eq!(origin(&heard.await), Origin::NothingHappened);
            till.once.drain(Duration::from_secs(10)).await;
            till.faulty.deliver().await;
            assert_eq!(till.state(&freed).await, Some(State::Released), "{verb:?} {fault:?}");
            assert_eq!(origin(&till.charge(&freed, &Policy::default()).await), Origin::Fresh);
            till.faulty.deliver().await;
            for key in [&done, &freed] {
                let record = till.record(key).await.expect("there is a record");
                assert_eq!(record.state, State::Completed, "{verb:?} {fault:?}");
                assert!(!record.history.possible_double_effect(), "{verb:?} {fault:?}");
            }
            assert_eq!((till.effects(), till.faulty.ghosts()), (2, 0), "{verb:?} {fault:?}");
        }
    }
}

// G-18
pub(super) async fn with_the_store_away_nothing_runs(rig: Arc<dyn Rig>) {
    let till = Till::with_plan(rig, |_| Fault::Refuse);
    for _ in 0..3 {
        let heard = till.charge(KEY, &policy(brisk())).await;
        assert!(matches!(heard, Err(Refusal::StoreUnavailable { .. })), "{heard:?}");
    }
    assert_eq!((till.effects(), till.once.tally().unavailable()), (0, 3));
    assert!(till.faulty.calls(Verb::Claim) > 3, "it was tried more than once");
    till.settle_down().await;
    assert_eq!(till.record(KEY).await, None, "and nothing is left behind");
    assert_eq!(origin(&till.charge(KEY, &policy(patient())).await), Origin::Fresh);
}

// G-18
pub(super) async fn an_open_outage_runs_natural_effects_and_says_so(rig: Arc<dyn Rig>) {
    assert!(brisk().outage(Outage::Open).build().is_err(), "only effects declared natural");
    let open = policy(brisk().outage(Outage::Open).natural_effect());
    let till = Till::with_plan(rig, |_| Fault::Refuse);
    assert_eq!(origin(&till.charge(KEY, &open).await), Origin::Unprotected);
    assert_eq!((till.effects(), till.once.tally().unprotected()), (1, 1));
    till.settle_down().await;
    assert_eq!(till.record(KEY).await, None);
    assert_eq!(
        origin(&till.charge(KEY, &open).await),
        Origin::Fresh,
        "with the store back it protects again"
    );
    assert_eq!(origin(&till.charge(KEY, &open).await), Origin::Replayed);
}

// G-18
pub(super) async fn a_claim_nobody_waits_for_is_withdrawn_when_the_store_answers(rig: Arc<dyn Rig>) {
    for (at, fault) in [Fault::LoseAnswer, Fault::HangAfter].into_iter().enumerate() {
        let till = Till::with_plan(rig.clone(), move |_| fault);
        let key = format!("{KEY}-{at}");
        let heard = till.charge(&key, &policy(brisk())).await;
        assert!(matches!(heard, Err(Refusal::StoreUnavailable { .. })), "{heard:?}");
        assert_eq!(till.state(&key).await, Some(State::InProgress), "the claim was granted, unheard");
        till.faulty.heal();
        assert_eq!(till.once.drain(Duration::from_secs(100)).await, 0);
        assert_eq!(till.state(&key).await, Some(State::Released));
        assert_eq!((till.effects(), till.once.tally().withdrawn()), (0, 1));
        assert_eq!(origin(&till.charge(&key, &policy(patient())).await), Origin::Fresh);
    }
}

// G-17
pub(super) async fn an_outcome_that_cannot_be_stored_is_not_reported_and_stored_later(rig: Arc<dyn Rig>) {
    for (at, fault) in [Fault::Refuse, Fault::LoseCall, Fault::LoseAnswer].into_iter().enumerate() {
        let till = Till::with_plan(rig.clone(), move |verb| match verb {
            Verb::Complete => fault,
            _ => Fault::None,
        });
        let key = format!("{KEY}-{at}");
        let heard = till.charge(&key, &policy(brisk())).await;
        assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{fault:?}: {heard:?}");
        assert_eq!(till.effects(), 1);
        let again = till.charge(&key, &policy(patient())).await;
        match fault {
            Fault::LoseAnswer => assert_eq!(origin(&again), Origin::Replayed),
            _ => assert!(matches!(again, Err(Refusal::InFlight { .. })), "{again:?}"),
        }
        till.settle_down().await;
        assert_eq!(till.state(&key).await, Some(State::Completed));
        assert_eq!(origin(&till.charge(&key, &policy(patient())).await), Origin::Replayed);
        assert_eq!((till.effects(), till.once.tally().stored_late()), (1, 1));
    }
}

// G-13, G-18
pub(super) async fn a_restored_store_runs_nothing_even_where_outages_are_open(rig: Arc<dyn Rig>) {
    let before = Till::new(rig.clone());
    before.charge("kept-000000000000001", &Policy::default()).await.expect("there is an answer");
    rig.back_up().await;
    before.charge("lost-000000000000001", &Policy::default()).await.expect("there is an answer");
    let print = before.once.fingerprinter().await.expect("the store has keys").of_json(COFFEE.as_bytes());
    rig.restore().await;
    let till = Till::new(rig.clone());
    for policy in [policy(brisk()), policy(brisk().outage(Outage::Open).natural_effect())] {
        for key in ["kept-000000000000001", "lost-000000000000001"] {
            let effects = till.effects.clone();
            let (scope, key) = (order(key).scope().clone(), order(key).key().clone());
            let run = till.once.run(scope, key, print.clone(), &policy, async move |_| charged(&effects));
            let heard = run.await;
            assert!(matches!(heard, Err(Refusal::StoreUnavailable { .. })), "{heard:?}");
        }
    }
    assert_eq!(till.effects(), 0);
    rig.store().acknowledge_restore("ops").await.expect("an operator may acknowledge");
    let heard = till.charge("kept-000000000000001", &policy(brisk())).await;
    assert_eq!(origin(&heard), Origin::Replayed);
}

// G-13, G-18: also if an operator accepts the store in the same moment.
pub(super) async fn what_a_store_granted_that_had_gone_back_is_given_back(rig: Arc<dyn Rig>) {
    let policies = [policy(brisk()), policy(brisk().outage(Outage::Open).natural_effect())];
    for (at, policy) in policies.into_iter().enumerate() {
        let till = Till::scripted(rig.clone(), Verb::Claim, &[Fault::WentBack]);
        let key = format!("{KEY}-{at}");
        let heard = till.charge(&key, &policy).await;
        assert!(matches!(heard, Err(Refusal::StoreUnavailable { .. })), "{heard:?}");
        till.settle_down().await;
        assert_eq!((till.effects(), till.once.tally().withdrawn()), (0, 1));
        assert_eq!(origin(&till.charge(&key, &policy).await), Origin::Fresh);
    }
}

// G-9
pub(super) async fn a_superseded_attempt_hears_the_outcome_that_counts(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let rerun = policy(Policy::builder().recovery(Recovery::Rerun));
    for (at, finished) in [true, false].into_iter().enumerate() {
        let key = format!("{KEY}-{at}");
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let first = tokio::spawn({
            let (till, rerun, key) = (till.clone(), rerun.clone(), key.clone());
            let (begun, go_on) = (begun.clone(), go_on.clone());
            async move {
                let run = till.run(&key, &rerun, async move |_| {
                    begun.notify_one();
                    go_on.notified().await;
                    Outcome::text("the first, too late")
                });
                run.await
            }
        });
        begun.notified().await;
        till.shop.shift(DAY);
        let mut claim = request(&order(&key), COFFEE, Recovery::Rerun);
        claim.print = till.record(&key).await.expect("there is a record").print;
        let second = granted(till.shop.claim(&claim).await);
        if finished {
            let outcome = Outcome::text("the second").encode();
            assert_eq!(till.shop.complete(second.holder, outcome).await, Completion::Stored);
        }
        go_on.notify_one();
        let heard = first.await.expect("the first call ends");
        match (finished, heard) {
            (true, Ok(answer)) => {
                assert_eq!((answer.origin, answer.outcome), (Origin::Replayed, Outcome::text("the second")));
            }
            (false, Err(Refusal::OutcomeUnknown { .. })) => {}
            (_, heard) => panic!("a refused outcome is never reported as a success: {heard:?}"),
        }
        let record = till.record(&key).await.expect("there is a record");
        assert!(record.history.possible_double_effect());
        assert_eq!(till.once.tally().refused_outcomes(), at as u64 + 1);
    }
}

/// Polls a future until it has been pending `times` times, then drops it. Whether it ended.
async fn polled<F: Future>(times: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

// G-17, G-18
pub(super) async fn a_call_dropped_at_any_point_leaves_nothing_stuck_and_nothing_undone(rig: Arc<dyn Rig>) {
    const SLOW: Fault = Fault::Delay(Duration::from_millis(2));
    let scripts: [&[Fault]; 4] =
        [&[SLOW], &[Fault::LoseAnswer, SLOW, SLOW], &[Fault::LoseCall, Fault::Refuse], &[Fault::HangAfter]];
    for (at, script) in scripts.into_iter().enumerate() {
        for times in 0..24 {
            let till = Till::scripted(rig.clone(), Verb::Claim, script);
            let key = format!("dropped-{at}-after-{times:04}");
            let effects = till.effects.clone();
            let call = till.run(&key, &policy(brisk()), async move |_| {
                tokio::task::yield_now().await;
                let outcome = charged(&effects);
                tokio::task::yield_now().await;
                outcome
            });
            let ended = polled(times, call).await.is_some();
            breathe().await;
            assert_eq!(till.once.drain(Duration::from_secs(100)).await, 0);
            let (ran, state) = (till.effects(), till.state(&key).await);
            match (ran, state) {
                (0, None | Some(State::Released)) | (1, Some(State::Completed)) => {}
                _ => panic!("script {at}, dropped after {times}: {ran} effects and {state:?}"),
            }
            till.faulty.heal();
            let heard = till.charge(&key, &policy(patient())).await;
            assert_eq!(origin(&heard), if ran == 1 { Origin::Replayed } else { Origin::Fresh });
            assert_eq!(till.effects(), 1, "script {at}, dropped after {times}");
            if ended {
                break;
            }
        }
    }
}

// G-17
pub(super) async fn a_caller_that_goes_away_does_not_stop_the_work(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let caller = tokio::spawn({
        let (till, begun, go_on) = (till.clone(), begun.clone(), go_on.clone());
        async move {
            let effects = till.effects.clone();
            let run = till.run(KEY, &Policy::default(), async move |_| {
                begun.notify_one();
                go_on.notified().await;
                charged(&effects)
            });
            run.await
        }
    });
    begun.notified().await;
    caller.abort();
    assert!(caller.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(till.state(KEY).await, Some(State::InProgress));
    go_on.notify_one();
    assert_eq!(till.once.drain(Duration::from_secs(100)).await, 0);
    assert_eq!((till.effects(), till.state(KEY).await), (1, Some(State::Completed)));
    assert_eq!(origin(&till.charge(KEY, &Policy::default()).await), Origin::Replayed);
}

// G-17
pub(super) async fn draining_waits_for_what_runs(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let caller = tokio::spawn({
        let (till, begun, go_on) = (till.clone(), begun.clone(), go_on.clone());
        async move {
            let effects = till.effects.clone();
            let run = till.run(KEY, &Policy::default(), async move |_| {
                begun.notify_one();
                go_on.notified().await;
                charged(&effects)
            });
            run.await
        }
    });
    begun.notified().await;
    let drain = till.once.drain(Duration::from_secs(100));
    let mut drain = pin!(drain);
    assert!(polled(1, &mut drain).await.is_none(), "it waits while something runs");
    go_on.notify_one();
    assert_eq!(drain.await, 0);
    assert_eq!(till.state(KEY).await, Some(State::Completed), "what was drained is stored");
    assert_eq!(origin(&caller.await.expect("the caller hears")), Origin::Fresh);
    assert_eq!(till.once.drain(Duration::ZERO).await, 0);
}
