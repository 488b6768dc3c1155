//! The scorecard for programs. Fields are added, never renamed or given another meaning; `format` grows if
//! that ever has to change.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel::Timestamp;
use serde::Serialize;

use super::{Report, how, shown_header};
use crate::time;
use crate::verify::safety::url_shown;
use crate::verify::scenario::{Answer, Call, Hook, Reply, Step};
use crate::verify::scorecard::{Finding, Verdict};

/// The number of this format.
const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    /// `semel verify` and its version.
    tool: &'static str,
    version: &'static str,
    target: &'a str,
    profile: &'a str,
    /// As text: it has more digits than the numbers of many languages.
    seed: String,
    /// RFC 3339, UTC.
    started: String,
    took_ms: f64,
    /// Requests that were sent.
    requests: u64,
    /// `fail` if any check failed, else `pass` if any passed, else `not_shown`.
    verdict: &'static str,
    totals: Totals,
    checks: Vec<Check<'a>>,
}

#[derive(Serialize)]
struct Totals {
    pass: usize,
    fail: usize,
    not_shown: usize,
}

#[derive(Serialize)]
struct Check<'a> {
    id: &'static str,
    family: &'static str,
    rules: &'static [&'static str],
    /// What must be true.
    must: &'static str,
    /// `pass`, `fail` or `not_shown`.
    verdict: &'static str,
    /// Of a failure: one word that does not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    /// Of a failure: what was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
    /// Why nothing can be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// Where the script is that shows the failure again.
    #[serde(skip_serializing_if = "Option::is_none")]
    script: Option<String>,
    took_ms: f64,
    /// What was done, in order.
    steps: Vec<Done<'a>>,
    effects: Vec<Effects<'a>>,
    /// In the order of the calls in `steps`.
    answers: Vec<Answered<'a>>,
    /// Commands and pauses.
    events: Vec<Event<'a>>,
}

/// One step, by what it is.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Done<'a> {
    /// At the same moment; the next step waits for all of them.
    Send(Vec<Called<'a>>),
    /// At the same moment; the next step does not wait.
    Start(Vec<Called<'a>>),
    /// Waits for what was started.
    Join {},
    WaitMs(f64),
    /// `kill`, `start`, `store_stop` or `store_start`.
    Hook(&'static str),
}

#[derive(Serialize)]
struct Called<'a> {
    name: &'a str,
    /// In words, if it was not sent in the usual way.
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<String>,
    method: &'a str,
    url: String,
    headers: Vec<(&'a str, String)>,
    #[serde(flatten)]
    body: Body<'a>,
}

#[derive(Serialize)]
struct Effects<'a> {
    tag: &'a str,
    allowed_min: u64,
    /// Absent if there is no most.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_max: Option<u64>,
    /// Null if they could not be counted.
    counted: Option<u64>,
}

#[derive(Serialize)]
struct Answered<'a> {
    name: &'a str,
    /// Since the scenario began.
    sent_ms: f64,
    ended_ms: f64,
    /// Why there is no whole answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(flatten)]
    reply: Option<Replied<'a>>,
}

#[derive(Serialize)]
struct Replied<'a> {
    status: u16,
    headers: Vec<(&'a str, String)>,
    #[serde(flatten)]
    body: Body<'a>,
}

/// As text, or in base64 if it is none.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Body<'a> {
    Body(&'a str),
    BodyBase64(String),
}

#[derive(Serialize)]
struct Event<'a> {
    what: &'a str,
    from_ms: f64,
    to_ms: f64,
}

/// The whole document.
pub(crate) fn write(report: &Report<'_>) -> String {
    let card = report.card;
    let (pass, fail, not_shown) = card.totals();
    let document = Document {
        format: FORMAT,
        tool: "semel verify",
        version: env!("CARGO_PKG_VERSION"),
        target: &card.target,
        profile: &card.profile,
        seed: card.seed.to_string(),
        started: started(card.started),
        took_ms: ms(card.took),
        requests: card.requests,
        verdict: match (fail, pass) {
            (1.., _) => "fail",
            (0, 1..) => "pass",
            (0, 0) => "not_shown",
        },
        totals: Totals { pass, fail, not_shown },
        checks: card.findings.iter().map(|finding| check(report, finding)).collect(),
    };
    let mut text = serde_json::to_string_pretty(&document).expect("it has text for keys and finite numbers");
    text.push('\n');
    text
}

/// When a run began, as RFC 3339.
pub(super) fn started(at: std::time::SystemTime) -> String {
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    time::write(Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(0)))
}

