//! Claims and completions that travel together: faster, and no less right.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::Kind;
use semel_core::store::EffectStore;
use semel_core::verbs::{Completion, Renew, Renewal, Stale};
use semel_core::{Claim, Lease, State};
use semel_stores::postgres::PostgresStore;
use tokio::task::JoinSet;

use super::rig::{Database, complete, connect, granted, impatient, request, with_database};

async fn store(database: &Database) -> Arc<PostgresStore> {
    Arc::new(connect(&database.url()).await)
}

async fn claim_all(store: &Arc<PostgresStore>, keys: std::ops::Range<u32>) -> Vec<Lease> {
    let mut claims = JoinSet::new();
    for key in keys {
        let store = store.clone();
        claims.spawn(async move { granted(store.claim(&request(&format!("key-{key}"))).await.unwrap()) });
    }
    claims.join_all().await
}

async fn complete_all(store: &Arc<PostgresStore>, leases: Vec<Lease>, bytes: usize) {
    let mut completions = JoinSet::new();
    for lease in leases {
        let store = store.clone();
        completions.spawn(async move { store.complete(&complete(&lease, vec![b'x'; bytes])).await.unwrap() });
    }
    assert!(completions.join_all().await.iter().all(|stored| *stored == Completion::Stored));
}

#[test]
fn simultaneous_calls_share_statements_and_completions_stay_on_their_pages() {
    with_database(async |database| {
        let store = store(&database).await;
        let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'semel_operation'";
        let scans_before = database.number(scans).await;
        for round in 0..50 {
            let leases = claim_all(&store, round * 200..(round + 1) * 200).await;
            complete_all(&store, leases, 300).await;
        }
        let (batches, calls) = store.batches();
        assert_eq!(calls, 20_000);
        assert!(batches * 10 < calls, "{batches} batches for {calls} calls");
        store.close().await;
        let stats = "SELECT 100 * n_tup_hot_upd / n_tup_upd FROM pg_stat_user_tables
                     WHERE relname = 'semel_operation' AND n_tup_upd = 10000";
        let client = database.client().await;
        // The server counts with some delay.
        let hot = loop {
            if let Some(row) = client.query_opt(stats, &[]).await.unwrap() {
                break row.get::<_, i64>(0);
            }
            client.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
            tokio::task::yield_now().await;
        };
        assert!(hot >= 50, "{hot} % of the completions touched no index");
        // Nobody has analysed this table in time; it was found by key all the same.
        // Building its indexes counts as a few scans, and may be counted late; batches were hundreds.
        let scanned = database.number(scans).await - scans_before;
        assert!(scanned < 10, "{scanned} scans of the whole table");
    });
}

#[test]
fn one_bad_call_does_not_fail_its_neighbours() {
    with_database(async |database| {
        let store = store(&database).await;
        claim_all(&store, 0..2).await;
        database
            .run(
                "ALTER TABLE semel_operation DROP CONSTRAINT semel_operation_shape;
                 UPDATE semel_operation SET history = '\\x01' WHERE key = 'key-0';
                 UPDATE semel_operation SET state = 77 WHERE key = 'key-1'",
            )
            .await;
        let mut claims = JoinSet::new();
        for key in 0..40 {
            let store = store.clone();
            claims.spawn(async move { (key, store.claim(&request(&format!("key-{key}"))).await) });
        }
        for (key, told) in claims.join_all().await {
            match key {
                // G-20: what cannot be read is not free.
                0 | 1 => assert_eq!(told.unwrap_err().kind(), Kind::Damaged),
                _ => drop(granted(told.unwrap())),
            }
        }
    });
}

