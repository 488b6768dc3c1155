//! The layer over the embedded store, through the facade.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::routing::post;
use semel::http::{Op, Route, SemelLayer, tenant};
use semel::runtime::Tokio;
use semel::{Once, SqliteStore};
use tower::ServiceExt;

fn app(path: &Path, effects: Arc<AtomicU32>) -> (Router, Once) {
    let once = Once::new(Arc::new(SqliteStore::open(path).unwrap()), Arc::new(Tokio::new()));
    let route = Route::builder("charge").required().tenant(tenant::Credential).build().unwrap();
    let charge = move |op: Op| async move {
        let n = effects.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{} happened, effect {n}", op.key().as_str())
    };
    (Router::new().route("/charges", post(charge)).layer(SemelLayer::new(once.clone(), route)), once)
}

async fn charge(app: &Router, who: &str) -> (bool, String) {
    let request = Request::post("/charges")
        .header("idempotency-key", "order-1042-payment")
        .header("authorization", who)
        .body(Body::from("{}"))
        .unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (replayed, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_restarted_service_replays_what_it_answered_before() {
    // G-5, G-14, G-17
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let effects = Arc::new(AtomicU32::new(0));
    let answer = "order-1042-payment happened, effect 1".to_owned();
    let (before, once) = app(&path, effects.clone());
    assert_eq!(charge(&before, "Bearer alice").await, (false, answer.clone()));
    drop((before, once));
    let (after, _once) = app(&path, effects.clone());
    assert_eq!(
        charge(&after, "Bearer alice").await,
        (true, answer),
        "the hash of the credential is the same"
    );
    assert!(!charge(&after, "Bearer bob").await.0);
    assert_eq!(effects.load(Ordering::SeqCst), 2);
}
