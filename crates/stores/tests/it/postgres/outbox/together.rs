//! Lanes that look and save at the same time do it together, and none is hurt by what happens to another.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{join_all, poll_immediate};
use futures_util::stream::FuturesUnordered;
use semel_core::outbox::{Cursor, Entry, Lane, Saved, Settled, Taken};
use semel_core::{Error, Nonce, Outbox};
use semel_stores::postgres::outbox::PostgresOutbox;

use super::super::proxy::{Cut, Proxy};
use super::super::rig::{Database, named};
use super::desk::{LEASE, connect_to, message, sorted, text};

/// Messages that are written: some for each lane.
const MESSAGES: usize = 40;
const LANES: usize = 4;

/// On one thread: what asks at the same time has asked before anything is made of it.
fn on_one_thread(body: impl AsyncFnOnce(Database)) {
    let Some(server) = named("SEMEL_TEST_POSTGRES") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database = Database::create(&server).await;
        tokio::time::timeout(Duration::from_secs(120), body(database)).await.unwrap();
    });
    semel_testkit::ledger("postgres", "postgres", 1);
}

async fn take(outbox: &PostgresOutbox, lane: usize, holder: Nonce) -> Box<dyn Cursor> {
    let taken = outbox.take(Lane(lane as u16), holder, LEASE).await;
    let Ok(Taken::Yours(cursor)) = taken else { panic!("lane {lane} is not given to its holder") };
    cursor
}

/// Every lane, with messages in each.
async fn lanes(database: &Database, outbox: &PostgresOutbox, holder: Nonce) -> Vec<Box<dyn Cursor>> {
    let client = database.client().await;
    let messages: Vec<_> = (0..MESSAGES).map(|n| message(&format!("k{n}"), &n.to_string())).collect();
    semel_stores::postgres::outbox::enqueue(&client, &messages).await.unwrap();
    let mut cursors = Vec::new();
    for lane in 0..LANES {
        cursors.push(take(outbox, lane, holder).await);
    }
    cursors
}

async fn read(cursors: &mut [Box<dyn Cursor>]) -> Vec<Vec<Entry>> {
    let read = join_all(cursors.iter_mut().map(|cursor| cursor.next(100))).await;
    read.into_iter().map(Result::unwrap).collect()
}

fn sent(read: &[Vec<Entry>]) -> Vec<Vec<Settled>> {
    read.iter().map(|entries| vec![Settled::Sent; entries.len()]).collect()
}

async fn save(cursors: &mut [Box<dyn Cursor>], settled: &[Vec<Settled>]) -> Vec<Result<Saved, Error>> {
    join_all(cursors.iter_mut().zip(settled).map(|(cursor, settled)| cursor.save(settled))).await
}

fn texts(read: &[Vec<Entry>]) -> Vec<String> {
    sorted(read.iter().flatten().map(text).collect())
}

