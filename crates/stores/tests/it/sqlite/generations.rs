//! An id is found in whichever generation it is, and by whom.

use std::collections::BTreeSet;
use std::time::Instant;

use semel_core::joined::Call;
use semel_core::{Fingerprinter, Policy};
use semel_stores::sqlite::tx::{self, Begun};
use semel_testkit::{Maker, conformance, execution, interleavings};

use super::*;

/// The suites with generations of two tokens, so that hardly two verbs about an operation see the same ones.
mod tiny {
    use super::*;

    conformance!(maker());
    execution!(maker());

    #[test]
    fn histories() {
        interleavings(maker(), 16);
    }

    fn maker() -> Maker {
        rig::maker_of(|disk| disk.has_generations_of(1))
    }
}

impl Disk {
    /// Makes the database anew with generations of 2 to the power of `bits` tokens.
    pub(super) fn has_generations_of(&self, bits: u32) {
        drop(self.open());
        let change = || self.meddle().execute("UPDATE semel_meta SET generation_bits = ?1", [bits]);
        while change().is_err() {
            std::thread::yield_now();
        }
    }

    fn generations(&self) -> BTreeSet<i64> {
        let conn = self.meddle();
        let mut statement = conn.prepare("SELECT DISTINCT generation FROM semel_operation").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    /// Sweeps until what is left of generations is in one place.
    async fn is_put_together(&self, store: &SqliteStore) {
        let since = Instant::now();
        while self.generations() != BTreeSet::from([0]) {
            store.sweep(10_000, 30 * DAY).await.unwrap();
            assert!(since.elapsed() < Duration::from_secs(60), "still in {:?}", self.generations());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// An operation in a transaction of the caller.
fn call(key: &str, prints: &Fingerprinter) -> Call {
    let scope = Scope::new("shop", "alice", "charge").unwrap();
    Call::new(scope, key.parse().unwrap(), prints.of_bytes(b"2000"), &Policy::default())
}

// G-8
#[tokio::test]
async fn who_came_later_finds_what_others_did_in_generations_long_closed() {
    let disk = Disk::new();
    disk.has_generations_of(4);
    let stores = [disk.open(), disk.open()];
    for n in 0..400 {
        complete(&stores[n % 2], &claim(&stores[n % 2], &format!("op-{n}")).await, format!("{n}")).await;
        // The other one, at once and about what is long past.
        for asked in [n, n / 2, n / 7] {
            let found = stores[(n + 1) % 2].claim(&request(&format!("op-{asked}"))).await.unwrap();
            assert!(matches!(found, Claim::Completed { .. }), "op-{asked} after op-{n}: {found:?}");
        }
    }
    assert_eq!(disk.generations().len(), 26, "tokens 1 to 400 in steps of 16");
    let third = disk.open();
    for n in 0..400 {
        let found = third.claim(&request(&format!("op-{n}"))).await.unwrap();
        assert!(matches!(found, Claim::Completed { .. }), "op-{n}, opened anew: {found:?}");
    }
}

// G-8: what has not ended stays, and must not keep its whole generation.
#[tokio::test]
async fn what_is_left_of_generations_is_put_together_and_still_found() {
    let disk = Disk::new();
    disk.has_generations_of(7);
    let clock = ManualClock::new();
    let store = SqliteStore::open_with(disk.path(), on_clock(&clock)).unwrap();
    for n in 0..400 {
        let lease = claim(&store, &format!("op-{n}")).await;
        if n % 100 != 50 {
            complete(&store, &lease, "done").await;
        }
    }
    clock.shift(i64::try_from((3 * DAY).as_micros()).unwrap());
    disk.is_put_together(&store).await;
    for n in (50..400).step_by(100) {
        let again = store.claim(&request(&format!("op-{n}"))).await.unwrap();
        assert!(matches!(again, Claim::Unknown { .. }), "op-{n} was given up without an end: {again:?}");
    }
}

// G-8
#[tokio::test]
async fn a_transaction_of_the_caller_finds_what_is_in_old_generations() {
    let disk = Disk::new();
    disk.has_generations_of(2);
    let store = disk.open();
    for n in 0..40 {
        complete(&store, &claim(&store, &format!("op-{n}")).await, "done").await;
    }
    let conn = disk.meddle();
    let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
    for n in 0..40 {
        let call = call(&format!("op-{n}"), &prints);
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        for begun in [tx::begin(&conn, &call), store.begin(&conn, &call)] {
            let begun = begun.unwrap();
            assert!(!matches!(begun, Begun::Run(_)), "op-{n}: {begun:?}");
        }
        conn.execute_batch("ROLLBACK").unwrap();
    }
}

// G-8, G-13
#[tokio::test]
async fn a_state_from_before_records_were_put_elsewhere_is_noticed_when_it_comes_back() {
    let disk = Disk::new();
    disk.has_generations_of(5);
    let clock = ManualClock::new();
    let store = SqliteStore::open_with(disk.path(), on_clock(&clock)).unwrap();
    for n in 0..100 {
        let lease = claim(&store, &format!("op-{n}")).await;
        if n != 10 {
            complete(&store, &lease, "done").await;
        }
    }
    let copy = disk.0.path().join("copy.db");
    disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    clock.shift(i64::try_from((3 * DAY).as_micros()).unwrap());
    disk.is_put_together(&store).await;
    // The file stays, with what the copy has: no other file is there, and no token was given since.
    let here = disk.meddle();
    here.busy_timeout(Duration::from_secs(30)).unwrap();
    here.execute("ATTACH ?1 AS copy", [copy.to_str().unwrap()]).unwrap();
    here.execute_batch(
        "BEGIN IMMEDIATE;
         DELETE FROM semel_operation;
         INSERT INTO semel_operation SELECT * FROM copy.semel_operation;
         UPDATE semel_meta SET token = (SELECT token FROM copy.semel_meta);
         COMMIT;",
    )
    .unwrap();
    assert!(disk.generations().contains(&1), "it is where it was");
    let again = store.claim(&request("op-10")).await;
    refused(again, Kind::WentBack);
}

// G-8
#[tokio::test]
async fn a_copy_of_the_file_is_not_looked_into_with_the_filter_of_another() {
    let disk = Disk::new();
    disk.has_generations_of(4);
    let store = disk.open();
    for n in 0..200 {
        complete(&store, &claim(&store, &format!("here-{n}")).await, "done").await;
    }
    let copy = Disk::new();
    disk.meddle().execute("VACUUM INTO ?1", [copy.path().to_str().unwrap()]).unwrap();
    let elsewhere = copy.open();
    for n in 0..200 {
        let lease = claim(&elsewhere, &format!("there-{n}")).await;
        complete(&elsewhere, &lease, "done").await;
    }
    // This one goes on as well, so that its filter knows all generations that the copy has.
    for n in 200..400 {
        complete(&store, &claim(&store, &format!("here-{n}")).await, "done").await;
    }
    let conn = copy.meddle();
    let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
    for n in 0..200 {
        let call = call(&format!("there-{n}"), &prints);
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        let begun = store.begin(&conn, &call).unwrap();
        assert!(!matches!(begun, Begun::Run(_)), "there-{n}: {begun:?}");
        conn.execute_batch("ROLLBACK").unwrap();
    }
}

// G-8
#[tokio::test]
async fn operations_of_one_transaction_may_cross_generations_and_savepoints() {
    let disk = Disk::new();
    disk.has_generations_of(1);
    let store = disk.open();
    let conn = disk.meddle();
    let prints = Fingerprinter::new(store.status().await.unwrap().hash_keys).unwrap();
    let runs = |n: usize| {
        let begun = store.begin(&conn, &call(&format!("op-{n}"), &prints)).unwrap();
        matches!(begun, Begun::Run(_))
    };
    for round in 0..20 {
        conn.execute_batch("BEGIN IMMEDIATE; SAVEPOINT tried").unwrap();
        assert!((0..7).all(|n| runs(100 * round + n)));
        conn.execute_batch("ROLLBACK TO tried").unwrap();
        assert!((0..5).all(|n| runs(100 * round + n)), "what was rolled back did not happen");
        conn.execute_batch("COMMIT").unwrap();
        for n in (0..=round).flat_map(|round| (0..5).map(move |n| 100 * round + n)) {
            let found = store.claim(&request(&format!("op-{n}"))).await.unwrap();
            assert!(!matches!(found, Claim::Granted(_)), "op-{n}, after {round}");
        }
    }
}

// G-8
#[tokio::test]
async fn records_of_earlier_builds_are_found_when_the_file_was_migrated() {
    let disk = Disk::new();
    let store = disk.open();
    for n in 0..50 {
        complete(&store, &claim(&store, &format!("op-{n}")).await, "done").await;
    }
    store.close().await;
    disk.meddle()
        .execute_batch(
            "BEGIN;
             DROP INDEX semel_operation_id;
             ALTER TABLE semel_operation DROP COLUMN generation;
             ALTER TABLE semel_meta DROP COLUMN generation_bits;
             CREATE UNIQUE INDEX semel_operation_id ON semel_operation (id);
             DELETE FROM semel_schema WHERE version >= 6;
             COMMIT;",
        )
        .unwrap();
    let store = disk.open();
    assert_eq!(disk.generations(), BTreeSet::from([0]));
    for n in 0..50 {
        let found = store.claim(&request(&format!("op-{n}"))).await.unwrap();
        assert!(matches!(found, Claim::Completed { .. }), "op-{n}: {found:?}");
    }
    claim(&store, "another").await;
    assert_eq!(disk.generations(), BTreeSet::from([0, 1]));
}
