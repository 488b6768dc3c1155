//! Clients that lose their answer, give up, or are slow.

use std::time::Duration;

use super::cause;
use super::judge::{fail, is_success, last, not_shown};
use super::race::racers_agree;
use super::{Check, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Call, How, Region, Scenario, Seen, Step};
use crate::verify::scorecard::About;
use crate::verify::wire::BY_US;

/// Clients that give up, each at another moment.
const LEAVERS: usize = 7;
const PIECES: usize = 5;
const PAUSE: Duration = Duration::from_millis(40);

pub(super) fn checks() -> Vec<Check> {
    vec![
        check(
            "cut-before-head",
            "Cut",
            &["G-17"],
            "After an answer lost before its head, the retry does not run again.",
            |make| cut(make, Region::BeforeHead),
        ),
        check(
            "cut-in-head",
            "Cut",
            &["G-17"],
            "After an answer lost in its head, the retry does not run again.",
            |make| cut(make, Region::InHead),
        ),
        check(
            "cut-in-body",
            "Cut",
            &["G-17"],
            "After an answer lost in its body, the retry does not run again.",
            |make| cut(make, Region::InBody),
        ),
        Check {
            about: About {
                id: "abort",
                family: "Cut",
                rules: &["G-17"],
                must: "When a client gives up, at any moment, its retry does not run beside or after it.",
            },
            sizes: |_| vec![LEAVERS],
            smallest: 1,
            plan: abort,
        },
        check(
            "slow-body",
            "Cut",
            &["G-8"],
            "A body that arrives slowly and its duplicate are one operation.",
            slow,
        ),
    ]
}

fn cut(make: &mut Make<'_>, region: Region) -> Result<Plan, String> {
    if region == Region::InBody && make.base.body_bytes == 0 {
        return Err("the answer has no body to cut".into());
    }
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    let lost = Call { name: "first".into(), request: request.clone(), how: How::Cut(region) };
    let scenario = Scenario { steps: vec![Step::Send(vec![lost])], counts: vec![exactly(tag, 1)] };
    let insist = make.insist(vec![plain("retry", request)]);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        was_cut(seen, "first")?;
        let what = "a request whose answer was lost, and its retry";
        eye.at_most(seen, 0, 1, cause::LOST_ANSWER_RERUNS, what)?;
        eye.ended_well(seen, "retry", cause::RETRY_REFUSED)?;
        eye.at_least(seen, 0, 1, what)?;
        eye.counted(seen)
    });
    Ok(Plan { scenario, insist: Some(insist), judge })
}

fn was_cut(seen: &Seen, name: &str) -> Judged {
    match last(seen, name).map(|answer| &answer.reply) {
        Some(Err(why)) if why.starts_with(BY_US) => Ok(()),
        Some(Err(why)) => Err(not_shown(format!("`{name}` could not be cut: {why}"))),
        _ => Err(not_shown(format!("`{name}` was not cut"))),
    }
}

fn abort(make: &mut Make<'_>) -> Result<Plan, String> {
    let mut scenario = Scenario::default();
    let mut retries = Vec::new();
    for nth in 1..=make.size {
        let (tag, key) = (make.tag(), make.key());
        let request = make.request(&tag, &key);
        let after = match nth {
            // Its answer is there, and nobody takes it.
            1 => make.base.latency * 3 / 2,
            // Its request may be lost on the way, or run unheard.
            2 => Duration::ZERO,
            // An effect is often behind it, and its answer not yet stored.
            3..=6 => make.base.latency * (nth as u32 + 1) / 8,
            _ => make.part_of(make.base.latency),
        };
        let leaver = Call { name: format!("leaver {nth}"), request: request.clone(), how: How::Abort(after) };
        scenario.steps.push(Step::Send(vec![leaver]));
        retries.push(plain(format!("retry {nth}"), request));
        scenario.counts.push(exactly(tag, 1));
    }
    let insist = make.insist(retries);
    let (eye, leavers) = (make.eye(), make.size);
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let what = "a request its client gave up, and the retry";
        for at in 0..leavers {
            eye.at_most(seen, at, 1, cause::LOST_ANSWER_RERUNS, what)?;
        }
        for at in 0..leavers {
            if eye.met_trouble(seen, &[&format!("retry {}", at + 1)]) {
                continue;
            }
            was_cut(seen, &format!("leaver {}", at + 1))?;
            eye.ended_well(seen, &format!("retry {}", at + 1), cause::RETRY_REFUSED)?;
            eye.at_least(seen, at, 1, what)?;
        }
        eye.counted(seen)
    });
    Ok(Plan { scenario, insist: Some(insist), judge })
}

fn slow(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    if request.body.is_empty() {
        return Err("the request has no body to send slowly".into());
    }
    let how = How::Slow { pieces: PIECES, pause: PAUSE };
    let steps = vec![
        Step::Start(vec![Call { name: "sent slowly".into(), request: request.clone(), how }]),
        Step::Wait(PAUSE * 2),
        Step::Send(vec![plain("sent at once", request.clone())]),
        Step::Join,
    ];
    let insist = make.insist(vec![plain("afterwards", request)]);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let what = "a slow request and its duplicate";
        eye.at_most(seen, 0, 1, cause::NOT_ATOMIC, what)?;
        if racers_agree(&eye, seen, "sent ", what)?.is_none() {
            return Err(not_shown(format!("neither of {what} was answered well")));
        }
        let after = eye.ended_well(seen, "afterwards", cause::RETRY_REFUSED)?;
        let answers = seen.answers.iter().filter_map(|answer| answer.reply.as_ref().ok());
        if answers.filter(|reply| is_success(reply)).any(|reply| reply.body != after.body) {
            return Err(fail(cause::ANSWERS_DIFFER, format!("{what} got another answer than the retry")));
        }
        eye.at_least(seen, 0, 1, what)?;
        eye.counted(seen)
    });
    let scenario = Scenario { steps, counts: vec![exactly(tag, 1)] };
    Ok(Plan { scenario, insist: Some(insist), judge })
}
