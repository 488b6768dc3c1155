//! A direct look at each flaw. Every sign is absent in the control.
//!
//! They use what a stranger does not have (the journal of an animal, orders that say how long they
//! take), so that they see their flaw each time they look.

use std::sync::Barrier;
use std::time::Duration;

use super::cage::{Cage, watch};
use super::client::{Heard, Wish};

type Seen = Result<(), String>;

/// Rounds of a race that a flawed check may win.
const ROUNDS: usize = 10;
const RACERS: usize = 6;
/// Longer than anything an animal does by itself.
const A_WHILE: Duration = Duration::from_secs(2);

fn unless(sound: bool, seen: String) -> Seen {
    if sound { Ok(()) } else { Err(seen) }
}

/// The control's own sign: what every service here is for.
pub(super) fn pays_once_and_replays(cage: &Cage) -> Seen {
    let wish = Wish::pay("plain", "key-of-a-payment");
    let (first, second) = (cage.send(&wish), cage.send(&wish));
    let replayed = second.has("idempotent-replayed") && !first.has("idempotent-replayed");
    let same = (first.status, &first.body) == (second.status, &second.body);
    unless(
        first.status == 201 && replayed && same && cage.count("plain") == 1,
        format!("{first:?}, then {second:?}"),
    )
}

pub(super) fn racers_run(cage: &Cage) -> Seen {
    (0..ROUNDS).try_for_each(|round| {
        let (tag, key) = (format!("race-{round}"), format!("key-of-race-{round}"));
        let (wish, start) = (Wish::pay(&tag, &key), Barrier::new(RACERS));
        std::thread::scope(|threads| {
            for _ in 0..RACERS {
                threads.spawn(|| {
                    start.wait();
                    cage.send(&wish)
                });
            }
        });
        let effects = cage.count(&tag);
        unless(effects == 1, format!("{effects} effects of {RACERS} racers"))
    })
}

