//! Every animal of the zoo is caught, with its cause; nothing is found in a sound one.
//!
//! An animal is looked at with the check that must find it, a sound one with all of them.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use super::run::{Card, Target};
use crate::zoo::{ANIMALS, Animal, CONTROL, Cage, TROUBLED};

/// Most of the time is spent waiting.
const AT_ONCE: usize = 4;

/// What all of them promise.
const PROFILE: &str = "base = \"semel\"\nmissing_key = 400\n";
/// Nobody says that it does not know: the ledger does.
const OWN: &str = "unknown = [503]\n";

fn target(cage: &Cage, pace_ms: u64) -> Target {
    let slow = format!(r#"{{"amount":100,"pace_ms":{pace_ms},"reference":"{{tag}}"}}"#);
    let more = [
        "--other-method",
        "PUT",
        "--failing-data",
        r#"{"amount":100,"fail":true,"reference":"{tag}"}"#,
        "--slow-data",
        &slow,
    ];
    Target {
        origin: cage.url(""),
        path: "/payments",
        count: "/count/{tag}",
        pointer: None,
        kill: cage.kill_command(),
        start: cage.start_command(),
        store_stop: cage.store_stop_command(),
        store_start: cage.store_start_command(),
        more: more.map(str::to_owned).to_vec(),
    }
}

fn profile(place: &Path, more: &str) -> String {
    let file = place.join("profile.toml");
    std::fs::write(&file, format!("{PROFILE}{more}")).expect("it is written");
    file.display().to_string()
}

/// Slower than the bank is waited for, by those who do not wait long.
const LATE_MS: u64 = 1200;

fn looked_at(animal: &'static Animal, place: &Path) -> (Cage, Card) {
    let cage = Cage::of(animal);
    let repro = place.join("repro").display().to_string();
    let card = target(&cage, LATE_MS)
        .verify(place, &["--profile", &profile(place, OWN), "--only", animal.caught.0, "--repro", &repro]);
    (cage, card)
}

#[test]
fn every_animal_is_caught_by_its_check_and_its_cause_is_named() {
    let (waiting, missed) = (Mutex::new(ANIMALS.iter()), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("no panic").next();
    let look = || {
        while let Some(animal) = next() {
            let place = tempfile::tempdir().expect("a temporary directory");
            let (_cage, card) = looked_at(animal, place.path());
            let (check, cause) = animal.caught;
            let found = card.found.get(check).map(String::as_str);
            if found != Some(cause) || card.code != Some(1) {
                let said = format!("{}: {check} says {found:?}, not {cause}\n{}", animal.name, card.said);
                missed.lock().expect("no panic").push(said);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(look);
        }
    });
    let missed = missed.into_inner().expect("no panic");
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), ANIMALS.len(), missed.join("\n"));
}

/// A sound service, how slow a request must be to be too slow for it, and what it promises.
struct Sound {
    animal: &'static Animal,
    late_ms: u64,
    answer_max: &'static str,
    promises: &'static str,
}

const SOUND: [Sound; 3] = [
    // It waits five seconds for its bank.
    Sound { animal: &CONTROL, late_ms: 5_500, answer_max: "6s", promises: OWN },
    Sound { animal: &TROUBLED[0], late_ms: LATE_MS, answer_max: "3s", promises: OWN },
    // Its errors are answers, also of what a crash interrupted.
    Sound { animal: &TROUBLED[1], late_ms: LATE_MS, answer_max: "3s", promises: "unknown = [500, 503]\n" },
];

#[test]
fn nothing_is_found_in_a_sound_service_also_if_its_bank_fails_now_and_then() {
    std::thread::scope(|scope| {
        for Sound { animal, late_ms, answer_max, promises } in SOUND {
            scope.spawn(move || {
                let place = tempfile::tempdir().expect("a temporary directory");
                let cage = Cage::of(animal);
                let profile = profile(place.path(), promises);
                // Nobody there forgets within a day.
                let asked =
                    ["--profile", &profile, "--strict", "--skip", "expiry", "--answer-max", answer_max];
                let card = target(&cage, late_ms).verify(place.path(), &asked);
                let odd: Vec<_> = card.found.iter().filter(|(_, found)| *found != "pass").collect();
                assert!(odd.is_empty() && card.code == Some(0), "{}: {odd:#?}\n{}", animal.name, card.said);
            });
        }
    });
}

/// The exit code of a script that was written for one service, against another.
fn replayed(script: &Path, from: &Cage, to: &Cage, rounds: &str) -> (Option<i32>, String) {
    let mut text = std::fs::read_to_string(script).expect("the script is there");
    // Longer names first: a command may hold the other's address.
    for (one, other) in [
        (from.start_command(), to.start_command()),
        (from.kill_command(), to.kill_command()),
        (from.url(""), to.url("")),
    ] {
        text = text.replace(&one, &other);
    }
    let elsewhere = script.with_extension("other.sh");
    std::fs::write(&elsewhere, text).expect("it is written");
    let mut bash = Command::new("bash");
    let bash = bash.arg(&elsewhere).env("AUTHORIZATION", "Bearer alice").env("ROUNDS", rounds);
    let output = bash.output().expect("bash is there");
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    (output.status.code(), said.concat())
}

fn script_shows_it_again(name: &str) {
    let animal = Animal::named(name).expect("it is listed");
    let place = tempfile::tempdir().expect("a temporary directory");
    let (cage, card) = looked_at(animal, place.path());
    let script = place.path().join("repro").join(format!("{}.sh", animal.caught.0));
    assert!(script.exists(), "{name}: {}", card.said);
    let control = Cage::of(&CONTROL);
    // Luck may need all rounds to show a flaw; where there is none, two show it as well.
    for (to, rounds, expected) in [(&cage, "20", 1), (&control, "2", 0)] {
        let (code, said) = replayed(&script, &cage, to, rounds);
        assert_eq!(code, Some(expected), "{name}: {said}");
    }
}

#[test]
fn scripts_show_a_flaw_again_and_find_none_in_the_control() {
    std::thread::scope(|scope| {
        for name in ["both-run", "no-fingerprint", "lost-on-crash", "recorded-after-effect"] {
            scope.spawn(move || script_shows_it_again(name));
        }
    });
}
