//! What a retry gets back, and what it does not.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName, Request};
use http_body::Frame;
use semel_core::fingerprint::Pointers;
use semel_core::policy::Redaction;
use semel_core::{EffectStore, Keyring, Operation, Policy, Scope};
use semel_http::Op;
use semel_testkit::Verb;
use tower::ServiceExt;

use crate::world::{Script, World, open_route, post, read, respond, send};

fn trailers() -> HeaderMap {
    [(HeaderName::from_static("x-checksum"), "abc".parse().unwrap())].into_iter().collect()
}

/// With one in Semel's name, which must not get out.
fn trailers_from_inside() -> HeaderMap {
    let mut trailers = trailers();
    trailers.insert("semel-hint", "decided".parse().unwrap());
    trailers
}

/// Repeats, odd bytes, trailers, and lines of all the kinds that are not replayed.
fn rich() -> http::Response<Script> {
    let body = Script::frames([
        Ok(Frame::data("{\"id\":".into())),
        Ok(Frame::data("7}".into())),
        Ok(Frame::trailers(trailers_from_inside())),
    ]);
    let mut response = respond(201, body);
    let headers = response.headers_mut();
    for (name, value) in [
        ("semel-anything", "inner"),
        ("content-type", "application/json"),
        ("x-repeat", "1"),
        ("x-repeat", "2"),
        ("location", "/charges/7"),
        ("set-cookie", "session=secret"),
        ("connection", "close, x-private"),
        ("keep-alive", "timeout=5"),
        ("x-private", "for this connection"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ] {
        headers.append(HeaderName::from_static(name), value.parse().unwrap());
    }
    headers.append("x-latin", http::HeaderValue::from_bytes(b"caf\xe9").unwrap());
    response
}

#[tokio::test]
async fn a_replay_has_status_headers_trailers_and_body_byte_for_byte() {
    // G-14
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |_| async { rich() });
    let first = send(&app, post("k1", "x")).await;
    let again = send(&app, post("k1", "x")).await;
    assert_eq!(world.effects(), 1);
    assert_eq!((first.status, first.text()), (201, "{\"id\":7}"));
    assert_eq!(first.headers["set-cookie"], "session=secret", "the first client gets its cookie");
    assert!(!first.headers.contains_key("semel-anything") && !first.replayed());
    let names: Vec<&str> = first.headers.keys().map(HeaderName::as_str).collect();
    assert_eq!(names[..3], ["content-type", "x-repeat", "location"], "in the order they were sent");
    assert_eq!((again.status, again.text()), (201, "{\"id\":7}"));
    let lines: Vec<(&str, &[u8])> =
        again.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(
        lines,
        [
            ("content-type", &b"application/json"[..]),
            ("x-repeat", b"1"),
            ("x-repeat", b"2"),
            ("location", b"/charges/7"),
            ("date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
            ("x-latin", b"caf\xe9"),
            ("idempotent-replayed", b"true"),
            ("idempotent-replay-redacted", b"true"),
        ]
    );
    assert_eq!(first.trailers, Some(trailers()));
    assert_eq!(again.trailers, Some(trailers()));
}

#[tokio::test]
async fn a_page_token_of_an_answer_is_stored() {
    // G-14
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |_| async {
        let mut response = respond(200, "page");
        for name in ["next_page_token", "x-auth-token", "next-api-key"] {
            response.headers_mut().insert(name, http::HeaderValue::from_static("7"));
        }
        response
    });
    send(&app, post("k1", "x")).await;
    let again = send(&app, post("k1", "x")).await;
    assert_eq!(again.headers["next_page_token"], "7");
    assert!(!again.headers.contains_key("x-auth-token") && !again.headers.contains_key("next-api-key"));
}

#[tokio::test]
async fn a_cookie_is_replayed_only_where_the_route_stores_it() {
    // G-14
    let world = World::new();
    let route = open_route().store_headers([SET_COOKIE]).replay_header(HeaderName::from_static("x-again"));
    let app = world.app(route.build().unwrap(), |_| async { rich() });
    send(&app, post("k1", "x")).await;
    let again = send(&app, post("k1", "x")).await;
    assert_eq!(again.headers["set-cookie"], "session=secret");
    assert_eq!(again.headers["x-again"], "true");
    assert!(!again.headers.contains_key("idempotent-replay-redacted"));
}

