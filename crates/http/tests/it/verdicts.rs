//! What a response of the service means for the operation.

use std::sync::atomic::Ordering;

use http::{HeaderName, Response, StatusCode};
use semel_core::policy::DEFAULTS;
use semel_http::{Fate, Hints, Op, Problem, problem};

use crate::world::{App, Script, World, open_route, post, respond, send};

/// A handler that answers its first call with this, and later ones with 201.
fn first<F>(world: &World, answer: F) -> App
where
    F: Fn(&Op) -> Response<Script> + Clone + Send + Sync + 'static,
{
    let effects = world.effects.clone();
    world.app(open_route().build().unwrap(), move |request| {
        let op = request.extensions().get::<Op>().unwrap();
        let response = match effects.load(Ordering::SeqCst) {
            1 => answer(op),
            _ => respond(201, "second effect"),
        };
        async move { response }
    })
}

fn hinting(mut response: Response<Script>, hint: &str, nonce: &str) -> Response<Script> {
    response.headers_mut().insert("semel-hint", hint.parse().unwrap());
    response.headers_mut().insert("semel-nonce", nonce.parse().unwrap());
    response
}

#[tokio::test]
async fn an_error_the_service_decided_on_is_the_outcome() {
    // G-16
    for status in [400, 402, 404, 409, 422, 500, 501, 505, 599] {
        let world = World::new();
        let app = first(&world, move |_| respond(status, "no"));
        assert_eq!(send(&app, post("k1", "x")).await.status, status);
        let again = send(&app, post("k1", "x")).await;
        assert_eq!((again.status, again.text(), again.replayed()), (status, "no", true));
        assert_eq!(world.effects(), 1);
    }
}

