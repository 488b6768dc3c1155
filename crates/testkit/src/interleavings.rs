//! Random histories: three actors, a few keys, a clock that jumps, sweeps and restarts, in any order;
//! every answer and every record compared with the reference. A history that differs is shrunk.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use semel_core::claim::{Claim, Request};
use semel_core::record::{Recovery, State};
use semel_core::store::Filter;
use semel_core::verbs::{Complete, Finding, MarkUnknown, Purge, Release, Renew, Settle, Settler, Witness};
use semel_core::{Holder, Nonce, Operation, Token};
use tokio::runtime::Runtime;

use crate::scene::{COFFEE, DAY, HOUR, LEASE, MINUTE, RECOVERIES, RUN_MAX, micros, operation, request};
use crate::twin::{Deed, Reference, Reply, Twin};
use crate::{Maker, ledger};

const ACTORS: u8 = 3;
const KEYS: u8 = 3;
const ACTS_MAX: usize = 48;

/// Runs `cases` random histories of up to 48 acts against fresh rigs.
///
/// # Panics
/// When an answer or a record differs, with the shortest history found and the seed.
/// `SEMEL_TEST_SEED` (64 hex digits) repeats a run.
pub fn interleavings(maker: Maker, cases: u32) {
    let seed = seed();
    let shown: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4_000, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config.clone(), rng);
    let histories = Histories::sequential_strategy(1..ACTS_MAX);
    let result = runner.run(&histories, |(_, acts, seen)| {
        Machine::test_sequential(config.clone(), Start(Some(maker.clone())), acts, seen);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("SEMEL_TEST_SEED={shown}: {failure}");
    }
    let engine = runtime().block_on(async { maker().await.engine() });
    ledger("interleavings", engine, u64::from(cases));
}

fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    match std::env::var("SEMEL_TEST_SEED") {
        Ok(text) => {
            for (at, byte) in seed.iter_mut().enumerate() {
                let digits = text.get(2 * at..2 * at + 2).expect("SEMEL_TEST_SEED has 64 hex digits");
                *byte = u8::from_str_radix(digits, 16).expect("SEMEL_TEST_SEED has 64 hex digits");
            }
        }
        Err(_) => getrandom::fill(&mut seed).expect("the operating system gives random bytes"),
    }
    seed
}

fn runtime() -> Runtime {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("a runtime can be built")
}

/// One act of somebody.
#[derive(Clone, Debug)]
enum Act {
    Claim { actor: u8, key: u8, tea: bool, recovery: Recovery, again: bool },
    Renew { actor: u8, key: u8 },
    Complete { actor: u8, key: u8, other: bool, longer: bool },
    Release { actor: u8, key: u8 },
    Doubt { actor: u8, key: u8 },
    Lapse { key: u8, older: bool },
    Settle { key: u8, done: bool, by: By, older: bool, again: bool },
    Purge { key: u8 },
    PurgeSubject,
    Sweep { limit: u32 },
    Shift(i64),
    Reopen,
    Walk { limit: u32, filter: u8 },
}

#[derive(Clone, Copy, Debug)]
enum By {
    Operator,
    Fenced,
    Unfenced,
}

/// The reference itself lives in the [`Twin`]: it follows the store where the contract leaves a
/// choice, so histories are made without it.
#[derive(Clone)]
struct Start(Option<Maker>);

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an empty store")
    }
}

struct Histories;

impl ReferenceStateMachine for Histories {
    type State = Start;
    type Transition = Act;

    fn init_state() -> BoxedStrategy<Start> {
        Just(Start(None)).boxed()
    }

