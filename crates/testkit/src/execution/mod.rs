//! `Once` over a store that misbehaves: claim, run, store, replay, under every fault a network has.
//!
//! [`execution!`](crate::execution!) runs on any rig. The cases of
//! [`execution_in_tokio_time!`](crate::execution_in_tokio_time) let hours pass and need a rig that
//! says so.

mod chaos;
mod outage;
mod plain;
mod secrets;
mod subjects;
mod time;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::policy::Builder;
use semel_core::runtime::Tokio;
use semel_core::{
    Answer, Attempt, Ending, Fingerprinter, Once, Operation, Outcome, Policy, Record, Refusal, State,
};

use crate::faulty::{Fault, FaultyStore, Verb};
use crate::scene::{COFFEE, Shop, operation};
use crate::suite::Case;
use crate::{BoxFuture, Maker, Rig, ledger};

/// Longest a case may take. In paused time it passes in no time once nothing else is to be done.
const CASE_TIME_MAX: Duration = Duration::from_secs(300);

/// The cases for any rig.
pub fn cases() -> Vec<Case> {
    crate::execution_cases!(list)
}

/// The cases for rigs in tokio's time.
pub fn cases_in_tokio_time() -> Vec<Case> {
    crate::execution_cases_in_tokio_time!(list)
}

/// Runs the case of this name on a fresh rig. What the macros expand to.
pub fn prove_named(maker: &Maker, name: &str) {
    let case = cases().into_iter().chain(cases_in_tokio_time()).find(|case| case.name == name);
    let case = case.expect("the lists name every case");
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let rig = maker().await;
        let engine = rig.engine();
        let mut limit = CASE_TIME_MAX;
        if rig.in_tokio_time() {
            tokio::time::pause();
            limit *= 100_000;
        }
        if tokio::time::timeout(limit, (case.run)(rig)).await.is_err() {
            panic!("{}: no end within {limit:?}", case.name);
        }
        ledger("execution", engine, 1);
    });
}

/// One `#[test]` per case of the execution suite, on fresh rigs of the [`Maker`](crate::Maker) given.
#[macro_export]
macro_rules! execution {
    ($maker:expr) => {
        $crate::execution_cases! { tests $maker }
    };
}

/// One `#[test]` per case in which much time passes.
#[macro_export]
macro_rules! execution_in_tokio_time {
    ($maker:expr) => {
        $crate::execution_cases_in_tokio_time! { tests $maker }
    };
}

