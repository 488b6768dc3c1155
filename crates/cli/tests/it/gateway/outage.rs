//! The store goes away under a running gateway, and comes back.

use super::rig::{Caller, Gateway, ORDER, Upstream, until};

#[tokio::test]
async fn without_its_store_nothing_runs_and_with_it_all_is_as_before() {
    // G-18
    let home = tempfile::tempdir().expect("a temporary directory");
    let (place, away) = (home.path().join("store"), home.path().join("away"));
    std::fs::create_dir(&place).expect("it is made");
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(&place, &upstream.url(), &["--store-patience", "200ms"]).await;
    let caller = Caller::of(&gateway.address);
    let first = caller.post("/pay", "outage-before-00001", ORDER).await;
    assert_eq!(first.status, 201);

    std::fs::rename(&place, &away).expect("it is moved");
    for _ in 0..3 {
        let refused = caller.post("/pay", "outage-during-00001", ORDER).await;
        assert_eq!((refused.status, refused.problem().as_str()), (503, "store-unavailable"));
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
    }
    assert_eq!(upstream.count("/pay"), 1, "nothing runs");
    let unkeyed = caller.send("POST", "/plain", &[], ORDER).await.expect("an answer");
    assert_eq!(unkeyed.status, 201, "what needs no store passes");

    std::fs::rename(&away, &place).expect("it is moved back");
    let heard = until(&caller, "/pay", "outage-during-00001", |heard| heard.status != 503).await;
    assert!(heard.status == 201 && !heard.is_replay(), "{heard:?}");
    let again = caller.post("/pay", "outage-before-00001", ORDER).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    assert!(caller.post("/pay", "outage-during-00001", ORDER).await.is_replay());
    assert_eq!(upstream.count("/pay"), 2);
}
