//! Services that keep the contract, and services that break it in one way: each must be told apart by its cause.

mod judges;
mod service;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use semel::runtime::Boxed;

use super::{Base, Make, all};
use crate::verify::profile::Profile;
use crate::verify::runner::verify;
use crate::verify::scenario::{Hook, Step};
use crate::verify::scorecard::{About, Finding, Scorecard, Verdict};
use crate::verify::setup::{Effects, Hooks, Setup, Watch};
use crate::verify::template::Template;
use service::{Broken, Service};

struct Counter(Arc<Service>);

impl Effects for Counter {
    fn count(&self, tag: &str) -> Boxed<Result<u64, String>> {
        let count = self.0.effects.lock().unwrap().get(tag).copied().unwrap_or(0);
        Box::pin(async move { Ok(count) })
    }

    fn shell(&self) -> Option<String> {
        None
    }
}

/// Sees an effect under a name for the first time so long after it was first asked for it.
struct Lagging(Counter, Duration, Mutex<HashMap<String, Instant>>);

impl Effects for Lagging {
    fn count(&self, tag: &str) -> Boxed<Result<u64, String>> {
        let Self(counter, lag, asked) = self;
        let since = *asked.lock().unwrap().entry(tag.to_owned()).or_insert_with(Instant::now);
        let lags = since.elapsed() < *lag && counter.0.effects.lock().unwrap().get(tag) == Some(&2);
        match lags {
            true => Box::pin(async { Ok(1) }),
            false => counter.count(tag),
        }
    }

    fn shell(&self) -> Option<String> {
        None
    }
}

struct Commands(Arc<Service>);

impl Hooks for Commands {
    fn has(&self, _: Hook) -> bool {
        true
    }

    fn run(&self, hook: Hook) -> Boxed<Result<(), String>> {
        {
            let mut up = self.0.up.lock().unwrap();
            match hook {
                Hook::Kill => up.0 = false,
                Hook::Start => up.0 = true,
                Hook::StoreStop => up.1 = false,
                Hook::StoreStart => up.1 = true,
            }
        }
        if hook == Hook::Kill && self.0.broken == Broken::Forgets {
            self.0.keys.lock().unwrap().clear();
        }
        Box::pin(async { Ok(()) })
    }

    fn shell(&self, _: Hook) -> Option<String> {
        None
    }
}

/// Says that it killed, and did not.
struct Spares;

impl Hooks for Spares {
    fn has(&self, _: Hook) -> bool {
        true
    }

    fn run(&self, _: Hook) -> Boxed<Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn shell(&self, _: Hook) -> Option<String> {
        None
    }
}

struct Silent;

impl Watch for Silent {
    fn began(&self, _: &About, _: usize, _: usize) {}
    fn ended(&self, _: &Finding) {}
}

fn profile() -> Profile {
    Profile {
        name: "test".into(),
        key_header: "Idempotency-Key".into(),
        key_chars_max: Some(255),
        quoted_is_bare: true,
        missing_key: None,
        bad_key: vec![400],
        mismatch: vec![422],
        in_flight: vec![409],
        unknown: vec![409],
        store_away: vec![503],
        replay_marker: Some(("Idempotent-Replayed".into(), "true".into())),
        retry_after: true,
        problems: true,
        errors_kept: true,
        canonical_json: true,
        per_tenant: true,
        per_route: true,
        headers_vary: vec![],
        headers_dropped: vec!["set-cookie".into()],
    }
}

fn template(url: &str, body: &'static str) -> Template {
    let headers = vec![
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("Authorization".to_owned(), "Bearer one".to_owned()),
    ];
    Template { method: "POST".into(), url: url.into(), headers, body: body.into() }
}

const ORDER: &str = r#"{"tag":"{tag}","amount":2000}"#;

fn setup(service: &Arc<Service>, url: &str) -> Setup {
    Setup {
        template: template(url, ORDER),
        profile: profile(),
        other_tenant: vec![("Authorization".into(), "Bearer two".into())],
        other_route: Some(template(&url.replace("/pay", "/refund"), ORDER)),
        other_method: Some("GET".into()),
        failing: Some(template(url, r#"{"tag":"{tag}","amount":0}"#)),
        slow: None,
        large: None,
        effects: Some(Arc::new(Counter(service.clone()))),
        hooks: Arc::new(Commands(service.clone())),
        seed: 7,
        race_max: 32,
        expiry: None,
        answer_max: Duration::from_secs(3),
        requests_max: 5_000,
        time_max: Duration::from_secs(60),
        only: vec![],
        skip: vec!["kill".into()],
    }
}

async fn card(broken: Broken, change: impl Fn(&mut Setup)) -> Scorecard {
    let (service, url) = Service::start(broken).await;
    let mut setup = setup(&service, &url);
    change(&mut setup);
    verify(&setup, &Silent).await
}

fn found<'c>(card: &'c Scorecard, id: &str) -> &'c Finding {
    card.findings.iter().find(|found| found.about.id == id).unwrap()
}

