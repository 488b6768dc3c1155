//! Is it alive, can it work, what has it counted, how does its store stand?

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, select};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use semel::store::{ClockSource, Durability};
use serde_json::{Value, json};

use super::guard::Standing;
use super::{Admin, Answer, OPENAPI, Shared};

/// How long the store may take to answer a probe.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The process answers. That is all this says: restarting would not bring a store back.
pub(super) async fn healthz() -> Response {
    super::json(&json!({ "status": "alive" }))
}

/// Whether requests should be sent here.
pub(super) async fn readyz(
    State(admin): State<Shared>,
    Extension(standing): Extension<Standing>,
) -> Response {
    let mut reasons = (admin.not_ready)();
    reasons.extend(store_trouble(&admin).await);
    if reasons.is_empty() {
        return super::json(&json!({ "status": "ready" }));
    }
    let mut body = json!({ "status": "not ready" });
    // Reasons name hosts and paths: not for everybody who can reach the port.
    if standing == Standing::Operator {
        body["reasons"] = reasons.into();
    }
    let kind = HeaderValue::from_static("application/json");
    (StatusCode::SERVICE_UNAVAILABLE, [(CONTENT_TYPE, kind)], body.to_string()).into_response()
}

async fn store_trouble(admin: &Admin) -> Option<String> {
    let looking = admin.store.status();
    match select(looking, admin.runtime.sleep(STORE_TIMEOUT)).await {
        Either::Left((Ok(status), _)) => status.went_back_from.map(|_| {
            "the store was restored from an older state and waits for POST /v1/store/acknowledge".into()
        }),
        Either::Left((Err(error), _)) => Some(format!("the store: {error}")),
        Either::Right(_) => Some(format!("the store has not answered within {STORE_TIMEOUT:?}")),
    }
}

pub(super) async fn metrics(State(admin): State<Shared>) -> Response {
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    ([(CONTENT_TYPE, kind)], admin.metrics.text()).into_response()
}

pub(super) async fn openapi() -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], OPENAPI).into_response()
}

pub(super) async fn status(State(admin): State<Shared>) -> Answer {
    let (status, can) = (admin.store.status().await?, admin.store.capabilities());
    let mark = |mark: semel::store::Mark| json!({ "epoch": mark.epoch, "token": mark.token.0 });
    let counts: serde_json::Map<String, Value> =
        admin.metrics.tally().into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
    Ok(super::json(&json!({
        "namespace": admin.namespace,
        "engine": can.engine,
        "durable": can.durability == Durability::Disk,
        "clock": match can.clock {
            ClockSource::Server => "server",
            ClockSource::Host => "host",
        },
        "store_id": status.store_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        "mark": mark(status.mark),
        "went_back_from": status.went_back_from.map(mark),
        "hash_key_version": status.hash_keys.first().map(|key| key.version),
        "counts": counts,
    })))
}
