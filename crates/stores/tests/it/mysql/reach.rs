//! Reaching the server, being refused by it, losing it, and finding it again.

use std::time::{Duration, Instant};

use semel_core::error::Kind;
use semel_core::store::EffectStore;
use semel_core::verbs::Completion;
use semel_core::{Claim, State};
use semel_stores::mysql::{MysqlStore, Options};

use super::proxy::{Cut, Proxy};
use super::rig::{complete, connect, granted, impatient, persist, request, with_database};

async fn refused(url: &str) -> semel_core::Error {
    MysqlStore::connect(url).await.map(drop).unwrap_err()
}

#[test]
fn what_cannot_be_entered_is_refused_with_a_sentence_and_without_the_password() {
    with_database(async |database| {
        let url = database.url();
        let (before, rest) = url.split_once("://").unwrap();
        let (user, rest) = rest.split_once(':').unwrap();
        let (password, place) = rest.split_once('@').unwrap();
        let wrong = refused(&format!("{before}://{user}:hunter2@{place}")).await;
        assert_eq!(wrong.kind(), Kind::Denied, "{wrong}");
        let nowhere = refused(&format!("{url}_not_there")).await;
        assert_eq!(nowhere.kind(), Kind::Misconfigured, "{nowhere}");
        let (_, name) = place.split_once('/').unwrap();
        let away = refused(&format!("{before}://{user}:{password}@127.0.0.1:1/{name}")).await;
        assert_eq!(away.kind(), Kind::Unreachable, "{away}");
        assert!(!away.outcome_is_unknown());
        for error in [wrong, nowhere, away] {
            let text = format!("{error} {error:?}");
            assert!(!text.contains(password) && !text.contains("hunter2"), "{text}");
        }
    });
}

#[test]
fn after_the_server_hung_up_calls_go_on() {
    with_database(async |database| {
        let store = MysqlStore::connect_with(impatient(database.url())).await.unwrap();
        for round in 0..3 {
            let claim = request(&format!("round-{round}"));
            let lease = granted(persist(async || store.claim(&claim).await).await);
            database.hang_up().await;
            let stored = persist(async || store.complete(&complete(&lease, "paid")).await).await;
            assert_eq!(stored, Completion::Stored);
            let record = persist(async || store.get(claim.operation.id()).await).await.unwrap();
            assert_eq!((record.state, record.attempts), (State::Completed, 1));
        }
    });
}

// G-9: the call may have been applied, says so, and is found out by repeating it.
#[test]
fn an_answer_to_a_commit_lost_on_its_way_is_found_out_with_the_same_nonce() {
    with_database(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let store = MysqlStore::connect_with(impatient(proxy.url())).await.unwrap();
        let claim = request("lost-answer");
        for (cut, rows) in [(Cut::Commit, 0), (Cut::CommitAnswer, 1)] {
            proxy.cut_next(cut);
            let error = store.claim(&claim).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unreachable, "{error}");
            assert!(error.outcome_is_unknown(), "{error}");
            proxy.happened().await;
            let there = "SELECT COUNT(*) FROM semel_operation WHERE `key` = 'lost-answer'";
            assert_eq!(database.number(there).await, rows, "{cut:?}");
        }
        let lease = granted(persist(async || store.claim(&claim).await).await);
        assert_eq!(lease.attempt, 1);
        proxy.cut_next(Cut::CommitAnswer);
        let done = complete(&lease, "paid");
        assert!(store.complete(&done).await.unwrap_err().outcome_is_unknown());
        proxy.happened().await;
        assert_eq!(persist(async || store.complete(&done).await).await, Completion::Stored);
        let other = request("lost-answer");
        let told = persist(async || store.claim(&other).await).await;
        assert!(matches!(told, Claim::Completed { outcome, .. } if outcome == "paid"));
        let released = granted(store.claim(&request("released")).await.unwrap());
        let release = semel_core::verbs::Release { holder: released.holder };
        proxy.cut_next(Cut::CommitAnswer);
        assert!(store.release(&release).await.unwrap_err().outcome_is_unknown());
        proxy.happened().await;
        let made = persist(async || store.release(&release).await).await;
        assert_eq!(made, semel_core::verbs::Change::Made);
    });
}

