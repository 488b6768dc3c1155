//! Keys that are forgotten, and effects that come late.

use std::time::Duration;

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::{Check, Judged, Make, Plan, at_most_one, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Scenario, Seen, Step};

/// Clocks are read at different moments, and some keep whole seconds: so much longer than said a key may live.
const MARGIN: Duration = Duration::from_secs(1);
/// And a part of its life, for those that look now and then for keys to forget.
const MARGIN_PART: u32 = 10;

/// How long after its answer a retry must still find it, if nobody said when keys are forgotten.
const MEMORY: Duration = Duration::from_secs(2);

/// Statuses that say nothing about the effect (G-16).
const DOUBTFUL: [u16; 4] = [408, 502, 503, 504];

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("remembered", "Time", &["G-10"], "A retry that comes later still finds its answer.", later),
        check("expiry", "Time", &["G-10"], "After its time a key is free again, and not before.", expiry),
        check(
            "late-effect",
            "Time",
            &["G-16", "G-17"],
            "After a time-out, a retry does not run beside an effect that is still on its way.",
            late,
        ),
    ]
}

fn later(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    let wait = make.setup.expiry.map_or(MEMORY, |expiry| MEMORY.min(expiry / 2));
    let steps = vec![
        Step::Send(vec![plain("first", request.clone())]),
        Step::Wait(wait),
        Step::Send(vec![plain("later", request)]),
    ];
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.first(seen, "first")?;
        let reply = eye.heard(seen, "later")?;
        let what = format!("a request and its retry {wait:?} later");
        eye.at_most(seen, 0, 1, cause::FORGETS_EARLY, &what)?;
        if eye.is_marked(reply) == Some(false) || reply.body != first.body {
            let what = format!("the retry {wait:?} later was answered {}, not with a replay", reply.status);
            return Err(fail(cause::FORGETS_EARLY, what));
        }
        eye.same(first, reply, "later")?;
        eye.counted(seen)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: None, judge })
}

fn expiry(make: &mut Make<'_>) -> Result<Plan, String> {
    let expiry =
        make.setup.expiry.ok_or("say after which time keys are forgotten (--expiry) to wait for it")?;
    let (tag, key) = (make.tag(), make.key());
    let request = make.request(&tag, &key);
    let send = |name: &str| Step::Send(vec![plain(name, request.clone())]);
    let steps = vec![
        send("first"),
        Step::Wait(expiry / 2),
        send("before its time"),
        Step::Wait(expiry - expiry / 2 + MARGIN + expiry / MARGIN_PART),
        send("after its time"),
    ];
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.first(seen, "first")?;
        let before = eye.heard(seen, "before its time")?;
        if is_success(before) && before.body != first.body && eye.is_marked(before) != Some(true) {
            let half = expiry / 2;
            return Err(fail(cause::FORGETS_EARLY, format!("after {half:?} the key got a new answer")));
        }
        eye.same(first, before, "before its time")?;
        let after = eye.heard(seen, "after its time")?;
        if !is_success(after) {
            let what = format!("the key was answered {} after its time", after.status);
            return Err(fail(cause::NEVER_EXPIRES, what));
        }
        eye.at_most(seen, 0, 2, cause::NOT_IDEMPOTENT, "a key before and after its time")?;
        if eye.is_marked(after) == Some(true) || eye.effects(seen, 0).is_some_and(|effects| effects < 2) {
            return Err(fail(cause::NEVER_EXPIRES, "the key was answered with a replay after its time"));
        }
        eye.counted(seen)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 2)] }, insist: None, judge })
}

fn late(make: &mut Make<'_>) -> Result<Plan, String> {
    let slow = make.setup.slow.clone();
    let slow =
        slow.ok_or("give a request that takes longer than the service waits (--slow-data or --slow-url)")?;
    let (tag, key) = (make.tag(), make.key());
    let request = make.keyed(&slow, &tag, &key);
    let steps = vec![
        Step::Send(vec![plain("first", request.clone())]),
        Step::Send(vec![plain("at once", request.clone())]),
    ];
    let insist = make.insist_long(vec![plain("retry", request)]);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let what = "a request that timed out, and its retries";
        eye.at_most(seen, 0, 1, cause::LATE_EFFECT_TWICE, what)?;
        let first = eye.heard(seen, "first")?;
        if is_success(first) {
            return Err(not_shown(format!(
                "the slow request was answered {}: it was not too slow",
                first.status
            )));
        }
        let retry = eye.heard(seen, "retry")?;
        if is_success(retry) {
            eye.at_least(seen, 0, 1, what)?;
        }
        let is_replay = eye.is_marked(retry).unwrap_or(retry.body == first.body);
        let is_kept = is_replay && retry.status == first.status && DOUBTFUL.contains(&retry.status);
        if is_kept && eye.effects(seen, 0) == Some(1) {
            let what = format!("the effect came, and its retries get the stored {}", retry.status);
            return Err(fail(cause::TIME_OUT_STORED, what));
        }
        // None at all is well: a fence may keep it out. One that comes too late for this is met by the last look.
        eye.counted(seen)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![at_most_one(tag)] }, insist: Some(insist), judge })
}
