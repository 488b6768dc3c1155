//! Races, clients that leave, handlers that break.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all, poll_immediate};
use http::{Request, Response};
use semel_core::Policy;
use semel_core::policy::Outage;
use semel_http::{Op, RequestBody};
use semel_testkit::{Fault, Verb};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

use crate::world::{App, Script, World, open_route, post, respond, send};

/// A handler that says when it began and ends when it is told to.
struct Gate {
    began: Notify,
    go: Notify,
}

fn gated(world: &World, policy: Policy) -> (App, Arc<Gate>) {
    let gate = Arc::new(Gate { began: Notify::new(), go: Notify::new() });
    let inside = gate.clone();
    let app = world.app(open_route().policy(policy).build().unwrap(), move |_| {
        let gate = inside.clone();
        async move {
            gate.began.notify_one();
            gate.go.notified().await;
            respond(201, "done")
        }
    });
    (app, gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_thousand_at_once_one_runs() {
    // G-8
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |_| async {
        tokio::task::yield_now().await;
        respond(201, "done")
    });
    let race = (0..1000).map(|_| {
        let app = app.clone();
        tokio::spawn(async move { send(&app, post("k1", "x")).await })
    });
    let answers = join_all(race).await;
    assert_eq!(world.effects(), 1);
    for got in answers.into_iter().map(Result::unwrap) {
        match got.status {
            201 => assert_eq!(got.text(), "done"),
            409 => assert_eq!(got.problem(), "in-flight"),
            other => panic!("{other}: {got:?}"),
        }
    }
    assert!(send(&app, post("k1", "x")).await.replayed());
}

#[tokio::test]
async fn a_duplicate_in_flight_is_told_to_come_back_and_another_request_is_refused() {
    // G-14, G-6
    let world = World::new();
    let (app, gate) = gated(&world, Policy::default());
    let running = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("k1", "{\"amount\":1}")).await }
    });
    gate.began.notified().await;
    let duplicate = send(&app, post("k1", "{\"amount\":1}")).await;
    assert_eq!((duplicate.status, duplicate.problem().as_str()), (409, "in-flight"));
    assert!(duplicate.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    let other = send(&app, post("k1", "{\"amount\":2}")).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "key-reused"));
    gate.go.notify_one();
    assert_eq!(running.await.unwrap().text(), "done");
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_duplicate_waits_for_the_answer_where_the_route_says_so() {
    // G-14
    let world = World::new();
    let (app, gate) = gated(&world, Policy::builder().wait(Duration::from_secs(3600)).build().unwrap());
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { send(&app, post("k1", "x")).await })
        })
        .collect();
    gate.began.notified().await;
    gate.go.notify_one();
    let answers: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().all(|got| got.text() == "done"));
    assert_eq!(answers.iter().filter(|got| got.replayed()).count(), 2);
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_client_that_goes_away_stops_nothing() {
    // G-17
    let world = World::new();
    let (app, gate) = gated(&world, Policy::default());
    let mut call = Box::pin(app.clone().oneshot(post("k1", "x")));
    tokio::select! {
        _ = &mut call => panic!("the handler waits for its gate"),
        () = gate.began.notified() => {}
    }
    drop(call);
    assert_eq!(world.seen.kinds(), ["abandoned"]);
    gate.go.notify_one();
    assert_eq!(world.once.drain(Duration::from_secs(3600)).await, 0);
    let again = send(&app, post("k1", "x")).await;
    assert_eq!((again.text(), again.replayed()), ("done", true));
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn beyond_so_many_operations_nothing_new_is_claimed_and_what_has_completed_is_replayed() {
    // G-17, G-19
    let mut world = World::new();
    world.once = world.once.clone().operations_max(1);
    let (app, gate) = gated(&world, Policy::default());
    gate.go.notify_one();
    assert_eq!(send(&app, post("k0", "x")).await.text(), "done");
    gate.began.notified().await;
    let mut call = Box::pin(app.clone().oneshot(post("k1", "x")));
    tokio::select! {
        _ = &mut call => panic!("the handler waits for its gate"),
        () = gate.began.notified() => {}
    }
    let claims = world.store.calls(Verb::Claim);
    for with_client in [true, false] {
        let refused = tokio::select! {
            refused = send(&app, post("k2", "x")) => refused,
            () = gate.began.notified() => panic!("it runs"),
        };
        assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-operations"));
        assert!(refused.headers.contains_key("retry-after"));
        assert_eq!(send(&app, post("k1", "x")).await.problem(), "in-flight", "what runs is told as it is");
        assert_eq!(send(&app, post("k1", "y")).await.problem(), "too-many-operations");
        assert_eq!(world.store.calls(Verb::Claim), claims, "nothing is claimed");
        if with_client {
            // It goes on without its client, and goes on counting.
            call = Box::pin(app.clone().oneshot(post("k3", "x")));
        }
    }
    drop(call);
    assert!(send(&app, post("k0", "x")).await.replayed(), "what has completed needs no place");
    assert_eq!(send(&app, post("k0", "y")).await.problem(), "key-reused");
    assert_eq!((world.once.operations(), world.once.tally().turned_away()), (1, 4));
    gate.go.notify_one();
    assert_eq!(world.once.drain(Duration::from_secs(3600)).await, 0);
    assert_eq!(world.once.operations(), 0);
    gate.go.notify_one();
    assert_eq!(send(&app, post("k2", "x")).await.text(), "done", "a place is free again");
    assert_eq!(world.effects(), 3);
}

/// An app with one place, which is taken, and the call that took it.
async fn full(world: &mut World, policy: Policy) -> (App, Arc<Gate>, BoxFuture<'static, ()>) {
    world.once = world.once.clone().operations_max(1);
    let (app, gate) = gated(world, policy);
    gate.go.notify_one();
    assert_eq!(send(&app, post("k0", "x")).await.text(), "done");
    gate.began.notified().await;
    let taker = app.clone();
    let mut call: BoxFuture<'static, ()> = Box::pin(async move { drop(send(&taker, post("k1", "x")).await) });
    tokio::select! {
        () = &mut call => panic!("the handler waits for its gate"),
        () = gate.began.notified() => {}
    }
    (app, gate, call)
}

#[tokio::test(start_paused = true)]
async fn of_those_without_a_place_a_few_look_into_the_store_and_the_others_are_turned_away() {
    // G-19
    let mut world = World::new();
    let (app, _gate, _call) = full(&mut world, Policy::default()).await;
    world.store.plan(|verb| if verb == Verb::Other { Fault::Hang } else { Fault::None });
    let looks = world.store.calls(Verb::Other);
    let mut looking: Vec<_> =
        (0..4).map(|number| Box::pin(app.clone().oneshot(post(&format!("look-{number}"), "x")))).collect();
    for look in &mut looking {
        assert!(poll_immediate(look).await.is_none());
    }
    assert_eq!(world.store.calls(Verb::Other), looks + 4);
    let turned_away = poll_immediate(Box::pin(app.clone().oneshot(post("k2", "x")))).await;
    let Some(Ok(turned_away)) = turned_away else { panic!("it waits for a look") };
    assert_eq!(turned_away.status(), 503);
    assert_eq!(world.store.calls(Verb::Other), looks + 4, "the store is not asked");
    drop(looking);
    world.store.heal();
    assert!(send(&app, post("k0", "x")).await.replayed(), "looks are given back");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_no_crowd_and_lets_nothing_run_without_a_place() {
    // G-18, G-19
    let natural = Policy::builder().outage(Outage::Open).natural_effect().build().unwrap();
    for policy in [Policy::default(), natural] {
        let mut world = World::new();
        let (app, _gate, _call) = full(&mut world, policy).await;
        let effects = world.effects();
        for verb in [Verb::Other, Verb::Claim] {
            for fault in [Fault::Refuse, Fault::Hang] {
                world.store.plan(move |called| if called == verb { fault } else { Fault::None });
                let counted = world.once.tally().unavailable();
                let got = send(&app, post("k0", "x")).await;
                assert_eq!(
                    (got.status, got.problem().as_str()),
                    (503, "store-unavailable"),
                    "{verb:?} {fault:?}"
                );
                assert_eq!(world.once.tally().unavailable(), counted + 1);
            }
        }
        assert_eq!((world.effects(), world.once.tally().turned_away()), (effects, 0));
        assert_eq!(world.once.tally().unprotected(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_to_a_call_without_a_place_is_given_back() {
    // G-19
    let mut world = World::new();
    let (app, gate, call) = full(&mut world, Policy::default()).await;
    // What had completed has expired, which a look does not tell.
    world.clock.shift(i64::try_from(Duration::from_hours(24 * 365).as_micros()).unwrap());
    let claims = world.store.calls(Verb::Claim);
    let refused = tokio::select! {
        refused = send(&app, post("k0", "x")) => refused,
        () = gate.began.notified() => panic!("it runs"),
    };
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-operations"));
    assert_eq!(world.store.calls(Verb::Claim), claims + 1, "only a claim tells");
    gate.go.notify_one();
    call.await;
    assert_eq!(world.once.drain(Duration::from_secs(3600)).await, 0);
    gate.go.notify_one();
    assert_eq!(send(&app, post("k0", "x")).await.text(), "done", "nobody holds its lease");
    assert_eq!(world.effects(), 3);
}

#[tokio::test(start_paused = true)]
async fn duplicates_that_wait_take_no_more_than_half_of_the_places() {
    // G-14, G-19
    let mut world = World::new();
    world.once = world.once.clone().operations_max(4);
    let (app, gate) = gated(&world, Policy::builder().wait(Duration::from_secs(3600)).build().unwrap());
    let mut calls = Vec::new();
    for _ in 0..3 {
        let mut call = Box::pin(app.clone().oneshot(post("k1", "x")));
        assert!(poll_immediate(&mut call).await.is_none());
        calls.push(call);
    }
    assert_eq!(world.once.operations(), 3, "one runs, two wait");
    for _ in 0..5 {
        let told = poll_immediate(Box::pin(send(&app, post("k1", "x")))).await;
        let Some(told) = told else { panic!("it waits") };
        assert_eq!((told.status, told.problem().as_str()), (409, "in-flight"));
    }
    gate.began.notified().await;
    let mut other = Box::pin(app.clone().oneshot(post("k2", "x")));
    assert!(poll_immediate(&mut other).await.is_none());
    gate.began.notified().await;
    calls.pop();
    let mut call = Box::pin(app.clone().oneshot(post("k1", "x")));
    assert!(poll_immediate(&mut call).await.is_none(), "who leaves makes room for another to wait");
    gate.go.notify_waiters();
    drop((calls, call, other));
    assert_eq!(world.once.drain(Duration::from_secs(3600)).await, 0);
    assert_eq!(world.effects(), 2);
}

#[tokio::test]
async fn a_panic_is_unknown_and_nothing_runs_again() {
    // G-17
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |_| async { panic!("on purpose") });
    for _ in 0..2 {
        let got = send(&app, post("k1", "x")).await;
        assert_eq!((got.status, got.problem().as_str()), (409, "outcome-unknown"));
        assert!(!got.text().contains("on purpose"));
    }
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_service_that_fails_without_an_answer_is_unknown() {
    // G-16
    let world = World::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let service = service_fn(move |_: Request<RequestBody<Script>>| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Err::<Response<Script>, _>(std::io::Error::other("no answer")) }
    });
    let app = world.layer(open_route().build().unwrap()).layer(service);
    for _ in 0..2 {
        let response = app.clone().oneshot(post("k1", "x")).await.unwrap();
        assert_eq!(response.status(), 409);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let unkeyed = app.oneshot(Request::post("/").body(Script::from("")).unwrap()).await;
    assert!(unkeyed.is_err(), "without a key the error passes as it is");
}

#[tokio::test]
async fn the_handler_holds_its_operation_and_keeps_extensions() {
    // G-21
    #[derive(Clone)]
    struct Mine(u32);
    let world = World::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let app =
        world.app(open_route().releasing([http::StatusCode::IM_A_TEAPOT]).build().unwrap(), move |request| {
            let op = request.extensions().get::<Op>().unwrap().clone();
            let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(request.extensions().get::<Mine>().unwrap().0, 7);
            assert_eq!(header("idempotency-key"), "\"k1\"", "as the client wrote it");
            assert_eq!(op.key().as_str(), "k1");
            assert_eq!(header("semel-token"), op.token().unwrap().to_string());
            assert_eq!(header("semel-nonce"), op.nonce().unwrap().to_string());
            assert_eq!(header("semel-attempt"), op.number().to_string());
            assert_eq!(header("semel-derived-key"), op.derive("upstream", 1));
            assert!(!op.remaining().is_zero() && !op.attempt().is_lost());
            let facts = (op.number(), op.token().unwrap(), op.derive("charge", 1), op.derive("charge", 2));
            heard.lock().unwrap().push(facts);
            async { respond(418, "nothing") }
        });
    for _ in 0..2 {
        let mut request = post("\"k1\"", "x");
        request.extensions_mut().insert(Mine(7));
        assert_eq!(send(&app, request).await.status, 418);
    }
    let told = told.lock().unwrap();
    assert_eq!((told[0].0, told[1].0), (1, 2), "attempts are counted");
    assert!(told[0].1 < told[1].1, "tokens grow");
    assert_eq!(told[0].2, told[1].2, "a derived key stays through attempts");
    assert_ne!(told[0].2, told[0].3);
}

#[tokio::test]
async fn a_handler_may_be_spared_the_headers() {
    // G-21
    let world = World::new();
    let app = world.app(open_route().attempt_headers(false).build().unwrap(), |request| async move {
        let ours = request.headers().keys().any(|name| name.as_str().starts_with("semel-"));
        assert!(request.extensions().get::<Op>().is_some());
        respond(200, if ours { "headers" } else { "none" })
    });
    assert_eq!(send(&app, post("k1", "x")).await.text(), "none");
}

#[tokio::test]
async fn a_service_is_called_only_when_it_is_ready() {
    // The clone that was polled ready is the one that is called, also for keyed requests.
    #[derive(Default)]
    struct Strict {
        ready: bool,
    }
    impl Clone for Strict {
        fn clone(&self) -> Self {
            Self { ready: false }
        }
    }
    impl tower_service::Service<Request<RequestBody<Script>>> for Strict {
        type Response = Response<Script>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Script>, Infallible>>;
        fn poll_ready(
            &mut self,
            _cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            self.ready = true;
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, _request: Request<RequestBody<Script>>) -> Self::Future {
            assert!(std::mem::take(&mut self.ready), "called before it was ready");
            std::future::ready(Ok(respond(200, "ok")))
        }
    }
    let world = World::new();
    let mut app = world.layer(open_route().build().unwrap()).layer(Strict::default());
    for key in ["k1", "k1", "k2"] {
        let response = ServiceExt::ready(&mut app).await.unwrap();
        let response = tower_service::Service::call(response, post(key, "x")).await.unwrap();
        assert_eq!(response.status(), 200);
    }
}
