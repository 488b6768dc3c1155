//! Claims and completions that travel together: faster, and no less right.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::TxOpts;
use mysql_async::prelude::Queryable;
use semel_core::error::Kind;
use semel_core::runtime::Tokio;
use semel_core::store::EffectStore;
use semel_core::verbs::{Completion, Renew, Renewal, Stale};
use semel_core::{Claim, Lease, Once, Origin, Outcome, Policy, Refusal, State};
use semel_stores::mysql::MysqlStore;
use tokio::task::JoinSet;

use super::rig::{Database, complete, connect, granted, impatient, request, with_database};

async fn store(database: &Database) -> Arc<MysqlStore> {
    Arc::new(connect(&database.url()).await)
}

async fn claim_all(store: &Arc<MysqlStore>, keys: std::ops::Range<u32>) -> Vec<Lease> {
    let mut claims = JoinSet::new();
    for key in keys {
        let store = store.clone();
        claims.spawn(async move { granted(store.claim(&request(&format!("key-{key}"))).await.unwrap()) });
    }
    claims.join_all().await
}

async fn complete_all(store: &Arc<MysqlStore>, leases: Vec<Lease>, bytes: usize) {
    let mut completions = JoinSet::new();
    for lease in leases {
        let store = store.clone();
        completions.spawn(async move { store.complete(&complete(&lease, vec![b'x'; bytes])).await.unwrap() });
    }
    assert!(completions.join_all().await.iter().all(|stored| *stored == Completion::Stored));
}

#[test]
fn simultaneous_calls_share_transactions() {
    with_database(async |database| {
        let store = store(&database).await;
        for round in 0..10 {
            let leases = claim_all(&store, round * 200..(round + 1) * 200).await;
            complete_all(&store, leases, 300).await;
        }
        let (batches, calls) = store.batches();
        assert_eq!(calls, 4_000);
        assert!(batches * 8 < calls, "{batches} batches for {calls} calls");
        store.close().await;
        assert_eq!(database.number("SELECT COUNT(*) FROM semel_operation WHERE state = 2").await, 2_000);
    });
}

