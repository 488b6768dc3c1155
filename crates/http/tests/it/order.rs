//! Who gets in, and which refusal comes first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{Method, Request, Response};
use http_body_util::Limited;
use semel_core::Policy;
use semel_http::tenant::{self, Answer};
use semel_http::{ExpiredKeys, Op, RequestBody, Route, TooSlow};
use semel_testkit::{Fault, Verb};
use tower::{Layer, ServiceExt};

use crate::world::{Got, Script, World, open_route, post, respond, send};

const OLD_KEY: &str = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f";

#[tokio::test]
async fn keys_that_cannot_be_read_are_refused_and_the_store_is_never_asked() {
    // G-2, G-3
    let world = World::new();
    let app = world.counting(open_route().required().build().unwrap());
    let mut refused = Vec::new();
    for key in ["", "\"", "a b", "\"a\"b", "k\u{e9}y", &"k".repeat(256), &"k".repeat(10 << 20)] {
        let request = Request::post("/").header("idempotency-key", key.as_bytes()).body("x".into()).unwrap();
        refused.push(send(&app, request).await);
    }
    assert!(refused.iter().all(|got| got.status == 400 && got.problem() == "key-malformed"));
    let mut twice = post("one", "x");
    twice.headers_mut().append("idempotency-key", "one".parse().unwrap());
    assert_eq!(send(&app, twice).await.problem(), "key-repeated");
    let missing = send(&app, Request::post("/").body("x".into()).unwrap()).await;
    assert_eq!((missing.status, missing.problem().as_str()), (400, "key-missing"));
    assert_eq!((world.effects(), world.store_calls()), (0, 0));
}

#[tokio::test]
async fn a_header_that_is_nearly_the_keys_is_refused_beside_it_and_in_its_place() {
    // G-2: many servers take `_` for `-`. Such a service would see another key, or one that nobody looks at here.
    let world = World::new();
    let app = world.counting(open_route().build().unwrap());
    let mut beside = post("order-1042", "x");
    beside.headers_mut().insert("idempotency_key", "order-1043".parse().unwrap());
    let refused = send(&app, beside).await;
    assert_eq!((refused.status, refused.problem().as_str()), (400, "key-repeated"));
    let alone = || Request::post("/").header("idempotency_key", "order-1043");
    let refused = send(&app, alone().body("x".into()).unwrap()).await;
    assert_eq!((refused.status, refused.problem().as_str()), (400, "key-malformed"));
    assert!(refused.document()["detail"].as_str().unwrap().contains("hyphen"), "{refused:?}");
    let mut disguised = alone().header("x-http-method-override", "POST").body("x".into()).unwrap();
    *disguised.method_mut() = Method::GET;
    assert_eq!(send(&app, disguised).await.problem(), "method-override-refused", "GET that means POST");
    assert_eq!((world.effects(), world.store_calls()), (0, 0));
    let mut reading = alone().body("x".into()).unwrap();
    *reading.method_mut() = Method::GET;
    assert_eq!(send(&app, reading).await.status, 201, "where a key means nothing, neither does this");
}

#[tokio::test]
async fn a_credential_in_two_spellings_names_nobody() {
    // G-5: the service may see the other one.
    let world = World::new();
    let by_header = tenant::ApiKeyHeader(HeaderName::from_static("x-api-key"));
    let app = world.counting(open_route().tenant(by_header).build().unwrap());
    let mut request = post("order-1042", "x");
    request.headers_mut().insert("x-api-key", "alice".parse().unwrap());
    request.headers_mut().insert("x_api_key", "bob".parse().unwrap());
    assert_eq!(send(&app, request).await.problem(), "tenant-unverified");
    let mut alone = post("order-1042", "x");
    alone.headers_mut().insert("x-api_key", "bob".parse().unwrap());
    assert_eq!(send(&app, alone).await.problem(), "tenant-missing");
    let undeclared = world.counting(open_route().tenant(tenant::Undeclared).build().unwrap());
    for name in ["x_api_key", "x_auth_token", "x-auth_token"] {
        let mut request = post("order-1042", "x");
        request.headers_mut().insert(name, "alice".parse().unwrap());
        assert_eq!(send(&undeclared, request).await.problem(), "tenant-undeclared", "{name}");
    }
    assert_eq!(world.effects(), 0);
}

