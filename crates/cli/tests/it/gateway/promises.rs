//! What a client may rely on.

use tokio::task::JoinSet;

use super::rig::{Caller, Gateway, ORDER, Upstream};

/// A gateway in front of a counting service.
async fn scene(more: &[&str]) -> (tempfile::TempDir, Upstream, Gateway, Caller) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(home.path(), &upstream.url(), more).await;
    let caller = Caller::of(&gateway.address);
    (home, upstream, gateway, caller)
}

#[tokio::test]
async fn a_retry_gets_the_stored_answer_byte_for_byte() {
    // G-14
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    let first = caller.post("/headers", "promise-replay-0001", ORDER).await;
    assert_eq!(first.status, 201);
    assert!(!first.is_replay() && first.header("set-cookie").is_some());
    for spelling in ["promise-replay-0001", "\"promise-replay-0001\""] {
        let again = caller.post("/headers", spelling, ORDER).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        let orders: Vec<_> = again.headers.get_all("x-order").iter().collect();
        assert_eq!(orders, ["1", "2"]);
        assert_eq!(again.header("set-cookie"), None, "secrets are not kept");
    }
    let reordered = r#" { "currency" : "EUR", "amount":100 } "#;
    assert!(caller.post("/headers", "promise-replay-0001", reordered).await.is_replay());
    assert_eq!(upstream.count("/headers"), 1);
}

#[tokio::test]
async fn another_request_under_the_key_is_refused_and_the_change_is_named() {
    // G-6
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    caller.post("/pay", "promise-mismatch-01", ORDER).await;
    let other = caller.post("/pay", "promise-mismatch-01", r#"{"amount":"too much","currency":"EUR"}"#).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "key-reused"));
    assert!(other.text().contains("/amount") && !other.text().contains("too much"), "{}", other.text());
    assert_eq!(upstream.count("/pay"), 1);
}

#[tokio::test]
async fn bad_keys_are_refused_before_anything_else() {
    // G-2, G-3
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    for key in ["", "two words", "\"open", &"k".repeat(256)] {
        let refused = caller.post("/pay", key, ORDER).await;
        assert_eq!((refused.status, refused.problem().as_str()), (400, "key-malformed"), "{key:?}");
    }
    let twice = [("idempotency-key", "promise-twice-001"), ("idempotency-key", "promise-twice-002")];
    let refused = caller.send("POST", "/pay", &twice, ORDER).await.expect("an answer");
    assert_eq!((refused.status, refused.problem().as_str()), (400, "key-repeated"));
    assert_eq!(upstream.count("/pay"), 0);
}

#[tokio::test]
async fn what_has_no_key_or_a_safe_method_passes_untouched() {
    // G-3, G-4
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    for _ in 0..2 {
        let heard = caller.send("POST", "/pay", &[], ORDER).await.expect("an answer");
        assert!(heard.status == 201 && !heard.is_replay());
        let key = [("idempotency-key", "promise-safe-00001")];
        assert_eq!(caller.send("GET", "/get", &key, "").await.expect("an answer").status, 201);
    }
    assert_eq!((upstream.count("/pay"), upstream.count("/get")), (2, 2));
}

#[tokio::test]
async fn a_credential_without_a_declared_tenant_is_refused_with_the_choices() {
    // G-5
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let store = format!("sqlite:{}", home.path().join("semel.db").display());
    let gateway =
        Gateway::with(&["--listen", "127.0.0.1:0", "--upstream", &upstream.url(), "--store", &store]).await;
    let caller = Caller::of(&gateway.address);
    let headers = [("idempotency-key", "promise-tenant-001"), ("authorization", "Bearer secret-one")];
    let refused = caller.send("POST", "/pay", &headers, ORDER).await.expect("an answer");
    assert_eq!((refused.status, refused.problem().as_str()), (400, "tenant-undeclared"));
    for choice in ["credential", "none", "header:", "jwt:"] {
        assert!(refused.text().contains(choice), "{choice}: {}", refused.text());
    }
    assert!(!refused.text().contains("secret-one"));
    assert_eq!(upstream.count("/pay"), 0);
    assert_eq!(
        caller.post("/pay", "promise-tenant-002", ORDER).await.status,
        201,
        "no credential, no tenant"
    );
}

#[tokio::test]
async fn tenants_do_not_hear_each_others_answers() {
    // G-1, G-5
    let (_home, upstream, _gateway, caller) = scene(&["--tenant", "credential"]).await;
    let mut answers = Vec::new();
    for credential in ["Bearer one", "Bearer two", "Bearer one"] {
        let headers = [("idempotency-key", "promise-tenants-01"), ("authorization", credential)];
        answers.push(caller.send("POST", "/pay", &headers, ORDER).await.expect("an answer"));
    }
    assert_eq!(upstream.count("/pay"), 2);
    assert!(!answers[0].is_replay() && !answers[1].is_replay() && answers[2].is_replay());
    assert_eq!(answers[0].body, answers[2].body);
    assert_ne!(answers[0].body, answers[1].body);
}

#[tokio::test]
async fn of_a_thousand_simultaneous_requests_one_runs_and_none_fails() {
    // G-8
    let (_home, upstream, _gateway, caller) = scene(&["--wait", "30s"]).await;
    let mut race = JoinSet::new();
    for _ in 0..1000 {
        let caller = caller.clone();
        race.spawn(async move { caller.post("/slow", "promise-race-000001", ORDER).await });
    }
    upstream.comes().await;
    upstream.gate.add_permits(1);
    let answers = race.join_all().await;
    assert_eq!(upstream.count("/slow"), 1);
    assert!(answers.iter().all(|heard| heard.status == 201 && heard.body == answers[0].body));
    assert_eq!(answers.iter().filter(|heard| !heard.is_replay()).count(), 1);
}

#[tokio::test]
async fn a_duplicate_in_flight_is_told_when_to_come_back() {
    // G-14, G-6
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    let first = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/slow", "promise-flight-0001", ORDER).await }
    });
    upstream.comes().await;
    let second = caller.post("/slow", "promise-flight-0001", ORDER).await;
    assert_eq!((second.status, second.problem().as_str()), (409, "in-flight"));
    let wait: u64 = second.header("retry-after").expect("advice").parse().expect("seconds");
    assert!((1..=30).contains(&wait));
    let other = caller.post("/slow", "promise-flight-0001", r#"{"amount":1}"#).await;
    assert_eq!(other.problem(), "key-reused", "another request is refused in flight too");
    upstream.gate.add_permits(1);
    assert_eq!(first.await.expect("answered").status, 201);
    assert!(caller.post("/slow", "promise-flight-0001", ORDER).await.is_replay());
    assert_eq!(upstream.count("/slow"), 1);
}

