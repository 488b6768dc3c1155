//! The conformance suite: what every store must answer, one sentence per case.
//!
//! A case gets a rig of its own, so that cases can run side by side. New semantics of stores start
//! here: write the case, add it to the list in [`conformance!`](crate::conformance), then mend the
//! backends.

mod claims;
mod durable;
mod expiry;
mod fencing;
mod leases;
mod listing;
mod matrix;
mod purge;
mod unknown;

use std::sync::Arc;
use std::time::Duration;

use crate::{BoxFuture, Maker, Rig, ledger};

/// One demand on a store.
#[derive(Clone, Copy)]
pub struct Case {
    /// The demand, as a sentence with underscores: the name of its test.
    pub name: &'static str,
    /// The guarantees it proves.
    pub rules: &'static [&'static str],
    /// Panics if the rig's store does not meet it.
    pub run: fn(Arc<dyn Rig>) -> BoxFuture<'static, ()>,
}

/// Longest a case may take, so that a lost wake-up is a failure and not a hang.
const CASE_TIME_MAX: Duration = Duration::from_secs(300);

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    crate::conformance_cases!(list)
}

/// Runs every case, each on a fresh rig, and returns how many there were.
pub fn run(maker: &Maker) -> usize {
    let cases = cases();
    cases.iter().for_each(|case| prove(maker, "conformance", case));
    cases.len()
}

/// Runs the case of this name on a fresh rig. What `conformance!` expands to.
pub fn prove_named(maker: &Maker, name: &str) {
    let case = cases().into_iter().find(|case| case.name == name);
    prove(maker, "conformance", &case.expect("the list names every case"));
}

/// Runs one case on a fresh rig, on a runtime of its own, and notes it in the ledger.
pub(crate) fn prove(maker: &Maker, suite: &str, case: &Case) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let rig = maker().await;
        let engine = rig.engine();
        if tokio::time::timeout(CASE_TIME_MAX, (case.run)(rig)).await.is_err() {
            panic!("{}: no end within {CASE_TIME_MAX:?}", case.name);
        }
        ledger(suite, engine, 1);
    });
}

/// One `#[test]` per case of the conformance suite, each on a fresh rig of the
/// [`Maker`](crate::Maker) that the expression gives. The tests bear the names of the cases.
#[macro_export]
macro_rules! conformance {
    ($maker:expr) => {
        $crate::conformance_cases! { tests $maker }
    };
}