#[tokio::test]
async fn what_is_redacted_is_not_replayed_and_the_replay_says_so() {
    // G-14, G-20
    let world = World::new();
    let redaction =
        Redaction { headers: vec!["location".into()], body: Some(Pointers::parse(&["/card"]).unwrap()) };
    let policy =
        Policy::builder().redact(redaction).encrypt(Keyring::new("k", &[7; 32]).unwrap()).build().unwrap();
    let app = world.app(open_route().policy(policy).build().unwrap(), |_| async {
        let mut response = respond(200, "{\"card\":\"4242\",\"ok\":true}");
        response.headers_mut().insert("content-length", "25".parse().unwrap());
        response.headers_mut().insert("location", "/secret".parse().unwrap());
        response
    });
    let first = send(&app, post("k1", "x")).await;
    assert!(first.text().contains("4242"));
    let again = send(&app, post("k1", "x")).await;
    assert!(again.replayed() && !again.text().contains("4242") && again.text().contains("\"ok\":true"));
    assert_eq!(again.headers["idempotent-replay-redacted"], "true");
    assert!(!again.headers.contains_key("location"));
    assert!(!again.headers.contains_key("content-length"), "the length of what is no longer there");
    let operation = Operation::new(Scope::shared("default", "charge").unwrap(), "k1".parse().unwrap());
    let record = world.store.inner().as_ref().get(operation.id()).await.unwrap().unwrap();
    let stored = record.outcome.unwrap();
    assert!(!stored.windows(2).any(|bytes| bytes == b"ok"), "stored in the clear");
}

