//! Replays from memory: for a moment, for the same request, and never after a purge.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::claim::{Claim, Request};
use semel_core::fingerprint::{Fingerprinter, HashKey};
use semel_core::runtime::Tokio;
use semel_core::verbs::{Complete, Purge};
use semel_core::{EffectStore, MemoryStore, Nonce, Operation, Policy, Recalling, Scope};
use semel_testkit::{Fault, FaultyStore, Verb};

const MOMENT: Duration = Duration::from_secs(1);

/// A store that remembers, over one whose calls are counted.
struct Shop {
    below: Arc<FaultyStore>,
    store: Recalling,
    prints: Fingerprinter,
}

impl Shop {
    fn open() -> Self {
        let below = FaultyStore::new(Arc::new(MemoryStore::new()), |_| Fault::None);
        let store = Recalling::new(below.clone(), Arc::new(Tokio::new()), MOMENT);
        let prints = Fingerprinter::new(vec![HashKey::new(1, [7; 32])]).expect("one key is enough");
        Self { below, store, prints }
    }

    fn request(&self, body: &[u8]) -> Request {
        let scope = Scope::new("shop", "alice", "charge").expect("a scope");
        Request {
            operation: Arc::new(Operation::new(scope, "order-1042-payment".parse().expect("a key"))),
            nonce: Nonce::random(),
            print: self.prints.of_bytes(body).current().clone(),
            terms: Policy::default().terms(),
            subject: Some("alice".into()),
        }
    }

    async fn claim(&self, body: &[u8]) -> Claim {
        self.store.claim(&self.request(body)).await.expect("the store answers")
    }

    /// Claims that came as far as the store below.
    fn asked(&self) -> u64 {
        self.below.calls(Verb::Claim)
    }

    /// One operation that has happened, and was replayed once.
    async fn charged() -> Self {
        let shop = Self::open();
        let Claim::Granted(lease) = shop.claim(b"2000 eur").await else { panic!("nobody else claims") };
        let complete = Complete { holder: lease.holder, outcome: Bytes::from("charged"), ttl_min: None };
        shop.store.complete(&complete).await.expect("the store answers");
        assert!(matches!(shop.claim(b"2000 eur").await, Claim::Completed { .. }));
        assert_eq!(shop.asked(), 2);
        shop
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_answered_from_memory_for_a_moment_and_then_asked_for_again() {
    // G-10: nothing is recalled for longer than that.
    let shop = Shop::charged().await;
    for _ in 0..3 {
        let Claim::Completed { outcome, .. } = shop.claim(b"2000 eur").await else { panic!("it happened") };
        assert_eq!(outcome, "charged");
    }
    assert_eq!(shop.asked(), 2, "the store below was not asked");
    tokio::time::advance(MOMENT).await;
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Completed { .. }));
    assert_eq!(shop.asked(), 3, "the moment is over");
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Completed { .. }));
    assert_eq!(shop.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_key_is_never_answered_from_memory() {
    // G-6
    let shop = Shop::charged().await;
    assert!(matches!(shop.claim(b"9999 eur").await, Claim::Mismatch { .. }));
    assert_eq!(shop.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_purged_through_it_is_forgotten_at_once() {
    // G-10
    let shop = Shop::charged().await;
    let (operation, nonce) = (shop.request(b"").operation.id(), Nonce::random());
    shop.store.purge(&Purge { operation, nonce, note: "asked to".into() }).await.unwrap();
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Purged { .. }));

    let shop = Shop::charged().await;
    assert_eq!(shop.store.purge_subject("alice", nonce, "left", 10).await.unwrap().purged, 1);
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Purged { .. }));
}

#[tokio::test(start_paused = true)]
async fn what_another_process_purges_is_noticed_when_the_moment_is_over() {
    // G-10
    let shop = Shop::charged().await;
    let (operation, nonce) = (shop.request(b"").operation.id(), Nonce::random());
    shop.below.purge(&Purge { operation, nonce, note: "elsewhere".into() }).await.unwrap();
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Completed { .. }), "not yet known here");
    tokio::time::advance(MOMENT).await;
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Purged { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_under_way_during_a_purge_is_not_remembered() {
    // G-10
    let shop = Shop::charged().await;
    tokio::time::advance(MOMENT).await;
    let request = shop.request(b"2000 eur");
    let (operation, nonce) = (request.operation.id(), Nonce::random());
    // Answered by the store, and not yet taken back by the one that waits for it.
    shop.below.plan(|_| Fault::DelayAnswer(Duration::from_millis(100)));
    let claim = shop.store.claim(&request);
    let purge = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        shop.below.heal();
        shop.store.purge(&Purge { operation, nonce, note: "asked to".into() }).await.unwrap();
    };
    let (claimed, ()) = tokio::join!(claim, purge);
    assert!(matches!(claimed.unwrap(), Claim::Completed { .. }), "it was asked before the purge");
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Purged { .. }));
}

#[tokio::test(start_paused = true)]
async fn only_outcomes_are_remembered() {
    // G-8: who may run is asked of the store, always.
    let shop = Shop::open();
    assert!(matches!(shop.claim(b"2000 eur").await, Claim::Granted(_)));
    for asked in 2..5 {
        assert!(matches!(shop.claim(b"2000 eur").await, Claim::InFlight { .. }));
        assert_eq!(shop.asked(), asked);
    }
}
