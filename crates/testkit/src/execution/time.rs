//! What happens over minutes and hours. Tokio's time is paused: it flies when nothing else is to be done.

use std::sync::Arc;
use std::time::Duration;

use semel_core::record::{Recovery, State};
use semel_core::verbs::Change;
use semel_core::{Origin, Outcome, Policy, Refusal};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::plain::origin;
use super::{Till, brisk, charged, order, patient, policy};
use crate::Rig;
use crate::faulty::{Fault, Verb};
use crate::scene::is_refused;

const KEY: &str = "a-key-nobody-guesses-5";
const LEASE: Duration = Duration::from_secs(30);

// G-17
pub(super) async fn a_long_effect_keeps_its_lease(rig: Arc<dyn Rig>) {
    for recovery in [Recovery::Hold, Recovery::Ask, Recovery::Rerun] {
        let till = Till::new(rig.clone());
        let key = format!("{KEY}-{recovery:?}");
        let policy = policy(Policy::builder().recovery(recovery).lease(LEASE));
        let first = tokio::spawn({
            let (till, policy, key) = (till.clone(), policy.clone(), key.clone());
            async move {
                let effects = till.effects.clone();
                let run = till.run(&key, &policy, async move |op| {
                    for _ in 0..100 {
                        sleep(LEASE).await;
                        assert!(!op.is_lost() && op.remaining() >= LEASE / 2);
                    }
                    charged(&effects)
                });
                run.await
            }
        });
        sleep(LEASE / 2).await;
        let record = till.record(&key).await.expect("there is a record");
        for _ in 0..90 {
            sleep(LEASE).await;
            let heard = till.charge(&key, &policy).await;
            assert!(matches!(heard, Err(Refusal::InFlight { .. })), "{heard:?}");
            assert!(is_refused(till.shop.report_lapse(record.operation.id(), record.token).await));
        }
        assert_eq!(origin(&first.await.expect("the call ends")), Origin::Fresh);
        assert_eq!(till.effects(), 1);
        let renewals = till.faulty.calls(Verb::Renew);
        assert!((290..=310).contains(&renewals), "every third of the lease: {renewals}");
    }
}

/// How long after its claim an effect hears that its lease is lost, under a fault of renewals.
async fn lost_after(till: &Till, key: &str) -> Duration {
    let (tell, hear) = tokio::sync::oneshot::channel();
    let policy = policy(brisk().lease(LEASE));
    let begun = Instant::now();
    let heard = till.run(key, &policy, async move |op| {
        op.lost().await;
        assert!(op.is_lost() && op.remaining().is_zero());
        assert!(tell.send(begun.elapsed()).is_ok(), "the test listens");
        Outcome::text("done all the same")
    });
    let heard = timeout(100 * LEASE, heard).await.expect("the effect hears of it");
    assert_eq!(origin(&heard), Origin::Fresh, "nobody took over, so its outcome counts");
    hear.await.expect("the effect told")
}

// G-17
pub(super) async fn a_lease_that_cannot_be_renewed_is_signalled_and_its_outcome_still_counts(
    rig: Arc<dyn Rig>,
) {
    for fault in [Fault::Refuse, Fault::LoseCall] {
        let till = Till::with_plan(rig.clone(), move |verb| match verb {
            Verb::Renew => fault,
            _ => Fault::None,
        });
        let key = format!("{KEY}-{fault:?}");
        let after = lost_after(&till, &key).await;
        assert!(after >= LEASE && after <= LEASE + LEASE / 10, "{after:?}");
        assert_eq!(till.state(&key).await, Some(State::Completed));
    }
}

// G-17
pub(super) async fn a_store_that_hangs_on_renewals_is_signalled_too(rig: Arc<dyn Rig>) {
    let till = Till::with_plan(rig, |verb| match verb {
        Verb::Renew => Fault::Hang,
        _ => Fault::None,
    });
    let after = lost_after(&till, KEY).await;
    assert!(after >= LEASE && after <= LEASE + LEASE / 10, "{after:?}");
}

