//! A database that is set back to an older state under those who have it open, as `sqlite3 app.db ".restore backup.db"` does.

use semel_core::inbox::{Apply, Arrival, Batch, Inbox};
use semel_core::outbox::{Lane, Outbox, Saved, Settled, Taken};
use semel_stores::sqlite::inbox::Joined;
use semel_stores::sqlite::outbox::{self, SqliteOutbox};
use semel_stores::sqlite::tx;

use super::joined::{call, charge, charged, conn, immediate, shop};
use super::outbox::{message, take, texts, write};
use super::*;

impl Disk {
    fn back_up(&self) -> PathBuf {
        let copy = self.0.path().join("backup.db");
        self.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        copy
    }

    /// Gives the tables whose names begin so the contents they have in the copy.
    fn set_back(&self, copy: &Path, prefix: &str) {
        let conn = self.meddle();
        conn.busy_timeout(Duration::from_secs(30)).unwrap();
        conn.execute("ATTACH ?1 AS copy", [copy.to_str().unwrap()]).unwrap();
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE ?1 || '%'";
        let mut tables = conn.prepare(tables).unwrap();
        let tables = tables.query_map([prefix], |row| row.get::<_, String>(0)).unwrap();
        let mut sql = String::from("BEGIN IMMEDIATE;");
        for table in tables.map(|name| name.unwrap()).chain(["sqlite_sequence".to_owned()]) {
            sql += &format!("DELETE FROM main.{table}; INSERT INTO main.{table} SELECT * FROM copy.{table};");
        }
        conn.execute_batch(&(sql + "COMMIT")).unwrap();
    }
}

const OUTBOX: &str = "semel_outbox";

/// What the relay's next save is told; after the rebase it has lost its lane.
async fn refused_until_rebased(
    disk: &Disk,
    cursor: &mut Box<dyn semel_core::outbox::Cursor>,
    settled: &[Settled],
) -> String {
    let text = refused(cursor.save(settled).await, Kind::WentBack);
    assert!(text.contains("older state") && text.contains("Rebase"), "{text}");
    // Nor does whoever comes next go on.
    let restarted = SqliteOutbox::open(disk.path()).unwrap();
    let taken = restarted.take(Lane(0), Nonce::random(), DAY).await.unwrap();
    assert!(
        matches!(&taken, Taken::Stopped { why } if why.contains("older state")),
        "a restart is no rebase"
    );
    restarted.rebase("ops").await.unwrap();
    assert_eq!(cursor.save(settled).await.unwrap(), Saved::Fenced);
    text
}

// G-40, G-44
#[tokio::test]
async fn a_message_that_got_the_number_of_a_lost_one_is_not_settled_in_its_place() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("a", "2")]);
    let mut cursor = take(&outbox).await;
    cursor.next(1).await.unwrap();
    cursor.save(&[Settled::Sent]).await.unwrap();
    let copy = disk.back_up();
    write(&disk, &[message("a", "3")]);
    assert_eq!(texts(&mut cursor).await, ["2", "3"]);
    disk.set_back(&copy, OUTBOX);
    write(&disk, &[message("a", "another")]);
    let text = refused_until_rebased(&disk, &mut cursor, &[Settled::Sent, Settled::Sent]).await;
    assert!(text.contains("message 3, which this relay has read"), "{text}");
    assert_eq!(texts(&mut take(&outbox).await).await, ["2", "another"], "a copy, and no loss");
}

// G-40, G-44: applications that do their work again give a message the id it had.
#[tokio::test]
async fn what_was_written_below_a_message_that_came_again_is_not_settled_with_it() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let again = message("a", "again");
    let mut cursor = take(&outbox).await;
    let copy = disk.back_up();
    write(&disk, &[message("a", "lost"), again.clone()]);
    assert_eq!(texts(&mut cursor).await, ["lost", "again"]);
    disk.set_back(&copy, OUTBOX);
    write(&disk, &[message("a", "new"), again]);
    let text = refused_until_rebased(&disk, &mut cursor, &[Settled::Sent, Settled::Sent]).await;
    assert!(text.contains("message 1, which this relay has read"), "{text}");
    assert_eq!(texts(&mut take(&outbox).await).await, ["new", "again"]);
}

