//! The same key where it means something else.

use super::cause::{self, Cause};
use super::judge::{fail, is_success, not_shown};
use super::{Check, Eye, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Reply, Scenario, Seen, Step};
use crate::verify::template::Request;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check(
            "other-tenant",
            "Scope",
            &["G-1", "G-5"],
            "Another tenant with the same key has its own operation and sees nothing of the first.",
            tenant,
        ),
        check(
            "other-route",
            "Scope",
            &["G-1"],
            "The same key on another route is not answered from the first.",
            route,
        ),
        check(
            "other-method",
            "Scope",
            &["G-1", "G-4"],
            "The same key with another method is not answered from the first.",
            method,
        ),
    ]
}

fn tenant(make: &mut Make<'_>) -> Result<Plan, String> {
    if make.setup.other_tenant.is_empty() {
        return Err("give the headers of another tenant (--other-tenant)".into());
    }
    if !make.setup.profile.per_tenant {
        return Err("the profile does not say that tenants have keys of their own".into());
    }
    let (tag, key) = (make.tag(), make.key());
    let first = make.request(&tag, &key);
    // Equal in everything else: only the tenant can make it another operation.
    let mut second = first.clone();
    for (name, value) in &make.setup.other_tenant {
        second = second.instead(name, value.as_str());
    }
    let steps = vec![
        Step::Send(vec![plain("first", first.clone())]),
        Step::Send(vec![plain("other tenant", second)]),
        Step::Send(vec![plain("retry", first)]),
    ];
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.first(seen, "first")?;
        let other = eye.heard(seen, "other tenant")?;
        let leaked = Err(fail(cause::TENANT_LEAK, "another tenant got the first tenant's answer"));
        if eye.is_marked(other) == Some(true) {
            return leaked;
        }
        if matches!(other.status, 401 | 403) {
            return Err(not_shown(format!("the other tenant was answered {}: who is it?", other.status)));
        }
        if !is_success(other) {
            let what = format!("another tenant with the same key was answered {}", other.status);
            return Err(fail(cause::SHARED_SCOPE, what));
        }
        match eye.effects(seen, 0) {
            Some(0..2) if other.body == first.body => return leaked,
            Some(0..2) => {
                let what = "another tenant's request had no effect of its own";
                return Err(fail(cause::SHARED_SCOPE, what));
            }
            _ => eye.at_most(seen, 0, 2, cause::NOT_IDEMPOTENT, "two tenants and a retry")?,
        }
        eye.same(first, eye.heard(seen, "retry")?, "retry")?;
        eye.counted(seen)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 2)] }, insist: None, judge })
}

/// By its marker; without one, by its bytes.
fn is_replay_of(eye: &Eye, first: &Reply, other: &Reply) -> bool {
    let equal = is_success(other) && !first.body.is_empty() && first.body == other.body;
    eye.is_marked(other).unwrap_or(equal)
}

fn route(make: &mut Make<'_>) -> Result<Plan, String> {
    let other = make.setup.other_route.clone();
    let other = other.ok_or("give another route of the service (--other-route)")?;
    let (own, others, key) = (make.tag(), make.tag(), make.key());
    let second = make.keyed(&other, &others, &key);
    elsewhere(make, own, &key, second, "another route")
}

fn method(make: &mut Make<'_>) -> Result<Plan, String> {
    let other = make.setup.other_method.clone();
    let other = other.ok_or("give another method that the path takes (--other-method)")?;
    let (own, others, key) = (make.tag(), make.tag(), make.key());
    let mut second = make.request(&others, &key);
    if matches!(other.as_str(), "GET" | "HEAD" | "DELETE" | "OPTIONS") {
        second.body = bytes::Bytes::new();
    }
    second.method = other;
    elsewhere(make, own, &key, second, "another method")
}

fn elsewhere(
    make: &Make<'_>,
    own: String,
    key: &str,
    second: Request,
    what: &'static str,
) -> Result<Plan, String> {
    let first = make.request(&own, key);
    let steps = vec![
        Step::Send(vec![plain("first", first.clone())]),
        Step::Send(vec![plain(what, second)]),
        Step::Send(vec![plain("retry", first)]),
    ];
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        const SHARED: Cause = cause::SHARED_SCOPE;
        let first = eye.first(seen, "first")?;
        let other = eye.heard(seen, what)?;
        if is_replay_of(&eye, first, other) {
            return Err(fail(SHARED, format!("{what} with the same key got the first one's answer")));
        }
        match eye.profile.per_route {
            true if is_success(other) => {}
            true if eye.profile.mismatch.contains(&other.status) => {
                let what = format!("{what} with the same key was answered {}", other.status);
                return Err(fail(SHARED, what));
            }
            true => return Err(not_shown(format!("{what} was answered {}", other.status))),
            false if eye.profile.mismatch.is_empty() => {
                return Err(not_shown(format!("the profile does not say what {what} under a used key gets")));
            }
            false => eye.mismatch(other, cause::NO_FINGERPRINT, what)?,
        }
        eye.same(first, eye.heard(seen, "retry")?, "retry")?;
        eye.once(seen, 0, cause::NOT_IDEMPOTENT, "the first route")
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(own, 1)] }, insist: None, judge })
}
