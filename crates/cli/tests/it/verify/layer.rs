//! A payments service under our layer, as a process: this test binary, started again with [`ORDER`] set.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path as InPath, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use semel::Once;
use semel::http::{Route, SemelLayer, tenant};
use semel::policy::Policy;
use semel::runtime::Tokio;
use serde::Deserialize;
use serde_json::{Value, json};

use super::own::{Life, Memory, moves};
use super::run::{Target, free_port};

const ORDER: &str = "SEMEL_VERIFY_LAYER";
/// How long the service waits for its bank.
const PATIENCE: Duration = Duration::from_millis(1200);

pub(super) fn service(home: &Path, memory: Memory) -> (Target, Life) {
    let place = home.join("store");
    std::fs::create_dir(&place).expect("it is made");
    let (port, pid, here) = (free_port(), home.join("pid"), home.display());
    let exe = std::env::current_exe().expect("the test knows where it is");
    let ttl = if memory == Memory::Short { 2 } else { 3600 };
    let start = format!(
        "cd '{here}' && rm -f ready && {{ {ORDER}='{port} {ttl} {here}' '{}' --exact verify::layer::served \
         --nocapture --test-threads=1 >log 2>&1 & echo $! >pid; }} && \
         for _ in $(seq 1500); do [ -e ready ] && exit 0; sleep 0.02; done; exit 1",
        exe.display()
    );
    let (store_stop, store_start) = moves(&place);
    let more = [
        "--other-method",
        "GET",
        "--failing-data",
        r#"{"amount":0,"reference":"{tag}"}"#,
        "--slow-url",
        &format!("http://127.0.0.1:{port}/payments?delay_ms=2200"),
    ];
    let target = Target {
        origin: format!("http://127.0.0.1:{port}"),
        path: "/payments?delay_ms=40",
        count: "/count/{tag}",
        pointer: None,
        kill: format!("kill -9 $(cat '{}')", pid.display()),
        start: start.clone(),
        store_stop,
        store_start,
        more: more.map(str::to_owned).to_vec(),
    };
    (target, Life { start, pid })
}

/// The service's side. In an ordinary run of the tests there is nothing to do.
#[test]
fn served() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let mut words = order.splitn(3, ' ');
    let mut word = || words.next().expect("a port, a time and a home").to_owned();
    let (port, ttl, home) = (word(), word(), PathBuf::from(word()));
    let ttl = Duration::from_secs(ttl.parse().expect("seconds"));
    tokio::runtime::Runtime::new().expect("a runtime starts").block_on(live(&port, ttl, home));
}

async fn live(port: &str, ttl: Duration, home: PathBuf) {
    let store = format!("sqlite:{}", home.join("store/semel.db").display());
    let store = semel::stores::open(&store).await.expect("the store opens");
    let policy = Policy::builder()
        .lease(Duration::from_millis(600))
        .run_max(Duration::from_millis(1500))
        .store_patience(Duration::from_millis(200))
        .ttl(ttl)
        .retry_window(ttl / 4)
        .build()
        .expect("the policy makes sense");
    let route =
        Route::by_path().policy(policy).tenant(tenant::Credential).build().expect("the route makes sense");
    let layer = SemelLayer::new(Once::new(store, Arc::new(Tokio::new())), route);
    let router = Router::new()
        .route("/payments", post(pay).get(|| async { "payments are made with POST\n" }))
        .route("/refunds", post(pay))
        .layer(layer)
        .route("/count/{tag}", get(count))
        .with_state(home.join("effects"));
    let listener =
        tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("the port is free");
    tokio::spawn(async move { axum::serve(listener, router).await });
    std::fs::write(home.join("ready"), "").expect("the home takes a file");
    while home.exists() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[derive(Deserialize)]
struct Pace {
    #[serde(default)]
    delay_ms: u64,
}

/// The effect happens in the middle of its time, and goes on when its caller leaves.
async fn pay(
    State(effects): State<PathBuf>,
    Query(pace): Query<Pace>,
    headers: HeaderMap,
    Json(order): Json<Value>,
) -> Response {
    if order["amount"] == 0 {
        return (StatusCode::PAYMENT_REQUIRED, "nothing to pay\n").into_response();
    }
    let half = Duration::from_millis(pace.delay_ms) / 2;
    let reference = order["reference"].as_str().unwrap_or_default().to_owned();
    let paying = tokio::spawn(async move {
        tokio::time::sleep(half).await;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(effects);
        let written = file.and_then(|mut file| file.write_all(format!("{reference}\n").as_bytes()));
        tokio::time::sleep(half).await;
        written
    });
    match tokio::time::timeout(PATIENCE, paying).await {
        Ok(Ok(Ok(()))) => {}
        Ok(lost) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{lost:?}")).into_response(),
        Err(_) => return (StatusCode::GATEWAY_TIMEOUT, "the bank has not answered\n").into_response(),
    }
    let id = semel::Nonce::random().to_string();
    let customer = headers.get(header::AUTHORIZATION).is_some();
    let cookie = format!("session={}; HttpOnly", semel::Nonce::random());
    let body = Json(json!({ "id": id, "customer": customer, "order": order }));
    (StatusCode::CREATED, [(header::LOCATION, format!("/payments/{id}")), (header::SET_COOKIE, cookie)], body)
        .into_response()
}

async fn count(State(effects): State<PathBuf>, InPath(tag): InPath<String>) -> String {
    let lines = std::fs::read_to_string(effects).unwrap_or_default();
    lines.lines().filter(|line| *line == tag).count().to_string()
}
