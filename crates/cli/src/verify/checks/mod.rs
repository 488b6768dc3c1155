//! What is checked, a file per family.
//!
//! A check plans a scenario and leaves a judge behind, which looks at what was seen and says what is wrong.
//! Plans do nothing and judges ask nobody, so both can be read, printed and tested. A judge never claims what was not
//! seen: without an answer, or without a count, it says that nothing was shown, and what would show it.

mod cause;
mod crash;
mod cut;
mod flight;
mod judge;
mod key;
mod link;
mod number;
mod other;
mod race;
mod refusal;
mod replay;
mod scope;
mod store;
#[cfg(test)]
mod tests;
mod time;

use std::time::Duration;

use super::json::Json;
use super::runner::plain;
use super::scenario::{Call, Count, Scenario, Seen, Step};
use super::scorecard::{About, Verdict};
use super::setup::Setup;
use super::template::{Request, Template};
use judge::Eye;

/// One line of the scorecard, before it is played.
pub(super) struct Check {
    pub(super) about: About,
    /// How wide, how often: played in this order until one fails.
    pub(super) sizes: fn(&Setup) -> Vec<usize>,
    /// Below this a failing scenario is not made smaller.
    pub(super) smallest: usize,
    /// The error says why it cannot be shown.
    pub(super) plan: fn(&mut Make<'_>) -> Result<Plan, String>,
}

/// What will be played, and who looks at it.
pub(super) struct Plan {
    pub(super) scenario: Scenario,
    pub(super) insist: Option<Insist>,
    pub(super) judge: Judge,
}

pub(super) type Judge = Box<dyn Fn(&Seen) -> Judged + Send>;
/// Right, or what is to be said instead.
pub(super) type Judged = Result<(), Verdict>;

/// Calls that come again after all else until each has a final answer, as a patient client's would.
pub(super) struct Insist {
    pub(super) calls: Vec<Call>,
    /// Statuses that ask to come back.
    pub(super) passing: Vec<u16>,
    pub(super) every: Duration,
    pub(super) at_most: Duration,
}

/// Names of plain requests.
pub(super) const FIRST: &str = "first";
const RETRY: &str = "retry";

/// What is known of the service from a few plain requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Base {
    /// The shortest seen.
    pub(super) latency: Duration,
    pub(super) body_bytes: usize,
    /// Why effects could not be counted.
    pub(super) problem: Option<String>,
    /// The request was answered well and the counter saw nothing.
    pub(super) uncounted: bool,
    /// Headers that a plain retry loses or changes, in lower case.
    pub(super) altered: Vec<String>,
    /// What a plain retry is answered, if that is no success.
    pub(super) refused: Option<u16>,
    /// Some of the plain requests were answered with an error of the service's own.
    pub(super) troubled: bool,
}

/// A check that is played once.
const fn check(
    id: &'static str,
    family: &'static str,
    rules: &'static [&'static str],
    must: &'static str,
    plan: fn(&mut Make<'_>) -> Result<Plan, String>,
) -> Check {
    Check { about: About { id, family, rules, must }, sizes: |_| vec![1], smallest: 1, plan }
}

/// All of them. What is harmless comes first, what kills comes last.
pub(super) fn all() -> Vec<Check> {
    let families = [
        replay::checks(),
        other::checks(),
        race::checks(),
        flight::checks(),
        cut::checks(),
        link::checks(),
        key::checks(),
        scope::checks(),
        number::checks(),
        refusal::checks(),
        time::checks(),
        store::checks(),
        crash::checks(),
    ];
    families.into_iter().flatten().collect()
}

/// Makes the requests of one scenario.
pub(super) struct Make<'a> {
    pub(super) setup: &'a Setup,
    pub(super) base: &'a Base,
    pub(super) size: usize,
    /// Decides moments: the same for the same seed.
    moments: Random,
    /// Decides tags and keys: never the same in two runs.
    names: Random,
}

impl<'a> Make<'a> {
    pub(super) fn new(setup: &'a Setup, base: &'a Base, salt: u64, id: &str, nth: u64, size: usize) -> Self {
        let mut seed = Random(setup.seed);
        for byte in id.bytes() {
            seed = Random(seed.next() ^ u64::from(byte));
        }
        let moments = Random(seed.next() ^ nth);
        let names = Random(Random(moments.0 ^ salt).next());
        Self { setup, base, size, moments, names }
    }

    /// Names an operation in the place where effects are counted.
    pub(super) fn tag(&mut self) -> String {
        format!("t-{:x}-{:012x}", self.setup.seed, self.names.next() >> 16)
    }

    /// A new key. It looks like a UUID, since some services take nothing else.
    pub(super) fn key(&mut self) -> String {
        let (high, low) = (self.names.next(), self.names.next());
        let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0xfff);
        let (d, e) = (0x8000 | ((low >> 48) & 0x3fff), low & 0xffff_ffff_ffff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{d:04x}-{e:012x}")
    }

    /// A part of `whole`, up to all of it.
    pub(super) fn part_of(&mut self, whole: Duration) -> Duration {
        whole.mul_f64((self.moments.next() % 1001) as f64 / 1000.0)
    }

    /// The request under test.
    pub(super) fn request(&self, tag: &str, key: &str) -> Request {
        self.keyed(&self.setup.template, tag, key)
    }

    pub(super) fn keyed(&self, template: &Template, tag: &str, key: &str) -> Request {
        template.tagged(tag).with(&self.setup.profile.key_header, key)
    }

