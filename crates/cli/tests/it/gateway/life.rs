//! What outlives a client, a gateway and a restart.

use std::time::Duration;

use tokio::task::JoinSet;

use super::rig::{Caller, Gateway, ORDER, PATIENCE, Upstream, until};
use crate::engines::engines;

#[tokio::test]
async fn kill_9_loses_nothing_that_was_answered() {
    // G-17
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let caller = Caller::of(&gateway.address);
    let first = caller.post("/pay", "life-answered-00001", ORDER).await;
    gateway.child.kill().await.expect("it is killed");
    let gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let again = Caller::of(&gateway.address).post("/pay", "life-answered-00001", ORDER).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    assert_eq!(upstream.count("/pay"), 1);
}

#[tokio::test]
async fn kill_9_in_flight_leaves_an_unknown_that_a_person_settles() {
    // G-15, G-81
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let short = ["--lease", "300ms"];
    let mut gateway = Gateway::start(home.path(), &upstream.url(), &short).await;
    let caller = Caller::of(&gateway.address);
    let lost = tokio::spawn(async move {
        caller.send("POST", "/slow", &[("idempotency-key", "life-inflight-00001")], ORDER).await
    });
    upstream.comes().await;
    gateway.child.kill().await.expect("it is killed");
    assert!(lost.await.expect("no panic").is_err(), "the client hears nothing");
    let gateway = Gateway::start(home.path(), &upstream.url(), &short).await;
    let caller = Caller::of(&gateway.address);
    let unknown =
        until(&caller, "/slow", "life-inflight-00001", |heard| heard.problem() != "in-flight").await;
    assert_eq!((unknown.status, unknown.problem().as_str()), (409, "outcome-unknown"));
    let store = format!("sqlite:{}", home.path().join("semel.db").display());
    let answer = home.path().join("answer.json");
    std::fs::write(&answer, "{\"id\":\"pay_1\"}").expect("it is written");
    let settled = tokio::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["keys", "settle", "life-inflight-00001", "--done", "--status", "201", "--by", "test"])
        .args([
            "--header",
            "content-type: application/json",
            "--body-file",
            &answer.display().to_string(),
            "--store",
            &store,
        ])
        .output()
        .await
        .expect("it runs");
    assert!(settled.status.success(), "{}", String::from_utf8_lossy(&settled.stderr));
    let heard = caller.post("/slow", "life-inflight-00001", ORDER).await;
    assert!(heard.is_replay() && heard.text() == "{\"id\":\"pay_1\"}", "{heard:?}");
    assert_eq!(upstream.count("/slow"), 1);
}

#[tokio::test]
async fn an_impatient_client_and_a_slow_service_make_one_charge() {
    // G-17: the front gives up long before the service answers, and retries at once, again and again.
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let caller = Caller::of(&gateway.address);
    for _ in 0..30 {
        let impatient = caller.post("/slow", "life-impatient-0001", ORDER);
        let _ = tokio::time::timeout(Duration::from_millis(20), impatient).await;
    }
    upstream.comes().await;
    assert_eq!(upstream.count("/slow"), 1);
    upstream.gate.add_permits(1);
    let heard = until(&caller, "/slow", "life-impatient-0001", |heard| heard.status == 201).await;
    assert!(heard.is_replay(), "the late answer became the outcome");
    assert_eq!(upstream.count("/slow"), 1);
}

#[tokio::test]
async fn two_gateways_on_one_store_run_a_key_once() {
    // G-8
    for engine in engines() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let store = engine.fresh(home.path());
        let upstream = Upstream::start().await;
        let url = upstream.url();
        let arguments = [
            "--listen",
            "127.0.0.1:0",
            "--upstream",
            &url,
            "--store",
            &store,
            "--tenant",
            "none",
            "--wait",
            "20s",
        ];
        let gateways = [Gateway::with(&arguments).await, Gateway::with(&arguments).await];
        for round in 0..10 {
            let mut race = JoinSet::new();
            for at in 0..20 {
                let (caller, key) =
                    (Caller::of(&gateways[at % 2].address), format!("life-two-gateways-{round}"));
                race.spawn(async move { caller.post("/pay", &key, ORDER).await });
            }
            let answers = race.join_all().await;
            assert!(
                answers.iter().all(|heard| heard.status == 201 && heard.body == answers[0].body),
                "{answers:?}"
            );
            assert_eq!(upstream.count("/pay"), round + 1, "{}", engine.name);
        }
        drop(gateways);
        engine.remove(&store);
        semel_testkit::ledger("two gateways", engine.name, 1);
    }
}

#[tokio::test]
async fn told_to_end_it_finishes_what_it_began() {
    // G-17
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let caller = Caller::of(&gateway.address);
    let running = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/slow", "life-drain-00000001", ORDER).await }
    });
    upstream.comes().await;
    gateway.signal("-TERM");
    let closed = async {
        while tokio::net::TcpStream::connect(&caller.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("it takes no more connections");
    upstream.gate.add_permits(1);
    assert_eq!(running.await.expect("answered").status, 201);
    let ended = tokio::time::timeout(PATIENCE, gateway.child.wait()).await.expect("it ends");
    assert!(ended.expect("it is waited for").success());
}

#[tokio::test]
async fn the_time_to_drain_is_for_connections_and_operations_together() {
    // G-17
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::start(home.path(), &upstream.url(), &["--drain", "4s"]).await;
    let caller = Caller::of(&gateway.address);
    let cut = tokio::spawn(async move {
        caller.send("POST", "/slow", &[("idempotency-key", "life-drain-00000002")], ORDER).await
    });
    upstream.comes().await;
    let told = std::time::Instant::now();
    gateway.signal("-TERM");
    let ended = tokio::time::timeout(PATIENCE, gateway.child.wait()).await.expect("it ends");
    assert!(ended.expect("it is waited for").success());
    assert!(told.elapsed() < Duration::from_secs(8), "{:?}", told.elapsed());
    assert!(cut.await.expect("no panic").is_err(), "the client hears nothing");
}

#[tokio::test]
async fn a_reload_drops_nothing_and_refuses_what_would_orphan_records() {
    // G-1
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let config = home.path().join("semel.toml");
    let write = |routes: &str| std::fs::write(&config, routes).expect("it is written");
    write("[[route]]\nid = \"pay\"\npath = \"/pay\"\nprotection = \"optional\"\n");
    let path = config.display().to_string();
    let gateway = Gateway::start(home.path(), &upstream.url(), &["--config", &path]).await;
    let caller = Caller::of(&gateway.address);
    assert_eq!(caller.post("/pay", "life-reload-0000001", ORDER).await.status, 201);
    let running = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/slow", "life-reload-0000002", ORDER).await }
    });
    upstream.comes().await;
    write("[[route]]\nid = \"pay\"\npath = \"/pay\"\nprotection = \"required\"\n");
    gateway.signal("-HUP");
    let refused = async {
        loop {
            let heard = caller.send("POST", "/pay", &[], ORDER).await.expect("an answer");
            if heard.status == 400 {
                return heard;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused).await.expect("the new settings count");
    assert_eq!(refused.problem(), "key-missing");
    upstream.gate.add_permits(1);
    assert_eq!(running.await.expect("answered").status, 201, "a request under way is not dropped");
    write("[[route]]\nid = \"charge\"\npath = \"/pay\"\n");
    gateway.signal("-HUP");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(caller.post("/pay", "life-reload-0000001", ORDER).await.is_replay(), "the old settings stay");
}
