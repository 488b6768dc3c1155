//! What goes wrong, and when: decided by the seed, and by what the run has come to.
//!
//! Most troubles are aimed: they wait a while for some operation to be in a phase that the dice
//! chose, so that short phases are met as well as long ones.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_testkit::{Fault, Verb};
use turmoil::Sim;

use super::client::{self, Orders};
use super::coverage::{Phase, Trouble};
use super::network::StoreClock;
use super::service::{BRISK, Service};
use super::watch::Watch;
use super::{CLIENTS, KEYS, Trace};

/// A small random number generator: the same seed, the same schedule.
#[derive(Clone)]
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

    fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }
}

/// What the store does to every call for a while.
pub(super) type Mood = Arc<Mutex<Option<Trouble>>>;

/// Faults of the store: those of its mood, and some of every kind. It is never quite without delay.
pub(super) fn of_the_store(seed: u64, mood: Mood, watch: Watch) -> impl FnMut(Verb) -> Fault + Send {
    let mut dice = Dice::new(seed);
    let severity = dice.roll(40);
    let kinds = [
        Trouble::StoreRefuses,
        Trouble::StoreRefuses,
        Trouble::StoreLoses,
        Trouble::StoreLoses,
        Trouble::StoreSlow,
        Trouble::StoreSlow,
        Trouble::StoreRepeats,
        Trouble::StoreRepeats,
        Trouble::StoreHangs,
    ];
    move |_| {
        let key = watch.called();
        let now = *mood.lock().expect("no panic");
        let by_itself = (dice.roll(100) < severity).then(|| dice.one_of(&kinds));
        let Some(trouble) = now.or(by_itself) else {
            return match dice.roll(3) {
                0 => Fault::None,
                1 => Fault::Delay(dice.millis(1, 40)),
                _ => Fault::DelayAnswer(dice.millis(1, 40)),
            };
        };
        if let Some(key) = key {
            watch.meets(trouble, &key);
        }
        match trouble {
            Trouble::StoreRefuses => dice.one_of(&[Fault::Refuse, Fault::LoseCall]),
            Trouble::StoreLoses => Fault::LoseAnswer,
            Trouble::StoreSlow if dice.roll(2) == 0 => Fault::Delay(dice.millis(1, 1500)),
            Trouble::StoreSlow => Fault::DelayAnswer(dice.millis(1, 1500)),
            Trouble::StoreRepeats => dice.one_of(&[Fault::Twice, Fault::Late]),
            _ => dice.one_of(&[Fault::Hang, Fault::HangAfter]),
        }
    }
}

/// What can be in trouble, each by itself.
#[derive(Clone, Copy)]
enum Place {
    Client(usize),
    Upstream,
    Gateway,
    Service,
    Store,
    Clock,
}

impl Place {
    /// The line that it is about, if any.
    fn ends(self) -> Option<[String; 2]> {
        match self {
            Self::Client(at) => Some([client::name(at), "gateway".into()]),
            Self::Upstream => Some(["gateway".into(), "service".into()]),
            Self::Gateway | Self::Service | Self::Store | Self::Clock => None,
        }
    }

    /// Whose requests it concerns, if not everybody's.
    fn client(self) -> Option<usize> {
        match self {
            Self::Client(at) => Some(at),
            _ => None,
        }
    }

    fn troubles(self) -> &'static [Trouble] {
        use Trouble::*;
        match self {
            Self::Client(_) => &[ClientLoss, ClientLate, ClientCut, ClientCopy, ClientGone],
            Self::Upstream => &[UpstreamLoss, UpstreamLate, UpstreamCut],
            Self::Gateway => &[GatewayCrash],
            Self::Service => &[ServiceCrash, ServiceSlow],
            Self::Store => &[StoreRefuses, StoreLoses, StoreSlow, StoreHangs, StoreRepeats],
            Self::Clock => &[ClockAhead, ClockBack, ClockFast],
        }
    }
}

