//! Scripts are run by bash against services that have the flaw, and against one that has none.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel::runtime::Boxed;
use tower_service::Service as _;

use super::*;
use crate::verify::profile::Profile;
use crate::verify::report::samples::{self, answer, call, found, ms, payment, silent};
use crate::verify::scenario::{Count, Scenario, Seen};
use crate::verify::setup::{Effects, Hooks};
use crate::verify::template::Template;

/// What is wrong with a service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// It looks a key up, works, and writes it down then.
    NotAtomic,
    /// It does not compare requests.
    NoFingerprint,
    /// It does not know what a key is.
    NoMemory,
    /// It does not say that an answer is a replay.
    NoMarker,
}

/// A payments service that counts its payments by tag.
struct Service {
    flaw: Flaw,
    paid: Mutex<HashMap<String, u64>>,
    /// Request and answer by key.
    kept: Mutex<HashMap<String, (String, String)>>,
    /// Held while one is worked on, unless that is the flaw.
    turn: tokio::sync::Mutex<()>,
}

impl Service {
    fn new(flaw: Flaw) -> Arc<Self> {
        Arc::new(Self { flaw, paid: Mutex::default(), kept: Mutex::default(), turn: Default::default() })
    }

    async fn start(flaw: Flaw) -> SocketAddr {
        Self::listen(Self::new(flaw)).await
    }

    fn router(self: Arc<Self>) -> Router {
        Router::new().route("/payments", post(pay)).route("/count/{tag}", get(count)).with_state(self)
    }

    async fn listen(self: Arc<Self>) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, self.router()).await });
        address
    }

    /// Speaks nothing but HTTP/2.
    async fn listen_http2(self: Arc<Self>) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, router) = (listener.local_addr().unwrap(), self.router());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let router = router.clone();
                let answer = hyper::service::service_fn(move |request| router.clone().call(request));
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), answer));
            }
        });
        address
    }
}

async fn count(State(service): State<Arc<Service>>, Path(tag): Path<String>) -> String {
    service.paid.lock().unwrap().get(&tag).copied().unwrap_or(0).to_string()
}

async fn pay(State(service): State<Arc<Service>>, headers: HeaderMap, body: String) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    if text("authorization").as_deref() != Some("Bearer right") {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let Some(key) = text("idempotency-key") else { return StatusCode::BAD_REQUEST.into_response() };
    // What was begun is ended, whether or not the client stays.
    tokio::spawn(async move { work(&service, key, body).await }).await.unwrap()
}

async fn work(service: &Service, key: String, body: String) -> Response {
    let turn = if service.flaw == Flaw::NotAtomic { None } else { Some(service.turn.lock().await) };
    let kept = service.kept.lock().unwrap().get(&key).cloned();
    match kept {
        Some((first, _)) if first != body && service.flaw != Flaw::NoFingerprint => {
            return StatusCode::UNPROCESSABLE_ENTITY.into_response();
        }
        Some((_, answer)) if service.flaw == Flaw::NoMarker => {
            return (StatusCode::CREATED, answer).into_response();
        }
        Some((_, answer)) => {
            return (StatusCode::CREATED, [("idempotent-replayed", "true")], answer).into_response();
        }
        None => {}
    }
    tokio::time::sleep(ms(30)).await;
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    let number = {
        let mut paid = service.paid.lock().unwrap();
        *paid.entry(json["reference"].as_str().unwrap().to_owned()).or_default() += 1;
        paid.values().sum::<u64>()
    };
    let answer = format!("{{\"id\":\"pay_{number}\"}}");
    if service.flaw != Flaw::NoMemory {
        service.kept.lock().unwrap().insert(key, (body, answer.clone()));
    }
    drop(turn);
    (StatusCode::CREATED, answer).into_response()
}

/// Counts over HTTP, in scripts only.
struct Counter(SocketAddr);

