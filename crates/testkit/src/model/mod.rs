//! All interleavings, within stated bounds, of the transition functions themselves.
//!
//! There is no store here: each step of the model is one `decide` on a record, as a store would
//! apply it. Workers claim, run, report, crash, pause for any time and give up; answers get lost and
//! one write is copied and delivered late; leases lapse; a recoverer marks and asks; an operator settles.
//! What each worker really did is counted beside the records, and compared with what they say.
//!
//! Time is counted in leases and forgotten where no decision can depend on it. Workers are
//! interchangeable and so are keys, so they start in order. A run that reaches its cap of states
//! has not seen everything, and fails.

mod judge;
mod world;

use std::time::Instant;

use semel_core::history::Kind;
use semel_core::record::{Record, Recovery, State};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::ledger;
use crate::scene::long;
use world::{Act, World};

/// How far a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Attempts in all: each worker makes one.
    pub workers: u8,
    /// Operations.
    pub keys: u8,
    /// Writes that are copied and delivered late.
    pub copies: u8,
    /// Answers that are lost.
    pub losses: u8,
    /// States at most; reaching it is a failure.
    pub states_max: usize,
}

impl Bounds {
    /// What every run of the tests affords: many attempts at one operation, and two operations.
    /// With `SEMEL_TEST_LONG=1` further.
    pub fn of(recovery: Recovery) -> [Self; 2] {
        let bounds = |workers, keys, copies, losses| {
            let states_max = if long() { 100_000_000 } else { 4_000_000 };
            Self { workers, keys, copies, losses, states_max }
        };
        match (recovery, long()) {
            (Recovery::Hold, false) => [bounds(4, 1, 1, 1), bounds(3, 2, 1, 1)],
            (Recovery::Hold, true) => [bounds(5, 1, 1, 1), bounds(4, 2, 1, 1)],
            (Recovery::Ask, false) => [bounds(3, 1, 1, 1), bounds(3, 2, 0, 0)],
            (Recovery::Ask, true) => [bounds(4, 1, 0, 1), bounds(3, 2, 1, 0)],
            (Recovery::Rerun, false) => [bounds(3, 1, 1, 1), bounds(3, 2, 1, 0)],
            (Recovery::Rerun, true) => [bounds(4, 1, 1, 1), bounds(3, 2, 1, 1)],
        }
    }
}

/// What a run saw.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Different states.
    pub states: usize,
    /// Steps from the beginning to the farthest of them.
    pub depth: usize,
}

/// Explores everything under one recovery within each of its [`Bounds`], and says how much that was.
///
/// # Panics
/// When a property does not hold, with the steps that lead there; and when a cap was reached.
pub fn explore(recovery: Recovery) -> Vec<Seen> {
    let runs: Vec<Seen> = Bounds::of(recovery).into_iter().map(|bounds| run(recovery, bounds)).collect();
    let states: usize = runs.iter().map(|seen| seen.states).sum();
    ledger("model", &format!("{recovery:?}").to_lowercase(), states as u64);
    runs
}

fn run(recovery: Recovery, bounds: Bounds) -> Seen {
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let life = Life { recovery, bounds };
    let builder = life.checker().threads(threads).target_state_count(bounds.states_max);
    let checker = builder.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let seen = Seen { states: checker.unique_state_count(), depth: checker.max_depth() };
    println!("{recovery:?}: {seen:?} within {bounds:?}, {:?}", begun.elapsed());
    checker.assert_properties();
    assert!(checker.state_count() < bounds.states_max, "{recovery:?}: the cap was reached: {bounds:?}");
    seen
}

/// The life of a few operations under one recovery.
struct Life {
    recovery: Recovery,
    bounds: Bounds,
}

impl Model for Life {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.bounds)]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        world.acts(acts);
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        next.act(act, self.recovery);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            // G-7, G-9: checked at every step, see `judge`.
            Property::always("every step keeps the rules", |_, world: &World| world.broken.is_none()),
            // G-17
            Property::always("completed means it happened", |_, world: &World| {
                world.every(|record, effects| record.state != State::Completed || !effects.is_empty())
            }),
            Property::sometimes("an outcome is stored", |_, world: &World| {
                world.some(|record| record.state == State::Completed)
            }),
            Property::sometimes("a late outcome is refused", |_, world: &World| {
                world.some(|record| noted(record, Kind::RefusedOutcome))
            }),
            Property::sometimes("a released operation is claimed again", |_, world: &World| {
                world.some(|record| noted(record, Kind::Released) && record.state == State::Completed)
            }),
        ];
        if self.bounds.losses > 0 {
            all.push(Property::sometimes("a lost answer is found out", |_, world: &World| {
                world.losses == 0 && world.some(|record| record.state == State::Completed)
            }));
        }
        if self.bounds.copies > 0 {
            all.push(Property::sometimes(
                "a late copy of a withdrawn claim is refused",
                |_, world: &World| world.saw_withdrawn(),
            ));
        }
        match self.recovery {
            Recovery::Rerun => all.extend([
                Property::sometimes("a lapsed lease is taken over", |_, world: &World| world.saw_takeover()),
                Property::sometimes("an effect runs twice, as declared harmless", |_, world: &World| {
                    !world.every(|_, effects| effects.len() < 2)
                }),
            ]),
            Recovery::Hold | Recovery::Ask => all.extend([
                // G-8, G-15
                Property::always("an effect happens at most once", |_, world: &World| {
                    world.every(|_, effects| effects.len() < 2)
                }),
                // G-16
                Property::always("released means it did not happen", |_, world: &World| {
                    world.every(|record, effects| record.state != State::Released || effects.is_empty())
                }),
                Property::sometimes("a lapse makes an unknown", |_, world: &World| world.saw_lapse()),
                Property::sometimes("an unknown's own late outcome is taken", |_, world: &World| {
                    world.some(|record| noted(record, Kind::LateOutcome))
                }),
                Property::sometimes("an unknown is settled as done", |_, world: &World| {
                    world.some(|record| noted(record, Kind::SettledDone))
                }),
                Property::sometimes("one settled as never runs later", |_, world: &World| {
                    world.some(|record| noted(record, Kind::SettledNever) && record.state == State::Completed)
                }),
            ]),
        }
        if self.recovery == Recovery::Ask {
            all.push(Property::sometimes("a fenced effect does not happen any more", |_, world: &World| {
                world.saw_fenced()
            }));
        }
        all
    }
}

fn noted(record: &Record, kind: Kind) -> bool {
    record.history.events().iter().any(|event| event.kind == kind)
}