struct Lane {
    place: Place,
    now: Option<Trouble>,
    /// When that changes.
    until: Duration,
    next: Trouble,
    /// What it waits for before it gets worse, and no longer than this.
    aim: Option<(Phase, Duration)>,
    dice: Dice,
}

/// Phases to wait for. The short ones twice.
const AIMS: [Phase; 13] = [
    Phase::BeforeClaim,
    Phase::ClaimSent,
    Phase::ClaimSent,
    Phase::Running,
    Phase::EffectDone,
    Phase::Completing,
    Phase::Completing,
    Phase::Answering,
    Phase::Answering,
    Phase::Replaying,
    Phase::Unknown,
    Phase::Asked,
    Phase::Asked,
];

/// Whatever trouble can be made with.
pub(super) struct World<'a> {
    pub(super) service: Service,
    pub(super) mood: Mood,
    pub(super) clock: Arc<StoreClock>,
    pub(super) orders: [Orders; CLIENTS],
    pub(super) watch: Watch,
    pub(super) trace: &'a Trace,
}

/// The troubles of a run.
pub(super) struct Schedule(Vec<Lane>);

impl Schedule {
    /// In most runs some places are never in trouble, so that others get further.
    pub(super) fn new(dice: &mut Dice) -> Self {
        let places = (0..CLIENTS).map(Place::Client);
        let places =
            places.chain([Place::Upstream, Place::Gateway, Place::Service, Place::Store, Place::Clock]);
        let lanes = places.filter_map(|place| {
            let mut dice = Dice::new(dice.roll(u64::MAX));
            let lane = (dice.roll(3) > 0).then(|| dice.millis(100, 3000));
            let next = dice.one_of(place.troubles());
            lane.map(|until| Lane { place, now: None, until, next, aim: dice.aim(until), dice })
        });
        Self(lanes.collect())
    }

    /// Lets happen what is due.
    pub(super) fn play(&mut self, sim: &mut Sim<'_>, world: &World<'_>) {
        for lane in &mut self.0 {
            if sim.elapsed() < lane.until {
                continue;
            }
            match lane.now {
                None => lane.worsen_in_time(sim, world),
                Some(trouble) => lane.mend(trouble, sim, world),
            }
        }
    }

    /// Ends all trouble.
    pub(super) fn heal(&mut self, sim: &mut Sim<'_>, world: &World<'_>) {
        for lane in &mut self.0 {
            if let Some(trouble) = lane.now {
                lane.mend(trouble, sim, world);
            }
        }
        world.service.heal();
    }
}

impl Dice {
    /// Mostly something to wait for, for a while after this moment.
    fn aim(&mut self, after: Duration) -> Option<(Phase, Duration)> {
        let phase = self.one_of(&AIMS);
        (self.roll(4) > 0).then(|| (phase, after + self.millis(500, 4000)))
    }
}

impl Lane {
    fn worsen_in_time(&mut self, sim: &mut Sim<'_>, world: &World<'_>) {
        let phases = world.watch.phases(self.concerns());
        match self.aim {
            Some((aim, end)) if sim.elapsed() < end && phases.iter().all(|(_, phase)| *phase != aim) => {}
            _ => self.worsen(sim, world),
        }
    }

    fn worsen(&mut self, sim: &mut Sim<'_>, world: &World<'_>) {
        let trouble = self.next;
        if trouble != Trouble::ClientCopy {
            // Before it happens: a crash ends what it met.
            world.watch.begins(trouble, self.concerns());
        }
        world.trace.note(sim.elapsed(), &format!("{}: {trouble:?}", self.title()));
        self.begin(trouble, sim, world);
        let most = match trouble {
            Trouble::ClientLoss | Trouble::UpstreamLoss => 100,
            Trouble::StoreHangs => 500,
            Trouble::ServiceSlow => 5000,
            _ => 3000,
        };
        (self.now, self.until) = (Some(trouble), sim.elapsed() + self.dice.millis(20, most));
    }

