//! Without faults: one runs, all others hear of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use semel_core::outcome::{Body, Line};
use semel_core::policy::DEFAULTS;
use semel_core::record::{Recovery, State};
use semel_core::{Ending, Fingerprinter, NotDone, Origin, Outcome, Policy, Refusal, attempt};
use tokio::sync::Notify;

use super::{Heard, Till, charged, order, patient, policy};
use crate::Rig;
use crate::scene::COFFEE;

const KEY: &str = "a-key-nobody-guesses-1";

pub(super) fn origin(heard: &Heard) -> Origin {
    heard.as_ref().unwrap_or_else(|refusal| panic!("there should be an answer, not {refusal:?}")).origin
}

// G-14
pub(super) async fn an_effect_runs_once_and_its_outcome_is_replayed_whole(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let line = |name: &'static str, value: &'static [u8]| Line {
        name: name.into(),
        value: Bytes::from_static(value),
    };
    let bodies = [Bytes::new(), vec![0xff; DEFAULTS.outcome_bytes_max].into(), "{\"id\": 7}".into()];
    for (at, body) in bodies.into_iter().enumerate() {
        let outcome = Outcome {
            status: 402,
            headers: vec![line("x-b", b"1"), line("X-A", b"\xff\x00"), line("x-b", b"2")],
            trailers: vec![line("checksum", b"ok")],
            body: Body::Kept(body),
            redacted: false,
        };
        let key = format!("{KEY}-{at}");
        for expected in [Origin::Fresh, Origin::Replayed, Origin::Replayed] {
            let (again, effects) = (outcome.clone(), till.effects.clone());
            let heard = till.run(&key, &Policy::default(), async move |_| {
                effects.fetch_add(1, Ordering::SeqCst);
                again
            });
            let heard = heard.await.expect("there is an answer");
            assert_eq!(heard.origin, expected);
            assert!(heard.outcome == outcome, "status, headers, trailers and body are the same");
        }
    }
    assert_eq!(till.effects(), 3);
    assert_eq!((till.once.tally().granted(), till.once.tally().replayed()), (3, 6));
}

// G-8, G-14
pub(super) async fn of_many_simultaneous_calls_one_runs_and_all_hear_its_outcome(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let patient = policy(Policy::builder().wait(Duration::from_secs(60)));
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (till, patient) = (till.clone(), patient.clone());
        crowd.spawn(async move {
            let effects = till.effects.clone();
            till.run(KEY, &patient, async move |_| {
                tokio::task::yield_now().await;
                charged(&effects)
            })
            .await
        });
    }
    let heard = crowd.join_all().await;
    assert_eq!(heard.iter().filter(|heard| origin(heard) == Origin::Fresh).count(), 1);
    assert!(heard.iter().all(|heard| heard.as_ref().is_ok_and(|answer| answer.outcome.status == 201)));
    assert_eq!(till.effects(), 1);
}

// G-14
pub(super) async fn a_duplicate_of_a_running_call_is_told_to_come_back(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let first = tokio::spawn({
        let (till, begun, go_on) = (till.clone(), begun.clone(), go_on.clone());
        async move {
            let effects = till.effects.clone();
            till.run(KEY, &Policy::default(), async move |_| {
                begun.notify_one();
                go_on.notified().await;
                charged(&effects)
            })
            .await
        }
    });
    begun.notified().await;
    for _ in 0..3 {
        let heard = till.charge(KEY, &Policy::default()).await;
        assert!(matches!(heard, Err(Refusal::InFlight { .. })), "{heard:?}");
    }
    go_on.notify_one();
    assert_eq!(origin(&first.await.expect("the first call ends")), Origin::Fresh);
    assert_eq!(origin(&till.charge(KEY, &Policy::default()).await), Origin::Replayed);
    assert_eq!((till.effects(), till.once.tally().in_flight()), (1, 3));
}

// G-14
pub(super) async fn a_waiting_duplicate_is_woken_with_the_outcome(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let patient = policy(Policy::builder().wait(Duration::from_secs(600)));
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (till, patient, begun, go_on) = (till.clone(), patient.clone(), begun.clone(), go_on.clone());
        crowd.spawn(async move {
            let effects = till.effects.clone();
            till.run(KEY, &patient, async move |_| {
                begun.notify_one();
                go_on.notified().await;
                charged(&effects)
            })
            .await
        });
    }
    begun.notified().await;
    // The others have been told at least once that it runs, and wait.
    while till.faulty.calls(crate::Verb::Claim) < 15 {
        tokio::task::yield_now().await;
    }
    go_on.notify_one();
    let heard = crowd.join_all().await;
    assert_eq!(heard.iter().filter(|heard| origin(heard) == Origin::Replayed).count(), 7);
    assert_eq!(till.effects(), 1);
}

