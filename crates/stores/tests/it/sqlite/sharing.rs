//! Several users of one file.

use std::io::Read;
use std::process::Stdio;
use std::time::Instant;

use semel_core::error::Kind;

use super::*;

// G-8
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_thousand_claims_over_two_handles_one_wins() {
    let disk = Disk::new();
    let stores = [Arc::new(disk.open()), Arc::new(disk.open())];
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..1000 {
        let store = stores[n % 2].clone();
        crowd.spawn(async move { store.claim(&request("the-one")).await.unwrap() });
    }
    let claims = crowd.join_all().await;
    assert_eq!(claims.iter().filter(|claim| matches!(claim, Claim::Granted(_))).count(), 1);
    assert_eq!(claims.iter().filter(|claim| matches!(claim, Claim::InFlight { .. })).count(), 999);
}

const SHARED_KEYS: usize = 300;

/// Claims every key and prints the tokens it got.
#[tokio::test]
async fn child_that_claims() {
    let Some(path) = given_to_child() else { return };
    let store = SqliteStore::open(path).unwrap();
    for n in 0..SHARED_KEYS {
        if let Claim::Granted(lease) = store.claim(&request(&format!("shared-{n}"))).await.unwrap() {
            println!("\ngot {n} {}", lease.holder.token);
        }
    }
}

// G-8, G-9
#[test]
fn of_claims_by_several_processes_one_wins_and_no_token_is_given_twice() {
    let disk = Disk::new();
    let children: Vec<_> = (0..3)
        .map(|_| {
            let mut command = child("sqlite::sharing::child_that_claims", &disk.path());
            command.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let (mut keys, mut tokens) = (Vec::new(), Vec::new());
    for mut child in children {
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        for line in said.lines().filter_map(|line| line.strip_prefix("got ")) {
            let (key, token) = line.split_once(' ').unwrap();
            keys.push(key.parse::<usize>().unwrap());
            tokens.push(token.parse::<u64>().unwrap());
        }
    }
    keys.sort_unstable();
    tokens.sort_unstable();
    assert_eq!(keys, (0..SHARED_KEYS).collect::<Vec<_>>(), "each key was won once");
    assert_eq!(tokens, (1..=SHARED_KEYS as u64).collect::<Vec<_>>(), "each token was given once");
}

#[tokio::test]
async fn a_lock_held_too_long_by_another_is_busy_and_nothing_was_done() {
    let disk = Disk::new();
    let options = Options { busy_timeout: Duration::from_millis(50), ..Options::default() };
    let store = SqliteStore::open_with(disk.path(), options).unwrap();
    let lock = disk.meddle();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    let wish = request("locked-out");
    let text = refused(store.claim(&wish).await, Kind::Busy);
    assert!(text.contains("write transaction"), "{text}");
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert!(store.get(wish.operation.id()).await.unwrap().is_none(), "reading goes on meanwhile");
    lock.execute_batch("ROLLBACK").unwrap();
    granted(store.claim(&wish).await.unwrap());
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let disk = Disk::new();
    let store = SqliteStore::open_with(disk.path(), Options { queue_max: 2, ..Options::default() }).unwrap();
    let lock = disk.meddle();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Two fit into the queue, and the writer may have taken as many from it before it met the lock.
    let wishes: Vec<Request> = (0..6).map(|n| request(&format!("queue-{n}"))).collect();
    let calls = wishes.iter().map(|wish| store.claim(wish)).collect::<Vec<_>>();
    let unlock = async { lock.execute_batch("ROLLBACK").unwrap() };
    let (answers, ()) = tokio::join!(all(calls), unlock);
    let busy = answers.into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert!((2..=4).contains(&busy.len()), "{busy:?}");
    for error in busy {
        assert!(refused::<()>(Err(error), Kind::Busy).contains("2 calls are waiting"));
    }
    granted(store.claim(&wishes[5]).await.unwrap());
}

/// Polls all of them before any is waited for.
async fn all<T>(mut calls: Vec<semel_core::store::Pending<'_, T>>) -> Vec<Result<T, Error>> {
    let mut answers: Vec<Option<Result<T, Error>>> = calls.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (call, answer) in calls.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let std::task::Poll::Ready(told) = call.as_mut().poll(context)
            {
                *answer = Some(told);
            }
        }
        match answers.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    answers.into_iter().flatten().collect()
}

// G-9
#[tokio::test]
async fn tokens_go_on_growing_after_a_restart() {
    let disk = Disk::new();
    let mut last = 0;
    for round in 0..3 {
        let store = disk.open();
        for n in 0..2 {
            let token = claim(&store, &format!("token-{round}-{n}")).await.holder.token;
            assert!(token.0 > last, "token {token} after {last}");
            last = token.0;
        }
        assert_eq!(store.status().await.unwrap().mark.token.0, last);
        store.close().await;
    }
}

#[tokio::test]
async fn a_store_dropped_without_close_is_opened_again_at_once() {
    let disk = Disk::new();
    for n in 0..10 {
        let store = disk.open();
        claim(&store, &format!("dropped-{n}")).await;
        drop(store);
        let store = disk.open();
        for old in 0..=n {
            let id = request(&format!("dropped-{old}")).operation.id();
            assert!(store.get(id).await.unwrap().is_some());
        }
    }
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let disk = Disk::new();
    let store = disk.open();
    store.close().await;
    store.close().await;
    refused(store.claim(&request("closed")).await, Kind::Closed);
    refused(store.status().await, Kind::Closed);
}

#[tokio::test]
async fn an_address_opens_the_file_it_names() {
    let disk = Disk::new();
    for form in ["sqlite:", "sqlite://"] {
        let store = semel_stores::open(&format!("{form}{}", disk.path().display())).await.unwrap();
        assert_eq!(store.capabilities().engine, "sqlite");
    }
    assert!(disk.path().exists());
}
