//! Processes that die: what was answered is there, and nothing is there by half.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use semel_core::record::State;

use super::*;

/// Claims and completes one key after the other, and says so as soon as it is answered.
#[tokio::test]
async fn child_that_works_until_it_dies() {
    let Some(path) = given_to_child() else { return };
    let store = SqliteStore::open(path).unwrap();
    for n in 0.. {
        let key = format!("crash-{n}");
        let lease = claim(&store, &key).await;
        say(&format!("claimed {key} {}", lease.holder.token));
        complete(&store, &lease, key.clone()).await;
        say(&format!("completed {key} {}", lease.holder.token));
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").and_then(|()| out.flush()).unwrap();
}

/// What a child said of each key before it died.
fn heard(said: impl Iterator<Item = String>) -> HashMap<String, (State, u64)> {
    let mut heard = HashMap::new();
    for line in said {
        let mut words = line.split(' ');
        let state = match words.next() {
            Some("claimed") => State::InProgress,
            Some("completed") => State::Completed,
            _ => continue,
        };
        let (Some(key), Some(token)) = (words.next(), words.next()) else { continue };
        heard.insert(key.to_owned(), (state, token.parse().unwrap()));
    }
    heard
}

/// Checks what is there against what was said; returns how many operations are there.
async fn check(disk: &Disk, heard: &HashMap<String, (State, u64)>) -> usize {
    let store = disk.open();
    assert_eq!(store.status().await.unwrap().went_back_from, None, "a crash is no restore");
    for (key, (state, token)) in heard {
        let record = store.get(request(key).operation.id()).await.unwrap().expect("what was said is there");
        assert_eq!(record.token.0, *token);
        match (state, record.state) {
            (State::Completed, State::Completed) => assert_eq!(record.outcome.unwrap(), *key),
            // Its completion may have happened without being heard of.
            (State::InProgress, State::InProgress | State::Completed) => {}
            other => panic!("{key} was said to be, and is: {other:?}"),
        }
    }
    let next = claim(&store, "after-the-crash").await.holder.token.0;
    assert!(heard.values().all(|(_, token)| next > *token), "no token is given twice");
    store.close().await;
    let count = "SELECT count(*) FROM semel_operation WHERE key <> 'after-the-crash'";
    let there = disk.meddle().query_row(count, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    let sound: String = disk.meddle().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
    there
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn a_crash_at_the_commit_leaves_all_of_the_transaction_or_none() {
    for passes in [0_usize, 1, 2, 5] {
        for point in ["sqlite-before-commit", "sqlite-after-commit"] {
            let disk = Disk::new();
            drop(disk.open());
            let mut command = child("sqlite::crash::child_that_works_until_it_dies", &disk.path());
            command.env("SEMEL_CRASH_AT", point).env("SEMEL_CRASH_AFTER", passes.to_string());
            let output = command.output().unwrap();
            assert!(!output.status.success(), "it died");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let heard = heard(said.lines().map(str::to_owned));
            // Two transactions per key: the claim and the completion.
            assert_eq!(heard.len(), passes.div_ceil(2), "{point} after {passes}: {said}");
            let committed = if point == "sqlite-after-commit" { passes + 1 } else { passes };
            assert_eq!(check(&disk, &heard).await, committed.div_ceil(2), "{point} after {passes}");
        }
    }
}

#[tokio::test]
async fn a_killed_process_loses_nothing_it_answered() {
    let disk = Disk::new();
    for lines in [1, 7, 40, 200] {
        let mut child = child("sqlite::crash::child_that_works_until_it_dies", &disk.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let first: Vec<String> = said.by_ref().filter(|line| line.contains("crash-")).take(lines).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        let heard = heard(first.into_iter().chain(said));
        assert!(check(&disk, &heard).await >= heard.len());
        // The next child starts with keys of its own.
        disk.meddle().execute_batch("DELETE FROM semel_operation").unwrap();
    }
}
