//! Real processes that die at named places, on real stores. Effects are counted in a file outside
//! of the store, appended by the process that dies.
//!
//! The victim is this test binary itself, started again with [`CHILD`] set: it runs one operation
//! and writes down what it was told. Some places are inside the store (the process aborts there),
//! some inside the effect (it parks there, and the test kills it with SIGKILL).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::policy::Policy;
use semel::runtime::Tokio;
use semel::store::Filter;
use semel::verbs::{Change, Finding, Settle, Settler};
use semel::{
    Attempt, EffectStore, Nonce, Once, Operation, Outcome, Question, Record, Recoverer, Recovery, Refusal,
    Reply, Scope, State,
};

use crate::engines::{Engine, engines};

const CHILD: &str = "SEMEL_CRASH_CHILD";
const LEASE: Duration = Duration::from_millis(600);
const RUN_MAX: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the victim dies.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Inside the effect, before it did anything.
    BeforeEffect,
    /// Inside the effect, after it happened.
    AfterEffect,
    /// Inside the store, at this point, once it was passed so often.
    Store(&'static str, u32),
}

impl Place {
    fn of(engine: &Engine) -> Vec<Self> {
        let mut places = vec![Self::BeforeEffect, Self::AfterEffect];
        places.extend(engine.crash_points.iter().map(|(name, passes)| Self::Store(name, *passes)));
        places
    }
}

fn policy(recovery: Recovery) -> Policy {
    Policy::builder()
        .recovery(recovery)
        .lease(LEASE)
        .run_max(RUN_MAX)
        .build()
        .expect("the policy makes sense")
}

fn operation(key: &str) -> Operation {
    let scope = Scope::new("crash", "tenant", "charge").expect("the scope is fine");
    Operation::new(scope, key.parse().expect("the key is fine"))
}

/// The victim's side. In an ordinary run of the tests there is nothing to do.
#[test]
fn victim() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = order.split('\n').collect();
    let [url, key, recovery, park, effects, report] = words[..] else { panic!("a bad order: {order}") };
    let recovery = Recovery::from_byte(recovery.parse().expect("a number")).expect("a recovery");
    let (park, effects) = (park.to_owned(), PathBuf::from(effects));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let told = runtime.block_on(async {
        let store = semel::stores::open(url).await.expect("the store opens");
        let once = Once::new(store, Arc::new(Tokio::new()));
        let print = once.fingerprinter().await.expect("the store has keys").of_bytes(b"the same request");
        let operation = operation(key);
        let effect = async move |op: Attempt| {
            park_if(&park, "before", &effects).await;
            append(&effects, op.operation().key().as_str());
            park_if(&park, "after", &effects).await;
            Outcome::text("charged")
        };
        once.run(operation.scope().clone(), operation.key().clone(), print, &policy(recovery), effect).await
    });
    let told = match told {
        Ok(answer) => format!(
            "{:?} {}",
            answer.origin,
            String::from_utf8_lossy(answer.outcome.body_bytes().expect("kept"))
        ),
        Err(Refusal::InFlight { .. }) => "in flight".into(),
        Err(Refusal::OutcomeUnknown { .. }) => "unknown".into(),
        Err(other) => format!("refused: {other}"),
    };
    std::fs::write(report, told).expect("the report is written");
}

async fn park_if(park: &str, here: &str, effects: &Path) {
    if park == here {
        append(&effects.with_extension("parked"), here);
        std::future::pending::<()>().await;
    }
}

/// One line, one write: what the outside world saw.
fn append(path: &Path, line: &str) {
    let mut file =
        std::fs::OpenOptions::new().create(true).append(true).open(path).expect("the ledger opens");
    file.write_all(format!("{line}\n").as_bytes()).expect("the ledger takes a line");
    file.sync_all().expect("the ledger is on disk");
}

/// One operation and its victims.
struct Scene<'a> {
    engine: &'a Engine,
    url: String,
    recovery: Recovery,
    operation: Operation,
    dir: tempfile::TempDir,
}

