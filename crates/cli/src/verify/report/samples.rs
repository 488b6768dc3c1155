//! Scorecards made by hand, for the tests of every form.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::Report;
use crate::verify::scenario::{Answer, Call, Count, Hook, How, Region, Reply, Scenario, Seen, Step};
use crate::verify::scorecard::{About, Finding, Scorecard, Verdict};
use crate::verify::template::Request;

/// Whatever a service may say to break a report.
pub(crate) const HOSTILE: &str = "\"'</failure>]]><script>alert(1)</script><img src=x onerror=y>&amp;\x1b[31m\0\r\n\u{202e}${x}`id`--> {{y}}";

/// Must not stand in any report.
pub(crate) const SECRET: &str = "s3cr3t-value";

/// Bytes of a large body.
pub(crate) const BIG: usize = 10_000;

pub(crate) struct Sample {
    pub(crate) card: Scorecard,
    pub(crate) scripts: BTreeMap<&'static str, PathBuf>,
}

impl Sample {
    pub(crate) fn report(&self) -> Report<'_> {
        Report { card: &self.card, scripts: &self.scripts }
    }
}

pub(crate) const REPLAY: About =
    About { id: "replay", family: "Replay", rules: &["G-14"], must: "A retry gets the first answer back." };
pub(crate) const RACE: About = About {
    id: "race",
    family: "Race",
    rules: &["G-8", "G-14"],
    must: "However many requests with one key come at once, one takes effect.",
};
pub(crate) const EXPIRY: About =
    About { id: "expiry", family: "Race", rules: &["G-10"], must: "A key is forgotten after its time." };

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A payment under a key, with a secret in its headers.
pub(crate) fn payment(url: &str, tag: &str, key: &str) -> Request {
    let body = format!(r#"{{"amount":2000,"reference":"{tag}"}}"#);
    let request = Request { method: "POST".into(), url: url.into(), headers: vec![], body: body.into() };
    let request = request.with("Authorization", format!("Bearer {SECRET}"));
    request.with("content-type", "application/json").with("Idempotency-Key", key)
}

pub(crate) fn call(name: &str, request: &Request, how: How) -> Call {
    Call { name: name.to_owned(), request: request.clone(), how }
}

pub(crate) fn answer(name: &str, sent: u64, ended: u64, status: u16, body: impl Into<Bytes>) -> Answer {
    let headers = vec![
        ("content-type".to_owned(), b"application/json".to_vec()),
        ("set-cookie".to_owned(), format!("id={SECRET}").into_bytes()),
    ];
    let reply = Ok(Reply { status, headers, body: body.into() });
    Answer { name: name.to_owned(), sent: ms(sent), ended: ms(ended), reply }
}

pub(crate) fn silent(name: &str, sent: u64, ended: u64, why: &str) -> Answer {
    Answer { name: name.to_owned(), sent: ms(sent), ended: ms(ended), reply: Err(why.to_owned()) }
}

pub(crate) fn found(about: About, verdict: Verdict, scenario: Scenario, seen: Seen) -> Finding {
    Finding { about, verdict, took: ms(1234), scenario, seen }
}

pub(crate) fn card(findings: Vec<Finding>) -> Scorecard {
    Scorecard {
        target: "POST http://127.0.0.1:8080/payments".into(),
        profile: "semel".into(),
        seed: u64::MAX,
        started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_794_801_600),
        took: ms(8125),
        requests: 312,
        findings,
    }
}

/// One check of each verdict, and nothing in it that means well.
pub(crate) fn hostile() -> Sample {
    let url = format!("http://me:{SECRET}@127.0.0.1:8080/payments?token={SECRET}&x=<script>");
    let request = payment(&url, "t-1-1", "<script>key</script>");
    let names = [HOSTILE, "racer 2", "racer 3"];
    let scenario = Scenario {
        steps: vec![
            Step::Send(vec![
                call(names[0], &request, How::Plain),
                call(names[1], &request, How::Cut(Region::InHead)),
                call(names[2], &request.clone().with(HOSTILE, HOSTILE), How::Abort(ms(5))),
            ]),
            Step::Wait(ms(20)),
            Step::Hook(Hook::Kill),
        ],
        counts: vec![Count { tag: "t-1-1".into(), allowed: 1..=1 }],
    };
    let seen = Seen {
        answers: vec![
            answer(names[0], 0, 12, 201, HOSTILE.repeat(200).as_bytes()[..BIG].to_vec()),
            answer(names[1], 1, 20, 500, &b"\xff\0<script>"[..]),
            silent(names[2], 1, 6, HOSTILE),
        ],
        effects: vec![Some(2)],
        events: vec![(HOSTILE.to_owned(), ms(30), ms(50))],
        spared: false,
    };
    let verdict = Verdict::Fail {
        cause: "not-atomic",
        what: HOSTILE.to_owned(),
        advice: "Claim the key in one atomic step, with a unique index, before the effect begins.",
    };
    let empty = || (Scenario::default(), Seen::default());
    let (nothing, unseen) = empty();
    let (none, not) = empty();
    let findings = vec![
        found(REPLAY, Verdict::Pass, nothing, unseen),
        found(RACE, verdict, scenario, seen),
        found(EXPIRY, Verdict::NotShown(HOSTILE.to_owned()), none, not),
    ];
    Sample { card: card(findings), scripts: BTreeMap::from([("race", "repro/race.sh".into())]) }
}