    fn transitions(_: &Start) -> BoxedStrategy<Act> {
        let shifts = [MINUTE, LEASE, RUN_MAX, 8 * HOUR, DAY, 8 * DAY, 400 * DAY, -MINUTE, -HOUR, -2 * DAY];
        let (actor, key) = (0..ACTORS, 0..KEYS);
        let who = (actor, key.clone());
        let by = prop_oneof![Just(By::Operator), Just(By::Fenced), Just(By::Unfenced)];
        let sometimes = || proptest::bool::weighted(0.2);
        prop_oneof![
            6 => (who.clone(), sometimes(), 0..3usize, sometimes()).prop_map(|((actor, key), tea, recovery, again)| {
                Act::Claim { actor, key, tea, recovery: RECOVERIES[recovery], again }
            }),
            2 => who.clone().prop_map(|(actor, key)| Act::Renew { actor, key }),
            3 => (who.clone(), sometimes(), sometimes())
                .prop_map(|((actor, key), other, longer)| Act::Complete { actor, key, other, longer }),
            2 => who.clone().prop_map(|(actor, key)| Act::Release { actor, key }),
            2 => who.prop_map(|(actor, key)| Act::Doubt { actor, key }),
            2 => (key.clone(), sometimes()).prop_map(|(key, older)| Act::Lapse { key, older }),
            3 => (key.clone(), any::<bool>(), by, sometimes(), sometimes())
                .prop_map(|(key, done, by, older, again)| Act::Settle { key, done, by, older, again }),
            1 => key.prop_map(|key| Act::Purge { key }),
            1 => Just(Act::PurgeSubject),
            2 => (1u32..4).prop_map(|limit| Act::Sweep { limit }),
            4 => proptest::sample::select(shifts.to_vec()).prop_map(Act::Shift),
            1 => Just(Act::Reopen),
            1 => (1u32..4, 0..FILTERS).prop_map(|(limit, filter)| Act::Walk { limit, filter }),
        ]
        .boxed()
    }

    fn apply(state: Start, _: &Act) -> Start {
        state
    }
}

/// A rig, its twin, and what each actor remembers.
struct Machine {
    runtime: Runtime,
    rig: Arc<dyn crate::Rig>,
    twin: Twin,
    claims: HashMap<(u8, u8), Request>,
    holders: HashMap<(u8, u8), Holder>,
    /// Tokens given per key, oldest first.
    tokens: HashMap<u8, Vec<Token>>,
    settled: HashMap<u8, Nonce>,
    nonces: u64,
}

impl StateMachineTest for Machine {
    type SystemUnderTest = Self;
    type Reference = Histories;

    fn init_test(start: &Start) -> Self {
        let maker = start.0.clone().expect("the maker was put in before the run");
        let runtime = runtime();
        let (rig, twin) = runtime.block_on(async {
            let rig = maker().await;
            (rig.clone(), Twin::new(rig, Reference::new()).await)
        });
        let (claims, holders, tokens, settled) = Default::default();
        Self { runtime, rig, twin, claims, holders, tokens, settled, nonces: 0 }
    }

    fn apply(mut this: Self, _: &Start, act: Act) -> Self {
        let Some(deed) = this.deed(&act) else { return this };
        let reply = this.runtime.block_on(this.twin.both(&deed));
        if let (Reply::Claim(Claim::Granted(lease)), Act::Claim { actor, key, .. }) = (&reply, &act) {
            this.holders.insert((*actor, *key), lease.holder);
            let given = this.tokens.entry(*key).or_default();
            if given.last() != Some(&lease.holder.token) {
                given.push(lease.holder.token);
            }
        }
        this.same_records();
        this
    }

    fn teardown(mut this: Self, _: Start) {
        this.same_records();
        this.runtime.block_on(this.twin.both(&Deed::List { filter: Filter::default(), limit: 2 }));
        // The rig may have connections to close, and needs its runtime for that.
        let Self { runtime, rig, twin, .. } = this;
        let _inside = runtime.enter();
        drop((rig, twin));
    }
}

/// How many ways to list there are.
const FILTERS: u8 = 5;

fn filter(which: u8) -> Filter {
    let key = Some(order(0).key().clone());
    match which {
        0 => Filter::default(),
        1 => Filter { key, ..Filter::unsettled() },
        2 => Filter { key, ..Filter::default() },
        3 => Filter { states: Some(vec![State::Completed, State::Tombstone]), ..Filter::default() },
        _ => Filter::unsettled(),
    }
}

fn order(key: u8) -> Arc<Operation> {
    operation(&format!("interleaving-key-{key}"))
}