#[tokio::test]
async fn a_status_that_proxies_write_is_unknown_and_nothing_runs_again() {
    // G-16
    for status in [408, 425, 502, 503, 504, 520, 524, 527] {
        let world = World::new();
        let app = first(&world, move |_| respond(status, "gateway trouble"));
        for _ in 0..2 {
            let got = send(&app, post("k1", "x")).await;
            assert_eq!((got.status, got.problem().as_str()), (409, "outcome-unknown"), "{status}");
            assert!(got.headers.contains_key("retry-after"));
        }
        assert_eq!(world.effects(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_releasing_status_is_passed_on_and_the_key_is_free_again() {
    // G-16
    let world = World::new();
    let app = first(&world, |_| respond(429, "slow down"));
    let got = send(&app, post("k1", "x")).await;
    assert_eq!((got.status, got.text()), (429, "slow down"));
    assert_eq!(send(&app, post("k1", "x")).await.text(), "second effect");
    assert_eq!(world.effects(), 2);
    let world = World::new();
    let route = open_route().releasing([StatusCode::SERVICE_UNAVAILABLE]).build().unwrap();
    let app = world.app(route, |_| async { respond(503, "closed") });
    for effects in 1..=2 {
        assert_eq!(send(&app, post("k1", "x")).await.text(), "closed");
        assert_eq!(world.effects(), effects);
    }
}

#[tokio::test]
async fn hints_with_the_nonce_are_believed_and_never_shown() {
    // G-16, G-21
    let world = World::new();
    let app = first(&world, |op| {
        hinting(respond(500, "refused by the bank"), "nothing-happened", &op.nonce().unwrap().to_string())
    });
    let got = send(&app, post("k1", "x")).await;
    assert_eq!((got.status, got.text()), (500, "refused by the bank"));
    assert!(!got.headers.keys().any(|name| name.as_str().starts_with("semel-")));
    assert_eq!(send(&app, post("k1", "x")).await.text(), "second effect");

    let world = World::new();
    let app = first(&world, |op| hinting(respond(503, "final"), "decided", &op.nonce().unwrap().to_string()));
    assert_eq!(send(&app, post("k1", "x")).await.status, 503);
    let again = send(&app, post("k1", "x")).await;
    assert_eq!((again.status, again.text(), again.replayed()), (503, "final", true));
}

#[tokio::test]
async fn hints_without_the_nonce_count_for_nothing() {
    // G-21
    let world = World::new();
    let app =
        first(&world, |_| hinting(respond(200, "charged"), "nothing-happened, do-not-keep", &"0".repeat(32)));
    assert_eq!(send(&app, post("k1", "x")).await.text(), "charged");
    let again = send(&app, post("k1", "x")).await;
    assert_eq!((again.text(), again.replayed()), ("charged", true));
    let world = World::new();
    let app = first(&world, |_| {
        let mut response = respond(503, "down");
        response.headers_mut().insert("semel-hint", "decided".parse().unwrap());
        response
    });
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_handler_says_so_through_its_operation_or_beside_its_response() {
    // G-16
    let world = World::new();
    let app = first(&world, |op| {
        op.nothing_happened();
        respond(200, "dry run")
    });
    assert_eq!(send(&app, post("k1", "x")).await.text(), "dry run");
    assert_eq!(send(&app, post("k1", "x")).await.text(), "second effect");

    let world = World::new();
    let app = first(&world, |_| {
        let mut response = respond(504, "the bank said no in time");
        response.extensions_mut().insert(Hints { decided: true, ..Hints::default() });
        response
    });
    send(&app, post("k1", "x")).await;
    assert!(send(&app, post("k1", "x")).await.replayed());
}

#[tokio::test]
async fn the_fate_of_an_unanswered_request_is_believed() {
    // G-16
    let fated = |fate: Fate| {
        move |_: &Op| {
            let mut response = respond(502, "no connection");
            response.extensions_mut().insert(fate.clone());
            response
        }
    };
    let world = World::new();
    let app = first(&world, fated(Fate::NothingHappened));
    assert_eq!(send(&app, post("k1", "x")).await.status, 502);
    assert_eq!(send(&app, post("k1", "x")).await.text(), "second effect");
    let world = World::new();
    let app = first(&world, fated(Fate::Unknown("reset after the first byte".into())));
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_unknown_unless_the_service_decided() {
    // G-16
    let world = World::new();
    let app = first(&world, |_| respond(200, Script::cut("{\"id\":", "connection reset")));
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    let world = World::new();
    let app = first(&world, |_| {
        let mut short = respond(200, Script::chunks(["{\"id\":"]));
        short.headers_mut().insert("content-length", "8".parse().unwrap());
        short
    });
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown", "shorter than announced");
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    let world = World::new();
    let app = first(&world, |op| {
        op.decided();
        respond(200, Script::cut("{\"id\":", "connection reset"))
    });
    for _ in 0..2 {
        let got = send(&app, post("k1", "x")).await;
        assert_eq!(got.problem(), "body-not-kept");
        assert_eq!(got.document()["original_status"], 200);
    }
    assert_eq!(world.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stalls_is_unknown_after_the_longest_run() {
    // G-16
    let world = World::new();
    let app = first(&world, |_| respond(201, Script::stalled("half an ans")));
    let run_max = DEFAULTS.run_max;
    let start = tokio::time::Instant::now();
    let got = tokio::time::timeout(2 * run_max, send(&app, post("k1", "x"))).await;
    let got = got.expect("nobody waits for ever");
    assert_eq!((got.status, got.problem().as_str()), (409, "outcome-unknown"));
    assert!(start.elapsed() >= run_max, "{:?}", start.elapsed());
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn another_semels_refusal_is_never_stored() {
    // G-16, G-21
    for hint in [false, true] {
        let world = World::new();
        let app = first(&world, move |op| {
            if hint {
                op.decided();
            }
            Problem::new(problem::Kind::InFlight).into_response().map(Script::from)
        });
        let got = send(&app, post("k1", "x")).await;
        assert_eq!((got.status, got.problem().as_str()), (409, "outcome-unknown"));
        assert_eq!(send(&app, post("k1", "x")).await.problem(), "outcome-unknown");
        assert_eq!(world.effects(), 1);
    }
    let world = World::new();
    let app = first(&world, |_| {
        let mut response = respond(402, "{\"type\":\"https://bank.example/no-funds\"}");
        let content_type = HeaderName::from_static("content-type");
        response.headers_mut().insert(content_type, "application/problem+json".parse().unwrap());
        response
    });
    send(&app, post("k1", "x")).await;
    assert!(send(&app, post("k1", "x")).await.replayed(), "the application's own problems are outcomes");
}
