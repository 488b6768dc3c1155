//! What a relay that dies around its save leaves behind. The process that dies is this test binary.

use std::process::{Command, Stdio};

use mysql_async::prelude::Queryable;
use semel_core::Outbox;
use semel_core::outbox::Settled;
use semel_stores::mysql::outbox::MysqlOutbox;

use super::super::rig::{Database, with_database};
use super::desk::{Relay, begin, connect, patient, take, write};

const CHILD: &str = "mysql::outbox::crash::the_relay_that_crashes";

fn crash_at(database: &Database, point: &str) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--nocapture"])
        .env("SEMEL_CRASH_AT", point)
        .env("SEMEL_CRASH_URL", database.url())
        .env_remove("SEMEL_TEST_LEDGER")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success(), "the child must die at {point}");
    assert_ne!(status.code(), Some(101), "a panic is not the crash that was ordered at {point}");
}

/// Does nothing unless the test below started it. Settles the first of three, and parks the rest.
#[test]
fn the_relay_that_crashes() {
    let Ok(url) = std::env::var("SEMEL_CRASH_URL") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let outbox = MysqlOutbox::connect_with(patient(url)).await.unwrap();
        for lane in 0..outbox.facts().lanes {
            let mut cursor = take(&outbox, lane).await;
            if cursor.next(10).await.unwrap().len() == 3 {
                let dead = Settled::Dead { reason: "never".into() };
                cursor.save(&[Settled::Sent, dead, Settled::Behind]).await.unwrap();
            }
        }
    });
}

// G-40, G-42, G-44: all of a save or nothing.
#[test]
fn a_crash_around_the_commit_of_a_save_leaves_all_of_it_or_nothing() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        for (point, landed) in [("my-outbox-before-save", false), ("my-outbox-after-save", true)] {
            let mut writer = begin(&database).await;
            for n in 1..=3 {
                write(&mut writer, "a", &n.to_string()).await;
            }
            writer.query_drop("COMMIT").await.unwrap();
            crash_at(&database, point);
            database.run("UPDATE semel_outbox_lane SET lease_until = 0").await;
            let letters = outbox.aside(None, 0, 10).await.unwrap().len();
            assert_eq!(letters, if landed { 2 } else { 0 }, "{point}");
            let mut relay = Relay::of(&outbox).await;
            let sent = relay.send_all(10).await;
            assert_eq!(sent.len(), if landed { 0 } else { 3 }, "{point}");
            relay.give_back().await;
        }
    });
}
