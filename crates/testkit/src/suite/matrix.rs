//! Every state against every verb, on the store and on the reference.

use std::sync::Arc;

use semel_core::claim::{Claim, Request};
use semel_core::record::{Recovery, State};
use semel_core::verbs::{Complete, Finding, MarkUnknown, Purge, Release, Renew, Settle, Settler, Witness};
use semel_core::{Holder, Nonce, Operation, OperationId, Token};

use crate::Rig;
use crate::scene::{COFFEE, LEASE, MINUTE, RECOVERIES, RUN_MAX, TTL, micros, operation, prints, request};
use crate::twin::{Deed, Reference, Reply, Twin};

/// How a record gets where a verb meets it.
const PASTS: &[(&str, &[Past])] = {
    use Past::*;
    &[
        ("absent", &[]),
        ("running", &[Start]),
        ("lapsed", &[Start, Wait(LEASE)]),
        ("old-lapsed", &[Start, Wait(3 * TTL)]),
        ("completed", &[Start, Finish]),
        ("released", &[Start, LetGo]),
        ("unknown", &[Start, Doubt]),
        ("askable", &[Start, Doubt, Wait(RUN_MAX)]),
        ("old-unknown", &[Start, Doubt, Wait(3 * TTL)]),
        ("late", &[Start, Doubt, Finish]),
        ("purged", &[Start, Finish, Erase]),
        ("purged-rel", &[Start, LetGo, Erase]),
        ("expired", &[Start, Finish, Wait(TTL)]),
        ("expired-rel", &[Start, LetGo, Wait(TTL)]),
        ("expired-pur", &[Start, Finish, Erase, Wait(TTL)]),
        ("reclaimed", &[Start, LetGo, Start]),
        ("re-completed", &[Start, LetGo, Start, Finish]),
        ("re-released", &[Start, LetGo, Start, LetGo]),
        ("re-unknown", &[Start, LetGo, Start, Doubt, Wait(RUN_MAX)]),
        ("re-lapsed", &[Start, LetGo, Start, Wait(LEASE)]),
        ("second-life", &[Start, Finish, Wait(TTL), Start]),
    ]
};

#[derive(Clone, Copy)]
enum Past {
    Start,
    Finish,
    LetGo,
    Doubt,
    Erase,
    Wait(i64),
}

/// Beyond every token a store gives, and within what a database's integers hold.
const AHEAD: Token = Token(1 << 62);

// G-7
pub(super) async fn every_state_meets_every_verb_as_the_table_says(rig: Arc<dyn Rig>) {
    let mut twin = Twin::new(rig, Reference::new()).await;
    let mut met = 0;
    for (name, past) in PASTS {
        let mut lives: Vec<Life> = RECOVERIES.iter().flat_map(|recovery| lives(name, *recovery)).collect();
        let mut waited = 0;
        for step in *past {
            waited += live(&mut twin, &mut lives, *step).await;
        }
        for life in &lives {
            let has_record = twin.reference.get(life.order.id()).is_some();
            met += usize::from(has_record || past.is_empty());
        }
        let deeds: Vec<Deed> = lives.iter().map(Life::meeting).collect();
        // Twice: every verb can be repeated.
        for _ in 0..2 {
            twin.both_of_all(&deeds).await;
            twin.same_records(&ids(&lives)).await;
        }
        twin.shift(-waited);
    }
    assert!(met > 2000, "{met} meetings");
}

/// An operation that meets one of the verbs at the end of its past.
struct Life {
    order: Arc<Operation>,
    recovery: Recovery,
    verb: usize,
    holders: Vec<Holder>,
    claims: Vec<Request>,
}

impl Life {
    fn new(order: Arc<Operation>, recovery: Recovery, verb: usize) -> Self {
        Self { order, recovery, verb, holders: Vec::new(), claims: Vec::new() }
    }

    fn meeting(&self) -> Deed {
        deeds(&self.order, self.recovery, self.claims.last(), &self.holders).swap_remove(self.verb)
    }

    fn step(&mut self, step: Past) -> Deed {
        let newest = self.holders.last().copied();
        let holder = || newest.expect("there was a start before");
        match step {
            Past::Wait(_) => unreachable!("time passes for all"),
            Past::Start => {
                let mut claim = request(&self.order, COFFEE, self.recovery);
                claim.subject = Some("somebody".into());
                self.claims.push(claim.clone());
                Deed::Claim(claim)
            }
            Past::Finish => {
                Deed::Complete(Complete { holder: holder(), outcome: "paid".into(), ttl_min: None })
            }
            Past::LetGo => Deed::Release(Release { holder: holder() }),
            Past::Doubt => {
                Deed::MarkUnknown(MarkUnknown { witness: Witness::Holder(holder()), note: "lost".into() })
            }
            Past::Erase => {
                let operation = self.order.id();
                Deed::Purge(Purge { operation, nonce: Nonce::random(), note: "asked".into() })
            }
        }
    }
}

/// One for each verb.
fn lives(name: &str, recovery: Recovery) -> impl Iterator<Item = Life> {
    let verbs = deeds(&operation("counting-00000001"), recovery, None, &[]).len();
    (0..verbs)
        .map(move |verb| Life::new(operation(&format!("{name}-{recovery:?}-{verb}-matrix")), recovery, verb))
}

