//! Subjects with keys of their own: what a data-protection request leaves, in the store, in its backups and
//! in the place of the keys.

use std::path::Path;

use semel::Token;
use semel::seal;
use semel::store::Filter;
use semel::subject::{KeyId, Wrapped};
use serde_json::json;

use super::rig::{Caller, Gateway, Heard, ORDER, PATIENCE, Upstream, keys};
use crate::engines::engines;

/// A gateway that seals with the keys of subjects.
struct Scene {
    home: tempfile::TempDir,
    upstream: Upstream,
    place: String,
    master: String,
}

impl Scene {
    async fn new(place: &dyn Fn(&Path) -> String) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        // Not where the store of the same name is.
        std::fs::create_dir(home.path().join("keys")).expect("it is made");
        let place = place(&home.path().join("keys"));
        let master = home.path().join("master");
        std::fs::write(&master, "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").expect("it is written");
        let master = format!("m-1=file:{}", master.display());
        Self { home, upstream: Upstream::start().await, place, master }
    }

    fn store(&self, file: &str) -> String {
        format!("sqlite:{}", self.home.path().join(file).display())
    }

    fn arguments(&self, file: &str) -> Vec<String> {
        let (store, upstream) = (self.store(file), self.upstream.url());
        let given = [
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--tenant",
            "none",
            "--encrypt",
            "--subject-header",
            "x-customer",
            "--upstream",
            &upstream,
            "--store",
            &store,
            "--encryption-key",
            &self.master,
            "--subject-keys",
            &self.place,
        ];
        given.map(str::to_owned).to_vec()
    }

    async fn gateway(&self, file: &str) -> (Gateway, Caller) {
        let arguments = self.arguments(file);
        let gateway = Gateway::with(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let caller = Caller::of(&gateway.address);
        (gateway, caller)
    }

    /// The keys there are.
    async fn keys(&self) -> Vec<Wrapped> {
        let place = semel::stores::open_subject_keys(&self.place).await.expect("the place opens");
        place.wrapped_by("m-1", KeyId::FIRST, 100).await.expect("the place answers")
    }

    /// Whether the file of keys, or anything beside it, holds these bytes.
    fn is_on_disk(&self, bytes: &[u8]) -> bool {
        std::fs::read_dir(self.home.path().join("keys")).expect("it is there").any(|entry| {
            let held = std::fs::read(entry.expect("an entry").path()).expect("it is read");
            held.windows(bytes.len()).any(|window| window == bytes)
        })
    }
}

async fn order(caller: &Caller, path: &str, key: &str, customer: &str) -> Heard {
    let headers = [("idempotency-key", key), ("x-customer", customer)];
    caller.send("POST", path, &headers, ORDER).await.expect("an answer")
}

fn in_a_file(dir: &Path) -> String {
    format!("sqlite:{}", dir.join("keys.db").display())
}

