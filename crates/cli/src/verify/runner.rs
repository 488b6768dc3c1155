//! Plays scenarios: sends, waits, runs the user's commands, and counts what happened once all is quiet.
//!
//! It decides nothing about right and wrong; that is for the checks. It keeps to the budget it was given.

use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::task::JoinHandle;

use super::checks::{self, Base, Check, Insist, Plan};
use super::safety::url_shown;
use super::scenario::{Answer, Call, Count, Hook, How, Scenario, Seen, Step};
use super::scorecard::{Finding, Scorecard, Verdict};
use super::setup::{Effects, Setup, Watch};
use super::shrink;
use super::template::Template;
use super::wire::{Ended, Line, Wire};

/// Plain requests that come first, to know the service.
const PLAIN: usize = 3;
/// How often a check is played on a service that fails now and then.
const TRIES: u64 = 6;
/// How often on one that answered its plain requests well, when an error strays in.
const STRAY_TRIES: u64 = 4;
/// What somebody on the way answers for a service that he does not reach.
pub(super) const AWAY: [u16; 3] = [502, 503, 504];
/// Between the numbers of such plays, so that no two have the same moments.
const APART: u64 = 1000;
/// A number of effects is believed when it has not changed for so long.
const STILL: Duration = Duration::from_millis(250);
const COUNT_EVERY: Duration = Duration::from_millis(80);
const COUNTS_AT_ONCE: usize = 16;
/// How long an effect that must be there is waited for.
const COUNT_MAX: Duration = Duration::from_secs(3);
/// How long it is waited for once more, when all is over, before it is called lost.
const LAG_MAX: Duration = Duration::from_secs(5);
/// What an event begins with that says why effects could not be counted.
pub(super) const UNCOUNTED: &str = "cannot count: ";

/// What is said of a service that outlived the command to kill it.
const SPARED: &str = "the kill hook did not end the service: a connection opened before it is still open, and \
                      the service never stopped answering";
/// The tag of a request that nobody works on.
const NOBODY: &str = "t-0";

/// Between the name of a call that is repeated and the number of the repetition.
pub(super) const AGAIN: &str = " again ";

/// Plays all checks that were asked for, and says what was found.
///
/// # Cancellation
/// Requests that are on their way are given up; the user's commands are not undone.
pub(crate) async fn verify(setup: &Setup, watch: &dyn Watch) -> Scorecard {
    let began = SystemTime::now();
    let mut runner = Runner::new(setup);
    let wanted: Vec<Check> = checks::all().into_iter().filter(|check| is_wanted(setup, check)).collect();
    let base = runner.base().await;
    let mut findings = Vec::with_capacity(wanted.len());
    for (at, check) in wanted.iter().enumerate() {
        watch.began(&check.about, at, wanted.len());
        let since = Instant::now();
        let (verdict, scenario, seen) = match &base {
            Ok(base) => check_one(&mut runner, check, base).await,
            Err(why) => (Verdict::NotShown(why.clone()), Scenario::default(), Seen::default()),
        };
        let finding = Finding { about: check.about, verdict, took: since.elapsed(), scenario, seen };
        watch.ended(&finding);
        findings.push(finding);
    }
    runner.look_again(&mut findings).await;
    let Template { method, url, .. } = &setup.template;
    let place = url.split(['?', '#']).next().unwrap_or_default();
    Scorecard {
        target: format!("{method} {}", url_shown(place)),
        profile: setup.profile.name.clone(),
        seed: setup.seed,
        started: began,
        took: runner.since.elapsed(),
        requests: runner.requests,
        findings,
    }
}

fn is_wanted(setup: &Setup, check: &Check) -> bool {
    let named = |name: &String| {
        name.eq_ignore_ascii_case(check.about.id) || name.eq_ignore_ascii_case(check.about.family)
    };
    (setup.only.is_empty() || setup.only.iter().any(named)) && !setup.skip.iter().any(named)
}

