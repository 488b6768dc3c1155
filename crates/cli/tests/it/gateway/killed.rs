//! A gateway that dies at a named place, on every engine. What its clients were told stays true, and
//! the service has done at most once what they asked for.
//!
//! Two places of the same kind are in life.rs: while the service works, and after the answer.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::rig::{Caller, Gateway, HUGE, Heard, ORDER, PATIENCE, Upstream, keys, until};
use crate::engines::{Engine, engines};

const SHORT: [&str; 4] = ["--lease", "300ms", "--tenant", "none"];

fn arguments<'a>(upstream: &'a str, store: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["--listen", "127.0.0.1:0", "--upstream", upstream, "--store", store];
    arguments.extend(SHORT);
    arguments
}

/// On every engine, with a store of its own.
async fn on_every_engine(suite: &str, case: impl AsyncFn(&Engine, &str, &std::path::Path) -> u64) {
    for engine in engines() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let store = engine.fresh(home.path());
        let cases = case(&engine, &store, home.path()).await;
        engine.remove(&store);
        semel_testkit::ledger(suite, engine.name, cases);
    }
}

#[tokio::test]
async fn a_crash_after_the_claim_and_before_sending_is_unknown_until_a_person_looks() {
    // G-15, G-21
    on_every_engine("gateway killed before sending", async |_, store, home| {
        // It takes connections and says nothing: no byte of a request leaves before the handshake.
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("https://{}", silent.local_addr().expect("an address"));
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        let ca = home.join("ca.pem");
        std::fs::write(&ca, made.cert.pem()).expect("it is written");
        let ca = ca.display().to_string();
        let mut given = arguments(&address, store);
        given.extend(["--upstream-ca", &ca]);
        let mut gateway = Gateway::with(&given).await;
        let caller = Caller::of(&gateway.address);
        let key = "killed-unsent-00001";
        let lost =
            tokio::spawn(
                async move { caller.send("POST", "/pay", &[("idempotency-key", key)], ORDER).await },
            );
        let connected = tokio::time::timeout(PATIENCE, silent.accept()).await;
        let (_line, _) = connected.expect("it connects in time").expect("it connects");
        gateway.child.kill().await.expect("it is killed");
        assert!(lost.await.expect("no panic").is_err(), "the client hears nothing");

        let upstream = Upstream::start().await;
        let gateway = Gateway::with(&arguments(&upstream.url(), store)).await;
        let caller = Caller::of(&gateway.address);
        let unknown = until(&caller, "/pay", key, |heard| heard.problem() != "in-flight").await;
        assert_eq!((unknown.status, unknown.problem().as_str()), (409, "outcome-unknown"));
        assert_eq!(upstream.count("/pay"), 0);
        keys(&["free", key, "--by", "test", "--store", store]).await;
        let heard = caller.post("/pay", key, ORDER).await;
        assert!(heard.status == 201 && !heard.is_replay(), "{heard:?}");
        assert!(caller.post("/pay", key, ORDER).await.is_replay());
        assert_eq!(upstream.count("/pay"), 1);
        1
    })
    .await;
}

/// What a retry hears after a crash at each point of an engine, and whether the effect had happened.
#[cfg(debug_assertions)]
const EXPECTED: [(&str, bool); 4] =
    [("fresh", false), ("unknown", false), ("unknown", true), ("replayed", true)];

#[cfg(debug_assertions)]
fn told(heard: &Heard) -> &'static str {
    match (heard.status, heard.is_replay()) {
        (201, false) => "fresh",
        (201, true) => "replayed",
        (409, _) if heard.problem() == "outcome-unknown" => "unknown",
        _ => panic!("{heard:?}"),
    }
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn a_crash_at_a_commit_leaves_the_truth_for_the_next_attempt() {
    // G-9, G-15, G-17: before and after the claim is stored, before and after the outcome is.
    for (at, (expected, happened)) in EXPECTED.into_iter().enumerate() {
        on_every_engine("gateway killed at a commit", async |engine, store, home| {
            let (point, passes) = engine.crash_points[at];
            let upstream = Upstream::start().await;
            let url = upstream.url();
            let given = arguments(&url, store);
            let armed = home.join("armed");
            let mut command = Gateway::command(&given);
            command.env("SEMEL_CRASH_AT", point).env("SEMEL_CRASH_AFTER", passes.to_string());
            let mut gateway = Gateway::ready(command.env("SEMEL_CRASH_WHEN", &armed)).await;
            let key = "killed-commit-00001";
            let caller = Caller::of(&gateway.address);
            // Behind what a gateway does at its start, so that the next commits are those of a request.
            assert_eq!(caller.post("/other", "killed-other-000001", ORDER).await.status, 201);
            std::fs::write(&armed, "").expect("it is written");
            let lost = caller.send("POST", "/pay", &[("idempotency-key", key)], ORDER).await;
            assert!(lost.is_err(), "{point} {passes}: nobody is told anything, not {lost:?}");
            let ended = tokio::time::timeout(PATIENCE, gateway.child.wait()).await.expect("it dies");
            assert!(!ended.expect("it is waited for").success());
            assert_eq!(upstream.count("/pay"), u64::from(happened), "{point} {passes}");

            let gateway = Gateway::with(&given).await;
            let caller = Caller::of(&gateway.address);
            let is_settled = |heard: &Heard| heard.status == 201 || heard.problem() != "in-flight";
            let heard = until(&caller, "/pay", key, is_settled).await;
            assert_eq!(told(&heard), expected, "{} {point} {passes}", engine.name);
            let again = caller.post("/pay", key, ORDER).await;
            assert!(again.status != 201 || (again.is_replay() && again.body == heard.body), "{again:?}");
            assert_eq!(upstream.count("/pay"), u64::from(happened || expected == "fresh"));
            1
        })
        .await;
    }
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_replay_leaves_the_answer_as_it_was() {
    // G-14, G-17
    on_every_engine("gateway killed in a replay", async |_, store, _| {
        let upstream = Upstream::start().await;
        let url = upstream.url();
        let mut given = arguments(&url, store);
        given.extend(["--outcome-bytes-max", "32MiB"]);
        let mut gateway = Gateway::with(&given).await;
        let key = "killed-replay-00001";
        // Storing so much may take longer than the first client waits.
        let first = until(&Caller::of(&gateway.address), "/huge", key, |heard| heard.status == 201).await;
        assert_eq!(first.body.len(), HUGE);

        let mut line = TcpStream::connect(&gateway.address).await.expect("it connects");
        let head = format!(
            "POST /huge HTTP/1.1\r\nhost: gateway\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{ORDER}",
            ORDER.len()
        );
        line.write_all(head.as_bytes()).await.expect("it is sent");
        let mut some = vec![0; 1000];
        line.read_exact(&mut some).await.expect("the replay begins");
        let begun = String::from_utf8_lossy(&some).to_ascii_lowercase();
        assert!(begun.starts_with("http/1.1 201") && begun.contains("idempotent-replayed: true"), "{begun}");
        gateway.child.kill().await.expect("it is killed");
        let mut rest = Vec::new();
        let _ = line.read_to_end(&mut rest).await;
        assert!(some.len() + rest.len() < HUGE, "it was in the middle");

        let gateway = Gateway::with(&given).await;
        let again = Caller::of(&gateway.address).post("/huge", key, ORDER).await;
        assert!(again.is_replay() && again.body == first.body, "{} bytes", again.body.len());
        assert_eq!(upstream.count("/huge"), 1);
        1
    })
    .await;
}