impl Effects for Counter {
    fn count(&self, _tag: &str) -> Boxed<Result<u64, String>> {
        Box::pin(async { Err("these tests count in scripts".to_owned()) })
    }

    fn shell(&self) -> Option<String> {
        Some(format!("curl -s --noproxy '*' \"http://{}/count/$tag\"", self.0))
    }
}

/// Each command leaves a line in a file.
struct Noted(Option<std::path::PathBuf>);

impl Hooks for Noted {
    fn has(&self, _hook: Hook) -> bool {
        self.0.is_some()
    }

    fn run(&self, _hook: Hook) -> Boxed<Result<(), String>> {
        Box::pin(async { Err("these tests run commands in scripts".to_owned()) })
    }

    fn shell(&self, hook: Hook) -> Option<String> {
        self.0.as_ref().map(|file| format!("echo 'it is {hook:?}' >> '{}'", file.display()))
    }
}

fn setup(effects: Option<SocketAddr>) -> Setup {
    let template =
        Template { method: "POST".into(), url: "http://127.0.0.1/".into(), headers: vec![], body: "".into() };
    let profile = Profile {
        name: "test".into(),
        key_header: "Idempotency-Key".into(),
        key_chars_max: Some(255),
        quoted_is_bare: true,
        missing_key: Some(400),
        bad_key: vec![400],
        mismatch: vec![422],
        in_flight: vec![409],
        unknown: vec![],
        store_away: vec![503],
        replay_marker: Some(("idempotent-replayed".into(), "true".into())),
        retry_after: true,
        problems: true,
        errors_kept: true,
        canonical_json: true,
        per_tenant: true,
        per_route: true,
        headers_vary: vec!["date".into()],
        headers_dropped: vec!["set-cookie".into()],
    };
    Setup {
        template,
        profile,
        other_tenant: vec![],
        other_route: None,
        other_method: None,
        failing: None,
        slow: None,
        large: None,
        effects: effects.map(|address| Arc::new(Counter(address)) as Arc<dyn Effects>),
        hooks: Arc::new(Noted(None)),
        seed: 7,
        race_max: 8,
        expiry: None,
        answer_max: Duration::from_secs(10),
        requests_max: 1000,
        time_max: Duration::from_secs(60),
        only: vec![],
        skip: vec![],
    }
}

fn failed(steps: Vec<Step>, answers: Vec<Answer>, effects: Option<u64>) -> Finding {
    let counts = vec![Count { tag: "t-7-1".into(), allowed: 1..=1 }];
    let verdict = Verdict::Fail { cause: "flawed", what: samples::HOSTILE.into(), advice: "Mend it." };
    let seen = Seen { answers, effects: vec![effects], ..Seen::default() };
    found(samples::RACE, verdict, Scenario { steps, counts }, seen)
}

fn bare(name: &str, status: u16, body: &'static str, marked: bool) -> Answer {
    let mut answer = answer(name, 0, 5, status, body);
    if let Ok(reply) = &mut answer.reply {
        reply.headers = match marked {
            true => vec![("idempotent-replayed".into(), b"true".to_vec())],
            false => vec![],
        };
    }
    answer
}

/// Fewer rounds than a user gets: these flaws show at once.
async fn run(script: &str) -> (Option<i32>, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), script).unwrap();
    let mut bash = tokio::process::Command::new("bash");
    let bash = bash.arg(file.path()).env("AUTHORIZATION", "Bearer right").env("ROUNDS", "2");
    let Output { status, stdout, stderr } = child_output(bash).await;
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

async fn child_output(command: &mut tokio::process::Command) -> Output {
    command.kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(120), command.output());
    output.await.expect("a script ends").unwrap()
}

