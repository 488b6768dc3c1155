//! Which JSON is the same request: what means the same is, what only looks the same to a careless reader is not.

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::other::promised_mismatch;
use super::{Check, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Scenario, Seen, Step};

const NO_NUMBER: &str = "the request's body has no number in it";

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("json-order", "JSON", &["G-6"], "Member order and spacing make no other request.", order),
        check("json-large-numbers", "JSON", &["G-6"], "2^53 and 2^53+1 are different requests.", |make| {
            numbers(make, "9007199254740992", "9007199254740993")
        }),
        check(
            "json-decimals",
            "JSON",
            &["G-6"],
            "0.1 and 0.10000000000000000001 are different requests.",
            |make| numbers(make, "0.1", "0.10000000000000000001"),
        ),
        check("json-one", "JSON", &["G-6"], "1 and 1.0 are different requests.", |make| {
            numbers(make, "1", "1.0")
        }),
        check(
            "json-twice",
            "JSON",
            &["G-6"],
            "A member and the same member twice are different requests.",
            |make| {
                let (tag, key) = (make.tag(), make.key());
                let body = make.json(&make.request(&tag, &key))?;
                let twice = body.doubled().ok_or("the request's body has no members")?;
                different(make, tag, &key, body.write(), twice, "the same body with a member twice")
            },
        ),
    ]
}

fn order(make: &mut Make<'_>) -> Result<Plan, String> {
    if !make.setup.profile.canonical_json {
        return Err("the profile compares bodies byte by byte".into());
    }
    let (tag, key) = (make.tag(), make.key());
    let first = make.request(&tag, &key);
    let mut other = first.clone();
    other.body = make.json(&first)?.rearranged().into();
    let steps = vec![Step::Send(vec![plain("first", first)]), Step::Send(vec![plain("rearranged", other)])];
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.first(seen, "first")?;
        let other = eye.heard(seen, "rearranged")?;
        let what = "the same JSON in another order";
        if !is_success(other) {
            return Err(fail(cause::NOT_CANONICAL, format!("{what} was answered {}", other.status)));
        }
        eye.once(seen, 0, cause::NOT_CANONICAL, what)?;
        eye.same(first, other, "rearranged")?;
        eye.shown(seen, other)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: None, judge })
}

fn numbers(make: &mut Make<'_>, one: &str, other: &str) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let body = make.json(&make.request(&tag, &key))?;
    let first = body.with_number(one).ok_or(NO_NUMBER)?;
    let second = body.with_number(other).ok_or(NO_NUMBER)?;
    different(make, tag, &key, first, second, &format!("{other} after {one}"))
}

/// Two bodies that must not be taken for one.
fn different(
    make: &Make<'_>,
    tag: String,
    key: &str,
    one: String,
    other: String,
    what: &str,
) -> Result<Plan, String> {
    promised_mismatch(make)?;
    let with = |body: String| {
        let mut request = make.request(&tag, key);
        request.body = body.into();
        request
    };
    let first = with(one);
    let steps = vec![
        Step::Send(vec![plain("first", first.clone())]),
        Step::Send(vec![plain("look-alike", with(other))]),
        Step::Send(vec![plain("other body", make.other(&first, &tag)?)]),
    ];
    let (eye, what) = (make.eye(), what.to_owned());
    let judge = Box::new(move |seen: &Seen| -> Judged {
        eye.first(seen, "first")?;
        // Who compares nothing reads nothing carelessly.
        if is_success(eye.heard(seen, "other body")?) {
            return Err(not_shown("any other body is accepted under a used key: see `other-body`"));
        }
        eye.at_most(seen, 0, 1, cause::NO_FINGERPRINT, &what)?;
        let reply = eye.heard(seen, "look-alike")?;
        // Refused, and not for the key's sake: it may not be what the service takes at all.
        if (400..500).contains(&reply.status) && !eye.profile.mismatch.contains(&reply.status) {
            return Err(not_shown(format!("{what} was answered {}, perhaps for what it says", reply.status)));
        }
        eye.mismatch(reply, cause::LOSSY, &what)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: None, judge })
}