// G-40, G-44
#[tokio::test]
async fn what_was_written_where_a_relay_had_found_nothing_is_not_removed_unread() {
    let disk = Disk::new();
    let options = outbox::Options { lanes: Some(2), ..outbox::Options::default() };
    let outbox = SqliteOutbox::open_with(disk.path(), options).unwrap();
    let key_of = |lane: u16| {
        let keys = (0..).map(|n| format!("k{n}"));
        let mut of_lane = keys.filter(|key| lane_of(&disk, key) == lane);
        of_lane.next().unwrap()
    };
    let (here, elsewhere) = (key_of(0), key_of(1));
    let mut cursor = take(&outbox).await;
    let copy = disk.back_up();
    write(&disk, &[message(&elsewhere, "1"), message(&elsewhere, "2")]);
    assert!(texts(&mut cursor).await.is_empty(), "nothing in this lane up to 2");
    disk.set_back(&copy, OUTBOX);
    write(&disk, &[message(&here, "new 1"), message(&here, "new 2"), message(&here, "new 3")]);
    assert_eq!(texts(&mut cursor).await, ["new 3"]);
    let text = refused_until_rebased(&disk, &mut cursor, &[Settled::Sent]).await;
    assert!(text.contains("was not there"), "{text}");
    assert_eq!(texts(&mut take(&outbox).await).await, ["new 1", "new 2", "new 3"]);
}

fn lane_of(disk: &Disk, key: &str) -> u16 {
    write(disk, &[message(key, "where?")]);
    let conn = disk.meddle();
    conn.query_row("DELETE FROM semel_outbox RETURNING lane", [], |row| row.get(0)).unwrap()
}

// G-43: the last saves need not survive a power failure.
#[tokio::test]
async fn a_sink_is_not_told_of_saves_that_are_not_on_disk() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("a", "2"), message("a", "3")]);
    let mut cursor = take(&outbox).await;
    let on_disk = disk.back_up();
    cursor.next(1).await.unwrap();
    cursor.save(&[Settled::Sent]).await.unwrap();
    cursor.next(1).await.unwrap();
    let landed = cursor.position(1);
    drop((cursor, outbox));
    disk.set_back(&on_disk, OUTBOX);
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.adopt(&landed).await.unwrap(), Saved::Kept);
    assert_eq!(texts(&mut cursor).await, ["3"], "and no copies");
}

// G-40, G-44
#[tokio::test]
async fn what_waits_again_below_what_was_read_is_not_passed_by() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("a", "2")]);
    let mut cursor = take(&outbox).await;
    let copy = disk.back_up();
    cursor.next(1).await.unwrap();
    cursor.save(&[Settled::Dead { reason: "never".into() }]).await.unwrap();
    disk.set_back(&copy, OUTBOX);
    cursor.next(1).await.unwrap();
    let text = refused_until_rebased(&disk, &mut cursor, &[Settled::Behind]).await;
    assert!(text.contains("this relay made 1 saves"), "{text}");
    assert_eq!(texts(&mut take(&outbox).await).await, ["1", "2"]);
}

// G-40, G-44
#[tokio::test]
async fn an_outbox_that_took_a_step_back_is_not_read_on() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let mut cursor = take(&outbox).await;
    let copy = disk.back_up();
    write(&disk, &[message("a", "1"), message("a", "2")]);
    assert_eq!(texts(&mut cursor).await, ["1", "2"]);
    disk.set_back(&copy, OUTBOX);
    write(&disk, &[message("a", "another")]);
    let text = refused(cursor.next(100).await, Kind::WentBack);
    assert!(text.contains("message 1, and was seen at epoch 1, message 2"), "{text}");
    refused_until_rebased(&disk, &mut cursor, &[]).await;
    assert_eq!(texts(&mut take(&outbox).await).await, ["another"]);
}