#[tokio::test]
async fn quoted_and_bare_are_one_key() {
    // G-2
    let world = World::new();
    let app = world.counting(open_route().build().unwrap());
    assert!(!send(&app, post("order-1042", "x")).await.replayed());
    assert!(send(&app, post("\"order-1042\"", "x")).await.replayed());
}

#[tokio::test]
async fn optional_and_missing_passes_untouched() {
    // G-3
    let world = World::new();
    let polls = Arc::new(Mutex::new(None));
    let seen = polls.clone();
    let app = world.app(open_route().build().unwrap(), move |request| {
        *seen.lock().unwrap() = Some(request.body().bytes().is_none() && request.extensions().is_empty());
        async { respond(200, "ok") }
    });
    let got = send(&app, Request::post("/").body(Script::chunks(["a", "b"])).unwrap()).await;
    assert_eq!((got.status, got.text()), (200, "ok"));
    assert_eq!(*polls.lock().unwrap(), Some(true), "the body was read or something was added");
    assert_eq!(world.store_calls(), 0);
}

#[tokio::test]
async fn safe_methods_never_use_the_store_and_others_only_where_configured() {
    // G-4
    let world = World::new();
    let methods = [Method::POST, Method::PUT];
    let app = world.counting(open_route().methods(methods).required().build().unwrap());
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "DELETE", "PATCH"] {
        for _ in 0..2 {
            let request = Request::builder().method(method).header("idempotency-key", "k");
            assert!(!send(&app, request.body("".into()).unwrap()).await.replayed(), "{method}");
        }
    }
    assert_eq!((world.effects(), world.store_calls()), (12, 0));
    let put = || Request::put("/").header("idempotency-key", "k").body("".into()).unwrap();
    assert!(!send(&app, put()).await.replayed());
    assert!(send(&app, put()).await.replayed());
}

#[tokio::test]
async fn a_method_override_is_refused_with_a_key_unless_it_says_the_same() {
    // G-4
    let world = World::new();
    let app = world.counting(open_route().build().unwrap());
    for name in ["x-http-method-override", "x-http-method", "x-method-override", "x_http_method_override"] {
        let mut request = post("k1", "x");
        request.headers_mut().insert(HeaderName::from_static(name), "DELETE".parse().unwrap());
        assert_eq!(send(&app, request).await.problem(), "method-override-refused");
        let mut disguised = post("k1", "x");
        *disguised.method_mut() = Method::GET;
        disguised.headers_mut().insert(HeaderName::from_static(name), "post".parse().unwrap());
        assert_eq!(send(&app, disguised).await.problem(), "method-override-refused", "GET that means POST");
    }
    assert_eq!((world.effects(), world.store_calls()), (0, 0));
    let mut same = post("k1", "x");
    same.headers_mut().insert("x-http-method-override", "POST".parse().unwrap());
    assert_eq!(send(&app, same).await.status, 201);
}

#[tokio::test]
async fn a_credential_without_a_declared_tenant_is_refused_and_told_the_choices() {
    // G-5
    let world = World::new();
    let app = world.counting(Route::builder("charge").build().unwrap());
    let mut request = post("k1", "x");
    request.headers_mut().insert("authorization", "Bearer secret-token".parse().unwrap());
    let got = send(&app, request).await;
    assert_eq!((got.status, got.problem().as_str()), (400, "tenant-undeclared"));
    for choice in ["none", "credential", "header:NAME", "jwt:CLAIM", "certificate"] {
        assert!(got.text().contains(choice), "{choice} is not offered");
    }
    assert!(!got.text().contains("secret-token"));
    assert_eq!(world.effects(), 0);
    assert_eq!(send(&app, post("k1", "x")).await.status, 201, "no credential, nothing to mix up");
}

