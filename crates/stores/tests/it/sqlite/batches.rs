//! Many callers, one transaction.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use semel_core::error::Kind;
use semel_core::record::State;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_caller_of_a_batch_is_answered() {
    let disk = Disk::new();
    let store = Arc::new(disk.open());
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..500 {
        let store = store.clone();
        crowd.spawn(async move {
            let lease = claim(&store, &format!("batch-{n}")).await;
            complete(&store, &lease, vec![b'x'; 300]).await;
            lease.holder.token
        });
    }
    let mut tokens: Vec<_> = crowd.join_all().await;
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 500, "every claim has its own token");
    let done: u32 = disk
        .meddle()
        .query_row("SELECT count(*) FROM semel_operation WHERE state = 2", [], |row| row.get(0))
        .unwrap();
    assert_eq!(done, 500);
}

/// Lets jobs pile up behind a lock, so that they run in one transaction, then lets go.
async fn in_one_batch<T: Send + 'static>(
    disk: &Disk,
    calls: Vec<impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let lock = disk.meddle();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
    for call in &mut calls {
        // The first poll queues the call; it cannot be answered while the lock is held.
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    lock.execute_batch("ROLLBACK").unwrap();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await);
    }
    answers
}

#[tokio::test]
async fn a_job_that_ends_the_transaction_does_not_fail_its_neighbours() {
    let disk = Disk::new();
    let store = Arc::new(disk.open());
    let trigger = "CREATE TRIGGER meddle BEFORE INSERT ON semel_operation WHEN NEW.key LIKE 'bad%' \
                   BEGIN SELECT RAISE(ROLLBACK, 'no'); END";
    disk.meddle().execute_batch(trigger).unwrap();
    let keys: Vec<String> =
        (0..40).map(|n| format!("{}-{n}", if n % 10 == 7 { "bad" } else { "good" })).collect();
    let calls = keys.iter().map(|key| {
        let (store, request) = (store.clone(), request(key));
        async move { store.claim(&request).await }
    });
    let answers = in_one_batch(&disk, calls.collect()).await;
    for (key, answer) in keys.iter().zip(answers) {
        match key.starts_with("bad") {
            true => drop(refused(answer, Kind::Damaged)),
            false => drop(granted(answer.unwrap())),
        }
    }
    let kept: u32 =
        disk.meddle().query_row("SELECT count(*) FROM semel_operation", [], |row| row.get(0)).unwrap();
    assert_eq!(kept, 36);
}

#[tokio::test]
async fn a_step_that_fails_midway_leaves_nothing_behind() {
    let disk = Disk::new();
    let store = disk.open();
    for n in 0..3 {
        let wish = Request { subject: Some("alice".into()), ..request(&format!("subject-{n}")) };
        let lease = granted(store.claim(&wish).await.unwrap());
        complete(&store, &lease, "about alice").await;
    }
    let trigger = "CREATE TRIGGER meddle BEFORE UPDATE ON semel_operation WHEN NEW.key = 'subject-2' \
                   BEGIN SELECT RAISE(ABORT, 'no'); END";
    disk.meddle().execute_batch(trigger).unwrap();
    refused(store.purge_subject("alice", Nonce::random(), "gone", 10).await, Kind::Damaged);
    for n in 0..3 {
        let id = request(&format!("subject-{n}")).operation.id();
        assert_eq!(store.get(id).await.unwrap().unwrap().state, State::Completed, "all or nothing");
    }
    disk.meddle().execute_batch("DROP TRIGGER meddle").unwrap();
    let purged = store.purge_subject("alice", Nonce::random(), "gone", 2).await.unwrap();
    assert_eq!((purged.purged, purged.more), (2, true));
    let purged = store.purge_subject("alice", Nonce::random(), "gone", 2).await.unwrap();
    assert_eq!((purged.purged, purged.more), (1, false));
}