// G-13, G-44
#[tokio::test]
async fn a_relay_settles_nothing_in_another_store_in_the_same_file() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1")]);
    let mut cursor = take(&outbox).await;
    assert_eq!(texts(&mut cursor).await, ["1"]);
    disk.meddle().execute("UPDATE semel_meta SET store_id = zeroblob(16)", []).unwrap();
    let text = refused(cursor.save(&[Settled::Sent]).await, Kind::Unreachable);
    assert!(text.contains("another store"), "{text}");
    refused(cursor.next(100).await, Kind::Unreachable);
}

// G-44
#[tokio::test]
async fn a_relay_beside_another_that_is_at_work_does_not_take_it_for_a_restore() {
    let disk = Disk::new();
    let busy = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1")]);
    drop(take(&busy).await);
    // Whoever reads a pipe waits for what is written to it.
    let pipe = disk.0.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let options = outbox::Options { witness: Some(pipe.clone()), ..outbox::Options::default() };
    let late = SqliteOutbox::open_with(disk.path(), options).unwrap();
    let witness = disk.0.path().join("semel.db-semel-outbox-witness");
    let write_pipe = std::thread::spawn(move || {
        let mut pipe = std::fs::File::options().write(true).open(pipe).unwrap();
        // It has begun to look, and meanwhile the other goes on.
        write(&disk, &[message("a", "2")]);
        let seen = std::fs::read_to_string(witness).unwrap().replace("token 1\n", "token 2\n");
        std::io::Write::write_all(&mut pipe, seen.as_bytes()).unwrap();
        disk
    });
    assert_eq!(late.overview().await.unwrap().stopped, None);
    write_pipe.join().unwrap();
}

// G-40, G-44: a lane that changed hands since raises the epoch.
#[tokio::test]
async fn a_later_holding_does_not_hide_that_messages_are_gone() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let copy = disk.back_up();
    write(&disk, &[message("a", "1"), message("a", "2")]);
    outbox.overview().await.unwrap();
    disk.set_back(&copy, OUTBOX);
    disk.meddle().execute("UPDATE semel_outbox_meta SET epoch = 9", []).unwrap();
    let taken = outbox.take(Lane(0), Nonce::random(), DAY).await.unwrap();
    assert!(matches!(&taken, Taken::Stopped { why } if why.contains("message 2")));
}

// G-40, G-44: applications that do their work again give a message the id it had.
#[tokio::test]
async fn what_a_sink_has_covers_no_message_that_was_written_since_below_its_last() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let again = message("a", "again");
    let mut cursor = take(&outbox).await;
    let copy = disk.back_up();
    write(&disk, &[message("a", "lost"), again.clone()]);
    assert_eq!(texts(&mut cursor).await, ["lost", "again"]);
    let landed = cursor.position(2);
    drop((cursor, outbox));
    disk.set_back(&copy, OUTBOX);
    write(&disk, &[message("a", "new"), again]);
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let mut cursor = take(&outbox).await;
    refused(cursor.adopt(&landed).await, Kind::WentBack);
    outbox.rebase("ops").await.unwrap();
    assert_eq!(texts(&mut take(&outbox).await).await, ["new", "again"]);
}

// G-43: what a sink has of a batch of which a part was saved.
#[tokio::test]
async fn what_a_sink_has_is_adopted_also_where_a_part_of_it_was_saved() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("a", "2"), message("a", "3")]);
    let mut cursor = take(&outbox).await;
    cursor.next(2).await.unwrap();
    let landed = cursor.position(2);
    cursor.save(&[Settled::Sent]).await.unwrap();
    cursor.give_back().await.unwrap();
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.adopt(&landed).await.unwrap(), Saved::Kept);
    assert_eq!(texts(&mut cursor).await, ["3"]);
}

