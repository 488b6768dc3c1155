//! What is kept of an outcome, and what is not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_core::fingerprint::Pointers;
use semel_core::outcome::{Body, Line, Unreadable};
use semel_core::policy::Redaction;
use semel_core::record::State;
use semel_core::verbs::Completion;
use semel_core::{Keyring, Origin, Outcome, Policy, Refusal, seal};

use super::plain::origin;
use super::{Till, brisk, charged, order, patient, policy};
use crate::Rig;
use crate::scene::{COFFEE, granted, request};

const KEY: &str = "a-key-nobody-guesses-7";

// G-19
pub(super) async fn an_outcome_too_large_to_keep_is_passed_on_and_nothing_reruns(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let small = policy(Policy::builder().outcome_bytes_max(1000));
    for (bytes, kept) in [(1000, true), (1001, false), (3 << 20, false)] {
        let key = format!("{KEY}-{bytes}");
        let whole = Outcome { status: 207, ..Outcome::bytes("text/csv", vec![b'x'; bytes]) };
        let (given, effects) = (whole.clone(), till.effects.clone());
        let heard = till.run(&key, &small, async move |_| {
            effects.fetch_add(1, Ordering::SeqCst);
            given
        });
        let heard = heard.await.expect("there is an answer");
        assert_eq!(heard.origin, Origin::Fresh);
        assert!(heard.outcome == whole, "the first caller gets all of it");
        assert_eq!(till.state(&key).await, Some(State::Completed), "and it was stored before that");
        for _ in 0..2 {
            match till.charge(&key, &small).await {
                Ok(answer) => assert!(kept && answer.origin == Origin::Replayed && answer.outcome == whole),
                Err(refusal) => {
                    assert!(!kept);
                    assert_eq!(refusal, Refusal::BodyNotKept { status: 207 });
                }
            }
        }
    }
    assert_eq!(till.effects(), 3);
}

// G-17, G-19
pub(super) async fn an_outcome_too_large_for_the_store_is_kept_without_its_body(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    till.faulty.outcome_bytes_max(200);
    let ring = Keyring::new("k", &[1; 32]).expect("the id is usable");
    for (kind, policy) in [("plain", policy(patient())), ("sealed", policy(patient().encrypt(ring)))] {
        let key = format!("{KEY}-{kind}");
        let whole = Outcome { status: 207, ..Outcome::bytes("text/csv", vec![b'x'; 300]) };
        let (given, effects) = (whole.clone(), till.effects.clone());
        let heard = till.run(&key, &policy, async move |_| {
            effects.fetch_add(1, Ordering::SeqCst);
            given
        });
        let heard = heard.await.expect("there is an answer");
        assert_eq!(heard.origin, Origin::Fresh);
        assert!(heard.outcome == whole, "the first caller gets all of it");
        let record = till.record(&key).await.expect("there is a record");
        assert_eq!((record.state, record.attempts), (State::Completed, 1), "and it was stored before that");
        assert!(!record.history.possible_double_effect());
        assert_eq!(till.charge(&key, &policy).await, Err(Refusal::BodyNotKept { status: 207 }));
        assert_eq!(till.once.drain(Duration::from_secs(100)).await, 0, "nothing is tried for ever");
        assert_eq!(till.once.operations(), 0, "and its place is free");
    }
    assert_eq!((till.effects(), till.once.tally().bodies_refused()), (2, 2));
}

// G-17, G-19
pub(super) async fn with_no_room_even_for_the_status_the_whole_outcome_is_stored_later(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    till.faulty.outcome_bytes_max(0);
    let heard = till.charge(KEY, &policy(brisk())).await;
    assert!(matches!(heard, Err(Refusal::OutcomeUnknown { .. })), "{heard:?}");
    assert_eq!((till.state(KEY).await, till.once.operations()), (Some(State::InProgress), 1));
    till.faulty.outcome_bytes_max(usize::MAX);
    till.settle_down().await;
    let heard = till.charge(KEY, &policy(patient())).await.expect("it was not a matter of size");
    assert_eq!((heard.origin, heard.outcome.body), (Origin::Replayed, Outcome::text("charge number 1").body));
    assert_eq!((till.effects(), till.once.tally().bodies_refused()), (1, 0));
}

// G-20
pub(super) async fn an_unreadable_outcome_says_so_and_runs_nothing(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let status = till.shop.store().status().await.expect("a status is answered");
    let prints = semel_core::Fingerprinter::new(status.hash_keys).expect("the store's keys are usable");
    let ring = Keyring::new("k-1", &[1; 32]).expect("the id is usable");
    let mut newer = Outcome::text("paid").encode();
    newer[0] += 1;
    let elsewhere = seal::close(&Outcome::text("paid"), order("some-other-operation").id(), Some(&ring));
    let stored: [(&str, bytes::Bytes); 6] = [
        ("empty", bytes::Bytes::new()),
        ("garbage", vec![0x00, 0xff, 0x13].into()),
        ("cut", Outcome::text("paid").encode()[..9].to_vec().into()),
        ("newer", newer.into()),
        ("sealed", seal::close(&Outcome::text("paid"), order("sealed-000000000001").id(), Some(&ring))),
        ("moved", elsewhere),
    ];
    let (plain, other) = (Policy::default(), Keyring::new("k-2", &[2; 32]).expect("the id is usable"));
    let sealing = policy(Policy::builder().encrypt(other));
    let same = policy(Policy::builder().encrypt(ring));
    for (what, bytes) in stored {
        let key = format!("{what}-000000000001");
        let mut claim = request(&order(&key), COFFEE, semel_core::Recovery::Rerun);
        claim.print = prints.of_json(COFFEE.as_bytes()).current().clone();
        let lease = granted(till.shop.claim(&claim).await);
        assert_eq!(till.shop.complete(lease.holder, bytes).await, Completion::Stored);
        let policies = if what == "moved" { vec![&same] } else { vec![&plain, &sealing] };
        for policy in policies {
            let why = match till.charge(&key, policy).await {
                Err(Refusal::Unreadable(why)) => why,
                other => panic!("{what}: the outcome cannot be read, and yet {other:?}"),
            };
            let named = match what {
                "newer" => matches!(why, Unreadable::NewerVersion { .. }),
                "sealed" => why == Unreadable::KeyMissing { key: "k-1".into() },
                "moved" => why == Unreadable::SealBroken { key: "k-1".into() },
                _ => matches!(why, Unreadable::Damaged { .. }),
            };
            assert!(named, "{what}: {why:?}");
        }
        assert_eq!(till.state(&key).await, Some(State::Completed));
    }
    let damaged = "damaged-by-the-rig-01";
    till.charge(damaged, &plain).await.expect("there is an answer");
    if till.shop.0.damage_outcome(order(damaged).id()).await {
        let heard = till.charge(damaged, &plain).await;
        let closed = matches!(heard, Err(Refusal::Unreadable(_) | Refusal::StoreUnavailable { .. }));
        assert!(closed, "a damaged record runs nothing: {heard:?}");
    }
    assert_eq!(till.effects(), 1);
}

