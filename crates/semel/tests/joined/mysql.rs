//! The same on MariaDB, with mysql_async.

use std::process::{Command, Stdio};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, TxOpts};
use semel::error::{Error, Kind};
use semel::http::{Answer, Joined, Route, SemelLayer, tenant};
use semel::runtime::Tokio;
use semel::stores::mysql::tx::{self, Begun};
use semel::{EffectStore, MysqlStore, Nonce, Once, State as Standing};
use tokio::sync::Semaphore;

use super::{CONNECTIONS_MAX, ask, persist};

#[derive(Clone)]
struct Shop {
    url: Arc<str>,
    connections: Arc<Semaphore>,
    dies_before_commit: bool,
}

async fn connect(url: &str) -> Result<Conn, mysql_async::Error> {
    Conn::new(OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false)).await
}

fn failed(error: mysql_async::Error) -> Error {
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
    let mut conn = connect(&shop.url).await.map_err(failed)?;
    let mut transaction = conn.start_transaction(TxOpts::default()).await.map_err(failed)?;
    let running = match tx::begin(&mut transaction, op.call()).await? {
        Begun::Run(running) => running,
        Begun::Replay(outcome) => {
            transaction.rollback().await.map_err(failed)?;
            return Ok(op.replay(outcome));
        }
        Begun::Refused(why) => {
            transaction.rollback().await.map_err(failed)?;
            return Ok(op.refused(why));
        }
    };
    let paid = "INSERT INTO payment (request) VALUES (?)";
    transaction.exec_drop(paid, (&body[..],)).await.map_err(failed)?;
    let id = transaction.last_insert_id().unwrap();
    let response = Response::builder().status(201).header("x-payment", id).body(Bytes::from("paid")).unwrap();
    let finished = tx::finish(&mut transaction, running, &op.outcome(&response), &[]).await?;
    if shop.dies_before_commit {
        std::process::abort();
    }
    let url = shop.url.clone();
    let resolve = async |lost| {
        let mut other = connect(&url).await.map_err(failed)?;
        tx::resolve(&mut other, lost, tx::PATIENCE).await
    };
    let committed = tx::commit(transaction, finished, resolve).await?;
    Ok(op.fresh(committed, response))
}

async fn app(url: &str, dies_before_commit: bool) -> (Router, Arc<MysqlStore>) {
    let store = Arc::new(MysqlStore::connect(url).await.unwrap());
    let once = Once::new(store.clone(), Arc::new(Tokio::new()));
    let route = Route::builder("pay").required().same_transaction().tenant(tenant::Credential);
    let layer = SemelLayer::new(once, route.build().unwrap());
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let shop = Shop { url: url.into(), connections, dies_before_commit };
    (Router::new().route("/payments", post(pay)).with_state(shop).layer(layer), store)
}

fn with_database(test: impl AsyncFnOnce(String)) {
    let Ok(server) = std::env::var("SEMEL_TEST_MARIADB") else {
        assert!(std::env::var("SEMEL_TEST_REQUIRE").is_err(), "SEMEL_TEST_MARIADB is not set");
        eprintln!("SKIPPED mariadb: SEMEL_TEST_MARIADB is not set");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut admin = connect(&server).await.unwrap();
        let name = format!("semel_j_{}", Nonce::random());
        admin.query_drop(format!("CREATE DATABASE {name}")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let table = "CREATE TABLE payment (id bigint AUTO_INCREMENT PRIMARY KEY, request blob NOT NULL) ENGINE = InnoDB";
        connect(&url).await.unwrap().query_drop(table).await.unwrap();
        test(url).await;
        let drop = format!("SET SESSION lock_wait_timeout = 10; DROP DATABASE {name}");
        if let Err(error) = admin.query_drop(drop).await {
            eprintln!("{name} stays behind: {error}");
        }
    });
}

async fn payments(url: &str) -> i64 {
    let mut conn = connect(url).await.unwrap();
    conn.query_first("SELECT COUNT(*) FROM payment").await.unwrap().unwrap()
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
    let Ok(url) = std::env::var("SEMEL_CRASH_JOINED_MYSQL") else { return };
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
            .args(["--exact", "mysql::the_service_that_crashes_before_its_commit", "--nocapture"])
            .env("SEMEL_CRASH_JOINED_MYSQL", &url)
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
