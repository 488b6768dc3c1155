//! Who gets the lease, and what everybody else hears.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use semel_core::claim::Claim;
use semel_core::fingerprint::KEYS_MAX;
use semel_core::record::{Recovery, State};
use semel_core::verbs::{Change, Completion};
use semel_core::{Fingerprinter, Key, Nonce, Operation, Outcome, Scope};
use tokio::sync::Barrier;

use crate::Rig;
use crate::scene::{
    COFFEE, LEASE, MINUTE, RECOVERIES, Shop, granted, micros, operation, operation_in, prints, request, terms,
};

const TEA: &str = r#"{"amount": 300, "currency": "eur"}"#;

// G-8
pub(super) async fn one_of_a_thousand_simultaneous_claims_gets_the_lease(rig: Arc<dyn Rig>) {
    const CLAIMS: usize = 1000;
    let shop = Shop(rig);
    let order = operation("crowd-0000000000001");
    let start = Arc::new(Barrier::new(CLAIMS));
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..CLAIMS {
        let (shop, order, start) = (shop.clone(), order.clone(), start.clone());
        crowd.spawn(async move {
            let claim = request(&order, COFFEE, Recovery::Hold);
            start.wait().await;
            shop.claim(&claim).await
        });
    }
    let answers = crowd.join_all().await;
    let winners = answers.iter().filter(|claim| matches!(claim, Claim::Granted(_))).count();
    assert_eq!(winners, 1, "one attempt gets the lease");
    let waiting = answers.iter().filter(|claim| matches!(claim, Claim::InFlight { .. })).count();
    assert_eq!(waiting, CLAIMS - 1, "all others hear that it runs");
    assert_eq!(shop.record(order.id()).await.attempts, 1);
}

// G-8, G-9: the same crowd at a record that may be claimed again.
pub(super) async fn one_of_many_claims_takes_over_a_lapsed_or_released_operation(rig: Arc<dyn Rig>) {
    const CLAIMS: usize = 64;
    let shop = Shop(rig);
    let (lapsed, released) = (operation("crowd-0000000000002"), operation("crowd-0000000000003"));
    shop.grant(&lapsed, Recovery::Rerun).await;
    shop.shift(LEASE);
    let lease = shop.grant(&released, Recovery::Rerun).await;
    assert_eq!(shop.release(lease.holder).await, Change::Made);
    for order in [lapsed, released] {
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..CLAIMS {
            let (shop, order) = (shop.clone(), order.clone());
            crowd.spawn(async move { shop.ask(&order, Recovery::Rerun).await });
        }
        let answers = crowd.join_all().await;
        assert_eq!(answers.iter().filter(|claim| matches!(claim, Claim::Granted(_))).count(), 1);
        assert_eq!(shop.record(order.id()).await.attempts, 2);
    }
}

