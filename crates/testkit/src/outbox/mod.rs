//! What every outbox must do, one sentence per case.
//!
//! The author of a new outbox implements [`Outbox`](semel_core::Outbox), writes a [`Rig`] that can also play
//! the application (open a transaction, write messages, commit or not), and puts one line into a test file:
//!
//! ```text
//! semel_testkit::outbox_conformance!(maker());
//! ```
//!
//! Cases treat an outbox as a relay does and look at what comes out: which messages, in which order, how
//! often. They do not sleep; time is moved through the rig.

mod aside;
mod delayed;
mod history;
mod lanes;
mod looking;
mod positions;
mod reading;
mod rig;
mod scene;
mod verdicts;

use std::sync::Arc;
use std::time::Duration;

use crate::{BoxFuture, ledger};

pub use rig::{Maker, Open, Rig};

/// One demand on an outbox.
#[derive(Clone, Copy)]
pub struct Case {
    /// The demand, as a sentence with underscores: the name of its test.
    pub name: &'static str,
    /// The guarantees it proves.
    pub rules: &'static [&'static str],
    /// Panics if the rig's outbox does not meet it.
    pub run: fn(Arc<dyn Rig>) -> BoxFuture<'static, ()>,
}

/// Longest a case may take, so that a lost wake-up is a failure and not a hang.
const CASE_TIME_MAX: Duration = Duration::from_secs(300);

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    crate::outbox_cases!(list)
}

/// Runs the case of this name on a fresh rig. What `outbox_conformance!` expands to.
pub fn prove_named(maker: &Maker, name: &str) {
    let case = cases().into_iter().find(|case| case.name == name);
    prove(maker, &case.expect("the list names every case"));
}

fn prove(maker: &Maker, case: &Case) {
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
        ledger("outbox", engine, 1);
    });
}

/// One `#[test]` per case of the outbox suite, each on a fresh rig of the
/// [`Maker`](crate::outbox::Maker) that the expression gives. The tests bear the names of the cases.
#[macro_export]
macro_rules! outbox_conformance {
    ($maker:expr) => {
        $crate::outbox_cases! { tests $maker }
    };
}

/// The list. Tests and [`cases`] are made of it, so that no case can be forgotten.
#[doc(hidden)]
#[macro_export]
macro_rules! outbox_cases {
    ($($how:tt)*) => {
        $crate::expand_outbox_cases! { [$($how)*]
            reading {
                what_committed_is_read_and_what_rolled_back_never_is "G-40",
                nothing_is_read_before_its_transaction_commits "G-40",
                a_transaction_that_began_first_and_committed_last_is_not_skipped "G-40",
                messages_of_one_key_are_read_in_the_order_they_were_written "G-41",
                a_message_comes_back_field_by_field "G-43",
                payloads_of_any_size_come_back_byte_for_byte "G-43",
                a_message_that_could_not_be_published_is_refused_when_it_is_written "G-44",
                a_batch_has_no_more_than_its_limit_and_begins_the_same_until_it_is_saved "G-42",
                what_was_settled_is_not_read_again_and_the_rest_is "G-42",
                a_backlog_goes_on_from_the_first_that_was_not_settled "G-40" "G-42",
                what_was_read_and_not_saved_is_read_again_by_the_next_holder "G-42" "G-43",
                a_backlog_is_read_to_its_end_through_restarts "G-40" "G-42",
                while_writers_write_every_message_is_read_once_in_the_order_of_its_key "G-40" "G-41",
                a_save_whose_answer_was_lost_is_repeated_without_harm "G-42",
                a_renewal_whose_answer_was_lost_forgets_nothing "G-42",
            }
            lanes {
                an_outbox_says_what_it_is "G-42",
                a_lane_has_one_holder_until_its_lease_lapses "G-42",
                of_many_that_ask_for_a_lane_one_gets_it "G-42",
                a_lane_given_back_is_free_at_once "G-42",
                an_epoch_grows_each_time_a_lane_changes_hands "G-42",
                a_zombie_saves_nothing "G-42",
                a_lapsed_lane_that_nobody_took_stays_with_its_holder "G-42",
                an_empty_save_renews_the_lease_and_settles_nothing "G-42",
                messages_of_one_key_are_in_one_lane "G-41",
                lanes_do_not_wait_for_each_other "G-41",
                a_lane_that_does_not_exist_cannot_be_taken "G-42",
            }
            aside {
                a_message_set_aside_is_read_again_after_its_time_and_not_before "G-44",
                the_key_of_a_message_set_aside_waits_and_other_keys_go_on "G-41",
                the_rest_of_a_backlog_waits_for_a_message_of_its_key_that_was_set_aside "G-41",
                a_save_of_a_part_holds_up_the_rest_of_the_key "G-41",
                those_behind_come_in_order_and_before_newer_ones "G-41",
                a_message_that_fails_again_and_again_keeps_its_place_and_its_count "G-41" "G-44",
                a_message_without_a_key_holds_nobody_up "G-41",
                what_was_set_aside_survives_a_restart "G-44",
                a_long_reason_is_kept_in_part "G-44",
            }
            verdicts {
                a_dead_letter_parks_its_key_until_it_is_judged "G-41" "G-44",
                a_replayed_dead_letter_comes_under_its_id_before_those_behind_it "G-44",
                an_edited_dead_letter_takes_its_place_under_an_id_of_its_own "G-44",
                a_discarded_dead_letter_never_comes_and_those_behind_go_on "G-44",
                only_a_dead_letter_is_judged "G-44",
            }
            delayed {
                a_delayed_message_is_read_after_its_time_and_not_before "G-41",
                a_delayed_message_leaves_the_order_of_its_key "G-41",
            }
            positions {
                what_a_sink_says_has_landed_is_not_read_again "G-43",
                an_old_position_changes_nothing "G-43",
                a_position_covers_no_transaction_that_commits_after_it "G-40" "G-43",
                a_position_covers_what_was_set_aside_and_read_again "G-41" "G-43",
            }
            looking {
                a_message_is_found_wherever_it_is "G-44",
                the_overview_counts_what_waits_by_topic_and_lane "G-44",
                waiting_messages_are_listed_page_by_page "G-44",
                letters_are_listed_page_by_page_and_by_kind "G-44",
            }
            history {
                whatever_fails_each_key_is_published_in_order_and_nothing_is_lost "G-40" "G-41" "G-42" "G-44",
            }
        }
    };
}

/// Turns the list into tests, or into a list of values.
#[doc(hidden)]
#[macro_export]
macro_rules! expand_outbox_cases {
    ([tests $maker:expr] $($theme:ident { $($name:ident $($rule:literal)*,)* })*) => {
        $($(
            #[test]
            fn $name() {
                $crate::outbox::prove_named(&$maker, stringify!($name));
            }
        )*)*
    };
    ([list] $($theme:ident { $($name:ident $($rule:literal)*,)* })*) => {
        vec![$($(
            Case { name: stringify!($name), rules: &[$($rule),*], run: |rig| Box::pin($theme::$name(rig)) },
        )*)*]
    };
}