// G-17, G-9
pub(super) async fn an_attempt_taken_over_hears_of_it(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let rerun = policy(Policy::builder().recovery(Recovery::Rerun).lease(LEASE));
    let begun = Arc::new(Notify::new());
    let first = tokio::spawn({
        let (till, rerun, begun) = (till.clone(), rerun.clone(), begun.clone());
        async move {
            let run = till.run(KEY, &rerun, async move |op| {
                begun.notify_one();
                op.lost().await;
                Outcome::text("stale")
            });
            run.await
        }
    });
    begun.notified().await;
    // The store's clock jumps: everybody else sees the lease lapsed.
    till.shop.shift(2 * 60_000_000);
    assert_eq!(origin(&till.charge(KEY, &rerun).await), Origin::Fresh);
    let heard = timeout(LEASE, first).await.expect("the next renewal tells").expect("the call ends");
    let answer = heard.expect("the outcome that counts is there");
    assert_eq!((answer.origin, answer.outcome.status), (Origin::Replayed, 201));
    let record = till.record(KEY).await.expect("there is a record");
    assert!(record.history.possible_double_effect());
    assert_eq!(record.attempts, 2);
}

// G-15, G-17
pub(super) async fn a_panic_under_rerun_is_run_again_after_the_lease(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let rerun = policy(Policy::builder().recovery(Recovery::Rerun).lease(LEASE));
    let heard = till.run(KEY, &rerun, async |_| -> Outcome { std::panic::panic_any("not again") }).await;
    assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{heard:?}");
    let soon = till.charge(KEY, &rerun).await;
    assert!(matches!(soon, Err(Refusal::InFlight { .. })), "the lease still lives: {soon:?}");
    sleep(LEASE).await;
    assert_eq!(origin(&till.charge(KEY, &rerun).await), Origin::Fresh);
    assert_eq!(till.record(KEY).await.map(|record| record.attempts), Some(2));
}

// G-18
pub(super) async fn a_store_that_hangs_is_given_up_within_its_patience(rig: Arc<dyn Rig>) {
    let patience = Duration::from_secs(2);
    for fault in [Fault::Hang, Fault::HangAfter] {
        let till = Till::with_plan(rig.clone(), move |verb| match verb {
            Verb::Claim => fault,
            _ => Fault::None,
        });
        let key = format!("{KEY}-{fault:?}");
        let begun = Instant::now();
        let heard = till.charge(&key, &policy(Policy::builder().store_patience(patience))).await;
        assert!(matches!(heard, Err(Refusal::StoreUnavailable { .. })), "{heard:?}");
        assert!(begun.elapsed() <= patience * 2, "{:?}", begun.elapsed());
        till.settle_down().await;
        assert_ne!(till.state(&key).await, Some(State::InProgress), "{fault:?}: it was withdrawn");
        assert_eq!(till.effects(), 0);
    }
}

// G-17, G-18
pub(super) async fn writes_that_hang_are_tried_again(rig: Arc<dyn Rig>) {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let till = Till::scripted(rig.clone(), Verb::Complete, &[fault, fault]);
        let done = format!("{KEY}-done-{fault:?}");
        let heard = till.charge(&done, &policy(brisk())).await;
        assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{heard:?}");
        assert_eq!(till.once.drain(Duration::from_secs(3600)).await, 0, "{fault:?}");
        assert_eq!(till.state(&done).await, Some(State::Completed));
        let till = Till::scripted(rig.clone(), Verb::Release, &[fault, fault]);
        let freed = format!("{KEY}-freed-{fault:?}");
        let heard = till.run(&freed, &policy(brisk()), async |_| {
            semel_core::Ending::NothingHappened(Outcome::text("no"))
        });
        assert_eq!(origin(&heard.await), Origin::NothingHappened);
        assert_eq!(till.once.drain(Duration::from_secs(3600)).await, 0, "{fault:?}");
        assert_eq!(till.state(&freed).await, Some(State::Released));
        let till = Till::scripted(rig.clone(), Verb::MarkUnknown, &[fault, fault]);
        let doubted = format!("{KEY}-doubted-{fault:?}");
        let heard =
            till.run(&doubted, &policy(brisk()), async |_| semel_core::Ending::Unknown("lost".into()));
        assert!(matches!(heard.await, Err(Refusal::OutcomeUnknown { .. })));
        assert_eq!(till.once.drain(Duration::from_secs(3600)).await, 0, "{fault:?}");
        assert_eq!(till.state(&doubted).await, Some(State::Unknown));
    }
}

