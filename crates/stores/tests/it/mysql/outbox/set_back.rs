//! A database that is set back to an older state under those who have it open, as a failover to a replica without the last
//! commits does.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use semel_core::outbox::{Lane, Taken};
use semel_core::{Nonce, Outbox};
use semel_stores::mysql::outbox::MysqlOutbox;

use super::super::rig::{Database, with_database};
use super::desk::{LEASE, Relay, connect, patient};
use super::restored::fill;

/// What a relay would write into its witness now.
async fn witness(database: &Database, outbox: &MysqlOutbox) -> String {
    let store: String = outbox.facts().store_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let epoch = database.number("SELECT epoch FROM semel_outbox_meta").await;
    let settled = database.number("SELECT MAX(settled) FROM semel_outbox_lane").await;
    format!("semel witness 1\nstore {store}\nepoch {epoch}\ntoken {settled}\n")
}

// G-44
#[test]
fn a_relay_beside_lanes_that_are_saved_does_not_take_that_for_a_restore() {
    with_database(async |database| {
        let folder = tempfile::tempdir().unwrap();
        // Whoever reads a pipe waits for what is written to it.
        let pipe = folder.path().join("late-outbox");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut options = patient(database.url());
        options.witness = Some(folder.path().join("late"));
        let busy = connect(&database).await;
        let mut relay = Relay::of(&busy).await;
        for looks in [true, false] {
            let options = options.clone();
            // On a thread of its own, because it is held up.
            let asked = tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let late = MysqlOutbox::connect_with(options).await.unwrap();
                    if looks {
                        return late.overview().await.unwrap().stopped;
                    }
                    match late.take(Lane(0), Nonce::random(), LEASE).await.unwrap() {
                        Taken::Stopped { why } => Some(why),
                        _ => None,
                    }
                })
            });
            let pipe = pipe.clone();
            let open = move || File::options().write(true).open(pipe).unwrap();
            let mut seen = tokio::task::spawn_blocking(open).await.unwrap();
            // It has begun to look, and meanwhile the others go on.
            fill(&database, &["a"]).await;
            assert_eq!(relay.send_all(10).await, ["a"]);
            seen.write_all(witness(&database, &busy).await.as_bytes()).unwrap();
            drop(seen);
            assert_eq!(asked.await.unwrap(), None);
        }
    });
}
