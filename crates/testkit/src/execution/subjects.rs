//! Outcomes sealed with a key of their subject.

use std::sync::Arc;
use std::time::Duration;

use semel_core::outcome::Unreadable;
use semel_core::record::State;
use semel_core::subject::{Forgotten, SubjectId};
use semel_core::{
    Keyring, MemorySubjectKeys, Origin, Outcome, Policy, Recovery, Refusal, SubjectKeys, policy::Outage, seal,
};

use super::plain::origin;
use super::{Heard, Till, brisk, charged, patient, policy};
use crate::Rig;
use crate::subjects::FaultyKeys;

const KEY: &str = "a-key-nobody-guesses-7";

fn ring(id: &str, byte: u8) -> Keyring {
    Keyring::new(id, &[byte; 32]).expect("the id is usable")
}

fn sealing(place: &Arc<FaultyKeys>, ring: Keyring) -> Policy {
    policy(patient().encrypt(ring).subject_keys(place.clone()))
}

fn place() -> Arc<FaultyKeys> {
    FaultyKeys::new(Arc::new(MemorySubjectKeys::new()))
}

fn is_away(heard: &Heard) -> bool {
    matches!(heard, Err(Refusal::StoreUnavailable { .. }))
}

fn is_shredded(heard: &Heard) -> bool {
    matches!(heard, Err(Refusal::Unreadable(Unreadable::SubjectKeyMissing { .. })))
}

// G-20
pub(super) async fn forgetting_a_subject_makes_its_outcomes_unreadable_and_runs_nothing(rig: Arc<dyn Rig>) {
    let (till, place) = (Till::new(rig), place());
    let plain = sealing(&place, ring("2025", 5));
    let (anna, ben) = (plain.for_subject("anna"), plain.for_subject("ben"));
    let secret = "the secret of coffee";
    for (key, policy) in [("anna-0000000000000001", &anna), ("ben-00000000000000001", &ben)] {
        let heard = till.run(key, policy, async move |_| Outcome::text(secret)).await;
        assert_eq!(origin(&heard), Origin::Fresh);
        let stored = till.record(key).await.and_then(|record| record.outcome).expect("an outcome is stored");
        assert!(seal::subject_key(&stored).is_some(), "the seal names a subject's key");
        for shown in [secret, "anna", "ben", "2025"] {
            let found = stored.windows(shown.len()).any(|window| window == shown.as_bytes());
            assert!(!found, "what is stored shows {shown}");
        }
        assert_eq!(
            till.charge(key, policy).await.expect("there is an answer").outcome,
            Outcome::text(secret)
        );
    }
    // Without a subject the ring seals, and the key place is not asked.
    let asked = place.asked();
    till.charge(KEY, &plain).await.expect("there is an answer");
    assert_eq!(origin(&till.charge(KEY, &plain).await), Origin::Replayed);
    assert_eq!((place.asked(), till.effects()), (asked, 1));

    assert_eq!(place.forget(SubjectId::of("anna")).await.expect("the place answers"), Forgotten::Key);
    for policy in [&anna, &plain, &ben] {
        // Whoever asks, and whatever subject the retry names.
        let heard = till.charge("anna-0000000000000001", policy).await;
        assert!(is_shredded(&heard), "{heard:?}");
    }
    assert_eq!(till.state("anna-0000000000000001").await, Some(State::Completed), "it stays done");
    assert_eq!(origin(&till.charge("ben-00000000000000001", &ben).await), Origin::Replayed);
    assert_eq!(till.effects(), 1, "nothing ran again");

    // Whoever returns has a new key; what the old one sealed stays shut.
    till.charge("anna-0000000000000002", &anna).await.expect("there is an answer");
    assert_eq!(origin(&till.charge("anna-0000000000000002", &anna).await), Origin::Replayed);
    assert!(is_shredded(&till.charge("anna-0000000000000001", &anna).await));
    assert_eq!(till.effects(), 2);
}

// G-20
pub(super) async fn with_the_key_place_away_nothing_runs_and_nothing_is_called_unreadable(rig: Arc<dyn Rig>) {
    let (till, place) = (Till::new(rig), place());
    let builder = || brisk().encrypt(ring("m", 1)).subject_keys(place.clone());
    let closed = policy(builder()).for_subject("anna");
    let open = policy(builder().outage(Outage::Open).natural_effect()).for_subject("anna");
    till.charge("done-000000000000001", &closed).await.expect("there is an answer");
    place.go_away(true);
    for policy in [&closed, &open] {
        let heard = till.charge("new-0000000000000001", policy).await;
        assert!(is_away(&heard), "nothing may run whose outcome cannot be sealed: {heard:?}");
        let heard = till.charge("done-000000000000001", policy).await;
        assert!(is_away(&heard), "it may be readable tomorrow: {heard:?}");
    }
    // Also for who needs no key to begin with, and only reads.
    let heard = till.charge("done-000000000000001", &policy(builder())).await;
    assert!(is_away(&heard), "{heard:?}");
    assert_eq!(till.state("new-0000000000000001").await, None, "nothing was claimed");
    assert_eq!(till.effects(), 1);
    place.go_away(false);
    assert_eq!(origin(&till.charge("done-000000000000001", &closed).await), Origin::Replayed);
    assert_eq!(origin(&till.charge("new-0000000000000001", &closed).await), Origin::Fresh);
}