/// The script of a finding ends with 1 where the flaw is, twice, and with 0 where it is not.
async fn shows(flaw: Flaw, counted: bool, finding: impl Fn(&str) -> Finding) {
    for (flaw, code, times) in [(flaw, 1, 2), (Flaw::None, 0, 1)] {
        let address = Service::start(flaw).await;
        let finding = finding(&format!("http://{address}/payments"));
        let script = script(&finding, &setup(counted.then_some(address))).unwrap();
        assert!(!script.contains(samples::SECRET), "{script}");
        for _ in 0..times {
            let (ended, said) = run(&script).await;
            assert_eq!(ended, Some(code), "{said}\n{script}");
        }
    }
}

fn race(url: &str, effects: Option<u64>) -> Finding {
    let request = payment(url, "t-7-1", "k-7f3a99b1-1");
    let calls = (1..=4).map(|n| call(&format!("racer {n}"), &request, How::Plain)).collect();
    let answers = vec![
        bare("racer 1", 201, "{\"id\":\"pay_1\"}", false),
        bare("racer 2", 201, "{\"id\":\"pay_2\"}", false),
        bare("racer 3", 201, "{\"id\":\"pay_2\"}", true),
        bare("racer 4", 201, "{\"id\":\"pay_2\"}", true),
    ];
    failed(vec![Step::Send(calls)], answers, effects)
}

#[tokio::test]
async fn a_race_is_seen_by_its_effects() {
    shows(Flaw::NotAtomic, true, |url| race(url, Some(2))).await;
}

#[tokio::test]
async fn a_race_is_seen_by_its_answers_where_nothing_can_be_counted() {
    shows(Flaw::NotAtomic, false, |url| race(url, None)).await;
}

#[tokio::test]
async fn a_retry_with_another_answer_is_seen() {
    let finding = |url: &str| {
        let request = payment(url, "t-7-1", "k-7f3a99b1-1");
        let step = |name: &str| Step::Send(vec![call(name, &request, How::Plain)]);
        let answers = vec![bare("first", 201, "a", false), bare("retry", 201, "b", false)];
        failed(vec![step("first"), Step::Wait(ms(10)), step("retry")], answers, None)
    };
    shows(Flaw::NoMemory, false, finding).await;
}

#[tokio::test]
async fn a_replay_that_does_not_say_so_is_seen() {
    let finding = |url: &str| {
        let request = payment(url, "t-7-1", "k-7f3a99b1-1");
        let step = |name: &str| Step::Send(vec![call(name, &request, How::Plain)]);
        let answers = vec![bare("first", 201, "a", false), bare("retry", 201, "a", false)];
        failed(vec![step("first"), step("retry")], answers, Some(1))
    };
    shows(Flaw::NoMarker, true, finding).await;
}

#[tokio::test]
async fn another_request_under_a_used_key_is_seen() {
    let finding = |url: &str| {
        let first = payment(url, "t-7-1", "k-7f3a99b1-1");
        let other = payment(url, "t-7-2", "k-7f3a99b1-1");
        let steps = vec![
            Step::Send(vec![call("first", &first, How::Plain)]),
            Step::Send(vec![call("it's other", &other, How::Plain)]),
        ];
        failed(steps, vec![bare("first", 201, "a", false), bare("it's other", 201, "a", true)], None)
    };
    shows(Flaw::NoFingerprint, false, finding).await;
}

#[tokio::test]
async fn a_lost_answer_is_seen_however_it_was_lost() {
    let ways = [
        How::Cut(Region::BeforeHead),
        How::Cut(Region::InHead),
        How::Cut(Region::InBody),
        How::Abort(ms(60)),
        How::Slow { pieces: 3, pause: ms(5) },
    ];
    for how in ways {
        let finding = |url: &str| {
            let request = payment(url, "t-7-1", "k-7f3a99b1-1");
            let steps = vec![
                Step::Send(vec![call("first", &request, how)]),
                Step::Send(vec![call("retry", &request, How::Plain)]),
            ];
            let answers = vec![silent("first", 0, 3, "cut by us"), bare("retry", 201, "b", false)];
            failed(steps, answers, Some(2))
        };
        shows(Flaw::NoMemory, true, finding).await;
    }
}