#[track_caller]
fn fails(card: &Scorecard, expected: &[(&str, &str)]) {
    for (id, word) in expected {
        match &found(card, id).verdict {
            Verdict::Fail { cause, .. } => assert_eq!(cause, word, "{id}"),
            other => panic!("{id} is {other:?}, not {word}"),
        }
    }
    for finding in &card.findings {
        let is_expected = expected.iter().any(|(id, _)| *id == finding.about.id);
        let has_failed = matches!(finding.verdict, Verdict::Fail { .. });
        assert!(is_expected || !has_failed, "{} is {:?}", finding.about.id, finding.verdict);
    }
}

fn only(ids: &'static [&'static str]) -> impl Fn(&mut Setup) {
    |setup| setup.only = ids.iter().map(|id| id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_keeps_the_contract_passes() {
    // In three parts at once, since each waits for its counts.
    let (one, two) = (["Replay", "Body", "Race", "Flight"], ["Cut", "Connection", "Key"]);
    let names = |families: &[&str]| families.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let (one, two) = (names(&one), names(&two));
    let rest = [one.clone(), two.clone(), names(&["kill"])].concat();
    let cards = [(one, names(&["kill"])), (two, names(&["kill"])), (vec![], rest)];
    let cards = join_all(cards.map(|(only, skip)| async move {
        card(Broken::No, |setup| (setup.only, setup.skip) = (only.clone(), skip.clone())).await
    }));
    let findings: Vec<Finding> = cards.await.into_iter().flat_map(|card| card.findings).collect();
    assert_eq!(findings.len(), all().len() - 1, "all but the one that needs a process to kill");
    let hidden = ["expiry", "late-effect", "replay-large-answer"];
    for finding in findings {
        match hidden.contains(&finding.about.id) {
            true => assert!(matches!(finding.verdict, Verdict::NotShown(_)), "{finding:?}"),
            false => assert_eq!(finding.verdict, Verdict::Pass, "{}", finding.about.id),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_ignores_keys_is_found_out() {
    let card =
        card(Broken::Ignores, only(&["replay-effect", "replay-marker", "race", "cut", "key-quoted"])).await;
    fails(
        &card,
        &[
            ("replay-effect", "not-idempotent"),
            ("replay-marker", "no-marker"),
            ("race", "not-atomic"),
            ("race-load", "not-atomic"),
            ("cut-before-head", "lost-answer-reruns"),
            ("cut-in-head", "lost-answer-reruns"),
            ("cut-in-body", "lost-answer-reruns"),
            ("abort", "lost-answer-reruns"),
            ("slow-body", "not-atomic"),
            ("key-quoted", "quotes-count"),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_comes_long_after_its_answer_is_found_when_all_is_over() {
    let card = card(Broken::WorksLater, only(&["replay-effect", "race", "equal-bodies"])).await;
    assert!(
        matches!(
            found(&card, "replay-effect").verdict,
            Verdict::Fail { cause: "came-later" | "not-idempotent", .. }
        ),
        "{:?}",
        found(&card, "replay-effect").verdict
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_takes_few_requests_is_not_blamed_for_it() {
    // Every check insists for as long as an answer may take.
    let card = card(Broken::Limits, |setup| {
        only(&["Replay", "Body", "Key", "Scope", "JSON"])(setup);
        setup.answer_max = Duration::from_millis(400);
    })
    .await;
    let failed: Vec<_> = card.findings.iter().filter(|f| matches!(f.verdict, Verdict::Fail { .. })).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(card.totals().2 > 10, "most of it is not shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_before_taking_loses_a_race_of_two() {
    let card = card(Broken::LooksFirst, only(&["replay-effect", "race", "in-flight"])).await;
    fails(&card, &[("race", "not-atomic"), ("race-load", "not-atomic"), ("in-flight", "not-atomic")]);
    let race = found(&card, "race");
    assert_eq!(race.scenario.counts.len(), 1);
    assert_eq!(race.seen.effects, [Some(2)], "two racers show it");
    let load = found(&card, "race-load");
    assert_eq!(load.scenario.counts.len(), 1, "one key of the load shows it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mistake_has_its_own_cause() {
    let mistakes = [
        (Broken::NoFingerprint, &[("other-body", "no-fingerprint")][..]),
        (Broken::OneTenant, &[("other-tenant", "tenant-leak")]),
        (
            Broken::Floats,
            &[
                ("json-large-numbers", "lossy"),
                ("json-decimals", "lossy"),
                ("json-one", "lossy"),
                ("json-twice", "lossy"),
            ],
        ),
        (Broken::Rewrites, &[("replay", "replay-altered")]),
        (Broken::Cookies, &[("replay-secrets", "secret-replayed")]),
        (Broken::AnyKey, &[("key-empty", "key-not-checked"), ("key-twice", "key-not-checked")]),
        (Broken::Forgets, &[("kill-after-answer", "not-durable")]),
        (Broken::OpensWithoutStore, &[("store-outage", "runs-without-store")]),
        (Broken::DropsClaims, &[("abort", "lost-answer-reruns")]),
    ];
    let cards = join_all(mistakes.map(|(broken, expected)| async move {
        let ids: Vec<String> = expected.iter().map(|(id, _)| id.to_string()).collect();
        (card(broken, |setup| setup.only = ids.clone()).await, expected)
    }));
    for (card, expected) in cards.await {
        fails(&card, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_that_kills_nothing_proves_nothing_and_hides_nothing() {
    // G-14
    let spared = |setup: &mut Setup| {
        only(&["kill-after-answer"])(setup);
        setup.hooks = Arc::new(Spares);
    };
    let good = card(Broken::No, spared).await;
    let verdict = &found(&good, "kill-after-answer").verdict;
    assert!(
        matches!(verdict, Verdict::NotShown(why) if why.contains("did not end the service")),
        "{verdict:?}"
    );
    fails(&card(Broken::Ignores, spared).await, &[("kill-after-answer", "not-durable")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stray_503_is_no_flaw_and_one_that_comes_each_time_is() {
    let ids =
        ["replay", "replay-effect", "other-body", "key-longest", "key-quoted", "remembered", "json-order"];
    let some = |setup: &mut Setup| setup.only = ids.map(str::to_owned).to_vec();
    let strays = card(Broken::Strays, some).await;
    for id in ids {
        assert_eq!(found(&strays, id).verdict, Verdict::Pass, "{id}");
    }
    let replay = |setup: &mut Setup| only(&["replay"])(setup);
    let refuses = card(Broken::RefusesReplays, replay).await;
    assert!(
        matches!(found(&refuses, "replay").verdict, Verdict::Fail { cause: "replay-altered", .. }),
        "{:?}",
        found(&refuses, "replay").verdict
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_lags_is_not_taken_for_a_lost_effect() {
    let lagging = |service: &Arc<Service>| {
        // Longer than a check waits for its count.
        Lagging(Counter(service.clone()), Duration::from_millis(4_500), Mutex::default())
    };
    let ids = || vec!["other-tenant".to_owned(), "equal-bodies".to_owned()];
    let (service, url) = Service::start(Broken::No).await;
    let setup = Setup { effects: Some(Arc::new(lagging(&service))), only: ids(), ..setup(&service, &url) };
    let card = verify(&setup, &Silent).await;
    for id in ["other-tenant", "equal-bodies"] {
        let verdict = &found(&card, id).verdict;
        assert!(
            matches!(verdict, Verdict::NotShown(why) if why.contains("the counter lags")),
            "{id}: {verdict:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_profile_does_not_say_about_long_keys_is_not_judged() {
    let open = |setup: &mut Setup| {
        only(&["key-longest", "key-too-long"])(setup);
        setup.profile.key_chars_max = None;
    };
    let card = card(Broken::AnyKey, open).await;
    for id in ["key-longest", "key-too-long"] {
        assert!(matches!(&found(&card, id).verdict, Verdict::NotShown(why) if why.contains("key_chars_max")));
    }
}

#[tokio::test]
async fn a_key_is_given_time_to_be_forgotten() {
    // G-10: a second and a tenth of its life beyond what was said.
    let (service, url) = Service::start(Broken::No).await;
    let setup = Setup { expiry: Some(Duration::from_secs(20)), ..setup(&service, &url) };
    let check = all().into_iter().find(|check| check.about.id == "expiry").unwrap();
    let plan = (check.plan)(&mut Make::new(&setup, &Base::default(), 1, "expiry", 0, 1)).unwrap();
    let waits = plan.scenario.steps.iter().map(|step| match step {
        Step::Wait(pause) => *pause,
        _ => Duration::ZERO,
    });
    assert_eq!(waits.sum::<Duration>(), Duration::from_secs(23));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_every_replay_loses_is_one_flaw_and_not_a_race() {
    let card = card(Broken::LosesHeaders, only(&["replay", "race", "other-body", "json-order"])).await;
    fails(&card, &[("replay", "replay-altered")]);
    assert_eq!(found(&card, "race").verdict, Verdict::Pass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_every_replay_has_is_one_flaw_and_nothing_is_stuck() {
    let card =
        card(Broken::Conflicts, only(&["replay", "race", "cut", "other-body", "kill-after-answer"])).await;
    fails(&card, &[("replay", "replay-altered")]);
    let verdict = &found(&card, "abort").verdict;
    assert!(matches!(verdict, Verdict::NotShown(why) if why.contains("every retry is answered 409")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_compares_no_bodies_is_not_told_that_it_compares_them_badly() {
    let card = card(Broken::NoFingerprint, only(&["other-body", "json-one", "json-twice"])).await;
    fails(&card, &[("other-body", "no-fingerprint")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_nobody_promised_is_no_alteration() {
    let unmarked = |setup: &mut Setup| {
        only(&["replay", "race"])(setup);
        setup.profile.replay_marker = None;
    };
    fails(&card(Broken::No, unmarked).await, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_free_before_its_time_was_forgotten() {
    // G-10
    let wait = |setup: &mut Setup| {
        only(&["expiry"])(setup);
        setup.expiry = Some(Duration::from_millis(40));
    };
    fails(&card(Broken::Ignores, wait).await, &[("expiry", "forgets-early")]);
    fails(&card(Broken::No, wait).await, &[("expiry", "never-expires")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_success_without_an_effect_is_found_once_the_counter_is_known_to_count() {
    // Its plain request has no effect either, so nothing is claimed about a counter that counts nothing.
    let card = card(Broken::Lazy, only(&["replay-effect"])).await;
    assert!(
        matches!(&found(&card, "replay-effect").verdict, Verdict::NotShown(why) if why.contains("counter"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_counter_nothing_is_claimed_that_only_a_count_shows() {
    let blind = |ids: &'static [&'static str]| {
        move |setup: &mut Setup| {
            only(ids)(setup);
            setup.effects = None;
        }
    };
    let good = card(Broken::No, blind(&["replay", "race"])).await;
    assert_eq!(found(&good, "replay").verdict, Verdict::Pass);
    for id in ["replay-effect", "race", "race-load"] {
        assert!(
            matches!(&found(&good, id).verdict, Verdict::NotShown(why) if why.contains("--count")),
            "{id}"
        );
    }
    let bad = card(Broken::LooksFirst, blind(&["race"])).await;
    fails(&bad, &[("race", "answers-differ"), ("race-load", "answers-differ")]);
}

#[tokio::test]
async fn a_service_that_is_not_there_shows_nothing() {
    let gone = card(Broken::No, |setup| setup.template.url = "http://127.0.0.1:1/pay".into()).await;
    let says =
        |verdict: &Verdict, word: &str| matches!(verdict, Verdict::NotShown(why) if why.contains(word));
    assert!(gone.findings.iter().all(|found| says(&found.verdict, "no connection")));
    let refused = card(Broken::No, |setup| setup.template = setup.failing.clone().unwrap()).await;
    assert!(refused.findings.iter().all(|found| says(&found.verdict, "answered 400: nothing to replay")));
}

#[tokio::test]
async fn a_spent_budget_is_said_and_nothing_more_is_sent() {
    let card = card(Broken::No, |setup| setup.requests_max = 10).await;
    assert!(card.requests <= 10, "{}", card.requests);
    let last = card.findings.last().unwrap();
    assert_eq!(last.verdict, Verdict::NotShown("the budget of 10 requests is spent".into()));
    assert_eq!(found(&card, "replay").verdict, Verdict::Pass);
}

#[tokio::test]
async fn the_same_seed_plans_the_same_with_other_keys() {
    let (service, url) = Service::start(Broken::No).await;
    let setup = setup(&service, &url);
    let base = Base { latency: Duration::from_secs(1), ..Base::default() };
    let waits = |salt: u64, nth: u64| {
        let mut make = Make::new(&setup, &base, salt, "kill", nth, 1);
        let moments = [make.part_of(base.latency), make.part_of(base.latency)];
        (moments, make.key(), make.tag())
    };
    assert_eq!(waits(1, 0), waits(1, 0));
    assert_eq!(waits(1, 0).0, waits(2, 0).0, "the salt of a run does not change what is played");
    assert_ne!(waits(1, 0).1, waits(2, 0).1, "two runs do not meet in one store");
    assert_ne!(waits(1, 0), waits(1, 1));
}

#[test]
fn checks_have_names_of_their_own_and_sentences() {
    let all = all();
    assert!(all.len() > 35, "{}", all.len());
    for (at, check) in all.iter().enumerate() {
        let About { id, must, rules, .. } = check.about;
        assert!(all[..at].iter().all(|other| other.about.id != id), "{id}");
        assert!(must.ends_with('.') && !rules.is_empty(), "{id}");
    }
}
