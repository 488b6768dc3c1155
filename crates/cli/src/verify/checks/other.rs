//! Another request under a used key, and an equal one under another key.

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::{Check, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Scenario, Step};

/// Keys tried, to meet a request while it runs.
const MEETINGS: u32 = 4;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("other-body", "Body", &["G-6"], "A used key is refused for another body.", other_body),
        check(
            "other-body-in-flight",
            "Body",
            &["G-6"],
            "A key is refused for another body also while the first request runs.",
            while_running,
        ),
        check(
            "equal-bodies",
            "Body",
            &["G-6"],
            "Equal bodies under two keys are two operations.",
            equal_bodies,
        ),
    ]
}

pub(super) fn promised_mismatch(make: &Make<'_>) -> Result<(), String> {
    match make.setup.profile.mismatch.is_empty() {
        true => Err("the profile does not say what another request under a used key gets".into()),
        false => Ok(()),
    }
}

fn other_body(make: &mut Make<'_>) -> Result<Plan, String> {
    promised_mismatch(make)?;
    let (tag, key) = (make.tag(), make.key());
    let first = make.request(&tag, &key);
    let other = make.other(&first, &tag)?;
    let steps = vec![
        Step::Send(vec![plain("first", first.clone())]),
        Step::Send(vec![plain("other body", other)]),
        Step::Send(vec![plain("retry", first)]),
    ];
    let eye = make.eye();
    let judge = Box::new(move |seen: &_| {
        let first = eye.first(seen, "first")?;
        let other = eye.heard(seen, "other body")?;
        eye.at_most(seen, 0, 1, cause::NO_FINGERPRINT, "one key, two bodies")?;
        eye.mismatch(other, cause::NO_FINGERPRINT, "another body under a used key")?;
        // The refusal must not have harmed what is stored.
        eye.same(first, eye.heard(seen, "retry")?, "retry")
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: None, judge })
}

fn while_running(make: &mut Make<'_>) -> Result<Plan, String> {
    promised_mismatch(make)?;
    let mut scenario = Scenario::default();
    for nth in 1..=MEETINGS {
        let (tag, key) = (make.tag(), make.key());
        let first = make.request(&tag, &key);
        let other = make.other(&first, &tag)?;
        scenario.steps.extend([
            Step::Start(vec![plain(format!("first {nth}"), first)]),
            Step::Wait(make.base.latency / (1 << nth)),
            Step::Send(vec![plain(format!("other body {nth}"), other)]),
            Step::Join,
        ]);
        scenario.counts.push(exactly(tag, 1));
    }
    let eye = make.eye();
    let judge = Box::new(move |seen: &crate::verify::scenario::Seen| {
        let mut met = false;
        for at in 0..MEETINGS as usize {
            let (name, other) = (format!("first {}", at + 1), format!("other body {}", at + 1));
            eye.at_most(seen, at, 1, cause::NO_FINGERPRINT, "one key, two bodies at the same time")?;
            if eye.met_trouble(seen, &[&name, &other]) {
                continue;
            }
            let (first, reply) = (eye.heard(seen, &name)?, eye.heard(seen, &other)?);
            // Either may have come first; one must have been refused.
            let refused = match (is_success(first), is_success(reply)) {
                (true, true) => {
                    let what = format!("another body under a key in use was answered {}", reply.status);
                    return Err(fail(cause::NO_FINGERPRINT, what));
                }
                (true, false) => reply,
                (false, true) => first,
                (false, false) => {
                    let what = format!(
                        "two bodies under one key were answered {} and {}",
                        first.status, reply.status
                    );
                    return Err(not_shown(what));
                }
            };
            let promised = [&eye.profile.mismatch[..], &eye.profile.in_flight].concat();
            eye.status(refused, &promised, "another body under a key in use")?;
            let ended = seen.answer(&name).map(|answer| answer.ended);
            met |= seen.answer(&other).map(|answer| answer.sent) < ended;
        }
        match met {
            true => Ok(()),
            false => Err(not_shown("the service answers too fast: no other request met a running one")),
        }
    });
    Ok(Plan { scenario, insist: None, judge })
}

fn equal_bodies(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, one, two) = (make.tag(), make.key(), make.key());
    let steps = vec![
        Step::Send(vec![plain("first", make.request(&tag, &one))]),
        Step::Send(vec![plain("other key", make.request(&tag, &two))]),
    ];
    let eye = make.eye();
    let judge = Box::new(move |seen: &_| {
        eye.first(seen, "first")?;
        let other = eye.heard(seen, "other key")?;
        let collapsed = |what: String| Err(fail(cause::KEYS_COLLAPSED, what));
        if eye.is_marked(other) == Some(true) {
            return collapsed("an equal body under another key was answered with a replay".into());
        }
        // Some take no reference twice, under whichever key: that is a rule of theirs, and no replay.
        if matches!(other.status, 409 | 422) {
            return Err(not_shown(format!("an equal body under another key was answered {}", other.status)));
        }
        if !is_success(other) {
            return collapsed(format!("an equal body under another key was answered {}", other.status));
        }
        match eye.effects(seen, 0) {
            Some(effects @ 0..2) => collapsed(format!("two keys had {effects} effect")),
            _ => {
                eye.at_most(seen, 0, 2, cause::NOT_IDEMPOTENT, "two keys, each sent once")?;
                eye.counted(seen)
            }
        }
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 2)] }, insist: None, judge })
}
