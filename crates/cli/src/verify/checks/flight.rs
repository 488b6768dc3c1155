//! A retry that comes while the first request is still running.

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::race::racers_agree;
use super::{Check, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Reply, Scenario, Seen, Step};

/// Keys tried, each at another moment of the first's run.
const MOMENTS: u32 = 6;
/// Duplicates that are to be told to come back.
const WIDTH: usize = 8;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check(
            "in-flight",
            "Flight",
            &["G-14"],
            "A retry while the first runs waits for its answer or is told to come back, and does not run.",
            in_flight,
        ),
        check(
            "in-flight-retry-after",
            "Flight",
            &["G-14"],
            "A duplicate that is told to come back is told when.",
            retry_after,
        ),
    ]
}

fn in_flight(make: &mut Make<'_>) -> Result<Plan, String> {
    let mut scenario = Scenario::default();
    for nth in 1..=MOMENTS {
        let (tag, key) = (make.tag(), make.key());
        let request = make.request(&tag, &key);
        scenario.steps.extend([
            Step::Start(vec![plain(format!("first {nth}"), request.clone())]),
            Step::Wait(make.base.latency / (1 << nth)),
            Step::Send(vec![plain(format!("retry {nth}"), request)]),
            Step::Join,
        ]);
        scenario.counts.push(exactly(tag, 1));
    }
    let (eye, latency) = (make.eye(), make.base.latency);
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let what = "a request and its retry while it ran";
        for at in 0..MOMENTS as usize {
            // The first is the latest to come, the last the earliest.
            let earliest = eye.effects(seen, MOMENTS as usize - 1);
            let lapsed = at == 0 && earliest.is_some_and(|effects| effects <= 1);
            let cause = if lapsed { cause::LOCK_LAPSES } else { cause::NOT_ATOMIC };
            eye.at_most(seen, at, 1, cause, what)?;
        }
        let mut met = false;
        for at in 0..MOMENTS as usize {
            let (first, retry) = (format!("first {}", at + 1), format!("retry {}", at + 1));
            if eye.met_trouble(seen, &[&first, &retry]) {
                continue;
            }
            let (answer, reply) = (eye.heard(seen, &first)?, eye.heard(seen, &retry)?);
            // A retry that comes at once may overtake: then the first is the duplicate.
            match (is_success(answer), is_success(reply)) {
                (true, true) if reply.body != answer.body => {
                    let what = format!("{what} got different answers");
                    return Err(fail(cause::ANSWERS_DIFFER, what));
                }
                (true, true) => eye.same(answer, reply, &retry)?,
                (true, false) => eye.status(reply, &eye.profile.in_flight, "a retry while the first ran")?,
                (false, true) => eye.status(answer, &eye.profile.in_flight, "a request whose retry ran")?,
                (false, false) => {
                    let what = format!("{what} were answered {} and {}", answer.status, reply.status);
                    return Err(not_shown(what));
                }
            }
            eye.at_least(seen, at, 1, what)?;
            let ended = seen.answer(&first).map(|answer| answer.ended);
            met |= seen.answer(&retry).map(|answer| answer.sent) < ended;
        }
        if !met {
            let why = format!("the service answers within {latency:?}: no retry met a running request");
            return Err(not_shown(why));
        }
        eye.counted(seen)
    });
    Ok(Plan { scenario, insist: None, judge })
}

fn retry_after(make: &mut Make<'_>) -> Result<Plan, String> {
    if !make.setup.profile.retry_after {
        return Err("the profile does not ask for Retry-After".into());
    }
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    let racers =
        (1..=WIDTH.min(make.setup.race_max).max(2)).map(|nth| plain(format!("racer {nth}"), request.clone()));
    let scenario = Scenario { steps: vec![Step::Send(racers.collect())], counts: vec![exactly(tag, 1)] };
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        racers_agree(&eye, seen, "racer ", "duplicates")?;
        let replies = seen.answers.iter().filter_map(|answer| answer.reply.as_ref().ok());
        let told: Vec<&Reply> =
            replies.filter(|reply| eye.profile.in_flight.contains(&reply.status)).collect();
        if told.is_empty() {
            return Err(not_shown("no duplicate was told to come back: all got the answer"));
        }
        match told.iter().find(|reply| !says_when(reply)) {
            Some(reply) => {
                let said = reply
                    .header("retry-after")
                    .map_or("no Retry-After".into(), |said| format!("Retry-After: {said}"));
                Err(fail(
                    cause::NO_RETRY_AFTER,
                    format!("a duplicate was answered {} with {said}", reply.status),
                ))
            }
            None => Ok(()),
        }
    });
    Ok(Plan { scenario, insist: None, judge })
}

/// Seconds, or a date.
fn says_when(reply: &Reply) -> bool {
    reply.header("retry-after").is_some_and(|value| {
        let value = value.trim();
        value.parse::<u64>().is_ok() || (value.ends_with("GMT") && value.contains(','))
    })
}
