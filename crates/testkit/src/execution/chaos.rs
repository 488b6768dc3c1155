//! Seeded faults of every kind, several callers, several keys: what must hold whatever happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::record::{Recovery, State};
use semel_core::{Ending, Origin, Outcome, Refusal};

use super::{Till, brisk, policy};
use crate::Rig;
use crate::faulty::{Fault, Verb};
use crate::scene::long;

const KEYS: usize = 2;
const CALLERS: usize = 5;
const CALLS_PER_CALLER: usize = 4;

/// A small random number generator: the same seed, the same schedule.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// Faults in all their kinds, about half of the time.
fn trouble(seed: u64, flies: bool) -> impl FnMut(Verb) -> Fault + Send {
    let mut dice = Dice::new(seed);
    let severity = 20 + dice.roll(60);
    move |verb| {
        if dice.roll(100) >= severity {
            return Fault::None;
        }
        match dice.roll(16) {
            0..3 => Fault::Refuse,
            3..6 => Fault::LoseAnswer,
            6..8 => Fault::LoseCall,
            8..11 => Fault::Delay(Duration::from_millis(1 + dice.roll(20))),
            11..13 => Fault::Twice,
            13..15 => Fault::Late,
            // A claim that hangs is given up soon; other writes only when time flies.
            _ if verb == Verb::Claim || flies => [Fault::Hang, Fault::HangAfter][dice.roll(2) as usize],
            _ => Fault::Refuse,
        }
    }
}

/// What an attempt does, by the dice.
async fn attempt(effects: Arc<AtomicU32>, choice: u64, pause: Duration) -> Ending {
    if choice == 0 {
        return Ending::NothingHappened(Outcome::text("not now"));
    }
    tokio::time::sleep(pause).await;
    let number = effects.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::time::sleep(pause).await;
    match choice {
        1 => Ending::Unknown("the line went dead".into()),
        _ => Ending::Done(Outcome::text(format!("effect {number}"))),
    }
}

/// One schedule from beginning to end.
async fn schedule(rig: &Arc<dyn Rig>, seed: u64, recovery: Recovery, lease: Duration) {
    let till = Till::with_plan(rig.clone(), trouble(seed, rig.in_tokio_time()));
    let made = || brisk().recovery(recovery).wait(Duration::from_millis(30));
    // When trouble is over, what is asked must be answered, however slow the disk is, and a lease must not lapse
    // before it was heard of.
    let patient = policy(made().store_patience(Duration::from_secs(20)));
    let policy = policy(made().lease(lease));
    let effects: Vec<Arc<AtomicU32>> = (0..KEYS).map(|_| Arc::default()).collect();
    let key = move |n: usize| format!("chaos-{seed:08}-key-{n}-{recovery:?}");
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (till, policy, effects) = (till.clone(), policy.clone(), effects.clone());
        callers.spawn(async move {
            let mut dice = Dice::new(seed * 1_000 + caller as u64);
            for _ in 0..CALLS_PER_CALLER {
                let n = dice.roll(KEYS as u64) as usize;
                let (choice, pause) = (dice.roll(8), Duration::from_millis(dice.roll(8)));
                let counted = effects[n].clone();
                let heard =
                    till.run(&key(n), &policy, async move |_| attempt(counted, choice, pause).await).await;
                if let Ok(answer) = &heard
                    && matches!(answer.origin, Origin::Fresh | Origin::Replayed)
                {
                    let record = till.record(&key(n)).await.expect("a success is stored before it is told");
                    let stored = record.outcome.map(|outcome| Outcome::decode(&outcome));
                    assert_eq!(stored, Some(Ok(answer.outcome.clone())), "and it is what was stored");
                    assert!(effects[n].load(Ordering::SeqCst) > 0, "and it happened");
                }
                let open = matches!(&heard, Ok(answer) if answer.origin == Origin::Unprotected);
                assert!(!open, "nothing runs unprotected that was not declared so");
                let odd =
                    matches!(heard, Err(Refusal::Mismatch(_) | Refusal::Unreadable(_) | Refusal::Purged));
                assert!(!odd, "{heard:?}");
            }
        });
    }
    callers.join_all().await;
    till.settle_down().await;
    for (n, effects) in effects.iter().enumerate() {
        let ran = effects.load(Ordering::SeqCst);
        assert!(ran <= 1, "the effect happened {ran} times under {recovery:?}");
        let record = till.record(&key(n)).await;
        let state = record.as_ref().map(|record| record.state);
        match (ran, state) {
            (1, Some(State::Completed | State::Unknown)) => {}
            (0, None | Some(State::Released)) => {}
            // A late copy of a claim may be granted when its caller is long gone; it lapses.
            (0, Some(State::InProgress | State::Unknown)) if till.faulty.ghosts() > 0 => {}
            _ => panic!("{ran} effects and the record is {record:?}"),
        }
        let again = till.run(&key(n), &patient, async |_| Outcome::text("afterwards")).await;
        match (state, again) {
            (Some(State::Completed), Ok(answer)) => assert_eq!(answer.origin, Origin::Replayed),
            (None | Some(State::Released), Ok(answer)) => assert_eq!(answer.origin, Origin::Fresh),
            (Some(State::Unknown), Err(Refusal::OutcomeUnknown { .. })) => {}
            (Some(State::InProgress), Err(Refusal::InFlight { .. } | Refusal::OutcomeUnknown { .. })) => {}
            (state, again) => panic!("after {state:?} a new call hears {again:?}"),
        }
    }
}

async fn schedules(rig: Arc<dyn Rig>, lease: Duration) {
    let seeds = match (rig.in_tokio_time(), long()) {
        (true, false) => 300,
        (true, true) => 10_000,
        (false, false) => 6,
        (false, true) => 60,
    };
    for seed in 0..seeds {
        let recovery = if seed % 2 == 0 { Recovery::Hold } else { Recovery::Ask };
        let watched = Watched { seed, lease };
        schedule(&rig, seed, recovery, lease).await;
        drop(watched);
    }
}

/// Names the schedule that was under way when a case fails.
struct Watched {
    seed: u64,
    lease: Duration,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the schedule of seed {} with a lease of {:?} failed", self.seed, self.lease);
        }
    }
}

// G-8, G-9, G-17, G-18
pub(super) async fn under_any_faults_an_effect_happens_at_most_once_and_no_success_is_unstored(
    rig: Arc<dyn Rig>,
) {
    schedules(rig, Duration::from_secs(3600)).await;
}

// G-9, G-15: leases far shorter than the trouble.
pub(super) async fn under_any_faults_and_lapses_an_effect_happens_at_most_once(rig: Arc<dyn Rig>) {
    schedules(rig, Duration::from_millis(10)).await;
}
