//! Every decision, told to whoever counts: one call and one event each.

use std::time::Duration;

use semel_core::Key;

use crate::problem;

/// Hears of every decision, in the task that made it; so it must be quick.
pub trait Observer: Send + Sync + 'static {
    /// A request was decided.
    fn decided(&self, decision: &Decision<'_>);
}

/// What became of one request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decision<'a> {
    /// The route's label, never a raw path. `None` if the request belongs to no route.
    pub route: Option<&'a str>,
    /// What was decided.
    pub kind: Kind,
    /// The client's key, if it was read.
    pub key: Option<&'a Key>,
    /// The status the client got. `None` for what was passed on or has nobody to hear it.
    pub status: Option<u16>,
    /// From the head of the request to the decision. Zero for what passed.
    pub latency: Duration,
}

/// What was decided, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Untouched: no key, no route, or a method that never takes one.
    Passed,
    /// It ran now, and its outcome is stored.
    Fresh,
    /// It ran before; the stored outcome was given.
    Replayed,
    /// It ran now and nothing happened; the key is free again.
    Released,
    /// It ran now without protection: the store was away.
    Unprotected,
    /// The route's authorisation check said no.
    AuthRefused,
    /// A problem of this kind was answered.
    Refused(problem::Kind),
    /// The client went away before the decision. What runs goes on.
    Abandoned,
}

impl Kind {
    /// A word for metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Fresh => "fresh",
            Self::Replayed => "replayed",
            Self::Released => "released",
            Self::Unprotected => "unprotected",
            Self::AuthRefused => "auth-refused",
            Self::Refused(problem) => problem.slug(),
            Self::Abandoned => "abandoned",
        }
    }
}

impl Decision<'_> {
    /// The event of this decision. The tenant is not in it.
    pub(crate) fn log(&self) {
        let Self { route, kind, key, status, latency } = self;
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let (route, key) = (route.unwrap_or("-"), key.map_or("-", Key::as_str));
        match kind {
            Kind::Passed => tracing::debug!(target: "semel::decision", decision = kind.label(), route),
            // Duplicates in flight are what Semel is for: no reason to wake anybody.
            Kind::Fresh | Kind::Replayed | Kind::Released | Kind::Refused(problem::Kind::InFlight) => {
                tracing::info!(target: "semel::decision", decision = kind.label(), route, key, status, micros);
            }
            _ => {
                tracing::warn!(target: "semel::decision", decision = kind.label(), route, key, status, micros)
            }
        }
    }
}