#[test]
fn every_unreadable_column_is_damage_and_never_a_free_key() {
    // G-20
    with_database(async |database| {
        let store = store(&database).await;
        database.run("ALTER TABLE semel_operation DROP CONSTRAINT semel_operation_shape").await;
        let damages = [
            "state = 0",
            "state = 2",
            "recovery = 9",
            "token = -1",
            "nonce = '\\x01'",
            "fp_digest = '\\x01'",
            "fp_paths = '\\x09'",
            "ttl_us = -1",
            "history = '\\xff'",
            "namespace = 'elsewhere'",
            "key = ''",
        ];
        for (at, damage) in damages.into_iter().enumerate() {
            let claim = request(&format!("damage-{at}"));
            let lease = granted(store.claim(&claim).await.unwrap());
            // The newest record is looked for by each batch, and this one is not it.
            granted(store.claim(&request(&format!("newer-{at}"))).await.unwrap());
            database.run(&format!("UPDATE semel_operation SET {damage} WHERE key = 'damage-{at}'")).await;
            let read = store.get(claim.operation.id()).await.map(drop).unwrap_err();
            assert_eq!(read.kind(), Kind::Damaged, "{damage}: {read}");
            if !damage.contains("namespace") && !damage.contains("key") {
                let error = store.claim(&request(&format!("damage-{at}"))).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Damaged, "{damage}: {error}");
                // A store that was changed from outside under a holder's feet may still take the outcome.
                let _ = store.complete(&complete(&lease, "paid")).await;
            }
        }
    });
}

#[test]
fn a_row_somebody_holds_makes_only_its_own_calls_wait() {
    with_database(async |database| {
        let store = Arc::new(PostgresStore::connect_with(impatient(database.url())).await.unwrap());
        let mut leases = claim_all(&store, 0..20).await;
        let mut holder = database.client().await;
        let held = holder.transaction().await.unwrap();
        let first = leases.remove(0);
        let hold = "UPDATE semel_operation SET attempts = attempts WHERE id = $1";
        held.execute(hold, &[&&first.holder.operation.as_bytes()[..]]).await.unwrap();
        let waiting = {
            let store = store.clone();
            tokio::spawn(async move { store.complete(&complete(&first, "paid")).await })
        };
        complete_all(&store, leases, 10).await;
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        assert!(!error.outcome_is_unknown(), "{error}");
        held.rollback().await.unwrap();
        assert_eq!(store.complete(&complete(&first, "paid")).await.unwrap(), Completion::Stored);
    });
}

#[test]
fn copies_of_one_call_in_one_batch_agree() {
    // G-8, G-9
    with_database(async |database| {
        let store = store(&database).await;
        let claim = request("copied");
        let mut copies = JoinSet::new();
        for _ in 0..60 {
            let (store, claim) = (store.clone(), claim.clone());
            copies.spawn(async move { granted(store.claim(&claim).await.unwrap()) });
        }
        let leases = copies.join_all().await;
        assert!(leases.iter().all(|lease| lease.holder == leases[0].holder));
        let stale = Lease {
            holder: semel_core::Holder { nonce: semel_core::Nonce::random(), ..leases[0].holder },
            ..leases[0]
        };
        let mut completions = JoinSet::new();
        for copy in 0..60 {
            let (store, lease) = (store.clone(), if copy % 3 == 0 { stale } else { leases[0] });
            completions
                .spawn(async move { (copy, store.complete(&complete(&lease, "paid")).await.unwrap()) });
        }
        for (copy, told) in completions.join_all().await {
            match copy % 3 {
                0 => assert!(matches!(told, Completion::Refused(Stale { evidence_kept: true, .. }))),
                _ => assert_eq!(told, Completion::Stored),
            }
        }
        let record = store.get(claim.operation.id()).await.unwrap().unwrap();
        assert_eq!((record.state, record.attempts), (State::Completed, 1));
        assert_eq!(record.history.events().len(), 1, "one piece of evidence: {:?}", record.history);
    });
}

