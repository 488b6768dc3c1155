//! What judges have in common.

use super::Judged;
use super::cause::{self, Cause};
use crate::verify::profile::Profile;
use crate::verify::runner::{AGAIN, UNCOUNTED};
use crate::verify::safety::{HIDDEN, is_secret};
use crate::verify::scenario::{Answer, Reply, Seen};
use crate::verify::scorecard::Verdict;

/// Looks at what was seen, under a contract.
#[derive(Clone)]
pub(super) struct Eye {
    pub(super) profile: Profile,
    /// Why effects are not counted in this run.
    pub(super) uncounted: Option<String>,
    /// Headers not compared, because another check does.
    pub(super) overlooked: Vec<String>,
    /// What every retry is answered instead of the answer, which another check tells.
    pub(super) refused: Option<u16>,
    /// The service answers some plain requests with errors of its own.
    pub(super) troubled: bool,
}

pub(super) fn fail(cause: Cause, what: impl Into<String>) -> Verdict {
    Verdict::Fail { cause: cause.word, what: what.into(), advice: cause.advice }
}

pub(super) fn not_shown(why: impl Into<String>) -> Verdict {
    Verdict::NotShown(why.into())
}

pub(super) fn is_success(reply: &Reply) -> bool {
    (200..300).contains(&reply.status)
}

/// The last answer of a call that was repeated.
pub(super) fn last<'s>(seen: &'s Seen, name: &str) -> Option<&'s Answer> {
    let is = |there: &str| {
        let rest = there.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(AGAIN))
    };
    seen.answers.iter().rev().find(|answer| is(&answer.name))
}

impl Eye {
    /// One that overlooks nothing.
    pub(super) fn strict(&self) -> Self {
        Self { overlooked: Vec::new(), refused: None, ..self.clone() }
    }