impl Scene<'_> {
    fn effects(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("effects")).map_or(0, |text| text.lines().count())
    }

    /// Runs one process to its end, or to the place where it dies. `None` if it died.
    fn run(&self, place: Option<Place>) -> Option<String> {
        let (effects, report) = (self.dir.path().join("effects"), self.dir.path().join("report"));
        let _ = std::fs::remove_file(&report);
        let park = match place {
            Some(Place::BeforeEffect) => "before",
            Some(Place::AfterEffect) => "after",
            _ => "no",
        };
        let recovery = (self.recovery as u8).to_string();
        let paths = [effects.display().to_string(), report.display().to_string()];
        let order =
            [&self.url, self.operation.key().as_str(), &recovery, park, &paths[0], &paths[1]].join("\n");
        let mut command = Command::new(std::env::current_exe().expect("the test knows where it is"));
        command.args(["--exact", "crash::victim", "--nocapture", "--test-threads=1"]).env(CHILD, order);
        command.stdout(Stdio::null()).stderr(Stdio::null()).env_remove("SEMEL_TEST_LEDGER");
        if let Some(Place::Store(name, passes)) = place {
            command.env("SEMEL_CRASH_AT", name).env("SEMEL_CRASH_AFTER", passes.to_string());
        }
        let mut child = command.spawn().expect("the victim starts");
        if park != "no" {
            let parked = effects.with_extension("parked");
            wait_for("the victim parks", || parked.exists());
            child.kill().expect("the victim can be killed");
        }
        let status = child.wait().expect("the victim ends");
        assert!(place.is_none() || !status.success(), "{place:?} on {}: it did not die", self.engine.name);
        std::fs::read_to_string(&report).ok()
    }

    async fn record(&self, store: &Arc<dyn EffectStore>) -> Option<Record> {
        store.get(self.operation.id()).await.expect("the store answers")
    }
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn scene(engine: &Engine, recovery: Recovery, place: Place) -> Scene<'_> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = engine.fresh(dir.path());
    let key = format!("{place:?}-{recovery:?}-{}", Nonce::random()).replace([' ', '"', ',', '(', ')'], "_");
    Scene { engine, url, recovery, operation: operation(&key), dir }
}

/// Whether the effect had happened when the victim died there.
fn effect_came_first(scene: &Scene<'_>) -> bool {
    scene.effects() == 1
}

#[test]
fn a_crash_anywhere_under_hold_never_runs_twice_and_is_settled_by_a_person() {
    // G-8, G-9, G-15, G-17
    for_each_place("crash hold", Recovery::Hold, async |scene, place| {
        assert_eq!(scene.run(Some(place)), None);
        let happened = effect_came_first(scene);
        let store = semel::stores::open(&scene.url).await.expect("the store opens after the crash");
        wait_until_lapsed(scene, &store).await;
        match scene.run(None).as_deref() {
            // The crash came before the claim was stored: a first attempt, as if nothing had been.
            Some("Fresh charged") => assert!(!happened, "{place:?}: it ran a second time"),
            // The crash came after the outcome was stored.
            Some("Replayed charged") => assert!(happened, "{place:?}: an outcome without an effect"),
            Some("unknown") => settle(scene, &store, happened).await,
            other => panic!("{place:?} on {}: {other:?}", scene.engine.name),
        }
        let last = scene.run(None);
        assert!(matches!(last.as_deref(), Some("Fresh charged" | "Replayed charged")), "{place:?}: {last:?}");
        assert_eq!(scene.effects(), 1, "{place:?} on {}", scene.engine.name);
        assert_eq!(scene.run(None).as_deref(), Some("Replayed charged"));
    });
}

