//! The SQLite outbox: the suite every outbox passes, and what only a file can suffer.

use std::sync::Mutex;

use futures_util::FutureExt;
use rusqlite::{Connection, TransactionBehavior};
use semel_core::clock::{Clock, Timestamp};
use semel_core::message::{Message, Topic};
use semel_core::outbox::{Cursor, Found, Lane, Outbox, Saved, Settled, Taken};
use semel_core::store::Pending;
use semel_stores::sqlite::outbox::{self, SqliteOutbox};
use semel_testkit::BoxFuture;
use semel_testkit::outbox::{Maker, Open, Rig};

use super::*;

semel_testkit::outbox_conformance!(maker());

const LANES: u16 = 3;

struct OutboxRig {
    disk: Disk,
    clock: Arc<ManualClock>,
    outbox: Mutex<SqliteOutbox>,
}

fn options(clock: &Arc<ManualClock>) -> outbox::Options {
    // Cases hold transactions open on purpose.
    let busy_timeout = Duration::from_secs(60);
    outbox::Options { clock: clock.clone(), busy_timeout, lanes: Some(LANES), ..outbox::Options::default() }
}

fn maker() -> Maker {
    Arc::new(|| {
        Box::pin(async {
            let (disk, clock) = (Disk::new(), ManualClock::new());
            let outbox = SqliteOutbox::open_with(disk.path(), options(&clock)).unwrap();
            Arc::new(OutboxRig { disk, clock, outbox: Mutex::new(outbox) }) as Arc<dyn Rig>
        })
    })
}

impl Rig for OutboxRig {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    fn outbox(&self) -> Arc<dyn Outbox> {
        Arc::new(self.outbox.lock().unwrap().clone())
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async { self.clock.now() })
    }

    fn shift_clock(&self, micros: i64) {
        self.clock.shift(micros);
    }

    fn begin(&self, messages: Vec<Message>) -> BoxFuture<'_, Result<Box<dyn Open>, Error>> {
        let (path, outbox) = (self.disk.path(), self.outbox.lock().unwrap().clone());
        Box::pin(async move {
            // An application would be on a thread of its own: waiting for the lock blocks.
            let begun = tokio::task::spawn_blocking(move || {
                let conn = Connection::open(path).unwrap();
                conn.busy_timeout(Duration::from_secs(60)).unwrap();
                conn.execute_batch("BEGIN IMMEDIATE").unwrap();
                outbox.enqueue(&conn, &messages)?;
                Ok(Box::new(Writing { conn, outbox }) as Box<dyn Open>)
            });
            begun.await.unwrap()
        })
    }

    fn writers_overlap(&self) -> bool {
        false
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let outbox = SqliteOutbox::open_with(self.disk.path(), options(&self.clock)).unwrap();
            *self.outbox.lock().unwrap() = outbox;
        })
    }

    fn lose_answer_of_next_save(&self) -> bool {
        self.outbox.lock().unwrap().lose_answer_of_next_save();
        true
    }
}

/// A transaction of an application.
struct Writing {
    conn: Connection,
    outbox: SqliteOutbox,
}

impl Open for Writing {
    fn write(&mut self, messages: Vec<Message>) -> BoxFuture<'_, Result<(), Error>> {
        let written = self.outbox.enqueue(&self.conn, &messages);
        Box::pin(async { written })
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.conn.execute_batch("COMMIT").unwrap() })
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.conn.execute_batch("ROLLBACK").unwrap() })
    }
}

pub(super) fn message(key: &str, text: &str) -> Message {
    Message::new(Topic::parse("orders.paid").unwrap(), text.to_owned()).key(key)
}

pub(super) fn write(disk: &Disk, messages: &[Message]) {
    let mut conn = disk.meddle();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    outbox::enqueue(&transaction, messages).unwrap();
    transaction.commit().unwrap();
}