#[tokio::test]
async fn an_outcome_sealed_with_a_lost_key_says_so_and_runs_nothing() {
    // G-20
    let world = World::new();
    let sealed_with = |byte: u8| {
        let policy = Policy::builder().encrypt(Keyring::new("k", &[byte; 32]).unwrap()).build().unwrap();
        world.counting(open_route().policy(policy).build().unwrap())
    };
    assert_eq!(send(&sealed_with(1), post("k1", "x")).await.status, 201);
    let got = send(&sealed_with(2), post("k1", "x")).await;
    assert_eq!((got.status, got.problem().as_str()), (500, "outcome-unreadable"));
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_large_answer_is_recorded_before_its_first_byte_and_never_runs_again() {
    // G-19
    let world = World::new();
    let policy = Policy::builder().outcome_bytes_max(4).build().unwrap();
    let app = world.app(open_route().policy(policy).build().unwrap(), |request| async move {
        match request.uri().query() {
            Some("announced") => respond(200, "12345678"),
            _ => respond(200, Script::chunks(["123", "45", "678"])),
        }
    });
    for query in ["streamed", "announced"] {
        let request = || {
            let mut request = post(query, "x");
            *request.uri_mut() = format!("/?{query}").parse().unwrap();
            request
        };
        let completed = world.store.calls(Verb::Complete);
        let response = app.clone().oneshot(request()).await.unwrap();
        assert_eq!(world.store.calls(Verb::Complete), completed + 1, "not recorded before the first byte");
        assert_eq!(read(response).await.text(), "12345678");
        let again = send(&app, request()).await;
        assert_eq!((again.status, again.problem().as_str()), (409, "body-not-kept"));
        assert_eq!(again.document()["original_status"], 200);
    }
    assert_eq!(world.effects(), 2);
}

#[tokio::test]
async fn a_large_answer_that_breaks_off_later_breaks_off_for_the_client_and_stays_recorded() {
    // G-19
    let world = World::new();
    let policy = Policy::builder().outcome_bytes_max(4).build().unwrap();
    let app = world.app(open_route().policy(policy).build().unwrap(), |_| async {
        let frames = ["123", "45"].map(|chunk| Ok(Frame::data(chunk.into())));
        respond(200, Script::frames(frames.into_iter().chain([Err("connection reset".into())])))
    });
    assert_eq!(send(&app, post("k1", "x")).await.body, Err("connection reset".into()));
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "body-not-kept");
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_body_the_service_does_not_want_kept_streams_and_is_not_stored() {
    // G-16, G-19
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |request| async move {
        request.extensions().get::<Op>().unwrap().do_not_keep();
        respond(200, "pin 1234")
    });
    assert_eq!(send(&app, post("k1", "x")).await.text(), "pin 1234");
    assert_eq!(send(&app, post("k1", "x")).await.problem(), "body-not-kept");
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn the_same_json_in_other_clothes_is_a_replay_and_another_value_is_refused() {
    // G-6
    let world = World::new();
    let route = open_route()
        .fingerprint_exclude(["/sent_at"])
        .fingerprint_headers([HeaderName::from_static("x-account")])
        .build()
        .unwrap();
    let app = world.counting(route);
    let of = |body: &'static str, account: &str| {
        let mut request = post("k1", body);
        request.headers_mut().insert("x-account", account.parse().unwrap());
        request
    };
    assert_eq!(send(&app, of(r#"{"amount":1,"to":"a","sent_at":1}"#, "a")).await.status, 201);
    assert!(send(&app, of(r#"{ "to":"\u0061", "amount":1, "sent_at":2 }"#, "a")).await.replayed());
    let other = send(&app, of(r#"{"amount":1.0,"to":"a"}"#, "a")).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "key-reused"));
    assert_eq!(other.document()["changed"], serde_json::json!(["/amount"]));
    assert!(!other.text().contains("1.0"));
    let other = send(&app, of(r#"{"amount":1,"to":"a"}"#, "b")).await;
    assert_eq!(other.document()["changed"], serde_json::json!(["header:x-account"]));
    let mut elsewhere = of(r#"{"amount":1,"to":"a"}"#, "a");
    *elsewhere.uri_mut() = "/charges?eu=2".parse().unwrap();
    assert_eq!(send(&app, elsewhere).await.document()["changed"], serde_json::json!(["query"]));
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_request_replayed_lately_is_still_told_from_another_in_each_of_its_parts() {
    // G-6
    let world = World::new();
    let route = open_route().fingerprint_headers([HeaderName::from_static("x-account")]).build().unwrap();
    let app = world.counting(route);
    let first = || {
        let mut request = post("k1", r#"{"amount":1}"#);
        request.headers_mut().insert("x-account", "a".parse().unwrap());
        request
    };
    let with = |name: &'static str, value: &str| {
        let mut request = first();
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    assert_eq!(send(&app, first()).await.status, 201);
    for turn in 0..3 {
        assert!(send(&app, first()).await.replayed(), "{turn}");
        let mut elsewhere = first();
        *elsewhere.uri_mut() = "/charges?eu=2".parse().unwrap();
        let mut body = post("k1", r#"{"amount":2}"#);
        body.headers_mut().insert("x-account", "a".parse().unwrap());
        let others = [elsewhere, body, with("x-account", "b"), with("content-type", "text/plain")];
        for (at, other) in others.into_iter().enumerate() {
            assert_eq!(send(&app, other).await.status, 422, "{turn} {at}");
        }
        assert!(send(&app, first()).await.replayed(), "{turn}");
        world.store.rotate_hash_key().await.unwrap();
    }
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_compressed_retry_is_the_same_request_and_the_handler_gets_it_as_sent() {
    // G-6
    let world = World::new();
    let bodies = Arc::new(Mutex::new(Vec::<Bytes>::new()));
    let got = bodies.clone();
    let app = world.app(open_route().build().unwrap(), move |request| {
        got.lock().unwrap().push(request.body().bytes().unwrap().clone());
        async { respond(200, "ok") }
    });
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(b"{\"amount\":1}").unwrap();
    let gzipped = encoder.finish().unwrap();
    let mut request = post("k1", gzipped.clone());
    request.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    assert_eq!(send(&app, request).await.status, 200);
    assert!(send(&app, post("k1", "{ \"amount\": 1 }")).await.replayed());
    assert_eq!(send(&app, post("k1", "{ \"amount\": 2 }")).await.status, 422);
    assert_eq!(*bodies.lock().unwrap(), [Bytes::from(gzipped)]);
}

#[tokio::test]
async fn two_equal_requests_with_two_keys_are_two_operations() {
    // G-6
    let world = World::new();
    let app = world.counting(open_route().build().unwrap());
    send(&app, post("coffee-1", "{\"price\":3}")).await;
    send(&app, post("coffee-2", "{\"price\":3}")).await;
    assert_eq!(world.effects(), 2);
}

#[tokio::test]
async fn an_empty_answer_comes_back_empty_with_its_status() {
    // G-14
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |_| async { respond(204, Bytes::new()) });
    for replayed in [false, true] {
        let got = send(&app, post("k1", "x")).await;
        assert_eq!((got.status, got.text(), got.replayed()), (204, "", replayed));
    }
}

#[tokio::test]
async fn the_subject_of_an_outcome_can_be_purged() {
    // G-10
    let world = World::new();
    let app =
        world.counting(open_route().subject_header(HeaderName::from_static("x-customer")).build().unwrap());
    let by = || {
        let mut request = post("k1", "x");
        request.headers_mut().insert("x-customer", "customer-42".parse().unwrap());
        request
    };
    assert_eq!(send(&app, by()).await.status, 201);
    let store = world.store.inner();
    store.purge_subject("customer-42", semel_core::Nonce::random(), "asked by mail", 10).await.unwrap();
    let got = send(&app, by()).await;
    assert_eq!((got.status, got.problem().as_str()), (409, "outcome-purged"));
    assert_eq!(world.effects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_large_unkeyed_body_passes_frame_by_frame() {
    // G-4
    let world = World::new();
    let app = world.app(open_route().build().unwrap(), |_| async {
        let mut response = respond(
            503,
            Script::frames([Ok(Frame::data("a".into())), Ok(Frame::trailers(trailers_from_inside()))]),
        );
        response.headers_mut().insert("semel-hint", "decided".parse().unwrap());
        response
    });
    let got = send(&app, Request::post("/").body("".into()).unwrap()).await;
    assert_eq!((got.status, got.text(), got.trailers.as_ref()), (503, "a", Some(&trailers())));
    assert!(!got.headers.contains_key("semel-hint"));
}
