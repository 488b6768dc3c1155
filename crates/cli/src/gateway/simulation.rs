//! The gateway unchanged, on a network and a clock that exist only here.
//!
//! Clients, gateway and service are hosts of one simulation in one thread. A seed decides every delay,
//! cut, crash and store fault, so a run that fails can be had again: each seed is run two times and
//! must leave the same trace. The store outlives the gateway's crashes, and the service keeps receipts
//! and fences as docs/reconcile.md asks, but never notices a duplicate by itself: what it is sent above
//! its fence it does, and counts.
//!
//! Randomness is not behind the seam. Nonces and trace ids differ from run to run and are no part of
//! the trace; pauses with jitter and the order in which a crash drops tasks are made the same by
//! [`Punctual`].

mod client;
mod coverage;
mod network;
mod service;
mod trouble;
mod watch;

use crate::say::say;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use semel::runtime::Boxed;
use semel::store::Filter;
use semel::{EffectStore, MemoryStore, Record, Runtime, State, Token};
use semel_testkit::FaultyStore;

use super::door::Door;
use crate::config;
use client::Heard;
use coverage::Counts;
use network::{Punctual, Simulated, StoreClock};
use service::Service;
use trouble::{Dice, Schedule, World};
use watch::{Watch, Watched};

const CLIENTS: usize = 3;
const KEYS: usize = 6;
/// For every day, and for `./test --all`.
const SEEDS: u64 = 200;
const SEEDS_LONG: u64 = 2000;
/// How often each trouble must have met each phase in the long run. Few seeds may miss a rare cell.
const HITS_LONG: u64 = 20;
/// Replays one run and prints its trace.
const SEED: &str = "SEMEL_SIMULATION_SEED";
/// Another number of seeds, and no demand on what they meet.
const FEW: &str = "SEMEL_SIMULATION_SEEDS";
/// Where the table of troubles and phases is written.
const TABLE: &str = "SEMEL_TEST_SIMULATION";

/// One step of the simulation: as exact as its time is.
const TICK: Duration = Duration::from_millis(20);
const LATENCY_MAX: Duration = Duration::from_millis(40);
/// Trouble ends here; what follows must come to rest.
const TROUBLE: Duration = Duration::from_secs(12);
/// Every client has had its answers by then.
const PATIENCE: Duration = Duration::from_secs(400);
/// What may still happen when all clients have their answers: the longest run, and a few passes.
const AFTERWARDS: Duration = Duration::from_secs(7);
/// By then nothing is in progress: whoever waits for a silent store has asked again.
const REST: Duration = Duration::from_secs(60);

/// How a run's unknowns end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    Hold,
    Ask,
}

/// What happened, in order, with its time; the same for the same seed.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<String>>);

impl Trace {
    fn note(&self, at: Duration, what: &str) {
        let mut lines = self.0.lock().expect("no panic");
        writeln!(lines, "{:>8.3} {what}", at.as_secs_f64()).expect("a string takes anything");
    }

    /// From inside a host.
    fn tell(&self, what: &str) {
        self.note(turmoil::sim_elapsed().expect("a host is running"), what);
    }

    fn text(&self) -> String {
        self.0.lock().expect("no panic").clone()
    }
}

fn settings(recovery: Recovery, waits: bool) -> config::resolved::Gateway {
    let recovery = match recovery {
        Recovery::Hold => "hold",
        Recovery::Ask => "ask:http://service:3000/reconcile",
    };
    let wait = if waits { "1s" } else { "0s" };
    let text = format!(
        "[gateway]\nlisten = \"0.0.0.0:8080\"\nupstream = [\"http://service:3000\"]\nconnect_timeout = \"1s\"\n\
         response_timeout = \"4s\"\n[defaults]\ntenant = \"none\"\nlease = \"3s\"\nrun_max = \"5s\"\n\
         store_patience = \"1s\"\nrecovery = \"{recovery}\"\nwait = \"{wait}\"\n"
    );
    match config::from_bytes(text.as_bytes()) {
        Ok(resolved) => resolved.gateway,
        Err(mistakes) => panic!("{}", mistakes.iter().map(ToString::to_string).collect::<String>()),
    }
}

