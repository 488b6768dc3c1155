//! One request, then the same again: the plainest retry there is.

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::{Check, Eye, Judged, Make, Plan, at_most_one, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Scenario, Seen, Step};
use crate::verify::template::Request;

/// Beyond what most services keep of a request.
const LARGE_BYTES: usize = 2 << 20;
/// Beyond what careless services keep of an answer, and far below what others refuse as a request.
const NOTE_BYTES: usize = 16 << 10;
/// What is called a large answer.
const LONG_BYTES: usize = 8 << 10;
/// Operations tried on a service that fails now and then.
const ATTEMPTS: usize = 6;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check(
            "replay",
            "Replay",
            &["G-14"],
            "A retry gets the first answer: status, headers, body.",
            |make| {
                again(make, |eye, seen| {
                    let eye = eye.strict();
                    let first = eye.first(seen, "first")?;
                    for retry in ["retry", "retry later"] {
                        eye.same(first, eye.heard(seen, retry)?, retry)?;
                    }
                    Ok(())
                })
            },
        ),
        check("replay-effect", "Replay", &["G-7", "G-14"], "A retry has no second effect.", |make| {
            again(make, |eye, seen| {
                eye.first(seen, "first")?;
                eye.once(seen, 0, cause::NOT_IDEMPOTENT, "one key, sent three times")?;
                eye.counted(seen)
            })
        }),
        check(
            "replay-marker",
            "Replay",
            &["G-14"],
            "A replay is marked as one, a first answer is not.",
            |make| {
                if make.setup.profile.replay_marker.is_none() {
                    return Err("the profile names no marker of replays".into());
                }
                again(make, |eye, seen| {
                    if eye.is_marked(eye.first(seen, "first")?) == Some(true) {
                        return Err(fail(cause::FALSE_MARKER, "the first answer is marked as a replay"));
                    }
                    if eye.is_marked(eye.heard(seen, "retry")?) == Some(false) {
                        return Err(fail(cause::NO_MARKER, "the retry's answer is not marked as a replay"));
                    }
                    Ok(())
                })
            },
        ),
        check("replay-error", "Replay", &["G-16"], "An error is kept and replayed like any answer.", errors),
        check(
            "replay-secrets",
            "Replay",
            &["G-14"],
            "Cookies and secrets of the first answer are not in its replay.",
            |make| again(make, secrets),
        ),
        check(
            "error-effect",
            "Replay",
            &["G-16"],
            "A request that is answered with an error is not run again by its retry.",
            error_effect,
        ),
        check(
            "replay-large-answer",
            "Replay",
            &["G-19"],
            "A request with a large answer does not run again.",
            large_answer,
        ),
        check("replay-large", "Replay", &["G-19"], "A large request does not run again either.", large),
    ]
}

fn again(make: &mut Make<'_>, judge: fn(&Eye, &Seen) -> Judged) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    Ok(three_times(make, request, vec![exactly(tag, 1)], judge))
}

fn three_times(
    make: &Make<'_>,
    request: Request,
    counts: Vec<crate::verify::scenario::Count>,
    judge: fn(&Eye, &Seen) -> Judged,
) -> Plan {
    let send = |name: &str| Step::Send(vec![plain(name, request.clone())]);
    let steps = vec![send("first"), send("retry"), send("retry later")];
    let eye = make.eye();
    Plan {
        scenario: Scenario { steps, counts },
        insist: None,
        judge: Box::new(move |seen| judge(&eye, seen)),
    }
}

fn errors(make: &mut Make<'_>) -> Result<Plan, String> {
    let failing = make.setup.failing.clone();
    let failing = failing.ok_or("give a request that fails (--failing-data) to see its error replayed")?;
    if !make.setup.profile.errors_kept {
        return Err("the profile keeps no errors".into());
    }
    let (tag, key) = (make.tag(), make.key());
    let request = make.keyed(&failing, &tag, &key);
    Ok(three_times(make, request, vec![at_most_one(tag)], |eye, seen| {
        let first = eye.heard(seen, "first")?;
        if is_success(first) {
            return Err(not_shown(format!("the request that should fail was answered {}", first.status)));
        }
        let retry = eye.heard(seen, "retry")?;
        if eye.is_marked(retry) == Some(false) {
            let what = format!("the retry of a request answered {} is no replay", first.status);
            return Err(fail(cause::ERROR_NOT_KEPT, what));
        }
        eye.at_most(seen, 0, 1, cause::NOT_IDEMPOTENT, "one key whose request fails, sent three times")?;
        eye.same(first, retry, "retry")
    }))
}