/// From the smallest size to the largest, until one fails; then what makes it fail is made smaller.
async fn check_one(runner: &mut Runner<'_>, check: &Check, base: &Base) -> (Verdict, Scenario, Seen) {
    let mut best: Option<(Verdict, Scenario, Seen)> = None;
    for (nth, size) in (check.sizes)(runner.setup).into_iter().enumerate() {
        let found = match tried(runner, check, base, size, nth as u64).await {
            Ok(found) => found,
            Err(why) => return (Verdict::NotShown(why), Scenario::default(), Seen::default()),
        };
        if let Verdict::Fail { .. } = found.0 {
            return shrink::smallest(runner, check, base, size, nth as u64, found).await;
        }
        // One size that shows nothing is not covered up by another that passes.
        if !matches!(&best, Some((Verdict::NotShown(_), ..))) {
            best = Some(found);
        }
    }
    best.unwrap_or_else(|| {
        let why = "nothing to play at this size".to_owned();
        (Verdict::NotShown(why), Scenario::default(), Seen::default())
    })
}

/// Plays it again, with other keys, when an error of the service's own was in the way.
async fn tried(
    runner: &mut Runner<'_>,
    check: &Check,
    base: &Base,
    size: usize,
    nth: u64,
) -> Result<(Verdict, Scenario, Seen), String> {
    let mut found = runner.try_out(check, base, size, nth).await?;
    let tries = if base.troubled { TRIES } else { STRAY_TRIES };
    for again in 1..tries {
        if !is_in_the_way(&found) || !(base.troubled || is_stray(check, &found)) {
            return Ok(found);
        }
        found = runner.try_out(check, base, size, nth + again * APART).await?;
    }
    if base.troubled && is_in_the_way(&found) {
        found.0 = Verdict::NotShown("the service answered with an error of its own each time".into());
    }
    Ok(found)
}

/// Whether the error came from somebody on the way, and nobody had troubled the service: all was asked one by one,
/// whole, by a patient client, for something that is well answered. What a race, a cut or a crash leads to is never
/// a stray error, and neither is one that comes each time.
fn is_stray(check: &Check, (_, scenario, seen): &(Verdict, Scenario, Seen)) -> bool {
    let is_calm = |step: &Step| match step {
        Step::Send(calls) => calls.len() == 1 && calls[0].how == How::Plain,
        Step::Wait(_) => true,
        Step::Start(_) | Step::Join | Step::Hook(_) => false,
    };
    let is_away = |answer: &Answer| answer.reply.as_ref().is_ok_and(|reply| AWAY.contains(&reply.status));
    !checks::asks_for_errors(check.about.id)
        && scenario.steps.iter().all(is_calm)
        && seen.answers.iter().any(is_away)
}

/// An error explains every odd answer, but neither an effect too many nor what was made of the error.
fn is_in_the_way((verdict, scenario, seen): &(Verdict, Scenario, Seen)) -> bool {
    if matches!(verdict, Verdict::Fail { cause, .. } if checks::is_about_errors(cause)) {
        return false;
    }
    let failed = |answer: &Answer| answer.reply.as_ref().is_ok_and(|reply| reply.status >= 500);
    let mut counts = scenario.counts.iter().zip(&seen.effects);
    let too_many =
        counts.any(|(count, effects)| effects.is_some_and(|effects| effects > *count.allowed.end()));
    *verdict != Verdict::Pass && !too_many && seen.answers.iter().any(failed)
}

/// What plays scenarios, within the budget.
pub(super) struct Runner<'a> {
    pub(super) setup: &'a Setup,
    /// Different in every run, so that two runs on one store do not meet.
    salt: u64,
    wire: Wire,
    since: Instant,
    requests: u64,
}

impl<'a> Runner<'a> {
    fn new(setup: &'a Setup) -> Self {
        let salt = semel::Nonce::random().as_bytes()[..8].try_into().map_or(0, u64::from_le_bytes);
        let wire = Wire::new(setup.answer_max);
        Self { setup, salt, wire, since: Instant::now(), requests: 0 }
    }

