//! Reaching the server, being refused by it, losing it, and finding it again.

use std::time::{Duration, Instant};

use semel_core::error::Kind;
use semel_core::store::EffectStore;
use semel_core::verbs::Completion;
use semel_core::{Claim, State};
use semel_stores::postgres::{Options, PostgresStore};

use super::proxy::{Cut, Proxy};
use super::rig::{client, complete, connect, granted, impatient, named, persist, request, with_database};

async fn refused(url: &str) -> semel_core::Error {
    PostgresStore::connect(url).await.map(drop).unwrap_err()
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
fn a_database_that_takes_no_writes_is_refused_at_start_and_on_reconnect() {
    with_database(async |database| {
        let store = PostgresStore::connect_with(impatient(database.url())).await.unwrap();
        granted(store.claim(&request("before")).await.unwrap());
        let admin = database.admin().await;
        let name = &database.name;
        let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
        admin.batch_execute(&read_only).await.unwrap();
        let fresh = refused(&database.url()).await;
        assert_eq!(fresh.kind(), Kind::ReadOnly, "{fresh}");
        // Connections of before are still good; new ones are not.
        hang_up(&admin, name).await;
        let error = loop {
            match store.claim(&request("after")).await {
                Err(error) if error.kind() == Kind::Unreachable => {}
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(error.kind(), Kind::ReadOnly, "{error}");
        assert!(!error.outcome_is_unknown());
    });
}

async fn hang_up(admin: &tokio_postgres::Client, database: &str) {
    let sql = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1";
    admin.query(sql, &[&database]).await.unwrap();
}

#[test]
fn after_the_server_hung_up_calls_go_on() {
    with_database(async |database| {
        let store = PostgresStore::connect_with(impatient(database.url())).await.unwrap();
        let admin = database.admin().await;
        for round in 0..3 {
            let claim = request(&format!("round-{round}"));
            let lease = granted(persist(async || store.claim(&claim).await).await);
            hang_up(&admin, &database.name).await;
            let stored = persist(async || store.complete(&complete(&lease, "paid")).await).await;
            assert_eq!(stored, Completion::Stored);
            let record = persist(async || store.get(claim.operation.id()).await).await.unwrap();
            assert_eq!((record.state, record.attempts), (State::Completed, 1));
        }
    });
}

// G-9: the call may have been applied, says so, and is found out by repeating it.
#[test]
fn an_answer_lost_on_its_way_is_found_out_with_the_same_nonce() {
    with_database(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let store = PostgresStore::connect_with(impatient(proxy.url())).await.unwrap();
        let claim = request("lost-answer");
        for (cut, rows) in [(Cut::Calls, 0), (Cut::Answers, 1)] {
            // So that the cut does not hit a greeting.
            let greeting = request(&format!("before-{cut:?}"));
            granted(persist(async || store.claim(&greeting).await).await);
            proxy.cut_next(cut);
            let error = store.claim(&claim).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unreachable, "{error}");
            assert!(error.outcome_is_unknown(), "{error}");
            proxy.happened().await;
            let there = "SELECT count(*) FROM semel_operation WHERE key = 'lost-answer'";
            assert_eq!(database.number(there).await, rows, "{cut:?}");
        }
        let lease = granted(persist(async || store.claim(&claim).await).await);
        assert_eq!(lease.attempt, 1);
        proxy.cut_next(Cut::Answers);
        let done = complete(&lease, "paid");
        assert!(store.complete(&done).await.unwrap_err().outcome_is_unknown());
        proxy.happened().await;
        assert_eq!(persist(async || store.complete(&done).await).await, Completion::Stored);
        let other = request("lost-answer");
        let told = persist(async || store.claim(&other).await).await;
        assert!(matches!(told, Claim::Completed { outcome, .. } if outcome == "paid"));
    });
}

#[test]
fn a_server_that_falls_silent_is_given_up_in_time() {
    with_database(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let store = PostgresStore::connect_with(impatient(proxy.url())).await.unwrap();
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
        let store = PostgresStore::connect_with(impatient(proxy.url())).await.unwrap();
        proxy.close().await;
        let began = Instant::now();
        // A call sent on a connection that is just being cut is in doubt, once per connection; whoever
        // comes after that is told for certain.
        let mut in_doubt = 0;
        for call in 0..10 {
            let error = store.claim(&request(&format!("away-{call}"))).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unreachable, "{error}");
            in_doubt += u32::from(error.outcome_is_unknown());
        }
        assert!(in_doubt <= 2, "{in_doubt} calls in doubt on two connections");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    });
}

