//! What was read is removed, and nothing else ever is.

use std::time::Duration;

use semel_core::Outbox;
use semel_core::error::Kind;
use semel_core::outbox::{Saved, Settled};
use semel_stores::postgres::outbox::enqueue;
use tokio_postgres::error::SqlState;

use super::super::rig::{Database, with_database};
use super::desk::{Relay, begin, connect, message, sorted, take, write};

/// Messages that were settled long ago, and looks after that.
const MANY: usize = 4000;
const ROUNDS: usize = 10;
/// Messages read at once of a backlog that is much larger.
const STEP: usize = 50;
/// The numbers of a part.
const PART: i64 = 1 << 20;

async fn commit(database: &Database, key: &str, text: &str) {
    let writer = begin(database).await;
    write(&writer, key, text).await;
    writer.batch_execute("COMMIT").await.unwrap();
}

/// The next message is the first of that part, counted without end.
async fn go_to_part(database: &Database, part: i64) {
    database.run(&format!("SELECT setval('semel_outbox_sequence', {})", (part * PART).max(1))).await;
}

async fn rows(database: &Database) -> i64 {
    database.number("SELECT count(*) FROM semel_outbox").await
}

// G-40: a part goes when all of it is settled and that is saved; never before.
#[test]
fn a_part_is_emptied_only_when_every_lane_has_saved_that_it_is_settled() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        for n in 0..16 {
            commit(&database, &format!("k{n}"), &n.to_string()).await;
        }
        go_to_part(&database, 3).await;
        commit(&database, "k0", "later").await;
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "nobody has read anything");
        let mut relay = Relay::of(&outbox).await;
        for cursor in relay.cursors.iter_mut().skip(1) {
            let read = cursor.next(100).await.unwrap();
            assert_eq!(cursor.save(&vec![Settled::Sent; read.len()]).await.unwrap(), Saved::Kept);
        }
        let read = relay.cursors[0].next(100).await.unwrap();
        assert!(!read.is_empty());
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "one lane has read, and not saved");
        assert_eq!(rows(&database).await, 17);
        let settled = vec![Settled::Sent; read.len()];
        assert_eq!(relay.cursors[0].save(&settled).await.unwrap(), Saved::Kept);
        assert_eq!(outbox.tend().await.unwrap().removed, 16);
        assert_eq!(rows(&database).await, 1, "what is in the part being written stays");
    });
}

// G-40: a message without a lane is refused; one in a lane there is not is at least not removed; one in a lane that
// is another key's stops that lane, because it would be out of order.
#[test]
fn a_message_written_past_the_library_is_in_its_lane_or_told() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let into = |lane: &str, text: &str| {
            format!(
                "INSERT INTO semel_outbox (lane, id, topic, key, payload) \
                 VALUES ({lane}, gen_random_uuid(), 'orders', 'a', '{text}')"
            )
        };
        let mend = "UPDATE semel_outbox SET lane = semel_outbox_lane(id, key), xid = pg_current_xact_id() \
                    WHERE lane <> semel_outbox_lane(id, key)";
        commit(&database, "a", "1").await;
        let client = database.client().await;
        let without =
            "INSERT INTO semel_outbox (id, topic, payload) VALUES (gen_random_uuid(), 'orders', '')";
        for statement in [without, &into("NULL", "2")] {
            let refused = client.batch_execute(statement).await.unwrap_err();
            assert_eq!(refused.code(), Some(&SqlState::NOT_NULL_VIOLATION), "{refused:?}");
        }
        database.run(&into("semel_outbox_lane(NULL, 'a')", "2")).await;
        let mut relay = Relay::of(&outbox).await;
        assert_eq!(relay.send_all(100).await, ["1", "2"], "in the same lane, in order");

        database.run(&into("semel_outbox_lanes()", "3")).await;
        go_to_part(&database, 3).await;
        commit(&database, "a", "4").await;
        assert_eq!(relay.send_all(100).await, ["4"]);
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "nobody has read one of them");
        database.run(mend).await;
        assert_eq!(relay.send_all(100).await, ["3"]);
        assert_eq!(outbox.tend().await.unwrap().removed, 3);

        database.run(&into("(semel_outbox_lane(NULL, 'a') + 1) % semel_outbox_lanes()", "5")).await;
        let mut told = Vec::new();
        for cursor in &mut relay.cursors {
            told.extend(cursor.next(100).await.err());
        }
        assert_eq!(told.iter().map(|error| error.kind()).collect::<Vec<_>>(), [Kind::Damaged], "{told:?}");
        database.run(mend).await;
        assert_eq!(relay.send_all(100).await, ["5"]);
    });
}