    /// How the service answers when nothing is wrong.
    async fn base(&mut self) -> Result<Base, String> {
        let nothing = Base::default();
        let mut make = checks::Make::new(self.setup, &nothing, self.salt, "base", 0, PLAIN);
        let mut scenario = make.plain();
        let seen = self.play(&mut scenario, None).await?;
        let (altered, refused) = make.retried(&seen);
        let mut base = Base {
            latency: self.setup.answer_max,
            problem: seen
                .events
                .iter()
                .find_map(|(what, ..)| what.strip_prefix(UNCOUNTED))
                .map(str::to_owned),
            uncounted: seen.effects.contains(&Some(0)),
            altered,
            refused,
            body_bytes: 0,
            troubled: false,
        };
        let mut failed = None;
        for answer in seen.answers.iter().filter(|answer| answer.name == checks::FIRST) {
            match &answer.reply {
                Err(why) => return Err(format!("the plain request was not answered: {why}")),
                Ok(reply) if !(200..300).contains(&reply.status) => {
                    base.troubled |= reply.status >= 500;
                    failed = Some(reply.status);
                }
                Ok(reply) => {
                    base.latency = base.latency.min(answer.ended.saturating_sub(answer.sent));
                    base.body_bytes = reply.body.len();
                }
            }
        }
        // One that fails now and then can be checked between its failures.
        match failed {
            Some(status) if !base.troubled || base.body_bytes == 0 => {
                Err(format!("the plain request was answered {status}: nothing to replay"))
            }
            _ => Ok(base),
        }
    }

    /// Plans, plays and judges once. The error is why it could not be played to its end.
    pub(super) async fn try_out(
        &mut self,
        check: &Check,
        base: &Base,
        size: usize,
        nth: u64,
    ) -> Result<(Verdict, Scenario, Seen), String> {
        let mut make = checks::Make::new(self.setup, base, self.salt, check.about.id, nth, size);
        let Plan { mut scenario, insist, judge } = (check.plan)(&mut make)?;
        let seen = self.play(&mut scenario, insist).await?;
        let verdict = match judge(&seen).err().unwrap_or(Verdict::Pass) {
            // What went wrong went wrong, whatever was killed; what went well was not put to the test.
            verdict @ Verdict::Fail { .. } => verdict,
            _ if seen.spared => Verdict::NotShown(SPARED.into()),
            verdict => verdict,
        };
        Ok((verdict, scenario, seen))
    }

    /// `Err` when the budget does not allow so many more requests.
    fn afford(&self, more: usize, waits: Duration) -> Result<(), String> {
        let Setup { requests_max, time_max, .. } = self.setup;
        if self.requests + more as u64 > *requests_max {
            return Err(format!("the budget of {requests_max} requests is spent"));
        }
        if self.since.elapsed() + waits >= *time_max {
            return Err(format!("the budget of {time_max:?} is spent"));
        }
        Ok(())
    }

    /// Plays a scenario, repeats what is insisted on (which becomes part of it), and counts.
    async fn play(&mut self, scenario: &mut Scenario, insist: Option<Insist>) -> Result<Seen, String> {
        let of = |step: &Step| match step {
            Step::Send(calls) | Step::Start(calls) => calls.len(),
            _ => 0,
        };
        let waits = scenario.steps.iter().map(|step| match step {
            Step::Wait(pause) => *pause,
            _ => Duration::ZERO,
        });
        self.afford(scenario.steps.iter().map(of).sum(), waits.sum())?;
        self.wire.begin();
        let mut play = Play::default();
        for step in &scenario.steps {
            self.step(step, &mut play).await?;
        }
        self.join(&mut play).await;
        if let Some(insist) = insist {
            self.insist(insist, scenario, &mut play).await?;
        }
        let mut seen = Seen { events: play.events, spared: play.spared, ..Seen::default() };
        let answers = play.answers.into_iter().flatten();
        seen.answers = answers.collect();
        self.count(&scenario.counts, &mut seen).await;
        Ok(seen)
    }

