//! A database that is set back to an older state under those who have it open, as a failover to a replica without the last
//! commits does.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use std::time::Duration;

use semel_core::error::Kind;
use semel_core::outbox::{Cursor, Lane, Saved, Settled, Taken};
use semel_core::{Error, Nonce, Outbox};
use semel_stores::mysql::outbox::{MysqlOutbox, enqueue};

use super::super::proxy::{Cut, Proxy};
use super::super::rig::{Database, OUTBOX_TABLES, with_database};
use super::desk::{LEASE, Relay, connect, message, patient, take, text};
use super::restored::{fill, stopped};

/// The letters' own columns: a computed one cannot be copied with the others.
const LETTER: &str = "sequence, lane, id, written_at, topic, `key`, headers, content_type, correlation, causation, \
                      trace_parent, deliver_after, payload, aside, tries, reason, since, again_at";

/// Each table, and what of it is copied.
fn tables() -> impl Iterator<Item = (&'static str, String, &'static str)> {
    let whole = OUTBOX_TABLES.map(|table| (table, table.to_owned(), "*"));
    whole.into_iter().chain([("semel_outbox_aside", format!("semel_outbox_aside ({LETTER})"), LETTER)])
}

impl Database {
    pub(super) async fn back_up(&self) {
        for (table, into, what) in tables() {
            self.run(&format!("DROP TABLE IF EXISTS backup_{table}")).await;
            self.run(&format!("CREATE TABLE backup_{table} LIKE {table}")).await;
            self.run(&format!("INSERT INTO backup_{into} SELECT {what} FROM {table}")).await;
        }
    }

    /// Numbers go back, too.
    pub(super) async fn set_back(&self) {
        for (table, into, what) in tables() {
            self.run(&format!("TRUNCATE TABLE {table}")).await;
            self.run(&format!("INSERT INTO {into} SELECT {what} FROM backup_{table}")).await;
        }
    }

    /// Writes messages of one key.
    async fn write(&self, key: &str, texts: &[&str]) {
        let messages: Vec<_> = texts.iter().map(|text| message(key, text)).collect();
        enqueue(&mut self.client().await, &messages).await.unwrap();
    }

    async fn take_lane_of(&self, outbox: &MysqlOutbox, key: &str) -> Box<dyn Cursor> {
        take(outbox, self.number(&format!("SELECT CRC32('{key}') % 8")).await as u16).await
    }
}

async fn texts(cursor: &mut Box<dyn Cursor>) -> Vec<String> {
    cursor.next(100).await.unwrap().iter().map(text).collect()
}

/// What ends a relay until somebody rebases.
fn went_back(saved: Result<Saved, Error>) -> String {
    let error = saved.unwrap_err();
    assert_eq!(error.kind(), Kind::WentBack, "{error}");
    assert!(!error.outcome_is_unknown(), "{error}");
    let text = error.to_string();
    assert!(text.contains("set back") && text.contains("Rebase"), "{text}");
    text
}

/// Whatever a relay may say of a message.
fn verdicts() -> [Settled; 4] {
    let reason = || "no".to_owned();
    let later = Settled::Later { reason: reason(), again_in: Duration::ZERO };
    [Settled::Sent, Settled::Dead { reason: reason() }, later, Settled::Behind]
}

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

// G-40, G-44
#[test]
fn a_message_that_got_the_number_of_a_lost_one_is_not_settled_in_its_place() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        for settled in verdicts() {
            let mut cursor = database.take_lane_of(&outbox, "a").await;
            database.back_up().await;
            database.write("a", &["lost"]).await;
            assert_eq!(texts(&mut cursor).await, ["lost"]);
            database.set_back().await;
            database.write("a", &["another"]).await;
            let text = went_back(cursor.save(std::slice::from_ref(&settled)).await);
            assert!(text.contains("of 1 messages that this relay has read 0"), "{text}");
            assert_eq!(outbox.list(None, 0, 10).await.unwrap().len(), 1, "{settled:?}");
            assert!(outbox.aside(None, 0, 10).await.unwrap().is_empty(), "{settled:?}");
            outbox.rebase("ops").await.unwrap();
            assert_eq!(cursor.save(&[]).await.unwrap(), Saved::Fenced);
            let mut cursor = database.take_lane_of(&outbox, "a").await;
            assert_eq!(texts(&mut cursor).await, ["another"]);
            cursor.save(&[Settled::Sent]).await.unwrap();
            cursor.give_back().await.unwrap();
        }
    });
}