#[tokio::test]
async fn errors_are_outcomes_unless_nobody_knows_what_they_mean() {
    // G-16
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    for status in [200, 400, 402, 404, 409, 422, 500, 501] {
        let (path, key) = (format!("/status/{status}"), format!("promise-outcome-{status}"));
        let first = caller.post(&path, &key, ORDER).await;
        let again = caller.post(&path, &key, ORDER).await;
        assert_eq!((first.status, again.status), (status, status));
        assert!(again.is_replay() && first.body == again.body, "{status}");
        assert_eq!(upstream.count(&path), 1, "{status}");
    }
    for status in [408, 425, 502, 503, 504, 520, 524] {
        let (path, key) = (format!("/status/{status}"), format!("promise-unknown-{status}"));
        for _ in 0..2 {
            let heard = caller.post(&path, &key, ORDER).await;
            assert_eq!(heard.problem(), "outcome-unknown", "{status}");
        }
        assert_eq!(upstream.count(&path), 1, "{status}");
    }
    for turn in 1..=2 {
        assert_eq!(caller.post("/status/429", "promise-released-429", ORDER).await.status, 429);
        assert_eq!(upstream.count("/status/429"), turn, "nothing happened, so it may run again");
    }
    for _ in 0..2 {
        assert_eq!(caller.post("/cut", "promise-cut-0000001", ORDER).await.problem(), "outcome-unknown");
    }
    assert_eq!(upstream.count("/cut"), 1);
}