// G-40: TRUNCATE asks for the part alone, so whoever has written there and not committed is safe.
#[test]
fn a_part_with_rows_that_are_not_committed_is_left_alone() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        let late = begin(&database).await;
        write(&late, "a", "late").await;
        commit(&database, "b", "early").await;
        go_to_part(&database, 3).await;
        commit(&database, "b", "later").await;
        assert_eq!(sorted(relay.send_all(100).await), ["early", "later"]);
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "somebody is still there");
        late.batch_execute(&format!("PREPARE TRANSACTION '{}'", database.name)).await.unwrap();
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "prepared or not");
        late.batch_execute(&format!("COMMIT PREPARED '{}'", database.name)).await.unwrap();
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "committed and not read");
        assert_eq!(relay.send_all(100).await, ["late"]);
        assert_eq!(outbox.tend().await.unwrap().removed, 2);
        assert_eq!(rows(&database).await, 1);
    });
}

// G-40, G-41: when the ring comes round to what was never read, old and new stand side by side.
#[test]
fn a_ring_that_comes_round_to_unread_messages_loses_none_and_keeps_their_order() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut written = Vec::new();
        // Twice around, with nobody reading.
        for part in 0..17 {
            go_to_part(&database, part).await;
            for n in 0..3 {
                commit(&database, "a", &format!("{part}-{n}")).await;
                written.push(format!("{part}-{n}"));
            }
            assert_eq!(outbox.tend().await.unwrap().removed, 0);
        }
        let mut relay = Relay::of(&outbox).await;
        // In parts, with housekeeping in between.
        let mut found = Vec::new();
        for cursor in &mut relay.cursors {
            loop {
                let read = cursor.next(4).await.unwrap();
                assert_eq!(cursor.save(&vec![Settled::Sent; read.len()]).await.unwrap(), Saved::Kept);
                outbox.tend().await.unwrap();
                if read.is_empty() {
                    break;
                }
                found.extend(read.iter().map(super::desk::text));
            }
        }
        assert_eq!(found, written);
        outbox.tend().await.unwrap();
        // Part 16 is part 0 of the ring, and the one being written: what shares it or the next stays a while.
        assert_eq!(rows(&database).await, 15);
        go_to_part(&database, 19).await;
        commit(&database, "a", "last").await;
        assert_eq!(relay.send_all(10).await, ["last"]);
        assert_eq!(outbox.tend().await.unwrap().removed, 15);
        assert_eq!(rows(&database).await, 1);
    });
}

// G-40: an outbox that is hardly used does not keep what it published for ever.
#[test]
fn an_old_part_is_emptied_even_while_it_is_the_one_written() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        commit(&database, "a", "1").await;
        assert_eq!(relay.send_all(10).await, ["1"]);
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "not at once");
        database.run("UPDATE semel_outbox SET at = at - 7200000000").await;
        let writer = begin(&database).await;
        write(&writer, "a", "2").await;
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "nobody is made to wait for it");
        writer.batch_execute("COMMIT").await.unwrap();
        assert_eq!(outbox.tend().await.unwrap().removed, 0, "not read yet");
        assert_eq!(relay.send_all(10).await, ["2"]);
        assert_eq!(outbox.tend().await.unwrap().removed, 2);
        commit(&database, "a", "3").await;
        assert_eq!(relay.send_all(10).await, ["3"]);
    });
}

// G-42: the log is cut while lanes are held, given back and never taken, and nobody is fenced by it.
#[test]
fn the_log_is_rotated_and_every_lane_goes_on_where_it_was() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.run("UPDATE semel_outbox_setting SET log_bytes = 1").await;
        let mut busy = take(&outbox, 0).await;
        let mut idle = take(&outbox, 1).await;
        let mut back = take(&outbox, 2).await;
        back.save(&[]).await.unwrap();
        back.give_back().await.unwrap();
        let written: Vec<_> = (0..64).map(|n| message(&format!("k{n}"), &n.to_string())).collect();
        let writer = begin(&database).await;
        semel_stores::postgres::outbox::enqueue(&writer, &written).await.unwrap();
        writer.batch_execute("COMMIT").await.unwrap();
        let held = idle.next(100).await.unwrap();
        let (mut halves, mut found) = (std::collections::BTreeSet::new(), 0);
        for _ in 0..12 {
            for _ in 0..3 {
                let read = busy.next(2).await.unwrap();
                found += read.len();
                assert_eq!(busy.save(&vec![Settled::Sent; read.len()]).await.unwrap(), Saved::Kept);
            }
            outbox.tend().await.unwrap();
            halves.insert(database.number("SELECT half::bigint FROM semel_outbox_setting").await);
            let steps = database.number("SELECT count(*) FROM semel_outbox_cursor").await;
            assert!(steps < 24, "{steps} steps are kept");
        }
        assert_eq!(halves.len(), 2, "both halves were used");
        assert_eq!(idle.save(&vec![Settled::Sent; held.len()]).await.unwrap(), Saved::Kept, "not fenced");
        for lane in [2, 3] {
            let mut cursor = take(&outbox, lane).await;
            found += cursor.next(100).await.unwrap().len();
        }
        assert_eq!(found + held.len(), 64);
    });
}

