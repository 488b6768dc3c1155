//! Everything a run needs, however it was given.

use std::sync::Arc;
use std::time::Duration;

use semel::runtime::Boxed;

use super::profile::Profile;
use super::scenario::Hook;
use super::scorecard::{About, Finding};
use super::template::Template;

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) template: Template,
    pub(crate) profile: Profile,
    /// Headers that make a request another tenant's.
    pub(crate) other_tenant: Vec<(String, String)>,
    /// Another route of the service, with a body it takes.
    pub(crate) other_route: Option<Template>,
    /// Another method that the same path takes.
    pub(crate) other_method: Option<String>,
    /// A request that the service refuses after its key was accepted: its error must be replayed too.
    pub(crate) failing: Option<Template>,
    /// A request that takes longer than the service or its gateway waits: its effect comes late.
    pub(crate) slow: Option<Template>,
    /// A request whose answer is large.
    pub(crate) large: Option<Template>,
    pub(crate) effects: Option<Arc<dyn Effects>>,
    pub(crate) hooks: Arc<dyn Hooks>,
    /// Decides tags, keys, orders and moments. The same seed plays the same scenarios.
    pub(crate) seed: u64,
    /// The widest race.
    pub(crate) race_max: usize,
    /// After this a key is forgotten, if the user wants to wait for it.
    pub(crate) expiry: Option<Duration>,
    /// How long one answer is waited for.
    pub(crate) answer_max: Duration,
    pub(crate) requests_max: u64,
    pub(crate) time_max: Duration,
    /// Only these checks, by id or family; all if empty.
    pub(crate) only: Vec<String>,
    pub(crate) skip: Vec<String>,
}

/// Counts what happened, apart from what the service says.
pub(crate) trait Effects: Send + Sync {
    /// How many effects carry this tag by now. The error is a sentence.
    fn count(&self, tag: &str) -> Boxed<Result<u64, String>>;
    /// A shell command that prints the number, with `$tag` in it; for scripts.
    fn shell(&self) -> Option<String>;
}

/// The user's commands.
pub(crate) trait Hooks: Send + Sync {
    fn has(&self, hook: Hook) -> bool;
    /// Ends when the command has, and after a start when the service answers again. The error is a sentence.
    fn run(&self, hook: Hook) -> Boxed<Result<(), String>>;
    /// The command itself, for scripts.
    fn shell(&self, hook: Hook) -> Option<String>;
}

/// Hears how a run goes on.
pub(crate) trait Watch: Send + Sync {
    fn began(&self, about: &About, at: usize, of: usize);
    fn ended(&self, finding: &Finding);
}