#[tokio::test]
async fn pipelined_calls_go_over_one_connection_and_those_started_are_joined() {
    let finding = |url: &str| {
        let request = payment(url, "t-7-1", "k-7f3a99b1-1");
        let steps = vec![
            Step::Start(vec![call("early", &request, How::Plain)]),
            Step::Wait(ms(5)),
            Step::Send(vec![
                call("one", &request, How::Pipelined(1)),
                call("two", &request, How::Pipelined(1)),
            ]),
            Step::Join,
        ];
        let answers = ["early", "one", "two"].map(|name| bare(name, 201, "b", false)).to_vec();
        failed(steps, answers, Some(3))
    };
    let address = Service::start(Flaw::NoMemory).await;
    let script = script(&finding(&format!("http://{address}/payments")), &setup(Some(address))).unwrap();
    let (code, said) = run(&script).await;
    assert_eq!(code, Some(1), "{said}");
    for line in ["  early: 201", "  one: 201", "  two: 201", "  effects: 3, allowed 1"] {
        assert!(said.contains(line), "{line:?} is missing: {said}");
    }
    shows(Flaw::NoMemory, true, finding).await;
}

#[tokio::test]
async fn calls_over_http2_are_made_over_it() {
    let service = Service::new(Flaw::NoMemory);
    let counted = Service::listen(service.clone()).await;
    let address = Service::listen_http2(service).await;
    let request = payment(&format!("http://{address}/payments"), "t-7-1", "k-7f3a99b1-1");
    let calls = ["one", "two", "three"].map(|name| call(name, &request, How::Http2(1))).to_vec();
    let answers = ["one", "two", "three"].map(|name| bare(name, 201, "b", false)).to_vec();
    let finding = failed(vec![Step::Send(calls)], answers, Some(3));
    let (code, said) = run(&script(&finding, &setup(Some(counted))).unwrap()).await;
    assert_eq!(code, Some(1), "{said}");
    for line in ["  one: 201", "  two: 201", "  three: 201", "  effects: 3, allowed 1"] {
        assert!(said.contains(line), "{line:?} is missing: {said}");
    }
}

#[tokio::test]
async fn commands_are_run_and_the_service_is_waited_for() {
    let address = Service::start(Flaw::NoMemory).await;
    let request = payment(&format!("http://{address}/payments"), "t-7-1", "k-7f3a99b1-1");
    let steps = vec![
        Step::Send(vec![call("first", &request, How::Plain)]),
        Step::Hook(Hook::Kill),
        Step::Hook(Hook::Start),
        Step::Send(vec![call("retry", &request, How::Plain)]),
    ];
    let answers = ["first", "retry"].map(|name| bare(name, 201, "b", false)).to_vec();
    let finding = failed(steps, answers, Some(2));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("it is noted");
    let setup = Setup { hooks: Arc::new(Noted(Some(file.clone()))), ..setup(Some(address)) };
    let (code, said) = run(&script(&finding, &setup).unwrap()).await;
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "it is Kill\nit is Start\n");
    let without = Setup { hooks: Arc::new(Noted(None)), ..setup };
    let (code, said) = run(&script(&finding, &without).unwrap()).await;
    assert_eq!((code, said.contains("there is no command for kill")), (Some(2), true), "{said}");
}

struct Locked;

impl Hooks for Locked {
    fn has(&self, _hook: Hook) -> bool {
        true
    }

    fn run(&self, _hook: Hook) -> Boxed<Result<(), String>> {
        Box::pin(async { Err("these tests run commands in scripts".to_owned()) })
    }

    fn shell(&self, _hook: Hook) -> Option<String> {
        Some("DB_PASSWORD=hunter2 true".to_owned())
    }
}