#[tokio::test]
async fn one_client_never_gets_the_answer_of_another() {
    // G-1, G-5
    let world = World::new();
    let app = world.counting(Route::builder("charge").tenant(tenant::Credential).build().unwrap());
    let by = |who: &str| {
        let mut request = post("same-key", "x");
        request.headers_mut().insert("authorization", who.parse().unwrap());
        request
    };
    assert_eq!(send(&app, by("Bearer alice")).await.text(), "effect 1");
    assert_eq!(send(&app, by("Bearer bob")).await.text(), "effect 2");
    let again = send(&app, by("Bearer alice")).await;
    assert!(again.replayed());
    assert_eq!(again.text(), "effect 1");
    assert_eq!(send(&app, post("same-key", "x")).await.problem(), "tenant-missing");
    let page = world
        .store
        .inner()
        .list(&semel_core::store::Filter::unsettled(), semel_core::Token::default(), 10)
        .await
        .unwrap();
    assert!(!format!("{page:?}").contains("alice"));
}

#[tokio::test]
async fn a_tenant_is_verified_again_before_a_replay() {
    // G-5
    let world = World::new();
    let valid = Arc::new(AtomicBool::new(true));
    let still = valid.clone();
    let token = move |_: &http::request::Parts, _: &tenant::Hasher| {
        if still.load(Ordering::SeqCst) {
            Answer::Is("acme".into())
        } else {
            Answer::Unverified("The token has expired.".into())
        }
    };
    let app = world.counting(Route::builder("charge").tenant(token).build().unwrap());
    assert_eq!(send(&app, post("k1", "x")).await.status, 201);
    valid.store(false, Ordering::SeqCst);
    let got = send(&app, post("k1", "x")).await;
    assert_eq!((got.status, got.problem().as_str()), (401, "tenant-unverified"));
    assert!(got.text().contains("expired"));
}

#[tokio::test]
async fn the_same_key_on_two_routes_or_in_two_namespaces_is_two_operations() {
    // G-1
    let world = World::new();
    let charge = world.counting(open_route().build().unwrap());
    let refund = world.counting(Route::builder("refund").tenant(tenant::Nobody).build().unwrap());
    assert_eq!(send(&charge, post("k1", "x")).await.text(), "effect 1");
    assert_eq!(send(&refund, post("k1", "x")).await.text(), "effect 2");
    let by_path = world.counting(Route::by_path().tenant(tenant::Nobody).build().unwrap());
    let to = |path: &str| {
        let mut request = post("k1", "x");
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    assert_eq!(send(&by_path, to("/a")).await.text(), "effect 3");
    assert_eq!(send(&by_path, to("/b")).await.text(), "effect 4");
    assert!(send(&by_path, to("/a")).await.replayed());
    assert!(world.layer(open_route().build().unwrap()).namespace("").is_err());
}

#[tokio::test]
async fn layers_of_two_namespaces_that_share_a_route_share_no_operation() {
    // G-1
    let world = World::new();
    let route = Arc::new(open_route().build().unwrap());
    let [one, other] = ["one", "other"].map(|namespace| {
        let layer = world.layer(route.clone()).namespace(namespace).unwrap();
        world.counting_under(&layer)
    });
    for _ in 0..2 {
        assert_eq!(send(&one, post("k1", "x")).await.text(), "effect 1");
        assert_eq!(send(&other, post("k1", "x")).await.text(), "effect 2");
    }
}

#[tokio::test]
async fn a_request_beyond_the_limit_runs_nothing_and_an_announced_one_is_not_read() {
    // G-19
    let world = World::new();
    let policy = Policy::builder().request_bytes_max(4).build().unwrap();
    let app = world.counting(open_route().policy(policy).build().unwrap());
    assert_eq!(send(&app, post("fits", "1234")).await.status, 201);
    let announced = Script::from("12345");
    let polls = announced.polls.clone();
    let got = send(&app, post("k1", announced)).await;
    assert_eq!((got.status, got.problem().as_str()), (413, "request-too-large"));
    assert_eq!(polls.load(Ordering::SeqCst), 0);
    assert_eq!(send(&app, post("k1", Script::chunks(["123", "45"]))).await.status, 413);
    let mut by_header = post("k1", Script::chunks(["1"]));
    by_header.headers_mut().insert("content-length", "5".parse().unwrap());
    assert_eq!(send(&app, by_header).await.status, 413);
    assert_eq!(world.effects(), 1);
    assert_eq!(world.store.calls(Verb::Claim), 1);
}

#[tokio::test]
async fn a_limit_set_further_out_is_a_413_too() {
    // G-19
    let world = World::new();
    let effects = world.effects.clone();
    let service = tower::service_fn(move |_: Request<RequestBody<Limited<Script>>>| {
        effects.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, std::convert::Infallible>(respond(200, "ok")) }
    });
    let app = world.layer(open_route().build().unwrap()).layer(service);
    let request = post("k1", Script::chunks(["12", "34"])).map(|body| Limited::new(body, 3));
    assert_eq!(app.oneshot(request).await.unwrap().status(), 413);
    assert_eq!(world.effects(), 0);
}

