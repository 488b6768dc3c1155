//! Health, readiness and metrics.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use semel::runtime::Tokio;
use semel_testkit::Fault;
use serde_json::json;

use super::rig::{Rig, operation};
use crate::gateway::unknowns::{self, Seen};

#[tokio::test]
async fn a_process_that_cannot_work_is_alive_but_not_ready() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/readyz").await.json(), json!({ "status": "ready" }));
    rig.not_ready.lock().unwrap().push("no upstream is healthy".into());
    let answer = rig.get("/readyz").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json()["reasons"], json!(["no upstream is healthy"]));
    assert_eq!(rig.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_or_silent_makes_it_not_ready() {
    let rig = Rig::new().await;
    for (fault, reason) in [(Fault::Refuse, "the store: "), (Fault::Hang, "not answered within 2s")] {
        rig.network.plan(move |_| fault);
        let answer = rig.get("/readyz").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        let told = answer.json()["reasons"][0].as_str().unwrap().to_owned();
        assert!(told.contains(reason), "{told}");
        rig.network.heal();
        assert_eq!(rig.get("/readyz").await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_probe_without_the_token_hears_no_reasons() {
    let rig = Rig::with_token(Some("s3cret")).await;
    rig.not_ready.lock().unwrap().push("no upstream is healthy at 10.0.0.5".into());
    let probe = rig.call("GET", "/readyz", &[("authorization", "none"), ("host", "10.1.2.3")], "").await;
    assert_eq!(
        (probe.status, probe.json()),
        (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "not ready" }))
    );
    assert_eq!(rig.get("/readyz").await.json()["reasons"][0], "no upstream is healthy at 10.0.0.5");
}

#[tokio::test]
async fn metrics_are_served_as_prometheus_reads_them() {
    // G-80
    let rig = Rig::new().await;
    rig.metrics.decided("charge", "replayed", Duration::from_millis(1));
    let answer = rig.get("/metrics").await;
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    assert!(
        answer.text.contains(r#"semel_decisions_total{route="charge",decision="replayed"} 1"#),
        "{}",
        answer.text
    );
    assert!(answer.text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn unknowns_are_counted_with_the_age_of_the_oldest() {
    // G-80
    let rig = Rig::new().await;
    let store = rig.store.clone();
    assert_eq!(unknowns::look(&*store, "shop").await.unwrap(), Seen { count: 0, oldest: None });
    rig.unknown(&operation(None, "charge", "k-1")).await;
    rig.clock.shift(90_000_000);
    rig.unknown(&operation(None, "charge", "k-2")).await;
    rig.claim(&operation(None, "charge", "running")).await;
    let seen = unknowns::look(&*store, "shop").await.unwrap();
    assert_eq!(seen, Seen { count: 2, oldest: Some(Duration::from_secs(90)) });
    assert_eq!(unknowns::look(&*store, "elsewhere").await.unwrap().count, 0);
}

#[tokio::test(start_paused = true)]
async fn the_watch_feeds_the_gauges_and_tells_when_the_store_is_away() {
    // G-80
    let rig = Rig::new().await;
    rig.unknown(&operation(None, "charge", "k-1")).await;
    let minute = Duration::from_secs(60);
    let backup = rig.store.snapshot();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async { drop(stopped.await) };
    let watch = unknowns::watch(
        rig.store.clone(),
        "shop".into(),
        rig.metrics.clone(),
        Arc::new(Tokio::new()),
        minute,
        shutdown,
    );
    let watch = tokio::spawn(watch);
    tokio::time::sleep(minute / 2).await;
    assert!(rig.metrics.text().contains("semel_unknown_operations 1\n"), "{}", rig.metrics.text());
    assert!(rig.metrics.text().contains("semel_store_up 1\n"));
    rig.claim(&operation(None, "charge", "k-2")).await;
    rig.store.restore(backup);
    tokio::time::sleep(minute).await;
    assert!(rig.metrics.text().contains("semel_store_up 0\n"));
    assert!(rig.metrics.text().contains(r#"semel_store_errors_total{kind="went-back"} 1"#));
    assert!(rig.metrics.text().contains("semel_unknown_operations 1\n"), "what was seen last stands");
    stop.send(()).unwrap();
    watch.await.unwrap();
}
