//! Who lives in the zoo.

use std::time::Duration;

use super::cage::Cage;
use super::habits::{Habits, SOUND};
use super::{flaws, signs};

/// A kind of check. A tester that has the family must find every animal that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Equal requests at the same moment.
    Race,
    /// A retry while the first attempt runs, and after it.
    Slow,
    /// `kill -9` during or after the request, then a retry.
    Crash,
    /// The client goes away before the answer.
    Cut,
    /// Another body under the same key.
    OtherBody,
    /// The same request in another spelling.
    Spelling,
    /// The same key from somebody else.
    OtherTenant,
    /// The same key on another route or with another method.
    OtherRoute,
    /// The same body under another key.
    OtherKey,
    /// Keys that are empty, too long, double, in quotes.
    Keys,
    /// A replay compared with the first answer, header by header.
    Replay,
    /// Large requests and large answers.
    Size,
    /// Answers of 5xx, retried until they are final.
    Errors,
    /// The store is away.
    Outage,
    /// A retry some time later.
    Memory,
}

impl Family {
    pub(crate) const ALL: [Self; 15] = [
        Self::Race,
        Self::Slow,
        Self::Crash,
        Self::Cut,
        Self::OtherBody,
        Self::Spelling,
        Self::OtherTenant,
        Self::OtherRoute,
        Self::OtherKey,
        Self::Keys,
        Self::Replay,
        Self::Size,
        Self::Errors,
        Self::Outage,
        Self::Memory,
    ];
}

pub(crate) struct Animal {
    pub(crate) name: &'static str,
    pub(crate) flaw: &'static str,
    /// The rule of docs/guarantees.md that it breaks.
    pub(crate) rule: &'static str,
    /// The checks that must find it. Others may.
    pub(crate) found_by: &'static [Family],
    /// What `semel verify` must say: a check that fails, and the cause it names.
    pub(crate) caught: (&'static str, &'static str),
    pub(super) habits: Habits,
    /// Looks for the flaw directly: an error says what was seen.
    pub(super) sign: fn(&Cage) -> Result<(), String>,
}

/// Has no flaw.
pub(crate) const CONTROL: Animal = Animal {
    name: "control",
    flaw: "none",
    rule: "",
    found_by: &[],
    caught: ("", ""),
    habits: SOUND,
    sign: signs::pays_once_and_replays,
};

/// Sound services at a bank that is not: each third payment is answered too late, or fails after it
/// was made. Their first answer to it is an error, and nobody pays twice.
pub(crate) static TROUBLED: &[Animal] = &[
    Animal {
        name: "control-late",
        habits: Habits { trouble: flaws::every_third_is_late, patience: HASTY, ..SOUND },
        ..CONTROL
    },
    Animal {
        name: "control-failing",
        habits: Habits { trouble: flaws::every_third_fails, patience: HASTY, ..SOUND },
        ..CONTROL
    },
];

/// Long enough to be overtaken by a lock that lapses.
const SLOW: Duration = Duration::from_millis(400);
const HASTY: Duration = Duration::from_millis(400);