#[tokio::test]
async fn a_subject_who_is_forgotten_is_unreadable_everywhere_and_nothing_runs_again() {
    // G-20, G-81
    for engine in engines() {
        let scene = Scene::new(&|dir| engine.fresh(dir)).await;
        let (mut gateway, caller) = scene.gateway("semel.db").await;
        let paid = order(&caller, "/pay", "subject-anna-000001", "anna").await;
        assert_eq!(paid.status, 201, "{paid:?}");
        assert!(order(&caller, "/pay", "subject-anna-000001", "anna").await.is_replay());
        assert_eq!(order(&caller, "/pay", "subject-ben-0000001", "ben").await.status, 201);
        let before = scene.keys().await;
        assert_eq!(before.len(), 2, "one for each");

        // The backup of a careful operator: from before anybody asked to be forgotten.
        gateway.child.kill().await.expect("it is killed");
        for end in ["", "-wal"] {
            let from = scene.home.path().join(format!("semel.db{end}"));
            if from.exists() {
                std::fs::copy(from, scene.home.path().join(format!("backup.db{end}"))).expect("it is copied");
            }
        }
        let (gateway, caller) = scene.gateway("semel.db").await;
        assert!(order(&caller, "/pay", "subject-anna-000001", "anna").await.is_replay(), "after a restart");

        // One more is on its way when the request comes.
        let (slow, late) = (caller.clone(), "subject-anna-000002");
        let running = tokio::spawn(async move { order(&slow, "/slow", late, "anna").await });
        while scene.upstream.count("/slow") == 0 {
            scene.upstream.comes().await;
        }
        let admin = gateway.admin.clone().expect("an admin listener");
        let purge = ["purge", "--subject", "anna", "--by", "dpo", "--admin", &admin];
        let purged = keys(&purge).await;
        assert_eq!(purged, json!({ "purged": 1, "open": 1, "more": false, "key": "forgotten" }));
        scene.upstream.gate.add_permits(1);
        let heard = running.await.expect("no panic");
        assert_eq!(heard.status, 201, "who asked hears what came of it: {heard:?}");
        let after = scene.keys().await;
        assert_eq!(after.len(), 1, "only the other's is left");
        let gone = before.iter().find(|key| !after.contains(key)).expect("one is gone");
        if engine.name == "sqlite" {
            assert!(!scene.is_on_disk(&gone.sealed), "its bytes are gone from the file and its log");
            assert!(scene.is_on_disk(&after[0].sealed), "the search finds what is there");
        }
        drop(gateway);

        for restart in 0..2 {
            let (_gateway, caller) = scene.gateway("semel.db").await;
            let unread = order(&caller, "/slow", late, "anna").await;
            assert_eq!((unread.status, unread.problem().as_str()), (500, "outcome-unreadable"), "{restart}");
            let purged = order(&caller, "/pay", "subject-anna-000001", "anna").await;
            assert_eq!((purged.status, purged.problem().as_str()), (409, "outcome-purged"), "{restart}");
            assert!(order(&caller, "/pay", "subject-ben-0000001", "ben").await.is_replay());
        }
        let (gateway, caller) = scene.gateway("backup.db").await;
        let unread = order(&caller, "/pay", "subject-anna-000001", "anna").await;
        assert_eq!(
            (unread.status, unread.problem().as_str()),
            (500, "outcome-unreadable"),
            "in the backup too"
        );
        assert!(order(&caller, "/pay", "subject-ben-0000001", "ben").await.is_replay());
        assert_eq!(
            (scene.upstream.count("/pay"), scene.upstream.count("/slow")),
            (2, 1),
            "nothing ran again"
        );

        // Whoever comes back is a new subject.
        assert_eq!(order(&caller, "/pay", "subject-anna-000003", "anna").await.status, 201);
        assert!(order(&caller, "/pay", "subject-anna-000003", "anna").await.is_replay());
        assert_eq!(order(&caller, "/pay", "subject-anna-000001", "anna").await.status, 500);
        drop(gateway);
        engine.remove(&scene.place);
        semel_testkit::ledger("subject keys of a gateway", engine.name, 1);
    }
}

