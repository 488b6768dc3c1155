//! What operators and clients can see: decisions, status, routes exchanged at run time.

use std::convert::Infallible;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Request, StatusCode};
use semel_core::Policy;
use semel_http::observer::Kind;
use semel_http::{Protection, RequestBody, Route, SemelLayer, Switch, problem, tenant};
use semel_testkit::Fault;
use tower::{Layer, ServiceExt, service_fn};
use tracing::Instrument;

use crate::log;
use crate::world::{Script, World, open_route, post, respond, send};

#[tokio::test(start_paused = true)]
async fn every_decision_is_told_once_with_route_and_key() {
    // G-80
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |request| async move {
        match request.uri().path() {
            "/busy" => respond(429, "later"),
            "/lost" => respond(502, "?"),
            _ => respond(201, "ok"),
        }
    });
    let to = |key: &str, path: &str| {
        let mut request = post(key, "x");
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    send(&app, to("k1", "/")).await;
    assert_eq!(world.seen.last(), (Some("charge".into()), Kind::Fresh, Some("k1".into()), Some(201)));
    send(&app, to("k1", "/")).await;
    send(&app, to("k1", "/other")).await;
    send(&app, to("k2", "/busy")).await;
    send(&app, to("k3", "/lost")).await;
    send(&app, to("bad key", "/")).await;
    assert_eq!(
        world.seen.last(),
        (Some("charge".into()), Kind::Refused(problem::Kind::KeyMalformed), None, Some(400))
    );
    send(&app, Request::get("/").body("".into()).unwrap()).await;
    world.store.plan(|_| Fault::Refuse);
    send(&app, to("k4", "/")).await;
    let told = [
        "fresh",
        "replayed",
        "key-reused",
        "released",
        "outcome-unknown",
        "key-malformed",
        "passed",
        "store-unavailable",
    ];
    assert_eq!(world.seen.kinds(), told);
}

#[tokio::test]
async fn a_decision_is_one_event_with_the_key_and_the_handler_runs_in_the_requests_span() {
    // G-80, G-17
    log::written();
    let world = World::new();
    let route = Route::builder("charge").tenant(tenant::Credential).build().unwrap();
    let app = world.app(route, |_| async {
        tokio::task::yield_now().await;
        tracing::info!("from the handler");
        respond(201, "ok")
    });
    let mut request = post("order-1042-payment", "x");
    request.headers_mut().insert("authorization", "Bearer top-secret".parse().unwrap());
    send(&app, request).instrument(tracing::info_span!("request", id = 7)).await;
    let written = log::written();
    let handler = written.lines().find(|line| line.contains("from the handler")).unwrap();
    assert!(handler.contains("request{id=7}"), "{handler}");
    let decisions: Vec<&str> = written.lines().filter(|line| line.contains("semel::decision")).collect();
    assert_eq!(decisions.len(), 1, "{written}");
    for part in ["decision=\"fresh\"", "route=\"charge\"", "key=\"order-1042-payment\"", "status=201"] {
        assert!(decisions[0].contains(part), "{part} is not in {}", decisions[0]);
    }
    assert!(!written.contains("top-secret"), "{written}");
}

#[tokio::test]
async fn problems_link_to_what_describes_the_route() {
    // G-22
    let world = World::new();
    let link = HeaderValue::from_static("</.well-known/idempotency>; rel=\"describedby\"");
    let app = world.counting(open_route().required().described_by(link.clone()).build().unwrap());
    let missing = send(&app, Request::post("/").body("".into()).unwrap()).await;
    assert_eq!(missing.headers["link"], link);
    send(&app, post("k1", "x")).await;
    assert_eq!(send(&app, post("k1", "y")).await.headers["link"], link);
}

#[tokio::test]
async fn a_client_sees_the_state_of_its_own_operation_and_no_other() {
    // G-22
    let world = World::new();
    let route = Arc::new(Route::builder("charge").tenant(tenant::Credential).build().unwrap());
    let layer = SemelLayer::new(world.once.clone(), route.clone());
    let service = service_fn(|request: Request<RequestBody<Script>>| async move {
        let status = if request.uri().path() == "/lost" { 502 } else { 201 };
        Ok::<_, Infallible>(respond(status, "ok"))
    });
    let app = layer.layer(service);
    let by = |who: &str, key: &str| {
        let mut request = post(key, "x");
        request.headers_mut().insert("authorization", who.parse().unwrap());
        request
    };
    let asked = async |who: &str, key: &str| {
        let head: Parts = by(who, key).into_parts().0;
        let response = layer.status(&route, &head).await;
        let document: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        (response.status().as_u16(), document)
    };
    assert_eq!(asked("alice", "k1").await.1["state"], "absent");
    app.clone().oneshot(by("alice", "k1")).await.unwrap();
    let (status, document) = asked("alice", "k1").await;
    assert_eq!((status, &document["state"]), (200, &"completed".into()));
    assert_eq!(document["outcome_status"], 201);
    assert_eq!(document["attempts"], 1);
    assert_eq!(asked("bob", "k1").await.1["state"], "absent");
    let mut lost = by("alice", "k2");
    *lost.uri_mut() = "/lost".parse().unwrap();
    app.clone().oneshot(lost).await.unwrap();
    assert_eq!(asked("alice", "k2").await.1["state"], "unknown");
    assert_eq!(asked("alice", "a b").await.0, 400);
    let anonymous = layer.status(&route, &post("k1", "x").into_parts().0).await;
    assert_eq!(anonymous.status(), StatusCode::UNAUTHORIZED);
    world.clock.shift(semel_core::clock::micros(Policy::default().terms().ttl));
    assert_eq!(asked("alice", "k1").await.1["state"], "absent", "expired is absent");
}

#[tokio::test]
async fn routes_are_exchanged_while_the_service_runs() {
    // G-1
    let world = World::new();
    let protected = Arc::new(open_route().build().unwrap());
    let off = Arc::new(open_route().protection(Protection::Off).build().unwrap());
    let found = protected.clone();
    let routes = Switch::new(move |request: &Parts| (request.uri.path() != "/free").then(|| found.clone()));
    let layer = SemelLayer::routed(world.once.clone(), routes.clone()).observer(world.seen.clone());
    let service =
        service_fn(|_: Request<RequestBody<Script>>| async { Ok::<_, Infallible>(respond(201, "ok")) });
    let app = layer.layer(service);
    let replayed = async |path: &str| {
        let mut request = post("k1", "x");
        *request.uri_mut() = path.parse().unwrap();
        app.clone().oneshot(request).await.unwrap().headers().contains_key("idempotent-replayed")
    };
    assert!(!replayed("/").await && replayed("/").await);
    assert!(!replayed("/free").await && !replayed("/free").await);
    assert_eq!(world.seen.last(), (None, Kind::Passed, None, None));
    routes.set(move |_: &Parts| Some(off.clone()));
    assert!(!replayed("/").await, "keys mean nothing now");
    routes.set(move |_: &Parts| Some(protected.clone()));
    assert!(replayed("/").await);
}
