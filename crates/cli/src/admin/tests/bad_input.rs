//! What makes no sense, and who may not speak here.

use http::StatusCode;
use semel::State;
use serde_json::json;

use super::rig::{Rig, operation};

#[tokio::test]
async fn a_call_that_makes_no_sense_is_told_which_part_and_changes_nothing() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let token = rig.unknown(&charge).await.token.0;
    let settle = format!("/v1/operations/{}/settle", charge.id());
    let response = json!({ "status": 200 });
    for (body, named) in [
        (json!({ "token": token, "finding": "never" }), "by"),
        (json!({ "token": token, "finding": "never", "by": " " }), "by"),
        (json!({ "token": token, "finding": "never", "by": "a: b" }), "by"),
        (json!({ "token": token, "finding": "never", "by": "a\nb" }), "by"),
        (json!({ "token": token, "finding": "never", "by": "x".repeat(101) }), "by"),
        (json!({ "token": token, "finding": "never", "by": "ops", "note": "x".repeat(401) }), "note"),
        (json!({ "token": token, "finding": "never", "by": "ops", "note": "a\u{1b}[2Jb" }), "note"),
        (json!({ "finding": "never", "by": "ops" }), "token"),
        (json!({ "token": "7", "finding": "never", "by": "ops" }), "u64"),
        (json!({ "token": token, "finding": "perhaps", "by": "ops" }), "perhaps"),
        (json!({ "token": token, "finding": "done", "by": "ops" }), "outcome"),
        (json!({ "token": token, "finding": "never", "outcome": response, "by": "ops" }), "outcome"),
        (json!({ "token": token, "finding": "done", "outcome": { "status": 42 }, "by": "ops" }), "42"),
        (json!({ "token": token, "finding": "never", "by": "ops", "force": true }), "force"),
        (json!([]), "body"),
    ] {
        let refused = rig.post(&settle, body.clone()).await;
        assert_eq!(
            (refused.status, refused.problem().as_str()),
            (StatusCode::BAD_REQUEST, "admin-bad-request")
        );
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(named), "{body}: {detail}");
    }
    assert_eq!(rig.record(&charge).await.state, State::Unknown);
    assert_eq!(rig.record(&charge).await.history.events().len(), 1);
}

#[tokio::test]
async fn queries_and_ids_are_checked() {
    let rig = Rig::new().await;
    for path in [
        "/v1/operations?limit=0",
        "/v1/operations?limit=501",
        "/v1/operations?limit=x",
        "/v1/operations?state=done",
        "/v1/operations?colour=red",
        "/v1/operations?key=",
        "/v1/operations?key=%00",
        "/v1/operations?after=-1",
        "/v1/operations/zz",
        "/v1/operations/%ff",
        &format!("/v1/operations/{}?body=yes", "0".repeat(64)),
    ] {
        let refused = rig.get(path).await;
        assert_eq!(
            (refused.status, refused.problem().as_str()),
            (StatusCode::BAD_REQUEST, "admin-bad-request"),
            "{path}"
        );
    }
    let absent = rig.get(&format!("/v1/operations/{}", "0".repeat(64))).await;
    assert_eq!((absent.status, absent.problem().as_str()), (StatusCode::NOT_FOUND, "operation-not-found"));
    assert_eq!(rig.get("/v2").await.problem(), "admin-no-such-path");
    let wrong = rig.call("DELETE", "/v1/operations", &[], "").await;
    assert_eq!(
        (wrong.status, wrong.problem().as_str()),
        (StatusCode::METHOD_NOT_ALLOWED, "admin-method-not-allowed")
    );
}

#[tokio::test]
async fn bodies_must_be_json_and_of_bounded_size() {
    let rig = Rig::new().await;
    let path = format!("/v1/operations/{}/purge", "0".repeat(64));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let refused = rig.call("POST", &path, &form, "by=ops").await;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, "admin-not-json")
    );
    let json = [("content-type", "application/json; charset=utf-8")];
    let huge = format!("{{\"by\":\"{}\"}}", "x".repeat(super::super::BODY_BYTES_MAX));
    let refused = rig.call("POST", &path, &json, &huge).await;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, "admin-too-large")
    );
    let cut = rig.call("POST", &path, &json, "{\"by\":").await;
    assert_eq!(cut.problem(), "admin-bad-request");
}

#[tokio::test]
async fn without_the_token_nothing_is_told_or_changed() {
    // G-81
    let rig = Rig::with_token(Some("s3cret")).await;
    let charge = operation(None, "charge", "k-1");
    let token = rig.unknown(&charge).await.token.0;
    let free = format!("/v1/operations/{}/free", charge.id());
    let body = json!({ "token": token, "by": "eve" }).to_string();
    for wrong in ["Bearer nonsense", "Basic czNjcmV0", ""] {
        let authorization = ("authorization", wrong);
        let refused =
            rig.call("POST", &free, &[authorization, ("content-type", "application/json")], &body).await;
        assert_eq!(
            (refused.status, refused.problem().as_str()),
            (StatusCode::UNAUTHORIZED, "admin-unauthorized")
        );
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
        for path in ["/metrics", "/v1/operations", "/v1/status", "/nowhere"] {
            assert_eq!(
                rig.call("GET", path, &[authorization], "").await.status,
                StatusCode::UNAUTHORIZED,
                "{path}"
            );
        }
    }
    assert_eq!(rig.record(&charge).await.state, State::Unknown);
    assert!(rig.audited().iter().all(|event| event["reason"] == "admin-unauthorized"));
    assert_eq!(rig.audited().len(), 15, "every call that was turned away is told");
    assert_eq!(rig.get("/v1/operations").await.status, StatusCode::OK, "with the token it works");
}

#[tokio::test]
async fn a_page_in_a_browser_can_neither_read_nor_change() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let token = rig.unknown(&charge).await.token.0;
    let rebound = rig.call("GET", "/v1/operations", &[("host", "evil.example")], "").await;
    assert_eq!((rebound.status, rebound.problem().as_str()), (StatusCode::FORBIDDEN, "admin-host-refused"));
    let headers = [("origin", "http://evil.example"), ("content-type", "application/json")];
    let body = json!({ "token": token, "by": "eve" }).to_string();
    let forged = rig.call("POST", &format!("/v1/operations/{}/free", charge.id()), &headers, &body).await;
    assert_eq!((forged.status, forged.problem().as_str()), (StatusCode::FORBIDDEN, "admin-origin-refused"));
    assert_eq!(rig.record(&charge).await.state, State::Unknown);
}