// G-20
pub(super) async fn a_key_forgotten_while_the_effect_runs_leaves_an_outcome_nobody_reads(rig: Arc<dyn Rig>) {
    let (till, place) = (Till::new(rig), place());
    let anna = sealing(&place, ring("m", 1)).for_subject("anna");
    let (keys, effects) = (place.clone(), till.effects.clone());
    let heard = till.run(KEY, &anna, async move |_| {
        keys.forget(SubjectId::of("anna")).await.expect("the place answers");
        charged(&effects)
    });
    assert_eq!(origin(&heard.await), Origin::Fresh, "who caused it hears of it");
    // The subject returns, and has a key again: not that one.
    till.charge("anna-0000000000000002", &anna).await.expect("there is an answer");
    assert!(is_shredded(&till.charge(KEY, &anna).await));
    assert_eq!((till.state(KEY).await, till.effects()), (Some(State::Completed), 2));
}

// G-20
pub(super) async fn a_waiting_duplicate_does_not_read_what_was_forgotten_meanwhile(rig: Arc<dyn Rig>) {
    let (till, place) = (Till::new(rig), place());
    let patient =
        policy(patient().encrypt(ring("m", 1)).subject_keys(place.clone()).wait(Duration::from_secs(60)));
    let anna = patient.for_subject("anna");
    let (go, going) = tokio::sync::oneshot::channel::<()>();
    let effects = till.effects.clone();
    let first = tokio::spawn(till.run(KEY, &anna, async move |_| {
        going.await.expect("the test goes on");
        charged(&effects)
    }));
    while till.record(KEY).await.is_none() {
        tokio::task::yield_now().await;
    }
    let claims = till.faulty.calls(crate::Verb::Claim);
    let (waiting, policy) = (till.clone(), anna.clone());
    let second = tokio::spawn(async move { waiting.charge(KEY, &policy).await });
    // It was told that it runs, hung its bell, and looks once more.
    while till.faulty.calls(crate::Verb::Claim) < claims + 2 {
        tokio::task::yield_now().await;
    }
    place.forget(SubjectId::of("anna")).await.expect("the place answers");
    go.send(()).expect("the effect waits");
    assert_eq!(origin(&first.await.expect("it does not panic")), Origin::Fresh);
    let heard = second.await.expect("it does not panic");
    assert!(is_shredded(&heard), "{heard:?}");
    assert_eq!(till.effects(), 1);
}

// G-20
pub(super) async fn a_subjects_key_under_another_master_opens_nothing_and_runs_nothing(rig: Arc<dyn Rig>) {
    let (till, place) = (Till::new(rig), place());
    let anna = |ring| sealing(&place, ring).for_subject("anna");
    let first = anna(ring("2025", 5));
    till.charge(KEY, &first).await.expect("there is an answer");
    let rotated = ring("2025", 5).with_older("2026", &[6; 32]).and_then(|ring| ring.activate("2026"));
    let rotated = anna(rotated.expect("the key is there"));
    assert_eq!(origin(&till.charge(KEY, &rotated).await), Origin::Replayed, "rotation keeps it readable");
    till.charge("new-0000000000000001", &rotated).await.expect("there is an answer");
    for wrong in [anna(ring("2025", 6)), anna(ring("2026", 6))] {
        let heard = till.charge("new-0000000000000002", &wrong).await;
        assert!(is_away(&heard), "{heard:?}");
        let heard = till.charge(KEY, &wrong).await;
        assert!(matches!(heard, Err(Refusal::Unreadable(_))), "{heard:?}");
    }
    assert_eq!(till.effects(), 2);
    assert_eq!(till.state("new-0000000000000002").await, None, "nothing was claimed");
    assert_eq!(origin(&till.charge("new-0000000000000002", &first).await), Origin::Fresh);
}

// G-20
pub(super) async fn a_late_answer_is_sealed_for_its_subject_and_refused_ones_too(rig: Arc<dyn Rig>) {
    let (till, place) = (Till::new(rig), place());
    let anna = policy(patient().encrypt(ring("m", 1)).subject_keys(place.clone()).recovery(Recovery::Rerun))
        .for_subject("anna");
    // The first attempt is taken over while it runs, so that its outcome is refused and kept as evidence.
    let shop = till.shop.clone();
    let (inner, policy, effects) = (till.clone(), anna.clone(), till.effects.clone());
    let heard = till.run(KEY, &anna, async move |_| {
        shop.0.shift_clock(semel_core::clock::micros(Duration::from_secs(3600)));
        let second = inner.charge(KEY, &policy).await;
        assert_eq!(origin(&second), Origin::Fresh);
        charged(&effects)
    });
    let heard = heard.await.expect("what counts is told");
    assert_eq!(heard.origin, Origin::Replayed);
    let record = till.record(KEY).await.expect("there is a record");
    let evidence = record.history.events().iter().filter_map(|event| event.evidence.as_ref());
    let sealed: Vec<_> =
        evidence.chain(record.outcome.as_ref()).map(|stored| seal::subject_key(stored)).collect();
    assert_eq!(sealed.len(), 2, "the outcome and the refused one");
    assert!(sealed.iter().all(|key| key.is_some() && *key == sealed[0]));
}
