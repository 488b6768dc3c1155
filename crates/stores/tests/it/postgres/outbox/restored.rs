//! A database that was loaded elsewhere: noticed, and gone on with, with duplicates and no losses.

use std::path::Path;
use std::process::Command;

use semel_core::outbox::{Lane, Saved, Settled, Taken, Verdict};
use semel_core::{Nonce, Outbox};
use semel_stores::postgres::outbox::PostgresOutbox;

use super::super::rig::{client, named, with_database};
use super::super::standby::{must, run};
use super::desk::{LEASE, Relay, begin, connect, connect_to, sorted, write};

async fn why_stopped(outbox: &PostgresOutbox) -> Option<String> {
    match outbox.take(Lane(0), Nonce::random(), LEASE).await.map_err(|error| error.to_string()).unwrap() {
        Taken::Stopped { why } => Some(why),
        _ => None,
    }
}

// G-44: a copy publishes nothing until somebody says so, and then nothing that was settled.
#[test]
fn a_copy_of_the_files_stops_and_goes_on_where_it_was_when_rebased() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let writer = begin(&database).await;
        for n in 0..8 {
            write(&writer, &format!("k{n}"), &format!("sent {n}")).await;
        }
        writer.batch_execute("COMMIT").await.unwrap();
        let mut relay = Relay::of(&outbox).await;
        assert_eq!(relay.send_all(100).await.len(), 8);
        relay.give_back().await;
        writer.batch_execute("BEGIN").await.unwrap();
        write(&writer, "a", "waiting").await;
        writer.batch_execute("COMMIT").await.unwrap();
        drop((writer, outbox));
        let copy = database.copy().await;
        let outbox = connect(&copy).await;
        let why = why_stopped(&outbox).await.expect("it is another database");
        assert!(why.contains("rebase"), "{why}");
        assert_eq!(outbox.overview().await.unwrap().stopped, Some(why));
        assert_eq!(outbox.rebase("ops").await.unwrap(), 1);
        assert_eq!(outbox.overview().await.unwrap().stopped, None);
        assert_eq!(outbox.rebase("ops").await.unwrap(), 0, "once is enough");
        let mut relay = Relay::of(&outbox).await;
        assert_eq!(relay.send_all(100).await, ["waiting"]);
        let original = connect(&database).await;
        let mut relay = Relay::of(&original).await;
        assert_eq!(relay.send_all(100).await, ["waiting"], "the original knows nothing of it");
    });
}

/// A private cluster, made for one test and stopped with it.
pub(super) struct Cluster {
    programs: std::path::PathBuf,
    folder: tempfile::TempDir,
    port: u16,
}