// G-40, G-44
#[test]
fn a_letter_that_has_the_number_of_a_lost_one_is_not_settled_in_its_place() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.write("a", &["1"]).await;
        let mut cursor = database.take_lane_of(&outbox, "a").await;
        assert_eq!(texts(&mut cursor).await, ["1"]);
        cursor.save(&[verdicts()[2].clone()]).await.unwrap();
        for settled in verdicts() {
            assert_eq!(texts(&mut cursor).await, ["1"]);
            database.run("UPDATE semel_outbox_aside SET id = UNHEX(MD5(HEX(id)))").await;
            let letters = format!("{:?}", outbox.aside(None, 0, 10).await.unwrap());
            went_back(cursor.save(std::slice::from_ref(&settled)).await);
            let left = format!("{:?}", outbox.aside(None, 0, 10).await.unwrap());
            assert_eq!(left, letters, "{settled:?}");
            database.run("UPDATE semel_outbox_lane SET lease_until = 0").await;
            cursor = database.take_lane_of(&outbox, "a").await;
        }
    });
}

// G-42: a server that forgot who took a lane gives the same epoch again.
#[test]
fn a_holder_under_the_same_epoch_shuts_the_other_out() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.write("a", &["1"]).await;
        let mut cursor = database.take_lane_of(&outbox, "a").await;
        assert_eq!(texts(&mut cursor).await, ["1"]);
        let other = "UPDATE semel_outbox_lane SET holder = UNHEX(MD5('another')) WHERE holder IS NOT NULL";
        database.run(other).await;
        assert_eq!(cursor.save(&[Settled::Sent]).await.unwrap(), Saved::Fenced);
        cursor.give_back().await.unwrap();
        assert_eq!(database.number("SELECT COUNT(holder) FROM semel_outbox_lane").await, 1);
        assert_eq!(outbox.list(None, 0, 10).await.unwrap().len(), 1);
    });
}

// G-44: another relay may have taken lanes since, which raises the epoch.
#[test]
fn a_later_holding_does_not_hide_that_messages_are_gone() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        database.back_up().await;
        database.write("a", &["1", "2"]).await;
        assert_eq!(relay.send_all(10).await, ["1", "2"]);
        relay.give_back().await;
        database.set_back().await;
        database.run("UPDATE semel_outbox_meta SET epoch = 99").await;
        let why = stopped(&outbox).await;
        assert!(why.contains("message 0, and was seen at epoch 8, message 2"), "{why}");
    });
}

// G-44: `semel outbox rebase` remembers nothing of the lost state.
#[test]
fn a_rebase_by_another_process_opens_the_outbox_to_who_had_seen_more() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.back_up().await;
        let mut relay = Relay::of(&outbox).await;
        database.write("a", &["1", "2"]).await;
        assert_eq!(relay.send_all(10).await, ["1", "2"]);
        let lost = relay.cursors.iter().map(|cursor| cursor.term().epoch).max().unwrap();
        relay.give_back().await;
        database.set_back().await;
        assert!(stopped(&outbox).await.contains("was seen at"));
        connect(&database).await.rebase("ops").await.unwrap();
        let cursor = take(&outbox, 0).await;
        assert!(cursor.term().epoch > lost);
        assert_eq!(outbox.overview().await.unwrap().stopped, None);
    });
}