/// The list. Tests and [`cases`] are made of it, so that no case can be forgotten.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($($how:tt)*) => {
        $crate::expand_cases! { [$($how)*]
            claims {
                one_of_a_thousand_simultaneous_claims_gets_the_lease "G-8",
                one_of_many_claims_takes_over_a_lapsed_or_released_operation "G-8" "G-9",
                a_stored_outcome_comes_back_byte_for_byte "G-7" "G-14",
                another_request_under_a_used_key_is_refused_in_every_state "G-6",
                two_keys_with_equal_bodies_are_two_operations "G-6",
                namespaces_tenants_and_routes_do_not_meet "G-1",
                a_claim_repeated_with_its_nonce_gets_the_same_lease "G-9",
                a_duplicate_in_flight_hears_since_when_and_until_when "G-14",
                a_released_operation_is_claimed_again_with_a_larger_token "G-9",
                a_withdrawn_claim_cannot_be_revived "G-9" "G-18",
                a_record_holds_all_that_was_claimed "G-7",
                a_print_is_compared_under_its_own_key_version "G-6",
                rotation_adds_a_hash_key_and_keeps_the_older_ones "G-6",
                a_key_of_any_shape_comes_back_as_it_was "G-2" "G-9",
            }
            fencing {
                a_stale_token_or_nonce_is_refused_by_every_write "G-9",
                a_token_never_restarts "G-9",
                a_takeover_fences_the_attempt_before "G-9" "G-15",
                a_refused_outcome_repeated_is_one_piece_of_evidence "G-9",
                evidence_and_history_are_bounded_and_survive_a_restart "G-9",
                a_possible_double_effect_is_remembered_as_long_as_the_record "G-9",
                a_completed_outcome_never_changes "G-7",
                a_completion_races_a_takeover_and_one_of_them_wins "G-9",
            }
            leases {
                a_lease_lapses_at_its_deadline_and_not_before "G-12",
                lapsed_under_hold_or_ask_the_next_claim_finds_it_unknown "G-15",
                a_lapse_seen_by_anybody_makes_it_unknown "G-15",
                a_renewed_lease_outlives_its_first_deadline "G-17",
                a_renewal_never_shortens_a_lease "G-12",
                a_lapsed_lease_nobody_took_may_be_renewed_and_completed "G-17",
                an_operation_in_progress_never_expires "G-10",
                a_clock_that_jumps_back_ends_nothing_early "G-12",
                a_clock_that_jumps_forward_lets_leases_lapse_and_fences_their_holders "G-9" "G-12",
                each_attempt_brings_its_own_terms "G-15",
            }
            unknown {
                an_unknown_never_expires_and_still_answers_years_later "G-10",
                a_young_unknown_keeps_its_evidence_through_a_sweep "G-10",
                the_newest_attempts_late_outcome_ends_an_unknown "G-9",
                the_newest_attempts_word_that_nothing_happened_ends_an_unknown "G-16",
                a_superseded_attempts_late_outcome_does_not_end_an_unknown "G-9",
                an_operator_settles_an_unknown_as_done "G-15",
                an_operator_settles_an_unknown_as_never "G-15",
                a_settlement_of_another_attempt_or_state_is_refused "G-7",
                an_asked_party_is_believed_after_run_max_and_never_without_a_fence "G-15",
                run_max_counts_from_the_newest_attempt "G-15",
                a_claims_own_nonce_finds_its_unknown "G-9",
            }
            expiry {
                an_early_end_expires_at_creation_plus_ttl "G-10",
                a_late_end_expires_after_the_retry_window "G-10",
                a_purged_record_expires_when_it_would_have "G-10",
                a_released_record_expires_like_a_completed_one "G-10",
                a_settled_unknown_expires_after_its_settlement "G-10",
                a_completion_may_ask_to_be_remembered_longer_never_shorter "G-7" "G-10",
                a_sweep_deletes_what_expired_and_nothing_else "G-10",
                a_sweep_does_no_more_than_its_limit "G-11",
                a_sweep_and_claims_at_once_lose_and_double_nothing "G-8" "G-10" "G-11",
            }
            purge {
                a_purge_leaves_a_tombstone_that_still_answers "G-10",
                what_has_not_ended_cannot_be_purged "G-10",
                a_purge_by_subject_takes_all_of_it_and_nobody_elses "G-10",
            }
            durable {
                a_restart_keeps_every_field_of_every_record "G-9" "G-10",
                a_restored_store_answers_nothing_until_acknowledged "G-13",
                a_key_made_after_a_restore_has_a_version_that_no_lost_key_had "G-6" "G-13",
                a_backup_put_back_at_once_needs_no_acknowledgement "G-13",
                a_damaged_outcome_never_makes_a_key_free "G-20",
                a_store_says_what_it_is "G-12",
            }
            listing {
                the_unsettled_are_found_page_by_page_and_none_is_missed "G-15",
                operations_are_found_by_any_of_their_parts "G-81",
                a_listing_looks_at_no_more_records_than_its_limit "G-11" "G-81",
            }
            matrix {
                every_state_meets_every_verb_as_the_table_says "G-7",
                an_ended_operation_is_left_only_by_claim_purge_and_expiry "G-7",
            }
        }
    };
}

/// Turns a list of cases into tests, or into a list of values.
#[doc(hidden)]
#[macro_export]
macro_rules! expand_cases {
    ([tests $maker:expr] $($theme:ident { $($name:ident $($rule:literal)*,)* })*) => {
        $($(
            #[test]
            fn $name() {
                $crate::suite::prove_named(&$maker, stringify!($name));
            }
        )*)*
    };
    ([list] $($theme:ident { $($name:ident $($rule:literal)*,)* })*) => {
        vec![$($(
            Case { name: stringify!($name), rules: &[$($rule),*], run: |rig| Box::pin($theme::$name(rig)) },
        )*)*]
    };
}