    /// The answer everything else is held against.
    pub(super) fn first<'s>(&self, seen: &'s Seen, name: &str) -> Result<&'s Reply, Verdict> {
        let reply = self.heard(seen, name)?;
        if !is_success(reply) {
            return Err(not_shown(format!("`{name}` was answered {}: nothing to replay", reply.status)));
        }
        Ok(reply)
    }

    /// An answer of any kind. A failure of the network is neither right nor wrong.
    pub(super) fn heard<'s>(&self, seen: &'s Seen, name: &str) -> Result<&'s Reply, Verdict> {
        match last(seen, name).map(|answer| &answer.reply) {
            // Too many requests is no mistake of idempotency, whichever check it meets.
            Some(Ok(Reply { status: 429, .. })) => {
                Err(not_shown(format!("`{name}` was answered 429: too many requests for this service")))
            }
            Some(Ok(reply)) => Ok(reply),
            Some(Err(why)) => Err(not_shown(format!("`{name}` got no answer: {why}"))),
            None => Err(not_shown(format!("`{name}` was not sent"))),
        }
    }

    /// Whether an error of the service's own is among these answers, as among its plain ones. Of many
    /// operations, those that met one show nothing; their effects count all the same.
    pub(super) fn met_trouble(&self, seen: &Seen, names: &[&str]) -> bool {
        let failed = |name: &&str| {
            let replies = seen.answers.iter().filter(|answer| answer.name.starts_with(*name));
            replies.filter_map(|answer| answer.reply.as_ref().ok()).any(|reply| reply.status >= 500)
        };
        self.troubled && names.iter().any(failed)
    }

    pub(super) fn effects(&self, seen: &Seen, at: usize) -> Option<u64> {
        match self.uncounted {
            Some(_) => None,
            None => seen.effects.get(at).copied().flatten(),
        }
    }

    /// Fails on more effects than this. `what` is followed by the number.
    pub(super) fn at_most(&self, seen: &Seen, at: usize, most: u64, cause: Cause, what: &str) -> Judged {
        match self.effects(seen, at) {
            Some(effects) if effects > most => {
                Err(fail(cause, format!("{what}: {effects} effects instead of {most}")))
            }
            _ => Ok(()),
        }
    }

    /// Fails on fewer.
    pub(super) fn at_least(&self, seen: &Seen, at: usize, least: u64, what: &str) -> Judged {
        match self.effects(seen, at) {
            Some(effects) if effects < least => {
                Err(fail(cause::EFFECT_LOST, format!("{what}: {effects} effects instead of {least}")))
            }
            _ => Ok(()),
        }
    }

    /// Without numbers nothing was shown.
    pub(super) fn counted(&self, seen: &Seen) -> Judged {
        if let Some(why) = &self.uncounted {
            return Err(not_shown(why.clone()));
        }
        if seen.effects.iter().all(Option::is_some) {
            return Ok(());
        }
        let why = seen.events.iter().find_map(|(what, ..)| what.strip_prefix(UNCOUNTED));
        Err(not_shown(format!("effects could not be counted: {}", why.unwrap_or("the counter failed"))))
    }

    /// That a retry did not run is shown by its mark, or else by the count.
    pub(super) fn shown(&self, seen: &Seen, retry: &Reply) -> Judged {
        match self.is_marked(retry) {
            Some(true) => Ok(()),
            _ => self.counted(seen),
        }
    }

    /// One effect, no more and no less.
    pub(super) fn once(&self, seen: &Seen, at: usize, cause: Cause, what: &str) -> Judged {
        self.at_most(seen, at, 1, cause, what)?;
        self.at_least(seen, at, 1, what)
    }

    /// Whether it carries the marker of replays. `None` if there is none to carry.
    pub(super) fn is_marked(&self, reply: &Reply) -> Option<bool> {
        let (name, value) = self.profile.replay_marker.as_ref()?;
        Some(reply.header(name).is_some_and(|there| there.eq_ignore_ascii_case(value)))
    }

    /// Shows nothing if this is what the plainest retry is answered, too.
    pub(super) fn unlike_any_retry(&self, reply: &Reply) -> Judged {
        match self.refused == Some(reply.status) {
            true => Err(not_shown(format!("every retry is answered {}: see `replay`", reply.status))),
            false => Ok(()),
        }
    }

    /// Whether a replay is the first answer again.
    pub(super) fn same(&self, first: &Reply, replay: &Reply, name: &str) -> Judged {
        let altered = |what: String| Err(fail(cause::REPLAY_ALTERED, what));
        if first.status != replay.status {
            self.unlike_any_retry(replay)?;
            return altered(format!("the first answer was {}, `{name}` got {}", first.status, replay.status));
        }
        if first.body != replay.body {
            let (had, has) = (first.body.len(), replay.body.len());
            return altered(match had == has {
                true => format!("`{name}` got another body than the first, of the same {had} bytes"),
                false => format!("`{name}` got another body than the first: {has} bytes instead of {had}"),
            });
        }
        if let Some(header) = self.altered(first, replay).first() {
            let (had, has) = (values(first, header), values(replay, header));
            let text = |values: &[&[u8]]| match values {
                [] => "nothing".to_owned(),
                _ => {
                    values.iter().map(|value| value.escape_ascii().to_string()).collect::<Vec<_>>().join(", ")
                }
            };
            let (had, has) = match is_secret(header) {
                true => (HIDDEN.to_owned(), HIDDEN.to_owned()),
                false => (text(&had), text(&has)),
            };
            return altered(format!("`{name}` has the header {header}: {has}; the first had {had}"));
        }
        Ok(())
    }

    /// Headers that should be the same and are not.
    pub(super) fn altered(&self, first: &Reply, replay: &Reply) -> Vec<String> {
        let mut names = self.header_names(first, replay);
        names.retain(|name| values(first, name) != values(replay, name));
        names
    }

    /// Headers that must be the same in both.
    fn header_names(&self, first: &Reply, replay: &Reply) -> Vec<String> {
        let marker = self.profile.replay_marker.as_ref().map(|(name, _)| name.to_ascii_lowercase());
        let headers = first.headers.iter().chain(&replay.headers);
        let mut names: Vec<String> = headers.map(|(name, _)| name.to_ascii_lowercase()).collect();
        names.sort();
        names.dedup();
        // Where no marker is promised, one may be there all the same.
        let is_a_marker = |name: &str| {
            marker.is_none()
                && (name.contains("replay") || name.contains("idempot"))
                && values(first, name).is_empty()
        };
        names.retain(|name| {
            let listed = |list: &[String]| list.iter().any(|there| there.eq_ignore_ascii_case(name));
            !self.profile.may_vary(name)
                && marker.as_ref() != Some(name)
                && !is_a_marker(name)
                && !listed(&self.profile.headers_dropped)
                && !self.overlooked.contains(name)
        });
        names
    }

    /// Another request under a used key: refused as promised, and never answered as if it were the first.
    pub(super) fn mismatch(&self, reply: &Reply, cause: Cause, what: &str) -> Judged {
        if is_success(reply) {
            return Err(fail(cause, format!("{what} was answered {}", reply.status)));
        }
        self.status(reply, &self.profile.mismatch, what)
    }

    /// One of these statuses.
    pub(super) fn status(&self, reply: &Reply, promised: &[u16], what: &str) -> Judged {
        if promised.contains(&reply.status) {
            return Ok(());
        }
        let promised: Vec<String> = promised.iter().map(u16::to_string).collect();
        let promised = promised.join(" or ");
        Err(fail(cause::WRONG_STATUS, format!("{what} was answered {}, not {promised}", reply.status)))
    }

    /// What patience led to: the answer, or an honest word that there is none.
    pub(super) fn ended_well<'s>(
        &self,
        seen: &'s Seen,
        name: &str,
        refused: Cause,
    ) -> Result<&'s Reply, Verdict> {
        let reply = self.heard(seen, name)?;
        if is_success(reply) {
            return Ok(reply);
        }
        self.unlike_any_retry(reply)?;
        let status = reply.status;
        match self.profile.in_flight.contains(&status) {
            true => Err(fail(cause::STUCK, format!("`{name}` is still answered {status}"))),
            false => Err(fail(refused, format!("`{name}` was answered {status}"))),
        }
    }
}

fn values<'r>(reply: &'r Reply, name: &str) -> Vec<&'r [u8]> {
    let found = reply.headers.iter().filter(|(there, _)| there.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_slice()).collect()
}