// G-14
pub(super) async fn a_duplicate_does_not_wait_longer_than_it_may(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let hurried = policy(Policy::builder().wait(Duration::from_millis(40)));
    let running = Arc::new(Notify::new());
    let begun = running.clone();
    let first = till.run(KEY, &Policy::default(), async move |_| {
        begun.notify_one();
        std::future::pending::<Outcome>().await
    });
    let mut first = std::pin::pin!(first);
    let waited = async {
        running.notified().await;
        till.charge(KEY, &hurried).await
    };
    tokio::select! {
        heard = &mut first => panic!("the first call runs forever, and yet {heard:?}"),
        heard = waited => assert!(matches!(heard, Err(Refusal::InFlight { .. })), "{heard:?}"),
    }
    assert_eq!(till.effects(), 0);
}

// G-6
pub(super) async fn another_request_under_the_key_runs_nothing_and_hears_what_changed(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    till.charge(KEY, &Policy::default()).await.expect("there is an answer");
    let prints = till.once.fingerprinter().await.expect("the store has keys");
    let more = prints.of_json(br#"{"amount": 351, "currency": "eur", "tip": 1}"#);
    let effects = till.effects.clone();
    let (scope, key) = (order(KEY).scope().clone(), order(KEY).key().clone());
    let heard = till.once.run(scope, key, more, &Policy::default(), async move |_| charged(&effects)).await;
    match heard {
        Err(Refusal::Mismatch(changes)) => {
            assert_eq!(changes.changed, ["/amount"]);
            assert_eq!(changes.added, ["/tip"]);
        }
        other => panic!("another request is refused, not {other:?}"),
    }
    assert_eq!((till.effects(), till.once.tally().mismatched()), (1, 1));
}

// G-6
pub(super) async fn after_a_rotation_of_hash_keys_old_operations_still_replay(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let before = till.once.fingerprinter().await.expect("the store has keys");
    till.charge(KEY, &Policy::default()).await.expect("there is an answer");
    let version = till.shop.store().rotate_hash_key().await.expect("a rotation is answered");
    assert_eq!(origin(&till.charge(KEY, &Policy::default()).await), Origin::Replayed);
    let newer = "a-key-nobody-guesses-3";
    till.charge(newer, &Policy::default()).await.expect("there is an answer");
    let record = till.record(newer).await.expect("there is a record");
    assert_eq!(record.print.version, version, "new operations use the new key");
    // An instance that has not heard of the new key, or no longer has the old one, cannot compare,
    // and so runs nothing.
    let status = till.shop.store().status().await.expect("a status is answered");
    let only_new = Fingerprinter::new(status.hash_keys[..1].to_vec()).expect("one key is enough");
    for (prints, key) in [(&before, newer), (&only_new, KEY)] {
        let (scope, key) = (order(key).scope().clone(), order(key).key().clone());
        let effects = till.effects.clone();
        let print = prints.of_json(COFFEE.as_bytes());
        match till.once.run(scope, key, print, &Policy::default(), async move |_| charged(&effects)).await {
            Err(Refusal::KeyNotLoaded { version: wanted, .. }) => assert_eq!(wanted, version),
            Err(Refusal::Incomparable { version: wanted }) => assert!(wanted < version),
            other => panic!("what cannot be compared runs nothing, and yet {other:?}"),
        }
    }
    assert_eq!(till.effects(), 2);
}

// G-16
pub(super) async fn an_effect_that_did_nothing_runs_again(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    for _ in 0..2 {
        let heard = till.run(KEY, &Policy::default(), async |_| {
            Err::<Outcome, _>(NotDone::NothingHappened("the bank is closed".into()))
        });
        assert_eq!(origin(&heard.await), Origin::NothingHappened);
        till.once.drain(Duration::from_secs(10)).await;
        assert_eq!(till.state(KEY).await, Some(State::Released));
    }
    assert_eq!(origin(&till.charge(KEY, &Policy::default()).await), Origin::Fresh);
    assert_eq!(till.record(KEY).await.map(|record| record.attempts), Some(3));
}

// G-15
pub(super) async fn an_effect_that_cannot_tell_runs_no_more(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    for recovery in [Recovery::Hold, Recovery::Ask] {
        let key = format!("{KEY}-{recovery:?}");
        let policy = policy(Policy::builder().recovery(recovery));
        let effects = till.effects.clone();
        let heard = till.run(&key, &policy, async move |_| {
            charged(&effects);
            Ending::Unknown("the line went dead".into())
        });
        let heard = heard.await;
        assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{heard:?}");
        till.once.drain(Duration::from_secs(10)).await;
        let heard = till.charge(&key, &policy).await;
        assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{heard:?}");
        let record = till.record(&key).await.expect("there is a record");
        assert_eq!(record.state, State::Unknown);
        assert_eq!(record.history.events()[0].note, "the line went dead");
    }
    assert_eq!(till.effects(), 2);
}

// G-17
pub(super) async fn a_panic_is_unknown_and_nothing_runs_again(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    for recovery in [Recovery::Hold, Recovery::Ask] {
        let key = format!("{KEY}-{recovery:?}");
        let policy = policy(Policy::builder().recovery(recovery));
        let effects = till.effects.clone();
        let heard = till.run(&key, &policy, async move |_| -> Outcome {
            charged(&effects);
            std::panic::panic_any("the printer is on fire")
        });
        let heard = heard.await;
        assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{heard:?}");
        till.once.drain(Duration::from_secs(10)).await;
        let record = till.record(&key).await.expect("there is a record");
        assert_eq!(record.state, State::Unknown);
        assert!(record.history.events()[0].note.contains("the printer is on fire"));
        let heard = till.charge(&key, &policy).await;
        assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{heard:?}");
    }
    assert_eq!(till.effects(), 2);
}

// G-9
pub(super) async fn derived_keys_are_the_same_on_every_attempt(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (tell, hear) = tokio::sync::oneshot::channel();
        let heard = till.run(KEY, &Policy::default(), async move |op| {
            let keys = [op.derive("charge", 1), op.derive("charge", 2), op.derive("mail", 1)];
            assert!(tell.send((keys, op.number(), op.token())).is_ok(), "the test listens");
            Err::<Outcome, _>(NotDone::NothingHappened("not today".into()))
        });
        heard.await.expect("there is an answer");
        till.once.drain(Duration::from_secs(10)).await;
        seen.push(hear.await.expect("the effect ran"));
    }
    assert_eq!(seen[0].0, seen[1].0, "an attempt changes nothing");
    assert_eq!((seen[0].1, seen[1].1), (1, 2));
    assert!(seen[0].2 < seen[1].2);
    let [first, second, third] = &seen[0].0;
    assert!(first != second && second != third && first != third, "steps and counts do");
    assert_eq!(first, &attempt::derive(order(KEY).id(), "charge", 1));
    assert_ne!(first, &attempt::derive(order("another-operation").id(), "charge", 1));
}