fn ids(lives: &[Life]) -> Vec<OperationId> {
    lives.iter().map(|life| life.order.id()).collect()
}

/// Takes them all a step further; how much time passed.
async fn live(twin: &mut Twin, lives: &mut [Life], step: Past) -> i64 {
    if let Past::Wait(micros) = step {
        twin.shift(micros);
        return micros;
    }
    let deeds: Vec<Deed> = lives.iter_mut().map(|life| life.step(step)).collect();
    for (life, reply) in lives.iter_mut().zip(twin.both_of_all(&deeds).await) {
        if let Reply::Claim(Claim::Granted(lease)) = reply {
            life.holders.push(lease.holder);
        }
    }
    twin.same_records(&ids(lives)).await;
    0
}

/// Everything that can be done to an operation, rightly and wrongly.
fn deeds(order: &Arc<Operation>, recovery: Recovery, own: Option<&Request>, holders: &[Holder]) -> Vec<Deed> {
    let operation = order.id();
    let nobody = Holder { operation, token: Token(0), nonce: Nonce::from_bytes([9; 16]) };
    let newest = holders.last().copied().unwrap_or(nobody);
    let first = holders.first().copied().unwrap_or(nobody);
    let writers = [
        newest,
        first,
        Holder { nonce: Nonce::from_bytes([9; 16]), ..newest },
        Holder { token: Token(0), ..newest },
        Holder { token: AHEAD, ..newest },
    ];
    let mut deeds = claims(order, recovery, own);
    for holder in writers {
        deeds.push(Deed::Renew(Renew { holder, lease: micros(LEASE) }));
        deeds.push(Deed::Renew(Renew { holder, lease: micros(MINUTE) }));
        deeds.push(Deed::Complete(Complete { holder, outcome: "paid".into(), ttl_min: None }));
        deeds.push(Deed::Complete(Complete { holder, outcome: "other".into(), ttl_min: None }));
        deeds.push(Deed::Complete(Complete {
            holder,
            outcome: "kept".into(),
            ttl_min: Some(micros(9 * TTL)),
        }));
        deeds.push(Deed::Release(Release { holder }));
        for witness in [Witness::Holder(holder), Witness::Lapse { operation, token: holder.token }] {
            deeds.push(Deed::MarkUnknown(MarkUnknown { witness, note: "note".into() }));
        }
    }
    for token in [newest.token, first.token, Token(0), AHEAD] {
        for finding in [Finding::Done("found".into()), Finding::Never] {
            for by in [
                Settler::Operator("ops".into()),
                Settler::Asked { refused_through: token },
                Settler::Asked { refused_through: Token(0) },
                Settler::Asked { refused_through: AHEAD },
            ] {
                let (nonce, finding, note) = (Nonce::random(), finding.clone(), "note".into());
                deeds.push(Deed::Settle(Settle { operation, token, nonce, finding, by, note }));
            }
        }
    }
    deeds.push(Deed::Purge(Purge { operation, nonce: Nonce::random(), note: "note".into() }));
    deeds
}

fn claims(order: &Arc<Operation>, recovery: Recovery, own: Option<&Request>) -> Vec<Deed> {
    let fresh = request(order, COFFEE, recovery);
    let mut other_version = request(order, COFFEE, recovery);
    other_version.print = prints(&[2]).of_json(COFFEE.as_bytes()).current().clone();
    let mut other_terms = request(order, COFFEE, Recovery::Rerun);
    other_terms.terms.lease = micros(2 * LEASE);
    let all = [
        own.unwrap_or(&fresh).clone(),
        fresh,
        request(order, "another body", recovery),
        other_version,
        other_terms,
    ];
    all.into_iter().map(Deed::Claim).collect()
}

// G-7: the reverse direction; no verb leads out of the states the table knows.
pub(super) async fn an_ended_operation_is_left_only_by_claim_purge_and_expiry(rig: Arc<dyn Rig>) {
    let mut twin = Twin::new(rig, Reference::new()).await;
    for (end, key) in [(Past::Finish, "ended-completed-00"), (Past::LetGo, "ended-released-000")] {
        let mut lives = [Life::new(operation(key), Recovery::Hold, 0)];
        for step in [Past::Start, end] {
            live(&mut twin, &mut lives, step).await;
        }
        let [Life { order, recovery, holders, claims, .. }] = lives;
        let ended = twin.reference.get(order.id()).map(|record| record.state);
        let all = deeds(&order, recovery, claims.last(), &holders);
        for deed in all.iter().filter(|deed| !matches!(deed, Deed::Claim(_) | Deed::Purge(_))) {
            twin.both(deed).await;
            assert_eq!(twin.reference.get(order.id()).map(|record| record.state), ended, "{deed:?}");
        }
        twin.same_record(order.id()).await;
        let outcome = twin.reference.get(order.id()).and_then(|record| record.outcome.clone());
        assert_eq!(outcome.is_some(), ended == Some(State::Completed));
    }
}
