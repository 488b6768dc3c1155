//! The store is away, comes late, or has newer keys.

use std::time::Duration;

use semel_core::policy::Outage;
use semel_core::verbs::{Finding, Settle, Settler};
use semel_core::{Policy, Recovery};
use semel_http::{Op, Route, tenant};
use semel_testkit::{Fault, Verb};

use crate::world::{World, open_route, post, respond, send};

fn open() -> Policy {
    Policy::builder().outage(Outage::Open).natural_effect().build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn with_the_store_away_nothing_runs() {
    // G-18
    for warm in [false, true] {
        let world = World::new();
        let app = world.counting(open_route().build().unwrap());
        if warm {
            assert_eq!(send(&app, post("k0", "x")).await.status, 201);
        }
        let before = world.effects();
        for fault in [Fault::Refuse, Fault::Hang] {
            world.store.plan(move |_| fault);
            let got = send(&app, post("k1", "x")).await;
            assert_eq!((got.status, got.problem().as_str()), (503, "store-unavailable"), "{fault:?}");
            assert!(got.headers.contains_key("retry-after"));
        }
        assert_eq!(world.effects(), before);
        world.store.heal();
        world.once.drain(Duration::from_secs(3600)).await;
        assert_eq!(send(&app, post("k1", "x")).await.status, 201);
    }
}

#[tokio::test(start_paused = true)]
async fn a_natural_effect_may_run_unprotected_and_is_marked() {
    // G-18
    for warm in [false, true] {
        let world = World::new();
        let app = world.app(open_route().policy(open()).build().unwrap(), |request| async move {
            let op = request.extensions().get::<Op>().expect("unprotected handlers hold their operation too");
            assert_eq!(op.token().is_none(), !request.headers().contains_key("semel-token"));
            // Nothing is stored, so the status passes as it is.
            if op.token().is_some() { respond(201, "ran") } else { respond(503, "ran") }
        });
        if warm {
            assert_eq!(send(&app, post("k0", "x")).await.status, 201);
        }
        world.store.plan(|_| Fault::Refuse);
        let got = send(&app, post("k1", "x")).await;
        assert_eq!((got.status, got.text()), (503, "ran"));
        assert_eq!(got.headers["idempotency-unprotected"], "true");
        assert_eq!(world.seen.last().1.label(), "unprotected");
        world.store.heal();
        world.once.drain(Duration::from_secs(3600)).await;
        let got = send(&app, post("k2", "x")).await;
        assert!(!got.headers.contains_key("idempotency-unprotected"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_cannot_be_stored_yet_is_never_a_success() {
    // G-17
    let world = World::new();
    let app = world.counting(open_route().build().unwrap());
    world.store.plan(|verb| if verb == Verb::Complete { Fault::Refuse } else { Fault::None });
    let got = send(&app, post("k1", "x")).await;
    assert_eq!((got.status, got.problem().as_str()), (503, "outcome-unknown"));
    assert!(got.headers.contains_key("retry-after"));
    world.store.heal();
    assert_eq!(world.once.drain(Duration::from_secs(3600)).await, 0);
    let again = send(&app, post("k1", "x")).await;
    assert_eq!((again.text(), again.replayed()), ("effect 1", true));
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_rotated_key_is_learned_at_the_first_meeting() {
    // G-6
    let world = World::new();
    let route = || Route::builder("charge").tenant(tenant::Credential).build().unwrap();
    let (old, new) = (world.counting(route()), world.counting(route()));
    let by = |key: &str, body: &'static str| {
        let mut request = post(key, body);
        request.headers_mut().insert("authorization", "Bearer alice".parse().unwrap());
        request
    };
    assert_eq!(send(&old, by("k1", "x")).await.status, 201);
    world.store.inner().rotate_hash_key().await.unwrap();
    assert_eq!(send(&new, by("k2", "x")).await.status, 201, "stored under the newer key");
    assert!(send(&old, by("k2", "x")).await.replayed(), "the layer that knew only the older key");
    assert_eq!(send(&old, by("k2", "y")).await.status, 422);
    assert!(send(&new, by("k1", "x")).await.replayed(), "the tenant outlives the rotation");
    assert_eq!(world.effects(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_who_cannot_be_named_yet_is_not_run_under_a_guess() {
    // G-5, G-18: the name is a hash under a key that only the store has.
    let world = World::new();
    let route = Route::builder("charge").tenant(tenant::Credential).policy(open()).build().unwrap();
    let app = world.counting(route);
    let by = || {
        let mut request = post("k1", "x");
        request.headers_mut().insert("authorization", "Bearer alice".parse().unwrap());
        request
    };
    world.store.plan(|_| Fault::Refuse);
    assert_eq!(send(&app, by()).await.problem(), "store-unavailable", "also where outages are open");
    assert_eq!(world.effects(), 0);
    world.store.heal();
    assert_eq!(send(&app, by()).await.status, 201);
    assert_eq!(world.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_after_its_end_runs_nothing() {
    // G-9, G-15: meanwhile it was called unknown, freed, and run by another attempt.
    let world = World::new();
    let policy = Policy::builder()
        .lease(Duration::from_secs(1))
        .run_max(Duration::from_secs(2))
        .store_patience(Duration::from_secs(10))
        .build()
        .unwrap();
    let app = world.counting(open_route().policy(policy).build().unwrap());
    let mut first = true;
    world.store.plan(move |verb| match verb {
        Verb::Claim if std::mem::take(&mut first) => Fault::DelayAnswer(Duration::from_secs(5)),
        _ => Fault::None,
    });
    let late = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("k1", "x")).await.problem() }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    let unsettled = semel_core::store::Filter::unsettled();
    let page = world.store.inner().list(&unsettled, semel_core::Token(0), 10).await.unwrap();
    let record = &page.records[0];
    assert!(page.now >= record.may_ask_at(), "nothing can be on its way any more");
    let freed = Settle {
        operation: record.operation.id(),
        token: record.token,
        nonce: semel_core::Nonce::random(),
        finding: Finding::Never,
        by: Settler::Operator("ops".into()),
        note: String::new(),
    };
    world.store.inner().settle(&freed).await.unwrap();
    assert_eq!(send(&app, post("k1", "x")).await.status, 201);
    assert_eq!(late.await.unwrap(), "in-flight", "come back, and hear what the other attempt did");
    assert_eq!(world.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_did_nothing_answers_with_what_another_did() {
    // G-9, G-17: its lease lapsed, the next attempt ran, and only then did it say that nothing happened.
    let world = World::new();
    let policy = Policy::builder()
        .lease(Duration::from_secs(1))
        .run_max(Duration::from_secs(60))
        .recovery(Recovery::Rerun)
        .natural_effect()
        .build()
        .unwrap();
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let app = world.app(open_route().policy(policy).build().unwrap(), move |_| {
        let first = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        async move {
            if first {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            if first { respond(429, "busy") } else { respond(201, "charged") }
        }
    });
    world.store.plan(|verb| if verb == Verb::Renew { Fault::Refuse } else { Fault::None });
    let slow = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("k1", "x")).await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(send(&app, post("k1", "x")).await.status, 201);
    let told = slow.await.unwrap();
    assert_eq!((told.status, told.text()), (201, "charged"), "not 429: it did happen");
    assert!(told.replayed());
}
