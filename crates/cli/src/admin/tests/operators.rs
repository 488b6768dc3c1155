//! G-81: an operator finds an operation by key, sees its history and evidence, settles, frees and
//! purges; all of it audited.

use std::time::Duration;

use http::StatusCode;
use semel::claim::Claim;
use semel::history::Kind;
use semel::outcome::Unreadable;
use semel::subject::NotRead;
use semel::verbs::Completion;
use semel::{EffectStore, Outcome, State, SubjectKeys};
use semel_testkit::{Fault, Verb};
use serde_json::{Value, json};

use super::rig::{Rig, operation, policy, shredded};

fn keys(page: &Value) -> Vec<&str> {
    let operations = page["operations"].as_array().expect("a page lists operations");
    operations.iter().map(|each| each["key"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_operation_is_found_by_its_key_and_whatever_else_is_known_of_it() {
    // G-81
    let rig = Rig::new().await;
    rig.unknown(&operation(Some("alice"), "charge", "k-1")).await;
    let done = rig.claim(&operation(Some("bob"), "charge", "k-1")).await;
    rig.complete(done, "charge", "ok").await;
    rig.claim(&operation(None, "refund", "k-2")).await;
    let mut tenants = Vec::new();
    for form in ["k-1", "%22k-1%22"] {
        let page = rig.get(&format!("/v1/operations?key={form}")).await.json();
        tenants.push(
            page["operations"]
                .as_array()
                .unwrap()
                .iter()
                .map(|each| each["tenant"].clone())
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(tenants[0], ["alice", "bob"], "a key is one operation per tenant");
    assert_eq!(tenants[1], tenants[0], "quoted and bare are the same key");
    for (query, expected) in [
        ("route=refund", vec!["k-2"]),
        ("tenant=alice", vec!["k-1"]),
        ("tenant=", vec!["k-2"]),
        ("state=unknown,in_progress", vec!["k-1", "k-2"]),
        ("state=completed&route=charge", vec!["k-1"]),
        ("key=k-1&tenant=bob&route=charge", vec!["k-1"]),
        ("key=k-1&tenant=bob&route=charge&state=unknown", vec![]),
        ("key=k-3", vec![]),
        ("namespace=elsewhere", vec![]),
    ] {
        let page = rig.get(&format!("/v1/operations?{query}")).await.json();
        assert_eq!(keys(&page), expected, "{query}");
    }
}

#[tokio::test]
async fn a_list_is_paged_and_no_operation_is_left_out() {
    // G-81
    let rig = Rig::new().await;
    for number in 0..60 {
        let route = if number % 20 == 19 { "rare" } else { "charge" };
        rig.unknown(&operation(None, route, &format!("k-{number}"))).await;
    }
    for (query, size, expected) in [("", 7, 60), ("&route=rare", 1, 3), ("&state=unknown", 500, 60)] {
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/v1/operations?after={after}&limit={size}{query}");
            let page = rig.get(&path).await.json();
            assert!(keys(&page).len() <= size, "{page}");
            found.extend(keys(&page).into_iter().map(str::to_owned));
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(found.len(), expected, "{query}");
        found.sort();
        found.dedup();
        assert_eq!(found.len(), expected, "none twice: {query}");
    }
}

#[tokio::test]
async fn history_and_evidence_are_shown_and_bodies_only_when_asked_for() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(Some("alice"), "charge", "k-1");
    let first = rig.unknown(&charge).await;
    let path = format!("/v1/operations/{}", charge.id());
    let freed = rig.post(&format!("{path}/free"), json!({ "token": first.token.0, "by": "ops" })).await;
    assert_eq!(freed.status, StatusCode::OK, "{}", freed.text);
    let second = rig.claim(&charge).await;
    rig.complete(second, "charge", "charged 4242 once").await;
    let late = rig.complete(first, "charge", "charged 4242 twice").await;
    assert!(matches!(late, Completion::Refused(_)));

    let plain = rig.get(&path).await;
    assert!(!plain.text.contains("charged 4242"), "{}", plain.text);
    let shown = plain.json();
    assert_eq!(shown["state"], "completed");
    assert_eq!(shown["attempts"], 2);
    assert_eq!(shown["possible_double_effect"], true);
    assert_eq!(shown["outcome"]["body_bytes"], 17);
    let history = shown["history"].as_array().unwrap();
    let whats: Vec<_> = history.iter().map(|event| event["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["reported_unknown", "settled_never", "reclaimed", "refused_outcome"]);
    assert_eq!(history[0]["note"], "the answer got lost");
    assert_eq!(history[3]["token"], first.token.0);

    let whole = rig.get(&format!("{path}?body=1")).await.json();
    assert_eq!(whole["outcome"]["body"], "charged 4242 once");
    assert_eq!(whole["history"][3]["evidence"]["body"], "charged 4242 twice");
    let looks: Vec<_> = rig.audited().into_iter().filter(|event| event["action"] == "read-bodies").collect();
    assert_eq!(looks.len(), 1, "who reads bodies is seen");
    assert_eq!(looks[0]["operation"], charge.id().to_string());
}

#[tokio::test]
async fn a_sealed_outcome_is_named_as_sealed_and_stays_so() {
    // G-20, G-81
    let rig = Rig::new().await;
    let secret = operation(None, "sealed", "k-1");
    let holder = rig.claim(&secret).await;
    rig.complete(holder, "sealed", "card 4242").await;
    let shown = rig.get(&format!("/v1/operations/{}?body=1", secret.id())).await;
    assert!(!shown.text.contains("card 4242"));
    let outcome = &shown.json()["outcome"];
    assert_eq!((&outcome["sealed"], &outcome["seal_key"]), (&json!(true), &json!("2026-11")));
}

#[tokio::test]
async fn an_unknown_settled_as_done_is_replayed_with_what_was_found() {
    // G-81
    for route in ["charge", "sealed"] {
        let rig = Rig::new().await;
        let charge = operation(Some("alice"), route, "k-1");
        let holder = rig.unknown(&charge).await;
        let path = format!("/v1/operations/{}/settle", charge.id());
        let finding = json!({
            "token": holder.token.0,
            "finding": "done",
            "outcome": { "status": 201, "headers": { "content-type": "application/json" }, "body": "{\"id\":7}" },
            "by": "maria",
            "note": "seen at the bank, ticket 12",
        });
        let settled = rig.post(&path, finding.clone()).await;
        assert_eq!(settled.status, StatusCode::OK, "{}", settled.text);
        assert_eq!(settled.json()["operation"]["state"], "completed");
        let again = rig.post(&path, finding).await;
        assert_eq!(again.status, StatusCode::OK, "the same call is told that it was made: {}", again.text);

        let record = rig.record(&charge).await;
        let stored = record.outcome.expect("the outcome is stored");
        assert_eq!(Outcome::decode(&stored).is_err(), route == "sealed", "kept as the route keeps outcomes");
        let outcome = policy(route).read(&stored, charge.id()).await.unwrap();
        assert_eq!((outcome.status, outcome.body_bytes().unwrap().as_ref()), (201, b"{\"id\":7}".as_slice()));
        assert!(matches!(rig.try_claim(&charge).await, Claim::Completed { .. }));

        let other = json!({ "token": holder.token.0, "finding": "never", "by": "eve" });
        let refused = rig.post(&path, other).await;
        assert_eq!(
            (refused.status, refused.problem().as_str()),
            (StatusCode::CONFLICT, "operation-moved-on")
        );
        assert_eq!(refused.json()["state"], "completed");
    }
}

#[tokio::test]
async fn who_settled_and_why_stands_in_the_history_and_in_the_audit_log() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(Some("alice"), "charge", "k-1");
    let holder = rig.unknown(&charge).await;
    let path = format!("/v1/operations/{}/settle", charge.id());
    let body = json!({ "token": holder.token.0, "finding": "never", "by": "maria", "note": "bank says no" });
    assert_eq!(rig.post(&path, body.clone()).await.status, StatusCode::OK);
    let record = rig.record(&charge).await;
    let last = record.history.events().last().expect("the settlement is noted");
    assert_eq!((last.kind, last.note.as_str()), (Kind::SettledNever, "maria: bank says no"));

    let mut refused = body;
    refused["by"] = "eve".into();
    assert_eq!(rig.post(&path, refused).await.status, StatusCode::CONFLICT);
    let audited = rig.audited();
    let told: Vec<_> = audited.iter().map(|event| (event["by"].as_str(), event["result"].as_str())).collect();
    assert_eq!(told, [(Some("maria"), Some("made")), (Some("eve"), Some("refused"))]);
    let event = &audited[0];
    assert_eq!(event["action"], "settle");
    assert_eq!(event["operation"], charge.id().to_string());
    assert_eq!(
        (&event["key"], &event["route"], &event["tenant"]),
        (&json!("k-1"), &json!("charge"), &json!("alice"))
    );
    assert_eq!(event["token"], holder.token.0);
    assert_eq!(event["note"], "bank says no");
    assert_eq!(event["peer"], "192.0.2.7:4711");
    let counted = r#"semel_admin_calls_total{action="settle",result="made"} 1"#;
    assert!(rig.metrics.text().contains(counted));
}

#[tokio::test]
async fn a_settlement_whose_answer_got_lost_can_be_sent_again() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let holder = rig.unknown(&charge).await;
    let path = format!("/v1/operations/{}/free", charge.id());
    let body = json!({ "token": holder.token.0, "by": "ops", "note": "bank says no" });
    // The record is read first, then comes the settlement.
    let mut faults = vec![Fault::LoseAnswer, Fault::None];
    rig.network.plan(move |_| faults.pop().unwrap_or(Fault::None));
    let lost = rig.post(&path, body.clone()).await;
    assert_eq!(
        (lost.status, lost.problem().as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable")
    );
    assert_eq!(lost.json()["may_have_been_applied"], true);
    assert_eq!(rig.record(&charge).await.state, State::Released, "it was applied");
    let again = rig.post(&path, body).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text);
    assert_eq!(rig.record(&charge).await.history.events().len(), 2, "noted once");
    let results: Vec<_> = rig.audited().iter().map(|event| event["result"].clone()).collect();
    assert_eq!(results, ["failed", "made"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_caller_hung_up_is_finished_and_audited() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let holder = rig.unknown(&charge).await;
    // The record is read first; the settlement takes a second.
    let second = Duration::from_secs(1);
    let mut faults = vec![Fault::Delay(second), Fault::None];
    rig.network.plan(move |_| faults.pop().unwrap_or(Fault::None));
    let body = json!({ "token": holder.token.0, "by": "ops" });
    let path = format!("/v1/operations/{}/free", charge.id());
    let calling = rig.post(&path, body);
    let asked = async {
        while rig.network.calls(Verb::Other) < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = asked => {}
        answer = calling => panic!("it was answered: {}", answer.text),
    }
    tokio::time::sleep(2 * second).await;
    assert_eq!(rig.record(&charge).await.state, State::Released);
    let told: Vec<_> =
        rig.audited().iter().map(|event| (event["by"].clone(), event["result"].clone())).collect();
    assert_eq!(told, [(json!("ops"), json!("made"))]);
}

#[tokio::test]
async fn freeing_lets_the_next_attempt_run_and_is_about_the_attempt_that_was_seen() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let first = rig.unknown(&charge).await;
    let path = format!("/v1/operations/{}/free", charge.id());
    let free = |token: u64| rig.post(&path, json!({ "token": token, "by": "ops" }));
    assert_eq!(free(first.token.0).await.status, StatusCode::OK);
    assert_eq!(rig.record(&charge).await.state, State::Released);
    let second = rig.unknown(&charge).await;
    let other_words = json!({ "token": first.token.0, "by": "ops", "note": "again" });
    let stale = rig.post(&path, other_words).await;
    assert_eq!(stale.problem(), "operation-moved-on");
    assert_eq!(stale.json()["token"], second.token.0, "it names the attempt to look at");
    assert_eq!(rig.record(&charge).await.state, State::Unknown, "what nobody looked at is not freed");
    assert_eq!(free(second.token.0).await.status, StatusCode::OK);
    assert_eq!(rig.audited().iter().filter(|event| event["action"] == "free").count(), 3);
}

#[tokio::test]
async fn a_running_attempt_cannot_be_settled_freed_or_purged() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let holder = rig.claim(&charge).await;
    let signed = json!({ "token": holder.token.0, "by": "ops" });
    for (verb, body) in [("free", signed.clone()), ("purge", json!({ "by": "ops" }))] {
        let refused = rig.post(&format!("/v1/operations/{}/{verb}", charge.id()), body).await;
        assert_eq!(refused.problem(), "operation-moved-on", "{verb}");
        assert_eq!(refused.json()["state"], "in_progress");
    }
    assert_eq!(rig.record(&charge).await.state, State::InProgress);
}

#[tokio::test]
async fn a_purge_removes_the_body_and_keeps_that_the_key_was_used() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let holder = rig.claim(&charge).await;
    rig.complete(holder, "charge", "card 4242").await;
    let path = format!("/v1/operations/{}", charge.id());
    let body = json!({ "by": "dpo", "note": "request 9" });
    let purged = rig.post(&format!("{path}/purge"), body).await;
    assert_eq!(purged.json()["operation"]["state"], "tombstone");
    let shown = rig.get(&format!("{path}?body=1")).await;
    assert!(!shown.text.contains("card 4242"));
    assert_eq!(shown.json()["history"][0]["note"], "dpo: request 9");
    assert!(matches!(rig.try_claim(&charge).await, Claim::Purged { .. }));
    assert_eq!(rig.audited()[0]["action"], "purge");
}

#[tokio::test]
async fn a_subject_is_purged_everywhere_and_not_named_in_the_log() {
    // G-81
    let rig = Rig::new().await;
    for number in 0..3 {
        let holder = rig.claim(&operation(None, "charge", &format!("k-{number}"))).await;
        rig.complete(holder, "charge", "card 4242").await;
    }
    rig.unknown(&operation(None, "charge", "k-open")).await;
    let answer = rig.post("/v1/subjects/customer%2D7/purge", json!({ "by": "dpo" })).await;
    assert_eq!(answer.json(), json!({ "purged": 3, "open": 1, "more": false, "key": "none" }));
    let page = rig.get("/v1/operations?state=tombstone").await.json();
    assert_eq!(keys(&page).len(), 3);
    let events = rig.audited();
    for (event, action) in events[events.len() - 2..].iter().zip(["purge-subject", "forget-key"]) {
        assert_eq!((&event["action"], &event["result"]), (&json!(action), &json!("made")));
        assert!(!event.to_string().contains("customer-7"), "{event}");
        assert_eq!(event["subject_digest"].as_str().map(str::len), Some(32));
    }
}

#[tokio::test]
async fn a_purge_by_subject_forgets_its_key_and_can_be_repeated_until_it_has() {
    // G-20, G-81
    let rig = Rig::new().await;
    let late = operation(None, "shredded", "k-late");
    let holder = rig.unknown(&late).await;
    let path = format!("/v1/operations/{}/settle", late.id());
    let finding = json!({
        "token": holder.token.0, "finding": "done", "outcome": { "status": 201, "body": "card 4242" }, "by": "maria",
    });
    rig.keys.go_away(true);
    let away = rig.post(&path, finding.clone()).await;
    assert_eq!(
        away.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "nothing is kept that cannot be sealed: {}",
        away.text
    );
    assert_eq!(rig.record(&late).await.state, State::Unknown);
    rig.keys.go_away(false);
    assert_eq!(rig.post(&path, finding).await.status, StatusCode::OK);
    let stored = rig.record(&late).await.outcome.expect("the outcome is stored");
    let key = semel::seal::subject_key(&stored).expect("a settled outcome is sealed for its subject too");
    let read = shredded(&rig.keys).read(&stored, late.id()).await.unwrap();
    assert_eq!(read.body_bytes().unwrap().as_ref(), b"card 4242");

    rig.keys.go_away(true);
    let cut = rig.post("/v1/subjects/customer-7/purge", json!({ "by": "dpo" })).await;
    assert_eq!(cut.status, StatusCode::SERVICE_UNAVAILABLE, "half of it is not told as done: {}", cut.text);
    let event = rig.audited().pop().unwrap();
    assert_eq!((&event["action"], &event["result"]), (&json!("forget-key"), &json!("failed")));
    rig.keys.go_away(false);
    let done = rig.post("/v1/subjects/customer-7/purge", json!({ "by": "dpo" })).await;
    assert_eq!(done.json(), json!({ "purged": 0, "open": 0, "more": false, "key": "forgotten" }));
    assert_eq!(rig.keys.find(key).await.unwrap(), None);
    // What a backup of the store still holds.
    let unreadable = shredded(&rig.keys).read(&stored, late.id()).await.unwrap_err();
    assert!(
        matches!(unreadable, NotRead::Unreadable(Unreadable::SubjectKeyMissing { .. })),
        "{unreadable:?}"
    );
    let again = rig.post("/v1/subjects/customer-7/purge", json!({ "by": "dpo" })).await;
    assert_eq!(again.json()["key"], "none", "repeating does nothing more");
}

#[tokio::test]
async fn a_restored_store_is_seen_and_accepted_by_name() {
    // G-13, G-81
    let rig = Rig::new().await;
    let backup = rig.store.snapshot();
    let charge = operation(None, "charge", "k-1");
    rig.claim(&charge).await;
    let early = rig.post("/v1/store/acknowledge", json!({ "by": "ops" })).await;
    assert_eq!(early.problem(), "store-not-closed");
    rig.store.restore(backup);
    let status = rig.get("/v1/status").await.json();
    assert_eq!((&status["engine"], &status["went_back_from"]["token"]), (&json!("memory"), &json!(1)));
    assert_eq!(status["counts"]["granted"], 7);
    let closed = rig.get(&format!("/v1/operations/{}", charge.id())).await;
    assert_eq!(
        (closed.status, closed.problem().as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "store-went-back")
    );
    assert_eq!(rig.get("/readyz").await.status, StatusCode::SERVICE_UNAVAILABLE);
    let accepted = rig.post("/v1/store/acknowledge", json!({ "by": "ops", "note": "reconciled" })).await;
    assert_eq!(accepted.json()["epoch"], 2, "{}", accepted.text);
    assert!(rig.store.status().await.unwrap().went_back_from.is_none());
    let event = rig.audited().pop().unwrap();
    assert_eq!(
        (&event["action"], &event["by"], &event["note"]),
        (&json!("acknowledge"), &json!("ops"), &json!("reconciled"))
    );
}