fn check<'a>(report: &Report<'_>, finding: &'a Finding) -> Check<'a> {
    let about = finding.about;
    let (cause, what, advice) = match &finding.verdict {
        Verdict::Fail { cause, what, advice } => (Some(*cause), Some(what.as_str()), Some(*advice)),
        Verdict::Pass | Verdict::NotShown(_) => (None, None, None),
    };
    let reason = match &finding.verdict {
        Verdict::NotShown(reason) => Some(reason.as_str()),
        Verdict::Pass | Verdict::Fail { .. } => None,
    };
    let counts = finding.scenario.counts.iter().enumerate().map(|(at, count)| Effects {
        tag: &count.tag,
        allowed_min: *count.allowed.start(),
        allowed_max: Some(*count.allowed.end()).filter(|most| *most != u64::MAX),
        counted: finding.seen.effects.get(at).copied().flatten(),
    });
    let events = finding.seen.events.iter();
    Check {
        id: about.id,
        family: about.family,
        rules: about.rules,
        must: about.must,
        verdict: match finding.verdict {
            Verdict::Pass => "pass",
            Verdict::Fail { .. } => "fail",
            Verdict::NotShown(_) => "not_shown",
        },
        cause,
        what,
        advice,
        reason,
        script: report.script(finding),
        took_ms: ms(finding.took),
        steps: finding.scenario.steps.iter().map(step).collect(),
        effects: counts.collect(),
        answers: finding.seen.answers.iter().map(answered).collect(),
        events: events.map(|(what, from, to)| Event { what, from_ms: ms(*from), to_ms: ms(*to) }).collect(),
    }
}

fn step(step: &Step) -> Done<'_> {
    match step {
        Step::Send(calls) => Done::Send(calls.iter().map(called).collect()),
        Step::Start(calls) => Done::Start(calls.iter().map(called).collect()),
        Step::Join => Done::Join {},
        Step::Wait(pause) => Done::WaitMs(ms(*pause)),
        Step::Hook(hook) => Done::Hook(match hook {
            Hook::Kill => "kill",
            Hook::Start => "start",
            Hook::StoreStop => "store_stop",
            Hook::StoreStart => "store_start",
        }),
    }
}

fn called(call: &Call) -> Called<'_> {
    Called {
        name: &call.name,
        how: how(call.how),
        method: &call.request.method,
        url: url_shown(&call.request.url),
        headers: headers(&call.request.headers),
        body: body(&call.request.body),
    }
}

fn answered(answer: &Answer) -> Answered<'_> {
    Answered {
        name: &answer.name,
        sent_ms: ms(answer.sent),
        ended_ms: ms(answer.ended),
        error: answer.reply.as_ref().err().map(String::as_str),
        reply: answer.reply.as_ref().ok().map(replied),
    }
}

fn replied(reply: &Reply) -> Replied<'_> {
    Replied { status: reply.status, headers: headers(&reply.headers), body: body(&reply.body) }
}

fn headers(headers: &[(String, Vec<u8>)]) -> Vec<(&str, String)> {
    headers.iter().map(|(name, value)| (name.as_str(), shown_header(name, value).into_owned())).collect()
}

fn body(body: &[u8]) -> Body<'_> {
    std::str::from_utf8(body).map_or_else(|_| Body::BodyBase64(STANDARD.encode(body)), Body::Body)
}

fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::verify::report::{all_calls, samples};

    #[test]
    fn every_field_is_read_back_and_no_secret_is_among_them() {
        let sample = samples::hostile();
        let text = write(&sample.report());
        assert!(!text.contains(samples::SECRET), "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["format"], 1);
        assert_eq!(document["seed"], u64::MAX.to_string());
        assert_eq!(document["verdict"], "fail");
        assert_eq!(document["totals"], serde_json::json!({"pass": 1, "fail": 1, "not_shown": 1}));
        assert_eq!(document["started"], "2026-11-16T04:00:00.000000Z");
        let failed = &document["checks"][1];
        assert_eq!(failed["what"], samples::HOSTILE);
        assert_eq!(failed["script"], "repro/race.sh");
        assert_eq!(
            failed["effects"][0],
            serde_json::json!({"tag": "t-1-1", "allowed_min": 1, "allowed_max": 1, "counted": 2})
        );
        let calls = failed["steps"][0]["send"].as_array().unwrap();
        assert_eq!(calls[0]["headers"][0], serde_json::json!(["Authorization", "(hidden)"]));
        assert_eq!(failed["answers"][0]["body"].as_str().unwrap().len(), samples::BIG);
        assert_eq!(failed["answers"][1]["body_base64"], "/wA8c2NyaXB0Pg==");
        assert_eq!(failed["answers"][2]["error"], samples::HOSTILE);
        assert_eq!(document["checks"][2]["reason"], samples::HOSTILE);
        assert_eq!(all_calls(&sample.card.findings[1].scenario).count(), calls.len());
    }
}
