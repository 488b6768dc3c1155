//! The suites on the reference store.

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
