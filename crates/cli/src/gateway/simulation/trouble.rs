//! What goes wrong, and when: decided by the seed alone.

use std::time::Duration;

use semel_testkit::{Fault, Verb};
use turmoil::Sim;

use super::service::{BRISK, Service};
use super::{CLIENTS, Trace};

/// A small random number generator: the same seed, the same schedule.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    pub(super) fn below(&mut self, sides: usize) -> usize {
        self.roll(sides as u64) as usize
    }

    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.roll(most - least))
    }

    pub(super) fn within(&mut self, most: Duration) -> Duration {
        Duration::from_millis(self.roll(1 + most.as_millis() as u64))
    }
}

/// Faults of the store, of every kind.
pub(super) fn of_the_store(seed: u64) -> impl FnMut(Verb) -> Fault + Send {
    let mut dice = Dice::new(seed);
    let severity = dice.roll(40);
    move |_| {
        if dice.roll(100) >= severity {
            return Fault::None;
        }
        match dice.roll(16) {
            0..3 => Fault::Refuse,
            3..6 => Fault::LoseAnswer,
            6..8 => Fault::LoseCall,
            8..11 => Fault::Delay(dice.millis(1, 1500)),
            11..13 => Fault::Twice,
            13..15 => Fault::Late,
            _ => [Fault::Hang, Fault::HangAfter][dice.below(2)],
        }
    }
}

/// What can be in trouble, each by itself.
#[derive(Clone, Copy)]
enum Place {
    /// The line between a host and the gateway.
    Client(usize),
    Upstream,
    Gateway,
    Service,
    Pace,
}

#[derive(Clone, Copy)]
enum Now {
    Well,
    Cut,
    Held,
    Down,
    Slow,
}

struct Lane {
    place: Place,
    now: Now,
    /// When that changes.
    until: Duration,
    dice: Dice,
}

/// The troubles of a run.
pub(super) struct Schedule(Vec<Lane>);

impl Schedule {
    pub(super) fn new(dice: &mut Dice) -> Self {
        let places = (0..CLIENTS).map(Place::Client);
        let places = places.chain([Place::Upstream, Place::Gateway, Place::Service, Place::Pace]);
        let lanes = places.map(|place| {
            let mut dice = Dice::new(dice.roll(u64::MAX));
            Lane { place, now: Now::Well, until: dice.millis(200, 6000), dice }
        });
        Self(lanes.collect())
    }

    /// Lets happen what is due.
    pub(super) fn play(&mut self, sim: &mut Sim<'_>, service: &Service, trace: &Trace) {
        for lane in &mut self.0 {
            if sim.elapsed() < lane.until {
                continue;
            }
            match lane.now {
                Now::Well => lane.worsen(sim, service, trace),
                _ => lane.mend(sim, service, trace),
            }
        }
    }

    /// Ends all trouble.
    pub(super) fn heal(&mut self, sim: &mut Sim<'_>, service: &Service, trace: &Trace) {
        for lane in &mut self.0 {
            lane.mend(sim, service, trace);
        }
        service.heal();
    }
}

impl Lane {
    fn ends(&self) -> Option<[String; 2]> {
        match self.place {
            Place::Client(at) => Some([format!("client-{at}"), "gateway".into()]),
            Place::Upstream => Some(["gateway".into(), "service".into()]),
            Place::Gateway | Place::Service | Place::Pace => None,
        }
    }

    fn worsen(&mut self, sim: &mut Sim<'_>, service: &Service, trace: &Trace) {
        let kind = self.dice.roll(3);
        let (now, what) = match (self.ends(), self.place) {
            (Some([a, b]), _) if kind == 0 => {
                sim.hold(a.as_str(), b.as_str());
                (Now::Held, format!("{a} and {b}: everything is late"))
            }
            (Some([a, b]), _) => {
                sim.partition(a.as_str(), b.as_str());
                (Now::Cut, format!("{a} and {b}: cut"))
            }
            (None, Place::Gateway) => {
                sim.crash("gateway");
                (Now::Down, "gateway: crashed".into())
            }
            (None, Place::Service) => {
                sim.crash("service");
                (Now::Down, "service: crashed".into())
            }
            (None, _) => {
                service.slow(self.dice.millis(1000, 6000));
                (Now::Slow, "service: slow".into())
            }
        };
        trace.note(sim.elapsed(), &what);
        let most = if matches!(now, Now::Slow) { 8000 } else { 4000 };
        (self.now, self.until) = (now, sim.elapsed() + self.dice.millis(50, most));
    }

    fn mend(&mut self, sim: &mut Sim<'_>, service: &Service, trace: &Trace) {
        let what = match (self.now, self.ends(), self.place) {
            (Now::Well, ..) => return,
            (Now::Held, Some([a, b]), _) => {
                sim.release(a.as_str(), b.as_str());
                format!("{a} and {b}: what was late arrives")
            }
            (_, Some([a, b]), _) => {
                sim.repair(a.as_str(), b.as_str());
                format!("{a} and {b}: repaired")
            }
            (_, None, Place::Gateway) => {
                sim.bounce("gateway");
                "gateway: started again".into()
            }
            (_, None, Place::Service) => {
                sim.bounce("service");
                "service: started again".into()
            }
            (_, None, _) => {
                service.slow(BRISK);
                "service: quick".into()
            }
        };
        trace.note(sim.elapsed(), &what);
        (self.now, self.until) = (Now::Well, sim.elapsed() + self.dice.millis(500, 7000));
    }
}
