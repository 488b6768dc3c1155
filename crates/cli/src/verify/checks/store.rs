//! The store goes away, and comes back.

use std::time::Duration;

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::{Check, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Hook, Scenario, Seen, Step};

/// How long a store may go on after the command that stops it has ended, and a pool may live on its connections.
const STOPS: Duration = Duration::from_secs(1);

pub(super) fn checks() -> Vec<Check> {
    vec![check(
        "store-outage",
        "Store",
        &["G-18"],
        "Without its store nothing runs, and afterwards all is as before.",
        outage,
    )]
}

fn outage(make: &mut Make<'_>) -> Result<Plan, String> {
    let hooks = &make.setup.hooks;
    if !hooks.has(Hook::StoreStop) || !hooks.has(Hook::StoreStart) {
        return Err("give commands that stop and start the store (--store-stop, --store-start)".into());
    }
    let (known, during, refused) = (make.tag(), make.tag(), make.tag());
    let [one, two, three] = [make.key(), make.key(), make.key()];
    let before = make.request(&known, &one);
    let meanwhile = make.request(&during, &two);
    let given_up = make.request(&refused, &three);
    let steps = vec![
        Step::Send(vec![plain("first", before.clone())]),
        Step::Hook(Hook::StoreStop),
        Step::Wait(STOPS),
        Step::Send(vec![plain("new", meanwhile.clone())]),
        Step::Send(vec![plain("given up", given_up)]),
        Step::Send(vec![plain("retry", before.clone())]),
        Step::Hook(Hook::StoreStart),
    ];
    let insist =
        make.insist_long(vec![plain("new, afterwards", meanwhile), plain("retry, afterwards", before)]);
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.first(seen, "first")?;
        let what = "a new request while the store was away";
        let refused = |name| eye.heard(seen, name).map(|reply| !is_success(reply));
        if !refused("new")? && refused("given up")? && eye.effects(seen, 2) == Some(0) {
            let why =
                "the store went away only after its command had ended: a request was still served by it";
            return Err(not_shown(why));
        }
        for name in ["new", "given up"] {
            let reply = eye.heard(seen, name)?;
            if is_success(reply) {
                let what = format!("{what} was answered {}", reply.status);
                return Err(fail(cause::RUNS_WITHOUT_STORE, what));
            }
            if !eye.profile.store_away.is_empty() {
                eye.status(reply, &eye.profile.store_away, what)?;
            }
        }
        eye.at_most(seen, 2, 0, cause::RUNS_WITHOUT_STORE, what)?;
        eye.at_most(seen, 1, 1, cause::RUNS_WITHOUT_STORE, "a request during the outage and after it")?;
        let retry = eye.heard(seen, "retry")?;
        // Who refused it during the outage and ran it afterwards has forgotten it.
        let cause = if is_success(retry) { cause::RUNS_WITHOUT_STORE } else { cause::NOT_DURABLE };
        eye.at_most(seen, 0, 1, cause, "a request from before the outage")?;
        if is_success(retry) {
            // Whoever remembers without the store may replay.
            eye.same(first, retry, "retry")?;
        }
        let after = eye.ended_well(seen, "new, afterwards", cause::STUCK_AFTER_OUTAGE)?;
        if is_success(after) {
            eye.at_least(seen, 1, 1, "a request that was repeated after the outage")?;
        }
        let again = eye.ended_well(seen, "retry, afterwards", cause::STUCK_AFTER_OUTAGE)?;
        eye.same(first, again, "retry, afterwards")?;
        eye.counted(seen)
    });
    let counts = vec![exactly(known, 1), exactly(during, 1), exactly(refused, 0)];
    Ok(Plan { scenario: Scenario { steps, counts }, insist: Some(insist), judge })
}