/// The list of cases for any rig.
#[doc(hidden)]
#[macro_export]
macro_rules! execution_cases {
    ($($how:tt)*) => {
        $crate::expand_execution_cases! { [$($how)*]
            plain {
                an_effect_runs_once_and_its_outcome_is_replayed_whole "G-14",
                of_many_simultaneous_calls_one_runs_and_all_hear_its_outcome "G-8" "G-14",
                a_duplicate_of_a_running_call_is_told_to_come_back "G-14",
                a_waiting_duplicate_is_woken_with_the_outcome "G-14",
                a_duplicate_does_not_wait_longer_than_it_may "G-14",
                another_request_under_the_key_runs_nothing_and_hears_what_changed "G-6",
                after_a_rotation_of_hash_keys_old_operations_still_replay "G-6",
                an_effect_that_did_nothing_runs_again "G-16",
                an_effect_that_cannot_tell_runs_no_more "G-15",
                a_panic_is_unknown_and_nothing_runs_again "G-17",
                derived_keys_are_the_same_on_every_attempt "G-9",
                guessable_keys_are_counted_and_accepted "G-2",
                a_purged_operation_says_so_and_runs_nothing "G-10",
                an_effect_may_ask_to_be_remembered_longer "G-10",
            }
            outage {
                a_lost_claim_answer_is_found_out_with_the_same_nonce "G-9",
                a_lost_completion_answer_is_found_out_with_the_same_bytes "G-9",
                doubled_and_late_copies_change_nothing "G-9",
                with_the_store_away_nothing_runs "G-18",
                an_open_outage_runs_natural_effects_and_says_so "G-18",
                a_claim_nobody_waits_for_is_withdrawn_when_the_store_answers "G-18",
                an_outcome_that_cannot_be_stored_is_not_reported_and_stored_later "G-17",
                a_restored_store_runs_nothing_even_where_outages_are_open "G-13" "G-18",
                what_a_store_granted_that_had_gone_back_is_given_back "G-13" "G-18",
                a_superseded_attempt_hears_the_outcome_that_counts "G-9",
                a_call_dropped_at_any_point_leaves_nothing_stuck_and_nothing_undone "G-17" "G-18",
                a_caller_that_goes_away_does_not_stop_the_work "G-17",
                draining_waits_for_what_runs "G-17",
            }
            secrets {
                an_outcome_too_large_to_keep_is_passed_on_and_nothing_reruns "G-19",
                an_outcome_too_large_for_the_store_is_kept_without_its_body "G-17" "G-19",
                with_no_room_even_for_the_status_the_whole_outcome_is_stored_later "G-17" "G-19",
                an_unreadable_outcome_says_so_and_runs_nothing "G-20",
                what_is_redacted_is_never_stored_and_the_replay_says_so "G-14",
                a_sealed_outcome_shows_nothing_of_itself "G-20",
            }
            subjects {
                forgetting_a_subject_makes_its_outcomes_unreadable_and_runs_nothing "G-20",
                with_the_key_place_away_nothing_runs_and_nothing_is_called_unreadable "G-20",
                a_key_forgotten_while_the_effect_runs_leaves_an_outcome_nobody_reads "G-20",
                a_waiting_duplicate_does_not_read_what_was_forgotten_meanwhile "G-20",
                a_subjects_key_under_another_master_opens_nothing_and_runs_nothing "G-20",
                a_late_answer_is_sealed_for_its_subject_and_refused_ones_too "G-20",
            }
            chaos {
                under_any_faults_an_effect_happens_at_most_once_and_no_success_is_unstored "G-8" "G-9" "G-17" "G-18",
                under_any_faults_and_lapses_an_effect_happens_at_most_once "G-9" "G-15",
            }
        }
    };
}

/// The list of cases in which much time passes.
#[doc(hidden)]
#[macro_export]
macro_rules! execution_cases_in_tokio_time {
    ($($how:tt)*) => {
        $crate::expand_execution_cases! { [$($how)*]
            time {
                a_long_effect_keeps_its_lease "G-17",
                a_lease_that_cannot_be_renewed_is_signalled_and_its_outcome_still_counts "G-17",
                a_store_that_hangs_on_renewals_is_signalled_too "G-17",
                an_attempt_taken_over_hears_of_it "G-17" "G-9",
                a_panic_under_rerun_is_run_again_after_the_lease "G-15" "G-17",
                a_store_that_hangs_is_given_up_within_its_patience "G-18",
                writes_that_hang_are_tried_again "G-17" "G-18",
                a_withdrawn_claim_is_freed_also_after_it_was_called_unknown "G-18",
                waiting_ends_at_its_limit_and_not_before "G-14",
                advice_to_come_back_follows_the_routes_latency "G-14",
                draining_gives_up_when_its_patience_is_over "G-17",
            }
        }
    };
}

/// Turns a list of execution cases into tests, or into a list of values.
#[doc(hidden)]
#[macro_export]
macro_rules! expand_execution_cases {
    ([tests $maker:expr] $($theme:ident { $($name:ident $($rule:literal)*,)* })*) => {
        $($(
            #[test]
            fn $name() {
                $crate::execution::prove_named(&$maker, stringify!($name));
            }
        )*)*
    };
    ([list] $($theme:ident { $($name:ident $($rule:literal)*,)* })*) => {
        vec![$($(
            Case { name: stringify!($name), rules: &[$($rule),*], run: |rig| Box::pin($theme::$name(rig)) },
        )*)*]
    };
}

