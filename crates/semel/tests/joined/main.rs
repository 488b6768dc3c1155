//! An axum handler whose operation, effect and answer commit in one transaction: of PostgreSQL here, of MySQL in a
//! file beside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod mysql;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use semel::error::{Error, Kind};
use semel::http::{Answer, Joined, Route, SemelLayer, tenant};
use semel::runtime::Tokio;
use semel::stores::postgres::tx::{self, Begun};
use semel::{EffectStore, Nonce, Once, PostgresStore, State as Standing};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, NoTls};
use tower::ServiceExt;

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 8;

#[derive(Clone)]
struct Shop {
    url: Arc<str>,
    connections: Arc<Semaphore>,
    dies_before_commit: bool,
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::new(Kind::Unreachable, "the shop's database failed").because(error)
}

async fn pay(State(shop): State<Shop>, op: Joined, body: Bytes) -> Answer {
    match pay_once(&shop, &op, &body).await {
        Ok(answer) => answer,
        Err(error) => op.failed(&error),
    }
}

async fn pay_once(shop: &Shop, op: &Joined, body: &Bytes) -> Result<Answer, Error> {
    let _turn = shop.connections.acquire().await.unwrap();
    let mut client = connect(&shop.url).await.map_err(failed)?;
    let transaction = client.transaction().await.map_err(failed)?;
    let running = match tx::begin(&transaction, op.call()).await? {
        Begun::Run(running) => running,
        Begun::Replay(outcome) => return Ok(op.replay(outcome)),
        Begun::Refused(why) => return Ok(op.refused(why)),
    };
    let paid = "INSERT INTO payment (request) VALUES ($1) RETURNING id";
    let id: i64 = transaction.query_one(paid, &[&&body[..]]).await.map_err(failed)?.get(0);
    let response = Response::builder().status(201).header("x-payment", id).body(Bytes::from("paid")).unwrap();
    let finished = tx::finish(&transaction, running, &op.outcome(&response), &[]).await?;
    if shop.dies_before_commit {
        std::process::abort();
    }
    let url = shop.url.clone();
    let resolve = async |lost| {
        let other = connect(&url).await.map_err(failed)?;
        tx::resolve(&other, lost, tx::PATIENCE).await
    };
    let committed = tx::commit(transaction, finished, resolve).await?;
    Ok(op.fresh(committed, response))
}

async fn app(url: &str, dies_before_commit: bool) -> (Router, Arc<PostgresStore>) {
    let store = Arc::new(PostgresStore::connect(url).await.unwrap());
    let once = Once::new(store.clone(), Arc::new(Tokio::new()));
    let route = Route::builder("pay").required().same_transaction().tenant(tenant::Credential);
    let layer = SemelLayer::new(once, route.build().unwrap());
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let shop = Shop { url: url.into(), connections, dies_before_commit };
    (Router::new().route("/payments", post(pay)).with_state(shop).layer(layer), store)
}

/// Status, whether it is a replay, payment and body.
async fn ask(app: &Router, body: &'static str) -> (u16, bool, String, String) {
    let request = Request::post("/payments")
        .header("idempotency-key", "order-1042-payment")
        .header("authorization", "Bearer alice")
        .body(Body::from(body))
        .unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let replayed = head.headers.contains_key("idempotent-replayed");
    let payment = head.headers.get("x-payment").map_or("", |value| value.to_str().unwrap()).to_owned();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    (head.status.as_u16(), replayed, payment, String::from_utf8(body.to_vec()).unwrap())
}

/// Asks until there is an answer, as a client does who is told to come back.
async fn persist(app: &Router) -> (u16, bool, String, String) {
    loop {
        let answer = ask(app, "20 euro").await;
        if !matches!(answer.0, 409 | 503) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn with_database(test: impl AsyncFnOnce(String)) {
    let Ok(server) = std::env::var("SEMEL_TEST_POSTGRES") else {
        assert!(std::env::var("SEMEL_TEST_REQUIRE").is_err(), "SEMEL_TEST_POSTGRES is not set");
        eprintln!("SKIPPED postgres: SEMEL_TEST_POSTGRES is not set");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let admin = connect(&server).await.unwrap();
        let name = format!("semel_j_{}", Nonce::random());
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let table = "CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY, request bytea NOT NULL)";
        connect(&url).await.unwrap().batch_execute(table).await.unwrap();
        test(url).await;
        admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
    });
}

async fn payments(url: &str) -> i64 {
    let client = connect(url).await.unwrap();
    client.query_one("SELECT count(*) FROM payment", &[]).await.unwrap().get(0)
}

#[test]
fn fifty_duplicates_at_once_make_one_payment_and_one_answer() {
    // G-30
    with_database(async |url| {
        let (app, store) = app(&url, false).await;
        let asking: Vec<_> = (0..50)
            .map(|_| {
                let app = app.clone();
                tokio::spawn(async move { persist(&app).await })
            })
            .collect();
        let mut fresh = 0;
        for asked in asking {
            let (status, replayed, payment, body) = asked.await.unwrap();
            assert_eq!((status, &payment[..], &body[..]), (201, "1", "paid"));
            fresh += u32::from(!replayed);
        }
        assert_eq!((fresh, payments(&url).await), (1, 1));
        let (status, _, _, body) = ask(&app, "30 euro").await;
        assert_eq!(status, 422, "{body}");
        // The layer itself kept nothing beside it: one operation, completed by the transaction.
        let filter = semel::store::Filter::default();
        let page = store.list(&filter, semel::Token(0), 10).await.unwrap();
        let states: Vec<_> = page.records.iter().map(|record| (record.state, record.attempts)).collect();
        assert_eq!(states, [(Standing::Completed, 1)]);
    });
}

/// Does nothing unless the test below started it.
#[test]
fn the_service_that_crashes_before_its_commit() {
    let Ok(url) = std::env::var("SEMEL_CRASH_JOINED") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (app, _store) = app(&url, true).await;
        ask(&app, "20 euro").await;
    });
}

#[test]
fn a_service_that_crashes_between_effect_and_commit_did_nothing_and_the_retry_pays() {
    // G-30
    with_database(async |url| {
        let (app, _store) = app(&url, false).await;
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_service_that_crashes_before_its_commit", "--nocapture"])
            .env("SEMEL_CRASH_JOINED", &url)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(!status.success() && status.code() != Some(101), "{status:?}");
        assert_eq!(payments(&url).await, 0);
        let (status, replayed, _, body) = persist(&app).await;
        assert_eq!((status, replayed, &body[..]), (201, false, "paid"));
        let (status, replayed, _, body) = persist(&app).await;
        assert_eq!((status, replayed, &body[..]), (201, true, "paid"));
        assert_eq!(payments(&url).await, 1);
    });
}