    fn begin(&mut self, trouble: Trouble, sim: &mut Sim<'_>, world: &World<'_>) {
        let ends = self.place.ends();
        let ends = ends.as_ref().map(|[a, b]| [a.as_str(), b.as_str()]);
        match (trouble, ends, self.place) {
            (Trouble::ClientLoss | Trouble::UpstreamLoss, Some([a, b]), _) => match self.dice.roll(2) {
                0 => sim.partition_oneway(a, b),
                _ => sim.partition_oneway(b, a),
            },
            (Trouble::ClientLate | Trouble::UpstreamLate, Some([a, b]), _) => sim.hold(a, b),
            (Trouble::ClientCut | Trouble::UpstreamCut, Some([a, b]), _) => sim.partition(a, b),
            (Trouble::ClientCopy, _, Place::Client(at)) => {
                let key = self.copied(world);
                world.watch.meets(trouble, &client::key(key));
                world.orders[at].repeat(key);
            }
            (Trouble::ClientGone, _, Place::Client(at)) => world.orders[at].hang_up(),
            (Trouble::GatewayCrash, ..) => {
                sim.crash("gateway");
                world.watch.gateway_died();
            }
            (Trouble::ServiceCrash, ..) => sim.crash("service"),
            (Trouble::ServiceSlow, ..) => world.service.slow(self.dice.millis(1000, 6000)),
            (Trouble::ClockAhead, ..) => world.clock.jump_ahead(self.dice.millis(100, 9000)),
            (Trouble::ClockBack, ..) => world.clock.jump_back(self.dice.millis(100, 4000)),
            (Trouble::ClockFast, ..) => world.clock.run(2),
            _ => *world.mood.lock().expect("no panic") = Some(trouble),
        }
    }

    /// Which request arrives once more: one in the phase aimed at, if there is one. Also of those that
    /// nobody waits for any more.
    fn copied(&mut self, world: &World<'_>) -> usize {
        let any = self.dice.below(KEYS);
        let aimed = |key: &usize| {
            let phase = world.watch.phase(&client::key(*key));
            self.aim.is_some_and(|(aim, _)| phase == Some(aim))
        };
        (0..KEYS).find(aimed).unwrap_or(any)
    }

    fn mend(&mut self, trouble: Trouble, sim: &mut Sim<'_>, world: &World<'_>) {
        let ends = self.place.ends();
        let ends = ends.as_ref().map(|[a, b]| [a.as_str(), b.as_str()]);
        match (trouble, ends) {
            (Trouble::ClientLate | Trouble::UpstreamLate, Some([a, b])) => sim.release(a, b),
            (Trouble::ClientCopy | Trouble::ClientGone, _) => {}
            (_, Some([a, b])) => sim.repair(a, b),
            (Trouble::GatewayCrash, _) => sim.bounce("gateway"),
            (Trouble::ServiceCrash, _) => sim.bounce("service"),
            (Trouble::ServiceSlow, _) => world.service.slow(BRISK),
            // A clock that jumped stays where it is.
            (Trouble::ClockAhead | Trouble::ClockBack, _) => {}
            (Trouble::ClockFast, _) => world.clock.run(0),
            _ => *world.mood.lock().expect("no panic") = None,
        }
        world.trace.note(sim.elapsed(), &format!("{}: {trouble:?} is over", self.title()));
        (self.now, self.until) = (None, sim.elapsed() + self.dice.millis(100, 2000));
        self.next = self.dice.one_of(self.place.troubles());
        self.aim = self.dice.aim(self.until);
    }

    /// Whose requests the next trouble is about, if not everybody's. A copy may be of any.
    fn concerns(&self) -> Option<usize> {
        self.place.client().filter(|_| self.next != Trouble::ClientCopy)
    }

    fn title(&self) -> String {
        match (self.place.ends(), self.place) {
            (Some([a, b]), _) => format!("{a} and {b}"),
            (None, Place::Gateway) => "gateway".into(),
            (None, Place::Service) => "service".into(),
            (None, Place::Store) => "store".into(),
            (None, _) => "clock".into(),
        }
    }
}