#[test]
fn large_outcomes_come_back_whole() {
    with_database(async |database| {
        let store = store(&database).await;
        let leases = claim_all(&store, 0..24).await;
        complete_all(&store, leases, 1 << 20).await;
        for key in 0..24 {
            match store.claim(&request(&format!("key-{key}"))).await.unwrap() {
                Claim::Completed { outcome, .. } => {
                    assert!(outcome.len() == 1 << 20 && outcome.iter().all(|byte| *byte == b'x'))
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn calls_dropped_at_any_point_leave_nothing_stuck() {
    // G-17
    with_database(async |database| {
        let store = store(&database).await;
        for call in 0..80u32 {
            let claim = request(&format!("dropped-{call}"));
            let patience = Duration::from_micros(u64::from(call) * 50);
            let _ = tokio::time::timeout(patience, store.claim(&claim)).await;
            // Whatever came of it, repeating it with its nonce finds out.
            let lease = granted(store.claim(&claim).await.unwrap());
            assert_eq!(lease.attempt, 1);
            let release = semel_core::verbs::Release { holder: lease.holder };
            let _ = tokio::time::timeout(patience, store.release(&release)).await;
            store.release(&release).await.unwrap();
        }
        let idle = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        while database.number(idle).await > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn names_of_every_shape_come_back_as_they_were() {
    // G-1
    with_database(async |database| {
        let store = store(&database).await;
        for key in [r#""\"quoted\"""#, r#""back\\slash""#, r#""\\\"""#, "plain~!"] {
            let claim = request(key);
            granted(store.claim(&claim).await.unwrap());
            let record = store.get(claim.operation.id()).await.unwrap().unwrap();
            assert_eq!(record.operation, claim.operation);
        }
        let mut claim = request("subject");
        claim.subject = Some("s".repeat(10_000).into());
        granted(store.claim(&claim).await.unwrap());
        let mut nul = request("nul");
        nul.subject = Some("a\0b".into());
        assert_eq!(store.claim(&nul).await.unwrap_err().kind(), Kind::Misconfigured);
    });
}

#[test]
fn commits_are_durable_whatever_the_database_says_and_never_less_than_it_says() {
    with_database(async |database| {
        let name = &database.name;
        connect(&database.url()).await;
        database
            .run(
                "CREATE TABLE seen (setting text);
                 CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
                 CREATE TRIGGER see AFTER INSERT OR UPDATE ON semel_operation EXECUTE FUNCTION see()",
            )
            .await;
        for (configured, used) in [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")] {
            database.run(&format!("ALTER DATABASE {name} SET synchronous_commit = {configured}")).await;
            let store = store(&database).await;
            let lease = granted(store.claim(&request(&format!("durable-{configured}"))).await.unwrap());
            store.complete(&complete(&lease, "paid")).await.unwrap();
            let other = granted(store.claim(&request(&format!("released-{configured}"))).await.unwrap());
            store.release(&semel_core::verbs::Release { holder: other.holder }).await.unwrap();
            let wrong = format!("SELECT count(*) FROM seen WHERE setting <> '{used}'");
            assert_eq!(database.number(&wrong).await, 0, "{configured}");
            assert_eq!(database.number("SELECT count(*) FROM seen").await, 4);
            database.run("TRUNCATE seen").await;
        }
    });
}

// G-9: a step that waited for another's decides by what that one left.
#[test]
fn a_record_taken_by_another_meanwhile_is_seen_as_it_is_then() {
    with_database(async |database| {
        let store = store(&database).await;
        let lease = granted(store.claim(&request("meanwhile")).await.unwrap());
        let other = database.client().await;
        let taken = "UPDATE semel_operation SET token = nextval('semel_token'),
                     nonce = '\\x00112233445566778899aabbccddeeff'";
        other.batch_execute(&format!("BEGIN; {taken}")).await.unwrap();
        let renewing = tokio::spawn({
            let store = store.clone();
            let renew = Renew { holder: lease.holder, lease: lease.granted };
            async move { store.renew(&renew).await.unwrap() }
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while database.number(waiting).await == 0 {
            tokio::task::yield_now().await;
        }
        other.batch_execute("COMMIT").await.unwrap();
        assert!(matches!(renewing.await.unwrap(), Renewal::Lost(_)));
        store.close().await;
    });
}

#[test]
fn an_outcome_larger_than_a_field_is_refused_for_good_and_without_the_body_it_is_stored() {
    // G-17, G-19
    with_database(async |database| {
        let store = store(&database).await;
        let lease = claim_all(&store, 0..1).await.remove(0);
        let error = store.complete(&complete(&lease, vec![0; 1 << 30])).await.unwrap_err();
        assert!(error.is_too_large() && !error.is_retryable(), "{error:?}");
        assert_eq!(store.complete(&complete(&lease, vec![b'x'; 10])).await.unwrap(), Completion::Stored);
        store.close().await;
    });
}
