//! Services that keep the contract, and services that break it in one way: each must be told apart by its cause.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use semel::runtime::Boxed;
use sha2::{Digest, Sha256};

use super::{Base, Make, all};
use crate::verify::json::Json;
use crate::verify::profile::Profile;
use crate::verify::runner::verify;
use crate::verify::scenario::{Answer, Hook, Reply, Seen};
use crate::verify::scorecard::{About, Finding, Scorecard, Verdict};
use crate::verify::setup::{Effects, Hooks, Setup, Watch};
use crate::verify::template::Template;

/// What a service does wrong. Nothing, by default.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Broken {
    #[default]
    No,
    /// It does not look at keys.
    Ignores,
    /// It looks for the key first and stores it afterwards.
    LooksFirst,
    /// It compares no bodies.
    NoFingerprint,
    /// It does not know tenants.
    OneTenant,
    /// It compares numbers as floating-point ones.
    Floats,
    /// It answers success and does nothing.
    Lazy,
    /// A replay is a new answer.
    Rewrites,
    /// A replay has lost a header.
    LosesHeaders,
    /// A replay has the status of a conflict.
    Conflicts,
    /// It gives cookies to replays.
    Cookies,
    /// It takes any key.
    AnyKey,
    /// It forgets all answers when killed.
    Forgets,
    /// It runs what it cannot look up.
    OpensWithoutStore,
    /// A replay queues the work once more, for later.
    WorksLater,
    /// It is right in everything, and takes so few requests that most are told to come back.
    Limits,
    /// A client that leaves takes the claim with it, but not the effect.
    DropsClaims,
}

struct Stored {
    print: Vec<u8>,
    answer: Option<(StatusCode, String)>,
}

struct Service {
    broken: Broken,
    keys: Mutex<HashMap<String, Stored>>,
    effects: Mutex<HashMap<String, u64>>,
    up: Mutex<(bool, bool)>,
    pace: Duration,
}

impl Service {
    async fn start(broken: Broken) -> (Arc<Self>, String) {
        let pace = Duration::from_millis(15);
        let service = Self {
            broken,
            keys: Mutex::default(),
            effects: Mutex::default(),
            up: Mutex::new((true, true)),
            pace,
        };
        let service = Arc::new(service);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pay", listener.local_addr().unwrap());
        let app = Router::new().fallback(serve).with_state(service.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (service, url)
    }

    fn print(&self, body: &[u8]) -> Vec<u8> {
        let text = match (self.broken, Json::read(body)) {
            (Broken::NoFingerprint, _) => Vec::new(),
            (Broken::Floats, Some(_)) => {
                let value: serde_json::Value = serde_json::from_slice(body).unwrap();
                let amount = value["amount"].as_f64().unwrap();
                format!("{amount}{}", value["tag"]).into_bytes()
            }
            (_, Some(Json::Members(mut members))) => {
                members.sort_by(|(one, _), (other, _)| one.cmp(other));
                Json::Members(members).write().into_bytes()
            }
            _ => body.to_vec(),
        };
        Sha256::digest(text).to_vec()
    }

    fn effect(&self, body: &[u8]) {
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let tag = value["tag"].as_str().unwrap_or_default().to_owned();
        if self.broken != Broken::Lazy {
            *self.effects.lock().unwrap().entry(tag).or_default() += 1;
        }
    }

    async fn run(&self, body: &[u8]) -> (StatusCode, String) {
        tokio::time::sleep(self.pace).await;
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        if value["amount"] == 0 {
            return (StatusCode::BAD_REQUEST, "nothing to pay".into());
        }
        self.effect(body);
        let id = semel::Nonce::random();
        (StatusCode::CREATED, format!("{{\"id\":\"{:?}\"}}", id.as_bytes()))
    }
}

fn problem(status: u16, kind: &str) -> Response {
    let body = format!("{{\"type\":\"urn:{kind}\",\"title\":\"{kind}\",\"status\":{status}}}");
    let status = StatusCode::from_u16(status).unwrap();
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::RETRY_AFTER, "1")];
    (status, headers, body).into_response()
}