/// A shop whose charges go through `Once`. Effects are counted here, outside any store.
#[derive(Clone)]
struct Till {
    shop: Shop,
    faulty: Arc<FaultyStore>,
    once: Once,
    effects: Arc<AtomicU32>,
}

/// What a caller hears.
type Heard = Result<Answer, Refusal>;

impl Till {
    fn new(rig: Arc<dyn Rig>) -> Self {
        Self::with_plan(rig, |_| Fault::None)
    }

    fn scripted(rig: Arc<dyn Rig>, verb: Verb, faults: &[Fault]) -> Self {
        let faulty = FaultyStore::scripted(rig.store(), verb, faults);
        Self::over(rig, faulty)
    }

    fn with_plan(rig: Arc<dyn Rig>, plan: impl FnMut(Verb) -> Fault + Send + 'static) -> Self {
        let faulty = FaultyStore::new(rig.store(), plan);
        Self::over(rig, faulty)
    }

    fn over(rig: Arc<dyn Rig>, faulty: Arc<FaultyStore>) -> Self {
        let once = Once::new(faulty.clone(), Arc::new(Tokio::new()));
        Self { shop: Shop(rig), faulty, once, effects: Arc::default() }
    }

    /// Runs an effect for coffee under a key.
    fn run<Work>(
        &self,
        key: &str,
        policy: &Policy,
        effect: impl FnOnce(Attempt) -> Work + Send + 'static,
    ) -> BoxFuture<'static, Heard>
    where
        Work: Future<Output: Into<Ending>> + Send + 'static,
    {
        let (store, once, order, policy) =
            (self.shop.store(), self.once.clone(), operation(key), policy.clone());
        Box::pin(async move {
            let status = store.status().await.expect("a status is answered");
            let prints = Fingerprinter::new(status.hash_keys).expect("the store's keys are usable");
            let print = prints.of_json(COFFEE.as_bytes());
            once.run(order.scope().clone(), order.key().clone(), print, &policy, effect).await
        })
    }

    /// Charges: counts one effect and answers with its number.
    async fn charge(&self, key: &str, policy: &Policy) -> Heard {
        let effects = self.effects.clone();
        self.run(key, policy, async move |_| charged(&effects)).await
    }

    fn effects(&self) -> u32 {
        self.effects.load(Ordering::SeqCst)
    }

    /// The record under a key, read behind the faults.
    async fn record(&self, key: &str) -> Option<Record> {
        self.shop.get(operation(key).id()).await
    }

    async fn state(&self, key: &str) -> Option<State> {
        self.record(key).await.map(|record| record.state)
    }

    /// Ends all faults and waits until nothing is under way.
    async fn settle_down(&self) {
        self.faulty.heal();
        self.faulty.deliver().await;
        assert_eq!(self.once.drain(Duration::from_secs(100)).await, 0, "everything comes to an end");
    }
}

/// One effect happens, here and now.
fn charged(effects: &AtomicU32) -> Outcome {
    let number = effects.fetch_add(1, Ordering::SeqCst) + 1;
    Outcome { status: 201, ..Outcome::text(format!("charge number {number}")) }
}

/// A policy that gives up on a store soon, so that cases in real time are short.
fn brisk() -> Builder {
    Policy::builder().store_patience(Duration::from_millis(300))
}

/// A policy for calls that must be answered: the store is well, and every core may be busy.
fn patient() -> Builder {
    Policy::builder().store_patience(Duration::from_secs(10))
}

fn policy(builder: Builder) -> Policy {
    builder.build().expect("the policy makes sense")
}

/// Lets everything else that can run do so.
async fn breathe() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

fn order(key: &str) -> Arc<Operation> {
    operation(key)
}