// G-43: a power failure may take back saves that were not synced, and no later position names a letter that landed.
#[tokio::test]
async fn a_letter_that_landed_is_settled_for_good_before_a_sink_is_told_of_more() {
    let disk = Disk::new();
    let clock = ManualClock::new();
    let options = outbox::Options { clock: clock.clone(), ..outbox::Options::default() };
    let outbox = SqliteOutbox::open_with(disk.path(), options).unwrap();
    write(&disk, &[message("a", "1"), message("b", "2")]);
    let mut cursor = take(&outbox).await;
    cursor.next(1).await.unwrap();
    let later = Settled::Later { reason: "not now".into(), again_in: Duration::from_secs(1) };
    cursor.save(&[later]).await.unwrap();
    let copy = disk.back_up();
    clock.shift(2_000_000);
    cursor.next(1).await.unwrap();
    cursor.save(&[Settled::Sent]).await.unwrap();
    cursor.next(1).await.unwrap();
    let landed = cursor.position(1);
    drop(cursor);
    disk.set_back(&copy, OUTBOX);
    clock.shift(60_000_000);
    let restarted = SqliteOutbox::open(disk.path()).unwrap();
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    let text = refused(take(&restarted).await.adopt(&landed).await, Kind::WentBack);
    assert!(text.contains("saves"), "{text}");
}

// G-43: the sink keeps its last position only.
#[tokio::test]
async fn a_batch_of_letters_does_not_make_a_sink_forget_how_far_the_lane_came() {
    let disk = Disk::new();
    let clock = ManualClock::new();
    let options = outbox::Options { clock: clock.clone(), ..outbox::Options::default() };
    let outbox = SqliteOutbox::open_with(disk.path(), options).unwrap();
    write(&disk, &[message("a", "letter"), message("b", "1"), message("c", "2")]);
    let mut cursor = take(&outbox).await;
    cursor.next(1).await.unwrap();
    let later = Settled::Later { reason: "not now".into(), again_in: Duration::from_secs(1) };
    cursor.save(&[later]).await.unwrap();
    let on_disk = disk.back_up();
    cursor.next(2).await.unwrap();
    cursor.save(&[Settled::Sent, Settled::Sent]).await.unwrap();
    clock.shift(2_000_000);
    assert_eq!(texts(&mut cursor).await, ["letter"]);
    let landed = cursor.position(1);
    drop((cursor, outbox));
    // Power fails: what was not synced is gone.
    disk.set_back(&on_disk, OUTBOX);
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let mut cursor = take(&outbox).await;
    assert_eq!(cursor.adopt(&landed).await.unwrap(), Saved::Kept);
    assert!(texts(&mut cursor).await.is_empty(), "all of it has landed");
}

// G-43, G-44
#[tokio::test]
async fn a_save_whose_answer_was_lost_counts_for_what_a_sink_is_told() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    write(&disk, &[message("a", "1"), message("b", "2")]);
    let mut cursor = take(&outbox).await;
    let copy = disk.back_up();
    cursor.next(1).await.unwrap();
    outbox.lose_answer_of_next_save();
    let dead = [Settled::Dead { reason: "never".into() }];
    assert!(cursor.save(&dead).await.unwrap_err().outcome_is_unknown());
    assert_eq!(cursor.save(&dead).await.unwrap(), Saved::Kept);
    cursor.next(1).await.unwrap();
    let landed = cursor.position(1);
    drop((cursor, outbox));
    disk.set_back(&copy, OUTBOX);
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    refused(take(&outbox).await.adopt(&landed).await, Kind::WentBack);
    outbox.rebase("ops").await.unwrap();
    assert_eq!(texts(&mut take(&outbox).await).await, ["1", "2"]);
}

// G-44
#[tokio::test]
async fn an_outbox_found_behind_when_it_was_opened_stays_closed_however_far_others_take_it() {
    let disk = Disk::new();
    let outbox = SqliteOutbox::open(disk.path()).unwrap();
    let cursor = take(&outbox).await;
    let copy = disk.back_up();
    write(&disk, &[message("a", "1"), message("a", "2")]);
    outbox.overview().await.unwrap();
    cursor.give_back().await.unwrap();
    drop(take(&outbox).await.give_back().await);
    drop(outbox);
    disk.set_back(&copy, OUTBOX);
    let stopped = async || {
        let outbox = SqliteOutbox::open(disk.path()).unwrap();
        let taken = outbox.take(Lane(0), Nonce::random(), DAY).await.unwrap();
        matches!(&taken, Taken::Stopped { why } if why.contains("older state"))
    };
    assert!(stopped().await);
    // The application goes on, and so does a relay that knows of nothing.
    write(&disk, &[message("a", "3"), message("a", "4"), message("a", "5")]);
    let elsewhere = Some(disk.0.path().join("elsewhere"));
    let unaware = outbox::Options { witness: elsewhere, ..outbox::Options::default() };
    let unaware = SqliteOutbox::open_with(disk.path(), unaware).unwrap();
    disk.meddle().execute("UPDATE semel_outbox_lane SET lease_until = 0", []).unwrap();
    for _ in 0..3 {
        take(&unaware).await.give_back().await.unwrap();
    }
    assert!(stopped().await, "its numbers are above the old ones by now");
    SqliteOutbox::open(disk.path()).unwrap().rebase("ops").await.unwrap();
    assert!(!stopped().await);
}

