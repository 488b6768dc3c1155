//! Switches that break one rule at a time, so that tests can prove they would notice.
//!
//! Without the `mutants` feature every switch is a constant `false` and the compiler removes it.
//! With it, the variable `SEMEL_MUTANT` names the one rule that is broken in this process.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the `mutants` feature breaks guarantees on purpose and must never be in a release build");

/// Whether the rule behind `name` is broken in this process.
#[cfg(feature = "mutants")]
pub fn on(name: &str) -> bool {
    static ACTIVE: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("SEMEL_MUTANT").ok());
    ACTIVE.as_deref() == Some(name)
}

/// Whether the rule behind `name` is broken: never, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}