pub(super) async fn take(outbox: &SqliteOutbox) -> Box<dyn Cursor> {
    match outbox.take(Lane(0), Nonce::random(), Duration::from_secs(30)).await.unwrap() {
        Taken::Yours(cursor) => cursor,
        Taken::Held { wait, .. } => panic!("held for {wait:?}"),
        Taken::Stopped { why } => panic!("{why}"),
    }
}

pub(super) async fn texts(cursor: &mut Box<dyn Cursor>) -> Vec<String> {
    let read = cursor.next(100).await.unwrap();
    read.iter().map(|entry| String::from_utf8(entry.message.payload.to_vec()).unwrap()).collect()
}

// G-40
#[tokio::test]
async fn what_a_savepoint_takes_back_was_never_written() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let mut conn = disk.meddle();
    let mut transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    outbox::enqueue(&transaction, &[message("a", "1")]).unwrap();
    let mut savepoint = transaction.savepoint().unwrap();
    outbox::enqueue(&savepoint, &[message("a", "undone")]).unwrap();
    savepoint.rollback().unwrap();
    outbox::enqueue(&savepoint, &[message("a", "2")]).unwrap();
    savepoint.commit().unwrap();
    outbox::enqueue(&transaction, &[message("a", "3")]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(texts(&mut take(&outbox).await).await, ["1", "2", "3"]);
}

// G-40
#[test]
fn a_message_outside_of_a_transaction_or_in_one_that_is_not_synced_is_refused() {
    let disk = Disk::new();
    drop(SqliteOutbox::open(disk.path()).unwrap());
    let conn = disk.meddle();
    let text = refused(outbox::enqueue(&conn, &[message("a", "1")]), Kind::Misconfigured);
    assert!(text.contains("BEGIN IMMEDIATE"), "{text}");
    conn.pragma_update(None, "synchronous", "NORMAL").unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let text = refused(outbox::enqueue(&conn, &[message("a", "1")]), Kind::Misconfigured);
    assert!(text.contains("synchronous=FULL"), "{text}");
    let other = Disk::new();
    let conn = other.meddle();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let text = refused(outbox::enqueue(&conn, &[message("a", "1")]), Kind::Schema);
    assert!(text.contains("no tables of Semel"), "{text}");
}

// G-41
#[tokio::test]
async fn lanes_are_changed_while_nothing_waits_and_not_otherwise() {
    let disk = Disk::new();
    let with = |lanes| {
        let options = outbox::Options { lanes: Some(lanes), ..outbox::Options::default() };
        SqliteOutbox::open_with(disk.path(), options)
    };
    assert_eq!(SqliteOutbox::open(disk.path()).unwrap().facts().lanes, 1);
    assert_eq!(with(4).unwrap().facts().lanes, 4);
    assert_eq!(SqliteOutbox::open(disk.path()).unwrap().facts().lanes, 4, "it stays so");
    write(&disk, &[message("a", "1")]);
    let text = refused(with(2).map(drop), Kind::Misconfigured);
    assert!(text.contains("4 lanes"), "{text}");
    refused(with(0).map(drop), Kind::Misconfigured);
    assert_eq!(with(4).unwrap().facts().lanes, 4);
}

// G-42
#[tokio::test]
async fn a_lane_that_is_no_more_does_not_trouble_who_holds_it_and_goes_on_where_it_was() {
    let disk = Disk::new();
    let with = |lanes| {
        let options = outbox::Options { lanes: Some(lanes), ..outbox::Options::default() };
        SqliteOutbox::open_with(disk.path(), options).unwrap()
    };
    let hold = async |outbox: &SqliteOutbox| match outbox.take(Lane(1), Nonce::random(), DAY).await.unwrap() {
        Taken::Yours(cursor) => cursor,
        _ => panic!("the lane is free"),
    };
    let mut cursor = hold(&with(2)).await;
    let fewer = with(1);
    assert_eq!(fewer.overview().await.unwrap().lanes.len(), 1);
    assert_eq!(cursor.save(&[]).await.unwrap(), Saved::Kept);
    let told = cursor.position(0);
    cursor.give_back().await.unwrap();
    let mut cursor = hold(&with(2)).await;
    assert_eq!(cursor.adopt(&told).await.unwrap(), Saved::Kept, "it has seen as many saves");
}