#[tokio::test]
async fn hints_count_only_with_the_nonce_and_never_reach_the_client() {
    // G-16, G-21
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    let ask = async |path: &str, key: &str, hint: &str, forged: bool| {
        let mut headers = vec![("idempotency-key", key), ("x-hint", hint)];
        if forged {
            headers.push(("x-forged", "00000000000000000000000000000000"));
        }
        let heard = caller.send("POST", path, &headers, ORDER).await.expect("an answer");
        assert!(heard.headers.keys().all(|name| !name.as_str().starts_with("semel-")), "{heard:?}");
        heard
    };
    let decided = ask("/status/503", "promise-decided-001", "decided", false).await;
    assert_eq!(decided.status, 503);
    assert!(ask("/status/503", "promise-decided-001", "decided", false).await.is_replay());
    assert_eq!(ask("/status/504", "promise-forged-0001", "decided", true).await.problem(), "outcome-unknown");
    for turn in 1..=2 {
        assert_eq!(ask("/status/500", "promise-nothing-001", "nothing-happened", false).await.status, 500);
        assert_eq!(upstream.count("/status/500"), turn);
    }
    let dropped = ask("/status/201", "promise-drop-000001", "do-not-keep", false).await;
    assert_eq!(dropped.status, 201);
    assert_eq!(ask("/status/201", "promise-drop-000001", "", false).await.problem(), "body-not-kept");
    assert_eq!(upstream.count("/status/201"), 1);
}

#[tokio::test]
async fn the_service_gets_the_attempt_and_clients_cannot_pretend_to_be_one() {
    // G-21
    let (_home, _upstream, _gateway, caller) = scene(&[]).await;
    let headers =
        [("idempotency-key", "promise-attempt-001"), ("semel-token", "999999"), ("semel-nonce", "mine")];
    let heard = caller.send("POST", "/echo", &headers, ORDER).await.expect("an answer").text();
    for name in
        ["idempotency-key: promise-attempt-001", "semel-token: ", "semel-nonce: ", "semel-derived-key: "]
    {
        assert!(heard.contains(name), "{name}: {heard}");
    }
    assert!(!heard.contains(": 999999") && !heard.contains("mine"), "{heard}");
    let unkeyed =
        caller.send("POST", "/echo", &[("semel-hint", "decided")], ORDER).await.expect("an answer").text();
    assert!(!unkeyed.contains("semel-"), "{unkeyed}");
}

#[tokio::test]
async fn a_body_too_large_to_keep_is_passed_on_and_nothing_runs_again() {
    // G-19
    let (_home, upstream, _gateway, caller) = scene(&[]).await;
    let first = caller.post("/large", "promise-large-00001", ORDER).await;
    assert_eq!((first.status, first.body.len()), (201, 3 << 20));
    let again = caller.post("/large", "promise-large-00001", ORDER).await;
    assert_eq!((again.status, again.problem().as_str()), (409, "body-not-kept"));
    assert!(again.text().contains("201"), "{}", again.text());
    let order = format!(r#"{{"note":"{}"}}"#, "n".repeat(2 << 20));
    let refused = caller.post("/pay", "promise-large-00002", &order).await;
    assert_eq!((refused.status, refused.problem().as_str()), (413, "request-too-large"));
    assert_eq!((upstream.count("/large"), upstream.count("/pay")), (1, 0));
}

#[tokio::test]
async fn what_was_never_sent_may_be_tried_again() {
    // G-16, G-21
    let home = tempfile::tempdir().expect("a temporary directory");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let gateway = Gateway::start(home.path(), &format!("http://{address}"), &[]).await;
    let caller = Caller::of(&gateway.address);
    let refused = caller.post("/pay", "promise-absent-0001", ORDER).await;
    assert_eq!((refused.status, refused.problem().as_str()), (502, "upstream-unreachable"));
    let listener = tokio::net::TcpListener::bind(address).await.expect("the port again");
    let upstream = Upstream::on(listener);
    let heard = caller.post("/pay", "promise-absent-0001", ORDER).await;
    assert!(heard.status == 201 && !heard.is_replay(), "{heard:?}");
    assert_eq!(upstream.count("/pay"), 1);
}
