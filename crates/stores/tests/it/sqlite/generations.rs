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
    fn has_generations_of(&self, bits: u32) {
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
    let since = Instant::now();
    while disk.generations() != BTreeSet::from([0]) {
        store.sweep(10_000, 30 * DAY).await.unwrap();
        assert!(since.elapsed() < Duration::from_secs(60), "still in {:?}", disk.generations());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
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
        let scope = Scope::new("shop", "alice", "charge").unwrap();
        let key = format!("op-{n}").parse().unwrap();
        let call = Call::new(scope, key, prints.of_bytes(b"2000"), &Policy::default());
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        for begun in [tx::begin(&conn, &call), store.begin(&conn, &call)] {
            let begun = begun.unwrap();
            assert!(!matches!(begun, Begun::Run(_)), "op-{n}: {begun:?}");
        }
        conn.execute_batch("ROLLBACK").unwrap();
    }
}