/// Puts the claim back if its client leaves: what a careless handler does.
struct Claim<'a>(&'a Service, String, bool);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.2 {
            self.0.keys.lock().unwrap().remove(&self.1);
        }
    }
}

async fn serve(
    State(service): State<Arc<Service>>,
    method: Method,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let broken = service.broken;
    let (alive, has_store) = *service.up.lock().unwrap();
    if !alive {
        return problem(502, "down");
    }
    if broken == Broken::Limits && service.keys.lock().unwrap().len() > 5 {
        return problem(429, "too-many");
    }
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        return service.run(&body).await.into_response();
    };
    if method != Method::POST {
        return "a list".into_response();
    }
    let text = key.to_str().unwrap_or_default();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let is_bad = bare.is_empty() || bare.len() > 255 || keys.next().is_some();
    if is_bad && broken != Broken::AnyKey {
        return problem(400, "key");
    }
    let tenant = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let tenant = if broken == Broken::OneTenant { "" } else { tenant };
    let id = format!("{} {tenant} {bare}", uri.path());
    if !has_store && broken != Broken::OpensWithoutStore {
        return problem(503, "store");
    }
    if broken == Broken::Ignores || !has_store {
        return service.run(&body).await.into_response();
    }
    let (print, order) = (service.print(&body), body.clone());
    if let Some(stored) = service.keys.lock().unwrap().get(&id) {
        if stored.print != print {
            return problem(422, "reused");
        }
        let Some((status, body)) = stored.answer.clone() else { return problem(409, "in-flight") };
        let status = if broken == Broken::Conflicts { StatusCode::CONFLICT } else { status };
        if broken == Broken::WorksLater {
            let (service, order) = (service.clone(), order.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(900)).await;
                service.effect(&order);
            });
        }
        let body = if broken == Broken::Rewrites { body.replace("id", "ID") } else { body };
        let mut answer = (status, [("idempotent-replayed", "true")], body).into_response();
        if broken == Broken::Cookies {
            answer.headers_mut().insert(header::SET_COOKIE, "session=1".parse().unwrap());
        }
        return answer;
    }
    let stored = Stored { print, answer: None };
    if broken == Broken::LooksFirst {
        let answer = service.run(&body).await;
        let stored = Stored { answer: Some(answer.clone()), ..stored };
        service.keys.lock().unwrap().insert(id, stored);
        return answer.into_response();
    }
    // Between the look above and this nothing is awaited, but another thread may have been here.
    {
        let mut keys = service.keys.lock().unwrap();
        if keys.contains_key(&id) {
            return problem(409, "in-flight");
        }
        keys.insert(id.clone(), stored);
    }
    if broken == Broken::DropsClaims {
        let mut claim = Claim(&service, id.clone(), false);
        service.effect(&body);
        tokio::time::sleep(service.pace).await;
        claim.2 = true;
        let answer = (StatusCode::CREATED, "{}".to_owned());
        service.keys.lock().unwrap().get_mut(&id).unwrap().answer = Some(answer.clone());
        return answer.into_response();
    }
    // In a task of its own: a client that leaves stops nothing.
    let work = service.clone();
    let done = tokio::spawn(async move {
        let answer = work.run(&body).await;
        if let Some(stored) = work.keys.lock().unwrap().get_mut(&id) {
            stored.answer = Some(answer.clone());
        }
        answer
    });
    let answer = done.await.unwrap();
    let mut answer = (answer.0, [(header::SET_COOKIE, "session=1")], answer.1).into_response();
    if broken == Broken::LosesHeaders {
        answer.headers_mut().insert("x-receipt", "1".parse().unwrap());
    }
    answer
}

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

struct Silent;

impl Watch for Silent {
    fn began(&self, _: &About, _: usize, _: usize) {}
    fn ended(&self, _: &Finding) {}
}

fn profile() -> Profile {
    Profile {
        name: "test".into(),
        key_header: "Idempotency-Key".into(),
        key_chars_max: 255,
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
    let card = card(Broken::Limits, only(&["Replay", "Body", "Key", "Scope", "JSON"])).await;
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
    let seen = Seen { answers, effects: effects.iter().map(|count| Some(*count)).collect(), events: vec![] };
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