#[test]
fn tls_is_as_strict_as_the_address_says() {
    with_database(async |database| {
        let Some(ca) = named("SEMEL_TEST_PG_CA") else { return };
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other.pem");
        std::fs::write(&other, OTHER_CA).unwrap();
        let url = database.url();
        let store =
            PostgresStore::connect(&format!("{url}?sslmode=verify-full&sslrootcert={ca}")).await.unwrap();
        granted(store.claim(&request("secret")).await.unwrap());
        let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                         WHERE datname = current_database() AND application_name = 'semel' AND NOT ssl";
        assert_eq!(database.number(encrypted).await, 0, "nothing goes in the clear");
        let (user, place) = url.rsplit_once('@').unwrap();
        let (address, name) = place.split_once('/').unwrap();
        let port = address.rsplit_once(':').unwrap().1;
        let renamed = format!("{user}@bank.example:{port}/{name}?hostaddr=127.0.0.1&sslrootcert={ca}");
        let wrong_name = refused(&format!("{renamed}&sslmode=verify-full")).await;
        assert_eq!(wrong_name.kind(), Kind::Denied, "{wrong_name:?}");
        PostgresStore::connect(&format!("{renamed}&sslmode=verify-ca")).await.unwrap();
        for mode in ["require", "verify-ca", "verify-full"] {
            let root = other.display();
            let wrong_ca = refused(&format!("{url}?sslmode={mode}&sslrootcert={root}")).await;
            assert_eq!(wrong_ca.kind(), Kind::Denied, "{mode}: {wrong_ca:?}");
        }
        PostgresStore::connect(&format!("{url}?sslmode=require")).await.unwrap();
        let missing = refused(&format!("{url}?sslmode=verify-full&sslrootcert=/not/there.pem")).await;
        assert_eq!(missing.kind(), Kind::Misconfigured, "{missing}");
    });
}

#[test]
fn nothing_is_left_behind_in_a_session_that_others_use() {
    with_database(async |database| {
        let Some(pooler) = named("SEMEL_TEST_PGBOUNCER") else { return };
        let url = database.through(&pooler);
        let store = connect(&url).await;
        let lease = granted(store.claim(&request("tidy")).await.unwrap());
        store.complete(&complete(&lease, "paid")).await.unwrap();
        let neighbour = client(&url).await;
        for setting in ["enable_seqscan", "enable_hashjoin", "statement_timeout", "lock_timeout"] {
            let here = "SELECT count(*) FROM pg_settings WHERE name = $1 AND source IN ('session', 'client')";
            let left = neighbour.query_typed(here, &[(&setting, tokio_postgres::types::Type::TEXT)]).await;
            assert_eq!(left.unwrap()[0].get::<_, i64>(0), 0, "{setting}");
        }
        let prepared = neighbour.query_typed("SELECT count(*) FROM pg_prepared_statements", &[]).await;
        assert_eq!(prepared.unwrap()[0].get::<_, i64>(0), 0);
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
        let connected = "SELECT count(*) FROM pg_stat_activity
                         WHERE datname = current_database() AND application_name = 'semel'";
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
        let error = PostgresStore::connect_with(options).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Misconfigured, "{error}");
    });
}

const OTHER_CA: &str = include_str!("other_ca.pem");