pub(super) fn duplicate_runs_beside(cage: &Cage) -> Seen {
    let wish = Wish::pay("beside", "key-of-a-duplicate").with(r#""pace_ms":600"#);
    let first = wish.begin(&cage.address());
    cage.wait_for_record("key-of-a-duplicate");
    cage.insist(&wish);
    drop(first);
    once(cage, "beside")
}

pub(super) fn slow_attempt_is_overtaken(cage: &Cage) -> Seen {
    overtake(cage, "slow");
    once(cage, "slow")
}

pub(super) fn replay_is_not_what_the_holder_said(cage: &Cage) -> Seen {
    let (wish, holder) = overtake(cage, "stale");
    let replay = cage.insist(&wish);
    unless(holder.body == replay.body, format!("told {}, then {}", holder.body, replay.body))
}

/// A retry beside a slow attempt, until it is told something; then both have ended.
fn overtake(cage: &Cage, tag: &str) -> (Wish, Heard) {
    let wish = Wish::pay(tag, "key-of-a-slow-one").with(r#""pace_ms":400"#);
    std::thread::scope(|threads| {
        let first = threads.spawn(|| cage.send(&wish));
        cage.wait_for_record("key-of-a-slow-one");
        let second = cage.insist(&wish);
        first.join().expect("the first is answered");
        (wish.clone(), second)
    })
}

pub(super) fn success_without_effect_after_a_crash(cage: &Cage) -> Seen {
    let wish = Wish::pay("early", "key-of-a-promise").with(r#""pace_ms":2000"#);
    let _first = wish.begin(&cage.address());
    cage.wait_for_record("key-of-a-promise");
    cage.restart();
    let heard = cage.insist(&wish);
    let effects = cage.count("early");
    unless((heard.status, effects) == (201, 1), format!("{} and {effects} effects", heard.status))
}

pub(super) fn second_effect_after_a_crash(cage: &Cage) -> Seen {
    let wish = Wish::pay("late", "key-without-intent").with(r#""pace_ms":1000"#);
    let _first = wish.begin(&cage.address());
    cage.wait_for_effect("late");
    cage.restart();
    cage.insist(&wish);
    once(cage, "late")
}

pub(super) fn forgotten_after_a_restart(cage: &Cage) -> Seen {
    let wish = Wish::pay("lost", "key-in-memory");
    cage.send(&wish);
    cage.restart();
    cage.send(&wish);
    once(cage, "lost")
}

pub(super) fn in_flight_for_ever_after_a_crash(cage: &Cage) -> Seen {
    let wish = Wish::pay("stuck", "key-of-the-dead").with(r#""pace_ms":1000"#);
    let _first = wish.begin(&cage.address());
    cage.wait_for_effect("stuck");
    cage.restart();
    let ended = watch(A_WHILE, || (cage.send(&wish).status != 409).then_some(()));
    ended.ok_or("in flight, and nobody runs it".into())
}

pub(super) fn second_effect_after_the_client_left(cage: &Cage) -> Seen {
    let wish = Wish::pay("left", "key-of-a-leaver").with(r#""pace_ms":2000"#);
    let first = wish.begin(&cage.address());
    cage.wait_for_effect("left");
    drop(first);
    cage.insist(&wish);
    once(cage, "left")
}

pub(super) fn runs_without_a_store(cage: &Cage) -> Seen {
    let wish = Wish::pay("away", "key-without-store");
    cage.stop_store();
    let heard = cage.send(&wish);
    cage.start_store();
    let effects = cage.count("away");
    unless((heard.status, effects) == (503, 0), format!("{} and {effects} effects", heard.status))
}

pub(super) fn another_body_is_not_refused(cage: &Cage) -> Seen {
    refused(cage, r#""amount":100"#, r#""amount":999"#)
}

pub(super) fn another_number_is_not_refused(cage: &Cage) -> Seen {
    refused(cage, r#""amount":9007199254740993"#, r#""amount":9007199254740992"#)?;
    refused(cage, r#""amount":1.0"#, r#""amount":1"#)
}

/// The first is paid, the second under the same key is 422 and does nothing.
fn refused(cage: &Cage, first: &str, second: &str) -> Seen {
    let (tag, key) = (format!("{}-other", first.len()), format!("key-of-{}", first.len()));
    let send = |member| {
        let mut wish = Wish::pay(&tag, &key);
        wish.body = wish.body.replace(r#""amount":100"#, member);
        cage.send(&wish).status
    };
    let told = (send(first), send(second), cage.count(&tag));
    unless(told == (201, 422, 1), format!("{first}, then {second}: {told:?}"))
}

pub(super) fn another_spelling_is_refused(cage: &Cage) -> Seen {
    let wish = Wish::pay("order", "key-of-an-order");
    let mut turned = wish.clone();
    turned.body = r#"{ "reference":"order", "currency":"EUR", "amount":100 }"#.into();
    let told = (cage.send(&wish).status, cage.send(&turned).status, cage.count("order"));
    unless(told == (201, 201, 1), format!("{told:?}"))
}

pub(super) fn another_user_gets_the_answer(cage: &Cage) -> Seen {
    let alice = Wish::pay("users", "key-of-two-users");
    let bob = Wish { user: "bob", ..alice.clone() };
    let (first, second) = (cage.send(&alice), cage.send(&bob));
    unless(first.body != second.body && cage.count("users") == 2, format!("bob was told {}", second.body))
}

pub(super) fn another_route_gets_the_answer(cage: &Cage) -> Seen {
    let pay = Wish::pay("routes", "key-of-two-routes");
    let refund = Wish { path: "/refunds", ..pay.clone() };
    let put = Wish { method: "PUT", ..pay.clone() };
    let told = [pay, refund, put].map(|wish| cage.send(&wish).status);
    let effects = cage.count("routes");
    unless(told == [201; 3] && effects == 3, format!("{told:?}, {effects} effects of three routes"))
}

pub(super) fn another_key_does_not_pay(cage: &Cage) -> Seen {
    for key in ["key-of-the-first", "key-of-the-second"] {
        cage.send(&Wish::pay("twins", key));
    }
    let effects = cage.count("twins");
    unless(effects == 2, format!("{effects} effects of two wishes"))
}

pub(super) fn bad_keys_are_taken(cage: &Cage) -> Seen {
    let long = "k".repeat(300);
    let cases: [&[&str]; 3] = [&[""], &[&long], &["key-number-one", "key-number-two"]];
    cases.iter().try_for_each(|keys| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let heard = cage.send(&Wish { keys, ..Wish::pay("keys", "") });
        unless(heard.status == 400, heard.head)
    })?;
    unless(cage.count("keys") == 0, "refused, and paid".into())
}

pub(super) fn quoted_key_is_another(cage: &Cage) -> Seen {
    for key in ["key-in-quotes", "\"key-in-quotes\""] {
        cage.send(&Wish::pay("quotes", key));
    }
    once(cage, "quotes")
}

pub(super) fn replay_lacks_headers(cage: &Cage) -> Seen {
    let replay = replay(cage, "headers");
    unless(replay.has("x-receipt") && replay.has("location"), replay.head)
}

pub(super) fn replay_sets_a_cookie(cage: &Cage) -> Seen {
    let replay = replay(cage, "cookies");
    unless(!replay.has("set-cookie"), replay.head)
}

fn replay(cage: &Cage, tag: &str) -> Heard {
    let wish = Wish::pay(tag, "key-of-a-replay");
    assert!(cage.send(&wish).has("set-cookie"), "the first client gets its cookie");
    cage.send(&wish)
}

pub(super) fn big_answer_runs_again(cage: &Cage) -> Seen {
    let wish = Wish::pay("big", "key-of-a-big-one").with(&format!(r#""pad":"{}""#, "x".repeat(8000)));
    let (first, second) = (cage.send(&wish), cage.send(&wish));
    assert!(first.body.len() > 8000 && second.body.len() > 8000, "the answers are big");
    once(cage, "big")
}

pub(super) fn time_out_is_the_last_word(cage: &Cage) -> Seen {
    payments_told(cage, |status| status == 504).iter().try_for_each(|(wish, tag)| {
        cage.wait_for_effect(tag);
        let receipt = watch(A_WHILE, || (cage.send(wish).status == 201).then_some(()));
        receipt.ok_or(format!("{tag} was paid, and a retry is told {}", cage.send(wish).status))
    })
}

pub(super) fn retry_of_an_error_pays_again(cage: &Cage) -> Seen {
    payments_told(cage, |status| status >= 500).iter().try_for_each(|(wish, tag)| {
        cage.insist(wish);
        cage.wait_for_effect(tag);
        watch(A_WHILE, || once(cage, tag).err()).map_or(Ok(()), Err)
    })
}

/// Of three payments, those that were answered like this.
fn payments_told(cage: &Cage, answer: fn(u16) -> bool) -> Vec<(Wish, String)> {
    let payments = (0..3).map(|n| {
        let tag = format!("third-{n}");
        (Wish::pay(&tag, &format!("key-of-third-{n}")), tag)
    });
    payments.filter(|(wish, _)| answer(cage.send(wish).status)).collect()
}

pub(super) fn forgotten_soon(cage: &Cage) -> Seen {
    let wish = Wish::pay("soon", "key-to-remember");
    cage.send(&wish);
    let again = watch(A_WHILE, || {
        cage.send(&wish);
        once(cage, "soon").err()
    });
    again.map_or(Ok(()), Err)
}

fn once(cage: &Cage, tag: &str) -> Seen {
    let effects = cage.count(tag);
    unless(effects == 1, format!("{effects} effects"))
}