#[tokio::test]
async fn a_gateway_and_a_layer_behind_it_share_a_store() {
    // G-1, G-21
    let world = World::new();
    let inner = open_route().build().unwrap();
    let outer = || open_route().build().unwrap();
    let effects = world.effects.clone();
    let service = tower::service_fn(move |request: Request<RequestBody<RequestBody<Script>>>| {
        let n = effects.fetch_add(1, Ordering::SeqCst) + 1;
        let token = request.headers()["semel-token"].to_str().unwrap().to_owned();
        assert_eq!(token, request.extensions().get::<Op>().unwrap().token().unwrap().to_string());
        async move { Ok::<_, std::convert::Infallible>(respond(201, format!("effect {n}"))) }
    });
    let inner = world.layer(inner).namespace("service").unwrap().layer(service);
    let app = world.layer(outer()).namespace("gateway").unwrap().layer(inner.clone());
    let got = app.clone().oneshot(post("k1", "x")).await.unwrap();
    assert_eq!(got.status(), 201);
    assert!(!got.headers().keys().any(|name| name.as_str().starts_with("semel-")));
    assert!(app.oneshot(post("k1", "x")).await.unwrap().headers().contains_key("idempotent-replayed"));
    assert_eq!(world.effects(), 1);
    // With one namespace for both, the inner one meets the outer one's claim; nobody takes that for an outcome.
    let confused = world.layer(outer()).namespace("service").unwrap().layer(inner);
    for _ in 0..2 {
        assert_eq!(confused.clone().oneshot(post("k2", "x")).await.unwrap().status(), 409);
    }
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_request_that_breaks_off_or_crawls_runs_nothing() {
    // G-3
    let world = World::new();
    let app = world.counting(open_route().build().unwrap());
    let cut = send(&app, post("k1", Script::cut("{\"amount\":", "connection reset"))).await;
    assert_eq!((cut.status, cut.problem().as_str()), (400, "request-cut"));
    let slow = send(&app, post("k1", Script::cut("{", TooSlow))).await;
    assert_eq!((slow.status, slow.problem().as_str()), (408, "request-slow"));
    let mut short = post("k1", Script::chunks(["{"]));
    short.headers_mut().insert("content-length", "10".parse().unwrap());
    assert_eq!(send(&app, short).await.problem(), "request-cut");
    assert_eq!((world.effects(), world.store.calls(Verb::Claim)), (0, 0));
}

/// Each request below has every fault that comes later in the order.
#[tokio::test(start_paused = true)]
async fn refusals_come_in_the_published_order() {
    // G-3
    let world = World::new();
    let policy = Policy::builder().request_bytes_max(4).build().unwrap();
    let route = |expired_keys: ExpiredKeys| {
        Route::builder("charge")
            .policy(policy.clone())
            .expired_keys(expired_keys)
            .tenant(|request: &http::request::Parts, _: &tenant::Hasher| {
                if request.headers.contains_key("x-who") {
                    Answer::Shared
                } else {
                    Answer::Missing("Who?".into())
                }
            })
            .auth_check(|request: &http::request::Parts| -> semel_core::runtime::Boxed<_> {
                let allowed = request.headers.contains_key("x-allowed");
                Box::pin(async move {
                    if allowed {
                        Ok(())
                    } else {
                        Err(Response::builder().status(403).body(Bytes::new()).unwrap())
                    }
                })
            })
            .build()
            .unwrap()
    };
    let (aging, ageless) =
        (world.counting(route(ExpiredKeys::Uuid7)), world.counting(route(ExpiredKeys::NotChecked)));
    let with = |key: &str, body: &'static str, names: &[&'static str]| {
        let mut request = post(key, body);
        for name in names {
            request.headers_mut().insert(HeaderName::from_static(name), "1".parse().unwrap());
        }
        request
    };
    let told = |got: Got| (got.status, if got.status == 403 { String::new() } else { got.problem() });
    let is = |status: u16, slug: &str| (status, slug.to_owned());
    world.store.plan(|_| Fault::Refuse);
    assert_eq!(told(send(&aging, with("a b", "12345", &[])).await), is(400, "key-malformed"));
    assert_eq!(told(send(&aging, with("not-a-uuid", "12345", &[])).await), is(400, "key-not-usable"));
    assert_eq!(told(send(&aging, with(OLD_KEY, "12345", &[])).await), is(413, "request-too-large"));
    assert_eq!(told(send(&aging, with(OLD_KEY, "1", &[])).await), is(401, "tenant-missing"));
    assert_eq!(told(send(&aging, with(OLD_KEY, "1", &["x-who"])).await), is(403, ""));
    let everything = ["x-who", "x-allowed"];
    assert_eq!(told(send(&aging, with(OLD_KEY, "1", &everything)).await), is(412, "key-expired"));
    world.store.heal();
    assert_eq!(send(&ageless, with("k1", "1", &everything)).await.status, 201);
    world.store.plan(|_| Fault::Refuse);
    assert_eq!(told(send(&ageless, with("k1", "2", &everything)).await), is(503, "store-unavailable"));
    world.store.heal();
    assert_eq!(told(send(&ageless, with("k1", "2", &everything)).await), is(422, "key-reused"));
    assert_eq!(told(send(&ageless, with("k1", "2", &[])).await), is(401, "tenant-missing"));
    assert_eq!(world.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_older_than_the_route_remembers_runs_nothing() {
    // G-10
    let world = World::new();
    let header = HeaderName::from_static("repeatability-first-sent");
    let app =
        world.counting(open_route().expired_keys(ExpiredKeys::FirstSent(header.clone())).build().unwrap());
    // The world begins on the first of January 2026.
    let sent = |at: &str| {
        let mut request = post("k1", "x");
        request.headers_mut().insert(header.clone(), at.parse().unwrap());
        request
    };
    assert_eq!(send(&app, sent("Wed, 31 Dec 2025 23:59:00 GMT")).await.status, 201);
    assert!(send(&app, sent("Wed, 31 Dec 2025 23:59:00 GMT")).await.replayed());
    assert_eq!(send(&app, sent("Tue, 30 Dec 2025 23:59:00 GMT")).await.problem(), "key-expired");
    assert_eq!(send(&app, sent("Fri, 02 Jan 2026 00:00:00 GMT")).await.problem(), "key-not-usable");
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "key-not-usable");
    tokio::time::advance(Duration::from_secs(25 * 3600)).await;
    assert_eq!(send(&app, sent("Wed, 31 Dec 2025 23:59:00 GMT")).await.problem(), "key-expired");
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn what_clients_send_in_semels_name_reaches_nobody() {
    // G-21
    let world = World::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let app = world.app(open_route().build().unwrap(), move |request| {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        heard.lock().unwrap().push((header("semel-token"), header("semel-nonce"), header("semel-anything")));
        async { respond(200, "ok") }
    });
    for keyed in [false, true] {
        let mut request = post("k1", "x");
        for name in ["semel-token", "semel-nonce", "semel-anything"] {
            request.headers_mut().insert(HeaderName::from_static(name), "forged".parse().unwrap());
        }
        if !keyed {
            request.headers_mut().remove("idempotency-key");
        }
        send(&app, request).await;
    }
    let told = told.lock().unwrap();
    assert_eq!(told[0], (None, None, None));
    let (token, nonce, anything) = &told[1];
    assert!(token.as_ref().is_some_and(|token| token.parse::<u64>().is_ok()));
    assert!(nonce.as_ref().is_some_and(|nonce| nonce.len() == 32));
    assert_eq!(*anything, None);
}