/// A COMMIT that fails for another reason than a lock or a full disk may have happened.
#[tokio::test]
async fn nobody_is_answered_before_the_commit_and_a_failed_one_leaves_doubt() {
    let disk = Disk::new();
    let store = disk.open();
    let deferred = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
        CREATE TABLE orphan (parent REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER meddle AFTER INSERT ON semel_operation BEGIN INSERT INTO orphan VALUES (1); END";
    disk.meddle().execute_batch(deferred).unwrap();
    let wish = request("doubtful");
    let error = store.claim(&wish).await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error}");
    assert!(store.get(wish.operation.id()).await.unwrap().is_none());
    disk.meddle().execute_batch("DROP TRIGGER meddle").unwrap();
    let first = granted(store.claim(&wish).await.unwrap());
    let again = granted(store.claim(&wish).await.unwrap());
    assert_eq!(first, again, "repeating with the same nonce finds out");
}

#[tokio::test]
async fn a_caller_that_goes_away_does_no_harm() {
    let disk = Disk::new();
    let store = Arc::new(disk.open());
    let wish = request("cancelled");
    // It cannot be answered at once.
    let lock = disk.meddle();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    {
        let mut call = store.claim(&wish);
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    lock.execute_batch("ROLLBACK").unwrap();
    // Queued behind it, so it was done.
    claim(&store, "another").await;
    let record = store.get(wish.operation.id()).await.unwrap().unwrap();
    assert_eq!(record.nonce, wish.nonce);
    assert_eq!(granted(store.claim(&wish).await.unwrap()).holder.token, record.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_starts_over_however_busy_the_store_is() {
    // A machine that is busy with other things gives the keeper its turn late, so nothing is said of how soon.
    const BODIES_MAX: usize = 2048;
    let disk = Disk::new();
    let store = Arc::new(disk.open());
    let (log, written) = (disk.0.path().join("semel.db-wal"), Arc::new(AtomicUsize::new(0)));
    // The first may be that of the quiet store before.
    let enough = times_begun(&log) + 2;
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, log, written) = (store.clone(), log.clone(), written.clone());
        crowd.spawn(async move {
            while times_begun(&log) < enough {
                let n = written.fetch_add(1, Ordering::Relaxed);
                assert!(n < BODIES_MAX, "the log has {} MiB", std::fs::metadata(&log).unwrap().len() >> 20);
                let lease = claim(&store, &format!("log-{n}")).await;
                complete(&store, &lease, vec![b'x'; 1 << 20]).await;
            }
        });
    }
    crowd.join_all().await;
}

/// SQLite counts it in the head of the log.
fn times_begun(log: &Path) -> u32 {
    let mut head = [0; 16];
    let read = std::fs::File::open(log).and_then(|mut log| std::io::Read::read_exact(&mut log, &mut head));
    read.map_or(0, |()| u32::from_be_bytes([head[12], head[13], head[14], head[15]]))
}

#[tokio::test]
async fn an_outcome_larger_than_a_row_is_refused_for_good_and_fails_no_neighbour() {
    // G-17, G-19
    let disk = Disk::new();
    let store = Arc::new(disk.open());
    let (large, small) = (claim(&store, "large").await, claim(&store, "small").await);
    let done = |lease: &Lease, outcome: Vec<u8>| {
        let (store, holder) = (store.clone(), lease.holder);
        async move { store.complete(&Complete { holder, outcome: outcome.into(), ttl_min: None }).await }
    };
    // Nothing of it is ever touched, so it takes no memory.
    let calls = vec![done(&large, vec![0; 1_000_000_001]), done(&small, vec![b'x'; 10])];
    let told = in_one_batch(&disk, calls).await;
    let error = told[0].as_ref().unwrap_err();
    assert!(error.is_too_large() && !error.is_retryable(), "{error:?}");
    assert!(matches!(told[1], Ok(Completion::Stored)), "{:?}", told[1]);
    complete(&store, &large, vec![b'x'; 10]).await;
}