// G-14
pub(super) async fn what_is_redacted_is_never_stored_and_the_replay_says_so(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let pointers = Pointers::parse(&["/card/number"]).expect("the pointer is valid");
    let redaction = Redaction { headers: vec!["set-cookie".into()], body: Some(pointers) };
    let careful = policy(Policy::builder().redact(redaction));
    let body = r#"{"id": 9, "card": {"number": "4111-1111"}, "note": "ok"}"#;
    let line = |name: &'static str, value: &'static str| Line { name: name.into(), value: value.into() };
    let whole = Outcome {
        status: 200,
        headers: vec![
            line("Set-Cookie", "session=hush"),
            line("x-id", "9"),
            line("Content-Digest", "sha-256=:hush:"),
        ],
        trailers: vec![line("set-cookie", "late=hush"), line("repr-digest", "sha-256=:hush:")],
        body: Body::Kept(body.into()),
        redacted: false,
    };
    let given = whole.clone();
    let first = till.run(KEY, &careful, async move |_| given).await.expect("there is an answer");
    assert_eq!(first.outcome, whole, "the first caller hears everything");
    let stored = till.record(KEY).await.and_then(|record| record.outcome).expect("an outcome is stored");
    for secret in [&b"4111-1111"[..], b"hush"] {
        assert!(!contains(&stored, secret), "a redacted value is not stored");
    }
    let replay = till.charge(KEY, &careful).await.expect("there is an answer");
    assert!(replay.outcome.redacted && replay.origin == Origin::Replayed);
    assert_eq!(replay.outcome.headers, [line("x-id", "9")]);
    assert!(replay.outcome.trailers.is_empty());
    let shown = replay.outcome.body_bytes().expect("the body is kept");
    assert_eq!(shown, r#"{"id": 9, "card": {"number": "[redacted]"}, "note": "ok"}"#);
    // A body that should be redacted and cannot be read may hold the secret anywhere.
    let odd = "a-key-nobody-guesses-8";
    till.run(odd, &careful, async |_| Outcome::text("number=4111-1111")).await.expect("there is an answer");
    let stored = till.record(odd).await.and_then(|record| record.outcome).expect("an outcome is stored");
    assert!(!contains(&stored, b"4111-1111"));
    assert!(matches!(till.charge(odd, &careful).await, Err(Refusal::BodyNotKept { .. })));
    // Nothing to take out: the replay does not pretend.
    let clean = "a-key-nobody-guesses-9";
    till.run(clean, &careful, async |_| Outcome::bytes("application/json", "{}"))
        .await
        .expect("there is an answer");
    assert!(!till.charge(clean, &careful).await.expect("there is an answer").outcome.redacted);
    assert_eq!(till.effects(), 0);
}

// G-20
pub(super) async fn a_sealed_outcome_shows_nothing_of_itself(rig: Arc<dyn Rig>) {
    let till = Till::new(rig);
    let old = Keyring::new("2025", &[5; 32]).expect("the id is usable");
    let rotated = old.clone().with_older("2026", &[6; 32]).expect("the id is usable");
    let rotated = rotated.activate("2026").expect("the key is there");
    let mut forgetful = rotated.clone();
    assert!(forgetful.forget("2025"));
    let [old, rotated, forgetful] =
        [old, rotated, forgetful].map(|ring| policy(Policy::builder().encrypt(ring)));
    let secret = "the secret of coffee";
    let heard = till.run(KEY, &old, async move |_| Outcome::text(secret)).await;
    assert_eq!(origin(&heard), Origin::Fresh);
    let stored = till.record(KEY).await.and_then(|record| record.outcome).expect("an outcome is stored");
    assert!(!contains(&stored, secret.as_bytes()) && !contains(&stored, b"text/plain"));
    for policy in [&old, &rotated] {
        let effects = till.effects.clone();
        let heard =
            till.run(KEY, policy, async move |_| charged(&effects)).await.expect("there is an answer");
        assert_eq!((heard.origin, heard.outcome), (Origin::Replayed, Outcome::text(secret)));
    }
    let shredded = till.charge(KEY, &forgetful).await;
    assert_eq!(shredded, Err(Refusal::Unreadable(Unreadable::KeyMissing { key: "2025".into() })));
    assert_eq!(till.effects(), 0);
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