// G-2
pub(super) async fn guessable_keys_are_counted_and_accepted(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    for key in ["1763251200000", "order-7", KEY] {
        assert_eq!(origin(&till.charge(key, &Policy::default()).await), Origin::Fresh);
    }
    assert_eq!(till.once.tally().weak_keys(), 2);
}

// G-10
pub(super) async fn a_purged_operation_says_so_and_runs_nothing(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let policy = policy(patient()).for_subject("customer-3");
    till.charge(KEY, &policy).await.expect("there is an answer");
    let nonce = semel_core::Nonce::random();
    let purge = till.shop.store().purge_subject("customer-3", nonce, "asked to", 10).await;
    assert_eq!(purge.expect("a purge is answered").purged, 1);
    assert_eq!(till.charge(KEY, &policy).await, Err(Refusal::Purged));
    assert_eq!(till.effects(), 1);
}

// G-10
pub(super) async fn an_effect_may_ask_to_be_remembered_longer(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let week = Duration::from_secs(7 * 86_400);
    for (key, asked, ttl) in [
        ("a-key-kept-for-a-week", week, week),
        ("a-key-kept-for-a-minute", Duration::from_secs(60), DEFAULTS.ttl),
    ] {
        let effects = till.effects.clone();
        let heard = till
            .run(key, &Policy::default(), async move |_| Ending::DoneKept(charged(&effects), asked))
            .await
            .expect("there is an answer");
        assert_eq!(heard.origin, Origin::Fresh);
        assert_eq!(origin(&till.charge(key, &Policy::default()).await), Origin::Replayed);
        assert_eq!(till.record(key).await.map(|record| record.terms.ttl), Some(ttl), "{key}");
    }
    assert_eq!(till.effects(), 2);
}