// G-44
#[tokio::test]
async fn a_restored_database_gives_no_lane_out_until_it_is_rebased() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("a", "2")]);
    let mut cursor = take(&outbox).await;
    let read = cursor.next(1).await.unwrap();
    assert_eq!(cursor.save(&[Settled::Sent]).await.unwrap(), Saved::Kept);
    cursor.give_back().await.unwrap();
    let copy = disk.0.path().join("backup.db");
    disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    write(&disk, &[message("a", "3")]);
    let mut cursor = take(&outbox).await;
    assert_eq!(texts(&mut cursor).await, ["2", "3"]);
    let position = cursor.position(2);
    assert_eq!(cursor.save(&[Settled::Sent, Settled::Sent]).await.unwrap(), Saved::Kept);
    let before = cursor.term().epoch;
    drop((cursor, outbox));
    close_all(&disk).await;
    std::fs::copy(&copy, disk.path()).unwrap();

    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let taken = outbox.take(Lane(0), Nonce::random(), Duration::from_secs(30)).await.unwrap();
    let Taken::Stopped { why } = taken else { panic!("a restored database is noticed") };
    assert!(why.contains("restored") && why.contains("Rebase"), "{why}");
    let told = outbox.overview().await.unwrap().stopped;
    assert!(told.is_some_and(|why| why.contains("as was found at epoch 2, message 3")));
    // The application has gone on.
    write(&disk, &[message("a", "3, once more")]);
    assert_eq!(outbox.rebase("ops").await.unwrap(), 2);
    assert_eq!(outbox.overview().await.unwrap().stopped, None);
    write(&disk, &[message("a", "4")]);
    let mut cursor = take(&outbox).await;
    assert!(cursor.term().epoch > before, "no holding has a number of the lost ones");
    assert_eq!(
        cursor.adopt(&position).await.unwrap(),
        Saved::Kept,
        "what landed under that number is of the lost state"
    );
    let refused = cursor.adopt(&semel_core::outbox::Position(vec![1, 2, 3].into())).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Misconfigured);
    let again = cursor.next(100).await.unwrap();
    assert!(again[2].sequence > again[1].sequence + 1000, "nor has a message: {again:?}");
    assert_eq!(again[0].sequence, read[0].sequence + 1);
    assert_eq!(texts(&mut cursor).await, ["2", "3, once more", "4"], "duplicates, never losses");
}

/// Puts a copy of the database back in its place.
async fn restore(disk: &Disk, copy: &std::path::Path) -> SqliteOutbox {
    close_all(disk).await;
    std::fs::copy(copy, disk.path()).unwrap();
    SqliteOutbox::open(disk.path()).unwrap()
}

// G-43, G-44: the message under the sink's number is the same one, and an earlier one had been set aside.
#[tokio::test]
async fn what_a_sink_kept_of_a_lost_state_covers_nothing_after_a_rebase() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("b", "2"), message("c", "3")]);
    let copy = disk.0.path().join("backup.db");
    disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let mut cursor = take(&outbox).await;
    cursor.next(1).await.unwrap();
    cursor.save(&[Settled::Dead { reason: "never".into() }]).await.unwrap();
    cursor.next(1).await.unwrap();
    let lost = cursor.position(1);
    drop((cursor, outbox));
    let outbox = restore(&disk, &copy).await;
    outbox.rebase("ops").await.unwrap();
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.adopt(&lost).await.unwrap(), Saved::Kept);
    assert_eq!(texts(&mut cursor).await, ["1", "2", "3"], "the first was never published");
    // What is published since is believed as ever.
    let position = cursor.position(2);
    drop(cursor);
    drop(outbox);
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.adopt(&position).await.unwrap(), Saved::Kept);
    assert_eq!(texts(&mut cursor).await, ["3"]);
}