// G-42: a zombie that slept through rotations of the log is still a zombie.
#[test]
fn a_zombie_is_fenced_after_its_steps_are_gone_from_the_log() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        database.run("UPDATE semel_outbox_setting SET log_bytes = 1").await;
        commit(&database, "a", "1").await;
        let lane = database.number("SELECT lane::bigint FROM semel_outbox").await as u16;
        let mut zombie = take(&outbox, lane).await;
        let read = zombie.next(10).await.unwrap();
        assert_eq!(read.len(), 1);
        database.run("UPDATE semel_outbox_cursor SET lease_until = 0, xid = pg_current_xact_id()").await;
        let mut holder = take(&outbox, lane).await;
        for _ in 0..6 {
            holder.save(&[]).await.unwrap();
            outbox.tend().await.unwrap();
        }
        let epoch = format!("SELECT min(epoch) FROM semel_outbox_cursor WHERE lane = {lane}");
        assert_eq!(database.number(&epoch).await as u64, holder.term().epoch, "the zombie's steps are gone");
        assert_eq!(zombie.save(&[Settled::Sent]).await.unwrap(), Saved::Fenced);
        assert_eq!(holder.next(10).await.unwrap(), read);
    });
}

// G-40: only ever inserted.
#[test]
fn many_messages_leave_no_dead_rows() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        let many: Vec<_> = (0..5000).map(|n| message(&format!("k{}", n % 97), "x")).collect();
        let writer = database.client().await;
        for _ in 0..2 {
            semel_stores::postgres::outbox::enqueue(&writer, &many).await.unwrap();
            relay.send_all(1000).await;
        }
        assert_eq!(relay.sent.len(), 10_000);
        database.run("ANALYZE semel_outbox; ANALYZE semel_outbox_cursor").await;
        let dead = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables
             WHERE relname LIKE 'semel_outbox%'";
        assert_eq!(database.number(dead).await, 0);
    });
}

// The plan of a look is made on an empty ring and kept: on a full one it must not read what was settled long ago.
#[test]
fn a_look_reads_what_is_new_and_not_the_whole_lane() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        assert!(relay.send_all(1000).await.is_empty(), "plans are made");
        let writer = begin(&database).await;
        let many: Vec<_> = (0..MANY).map(|n| message(&format!("k{n}"), "old")).collect();
        enqueue(&writer, &many).await.unwrap();
        writer.batch_execute("COMMIT").await.unwrap();
        assert_eq!(relay.send_all(1000).await.len(), MANY);
        // Somebody is always under way, so that every look asks for transactions by name.
        let idle = begin(&database).await;
        idle.batch_execute("SELECT pg_current_xact_id()").await.unwrap();
        for _ in 0..ROUNDS {
            commit(&database, "k1", "new").await;
            assert_eq!(relay.send_all(1000).await, ["new"]);
        }
        relay.give_back().await;
        drop((outbox, idle, writer));
        let read = entries_read(&database).await;
        assert!(read < 4 * MANY as i64, "{read} entries of indexes were read for {MANY} messages");
    });
}

// The same for a backlog that is walked through: however short the steps, each message is found once, and once more by who
// looks how far the backlog reaches.
#[test]
fn a_walk_through_a_backlog_reads_each_message_once() {
    with_database(async |database| {
        let outbox = connect(&database).await;
        let mut relay = Relay::of(&outbox).await;
        let writer = database.client().await;
        for round in 0..2 {
            let many: Vec<_> = (0..MANY).map(|n| message(&format!("k{n}"), &format!("{n:04}"))).collect();
            enqueue(&writer, &many).await.unwrap();
            let sent = relay.send_all(STEP).await;
            assert_eq!(sent.len(), MANY, "round {round}");
        }
        relay.give_back().await;
        drop((outbox, writer));
        let read = entries_read(&database).await;
        // Each step also looks one entry ahead in every part of the ring. One that read all that is left of a lane would
        // come to more than 12.
        assert!(read < 8 * MANY as i64, "{read} entries of indexes were read for two times {MANY} messages");
    });
}

/// How many entries of indexes of the ring were read so far, once all other sessions have ended: they tell then.
async fn entries_read(database: &Database) -> i64 {
    let others =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND backend_type = 'client backend'";
    while database.number(others).await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let read =
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname ~ '^semel_outbox_[0-7]$'";
    database.number(read).await
}
