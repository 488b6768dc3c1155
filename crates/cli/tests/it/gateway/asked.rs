//! Recovery `ask`, end to end: the gateway dies in flight, and the service is asked.

use std::sync::{Arc, Mutex};

use axum::extract::{Json, State};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::rig::{Caller, Gateway, ORDER, PATIENCE, Upstream, until};

/// Who is asked, and what they say: made from the question.
#[derive(Clone)]
struct Witness {
    says: fn(&Value) -> Value,
    questions: Arc<Mutex<Vec<Value>>>,
    asked: Arc<Semaphore>,
}

impl Witness {
    async fn start(says: fn(&Value) -> Value) -> (Self, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let witness = Self { says, questions: Arc::default(), asked: Arc::new(Semaphore::new(0)) };
        let app = axum::Router::new().route("/reconcile", post(answer)).with_state(witness.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (witness, format!("ask:http://{address}/reconcile"))
    }

    async fn is_asked(&self) -> Value {
        let asked = tokio::time::timeout(PATIENCE, self.asked.acquire()).await;
        asked.expect("it is asked in time").expect("open").forget();
        self.questions.lock().expect("no panic").last().expect("a question").clone()
    }
}

async fn answer(State(witness): State<Witness>, Json(question): Json<Value>) -> Json<Value> {
    let said = (witness.says)(&question);
    witness.questions.lock().expect("no panic").push(question);
    witness.asked.add_permits(1);
    Json(said)
}

/// A gateway that was killed while the service worked, and one that took its place.
async fn survivor(home: &std::path::Path, upstream: &Upstream, recovery: &str, key: &str) -> Gateway {
    let settings = ["--recovery", recovery, "--lease", "300ms", "--run-max", "1s"];
    let mut killed = Gateway::start(home, &upstream.url(), &settings).await;
    let (caller, key) = (Caller::of(&killed.address), key.to_owned());
    let lost = tokio::spawn(async move {
        caller.send("POST", "/slow", &[("idempotency-key", key.as_str())], ORDER).await
    });
    upstream.comes().await;
    killed.child.kill().await.expect("it is killed");
    assert!(lost.await.expect("no panic").is_err(), "the client hears nothing");
    Gateway::start(home, &upstream.url(), &settings).await
}

#[tokio::test]
async fn what_the_service_says_was_done_is_replayed_and_nothing_runs() {
    // G-15
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let (witness, recovery) = Witness::start(|_| {
        let headers = json!({ "content-type": "application/json" });
        json!({ "answer": "done", "response": { "status": 201, "headers": headers, "body": "{\"id\":\"pay_7\"}" } })
    })
    .await;
    let gateway = survivor(home.path(), &upstream, &recovery, "asked-done-0000001").await;
    let question = witness.is_asked().await;
    assert_eq!(question["key"], "asked-done-0000001");
    let caller = Caller::of(&gateway.address);
    let heard = until(&caller, "/slow", "asked-done-0000001", |heard| heard.status != 409).await;
    assert!(heard.is_replay() && heard.status == 201 && heard.text() == "{\"id\":\"pay_7\"}", "{heard:?}");
    assert_eq!(upstream.count("/slow"), 1);
}

#[tokio::test]
async fn what_the_service_says_never_was_runs_again_once() {
    // G-15
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let (witness, recovery) =
        Witness::start(|question| json!({ "answer": "never", "refused_through": question["token"] })).await;
    let gateway = survivor(home.path(), &upstream, &recovery, "asked-never-000001").await;
    witness.is_asked().await;
    let caller = Caller::of(&gateway.address);
    let retry = tokio::spawn({
        let caller = caller.clone();
        async move { until(&caller, "/slow", "asked-never-000001", |heard| heard.status != 409).await }
    });
    upstream.comes().await;
    upstream.gate.add_permits(1);
    let heard = retry.await.expect("an answer");
    assert!(heard.status == 201 && !heard.is_replay(), "{heard:?}");
    let again = caller.post("/slow", "asked-never-000001", ORDER).await;
    assert!(again.is_replay() && again.body == heard.body, "{again:?}");
    assert_eq!(upstream.count("/slow"), 2, "the lost one, and one more");
}
