//! Many at once.

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::{Check, Eye, Judged, Make, Plan, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Reply, Scenario, Seen, Step};
use crate::verify::scorecard::About;
use crate::verify::setup::Setup;

/// Keys of the load, each sent twice.
const KEYS: usize = 24;

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check {
            about: About {
                id: "race",
                family: "Race",
                rules: &["G-8", "G-14"],
                must: "However many duplicates come at the same moment, one takes effect.",
            },
            sizes: widths,
            smallest: 2,
            plan: race,
        },
        Check {
            about: About {
                id: "race-load",
                family: "Race",
                rules: &["G-8"],
                must: "Under load, with every request sent twice, every key takes effect once.",
            },
            sizes: |setup| vec![KEYS.min(setup.race_max.div_ceil(2)).max(1)],
            smallest: 1,
            plan: load,
        },
    ]
}

/// Narrow ones more often: they are cheap, and what fails them is easily followed.
fn widths(setup: &Setup) -> Vec<usize> {
    let most = setup.race_max.max(2);
    let mut widths = vec![2, 2, 2];
    let mut width = 8;
    while width < most {
        widths.extend([width, width]);
        width *= 8;
    }
    widths.push(most);
    widths
}

fn race(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    let racers = (1..=make.size).map(|nth| plain(format!("racer {nth}"), request.clone()));
    let scenario = Scenario { steps: vec![Step::Send(racers.collect())], counts: vec![exactly(tag, 1)] };
    let insist = make.insist(vec![plain("afterwards", request)]);
    let (eye, width) = (make.eye(), make.size);
    let judge = Box::new(move |seen: &Seen| {
        let what = format!("{width} simultaneous requests with one key");
        eye.at_most(seen, 0, 1, cause::NOT_ATOMIC, &what)?;
        let answer = racers_agree(&eye, seen, "racer ", &what)?;
        let after = eye.ended_well(seen, "afterwards", cause::RETRY_REFUSED)?;
        if let Some(answer) = answer {
            eye.same(answer, after, "afterwards")?;
        }
        eye.at_least(seen, 0, 1, &what)?;
        eye.counted(seen)
    });
    Ok(Plan { scenario, insist: Some(insist), judge })
}

/// Whether all who were answered well got one answer, and the others were told to come back. Gives that answer.
pub(super) fn racers_agree<'s>(
    eye: &Eye,
    seen: &'s Seen,
    prefix: &str,
    what: &str,
) -> Result<Option<&'s Reply>, crate::verify::scorecard::Verdict> {
    let of = || seen.answers.iter().filter(|answer| answer.name.starts_with(prefix));
    let replies: Vec<&Reply> = of().filter_map(|answer| answer.reply.as_ref().ok()).collect();
    let mut bodies: Vec<&[u8]> =
        replies.iter().filter(|reply| is_success(reply)).map(|r| &r.body[..]).collect();
    bodies.sort_unstable();
    bodies.dedup();
    if bodies.len() > 1 {
        return Err(fail(cause::ANSWERS_DIFFER, format!("{what} got {} different answers", bodies.len())));
    }
    let odd: Vec<u16> = replies
        .iter()
        .filter(|reply| !is_success(reply) && !eye.profile.in_flight.contains(&reply.status))
        .map(|reply| reply.status)
        .collect();
    if let Some(status) = odd.first() {
        let what = format!(
            "of {what}, {} got neither the answer nor a word to come back; one got {status}",
            odd.len()
        );
        // Too many at once is no mistake of idempotency.
        return Err(match odd.iter().all(|status| matches!(status, 429 | 503)) {
            true => not_shown(what),
            false => fail(cause::FAILS_IN_RACE, what),
        });
    }
    let failures: Vec<&String> = of().filter_map(|answer| answer.reply.as_ref().err()).collect();
    if let Some(why) = failures.first() {
        return Err(not_shown(format!("of {what}, {} got no answer: {why}", failures.len())));
    }
    Ok(replies.into_iter().find(|reply| is_success(reply)))
}

fn load(make: &mut Make<'_>) -> Result<Plan, String> {
    let mut scenario = Scenario::default();
    let (mut calls, mut again) = (Vec::new(), Vec::new());
    for nth in 1..=make.size {
        let (tag, key) = (make.tag(), make.key());
        let request = make.request(&tag, &key);
        calls.push(plain(format!("key {nth} first"), request.clone()));
        calls.push(plain(format!("key {nth} twin"), request.clone()));
        again.push(plain(format!("afterwards {nth}"), request));
        scenario.counts.push(exactly(tag, 1));
    }
    scenario.steps.push(Step::Send(calls));
    let insist = make.insist(again);
    let (eye, keys) = (make.eye(), make.size);
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let what = |nth: usize| format!("two requests with key {nth} of {keys}");
        for at in 0..keys {
            eye.at_most(seen, at, 1, cause::NOT_ATOMIC, &what(at + 1))?;
        }
        for at in 0..keys {
            let nth = at + 1;
            if eye.met_trouble(seen, &[&format!("key {nth} "), &format!("afterwards {nth}")]) {
                continue;
            }
            let answer = racers_agree(&eye, seen, &format!("key {nth} "), &what(nth))?;
            let after = eye.ended_well(seen, &format!("afterwards {nth}"), cause::RETRY_REFUSED)?;
            if let Some(answer) = answer {
                eye.same(answer, after, "afterwards")?;
            }
            eye.at_least(seen, at, 1, &what(nth))?;
        }
        eye.counted(seen)
    });
    Ok(Plan { scenario, insist: Some(insist), judge })
}
