//! Settings, in two stages: what was written ([`file`], [`flags`]), and what is true ([`resolved`]).
//!
//! A value is taken from the first of these that has it: flag, variable, file, default. What a `[[route]]`
//! says itself comes before all four; flags and variables of route settings stand in for `[defaults]`.
//! Resolving collects every mistake with its place, and gives nothing as long as there is one.
//!
//! No setting is read anywhere else, and nothing behind [`resolved::Gateway`] judges again.

pub(crate) mod check;
mod file;
pub(crate) mod flags;
mod judge;
pub(crate) mod mistake;
mod network;
pub(crate) mod policy;
pub(crate) mod reload;
mod resolve;
pub(crate) mod resolved;
mod route;
mod routes;
mod settings;
mod show;
mod tenant;
pub(crate) mod value;

#[cfg(any(test, fuzzing))]
pub(crate) use resolve::from_bytes;
pub(crate) use resolve::{Resolved, resolve};
pub(crate) use show::Shown;
pub(crate) use value::Here;

#[cfg(test)]
mod manual_tests;
#[cfg(test)]
mod tests;

/// What a file means, for tests of others.
#[cfg(test)]
pub(crate) fn resolved_for_tests(text: &str) -> resolved::Gateway {
    tests::resolved(text).gateway
}

/// The settings of requests on no route, all defaults.
#[cfg(test)]
pub(crate) fn fallback_for_tests() -> resolved::RouteSettings {
    resolved_for_tests("[gateway]\nupstream = \"demo\"").fallback
}