/// One run from beginning to end. Which trouble met which phase.
fn run(seed: u64, recovery: Recovery, trace: &Trace) -> Counts {
    let mut dice = Dice::new(seed);
    let clock = Arc::new(StoreClock::default());
    let memory: Arc<dyn EffectStore> = Arc::new(MemoryStore::with_clock(clock.clone()));
    let watch = Watch::new(memory.clone(), clock.clone());
    let mood = trouble::Mood::default();
    let faults = trouble::of_the_store(dice.roll(u64::MAX), mood.clone(), watch.clone());
    let store = FaultyStore::new(memory.clone(), faults);
    let service = Service::new(trace.clone(), watch.clone(), dice.roll(u64::MAX));
    let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(LATENCY_MAX)
        .simulation_duration(PATIENCE)
        .tcp_capacity(1024)
        .build();
    let behind = service.clone();
    sim.host("service", move || behind.clone().serve());
    let settings = settings(recovery, dice.roll(2) == 0);
    let shared: Arc<dyn EffectStore> = Arc::new(Watched { inner: store.clone(), watch: watch.clone() });
    sim.host("gateway", move || {
        let (settings, store) = (settings.clone(), shared.clone());
        async move {
            let runtime: Arc<dyn Runtime> = Arc::new(Punctual::new());
            let door = Door::open(&settings, store, None, Arc::new(Simulated), runtime).await?;
            let never: Boxed<()> = Box::pin(std::future::pending());
            door.serve(never.shared()).await;
            Ok(())
        }
    });
    let orders: [client::Orders; CLIENTS] = Default::default();
    for (number, orders) in orders.iter().cloned().enumerate() {
        let (name, holds) = (client::name(number), recovery == Recovery::Hold);
        let (watch, heard, trace) = (watch.clone(), heard.clone(), trace.clone());
        let client = client::Client { number, name: name.clone(), holds, orders, watch, heard, trace };
        sim.client(name, client.run(Dice::new(dice.roll(u64::MAX))));
    }
    let mut schedule = Schedule::new(&mut dice);
    let world = World { service, mood, clock, orders, watch, trace };
    let mut healed = false;
    while !sim.step().unwrap_or_else(|error| panic!("{error}")) {
        if sim.elapsed() < TROUBLE {
            schedule.play(&mut sim, &world);
        } else if !healed {
            healed = true;
            schedule.heal(&mut sim, &world);
            store.heal();
        }
    }
    if !healed {
        schedule.heal(&mut sim, &world);
        store.heal();
    }
    // Late copies of earlier writes arrive when everybody has an answer, and change none.
    store.deliver().now_or_never().expect("the memory store answers at once");
    let over = sim.elapsed();
    while sim.elapsed() < over + AFTERWARDS || (is_busy(&memory) && sim.elapsed() < over + REST) {
        sim.step().unwrap_or_else(|error| panic!("{error}"));
    }
    judge(recovery, &world.service, &heard.lock().expect("no panic"), &memory);
    world.watch.counts()
}

fn records(memory: &Arc<dyn EffectStore>) -> Vec<Record> {
    let all = Filter::default();
    let listed = memory.list(&all, Token(0), 100).now_or_never();
    listed.expect("the memory store answers at once").expect("it answers").records
}

fn is_busy(memory: &Arc<dyn EffectStore>) -> bool {
    records(memory).iter().any(|record| record.state == State::InProgress)
}