// G-18: the lease of a claim nobody heard of lapses while the store is away.
pub(super) async fn a_withdrawn_claim_is_freed_also_after_it_was_called_unknown(rig: Arc<dyn Rig>) {
    let till = Till::with_plan(rig, |_| Fault::LoseAnswer);
    let heard = till.charge(KEY, &policy(brisk().lease(LEASE))).await;
    assert!(matches!(heard, Err(Refusal::StoreUnavailable { .. })), "{heard:?}");
    till.faulty.plan(|_| Fault::Refuse);
    sleep(2 * LEASE).await;
    let record = till.record(KEY).await.expect("the claim was granted, unheard");
    assert_eq!(till.shop.report_lapse(record.operation.id(), record.token).await, Change::Made);
    assert_eq!(till.state(KEY).await, Some(State::Unknown));
    till.settle_down().await;
    assert_eq!(till.state(KEY).await, Some(State::Released), "nobody ran it, and it is known");
    assert_eq!(origin(&till.charge(KEY, &policy(patient())).await), Origin::Fresh);
    assert_eq!(till.effects(), 1);
}

// G-14
pub(super) async fn waiting_ends_at_its_limit_and_not_before(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let wait = Duration::from_secs(7);
    let begun = Arc::new(Notify::new());
    let running = tokio::spawn({
        let (till, begun) = (till.clone(), begun.clone());
        async move {
            let run = till.run(KEY, &Policy::default(), async move |_| {
                begun.notify_one();
                sleep(Duration::from_secs(60)).await;
                Outcome::text("at last")
            });
            run.await
        }
    });
    begun.notified().await;
    let start = Instant::now();
    let heard = till.charge(KEY, &policy(Policy::builder().wait(wait))).await;
    assert!(matches!(heard, Err(Refusal::InFlight { .. })), "{heard:?}");
    assert!(start.elapsed() >= wait && start.elapsed() < wait * 2, "{:?}", start.elapsed());
    let heard = till.charge(KEY, &policy(Policy::builder().wait(wait * 100))).await;
    assert_eq!(origin(&heard), Origin::Replayed);
    assert!(start.elapsed() < Duration::from_secs(61), "it was woken by the outcome");
    running.await.expect("the call ends").expect("there is an answer");
    assert_eq!(till.effects(), 0);
}

// G-14
pub(super) async fn advice_to_come_back_follows_the_routes_latency(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    for n in 0..40 {
        let slow = till.run(&format!("{KEY}-{n}"), &Policy::default(), async |_| {
            sleep(Duration::from_secs(9)).await;
            Outcome::text("slow")
        });
        slow.await.expect("there is an answer");
    }
    let begun = Arc::new(Notify::new());
    let started = begun.clone();
    let endless = till.run(KEY, &Policy::default(), async move |_| {
        started.notify_one();
        std::future::pending::<Outcome>().await
    });
    let duplicate = async {
        begun.notified().await;
        till.charge(KEY, &Policy::default()).await
    };
    tokio::select! {
        heard = endless => panic!("the first call runs forever, and yet {heard:?}"),
        heard = duplicate => match heard {
            Err(Refusal::InFlight { retry_after }) => {
                assert!(retry_after > Duration::from_secs(7) && retry_after < Duration::from_secs(11));
            }
            other => panic!("{other:?}"),
        },
    }
    assert_eq!(order(KEY).scope().route(), "charge");
}

// G-17
pub(super) async fn draining_gives_up_when_its_patience_is_over(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let begun = Arc::new(Notify::new());
    let started = begun.clone();
    let endless = till.run(KEY, &Policy::default(), async move |_| {
        started.notify_one();
        std::future::pending::<Outcome>().await
    });
    let drain = async {
        begun.notified().await;
        let start = Instant::now();
        let left = till.once.drain(Duration::from_secs(30)).await;
        (left, start.elapsed())
    };
    tokio::select! {
        heard = endless => panic!("the call runs forever, and yet {heard:?}"),
        (left, took) = drain => {
            assert!(left > 0, "the call is still there");
            assert!(took >= Duration::from_secs(30) && took < Duration::from_secs(31), "{took:?}");
        }
    }
}