impl Cluster {
    pub(super) fn start(programs: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let cluster = Self { programs: programs.into(), folder, port };
        let data = cluster.data();
        let options = ["-D", &data, "-U", "semel", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"];
        must(&run(&cluster.programs.join("initdb"), &options));
        cluster.up();
        cluster
    }

    /// What was not waited for stays in memory for ten seconds: a crash within them loses it.
    fn up(&self) {
        let (port, data) = (self.port, self.data());
        let settings = format!(
            "-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
             -c shared_buffers=16MB -c fsync=off -c wal_writer_delay=10s -c autovacuum=off \
             -c wal_level=minimal -c max_wal_senders=0"
        );
        let log = self.folder.path().join("log");
        let start = ["-D", &data, "-w", "-t", "60", "-l", log.to_str().unwrap(), "-o", &settings, "start"];
        must(&run(&self.programs.join("pg_ctl"), &start));
    }

    /// Down without a word, and up again.
    pub(super) fn crash(&self) {
        must(&run(&self.programs.join("pg_ctl"), &["-D", &self.data(), "-w", "-m", "immediate", "stop"]));
        self.up();
    }

    fn data(&self) -> String {
        self.folder.path().join("data").to_str().unwrap().to_owned()
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://semel@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = self.data();
        let control = self.programs.join("pg_ctl");
        let stopped = run(&control, &["-D", &data, "-w", "-m", "immediate", "stop"]);
        if !stopped.status.success() {
            eprintln!("{data} is left behind");
        }
        // It is the server's user who owns it.
        run(Path::new("rm"), &["-r", &data]);
    }
}

fn load(programs: &Path, from: &str, to: &str) {
    let dump = Command::new(programs.join("pg_dump")).arg("-d").arg(from).output().unwrap();
    must(&dump);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &dump.stdout).unwrap();
    let loaded = Command::new(programs.join("psql"))
        .args(["-q", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(file.path())
        .arg("-d")
        .arg(to)
        .output()
        .unwrap();
    must(&loaded);
}

// G-44: without a guard, a loaded database whose transactions count from lower down publishes nothing of
// what is written from then on, and says nothing.
#[test]
fn a_dump_loaded_into_a_new_cluster_stops_and_loses_nothing_when_rebased() {
    with_database(async |database| {
        let Some(programs) = named("SEMEL_TEST_PG_BIN") else { return };
        let outbox = connect(&database).await;
        // Far ahead of where a new cluster begins.
        let ahead =
            "DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
        database.run(ahead).await;
        let mut relay = Relay::of(&outbox).await;
        let writer = database.client().await;
        for n in 0..40 {
            write(&writer, &format!("k{}", n % 5), &format!("sent {n}")).await;
        }
        assert_eq!(relay.send_all(7).await.len(), 40);
        for n in 0..20 {
            write(&writer, &format!("k{}", n % 5), &format!("unsent {n}")).await;
        }
        // One lane is in the middle of a batch, one has parked a key.
        let mut parked = 0;
        for cursor in &mut relay.cursors {
            let read = cursor.next(3).await.unwrap();
            if read.len() == 3 && parked == 0 {
                cursor.save(&[Settled::Dead { reason: "never".into() }]).await.unwrap();
                parked = 1;
            }
        }
        assert_eq!(parked, 1);
        drop((relay, outbox));

        let cluster = Cluster::start(&programs);
        load(Path::new(&programs), &database.url(), &cluster.url());
        let outbox = connect_to(&cluster.url()).await;
        let new = client(&cluster.url()).await;
        // Written before anybody noticed, one of them in a savepoint.
        write(&new, "k0", "new 1").await;
        new.batch_execute("BEGIN; SAVEPOINT a").await.unwrap();
        write(&new, "k0", "new 2").await;
        new.batch_execute("COMMIT").await.unwrap();
        let why = why_stopped(&outbox).await.expect("the log speaks of another server");
        assert!(why.contains("rebase"), "{why}");
        assert!(outbox.overview().await.unwrap().stopped.is_some());
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "nothing is removed by a log of another server");
        assert_eq!(outbox.rebase("ops").await.unwrap(), 19 + 2);
        write(&new, "k0", "new 3").await;
        let mut relay = Relay::of(&outbox).await;
        let found = relay.send_all(6).await;
        let dead = outbox.aside(None, 0, 100).await.unwrap();
        let mut expected: Vec<String> = (0..20).map(|n| format!("unsent {n}")).collect();
        expected.extend((1..=3).map(|n| format!("new {n}")));
        let aside = dead.iter().map(|letter| super::desk::text(&letter.entry));
        let all: Vec<String> = found.iter().cloned().chain(aside).collect();
        assert_eq!(sorted(all), sorted(expected), "each once: what was settled is not sent again");
        assert!(relay.send_all(6).await.is_empty(), "and not for ever");
        drop((relay, outbox, new));
    });
}

// G-44: what was set aside stays aside, and the lane goes on.
#[test]
fn a_rebase_does_not_make_letters_new_again() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let writer = database.client().await;
        write(&writer, "a", "dead").await;
        write(&writer, "a", "behind").await;
        let mut relay = Relay::of(&outbox).await;
        for cursor in &mut relay.cursors {
            if cursor.next(1).await.unwrap().len() == 1 {
                cursor.save(&[Settled::Dead { reason: "never".into() }]).await.unwrap();
            }
        }
        drop(relay);
        // As after a return to an older state: a log of this server that knows of its future.
        let ahead =
            "UPDATE semel_outbox_cursor SET xid = pg_current_xact_id(), snapshot = '1000000000:1000000000:'";
        database.run(ahead).await;
        assert!(why_stopped(&outbox).await.unwrap().contains("rebase"));
        assert_eq!(outbox.rebase("ops").await.unwrap(), 1, "the letter is not sent again");
        let mut relay = Relay::of(&outbox).await;
        assert!(relay.send_all(10).await.is_empty(), "one is dead, the other waits behind it");
        let aside = outbox.aside(None, 0, 100).await.unwrap();
        let texts: Vec<String> = aside.iter().map(|letter| super::desk::text(&letter.entry)).collect();
        assert_eq!(texts, ["dead", "behind"]);
        outbox.judge(aside[0].entry.message.id, &Verdict::Discard).await.unwrap();
        assert_eq!(relay.send_all(10).await, ["behind"]);
    });
}

// G-43, G-44: a load into the same database, whose log counts on to where the lost one had been.
#[test]
fn what_a_sink_kept_of_a_lost_state_covers_nothing_after_a_rebase() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let writer = database.client().await;
        write(&writer, "a", "1").await;
        for table in ["semel_outbox", "semel_outbox_cursor"] {
            database.run(&format!("CREATE TABLE backup_{table} AS SELECT * FROM {table}")).await;
        }
        let mut lost = Vec::new();
        for round in 0..4 {
            let mut relay = Relay::of(&outbox).await;
            for cursor in &mut relay.cursors {
                let read = cursor.next(10).await.unwrap();
                lost.push((cursor.term().lane, cursor.position(read.len())));
                if !read.is_empty() {
                    cursor.save(&vec![Settled::Sent; read.len()]).await.unwrap();
                }
            }
            relay.give_back().await;
            write(&writer, "a", &format!("lost {round}")).await;
        }
        drop(outbox);
        for table in ["semel_outbox", "semel_outbox_cursor"] {
            database.run(&format!("TRUNCATE {table}")).await;
            database.run(&format!("INSERT INTO {table} SELECT * FROM backup_{table}")).await;
        }
        let outbox = connect(&database).await;
        assert!(why_stopped(&outbox).await.is_some(), "its rows were loaded");
        write(&writer, "a", "2").await;
        assert_eq!(outbox.rebase("ops").await.unwrap(), 2);
        write(&writer, "a", "3").await;
        let mut relay = Relay::of(&outbox).await;
        for (lane, position) in &lost {
            let cursor = relay.cursors.iter_mut().find(|cursor| cursor.term().lane == *lane).unwrap();
            assert_eq!(cursor.adopt(position).await.unwrap(), Saved::Kept);
        }
        assert_eq!(relay.send_all(10).await, ["1", "2", "3"]);
    });
}