/// The broken ones.
pub(crate) const ANIMALS: &[Animal] = &[
    Animal {
        name: "non-atomic-check",
        flaw: "it looks for a mark and sets it a moment later, so that two racers run",
        rule: "G-8",
        found_by: &[Family::Race],
        caught: ("race", "not-atomic"),
        habits: Habits { flow: flaws::looks_then_marks, ..SOUND },
        sign: signs::racers_run,
    },
    Animal {
        name: "both-run",
        flaw: "nothing marks a running attempt, so that a duplicate runs beside it",
        rule: "G-8",
        found_by: &[Family::Race, Family::Slow],
        caught: ("race", "not-atomic"),
        habits: Habits { claim: flaws::guards_nothing, ..SOUND },
        sign: signs::duplicate_runs_beside,
    },
    Animal {
        name: "lock-lapses",
        flaw: "its lock of 150 ms lapses while the first attempt still runs, and the retry runs, too",
        rule: "G-17",
        found_by: &[Family::Slow],
        caught: ("in-flight", "lock-lapses"),
        habits: Habits { claim: flaws::lock_lapses, pace: SLOW, ..SOUND },
        sign: signs::slow_attempt_is_overtaken,
    },
    Animal {
        name: "token-restarts",
        flaw: "tokens begin again after a take-over, so that a stale attempt completes the newer one",
        rule: "G-9",
        found_by: &[Family::Slow],
        caught: ("in-flight", "lock-lapses"),
        habits: Habits { claim: flaws::lock_lapses_and_token_restarts, pace: SLOW, ..SOUND },
        sign: signs::replay_is_not_what_the_holder_said,
    },
    Animal {
        name: "stored-before-effect",
        flaw: "it stores the success before it acts, so that a crash between leaves a success without effect",
        rule: "G-16",
        found_by: &[Family::Crash],
        caught: ("kill", "dishonest"),
        habits: Habits { flow: flaws::records_then_acts, ..SOUND },
        sign: signs::success_without_effect_after_a_crash,
    },
    Animal {
        name: "recorded-after-effect",
        flaw: "nothing on disk says that it is about to act, so that a crash after the effect is followed by another",
        rule: "G-15",
        found_by: &[Family::Crash],
        caught: ("kill", "crash-reruns"),
        habits: Habits { claim: flaws::intent_in_memory, ..SOUND },
        sign: signs::second_effect_after_a_crash,
    },
    Animal {
        name: "lost-on-crash",
        flaw: "it remembers in memory only, and a restart makes every key new",
        rule: "G-10",
        found_by: &[Family::Crash],
        caught: ("kill-after-answer", "not-durable"),
        habits: Habits { durable: false, ..SOUND },
        sign: signs::forgotten_after_a_restart,
    },
    Animal {
        name: "stuck-after-crash",
        flaw: "the mark of a dead attempt stays for ever, and every retry is told to wait",
        rule: "G-15",
        found_by: &[Family::Crash],
        caught: ("kill", "stuck"),
        habits: Habits { recover: flaws::recovers_nothing, ..SOUND },
        sign: signs::in_flight_for_ever_after_a_crash,
    },
    Animal {
        name: "stops-with-its-client",
        flaw: "it acts in the client's connection; a client that leaves frees the key after the effect",
        rule: "G-17",
        found_by: &[Family::Cut],
        caught: ("abort", "lost-answer-reruns"),
        habits: Habits { flow: flaws::stops_with_its_client, ..SOUND },
        sign: signs::second_effect_after_the_client_left,
    },
    Animal {
        name: "open-when-away",
        flaw: "it runs without protection while its store is away",
        rule: "G-18",
        found_by: &[Family::Outage],
        caught: ("store-outage", "runs-without-store"),
        habits: Habits { flow: flaws::opens_when_the_store_is_away, ..SOUND },
        sign: signs::runs_without_a_store,
    },
    Animal {
        name: "no-fingerprint",
        flaw: "another body under the same key gets the old answer",
        rule: "G-6",
        found_by: &[Family::OtherBody],
        caught: ("other-body", "no-fingerprint"),
        habits: Habits { print: flaws::compares_nothing, ..SOUND },
        sign: signs::another_body_is_not_refused,
    },
    Animal {
        name: "float-rounding",
        flaw: "it compares numbers as floats: 2^53+1 is 2^53, and 1.0 is 1",
        rule: "G-6",
        found_by: &[Family::OtherBody],
        caught: ("json-large-numbers", "lossy"),
        habits: Habits { print: flaws::rounds_numbers, ..SOUND },
        sign: signs::another_number_is_not_refused,
    },
    Animal {
        name: "raw-bytes",
        flaw: "it compares bytes, and refuses the same members in another order",
        rule: "G-6",
        found_by: &[Family::Spelling],
        caught: ("json-order", "not-canonical"),
        habits: Habits { print: flaws::compares_bytes, ..SOUND },
        sign: signs::another_spelling_is_refused,
    },
    Animal {
        name: "no-scope",
        flaw: "bob, with alice's key, gets alice's answer",
        rule: "G-5",
        found_by: &[Family::OtherTenant],
        caught: ("other-tenant", "tenant-leak"),
        habits: Habits { operation: flaws::forgets_the_user, ..SOUND },
        sign: signs::another_user_gets_the_answer,
    },
    Animal {
        name: "no-route-scope",
        flaw: "a refund with the key of a payment gets the payment's answer",
        rule: "G-1",
        found_by: &[Family::OtherRoute],
        caught: ("other-route", "shared-scope"),
        habits: Habits { operation: flaws::forgets_the_route, ..SOUND },
        sign: signs::another_route_gets_the_answer,
    },
    Animal {
        name: "dedup-by-body",
        flaw: "two equal bodies under two keys are one effect",
        rule: "G-6",
        found_by: &[Family::OtherKey],
        caught: ("equal-bodies", "keys-collapsed"),
        habits: Habits { operation: flaws::finds_duplicates_by_body, ..SOUND },
        sign: signs::another_key_does_not_pay,
    },
    Animal {
        name: "takes-any-key",
        flaw: "it accepts empty keys, keys of 300 characters, and two of them",
        rule: "G-2",
        found_by: &[Family::Keys],
        caught: ("key-empty", "key-not-checked"),
        habits: Habits { key: flaws::takes_any_key, ..SOUND },
        sign: signs::bad_keys_are_taken,
    },
    Animal {
        name: "quotes-count",
        flaw: "a key in quotes and the same without are two",
        rule: "G-2",
        found_by: &[Family::Keys],
        caught: ("key-quoted", "quotes-count"),
        habits: Habits { key: flaws::quotes_are_part_of_the_key, ..SOUND },
        sign: signs::quoted_key_is_another,
    },
    Animal {
        name: "drops-headers",
        flaw: "a replay has no headers but its content type",
        rule: "G-14",
        found_by: &[Family::Replay],
        caught: ("replay", "replay-altered"),
        habits: Habits { keep: flaws::drops_headers, ..SOUND },
        sign: signs::replay_lacks_headers,
    },
    Animal {
        name: "replays-cookies",
        flaw: "a replay sets the cookie of the first client",
        rule: "G-14",
        found_by: &[Family::Replay],
        caught: ("replay-secrets", "secret-replayed"),
        habits: Habits { keep: flaws::keeps_cookies, ..SOUND },
        sign: signs::replay_sets_a_cookie,
    },
    Animal {
        name: "reruns-big",
        flaw: "answers above 4 KB are not kept, and the retry runs again",
        rule: "G-19",
        found_by: &[Family::Size],
        caught: ("replay-large-answer", "large-reruns"),
        habits: Habits { keep: flaws::keeps_small_answers, ..SOUND },
        sign: signs::big_answer_runs_again,
    },
    Animal {
        name: "stores-504",
        flaw: "each third payment lands after a 504, which is replayed for ever",
        rule: "G-16",
        found_by: &[Family::Errors],
        caught: ("late-effect", "time-out-stored"),
        habits: Habits {
            give_up: flaws::stores_the_time_out,
            trouble: flaws::every_third_is_late,
            patience: HASTY,
            ..SOUND
        },
        sign: signs::time_out_is_the_last_word,
    },
    Animal {
        name: "frees-on-504",
        flaw: "each third payment lands after a 504 that frees the key, so that the retry pays again",
        rule: "G-16",
        found_by: &[Family::Errors],
        caught: ("late-effect", "late-effect-twice"),
        habits: Habits {
            give_up: flaws::frees_on_time_out,
            trouble: flaws::every_third_is_late,
            patience: HASTY,
            ..SOUND
        },
        sign: signs::retry_of_an_error_pays_again,
    },
    Animal {
        name: "frees-on-500",
        flaw: "each third payment fails after its effect and frees the key, so that the retry pays again",
        rule: "G-16",
        found_by: &[Family::Errors],
        caught: ("error-effect", "error-reruns"),
        habits: Habits { keep: flaws::keeps_successes, trouble: flaws::every_third_fails, ..SOUND },
        sign: signs::retry_of_an_error_pays_again,
    },
    Animal {
        name: "forgets-early",
        flaw: "it remembers an answer for a third of a second",
        rule: "G-10",
        found_by: &[Family::Memory],
        caught: ("remembered", "forgets-early"),
        habits: Habits { memory: Duration::from_millis(300), ..SOUND },
        sign: signs::forgotten_soon,
    },
];

impl Animal {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        [&CONTROL].into_iter().chain(TROUBLED).chain(ANIMALS).find(|animal| animal.name == name)
    }
}
