//! The service that is protected: an effect takes 40 ms, or `pace_ms`, and happens in the middle.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

const BODY_BYTES_MAX: usize = 8 << 20;

/// The routes to protect, and those beside them.
pub fn routers(effects: PathBuf) -> (Router, Router) {
    let paid = Router::new().route("/payments", post(pay).put(pay)).route("/refunds", post(pay));
    let count = Router::new().route("/count/{tag}", get(count));
    (paid.with_state(effects.clone()), count.with_state(effects))
}

async fn pay(State(effects): State<PathBuf>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    let Ok(order) = serde_json::from_slice::<Value>(&body) else {
        return (StatusCode::BAD_REQUEST, "not JSON").into_response();
    };
    let half = Duration::from_millis(order["pace_ms"].as_u64().unwrap_or(40).min(10_000)) / 2;
    let tag = order["reference"].as_str().unwrap_or_default();
    tokio::time::sleep(half).await;
    if let Err(error) = append(&effects, tag) {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    tokio::time::sleep(half).await;
    let nanos =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let id = format!("pay_{nanos:x}");
    if order["fail"] == true {
        return (StatusCode::INTERNAL_SERVER_ERROR, "something broke after the payment").into_response();
    }
    let answer = json!({ "id": id, "reference": tag, "order": order }).to_string();
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::LOCATION, format!("{path}/{id}")),
        (header::HeaderName::from_static("x-receipt"), format!("receipt of {id}")),
    ];
    (StatusCode::CREATED, headers, answer).into_response()
}

async fn count(State(effects): State<PathBuf>, Path(tag): Path<String>) -> String {
    let text = std::fs::read_to_string(effects).unwrap_or_default();
    text.lines().filter(|line| *line == tag).count().to_string()
}

/// On disk when it returns.
fn append(effects: &std::path::Path, tag: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(effects)?;
    file.write_all(format!("{tag}\n").as_bytes())?;
    file.sync_data()
}