// G-44
#[tokio::test]
async fn a_restore_that_only_the_sink_noticed_is_refused_until_it_is_rebased() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let copy = disk.0.path().join("backup.db");
    disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    write(&disk, &[message("a", "lost")]);
    let mut cursor = take(&outbox).await;
    cursor.next(1).await.unwrap();
    let lost = cursor.position(1);
    drop((cursor, outbox));
    std::fs::remove_file(disk.0.path().join("semel.db-semel-outbox-witness")).unwrap();
    let outbox = restore(&disk, &copy).await;
    write(&disk, &[message("a", "new")]);
    let mut cursor = take(&outbox).await;
    let refused = cursor.adopt(&lost).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::WentBack);
    assert!(refused.to_string().contains("Rebase"), "{refused}");
    cursor.give_back().await.unwrap();
    outbox.rebase("ops").await.unwrap();
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.adopt(&lost).await.unwrap(), Saved::Kept);
    assert_eq!(texts(&mut cursor).await, ["new"]);
}

// G-44: the witness remembers epochs and numbers, and of those the copy has the last.
#[tokio::test]
async fn a_copy_from_before_a_dead_letter_settles_nothing_that_was_never_published() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("b", "2"), message("c", "3")]);
    let mut cursor = take(&outbox).await;
    let copy = disk.0.path().join("backup.db");
    disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    cursor.next(1).await.unwrap();
    cursor.save(&[Settled::Dead { reason: "never".into() }]).await.unwrap();
    cursor.next(1).await.unwrap();
    let landed = cursor.position(1);
    cursor.save(&[Settled::Sent]).await.unwrap();
    cursor.give_back().await.unwrap();
    drop(outbox);
    let outbox = restore(&disk, &copy).await;
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    let mut cursor = take(&outbox).await;
    let refused = cursor.adopt(&landed).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::WentBack);
    assert!(refused.to_string().contains("saves") && refused.to_string().contains("Rebase"), "{refused}");
    cursor.give_back().await.unwrap();
    outbox.rebase("ops").await.unwrap();
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.adopt(&landed).await.unwrap(), Saved::Kept);
    assert_eq!(texts(&mut cursor).await, ["1", "2", "3"], "copies, never losses");
}

/// Threads of a dropped handle end soon; the log goes with the last connection. Of two that close at once each may take
/// the other for the last, so one more closes after them.
async fn close_all(disk: &Disk) {
    let log = disk.0.path().join("semel.db-wal");
    for _ in 0..2000 {
        if !log.exists() {
            return;
        }
        disk.meddle().query_row("PRAGMA schema_version", [], |_| Ok(())).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the database is still open");
}

/// Publishes what it reads to a file beside the database, one line each, and dies where it is told.
#[tokio::test]
async fn child_that_relays_until_it_dies() {
    let Some(path) = given_to_child() else { return };
    let sink = path.with_extension("sent");
    let outbox = SqliteOutbox::open(&path).unwrap();
    let lease = Duration::from_millis(1);
    let mut cursor = loop {
        match outbox.take(Lane(0), Nonce::random(), lease).await.unwrap() {
            Taken::Yours(cursor) => break cursor,
            Taken::Held { wait, .. } => tokio::time::sleep(wait).await,
            Taken::Stopped { why } => panic!("{why}"),
        }
    };
    loop {
        let read = cursor.next(7).await.unwrap();
        if read.is_empty() {
            return;
        }
        let lines: String = read.iter().map(|entry| format!("{}\n", entry.message.id)).collect();
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&sink).unwrap();
        std::io::Write::write_all(&mut file, lines.as_bytes()).unwrap();
        assert_eq!(cursor.save(&vec![Settled::Sent; read.len()]).await.unwrap(), Saved::Kept);
    }
}

