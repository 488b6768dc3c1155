//! Which trouble met an operation in which phase: counted over all runs, and demanded of the long one.
//!
//! A trouble counts for a phase if it began while an operation was in it; a fault of one call to the
//! store, if the call was about an operation in it.

use std::fmt::Write as _;

/// Where an operation stands, as nobody inside the simulation can know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A request is on its way; the store has not heard of it.
    BeforeClaim,
    /// A claim is on its way, or granted and not heard of.
    ClaimSent,
    /// The lease is held, and nothing has happened yet.
    Running,
    /// It happened, and the gateway does not know.
    EffectDone,
    /// The outcome is on its way to the store, or stored and not heard of.
    Completing,
    /// The outcome is stored; who waited for it has not heard.
    Answering,
    /// The outcome was stored before, and somebody asks.
    Replaying,
    /// Lapsed or unknown.
    Unknown,
    /// Unknown, and the service is being asked or its word is on its way to the store.
    Asked,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    ClientLoss,
    ClientLate,
    ClientCut,
    ClientCopy,
    ClientGone,
    UpstreamLoss,
    UpstreamLate,
    UpstreamCut,
    GatewayCrash,
    ServiceCrash,
    ServiceSlow,
    StoreRefuses,
    StoreLoses,
    StoreSlow,
    StoreHangs,
    StoreRepeats,
    ClockAhead,
    ClockBack,
    ClockFast,
}

const PHASES: [(Phase, &str); 9] = [
    (Phase::BeforeClaim, "before claim"),
    (Phase::ClaimSent, "claim sent"),
    (Phase::Running, "running"),
    (Phase::EffectDone, "effect done"),
    (Phase::Completing, "completing"),
    (Phase::Answering, "answering"),
    (Phase::Replaying, "replaying"),
    (Phase::Unknown, "unknown"),
    (Phase::Asked, "asked"),
];

const TROUBLES: [(Trouble, &str); 19] = [
    (Trouble::ClientLoss, "client: messages lost one way"),
    (Trouble::ClientLate, "client: messages late"),
    (Trouble::ClientCut, "client: cut off"),
    (Trouble::ClientCopy, "client: request arrives twice"),
    (Trouble::ClientGone, "client: hangs up"),
    (Trouble::UpstreamLoss, "service: messages lost one way"),
    (Trouble::UpstreamLate, "service: messages late"),
    (Trouble::UpstreamCut, "service: cut off"),
    (Trouble::GatewayCrash, "gateway: crashes"),
    (Trouble::ServiceCrash, "service: crashes"),
    (Trouble::ServiceSlow, "service: slow"),
    (Trouble::StoreRefuses, "store: fails before the commit"),
    (Trouble::StoreLoses, "store: fails after the commit"),
    (Trouble::StoreSlow, "store: late"),
    (Trouble::StoreHangs, "store: silent"),
    (Trouble::StoreRepeats, "store: call arrives twice"),
    (Trouble::ClockAhead, "clock: jumps ahead"),
    (Trouble::ClockBack, "clock: jumps back"),
    (Trouble::ClockFast, "clock: three times too fast"),
];

/// Cells that cannot be hit, with the reason.
const IMPOSSIBLE: &[(Trouble, Phase, &str)] = &[];

/// How often each trouble met each phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts([[u64; PHASES.len()]; TROUBLES.len()]);

impl Counts {
    pub(super) fn hit(&mut self, trouble: Trouble, phase: Phase) {
        self.0[trouble as usize][phase as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (row, more) in self.0.iter_mut().zip(other.0) {
            row.iter_mut().zip(more).for_each(|(cell, more)| *cell += more);
        }
    }

    /// A line each for cells with fewer hits than this, and for impossible ones that were hit.
    pub(super) fn complaints(&self, least: u64) -> Vec<String> {
        let mut complaints = Vec::new();
        for (trouble, name) in TROUBLES {
            for (phase, when) in PHASES {
                let hits = self.0[trouble as usize][phase as usize];
                match (reason(trouble, phase), hits) {
                    (Some(_), 0) => {}
                    (Some(why), hits) => complaints.push(format!(
                        "\"{name}\" met \"{when}\" {hits} times, and that was impossible: {why}"
                    )),
                    (None, hits) if hits < least => {
                        complaints
                            .push(format!("\"{name}\" met \"{when}\" {hits} times, fewer than {least}"));
                    }
                    (None, _) => {}
                }
            }
        }
        complaints
    }

    /// A row for each trouble, a column for each phase, between tabs.
    pub(super) fn table(&self) -> String {
        let mut text = String::from("trouble");
        PHASES.iter().for_each(|(_, name)| write!(text, "\t{name}").expect("a string takes anything"));
        for (trouble, name) in TROUBLES {
            write!(text, "\n{name}").expect("a string takes anything");
            for (phase, _) in PHASES {
                let cell = match reason(trouble, phase) {
                    Some(_) => "-".to_owned(),
                    None => self.0[trouble as usize][phase as usize].to_string(),
                };
                write!(text, "\t{cell}").expect("a string takes anything");
            }
        }
        text.push('\n');
        text
    }
}

fn reason(trouble: Trouble, phase: Phase) -> Option<&'static str> {
    IMPOSSIBLE.iter().find(|(one, other, _)| (*one, *other) == (trouble, phase)).map(|(.., why)| *why)
}

#[test]
fn names_stand_where_their_numbers_say() {
    assert!(TROUBLES.iter().enumerate().all(|(at, (trouble, _))| *trouble as usize == at));
    assert!(PHASES.iter().enumerate().all(|(at, (phase, _))| *phase as usize == at));
}

#[test]
fn a_cell_with_too_few_hits_is_complained_about() {
    let mut counts = Counts::default();
    for (trouble, _) in TROUBLES {
        PHASES.iter().for_each(|(phase, _)| counts.hit(trouble, *phase));
    }
    let impossible = counts.complaints(1).len();
    assert_eq!(impossible, IMPOSSIBLE.len());
    counts.hit(Trouble::GatewayCrash, Phase::Completing);
    assert_eq!(counts.complaints(2).len(), TROUBLES.len() * PHASES.len() - 1);
}