fn batch() -> Batch {
    Batch { group: "mailer".into(), ..Batch::default() }
}

// G-13, G-45
#[tokio::test]
async fn the_ledger_of_a_store_that_went_back_applies_nothing_until_acknowledged() {
    let disk = Disk::new();
    let store = disk.open();
    let copy = disk.back_up();
    claim(&store, "lost").await;
    let inbox = Arc::new(store.inbox());
    let handler = |_: &rusqlite::Transaction<'_>, _: &Arrival| Ok(());
    let joined = Joined::new(inbox.clone(), handler);
    joined.apply(&batch()).await.unwrap();
    disk.set_back(&copy, "semel_");
    let text = refused(joined.apply(&batch()).await, Kind::WentBack);
    assert!(text.contains("acknowledge"), "{text}");
    refused(inbox.intend(&batch()).await, Kind::WentBack);
    refused(inbox.assign("mailer", "orders", 0).await, Kind::WentBack);
    assert!(inbox.overview().await.unwrap().is_empty(), "people may look");
    store.acknowledge_restore("ops").await.unwrap();
    joined.apply(&batch()).await.unwrap();
    disk.meddle().execute("UPDATE semel_meta SET store_id = zeroblob(16)", []).unwrap();
    refused(joined.apply(&batch()).await, Kind::Unreachable);
    refused(inbox.intend(&batch()).await, Kind::Unreachable);
}

// G-13, G-45: `semel consume` has a ledger alone, and never claims.
#[tokio::test]
async fn a_ledger_alone_notices_what_others_saw_and_what_it_saw_itself() {
    let disk = Disk::new();
    let store = disk.open();
    let inbox = disk.open().inbox();
    claim(&store, "1").await;
    let copy = disk.back_up();
    claim(&store, "2").await;
    inbox.intend(&batch()).await.unwrap();
    disk.set_back(&copy, "semel_");
    refused(inbox.intend(&batch()).await, Kind::WentBack);
    // One that began after the copy was put back hears of it.
    let late = SqliteStore::open(disk.path()).unwrap().inbox();
    refused(late.intend(&batch()).await, Kind::WentBack);
    store.acknowledge_restore("ops").await.unwrap();
    inbox.intend(&batch()).await.unwrap();
}

// G-13, G-30
#[tokio::test]
async fn a_transaction_on_a_file_that_was_moved_or_replaced_is_refused() {
    let (disk, store, prints) = shop().await;
    let call = call("moved-0000000001", prints.of_bytes(b"20 euros"));
    let mut conn = conn(&disk);
    let moved = disk.0.path().join("moved.db");
    for put in [None, Some(disk.back_up())] {
        let transaction = immediate(&mut conn);
        std::fs::rename(disk.path(), &moved).unwrap();
        if let Some(copy) = &put {
            std::fs::copy(copy, disk.path()).unwrap();
        }
        let text = refused(store.begin(&transaction, &call), Kind::Unreachable);
        assert!(text.contains("moved, deleted or replaced"), "{text}");
        std::fs::rename(&moved, disk.path()).unwrap();
    }
    let transaction = immediate(&mut conn);
    assert!(matches!(store.begin(&transaction, &call).unwrap(), tx::Begun::Run(_)), "it was put back");
    charge(&transaction);
    drop(transaction);
    assert_eq!(charged(&disk), 0);
}