// G-42, G-43: kill it between publishing and saving, again and again; nothing is lost, order holds, and what
// comes twice comes under its id.
#[cfg(debug_assertions)]
#[test]
fn a_relay_that_crashes_around_its_saves_loses_nothing_and_keeps_order() {
    let disk = Disk::new();
    drop(SqliteOutbox::open(disk.path()).unwrap());
    let messages: Vec<Message> = (0..60).map(|n| message("a", &n.to_string())).collect();
    write(&disk, &messages);
    let mut crashes = 0;
    for round in 0.. {
        assert!(round < 200, "it comes to an end");
        let point = ["sqlite-outbox-before-commit", "sqlite-outbox-after-commit"][round % 2];
        let mut command = child("sqlite::outbox::child_that_relays_until_it_dies", &disk.path());
        // The first commit takes the lane.
        command.env("SEMEL_CRASH_AT", point).env("SEMEL_CRASH_AFTER", (1 + round % 3).to_string());
        let output = command.output().unwrap();
        if output.status.success() {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 5, "{crashes}");
    let sent = std::fs::read_to_string(disk.path().with_extension("sent")).unwrap();
    let mut known: Vec<String> = Vec::new();
    let mut at = 0;
    for id in sent.lines() {
        match known.iter().position(|known| known == id) {
            // Twice: from where an earlier batch began.
            Some(again) => at = again + 1,
            None => {
                assert_eq!(at, known.len(), "nothing is skipped");
                known.push(id.to_owned());
                at += 1;
            }
        }
    }
    let expected: Vec<String> = messages.iter().map(|message| message.id.to_string()).collect();
    assert_eq!(known, expected);
    assert!(sent.lines().count() > expected.len(), "some came twice");
}

// G-42
#[tokio::test]
async fn a_relay_is_not_starved_by_a_busy_application() {
    let disk = Disk::new();
    // A machine at its limits may stop the application for seconds while it has the lock.
    let options = outbox::Options { busy_timeout: Duration::from_secs(60), ..outbox::Options::default() };
    let outbox = SqliteOutbox::open_with(disk.path(), options).unwrap();
    let (stop, path) = (Arc::new(std::sync::atomic::AtomicBool::new(false)), disk.path());
    let told = stop.clone();
    let application = std::thread::spawn(move || {
        let mut conn = Connection::open(path).unwrap();
        conn.busy_timeout(Duration::from_secs(60)).unwrap();
        let mut written = 0;
        while !told.load(std::sync::atomic::Ordering::SeqCst) {
            let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            outbox::enqueue(&transaction, &[message("a", &written.to_string())]).unwrap();
            transaction.commit().unwrap();
            written += 1;
        }
        written
    });
    let mut cursor = take(&outbox).await;
    let (mut read, mut saves) = (Vec::new(), 0);
    while saves < 50 {
        let batch = texts(&mut cursor).await;
        if !batch.is_empty() {
            assert_eq!(cursor.save(&vec![Settled::Sent; batch.len()]).await.unwrap(), Saved::Kept);
            saves += 1;
        }
        read.extend(batch);
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    let written = application.join().unwrap();
    loop {
        let batch = texts(&mut cursor).await;
        if batch.is_empty() {
            break;
        }
        cursor.save(&vec![Settled::Sent; batch.len()]).await.unwrap();
        read.extend(batch);
    }
    assert_eq!(read, (0..written).map(|n| n.to_string()).collect::<Vec<_>>());
}

// G-42
#[tokio::test]
async fn a_save_that_was_dropped_is_found_out_by_the_next() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let messages: Vec<Message> = (0..4).map(|n| message("a", &n.to_string())).collect();
    write(&disk, &messages);
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.next(2).await.unwrap().len(), 2);
    let settled = [Settled::Sent, Settled::Sent];
    // It cannot be answered at once.
    let lock = disk.meddle();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut save: Pending<'_, Saved> = cursor.save(&settled);
    // Asked once, so that it is on its way, and then given up.
    assert!(save.as_mut().now_or_never().is_none());
    drop(save);
    lock.execute_batch("ROLLBACK").unwrap();
    assert_eq!(cursor.save(&settled).await.unwrap(), Saved::Kept);
    assert_eq!(texts(&mut cursor).await, ["2", "3"]);
    assert!(matches!(outbox.find(messages[2].id).await.unwrap(), Some(Found::Waiting(..))));
}