    /// Requests with nothing odd about them, one after the other, and a retry of the last.
    pub(super) fn plain(&mut self) -> Scenario {
        let mut scenario = Scenario::default();
        for nth in 1..=self.size {
            let (tag, key) = (self.tag(), self.key());
            let request = self.request(&tag, &key);
            scenario.steps.push(Step::Send(vec![plain(FIRST, request.clone())]));
            if nth == self.size {
                scenario.steps.push(Step::Send(vec![plain(RETRY, request)]));
            }
            scenario.counts.push(exactly(tag, 1));
        }
        scenario
    }

    /// What a plain retry makes of an answer: headers it alters, and its status if it is no success.
    pub(super) fn retried(&self, seen: &Seen) -> (Vec<String>, Option<u16>) {
        let heard = |name| judge::last(seen, name).and_then(|answer| answer.reply.as_ref().ok());
        match (heard(FIRST), heard(RETRY)) {
            // An error of the service's own has replays of its own.
            (Some(first), _) if !judge::is_success(first) => (Vec::new(), None),
            (Some(_), Some(retry)) if !judge::is_success(retry) => (Vec::new(), Some(retry.status)),
            (Some(first), Some(retry)) => (self.eye().strict().altered(first, retry), None),
            _ => (Vec::new(), None),
        }
    }

    /// Its body as JSON.
    pub(super) fn json(&self, request: &Request) -> Result<Json, String> {
        Json::read(&request.body).ok_or_else(|| "the request's body is not JSON".to_owned())
    }

    /// The same with another body: one value changed, or one byte more.
    pub(super) fn other(&self, request: &Request, tag: &str) -> Result<Request, String> {
        let body = match Json::read(&request.body) {
            Some(json) => json
                .changed(tag)
                .ok_or("the request's body has no number or string that could be another one")?
                .into_bytes(),
            None if request.body.is_empty() => return Err("the request has no body to change".into()),
            None => [&request.body[..], b"x"].concat(),
        };
        Ok(Request { body: body.into(), ..request.clone() })
    }

    /// Who judges. What every retry alters is one flaw, and `replay` tells it; a race is not to blame.
    fn eye(&self) -> Eye {
        let (profile, uncounted) = (self.setup.profile.clone(), self.uncounted());
        let Base { altered, refused, troubled, .. } = self.base;
        Eye { profile, uncounted, overlooked: altered.clone(), refused: *refused, troubled: *troubled }
    }

    fn uncounted(&self) -> Option<String> {
        if self.setup.effects.is_none() {
            return Some("give --count-url or --count-command to count effects".into());
        }
        if !self.setup.template.has_tag() {
            return Some("put {tag} into the request, so that its effects can be counted".into());
        }
        if let Some(problem) = &self.base.problem {
            return Some(format!("effects cannot be counted: {problem}"));
        }
        let unseen = "the plain request was answered well and the counter found no effect of it: \
                      look at how effects are counted";
        self.base.uncounted.then(|| unseen.to_owned())
    }

    /// These again until none is told to come back.
    pub(super) fn insist(&self, calls: Vec<Call>) -> Insist {
        let mut passing = self.setup.profile.in_flight.clone();
        // Too much at once is no mistake, as long as it passes.
        passing.extend([429, 503]);
        passing.retain(|status| self.base.refused != Some(*status));
        Insist { calls, passing, every: Duration::from_millis(20), at_most: self.setup.answer_max }
    }

    /// The same, for a service that was away.
    pub(super) fn insist_long(&self, calls: Vec<Call>) -> Insist {
        let profile = &self.setup.profile;
        let lists = [&profile.in_flight, &profile.unknown, &profile.store_away];
        let mut passing: Vec<u16> = lists.into_iter().flatten().copied().collect();
        passing.extend([423, 425, 429, 502, 503, 504]);
        passing.retain(|status| self.base.refused != Some(*status));
        let every = Duration::from_millis(250);
        Insist { calls, passing, every, at_most: self.setup.answer_max + Duration::from_secs(2) }
    }
}

/// Whether a cause says what a service makes of its own errors.
pub(super) fn is_about_errors(word: &str) -> bool {
    [cause::ERROR_NOT_KEPT, cause::ERROR_RERUNS, cause::TIME_OUT_STORED]
        .iter()
        .any(|cause| cause.word == word)
}

/// Whether a cause may rest on an effect that was not counted.
pub(super) fn is_about_missing(word: &str) -> bool {
    let causes = [
        cause::EFFECT_LOST,
        cause::TENANT_LEAK,
        cause::SHARED_SCOPE,
        cause::KEYS_COLLAPSED,
        cause::NEVER_EXPIRES,
    ];
    causes.iter().any(|cause| cause.word == word)
}

/// Whether a check wants to see errors of the service's own.
pub(super) fn asks_for_errors(id: &str) -> bool {
    ["replay-error", "error-effect", "late-effect"].contains(&id)
}

/// The verdict about effects that nobody saw at first.
pub(super) fn came_later(what: String) -> Verdict {
    judge::fail(cause::CAME_LATER, what)
}

/// A tag that must have so many effects.
pub(super) fn exactly(tag: String, effects: u64) -> Count {
    Count { tag, allowed: effects..=effects }
}

/// A tag that may have one effect.
pub(super) fn at_most_one(tag: String) -> Count {
    Count { tag, allowed: 0..=1 }
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
