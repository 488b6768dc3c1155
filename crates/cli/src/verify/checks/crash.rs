//! The service is killed, at moments nobody chose.

use std::time::Duration;

use super::cause;
use super::judge::{fail, is_success, last, not_shown};
use super::{Check, Judged, Make, Plan, at_most_one, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Call, Hook, How, Scenario, Seen, Step};
use crate::verify::scorecard::About;

/// Times it is killed.
const KILLS: usize = 6;
/// Requests on their way each time.
const STREAM: usize = 32;
/// They come in clumps, one after the other: some wait in line in the service, and a kill meets some before, in
/// and after their effect, however long the command takes to strike.
const CLUMP: usize = 8;
/// For how long they come, at least.
const STREAM_MIN: Duration = Duration::from_millis(80);

pub(super) fn checks() -> Vec<Check> {
    vec![
        check(
            "kill-after-answer",
            "Crash",
            &["G-14"],
            "An answer that was given is there after a crash.",
            after_answer,
        ),
        Check {
            about: About {
                id: "kill",
                family: "Crash",
                rules: &["G-15", "G-17"],
                must: "Killed at any moment, the service runs nothing twice and claims nothing that did not happen.",
            },
            sizes: |_| vec![KILLS],
            smallest: 1,
            plan: kill,
        },
    ]
}

fn has_commands(make: &Make<'_>) -> Result<(), String> {
    let hooks = &make.setup.hooks;
    match hooks.has(Hook::Kill) && hooks.has(Hook::Start) {
        true => Ok(()),
        false => Err("give commands that kill and start the service (--kill, --start)".into()),
    }
}

fn after_answer(make: &mut Make<'_>) -> Result<Plan, String> {
    has_commands(make)?;
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    let steps = vec![
        Step::Send(vec![plain("first", request.clone())]),
        Step::Hook(Hook::Kill),
        Step::Hook(Hook::Start),
    ];
    let insist = make.insist_long(vec![plain("retry", request)]);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.first(seen, "first")?;
        let what = "a request answered before a crash, and its retry after it";
        eye.at_most(seen, 0, 1, cause::NOT_DURABLE, what)?;
        let retry = eye.heard(seen, "retry")?;
        if retry.status != first.status || retry.body != first.body {
            let what = format!(
                "the answer was {} before the crash, and another, {}, after it",
                first.status, retry.status
            );
            return Err(fail(cause::NOT_DURABLE, what));
        }
        eye.at_least(seen, 0, 1, what)?;
        eye.counted(seen)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: Some(insist), judge })
}

fn kill(make: &mut Make<'_>) -> Result<Plan, String> {
    has_commands(make)?;
    let stream = STREAM.min(make.setup.race_max).max(2);
    let span = STREAM_MIN.max(make.base.latency * 2);
    let mut scenario = Scenario::default();
    let mut retries = Vec::new();
    // Early, late and in between, until after the last has come.
    let part = span * 3 / 2 / make.size as u32;
    for kill in 0..make.size as u32 {
        let mut calls = Vec::new();
        for at in 0..stream {
            let (tag, key) = (make.tag(), make.key());
            let nth = retries.len() + 1;
            let request = make.request(&tag, &key);
            // A body that is late is a request that is late, also while the command runs.
            let pause = span * (at - at % CLUMP) as u32 / stream as u32;
            let how = How::Slow { pieces: 1, pause };
            calls.push(Call { name: format!("first {nth}"), request: request.clone(), how });
            retries.push(plain(format!("retry {nth}"), request));
            scenario.counts.push(at_most_one(tag));
        }
        let moment = part * kill + make.part_of(part);
        scenario.steps.extend([
            Step::Start(calls),
            Step::Wait(moment),
            Step::Hook(Hook::Kill),
            Step::Join,
            Step::Hook(Hook::Start),
        ]);
    }
    let operations = retries.len();
    let insist = make.insist_long(retries);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        for at in 0..operations {
            eye.at_most(seen, at, 1, cause::CRASH_RERUNS, "a request a crash interrupted, and its retries")?;
        }
        let mut interrupted = 0;
        for at in 0..operations {
            let nth = at + 1;
            let heard = last(seen, &format!("first {nth}")).and_then(|answer| answer.reply.as_ref().ok());
            let retry = eye.heard(seen, &format!("retry {nth}"))?;
            let status = retry.status;
            interrupted += usize::from(heard.is_none());
            if let Some(first) = heard.filter(|reply| is_success(reply))
                && (status != first.status || retry.body != first.body)
            {
                let what =
                    format!("a request was answered {} before the crash and {status} after it", first.status);
                return Err(fail(cause::NOT_DURABLE, what));
            }
            if is_success(retry) && eye.effects(seen, at) == Some(0) {
                let what = format!("after a crash a request was answered {status}, and nothing happened");
                return Err(fail(cause::DISHONEST, what));
            }
            // A key in flight for good is nobody's: whoever ran it is dead.
            if !is_success(retry) && !eye.profile.unknown.contains(&status) {
                let what = format!("a request a crash interrupted is answered {status} for good");
                return Err(fail(cause::STUCK, what));
            }
        }
        if interrupted == 0 {
            return Err(not_shown(
                "every request was answered before it was killed: make the request slower",
            ));
        }
        eye.counted(seen)
    });
    Ok(Plan { scenario, insist: Some(insist), judge })
}