#[tokio::test]
async fn a_command_with_a_password_is_asked_for() {
    let address = Service::start(Flaw::NoMemory).await;
    let request = payment(&format!("http://{address}/payments"), "t-7-1", "k-7f3a99b1-1");
    let steps = vec![Step::Send(vec![call("first", &request, How::Plain)]), Step::Hook(Hook::Kill)];
    let finding = failed(steps, vec![bare("first", 201, "b", false)], Some(2));
    let setup = Setup { hooks: Arc::new(Locked), ..setup(Some(address)) };
    let script = script(&finding, &setup).unwrap();
    assert!(!script.contains("hunter2") && script.contains("hook kill \"$KILL_COMMAND\""), "{script}");
    let (code, said) = run(&script).await;
    assert_eq!((code, said.contains("set KILL_COMMAND to the command for kill")), (Some(2), true), "{said}");
}

#[tokio::test]
async fn what_cannot_be_tried_is_not_called_mended() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let finding = race(&format!("http://{address}/payments"), None);
    let script = script(&finding, &setup(None)).unwrap();
    let (code, said) = run(&script).await;
    assert_eq!((code, said.contains("the service answered nothing")), (Some(2), true), "{said}");
    let mut without = tokio::process::Command::new("bash");
    let output = child_output(without.arg("-c").arg(&script).env_remove("AUTHORIZATION")).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("set AUTHORIZATION to the value of the header Authorization"), "{said}");
}

#[tokio::test]
async fn a_script_of_hostile_texts_is_still_a_script() {
    let sample = samples::hostile();
    let mut finding = sample.card.findings[1].clone();
    let odd = Request {
        body: (&b"\xff\0'$(id)`\n"[..]).into(),
        ..payment("http://127.0.0.1:9/", "t-1-1", "\x01\x02")
    };
    let ways = [How::Http2(1), How::Http2(1), How::Pipelined(2), How::Slow { pieces: 0, pause: ms(1) }];
    finding.scenario.steps.push(Step::Send(ways.map(|how| call("odd", &odd, how)).to_vec()));
    let script = script(&finding, &setup(None)).unwrap();
    assert!(!script.contains(samples::SECRET));
    let mut check = tokio::process::Command::new("bash");
    let output = child_output(check.args(["-n", "-c", &script])).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The bodies come out as they were, zero bytes and all.
    let start = script.find("{ printf %s").unwrap();
    let names = &script[start..start + script[start..].find("\n}\n").unwrap()];
    let directory = tempfile::tempdir().unwrap();
    let mut write = tokio::process::Command::new("bash");
    child_output(write.args(["-c", names]).env("work", directory.path())).await;
    assert_eq!(std::fs::read(directory.path().join("sent.3")).unwrap(), odd.body);
    assert!(super::script(&sample.card.findings[0], &setup(None)).is_none(), "it passed");
}

#[test]
fn a_script_has_the_functions_it_needs_and_no_others() {
    let race =
        script(&race("http://127.0.0.1:9/", Some(2)), &setup(Some(([127, 0, 0, 1], 9).into()))).unwrap();
    for (function, is_there) in [
        ("call", true),
        ("effects", true),
        ("count", true),
        ("fresh", true),
        ("cut_off", false),
        ("pipelined", false),
    ] {
        assert_eq!(race.contains(&format!("\n{function}() {{")), is_there, "{function}\n{race}");
    }
    let whole = FRAME.matches("() {").count();
    let parts = FRAME.split("\n\n").filter_map(defined).count();
    assert_eq!(whole, parts, "one function in each part of the frame");
}

#[test]
fn each_failure_has_a_script_that_can_be_run() {
    let (sample, directory) = (samples::hostile(), tempfile::tempdir().unwrap());
    let scripts = keep(&sample.card, &setup(None), &directory.path().join("new/place")).unwrap();
    let path = directory.path().join("new/place/race.sh");
    assert_eq!(scripts, BTreeMap::from([("race", path.clone())]));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
    assert_eq!(mode & 0o111, 0o111);
}
