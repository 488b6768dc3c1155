//! Rows nobody can have written.

use semel_core::error::Kind;
use semel_core::record::State;
use semel_core::store::Filter;

use super::*;

const DAMAGE: &[&str] = &[
    "id = zeroblob(32)",
    "id = x'01'",
    "state = 0",
    "state = 9",
    "state = -1",
    "attempts = -1",
    "attempts = 1 << 40",
    "recovery = 7",
    "lease = -1",
    "ttl = -5",
    "nonce = x'0102'",
    "nonce = zeroblob(17)",
    "namespace = ''",
    "route = 'other'",
    "tenant = NULL",
    "tenant = ''",
    "key = 'two words'",
    "key = cast(x'fffe' AS TEXT)",
    "subject = cast(x'fffe' AS TEXT)",
    "print_version = -1",
    "print_digest = x''",
    "print_paths = x'ff'",
    "history = x'01ffffff'",
    "history = x''",
];

#[tokio::test]
async fn a_damaged_field_is_an_error_that_names_the_record_and_frees_no_key() {
    for damage in DAMAGE {
        let disk = Disk::new();
        let store = disk.open();
        let wish = request("damaged");
        let lease = granted(store.claim(&wish).await.unwrap());
        disk.meddle().execute(&format!("UPDATE semel_operation SET {damage}"), []).unwrap();
        if !damage.starts_with("id") {
            let text = refused(store.get(wish.operation.id()).await, Kind::Damaged);
            assert!(text.contains("token 1"), "{damage}: {text}");
            refused(store.claim(&request("damaged")).await, Kind::Damaged);
            let complete = Complete { holder: lease.holder, outcome: "x".into(), ttl_min: None };
            refused(store.complete(&complete).await, Kind::Damaged);
        }
        let sound = claim(&store, "sound").await;
        for filter in [Filter::unsettled(), Filter::default()] {
            let page = store.list(&filter, semel_core::Token(0), 10).await.unwrap();
            let found: Vec<_> = page.records.iter().map(|record| record.token).collect();
            assert_eq!(found, [sound.holder.token], "{damage}: it hides no other record");
        }
    }
}

#[tokio::test]
async fn a_negative_token_counter_is_an_error() {
    let disk = Disk::new();
    let store = disk.open();
    disk.meddle().execute("UPDATE semel_meta SET token = -1", []).unwrap();
    refused(store.claim(&request("counter")).await, Kind::Damaged);
    disk.meddle().execute("DELETE FROM semel_meta", []).unwrap();
    let text = refused(store.claim(&request("counter")).await, Kind::Damaged);
    assert!(text.contains("missing"), "{text}");
}

// G-10, G-11
#[tokio::test]
async fn the_sweeper_looks_again_at_what_it_keeps_and_passes_by_what_it_cannot_read() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let store = SqliteStore::open_with(disk.path(), on_clock(&clock)).unwrap();
    let open = claim(&store, "open").await;
    let late = claim(&store, "late").await;
    let unreadable = claim(&store, "unreadable").await;
    complete(&store, &claim(&store, "done").await, "paid").await;
    let look_at = |token: semel_core::Token| -> i64 {
        let sql = "SELECT sweep_at FROM semel_operation WHERE token = ?1";
        disk.meddle().query_row(sql, [token.0 as i64], |row| row.get(0)).unwrap()
    };
    let first = look_at(late.holder.token);
    clock.shift(DAY.as_micros() as i64 - 1);
    complete(&store, &late, "paid late").await;
    assert_eq!(look_at(late.holder.token), first, "a completion leaves the sweeper's index alone");
    disk.meddle().execute("UPDATE semel_operation SET nonce = x'' WHERE key = 'unreadable'", []).unwrap();

    assert_eq!(store.sweep(100, DAY).await.unwrap(), Default::default(), "nothing is due");
    clock.shift(1);
    let report = store.sweep(100, DAY).await.unwrap();
    assert_eq!((report.deleted, report.shrunk, report.more), (1, 0, false));
    let window = (DAY / 3).as_micros() as i64;
    assert_eq!(look_at(late.holder.token), first - 1 + window, "when it expires");
    assert_eq!(look_at(open.holder.token), first + DAY.as_micros() as i64);
    assert!(look_at(unreadable.holder.token) > first);
    assert_eq!(store.sweep(100, DAY).await.unwrap(), Default::default(), "nothing is due any more");

    clock.shift(window);
    assert_eq!(store.sweep(100, DAY).await.unwrap().deleted, 1);
    let open = store.get(open.holder.operation).await.unwrap().unwrap();
    assert_eq!(open.state, State::InProgress);
}

// G-11: more than one chunk.
#[tokio::test]
async fn a_long_sweep_goes_in_steps_and_counts_them_all() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let store = SqliteStore::open_with(disk.path(), on_clock(&clock)).unwrap();
    for n in 0..300 {
        let lease = claim(&store, &format!("sweep-{n}")).await;
        complete(&store, &lease, "paid").await;
    }
    clock.shift(2 * DAY.as_micros() as i64);
    let report = store.sweep(200, DAY).await.unwrap();
    assert_eq!((report.deleted, report.more), (200, true));
    let report = store.sweep(200, DAY).await.unwrap();
    assert_eq!((report.deleted, report.more), (100, false));
}
