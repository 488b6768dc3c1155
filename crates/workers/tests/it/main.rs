//! Recoverer and sweeper over the reference store, on a clock the tests move.

#![allow(clippy::unwrap_used)]

mod relay;
mod sinks;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use semel_core::claim::{Claim, Request};
use semel_core::runtime::Tokio;
use semel_core::verbs::{Complete, Release};
use semel_core::{
    Clock, EffectStore, Fingerprinter, Keyring, Lease, MemoryStore, MemorySubjectKeys, Nonce, Operation,
    Outcome, Policy, Record, Recovery, Scope, State, Timestamp, Token,
};
use semel_testkit::subjects::FaultyKeys;
use semel_testkit::{Fault, FaultyStore, Verb};
use semel_workers::{Question, Recoverer, Reply, Sweeper};

struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// A store, its clock, and whatever a case wants to do with them.
struct Room {
    store: Arc<MemoryStore>,
    clock: Arc<TestClock>,
}

impl Room {
    fn new() -> Self {
        let clock = Arc::new(TestClock(AtomicI64::new(1_000_000_000)));
        Self { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock }
    }

    fn pass_time(&self, time: Duration) {
        self.clock.0.fetch_add(time.as_micros() as i64, Ordering::SeqCst);
    }

    fn recoverer(&self) -> Recoverer {
        Recoverer::new(self.store.clone(), Arc::new(Tokio::new()))
    }

    async fn claim(&self, key: &str, policy: &Policy) -> (Arc<Operation>, Lease) {
        let scope = Scope::shared("test", "charge").unwrap();
        let operation = Arc::new(Operation::new(scope, key.parse().unwrap()));
        let keys = self.store.status().await.unwrap().hash_keys;
        let request = Request {
            operation: operation.clone(),
            nonce: Nonce::random(),
            print: Fingerprinter::new(keys).unwrap().of_bytes(b"body").current().clone(),
            terms: policy.terms(),
            subject: Some("anna".into()),
        };
        match self.store.claim(&request).await.unwrap() {
            Claim::Granted(lease) => (operation, lease),
            other => panic!("{key} was not granted: {other:?}"),
        }
    }

    async fn record(&self, operation: &Operation) -> Record {
        self.store.get(operation.id()).await.unwrap().expect("the record is there")
    }
}

fn policy(recovery: Recovery) -> Policy {
    let lease = Duration::from_secs(30);
    Policy::builder().recovery(recovery).lease(lease).run_max(lease * 4).natural_effect().build().unwrap()
}

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_lapsed_claim_is_noticed_without_any_next_attempt() {
    // G-15
    let room = Room::new();
    let (held, _) = room.claim("hold-me", &policy(Recovery::Hold)).await;
    let (rerun, _) = room.claim("run-me-again", &policy(Recovery::Rerun)).await;
    let mut recoverer = room.recoverer();
    assert_eq!(recoverer.pass().await.unwrap().lapsed, 0, "nothing has lapsed yet");
    room.pass_time(LEASE);
    let report = recoverer.pass().await.unwrap();
    assert_eq!((report.lapsed, report.unknown), (1, 1));
    assert_eq!(room.record(&held).await.state, State::Unknown);
    assert_eq!(room.record(&rerun).await.state, State::InProgress, "left to its next attempt");
}

#[tokio::test(start_paused = true)]
async fn an_answer_the_store_never_gave_does_not_end_recovery() {
    // G-15
    for verb in [Verb::Other, Verb::MarkUnknown] {
        let room = Room::new();
        let (held, _) = room.claim("hold-me", &policy(Recovery::Hold)).await;
        room.pass_time(LEASE);
        let store = FaultyStore::scripted(room.store.clone(), verb, &[Fault::Hang]);
        let recoverer = Recoverer::new(store, Arc::new(Tokio::new()));
        recoverer.run(tokio::time::sleep(LEASE * 4)).await;
        assert_eq!(room.record(&held).await.state, State::Unknown, "{verb:?}");
    }
}

#[tokio::test]
async fn nobody_is_asked_before_the_longest_run_has_passed() {
    // G-15
    let room = Room::new();
    let (operation, _) = room.claim("slow", &policy(Recovery::Ask)).await;
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let whom = move |_: Question| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Reply::Done(Outcome::text("charged")) }
    };
    let mut recoverer = room.recoverer().ask("charge", policy(Recovery::Ask), Arc::new(whom));
    room.pass_time(LEASE * 4 - Duration::from_micros(1));
    recoverer.pass().await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    assert_eq!(room.record(&operation).await.state, State::Unknown);
    room.pass_time(Duration::from_micros(1));
    assert_eq!(recoverer.pass().await.unwrap().settled, 1);
    let record = room.record(&operation).await;
    assert_eq!(record.state, State::Completed);
    let stored = record.outcome.expect("the answer was stored");
    let read = policy(Recovery::Ask).read(&stored, operation.id()).await;
    assert_eq!(read.unwrap(), Outcome::text("charged"));
}