#[test]
fn a_crash_anywhere_under_ask_is_recovered_without_a_person_and_without_a_second_effect() {
    // G-15
    for_each_place("crash ask", Recovery::Ask, async |scene, place| {
        assert_eq!(scene.run(Some(place)), None);
        let store = semel::stores::open(&scene.url).await.expect("the store opens after the crash");
        let effects = scene.dir.path().join("effects");
        let ask = move |question: Question| {
            let key = question.operation.key().to_string();
            let seen =
                std::fs::read_to_string(&effects).is_ok_and(|text| text.lines().any(|line| line == key));
            // The victim is dead, so nothing of its attempt can still be on its way.
            let never = Reply::Never { refused_through: question.token };
            async move { if seen { Reply::Done(Outcome::text("charged")) } else { never } }
        };
        let mut recoverer = Recoverer::new(store.clone(), Arc::new(Tokio::new())).every(Duration::ZERO).ask(
            "charge",
            policy(Recovery::Ask),
            Arc::new(ask),
        );
        let start = Instant::now();
        while scene
            .record(&store)
            .await
            .is_some_and(|record| matches!(record.state, State::InProgress | State::Unknown))
        {
            assert!(start.elapsed() < PATIENCE, "{place:?}: never recovered");
            recoverer.pass().await.expect("the recoverer reaches the store");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let told = scene.run(None);
        assert!(matches!(told.as_deref(), Some("Fresh charged" | "Replayed charged")), "{place:?}: {told:?}");
        assert_eq!(scene.effects(), 1, "{place:?} on {}", scene.engine.name);
    });
}

#[test]
fn a_crash_under_rerun_runs_again_and_ends_with_one_stored_answer() {
    // G-15
    for_each_place("crash rerun", Recovery::Rerun, async |scene, place| {
        assert_eq!(scene.run(Some(place)), None);
        let happened = effect_came_first(scene);
        let store = semel::stores::open(&scene.url).await.expect("the store opens after the crash");
        wait_until_lapsed(scene, &store).await;
        let told = scene.run(None);
        let again = usize::from(told.as_deref() == Some("Fresh charged"));
        assert!(matches!(told.as_deref(), Some("Fresh charged" | "Replayed charged")), "{place:?}: {told:?}");
        assert_eq!(scene.effects(), usize::from(happened) + again, "{place:?} on {}", scene.engine.name);
        assert_eq!(scene.run(None).as_deref(), Some("Replayed charged"));
    });
}

/// Runs a case for every engine that is there and every place it can die at.
fn for_each_place(suite: &str, recovery: Recovery, case: impl AsyncFn(&Scene<'_>, Place)) {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    for engine in engines() {
        let places = Place::of(&engine);
        for place in &places {
            let scene = scene(&engine, recovery, *place);
            let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
            runtime.block_on(case(&scene, *place));
            engine.remove(&scene.url);
        }
        semel_testkit::ledger(suite, engine.name, places.len() as u64);
    }
}

async fn wait_until_lapsed(scene: &Scene<'_>, store: &Arc<dyn EffectStore>) {
    let start = Instant::now();
    loop {
        let record = scene.record(store).await;
        let page = store.list(&Filter::unsettled(), semel::Token(0), 10).await.expect("the store answers");
        if !record.is_some_and(|record| record.state == State::InProgress && !record.is_lapsed(page.now)) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the lease never lapsed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What an operator does who looked at the bank.
async fn settle(scene: &Scene<'_>, store: &Arc<dyn EffectStore>, happened: bool) {
    let record = scene.record(store).await.expect("an unknown has a record");
    let outcome = policy(scene.recovery).prepare(&Outcome::text("charged"), scene.operation.id(), None).await;
    let outcome = outcome.expect("no key place is asked");
    let settle = Settle {
        operation: scene.operation.id(),
        token: record.token,
        nonce: Nonce::random(),
        finding: if happened { Finding::Done(outcome) } else { Finding::Never },
        by: Settler::Operator("test".into()),
        note: "looked at the ledger".into(),
    };
    assert_eq!(store.settle(&settle).await.expect("the store answers"), Change::Made);
}