    async fn step(&mut self, step: &Step, play: &mut Play) -> Result<(), String> {
        let from = self.wire.now();
        match step {
            Step::Send(calls) => {
                let (first, lines) = self.open(calls, play).await;
                let ended = join_all(lines.into_iter().map(Line::go)).await;
                play.keep(first, ended.into_iter().flatten());
            }
            Step::Start(calls) => {
                let (first, lines) = self.open(calls, play).await;
                let running = lines.into_iter().map(|line| tokio::spawn(line.go()));
                play.running.extend(running.map(|task| (first, task)));
                // So that they are on their way before what comes next.
                tokio::task::yield_now().await;
            }
            Step::Join => self.join(play).await,
            Step::Wait(pause) => {
                tokio::time::sleep(*pause).await;
                play.events.push((format!("wait {pause:?}"), from, self.wire.now()));
            }
            Step::Hook(hook) => {
                let url = &self.setup.template.tagged(NOBODY).url;
                let held = if *hook == Hook::Kill { self.wire.hold(url).await } else { None };
                let done = self.setup.hooks.run(*hook).await;
                play.events.push((name(*hook).to_owned(), from, self.wire.now()));
                done.map_err(|why| format!("the command to {} failed: {why}", name(*hook)))?;
                if let Some(held) = held {
                    self.requests += 1;
                    play.spared |= !self.wire.has_ended(held).await;
                }
            }
        }
        Ok(())
    }

    async fn open(&mut self, calls: &[Call], play: &mut Play) -> (usize, Vec<Line>) {
        self.requests += calls.len() as u64;
        let first = play.names.len();
        play.names.extend(calls.iter().map(|call| call.name.clone()));
        play.answers.resize(play.names.len(), None);
        (first, self.wire.open(calls).await)
    }

    async fn join(&mut self, play: &mut Play) {
        for (first, task) in std::mem::take(&mut play.running) {
            // It ends by its own limit.
            if let Ok(ended) = task.await {
                play.keep(first, ended);
            }
        }
    }

    /// Sends again what has no final answer yet.
    async fn insist(
        &mut self,
        insist: Insist,
        scenario: &mut Scenario,
        play: &mut Play,
    ) -> Result<(), String> {
        let until = self.wire.now() + insist.at_most;
        let mut open = insist.calls;
        let mut pause = insist.every;
        for round in 1.. {
            // Who ran out of patience because of the budget has not seen how it ends.
            self.afford(open.len(), pause)?;
            let named = |call: &Call| match round {
                1 => call.clone(),
                _ => Call { name: format!("{}{AGAIN}{round}", call.name), ..call.clone() },
            };
            let calls: Vec<Call> = open.iter().map(named).collect();
            let steps = [Step::Wait(pause), Step::Send(calls)];
            let first = play.names.len();
            for step in steps {
                self.step(&step, play).await?;
                scenario.steps.push(step);
            }
            let answers = &play.answers[first..];
            let is_final = |at: usize| {
                let reply = answers[at].as_ref().and_then(|answer| answer.reply.as_ref().ok());
                reply.is_some_and(|reply| !insist.passing.contains(&reply.status))
            };
            let rest = (0..open.len()).filter(|at| !is_final(*at)).map(|at| open[at].clone());
            open = rest.collect();
            if open.is_empty() || self.wire.now() >= until {
                break;
            }
            // Not every 50 ms for half a minute.
            pause = (pause * 2).min(Duration::from_secs(2));
        }
        Ok(())
    }

