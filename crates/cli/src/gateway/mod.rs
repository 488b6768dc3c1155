//! The gateway: Semel in front of a service written in any language.

pub(crate) mod matching;
pub(crate) mod requests;
pub(crate) mod tenant;
//! The gateway's network side: clients come in by [`serve`], requests go out by [`upstream`].
//!
//! What stands between the two is a tower service and somebody else's business: nothing here knows
//! keys, stores or outcomes. The network and the clock are behind [`net::Network`] and
//! [`semel::Runtime`], so that all of it runs in a simulation too.
pub(crate) mod alarm;
mod headers;
pub(crate) mod net;
mod problem;
pub(crate) mod serve;
#[cfg(test)]
mod tests;
pub(crate) mod upstream;
/// An error of any kind, as bodies and services have them.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
//! What stands around the HTTP layer when Semel runs as a gateway.
pub(crate) mod ask;
pub(crate) mod fetch;
pub(crate) mod observe;
pub(crate) mod trace;
pub(crate) mod unknowns;