// G-40, G-44: nobody else has the lane, and to take it again would not help.
#[test]
fn what_waits_again_below_what_was_read_is_not_passed_by() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.write("a", &["1", "2"]).await;
        let mut cursor = database.take_lane_of(&outbox, "a").await;
        database.back_up().await;
        cursor.next(1).await.unwrap();
        cursor.save(&[Settled::Dead { reason: "no".into() }]).await.unwrap();
        cursor.next(1).await.unwrap();
        database.set_back().await;
        for settled in [&[Settled::Behind][..], &[]] {
            let text = went_back(cursor.save(settled).await);
            assert!(text.contains("had seen 1 saves, and this database knows of 0"), "{text}");
        }
        outbox.rebase("ops").await.unwrap();
        assert_eq!(cursor.save(&[]).await.unwrap(), Saved::Fenced);
        assert_eq!(texts(&mut database.take_lane_of(&outbox, "a").await).await, ["1", "2"]);
    });
}

// G-42, G-44
#[test]
fn a_save_in_doubt_is_found_out_and_does_not_hide_that_saves_are_gone() {
    with_database(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let outbox = MysqlOutbox::connect_with(patient(proxy.url())).await.unwrap();
        database.write("a", &["1", "2"]).await;
        let mut cursor = database.take_lane_of(&outbox, "a").await;
        database.back_up().await;
        // Its commit came, or did not: no alarm.
        for cut in [Cut::CommitAnswer, Cut::Commit] {
            cursor.next(1).await.unwrap();
            proxy.cut_next(cut);
            let error = cursor.save(&[Settled::Sent]).await.unwrap_err();
            assert!(error.outcome_is_unknown(), "{error}");
            assert_eq!(cursor.save(&[Settled::Sent]).await.unwrap(), Saved::Kept);
        }
        proxy.cut_next(Cut::CommitAnswer);
        cursor.save(&[]).await.unwrap_err();
        database.set_back().await;
        went_back(cursor.save(&[]).await);
    });
}

// G-43, G-44: what was set aside waits again, before what had landed.
#[test]
fn what_a_sink_kept_of_a_lost_state_covers_nothing_after_a_rebase() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.write("a", &["1", "2"]).await;
        let mut cursor = database.take_lane_of(&outbox, "a").await;
        assert_eq!(texts(&mut cursor).await, ["1", "2"]);
        let landed = cursor.position(2);
        database.run("UPDATE semel_outbox_lane SET lease_until = 0").await;
        let mut cursor = database.take_lane_of(&outbox, "a").await;
        outbox.rebase("ops").await.unwrap();
        assert_eq!(cursor.adopt(&landed).await.unwrap(), Saved::Fenced);
        let mut cursor = database.take_lane_of(&outbox, "a").await;
        assert_eq!(cursor.adopt(&landed).await.unwrap(), Saved::Kept);
        assert_eq!(texts(&mut cursor).await, ["1", "2"]);
        // What it says of this state counts.
        let landed = cursor.position(1);
        assert_eq!(cursor.adopt(&landed).await.unwrap(), Saved::Kept);
        assert_eq!(texts(&mut cursor).await, ["2"]);
    });
}

// G-43, G-44
#[test]
fn a_sink_that_knows_of_saves_or_holdings_that_are_gone_is_heard() {
    with_database(async |database| {
        for (saves, epochs) in [(true, false), (false, true)] {
            let outbox = connect(&database).await;
            database.write("a", &["1", "2"]).await;
            let mut cursor = database.take_lane_of(&outbox, "a").await;
            if epochs {
                database.run("UPDATE semel_outbox_lane SET lease_until = 0").await;
            }
            database.back_up().await;
            if epochs {
                cursor = database.take_lane_of(&outbox, "a").await;
            }
            cursor.next(1).await.unwrap();
            if saves {
                cursor.save(&[Settled::Dead { reason: "no".into() }]).await.unwrap();
                cursor.next(1).await.unwrap();
            }
            let landed = cursor.position(1);
            database.set_back().await;
            database.run("UPDATE semel_outbox_lane SET lease_until = 0").await;
            if epochs {
                // Other lanes were not taken as often as this one had been.
                database.run("UPDATE semel_outbox_meta SET epoch = epoch - 1").await;
            }
            // One that remembers nothing.
            let outbox = connect(&database).await;
            let mut cursor = database.take_lane_of(&outbox, "a").await;
            let text = went_back(cursor.adopt(&landed).await);
            assert!(text.contains("a sink knows of"), "{text}");
            cursor.give_back().await.unwrap();
        }
    });
}
