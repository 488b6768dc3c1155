//! Each animal shows its flaw when looked at directly, and the control shows none.

use std::collections::BTreeSet;

use super::client::Wish;
use super::{ANIMALS, Animal, CONTROL, Cage, Family, TROUBLED};

fn shows_its_flaw(name: &str) {
    let animal = Animal::named(name).expect("it is listed");
    let seen = (animal.sign)(&Cage::of(animal));
    assert!(seen.is_err(), "{name} looks sound, although {}", animal.flaw);
    // Errors do not happen to the control, so those who have them are looked at as well.
    let troubled = if animal.found_by.contains(&Family::Errors) { TROUBLED } else { &[] };
    for sound in [&CONTROL].into_iter().chain(troubled) {
        assert_eq!((animal.sign)(&Cage::of(sound)), Ok(()), "{} shows the sign of {name}", sound.name);
    }
}

/// One test per animal.
macro_rules! animals {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            shows_its_flaw($name);
        })*

        /// What is tested above.
        const SHOWN: &[&str] = &[$($name),*];
    };
}

animals! {
    a_check_that_is_not_atomic_lets_racers_run: "non-atomic-check",
    without_a_mark_both_run: "both-run",
    a_short_lock_lets_the_retry_run: "lock-lapses",
    a_restarted_token_lets_the_stale_one_complete: "token-restarts",
    a_success_stored_first_survives_the_effect_it_never_had: "stored-before-effect",
    without_intent_a_crash_doubles: "recorded-after-effect",
    memory_is_lost_in_a_crash: "lost-on-crash",
    a_mark_without_recovery_is_stuck: "stuck-after-crash",
    a_client_that_leaves_frees_the_key: "stops-with-its-client",
    an_absent_store_opens_the_door: "open-when-away",
    without_a_fingerprint_another_body_is_replayed: "no-fingerprint",
    floats_make_two_numbers_one: "float-rounding",
    bytes_make_one_request_two: "raw-bytes",
    without_a_tenant_bob_hears_of_alice: "no-scope",
    without_a_route_a_refund_is_a_payment: "no-route-scope",
    equal_bodies_swallow_a_wish: "dedup-by-body",
    any_key_is_taken: "takes-any-key",
    quotes_make_one_key_two: "quotes-count",
    a_replay_without_headers_is_seen: "drops-headers",
    a_replay_with_a_cookie_is_seen: "replays-cookies",
    a_big_answer_runs_again: "reruns-big",
    a_stored_time_out_hides_the_effect: "stores-504",
    a_time_out_that_frees_doubles: "frees-on-504",
    an_error_that_frees_doubles: "frees-on-500",
    a_short_memory_doubles: "forgets-early",
}

#[test]
fn the_controls_pay_once_and_replay() {
    for control in [&CONTROL].into_iter().chain(TROUBLED) {
        assert_eq!((control.sign)(&Cage::of(control)), Ok(()), "{}", control.name);
    }
}

#[test]
fn a_troubled_control_answers_each_third_payment_with_an_error() {
    for (control, expected) in TROUBLED.iter().zip([504, 500]) {
        let cage = Cage::of(control);
        let told = [0, 1, 2].map(|n| cage.send(&Wish::pay("trouble", &format!("key-of-trouble-{n}"))).status);
        assert_eq!(told, [201, 201, expected], "{}", control.name);
    }
}

#[test]
fn every_animal_has_a_name_a_rule_a_check_and_a_proof() {
    let rules = include_str!("../../../../../docs/guarantees.md");
    let names: BTreeSet<&str> = ANIMALS.iter().map(|animal| animal.name).collect();
    assert_eq!(names.len(), ANIMALS.len(), "two animals have one name");
    assert_eq!(names, SHOWN.iter().copied().collect(), "an animal has no test, or a test no animal");
    for animal in ANIMALS {
        assert!(
            rules.contains(&format!("- **{}** ", animal.rule)),
            "{}: no rule {}",
            animal.name,
            animal.rule
        );
        assert!(!animal.found_by.is_empty() && !animal.flaw.is_empty(), "{}", animal.name);
    }
    for family in Family::ALL {
        assert!(ANIMALS.iter().any(|animal| animal.found_by.contains(&family)), "{family:?} finds nobody");
    }
}

#[test]
fn an_animal_keeps_its_address_and_its_past_when_it_is_killed() {
    let cage = Cage::of(&CONTROL);
    let (wish, address) = (Wish::pay("past", "key-of-the-past"), cage.url("/payments"));
    let before = cage.send(&wish);
    cage.restart();
    let after = cage.send(&wish);
    assert_eq!((cage.url("/payments"), after.body, cage.count("past")), (address, before.body, 1));
}