// Small tables are read whole by planners who may choose, and rows that are read are locked.
#[test]
fn rows_are_found_by_their_keys_also_in_a_small_table() {
    with_database(async |database| {
        let store = store(&database).await;
        let leases = claim_all(&store, 0..4).await;
        let mut other = database.client().await;
        let mut held = other.start_transaction(TxOpts::default()).await.unwrap();
        let id = leases[0].holder.operation;
        let hold = "SELECT 1 FROM semel_operation WHERE id = ? FOR UPDATE";
        held.exec_drop(hold, (&id.as_bytes()[..],)).await.unwrap();
        // With one row of four held, all else goes on.
        complete_all(&store, leases[1..].to_vec(), 10).await;
        claim_all(&store, 4..8).await;
        held.rollback().await.unwrap();
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
                 UPDATE semel_operation SET history = x'01' WHERE `key` = 'key-0';
                 UPDATE semel_operation SET state = 77 WHERE `key` = 'key-1'",
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
fn an_outcome_larger_than_a_message_is_refused_for_good_and_fails_no_neighbour() {
    // G-17, G-19
    with_database(async |database| {
        let store = store(&database).await;
        let message_max = database.number("SELECT @@max_allowed_packet").await as usize;
        let mut large = None;
        // Again and again, because it may travel alone.
        for round in 0..8 {
            let leases = claim_all(&store, round * 20..(round + 1) * 20).await;
            let done = leases.iter().enumerate().map(|(n, lease)| {
                let bytes = if n == 10 { message_max } else { 10 };
                let (store, done) = (&store, complete(lease, vec![b'x'; bytes]));
                async move { store.complete(&done).await }
            });
            for (n, told) in futures_util::future::join_all(done).await.into_iter().enumerate() {
                match n {
                    10 => {
                        let error = told.unwrap_err();
                        assert!(error.is_too_large() && !error.is_retryable(), "{error:?}");
                        assert!(error.to_string().contains("max_allowed_packet"), "{error}");
                    }
                    _ => assert_eq!(told.unwrap(), Completion::Stored),
                }
            }
            large = Some(leases[10]);
        }
        let large = large.unwrap();
        let error = store.complete(&complete(&large, vec![b'x'; message_max - 1000])).await.unwrap_err();
        assert!(error.is_too_large(), "what is written must be readable: {error:?}");
        // What is left is taken, and so is the largest that can be read back.
        let (now, next) =
            (store.complete(&complete(&large, vec![b'x'; 10])).await, claim_all(&store, 200..201).await);
        assert_eq!(now.unwrap(), Completion::Stored);
        let most = vec![b'x'; message_max - (33 << 10)];
        assert_eq!(store.complete(&complete(&next[0], most.clone())).await.unwrap(), Completion::Stored);
        let record = store.get(next[0].holder.operation).await.unwrap().unwrap();
        assert!(record.outcome.unwrap() == most);
    });
}

#[test]
fn an_answer_larger_than_a_message_is_heard_and_kept_without_its_body() {
    // G-17, G-19
    with_database(async |database| {
        let store = store(&database).await;
        let message_max = database.number("SELECT @@max_allowed_packet").await as usize;
        let once = Once::new(store.clone(), Arc::new(Tokio::new()));
        let policy =
            Policy::builder().outcome_bytes_max(2 * message_max).store_patience(Duration::from_secs(30));
        let policy = policy.build().unwrap();
        let prints = once.fingerprinter().await.unwrap();
        let run = async |answer: Outcome| {
            let order = request("large").operation;
            let print = prints.of_json(b"{}");
            once.run(order.scope().clone(), order.key().clone(), print, &policy, async move |_| answer).await
        };
        let whole = Outcome { status: 201, ..Outcome::bytes("text/csv", vec![b'x'; message_max]) };
        let heard = run(whole.clone()).await.unwrap();
        assert!(heard.origin == Origin::Fresh && heard.outcome == whole);
        assert_eq!(run(Outcome::text("again")).await, Err(Refusal::BodyNotKept { status: 201 }));
        assert_eq!(once.drain(Duration::from_secs(30)).await, 0, "nothing is tried for ever");
        assert_eq!((once.operations(), once.tally().bodies_refused()), (0, 1));
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
            "fp_paths = x'09'",
            "ttl_us = -1",
            "history = x'ff'",
            "namespace = 'elsewhere'",
            "`key` = ''",
        ];
        for (at, damage) in damages.into_iter().enumerate() {
            let claim = request(&format!("damage-{at}"));
            let lease = granted(store.claim(&claim).await.unwrap());
            database.run(&format!("UPDATE semel_operation SET {damage} WHERE `key` = 'damage-{at}'")).await;
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
        let store = Arc::new(MysqlStore::connect_with(impatient(database.url())).await.unwrap());
        let mut leases = claim_all(&store, 0..20).await;
        let mut holder = database.client().await;
        let mut held = holder.start_transaction(TxOpts::default()).await.unwrap();
        let first = leases.remove(0);
        let hold = "SELECT 1 FROM semel_operation WHERE id = ? FOR UPDATE";
        held.exec_drop(hold, (&first.holder.operation.as_bytes()[..],)).await.unwrap();
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
        let idle = "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist
                    ON trx_mysql_thread_id = id WHERE db = DATABASE()";
        while database.number(idle).await > 0 {
            tokio::time::sleep(Duration::from_millis(150)).await;
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
        // Spaces at the end count, though the server's text does not count them.
        let [one, two] = ["s", "s "].map(|subject| {
            let mut claim = request(&format!("spaced-{}", subject.len()));
            claim.subject = Some(subject.into());
            claim
        });
        for claim in [&one, &two] {
            let lease = granted(store.claim(claim).await.unwrap());
            assert_eq!(store.complete(&complete(&lease, "paid")).await.unwrap(), Completion::Stored);
        }
        let purged = store.purge_subject("s", semel_core::Nonce::random(), "", 10).await.unwrap();
        assert_eq!((purged.purged, purged.open), (1, 0));
        let other = store.get(two.operation.id()).await.unwrap().unwrap();
        assert_eq!(other.state, State::Completed);
    });
}

// G-9: a step that waited for another's decides by what that one left.
#[test]
fn a_record_taken_by_another_meanwhile_is_seen_as_it_is_then() {
    with_database(async |database| {
        let store = store(&database).await;
        let lease = granted(store.claim(&request("meanwhile")).await.unwrap());
        let mut other = database.client().await;
        let taken =
            "UPDATE semel_operation SET token = token + 1, nonce = x'00112233445566778899aabbccddeeff'";
        other.query_drop(format!("START TRANSACTION; {taken}")).await.unwrap();
        let renewing = tokio::spawn({
            let store = store.clone();
            let renew = Renew { holder: lease.holder, lease: lease.granted };
            async move { store.renew(&renew).await.unwrap() }
        });
        let waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist
                       ON trx_mysql_thread_id = id WHERE db = DATABASE() AND trx_state = 'LOCK WAIT'";
        // The server makes this table anew only if nobody has read it for a tenth of a second.
        while database.number(waiting).await == 0 {
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        other.query_drop("COMMIT").await.unwrap();
        assert!(matches!(renewing.await.unwrap(), Renewal::Lost(_)));
        store.close().await;
    });
}
