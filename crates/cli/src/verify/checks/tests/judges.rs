//! Judges by themselves: what they say about answers and effects that are made up here.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use semel::runtime::Boxed;

use super::super::{Base, Make, all};
use super::{ORDER, profile, template};
use crate::verify::profile::Profile;
use crate::verify::scenario::{Answer, Hook, Reply, Seen};
use crate::verify::scorecard::Verdict;
use crate::verify::setup::{Effects, Hooks, Setup};

/// What a judge says about answers and effects made up here: name, status (or no answer), body.
fn judged(id: &str, answers: &[(&str, Result<u16, &str>, &'static str)], effects: &[u64]) -> Verdict {
    let profile = Profile { in_flight: vec![409, 423], unknown: vec![409, 503], ..profile() };
    let url = "http://127.0.0.1:1/pay";
    let counter: Arc<dyn Effects> = Arc::new(NoCounter);
    let setup = Setup {
        template: template(url, ORDER),
        profile,
        other_tenant: vec![],
        other_route: None,
        other_method: None,
        failing: None,
        slow: Some(template(url, ORDER)),
        large: None,
        effects: Some(counter),
        hooks: Arc::new(AnyHook),
        seed: 7,
        race_max: 2,
        expiry: None,
        answer_max: Duration::from_secs(1),
        requests_max: 0,
        time_max: Duration::ZERO,
        only: vec![],
        skip: vec![],
    };
    let base = Base { latency: Duration::from_millis(5), body_bytes: 2, ..Base::default() };
    let check = all().into_iter().find(|check| check.about.id == id).unwrap();
    let plan = (check.plan)(&mut Make::new(&setup, &base, 1, id, 0, 1)).unwrap();
    assert_eq!(plan.scenario.counts.len(), effects.len());
    let at = Duration::ZERO;
    let answer = |(name, status, body): &(&str, Result<u16, &str>, &'static str)| Answer {
        name: name.to_string(),
        sent: at,
        ended: at,
        reply: match status {
            Ok(status) => {
                Ok(Reply { status: *status, headers: vec![], body: Bytes::from_static(body.as_bytes()) })
            }
            Err(why) => Err(why.to_string()),
        },
    };
    let answers = answers.iter().map(answer).collect();
    let effects = effects.iter().map(|count| Some(*count)).collect();
    let seen = Seen { answers, effects, ..Seen::default() };
    (plan.judge)(&seen).err().unwrap_or(Verdict::Pass)
}

struct NoCounter;

impl Effects for NoCounter {
    fn count(&self, _: &str) -> Boxed<Result<u64, String>> {
        Box::pin(async { Err("nobody asks".into()) })
    }

    fn shell(&self) -> Option<String> {
        None
    }
}

struct AnyHook;

impl Hooks for AnyHook {
    fn has(&self, _: Hook) -> bool {
        true
    }

    fn run(&self, _: Hook) -> Boxed<Result<(), String>> {
        Box::pin(async { Err("nobody asks".into()) })
    }

    fn shell(&self, _: Hook) -> Option<String> {
        None
    }
}

fn cause_of(verdict: Verdict) -> String {
    match verdict {
        Verdict::Pass => "pass".into(),
        Verdict::Fail { cause, .. } => cause.into(),
        Verdict::NotShown(why) => format!("not shown: {why}"),
    }
}

#[test]
fn a_crash_is_judged_by_effects_and_by_what_was_claimed() {
    // G-15: two requests on their way, one kill.
    const LOST: Result<u16, &str> = Err("the connection broke");
    let kill = |one: (Result<u16, &'static str>, u16, u64), other: (Result<u16, &'static str>, u16, u64)| {
        let answers = [
            ("first 1", one.0, "a"),
            ("first 2", other.0, "b"),
            ("retry 1", Ok(409), "?"),
            ("retry 2", Ok(other.1), "b"),
            ("retry 1 again 2", Ok(one.1), "a"),
        ];
        cause_of(judged("kill", &answers, &[one.2, other.2]))
    };
    let fine = (Ok(201), 201, 1);
    assert_eq!(kill((LOST, 201, 1), fine), "pass");
    assert_eq!(kill((LOST, 409, 0), fine), "pass", "not known, and nothing happened");
    assert_eq!(kill((LOST, 503, 1), fine), "pass", "not known, and it happened");
    assert_eq!(kill((LOST, 201, 2), fine), "crash-reruns");
    assert_eq!(kill((LOST, 409, 2), fine), "crash-reruns", "whatever is said");
    assert_eq!(kill((LOST, 201, 0), fine), "dishonest");
    assert_eq!(kill((LOST, 500, 1), fine), "stuck");
    assert_eq!(kill((LOST, 423, 1), fine), "stuck", "still running, it says, and nothing runs");
    assert_eq!(kill((LOST, 201, 1), (Ok(201), 409, 1)), "not-durable");
    assert!(kill(fine, fine).starts_with("not shown: every request was answered"), "a kill that hit nothing");
}

#[test]
fn running_without_a_store_and_forgetting_over_an_outage_are_two_flaws() {
    // G-18
    let outage = |meanwhile: u16, effects: u64| {
        let answers = [
            ("first", Ok(201), "a"),
            ("new", Ok(503), ""),
            ("given up", Ok(503), ""),
            ("retry", Ok(meanwhile), "a"),
            ("new, afterwards", Ok(201), "b"),
            ("retry, afterwards", Ok(201), "a"),
        ];
        cause_of(judged("store-outage", &answers, &[effects, 1, 0]))
    };
    let late_stop = |given_up: u16, effects: u64| {
        let answers = [
            ("first", Ok(201), "a"),
            ("new", Ok(201), "b"),
            ("given up", Ok(given_up), "c"),
            ("retry", Ok(503), ""),
            ("new, afterwards", Ok(201), "b"),
            ("retry, afterwards", Ok(201), "a"),
        ];
        cause_of(judged("store-outage", &answers, &[1, 1, effects]))
    };
    assert!(late_stop(503, 0).starts_with("not shown: the store went away only after"));
    assert_eq!(late_stop(201, 1), "runs-without-store");
    assert_eq!(late_stop(503, 1), "runs-without-store", "refused, and done all the same");
    assert_eq!(outage(503, 1), "pass");
    assert_eq!(outage(201, 1), "pass", "it may remember");
    assert_eq!(outage(201, 2), "runs-without-store");
    assert_eq!(outage(503, 2), "not-durable");
}

#[test]
fn an_effect_that_comes_late_may_come_once() {
    // G-16
    let late = |first: u16, retry: u16, effects: u64| {
        let answers = [("first", Ok(first), ""), ("at once", Ok(409), ""), ("retry", Ok(retry), "")];
        cause_of(judged("late-effect", &answers, &[effects]))
    };
    assert_eq!(late(504, 409, 1), "pass");
    assert_eq!(late(504, 409, 0), "pass", "a fence may keep it out");
    assert_eq!(late(504, 201, 2), "late-effect-twice");
    assert_eq!(late(504, 201, 0), "effect-lost");
    assert!(late(201, 201, 1).starts_with("not shown: the slow request was answered 201"));
}

#[test]
fn a_failure_of_the_network_is_no_pass_and_hides_no_second_effect() {
    let race = |other: Result<u16, &'static str>, effects: u64| {
        let answers = [("racer 1", Ok(201), "a"), ("racer 2", other, "a"), ("afterwards", Ok(201), "a")];
        cause_of(judged("race", &answers, &[effects]))
    };
    assert_eq!(race(Ok(409), 1), "pass");
    assert_eq!(race(Ok(500), 1), "fails-in-race");
    assert_eq!(race(Err("reset"), 2), "not-atomic");
    assert_eq!(race(Ok(201), 0), "effect-lost");
    assert!(race(Err("reset"), 1).starts_with("not shown: "));
    assert!(race(Ok(429), 1).starts_with("not shown: "));
}