// What breaks before the COMMIT changed nothing, so it is done again and nobody hears of it.
#[test]
fn a_connection_lost_before_the_commit_is_nobodys_trouble() {
    with_database(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let store = MysqlStore::connect_with(impatient(proxy.url())).await.unwrap();
        let lease = granted(store.claim(&request("warm-up")).await.unwrap());
        for call in 0..3 {
            proxy.cut_next(Cut::Call);
            let claim = request(&format!("call-{call}"));
            assert_eq!(granted(store.claim(&claim).await.unwrap()).attempt, 1);
            proxy.happened().await;
        }
        proxy.cut_next(Cut::Call);
        let renew = semel_core::verbs::Renew { holder: lease.holder, lease: lease.granted };
        store.renew(&renew).await.unwrap();
        proxy.happened().await;
    });
}

#[test]
fn a_server_that_falls_silent_is_given_up_in_time() {
    with_database(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let store = MysqlStore::connect_with(impatient(proxy.url())).await.unwrap();
        granted(store.claim(&request("warm-up")).await.unwrap());
        proxy.cut_next(Cut::Silence);
        let began = Instant::now();
        let error = store.claim(&request("silence")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::TimedOut, "{error}");
        assert!(error.outcome_is_unknown());
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        granted(persist(async || store.claim(&request("after")).await).await);
    });
}

#[test]
fn with_the_server_away_calls_fail_soon_and_certainly_did_nothing() {
    with_database(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let store = MysqlStore::connect_with(impatient(proxy.url())).await.unwrap();
        proxy.close().await;
        let began = Instant::now();
        for call in 0..10 {
            let error = store.claim(&request(&format!("away-{call}"))).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unreachable, "{error}");
            assert!(!error.outcome_is_unknown(), "{error}");
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    });
}

#[test]
fn tls_is_as_strict_as_the_address_says() {
    with_database(async |database| {
        // Not every server a person has at hand speaks TLS.
        let Ok(ca) = std::env::var("SEMEL_TEST_MARIADB_CA") else {
            eprintln!("SKIPPED mariadb: SEMEL_TEST_MARIADB_CA is not set");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other.pem");
        std::fs::write(&other, OTHER_CA).unwrap();
        let url = database.url();
        let store =
            MysqlStore::connect(&format!("{url}?sslmode=verify-full&sslrootcert={ca}")).await.unwrap();
        granted(store.claim(&request("secret")).await.unwrap());
        for mode in ["require", "verify-ca", "verify-full"] {
            let root = other.display();
            let wrong_ca = refused(&format!("{url}?sslmode={mode}&sslrootcert={root}")).await;
            assert_eq!(wrong_ca.kind(), Kind::Denied, "{mode}: {wrong_ca:?}");
        }
        MysqlStore::connect(&format!("{url}?sslmode=require")).await.unwrap();
        let missing = refused(&format!("{url}?sslmode=verify-full&sslrootcert=/not/there.pem")).await;
        assert_eq!(missing.kind(), Kind::Misconfigured, "{missing}");
    });
}

#[test]
fn a_closed_store_answers_what_was_asked_and_nothing_more() {
    with_database(async |database| {
        let store = std::sync::Arc::new(connect(&database.url()).await);
        let asking: Vec<_> = (0..50)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move { store.claim(&request(&format!("closing-{n}"))).await })
            })
            .collect();
        tokio::task::yield_now().await;
        store.close().await;
        for asked in asking {
            match asked.await.unwrap() {
                Ok(claim) => drop(granted(claim)),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Closed, "{error}");
                    assert!(!error.outcome_is_unknown());
                }
            }
        }
        assert_eq!(store.claim(&request("late")).await.unwrap_err().kind(), Kind::Closed);
        assert_eq!(store.status().await.unwrap_err().kind(), Kind::Closed);
        let connected = "SELECT COUNT(*) FROM information_schema.processlist
                         WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        let gone = async || database.number(connected).await == 0;
        while !gone().await {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn options_that_make_no_sense_are_refused() {
    with_database(async |database| {
        let mut options = Options::new(database.url());
        options.lanes = 0;
        let error = MysqlStore::connect_with(options).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
    });
}

const OTHER_CA: &str = include_str!("../postgres/other_ca.pem");