/// What must hold, whatever happened.
fn judge(recovery: Recovery, service: &Service, heard: &[Heard], memory: &Arc<dyn EffectStore>) {
    let records = records(memory);
    for at in 0..KEYS {
        let key = client::key(at);
        let charges = service.charges(&key);
        // G-8, G-15, G-21
        assert!(charges <= 1, "{key} was charged {charges} times");
        if recovery == Recovery::Ask {
            assert_eq!(charges, 1, "{key} was not charged, and every client heard that it was");
        }
        let answers: Vec<&Heard> = heard.iter().filter(|heard| heard.key == key).collect();
        for answer in &answers {
            // G-17
            assert_eq!(charges, 1, "{key} was answered {answer:?} and never charged");
            assert_eq!(answer.body, service.receipt(&key), "{key} was answered with another charge");
            // G-14
            assert_eq!(answer.headers, answers[0].headers, "answers of {key} differ");
        }
        let fresh = answers.iter().filter(|answer| !answer.is_replay).count();
        assert!(fresh <= 1, "{fresh} clients heard that theirs was the first for {key}");
        let record = records.iter().find(|record| record.operation.key().as_str() == key);
        let state = record.map(|record| record.state);
        // G-17
        let is_stored = answers.is_empty() || state == Some(State::Completed);
        assert!(is_stored, "{key} was answered {answers:?} and the store says {state:?}");
        let agrees = match state {
            Some(State::Completed) => charges == 1,
            // G-16
            Some(State::Released) | None => charges == 0,
            Some(State::Unknown) => recovery == Recovery::Hold,
            Some(_) => false,
        };
        assert!(agrees, "{key} was charged {charges} times and the store says {state:?}");
    }
}

/// Runs a seed two times; a run that fails says how to have it again.
fn replayed(seed: u64) -> Counts {
    let recovery = if seed % 2 == 1 { Recovery::Hold } else { Recovery::Ask };
    let runs = [(); 2].map(|()| {
        let trace = Trace::default();
        let ended = catch_unwind(AssertUnwindSafe(|| run(seed, recovery, &trace)));
        if std::env::var(SEED).is_ok() {
            say!("{}", trace.text());
        }
        let counts = ended.unwrap_or_else(|failure| {
            eprintln!("seed {seed} fails under {recovery:?}. {}", again(seed));
            resume_unwind(failure)
        });
        (trace.text(), counts)
    });
    let [(first, counts), (second, counts_again)] = runs;
    let differ = first.lines().zip(second.lines()).find(|(one, other)| one != other);
    let is_same = first == second && counts == counts_again;
    assert!(is_same, "seed {seed} does not give the same run twice: first {differ:?}. {}", again(seed));
    counts
}

fn again(seed: u64) -> String {
    format!(
        "Again, with its trace:\n  {SEED}={seed} cargo test -p semel-cli --bin semel simulation -- --nocapture"
    )
}

/// Runs seeds on all processors. Ends with the first that fails.
fn all(seeds: u64) -> Counts {
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let mut counts = Counts::default();
        while !failed.load(Ordering::SeqCst) {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= seeds {
                break;
            }
            match catch_unwind(|| replayed(seed)) {
                Ok(more) => counts.add(&more),
                Err(failure) => {
                    failed.store(true, Ordering::SeqCst);
                    resume_unwind(failure);
                }
            }
        }
        counts
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            counts.add(&worker.join().unwrap_or_else(|failure| resume_unwind(failure)));
        }
    });
    counts
}

#[test]
fn whatever_fails_a_key_is_charged_once_and_nobody_is_told_a_lie() {
    // G-8, G-9, G-12, G-14, G-15, G-16, G-17, G-18, G-21
    if let Ok(seed) = std::env::var(SEED) {
        replayed(seed.parse().expect("the seed is a number"));
        return;
    }
    let long = std::env::var("SEMEL_TEST_LONG").is_ok_and(|value| value == "1");
    let few = std::env::var(FEW).map(|few| few.parse().expect("the number of seeds is a number"));
    let (seeds, least) = match few {
        Ok(few) => (few, 0),
        Err(_) if long => (SEEDS_LONG, HITS_LONG),
        Err(_) => (SEEDS, 0),
    };
    let counts = all(seeds);
    let table = counts.table();
    say!("{seeds} seeds, each two times; how often each trouble met each phase:\n{table}");
    if let Some(place) = std::env::var_os(TABLE) {
        std::fs::write(&place, &table).expect("the table can be written");
    }
    let complaints = counts.complaints(least);
    assert!(complaints.is_empty(), "of {seeds} seeds:\n{}", complaints.join("\n"));
}