#[tokio::test]
async fn an_answer_is_sealed_for_its_subject_and_waits_for_the_key() {
    // G-15, G-20
    let keys = FaultyKeys::new(Arc::new(MemorySubjectKeys::new()));
    let builder = Policy::builder().recovery(Recovery::Ask).lease(LEASE).run_max(LEASE * 4).natural_effect();
    let ring = Keyring::new("m", &[1; 32]).unwrap();
    let sealing = builder.encrypt(ring).subject_keys(keys.clone()).build().unwrap();
    let room = Room::new();
    let (operation, _) = room.claim("slow", &sealing).await;
    let whom = |_: Question| async { Reply::Done(Outcome::text("charged")) };
    let mut recoverer = room.recoverer().every(Duration::ZERO).ask("charge", sealing.clone(), Arc::new(whom));
    room.pass_time(LEASE * 4);
    keys.go_away(true);
    assert_eq!(recoverer.pass().await.unwrap().settled, 0, "nothing is kept that cannot be sealed");
    assert_eq!(room.record(&operation).await.state, State::Unknown);
    keys.go_away(false);
    assert_eq!(recoverer.pass().await.unwrap().settled, 1);
    let stored = room.record(&operation).await.outcome.expect("the answer was stored");
    assert!(semel_core::seal::subject_key(&stored).is_some());
    assert_eq!(sealing.read(&stored, operation.id()).await.unwrap(), Outcome::text("charged"));
}

#[tokio::test]
async fn an_answer_too_large_for_the_store_settles_without_its_body() {
    // G-15, G-19
    let room = Room::new();
    let (operation, _) = room.claim("large", &policy(Recovery::Ask)).await;
    let store = FaultyStore::new(room.store.clone(), |_| Fault::None);
    store.outcome_bytes_max(100);
    let answer = Outcome { status: 201, ..Outcome::text("x".repeat(300)) };
    let given = answer.clone();
    let whom = move |_: Question| std::future::ready(Reply::Done(given.clone()));
    let recoverer = Recoverer::new(store, Arc::new(Tokio::new()));
    let mut recoverer = recoverer.ask("charge", policy(Recovery::Ask), Arc::new(whom));
    room.pass_time(LEASE * 4);
    assert_eq!(recoverer.pass().await.unwrap().settled, 1);
    let stored = room.record(&operation).await.outcome.expect("it is settled");
    let read = policy(Recovery::Ask).read(&stored, operation.id()).await;
    assert_eq!(read.unwrap(), answer.without_body());
}

#[tokio::test]
async fn never_is_believed_only_with_a_fence() {
    // G-15
    for (below, state) in [(1, State::Unknown), (0, State::Released)] {
        let room = Room::new();
        let (operation, lease) = room.claim("maybe", &policy(Recovery::Ask)).await;
        let through = Token(lease.holder.token.0 - below);
        let whom = move |_: Question| async move { Reply::Never { refused_through: through } };
        let mut recoverer = room.recoverer().ask("charge", policy(Recovery::Ask), Arc::new(whom));
        room.pass_time(LEASE * 4);
        recoverer.pass().await.unwrap();
        assert_eq!(room.record(&operation).await.state, state);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_cannot_tell_is_asked_again_with_growing_pauses() {
    // G-15
    let room = Room::new();
    room.claim("stubborn", &policy(Recovery::Ask)).await;
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let whom = move |_: Question| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Reply::CannotTell("bank is closed".into()) }
    };
    let every = Duration::from_secs(10);
    let mut recoverer = room.recoverer().every(every).ask("charge", policy(Recovery::Ask), Arc::new(whom));
    room.pass_time(LEASE * 4);
    for _ in 0..=30 {
        assert_eq!(recoverer.pass().await.unwrap().unknown, 1);
        tokio::time::sleep(every).await;
    }
    // Asked at 0 s, then 20, 40, 80 and 160 s after the one before.
    assert_eq!(asked.load(Ordering::SeqCst), 4 + 1);
}

#[tokio::test(start_paused = true)]
async fn an_old_running_operation_is_still_found_after_many_passes() {
    // G-15: passes look at new tokens only, and go on watching what was open.
    let room = Room::new();
    let (old, _) = room.claim("long-runner", &policy(Recovery::Hold)).await;
    let mut recoverer = room.recoverer();
    for n in 0..100 {
        let (done, lease) = room.claim(&format!("quick-{n}"), &policy(Recovery::Hold)).await;
        let complete =
            Complete { holder: lease.holder, outcome: Outcome::text("ok").encode().into(), ttl_min: None };
        room.store.complete(&complete).await.unwrap();
        recoverer.pass().await.unwrap();
        assert_eq!(room.record(&done).await.state, State::Completed);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    room.pass_time(LEASE);
    assert_eq!(recoverer.pass().await.unwrap().lapsed, 1);
    assert_eq!(room.record(&old).await.state, State::Unknown);
}

#[tokio::test(start_paused = true)]
async fn sweeping_leaves_what_is_alive_and_stops_when_told() {
    // G-10, G-11
    let room = Room::new();
    let policy = policy(Recovery::Hold);
    for n in 0..1200 {
        let (_, lease) = room.claim(&format!("done-{n}"), &policy).await;
        room.store.release(&Release { holder: lease.holder }).await.unwrap();
    }
    let (open, _) = room.claim("open", &policy).await;
    let sweeper = Sweeper::new(room.store.clone(), Arc::new(Tokio::new())).every(Duration::from_secs(1));
    assert_eq!(sweeper.round().await.unwrap().deleted, 0);
    room.pass_time(Duration::from_secs(86_400));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let task = tokio::spawn(async move { sweeper.run(async { drop(stopped.await) }).await });
    while room.store.len() > 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.send(()).unwrap();
    task.await.unwrap();
    assert_eq!(room.record(&open).await.state, State::InProgress);
}