/// The transactions that wrote the newest steps.
async fn transactions(database: &Database) -> Vec<String> {
    let newest = "SELECT DISTINCT ON (lane) xid::text FROM semel_outbox_cursor ORDER BY lane, step DESC";
    let rows = database.client().await.query(newest, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

// G-40, G-41: each lane is given its own messages, all of them, whoever looks with it.
#[test]
fn lanes_that_look_together_each_get_their_own() {
    on_one_thread(async |database| {
        let outbox = connect_to(&database.url()).await;
        let mut cursors = lanes(&database, &outbox, Nonce::random()).await;
        // One has read before, and has another snapshot than the others.
        let first = cursors[2].next(100).await.unwrap();
        assert_eq!(cursors[2].save(&vec![Settled::Sent; first.len()]).await.unwrap(), Saved::Kept);
        let read = read(&mut cursors).await;
        let client = database.client().await;
        for (lane, entries) in read.iter().enumerate() {
            assert_eq!(entries.is_empty(), lane == 2, "lane {lane}");
            assert!(entries.is_sorted_by_key(|entry| entry.sequence), "lane {lane}");
            for entry in entries {
                let of = "SELECT semel_outbox_lane(gen_random_uuid(), $1)";
                let row = client.query_one(of, &[&entry.message.key]).await.unwrap();
                assert_eq!(row.get::<_, i16>(0) as usize, lane);
            }
        }
        let all: Vec<String> = sorted((0..MESSAGES).map(|n| n.to_string()).collect());
        assert_eq!(texts(&[read, vec![first]].concat()), all);
    });
}

// G-42: a fence is its lane's own.
#[test]
fn a_lane_that_was_replaced_is_told_and_those_that_save_with_it_are_kept() {
    on_one_thread(async |database| {
        let (outbox, holder) = (connect_to(&database.url()).await, Nonce::random());
        let mut cursors = lanes(&database, &outbox, holder).await;
        let read = read(&mut cursors).await;
        let mut successor = take(&outbox, 1, holder).await;
        let saved = save(&mut cursors, &sent(&read)).await;
        let saved: Vec<Saved> = saved.into_iter().map(Result::unwrap).collect();
        assert_eq!(saved, [Saved::Kept, Saved::Fenced, Saved::Kept, Saved::Kept]);
        let by = transactions(&database).await;
        assert!(
            by[0] == by[2] && by[0] == by[3] && by[0] != by[1],
            "one commit for those who were kept: {by:?}"
        );
        assert_eq!(successor.next(100).await.unwrap(), read[1], "and the lane is where it was");
        for lane in [0, 2, 3] {
            assert_eq!(take(&outbox, lane, holder).await.next(100).await.unwrap(), [], "lane {lane}");
        }
    });
}

// G-42: nobody is told that it failed, nor that it was replaced, when nobody knows.
#[test]
fn an_answer_that_is_lost_leaves_every_lane_of_the_round_in_doubt_until_it_asks() {
    on_one_thread(async |database| {
        let proxy = Proxy::to(&database.url()).await;
        let outbox = connect_to(&proxy.url()).await;
        for cut in [Cut::Answers, Cut::Calls] {
            let mut cursors = lanes(&database, &outbox, Nonce::random()).await;
            let read = read(&mut cursors).await;
            assert_eq!(texts(&read).len(), MESSAGES);
            proxy.cut_next(cut);
            for saved in save(&mut cursors, &sent(&read)).await {
                let error = saved.unwrap_err();
                assert!(error.outcome_is_unknown(), "{cut:?}: {error:?}");
            }
            for saved in save(&mut cursors, &sent(&read)).await {
                assert_eq!(saved.unwrap(), Saved::Kept, "{cut:?}");
            }
            assert_eq!(texts(&self::read(&mut cursors).await), Vec::<String>::new(), "{cut:?}");
            for cursor in cursors {
                cursor.give_back().await.unwrap();
            }
        }
    });
}

#[test]
fn a_lane_that_somebody_has_locked_holds_up_nobody_else() {
    on_one_thread(async |database| {
        let outbox = connect_to(&database.url()).await;
        let mut cursors = lanes(&database, &outbox, Nonce::random()).await;
        let settled = sent(&read(&mut cursors).await);
        let client = database.client().await;
        let lock = "BEGIN; SELECT pg_advisory_xact_lock('semel_outbox_cursor'::regclass::oid::integer, 1)";
        client.batch_execute(lock).await.unwrap();
        let saves = cursors.iter_mut().zip(&settled).enumerate();
        let mut saves: FuturesUnordered<_> = saves
            .map(|(lane, (cursor, settled))| async move { (lane, cursor.save(settled).await.unwrap()) })
            .collect();
        let mut kept = Vec::new();
        for _ in 0..LANES - 1 {
            kept.extend(saves.next().await);
        }
        kept.sort_by_key(|(lane, _)| *lane);
        assert_eq!(kept, [(0, Saved::Kept), (2, Saved::Kept), (3, Saved::Kept)]);
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(saves.next().await, Some((1, Saved::Kept)));
    });
}

// G-42: who goes away takes nobody along, and finds out later what became of it.
#[test]
fn a_caller_that_goes_away_takes_nobody_along() {
    on_one_thread(async |database| {
        let outbox = connect_to(&database.url()).await;
        let mut cursors = lanes(&database, &outbox, Nonce::random()).await;
        let settled = sent(&read(&mut cursors).await);
        // Once before its round has begun, and once while it is at the server.
        let (gone, others) = cursors.split_at_mut(2);
        let [early, late] = gone else { panic!("there are four lanes") };
        assert!(poll_immediate(early.save(&settled[0])).await.is_none());
        let mut saves =
            join_all(others.iter_mut().zip(&settled[2..]).map(|(cursor, settled)| cursor.save(settled)));
        {
            let mut left = late.save(&settled[1]);
            assert!(poll_immediate(&mut left).await.is_none() && poll_immediate(&mut saves).await.is_none());
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        }
        for saved in saves.await {
            assert_eq!(saved.unwrap(), Saved::Kept);
        }
        for (cursor, settled) in gone.iter_mut().zip(&settled) {
            assert_eq!(cursor.save(settled).await.unwrap(), Saved::Kept);
        }
        assert_eq!(texts(&read(&mut cursors).await), Vec::<String>::new());
    });
}
