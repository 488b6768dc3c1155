//! What refusals look like.

use super::cause;
use super::judge::{fail, is_success, not_shown};
use super::{Check, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Reply, Scenario, Seen, Step};

const RACERS: usize = 4;
const PROBLEM: &str = "application/problem+json";

pub(super) fn checks() -> Vec<Check> {
    vec![check("problems", "Refusal", &["G-22"], "Refusals are problem documents (RFC 9457).", problems)]
}

fn problems(make: &mut Make<'_>) -> Result<Plan, String> {
    if !make.setup.profile.problems {
        return Err("the profile does not ask for problem documents".into());
    }
    let (tag, key) = (make.tag(), make.key());
    let first = make.request(&tag, &key);
    let mut steps = vec![Step::Send(vec![plain("first", first.clone())])];
    if let Ok(other) = make.other(&first, &tag) {
        steps.push(Step::Send(vec![plain("other body", other)]));
    }
    let empty = make.setup.template.tagged(&tag).with(&make.setup.profile.key_header, "");
    steps.push(Step::Send(vec![plain("empty key", empty)]));
    // Of several at once, those told to come back are refusals, too.
    let (other_tag, other_key) = (make.tag(), make.key());
    let racer = |nth| plain(format!("racer {nth}"), make.request(&other_tag, &other_key));
    steps.push(Step::Send((1..=RACERS).map(racer).collect()));
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        eye.first(seen, "first")?;
        let mut shown = 0;
        for answer in &seen.answers {
            let Ok(reply) = &answer.reply else { continue };
            if is_success(reply) {
                continue;
            }
            shown += 1;
            if let Some(wrong) = no_problem(reply) {
                let what = format!("`{}` was answered {} and {wrong}", answer.name, reply.status);
                return Err(fail(cause::NOT_A_PROBLEM, what));
            }
        }
        if shown == 0 { Err(not_shown("nothing was refused")) } else { Ok(()) }
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: None, judge })
}

/// What keeps it from being a problem document.
fn no_problem(reply: &Reply) -> Option<String> {
    let kind = reply.header("content-type").unwrap_or("no content type");
    if !kind.to_ascii_lowercase().starts_with(PROBLEM) {
        return Some(format!("is {kind}, not {PROBLEM}"));
    }
    let document: serde_json::Value = match serde_json::from_slice(&reply.body) {
        Ok(document) => document,
        Err(error) => return Some(format!("its document is not JSON: {error}")),
    };
    let missing = ["type", "title"].into_iter().find(|name| !document[name].is_string());
    if let Some(name) = missing {
        return Some(format!("its document has no {name}"));
    }
    let status = &document["status"];
    (!status.is_null() && *status != reply.status).then(|| format!("its document says {status}"))
}