fn error_effect(make: &mut Make<'_>) -> Result<Plan, String> {
    let (template, many) = match &make.setup.failing {
        Some(failing) => (failing.clone(), 1),
        None if make.base.troubled => (make.setup.template.clone(), ATTEMPTS),
        None => {
            return Err("give a request that fails (--failing-data) to see that it does not run again".into());
        }
    };
    let mut scenario = Scenario::default();
    let mut retries = Vec::new();
    for nth in 1..=many {
        let (tag, key) = (make.tag(), make.key());
        let request = make.keyed(&template, &tag, &key);
        scenario.steps.push(Step::Send(vec![plain(format!("first {nth}"), request.clone())]));
        retries.push(plain(format!("retry {nth}"), request));
        scenario.counts.push(at_most_one(tag));
    }
    let insist = make.insist_long(retries);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let mut failed = 0;
        for at in 0..many {
            let first = eye.heard(seen, &format!("first {}", at + 1))?;
            failed += usize::from(!is_success(first));
            let cause = if is_success(first) { cause::NOT_IDEMPOTENT } else { cause::ERROR_RERUNS };
            let what = format!("a request answered {}, and its retries", first.status);
            eye.at_most(seen, at, 1, cause, &what)?;
        }
        match failed {
            0 => Err(not_shown("no request was answered with an error")),
            _ => eye.counted(seen),
        }
    });
    Ok(Plan { scenario, insist: Some(insist), judge })
}

fn large_answer(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let request = match &make.setup.large {
        Some(large) => make.keyed(large, &tag, &key),
        None => {
            let mut request = make.request(&tag, &key);
            let body = make.json(&request)?.with_member("note", &"long ".repeat(NOTE_BYTES / 5));
            request.body = body.ok_or("give a request whose answer is large (--large-data)")?.into();
            request
        }
    };
    Ok(three_times(make, request, vec![at_most_one(tag)], |eye, seen| {
        let what = "a request with a large answer, sent three times";
        eye.at_most(seen, 0, 1, cause::LARGE_RERUNS, what)?;
        let first = eye.heard(seen, "first")?;
        if !is_success(first) || first.body.len() < LONG_BYTES {
            let (status, bytes) = (first.status, first.body.len());
            return Err(not_shown(format!(
                "the answer was {status} with {bytes} bytes: give a request whose answer is large (--large-data)"
            )));
        }
        let retry = eye.heard(seen, "retry")?;
        if is_success(retry) {
            eye.same(first, retry, "retry")?;
        }
        eye.at_least(seen, 0, 1, what)?;
        eye.counted(seen)
    }))
}

fn secrets(eye: &Eye, seen: &Seen) -> Judged {
    let (first, retry) = (eye.first(seen, "first")?, eye.heard(seen, "retry")?);
    let dropped = &eye.profile.headers_dropped;
    let had: Vec<&String> = dropped.iter().filter(|name| first.header(name).is_some()).collect();
    if had.is_empty() {
        let names = if dropped.is_empty() { "such header".to_owned() } else { dropped.join(", ") };
        return Err(not_shown(format!("the first answer has no {names}")));
    }
    match had.iter().find(|name| retry.header(name).is_some()) {
        Some(name) => Err(fail(cause::SECRET_REPLAYED, format!("the retry's answer has the header {name}"))),
        None => Ok(()),
    }
}

/// Spaces after JSON change nothing but its length.
fn large(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let mut request = make.request(&tag, &key);
    make.json(&request)?;
    let mut body = request.body.to_vec();
    body.resize(body.len() + LARGE_BYTES, b' ');
    request.body = body.into();
    Ok(three_times(make, request, vec![at_most_one(tag)], |eye, seen| {
        let first = eye.heard(seen, "first")?;
        let retry = eye.heard(seen, "retry")?;
        eye.at_most(seen, 0, 1, cause::LARGE_RERUNS, "one large request, sent three times")?;
        match first.status {
            200..300 => {
                eye.same(first, retry, "retry")?;
                eye.at_least(seen, 0, 1, "one large request, sent three times")?;
            }
            400..500 => {
                let what = format!("a large request was refused with {}", first.status);
                eye.at_most(seen, 0, 0, cause::NOT_IDEMPOTENT, &what)?;
                if is_success(retry) {
                    let what = format!("{what}, and its retry was answered {}", retry.status);
                    return Err(fail(cause::ANSWERS_DIFFER, what));
                }
            }
            status => return Err(not_shown(format!("a large request was answered {status}"))),
        }
        eye.counted(seen)
    }))
}