    /// Counts once more when all is over: an effect may come long after its answer, from a queue.
    async fn look_again(&self, findings: &mut [Finding]) {
        let Some(effects) = self.setup.effects.as_deref().filter(|_| self.setup.template.has_tag()) else {
            return;
        };
        for finding in findings.iter_mut().filter(|finding| finding.verdict == Verdict::Pass) {
            let counts = finding.scenario.counts.iter();
            let counting = counts.map(|count| effects.count(&count.tag));
            let counted: Vec<_> = stream::iter(counting).buffered(COUNTS_AT_ONCE).collect().await;
            let mut late = counted.into_iter().zip(&finding.scenario.counts).filter_map(|(now, count)| {
                let (now, most) = (now.ok()?, *count.allowed.end());
                (now > most).then(|| format!("later there were {now} effects instead of {most}"))
            });
            if let Some(what) = late.next() {
                finding.verdict = checks::came_later(what);
            }
        }
        let until = Instant::now() + LAG_MAX.min(self.setup.answer_max);
        for finding in findings {
            if let Verdict::Fail { cause, .. } = finding.verdict
                && checks::is_about_missing(cause)
                && let Some((first, now)) = counted_late(effects, finding, until).await
            {
                let why = format!("the counter lags: {first} effects were counted at first, and {now} later");
                finding.verdict = Verdict::NotShown(why);
            }
        }
    }

    async fn count(&self, counts: &[Count], seen: &mut Seen) {
        let Some(effects) = self.setup.effects.as_deref().filter(|_| self.setup.template.has_tag()) else {
            seen.effects = vec![None; counts.len()];
            return;
        };
        let from = self.wire.now();
        // Counting may be a command: not a hundred of them at once.
        let counting = counts.iter().map(|count| settled(effects, count));
        let counted: Vec<_> = stream::iter(counting).buffered(COUNTS_AT_ONCE).collect().await;
        for counted in counted {
            if let Err(why) = &counted {
                seen.events.push((format!("{UNCOUNTED}{why}"), from, self.wire.now()));
            }
            seen.effects.push(counted.ok());
        }
    }
}

/// Numbers that were too small, once all of them are right: the first of them, then and now.
async fn counted_late(effects: &dyn Effects, finding: &Finding, until: Instant) -> Option<(u64, u64)> {
    let counted = finding.scenario.counts.iter().zip(&finding.seen.effects);
    let few: Vec<(&Count, u64)> = counted
        .filter_map(|(count, seen)| Some((count, (*seen)?)))
        .filter(|(count, seen)| seen < count.allowed.start())
        .collect();
    let mut late = None;
    for (count, seen) in few {
        let now = loop {
            let now = effects.count(&count.tag).await.ok()?;
            if now >= *count.allowed.start() {
                break now;
            }
            if Instant::now() >= until {
                return None;
            }
            tokio::time::sleep(COUNT_EVERY).await;
        };
        if now > *count.allowed.end() {
            return None;
        }
        late.get_or_insert((seen, now));
    }
    late
}

/// Asks until the number stands still, or is too large anyway.
async fn settled(effects: &dyn Effects, count: &Count) -> Result<u64, String> {
    let began = Instant::now();
    let mut last = effects.count(&count.tag).await?;
    let mut since = Instant::now();
    loop {
        let enough = last >= *count.allowed.start() || began.elapsed() >= COUNT_MAX;
        if last > *count.allowed.end()
            || (enough && since.elapsed() >= STILL)
            || began.elapsed() > 2 * COUNT_MAX
        {
            return Ok(last);
        }
        tokio::time::sleep(COUNT_EVERY).await;
        let now = effects.count(&count.tag).await?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// What has come of a scenario so far.
#[derive(Default)]
struct Play {
    names: Vec<String>,
    answers: Vec<Option<Answer>>,
    running: Vec<(usize, JoinHandle<Vec<Ended>>)>,
    events: Vec<(String, Duration, Duration)>,
    spared: bool,
}

impl Play {
    fn keep(&mut self, first: usize, ended: impl IntoIterator<Item = Ended>) {
        for Ended { at, sent, ended, reply } in ended {
            let name = self.names[first + at].clone();
            self.answers[first + at] = Some(Answer { name, sent, ended, reply });
        }
    }
}

fn name(hook: Hook) -> &'static str {
    match hook {
        Hook::Kill => "kill the service",
        Hook::Start => "start the service",
        Hook::StoreStop => "stop the store",
        Hook::StoreStart => "start the store",
    }
}

/// One call, sent plainly.
pub(super) fn plain(name: impl Into<String>, request: super::template::Request) -> Call {
    Call { name: name.into(), request, how: How::Plain }
}