#[tokio::test]
async fn with_the_keys_away_nothing_is_sent_and_it_goes_on_when_they_are_back() {
    // G-20
    let scene = Scene::new(&in_a_file).await;
    let (_gateway, caller) = scene.gateway("semel.db").await;
    assert_eq!(order(&caller, "/pay", "subject-anna-000001", "anna").await.status, 201);
    let (there, away) = (scene.home.path().join("keys/keys.db"), scene.home.path().join("keys/away.db"));
    std::fs::rename(&there, &away).expect("it is moved");
    for key in ["subject-anna-000001", "subject-anna-000002"] {
        let heard = order(&caller, "/pay", key, "anna").await;
        assert_eq!((heard.status, heard.problem().as_str()), (503, "store-unavailable"), "{key}");
        assert!(heard.header("retry-after").is_some());
    }
    assert_eq!(
        caller.post("/pay", "nobodys-key-0000001", ORDER).await.status,
        201,
        "others need no such key"
    );
    std::fs::rename(&away, &there).expect("it is moved back");
    assert!(order(&caller, "/pay", "subject-anna-000001", "anna").await.is_replay());
    assert_eq!(order(&caller, "/pay", "subject-anna-000002", "anna").await.status, 201);
    assert_eq!(scene.upstream.count("/pay"), 3);
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn a_crash_around_a_key_runs_nothing_and_a_purge_is_repeated() {
    // G-20
    for point in ["keys-before-obtain", "keys-obtained", "keys-before-forget", "keys-before-emptied"] {
        let scene = Scene::new(&in_a_file).await;
        let (gateway, caller) = scene.gateway("semel.db").await;
        assert_eq!(order(&caller, "/pay", "subject-anna-000001", "anna").await.status, 201);
        let key = scene.keys().await.remove(0);
        drop(gateway);
        let arguments = scene.arguments("semel.db");
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = Gateway::command(&arguments);
        let mut gateway = Gateway::ready(command.env("SEMEL_CRASH_AT", point)).await;
        let caller = Caller::of(&gateway.address);
        let admin = gateway.admin.clone().expect("an admin listener");
        if point.contains("obtain") {
            let headers = [("idempotency-key", "subject-ben-0000001"), ("x-customer", "ben")];
            assert!(caller.send("POST", "/other", &headers, ORDER).await.is_err(), "{point}");
        } else {
            let mut purge = tokio::process::Command::new(env!("CARGO_BIN_EXE_semel"));
            let told = purge.args(["keys", "purge", "--subject", "anna", "--by", "dpo", "--admin", &admin]);
            assert!(
                !told.output().await.expect("it runs").status.success(),
                "{point}: it is not told as done"
            );
        }
        let ended = tokio::time::timeout(PATIENCE, gateway.child.wait()).await.expect("it dies");
        assert!(!ended.expect("it is waited for").success());
        let (gateway, caller) = scene.gateway("semel.db").await;
        assert_eq!(order(&caller, "/other", "subject-ben-0000001", "ben").await.status, 201, "{point}");
        assert_eq!(scene.upstream.count("/other"), 1, "{point}");
        let admin = gateway.admin.clone().expect("an admin listener");
        let purged = keys(&["purge", "--subject", "anna", "--by", "dpo", "--admin", &admin]).await;
        let expected = if point == "keys-before-emptied" { "none" } else { "forgotten" };
        assert_eq!(purged["key"], expected, "{point}");
        assert!(!scene.is_on_disk(&key.sealed), "{point}");
        assert!(!scene.keys().await.contains(&key), "{point}");
    }
}

#[tokio::test]
async fn a_new_master_key_wraps_what_the_old_one_did_and_the_old_one_can_go() {
    // G-20
    let mut scene = Scene::new(&in_a_file).await;
    let (gateway, caller) = scene.gateway("semel.db").await;
    assert_eq!(order(&caller, "/pay", "subject-anna-000001", "anna").await.status, 201);
    let old = scene.keys().await.remove(0);
    drop(gateway);
    let file = scene.home.path().join("newer");
    std::fs::write(&file, "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXowMTIzNDU=").expect("it is written");
    let newer = format!("m-2=file:{}", file.display());
    scene.master = format!("{newer},{}", scene.master);
    let (gateway, caller) = scene.gateway("semel.db").await;
    assert!(order(&caller, "/pay", "subject-anna-000001", "anna").await.is_replay());
    let rewrapped = async {
        while !scene.keys().await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, rewrapped).await.expect("it is wrapped anew");
    drop(gateway);
    scene.master = newer;
    let (_gateway, caller) = scene.gateway("semel.db").await;
    assert!(order(&caller, "/pay", "subject-anna-000001", "anna").await.is_replay(), "without the old key");
    let place = semel::stores::open_subject_keys(&scene.place).await.expect("the place opens");
    let fresh = place.find(old.id).await.expect("the place answers").expect("it is the same key");
    assert!(fresh.master == "m-2" && fresh.sealed != old.sealed);
}

#[tokio::test]
async fn an_operator_without_a_gateway_forgets_on_the_store_and_the_keys() {
    // G-20, G-81
    let scene = Scene::new(&in_a_file).await;
    let (gateway, caller) = scene.gateway("semel.db").await;
    assert_eq!(order(&caller, "/pay", "subject-anna-000001", "anna").await.status, 201);
    let url = scene.store("semel.db");
    let store = semel::stores::open(&url).await.expect("the store opens");
    let page = store.list(&Filter::default(), Token(0), 10).await.expect("the store answers");
    let record = store.get(page.records[0].operation.id()).await.expect("it answers").expect("it is there");
    let id = seal::subject_key(&record.outcome.expect("an outcome")).expect("sealed for its subject");
    assert_eq!(scene.keys().await[0].id, id);
    let unnamed = keys(&["purge", "--subject", "nobody", "--store", &url]).await;
    assert_eq!(unnamed["key"], "no_place");
    let elsewhere = format!("{}-not", scene.place);
    let mut wrong = tokio::process::Command::new(env!("CARGO_BIN_EXE_semel"));
    let wrong =
        wrong.args(["keys", "purge", "--subject", "anna", "--store", &url, "--subject-keys", &elsewhere]);
    assert!(!wrong.output().await.expect("it runs").status.success(), "a mistyped place is no place");
    assert_eq!(scene.keys().await.len(), 1);
    let purged = keys(&["purge", "--subject", "anna", "--store", &url, "--subject-keys", &scene.place]).await;
    assert_eq!(purged["key"], "forgotten");
    assert!(scene.keys().await.is_empty());
    let heard = order(&caller, "/pay", "subject-anna-000001", "anna").await;
    assert!(heard.status == 409 || heard.status == 500, "{heard:?}");
    assert_eq!(scene.upstream.count("/pay"), 1);
    drop(gateway);
}

#[tokio::test]
async fn a_gateway_whose_keys_are_in_its_store_does_not_start() {
    // G-20
    let mut scene = Scene::new(&in_a_file).await;
    // Another spelling of the same file, which only opening it tells.
    std::fs::create_dir(scene.home.path().join("link")).expect("it is made");
    scene.place = format!("sqlite:{}", scene.home.path().join("link/../semel.db").display());
    let arguments = scene.arguments("semel.db");
    let mut command = Gateway::command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let ended = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").expect("it runs");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && told.contains("of their own"), "{told}");
}
