//! The suites on the reference store.

mod outbox;
mod recall;

mod conformance {
    semel_testkit::conformance!(semel_testkit::MemoryRig::maker());
}

mod execution {
    semel_testkit::execution!(semel_testkit::MemoryRig::maker_in_tokio_time());
    semel_testkit::execution_in_tokio_time!(semel_testkit::MemoryRig::maker_in_tokio_time());
}

#[test]
fn random_interleavings_of_all_verbs_follow_the_reference() {
    // G-7
    let long = std::env::var("SEMEL_TEST_LONG").is_ok_and(|value| value == "1");
    semel_testkit::interleavings(semel_testkit::MemoryRig::maker(), if long { 20_000 } else { 500 });
}

mod model {
    use semel_core::Recovery;
    use semel_testkit::model::explore;

    #[test]
    fn under_hold_an_effect_happens_at_most_once_whatever_fails() {
        // G-8, G-9, G-15
        explore(Recovery::Hold);
    }

    #[test]
    fn under_ask_an_effect_happens_at_most_once_whatever_fails() {
        // G-8, G-9, G-15
        explore(Recovery::Ask);
    }

    #[test]
    fn under_rerun_a_stale_attempt_never_counts() {
        // G-9
        explore(Recovery::Rerun);
    }
}

mod subject_keys {
    semel_testkit::subject_keys!(semel_testkit::subjects::memory());
}