// G-14, G-7
pub(super) async fn a_stored_outcome_comes_back_byte_for_byte(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let every_byte: Vec<u8> = (0..=255).collect();
    let huge: Vec<u8> = (0..1 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let whole = Outcome { status: 201, ..Outcome::bytes("application/json", huge.clone()) };
    let outcomes: [Bytes; 6] = [
        Bytes::new(),
        Bytes::from_static(b"\0"),
        every_byte.into(),
        "schön ✓ \u{1F980}".into(),
        huge.into(),
        whole.encode().into(),
    ];
    for (at, outcome) in outcomes.into_iter().enumerate() {
        let order = operation(&format!("bytes-000000000000{at}"));
        let lease = shop.grant(&order, Recovery::Hold).await;
        assert_eq!(shop.complete(lease.holder, outcome.clone()).await, Completion::Stored);
        let stored_at = shop.record(order.id()).await.settled_at;
        for _ in 0..2 {
            match shop.ask(&order, Recovery::Hold).await {
                Claim::Completed { outcome: again, at } => {
                    assert!(again == outcome, "the outcome is what was stored");
                    assert_eq!(Some(at), stored_at);
                }
                other => panic!("a completed operation replays, not {other:?}"),
            }
        }
    }
}

// G-6
pub(super) async fn another_request_under_a_used_key_is_refused_in_every_state(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let orders: Vec<_> = (0..6).map(|n| operation(&format!("mismatch-00000000{n}"))).collect();
    let mut leases = Vec::new();
    for order in &orders {
        leases.push(shop.grant(order, Recovery::Rerun).await);
    }
    shop.complete(leases[1].holder, "paid").await;
    shop.release(leases[2].holder).await;
    shop.report_unknown(leases[3].holder).await;
    shop.complete(leases[4].holder, "paid").await;
    shop.purge(orders[4].id()).await;
    shop.release(leases[5].holder).await;
    shop.purge(orders[5].id()).await;
    for order in &orders {
        let before = shop.record(order.id()).await;
        match shop.claim(&request(order, TEA, Recovery::Rerun)).await {
            Claim::Mismatch { stored } => assert_eq!(stored, before.print),
            other => panic!("{:?}: another request is refused, not {other:?}", before.state),
        }
        assert_eq!(shop.record(order.id()).await, before, "a refused request changes nothing");
    }
    shop.shift(LEASE);
    let lapsed = shop.claim(&request(&orders[0], TEA, Recovery::Rerun)).await;
    assert!(matches!(lapsed, Claim::Mismatch { .. }), "also when the lease has lapsed: {lapsed:?}");
}

// G-6
pub(super) async fn two_keys_with_equal_bodies_are_two_operations(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let first = shop.grant(&operation("coffee-one-000000"), Recovery::Hold).await;
    let second = shop.grant(&operation("coffee-two-000000"), Recovery::Hold).await;
    assert_ne!(first.holder.operation, second.holder.operation);
    assert_eq!(shop.complete(first.holder, "one").await, Completion::Stored);
    assert_eq!(shop.complete(second.holder, "two").await, Completion::Stored);
}

// G-1
pub(super) async fn namespaces_tenants_and_routes_do_not_meet(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let key = "shared-key-000000001";
    let places = [
        ("prod", Some("alice"), "charge"),
        ("test", Some("alice"), "charge"),
        ("prod", Some("bob"), "charge"),
        ("prod", None, "charge"),
        ("prod", Some("alice"), "refund"),
        ("prod", Some("Alice"), "charge"),
        ("prod", Some("alice "), "charge"),
        ("prod", Some("alice\u{301}"), "charge"),
        ("prod", Some("a\u{4}b"), "c"),
        ("prod", Some("a"), "b\u{4}c"),
        ("pr", Some("odalice"), "charge"),
    ];
    let mut ids = HashSet::new();
    for (namespace, tenant, route) in places {
        let order = operation_in(namespace, tenant, route, key);
        assert!(ids.insert(order.id()), "{order} is an operation of its own");
        let lease = shop.grant(&order, Recovery::Hold).await;
        let outcome = format!("{namespace}/{tenant:?}/{route}");
        assert_eq!(shop.complete(lease.holder, outcome).await, Completion::Stored);
    }
    for (namespace, tenant, route) in places {
        let order = operation_in(namespace, tenant, route, key);
        let record = shop.record(order.id()).await;
        assert_eq!(record.operation, order, "the readable parts come back");
        let own = format!("{namespace}/{tenant:?}/{route}");
        assert_eq!(record.outcome, Some(own.into()));
    }
    // Case and length of a key count as well.
    for key in ["SHARED-KEY-000000001", "shared-key-00000001"] {
        shop.grant(&operation_in("prod", Some("alice"), "charge", key), Recovery::Hold).await;
    }
}

// G-9
pub(super) async fn a_claim_repeated_with_its_nonce_gets_the_same_lease(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("repeat-0000000001");
    let claim = request(&order, COFFEE, Recovery::Hold);
    let lease = granted(shop.claim(&claim).await);
    assert_eq!(granted(shop.claim(&claim).await), lease, "an answer that was lost is given again");
    assert!(matches!(shop.ask(&order, Recovery::Hold).await, Claim::InFlight { .. }));
    // Lapsed and taken by nobody: the same attempt goes on, with its lease renewed.
    shop.shift(LEASE);
    let again = granted(shop.claim(&claim).await);
    assert_eq!((again.holder, again.attempt), (lease.holder, 1));
    assert!(again.until > lease.until);
    shop.complete(lease.holder, "paid").await;
    assert!(matches!(shop.claim(&claim).await, Claim::Completed { .. }));
}

pub(super) async fn a_duplicate_in_flight_hears_since_when_and_until_when(rig: Arc<dyn Rig>) {
    // G-14
    let shop = Shop(rig);
    let order = operation("in-flight-000001");
    let lease = shop.grant(&order, Recovery::Hold).await;
    shop.shift(MINUTE);
    let record = shop.record(order.id()).await;
    let told = shop.ask(&order, Recovery::Hold).await;
    assert_eq!(told, Claim::InFlight { since: record.attempt_at, until: lease.until });
    assert_eq!(lease.until, record.attempt_at.after(micros(LEASE)));
    assert_eq!(lease.granted, micros(LEASE));
    assert_eq!(shop.record(order.id()).await, record, "a duplicate changes nothing");
}

// G-9
pub(super) async fn a_released_operation_is_claimed_again_with_a_larger_token(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for recovery in RECOVERIES {
        let order = operation(&format!("released-{recovery:?}-0001"));
        let first = shop.grant(&order, recovery).await;
        shop.shift(MINUTE);
        assert_eq!(shop.release(first.holder).await, Change::Made);
        assert_eq!(shop.release(first.holder).await, Change::Made, "a repeated release is the same release");
        let record = shop.record(order.id()).await;
        assert_eq!((record.state, record.history.events().len()), (State::Released, 1));
        shop.shift(MINUTE);
        let second = shop.grant(&order, recovery).await;
        assert!(second.holder.token > first.holder.token);
        assert_eq!(second.attempt, 2);
        let again = shop.record(order.id()).await;
        assert_eq!(again.created_at, record.created_at, "the operation is as old as its first claim");
        assert!(again.attempt_at > record.attempt_at);
    }
}

// G-9, G-18
pub(super) async fn a_withdrawn_claim_cannot_be_revived(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("withdrawn-000001");
    let claim = request(&order, COFFEE, Recovery::Rerun);
    let lease = granted(shop.claim(&claim).await);
    shop.release(lease.holder).await;
    let before = shop.record(order.id()).await;
    assert_eq!(shop.claim(&claim).await, Claim::Withdrawn);
    assert_eq!(shop.record(order.id()).await, before);
    shop.grant(&order, Recovery::Rerun).await;
    let late = shop.claim(&claim).await;
    assert!(matches!(late, Claim::InFlight { .. }), "nor does it disturb a later attempt: {late:?}");
}

pub(super) async fn a_record_holds_all_that_was_claimed(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for (at, recovery) in RECOVERIES.into_iter().enumerate() {
        let order = operation(&format!("whole-0000000000{at}"));
        let mut claim = request(&order, COFFEE, recovery);
        claim.subject = Some("customer 7 ü".into());
        let lease = granted(shop.claim(&claim).await);
        let record = shop.record(order.id()).await;
        assert_eq!(record.operation, order);
        assert_eq!(record.state, State::InProgress);
        assert_eq!(record.holder(), lease.holder);
        assert_eq!((record.nonce, record.attempts), (claim.nonce, 1));
        assert_eq!(record.print, claim.print);
        assert_eq!(record.terms, terms(recovery));
        assert_eq!(record.created_at, record.attempt_at);
        assert_eq!(record.lease_until, lease.until);
        assert_eq!((record.settled_at, &record.outcome), (None, &None));
        assert_eq!(record.subject.as_deref(), Some("customer 7 ü"));
        assert!(record.history.events().is_empty());
    }
    assert_eq!(shop.get(operation("never-claimed-0001").id()).await, None);
}

// G-6
pub(super) async fn a_print_is_compared_under_its_own_key_version(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let order = operation("rotation-0000001");
    let lease = shop.grant(&order, Recovery::Hold).await;
    shop.complete(lease.holder, "paid").await;
    // The hash key was rotated: new requests come with prints under version 2 first.
    let coffee = prints(&[2, 1]).of_json(COFFEE.as_bytes());
    let mut claim = request(&order, COFFEE, Recovery::Hold);
    claim.print = coffee.current().clone();
    assert_eq!(shop.claim(&claim).await, Claim::OtherVersion { version: 1 });
    claim.print = coffee.under(1).expect("the older key is still known").clone();
    assert!(matches!(shop.claim(&claim).await, Claim::Completed { .. }));
    let tea = prints(&[2, 1]).of_json(TEA.as_bytes());
    claim.nonce = Nonce::random();
    claim.print = tea.under(1).expect("the older key is still known").clone();
    assert!(matches!(shop.claim(&claim).await, Claim::Mismatch { .. }));
}

// G-6
pub(super) async fn rotation_adds_a_hash_key_and_keeps_the_older_ones(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let before = shop.store().status().await.expect("a status is answered").hash_keys;
    assert!(!before.is_empty(), "a store makes its first key itself");
    let version = shop.store().rotate_hash_key().await.expect("a rotation is answered");
    shop.0.reopen().await;
    let after = shop.store().status().await.expect("a status is answered").hash_keys;
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(after[0].version, version, "the newest is first");
    assert!(before.iter().all(|key| key.version < version));
    for (old, kept) in before.iter().zip(&after[1..]) {
        assert_eq!((old.version, old.secret()), (kept.version, kept.secret()));
    }
    assert_ne!(after[0].secret(), after[1].secret());
    assert_ne!(after[0].secret(), &[0; 32]);
    // However often: a process must always be able to load what a store gives.
    for _ in 0..KEYS_MAX + 1 {
        shop.store().rotate_hash_key().await.expect("a rotation is answered");
    }
    let many = shop.store().status().await.expect("a status is answered").hash_keys;
    assert_eq!(many.len(), KEYS_MAX);
    assert_eq!(many[0].version as usize, version as usize + KEYS_MAX + 1, "the newest are kept");
    Fingerprinter::new(many).expect("a process can load them");
}

// G-2, G-9: a key that begins with a quote is stored without losing it.
pub(super) async fn a_key_of_any_shape_comes_back_as_it_was(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for header in [&b"\"\\\"abcdefghijklmnopqrst\""[..], b"\"\\\\\\\"\"", b"a\"b\\c", b"';--", b"%s{}$1?"] {
        let key = Key::parse(header).expect("a key a client may send");
        let scope = Scope::new("shapes", "tenant", "route").expect("a scope");
        let order = Arc::new(Operation::new(scope, key));
        let lease = shop.grant(&order, Recovery::Hold).await;
        shop.complete(lease.holder, "done").await;
        shop.0.reopen().await;
        let record = shop.store().get(order.id()).await.expect("a record is read").expect("it is there");
        assert_eq!(record.operation, order);
        let again = shop.claim(&request(&order, COFFEE, Recovery::Hold)).await;
        assert!(matches!(again, Claim::Completed { .. }), "{header:?}: {again:?}");
    }
}
