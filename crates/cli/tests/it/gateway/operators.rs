//! What an operator does to a running gateway: through its admin API, and with a signal.

use serde_json::{Value, json};

use super::rig::{Caller, Gateway, ORDER, PATIENCE, Upstream, keys};

#[tokio::test]
async fn the_admin_api_finds_shows_settles_frees_and_purges() {
    // G-81
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(home.path(), &upstream.url(), &["--admin", "127.0.0.1:0"]).await;
    let caller = Caller::of(&gateway.address);
    let admin = gateway.admin.clone().expect("an admin listener");
    let keys = async |arguments: &[&str]| keys(&[arguments, &["--admin", &admin]].concat()).await;
    let state = async |key: &str| keys(&["show", key]).await["state"].clone();

    assert_eq!(caller.post("/pay", "operator-paid-00001", ORDER).await.status, 201);
    for key in ["operator-done-00001", "operator-free-00001"] {
        assert_eq!(caller.post("/status/503", key, ORDER).await.problem(), "outcome-unknown");
    }
    let listed = keys(&["list"]).await;
    let found: Vec<&Value> = listed["operations"].as_array().expect("a list").iter().collect();
    assert_eq!(found.len(), 3, "{listed}");
    let unknown = keys(&["list", "--state", "unknown"]).await;
    assert_eq!(unknown["operations"].as_array().map(Vec::len), Some(2), "{unknown}");
    let shown = keys(&["show", "operator-paid-00001", "--bodies"]).await;
    assert_eq!((&shown["state"], &shown["outcome"]["status"]), (&json!("completed"), &json!(201)));
    assert_eq!(shown["outcome"]["body"], "{\"id\":\"pay_1\",\"bytes\":31}");

    let body = home.path().join("answer.json");
    std::fs::write(&body, "{\"id\":\"pay_by_hand\"}").expect("it is written");
    let body = body.display().to_string();
    let settle = ["settle", "operator-done-00001", "--done", "--status", "201", "--body-file", &body];
    keys(&[&settle[..], &["--by", "ops", "--note", "seen at the bank"]].concat()).await;
    let heard = caller.post("/status/503", "operator-done-00001", ORDER).await;
    assert!(
        heard.is_replay() && heard.status == 201 && heard.text() == "{\"id\":\"pay_by_hand\"}",
        "{heard:?}"
    );
    let shown = keys(&["show", "operator-done-00001"]).await;
    assert!(shown["history"].to_string().contains("ops: seen at the bank"), "{shown}");

    keys(&["free", "operator-free-00001", "--by", "ops"]).await;
    assert_eq!(state("operator-free-00001").await, "released");
    assert_eq!(upstream.count("/status/503"), 2);
    caller.post("/status/503", "operator-free-00001", ORDER).await;
    assert_eq!(upstream.count("/status/503"), 3, "what was freed runs again");

    keys(&["purge", "operator-paid-00001", "--by", "ops"]).await;
    assert_eq!(state("operator-paid-00001").await, "tombstone");
    let purged = caller.post("/pay", "operator-paid-00001", ORDER).await;
    assert_eq!((purged.status, purged.problem().as_str()), (409, "outcome-purged"));
    assert_eq!(upstream.count("/pay"), 1, "its key stays used");
}

#[tokio::test]
async fn a_route_that_is_renamed_with_an_alias_finds_what_it_did() {
    // G-1
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let config = home.path().join("semel.toml");
    let write = |text: &str| std::fs::write(&config, text).expect("it is written");
    write("[[route]]\nid = \"pay\"\npath = \"/pay\"\n");
    let path = config.display().to_string();
    let gateway = Gateway::start(home.path(), &upstream.url(), &["--config", &path]).await;
    let caller = Caller::of(&gateway.address);
    let first = caller.post("/pay", "operator-alias-0001", ORDER).await;
    assert_eq!(first.status, 201);
    write(
        "[[route]]\nid = \"charge\"\npath = \"/pay\"\nprotection = \"required\"\n[aliases]\n\"pay\" = \"charge\"\n",
    );
    gateway.signal("-HUP");
    let in_force = async {
        while caller.send("POST", "/pay", &[], ORDER).await.expect("an answer").status != 400 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, in_force).await.expect("the new settings count");
    let again = caller.post("/pay", "operator-alias-0001", ORDER).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    let published = caller.send("GET", "/.well-known/idempotency.json", &[], "").await.expect("an answer");
    assert!(published.text().contains("\"charge\""), "{}", published.text());
}