impl Machine {
    fn same_records(&self) {
        self.runtime.block_on(async {
            for key in 0..KEYS {
                self.twin.same_record(order(key).id()).await;
            }
        });
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        let mut bytes = [7; 16];
        bytes[..8].copy_from_slice(&self.nonces.to_be_bytes());
        Nonce::from_bytes(bytes)
    }

    fn holder(&self, actor: u8, key: u8) -> Holder {
        let stranger =
            Holder { operation: order(key).id(), token: Token(0), nonce: Nonce::from_bytes([actor; 16]) };
        self.holders.get(&(actor, key)).copied().unwrap_or(stranger)
    }

    fn token(&self, key: u8, older: bool) -> Token {
        let given = self.tokens.get(&key).map_or(&[][..], Vec::as_slice);
        let pick = if older { given.first() } else { given.last() };
        pick.copied().unwrap_or(Token(0))
    }

    /// What an act comes down to. Those that are no deed of a store are done here.
    fn deed(&mut self, act: &Act) -> Option<Deed> {
        Some(match *act {
            Act::Claim { actor, key, tea, recovery, again } => {
                let earlier = self.claims.get(&(actor, key)).filter(|_| again).cloned();
                let claim = earlier.unwrap_or_else(|| {
                    let body = if tea { "tea" } else { COFFEE };
                    let nonce = self.nonce();
                    let subject = (actor == 0).then(|| "actor zero".into());
                    Request { nonce, subject, ..request(&order(key), body, recovery) }
                });
                self.claims.insert((actor, key), claim.clone());
                Deed::Claim(claim)
            }
            Act::Renew { actor, key } => {
                Deed::Renew(Renew { holder: self.holder(actor, key), lease: micros(LEASE) })
            }
            Act::Complete { actor, key, other, longer } => {
                let outcome = if other { "other".into() } else { format!("paid by {actor}").into() };
                let ttl_min = longer.then(|| micros(if other { HOUR } else { 100 * DAY }));
                Deed::Complete(Complete { holder: self.holder(actor, key), outcome, ttl_min })
            }
            Act::Release { actor, key } => Deed::Release(Release { holder: self.holder(actor, key) }),
            Act::Doubt { actor, key } => {
                let witness = Witness::Holder(self.holder(actor, key));
                Deed::MarkUnknown(MarkUnknown { witness, note: "no answer".into() })
            }
            Act::Lapse { key, older } => {
                let witness = Witness::Lapse { operation: order(key).id(), token: self.token(key, older) };
                Deed::MarkUnknown(MarkUnknown { witness, note: "seen".into() })
            }
            Act::Settle { key, done, by, older, again } => self.settlement(key, done, by, older, again),
            Act::Purge { key } => {
                Deed::Purge(Purge { operation: order(key).id(), nonce: self.nonce(), note: "asked".into() })
            }
            Act::PurgeSubject => Deed::PurgeSubject { subject: "actor zero".into(), nonce: self.nonce() },
            Act::Walk { limit, filter: which } => Deed::List { filter: filter(which), limit },
            Act::Sweep { limit } => {
                self.runtime.block_on(self.twin.sweep(limit, micros(7 * DAY)));
                return None;
            }
            Act::Shift(micros) => {
                self.twin.shift(micros);
                return None;
            }
            Act::Reopen => {
                self.runtime.block_on(self.rig.reopen());
                return None;
            }
        })
    }

    fn settlement(&mut self, key: u8, done: bool, by: By, older: bool, again: bool) -> Deed {
        let token = self.token(key, older);
        let nonce = match self.settled.get(&key).filter(|_| again) {
            Some(earlier) => *earlier,
            None => self.nonce(),
        };
        self.settled.insert(key, nonce);
        Deed::Settle(Settle {
            operation: order(key).id(),
            token,
            nonce,
            finding: if done { Finding::Done("found".into()) } else { Finding::Never },
            by: match by {
                By::Operator => Settler::Operator("ops".into()),
                By::Fenced => Settler::Asked { refused_through: token },
                By::Unfenced => Settler::Asked { refused_through: Token(0) },
            },
            note: "note".into(),
        })
    }
}
