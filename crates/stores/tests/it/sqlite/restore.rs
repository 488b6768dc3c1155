//! A database put back from a copy, or replaced by another, is found out.

use std::fs;

use semel_core::Token;
use semel_core::error::Kind;
use semel_core::store::Filter;

use super::*;

// G-13
#[tokio::test]
async fn an_older_copy_put_back_answers_nothing_until_acknowledged() {
    let disk = Disk::new();
    let store = disk.open();
    let kept = request("kept");
    let lease = granted(store.claim(&kept).await.unwrap());
    complete(&store, &lease, "paid").await;
    store.close().await;
    let copy = disk.0.path().join("copy.db");
    fs::copy(disk.path(), &copy).unwrap();

    let store = disk.open();
    let lost = claim(&store, "lost").await.holder.token;
    store.close().await;
    fs::copy(&copy, disk.path()).unwrap();

    let store = disk.open();
    let text = refused(store.claim(&request("lost")).await, Kind::WentBack);
    assert!(text.contains("restored from an older state") && text.contains("acknowledge"), "{text}");
    refused(store.get(kept.operation.id()).await, Kind::WentBack);
    refused(store.list(&Filter::unsettled(), Token(0), 10).await, Kind::WentBack);
    let status = store.status().await.unwrap();
    assert_eq!(status.went_back_from.unwrap().token, lost);

    // Another handle, opened before the acknowledgement, hears of it.
    let other = disk.open();
    refused(other.sweep(10, DAY).await, Kind::WentBack);
    let mark = store.acknowledge_restore("ops").await.unwrap();
    assert!(mark.token > lost && mark.epoch == 2);
    assert!(claim(&other, "after").await.holder.token > mark.token);
    assert!(matches!(store.claim(&request("kept")).await.unwrap(), Claim::Completed { .. }));
    let by: String = disk
        .meddle()
        .query_row("SELECT acknowledged_by FROM semel_restore WHERE epoch = 2", [], |row| row.get(0))
        .unwrap();
    assert_eq!(by, "ops");
}

// G-13
#[tokio::test]
async fn another_database_in_its_place_answers_nothing_until_acknowledged() {
    let disk = Disk::new();
    let store = disk.open();
    let lost = claim(&store, "lost").await.holder.token;
    store.close().await;
    fs::remove_file(disk.path()).unwrap();
    let store = disk.open();
    let text = refused(store.claim(&request("lost")).await, Kind::WentBack);
    assert!(text.contains("not the one that was used"), "{text}");
    assert!(store.status().await.unwrap().went_back_from.is_some());
    store.close().await;
    assert!(disk.open().status().await.unwrap().went_back_from.is_some(), "a restart is no acknowledgement");

    let store = disk.open();
    assert!(store.acknowledge_restore("ops").await.unwrap().token > lost);
    claim(&store, "lost").await;
    store.close().await;
    assert_eq!(disk.open().status().await.unwrap().went_back_from, None);
}

// G-13
#[tokio::test]
async fn a_database_further_than_the_one_before_it_is_noticed_too() {
    let (disk, other) = (Disk::new(), Disk::new());
    let store = disk.open();
    claim(&store, "mine").await;
    store.close().await;
    let store = other.open();
    for n in 0..5 {
        claim(&store, &format!("theirs-{n}")).await;
    }
    store.close().await;
    fs::copy(other.path(), disk.path()).unwrap();
    refused(disk.open().claim(&request("mine")).await, Kind::WentBack);
}

#[tokio::test]
async fn a_witness_that_cannot_be_read_is_an_error_and_a_missing_one_is_made_again() {
    let disk = Disk::new();
    let store = disk.open();
    claim(&store, "seen").await;
    store.close().await;
    fs::write(disk.witness(), "semel witness 1\nstore 12").unwrap();
    let text = refused(SqliteStore::open(disk.path()), Kind::Damaged);
    assert!(text.contains("delete the witness"), "{text}");
    fs::remove_file(disk.witness()).unwrap();
    disk.open().close().await;
    assert!(fs::read_to_string(disk.witness()).unwrap().contains("token 1\n"));
}

#[tokio::test]
async fn a_witness_may_be_kept_elsewhere() {
    let (disk, elsewhere) = (Disk::new(), Disk::new());
    let options = || Options { witness: Some(elsewhere.witness()), ..Options::default() };
    let store = SqliteStore::open_with(disk.path(), options()).unwrap();
    claim(&store, "seen").await;
    store.close().await;
    assert!(elsewhere.witness().exists() && !disk.witness().exists());
    // The whole directory goes back, and is noticed all the same.
    fs::remove_file(disk.path()).unwrap();
    let store = SqliteStore::open_with(disk.path(), options()).unwrap();
    refused(store.claim(&request("seen")).await, Kind::WentBack);
}

/// As far as a file can be put back under an open store without its name or its index telling.
fn forget_after(disk: &Disk, token: u64) {
    let sql = format!(
        "BEGIN IMMEDIATE; DELETE FROM semel_operation WHERE token > {token};
         UPDATE semel_meta SET token = {token}; COMMIT"
    );
    disk.meddle().execute_batch(&sql).unwrap();
}

// G-13
#[tokio::test]
async fn a_store_once_found_behind_stays_closed_however_far_others_take_it() {
    let (disk, elsewhere) = (Disk::new(), Disk::new());
    let store = disk.open();
    for n in 0..10 {
        claim(&store, &format!("first-{n}")).await;
    }
    forget_after(&disk, 5);
    refused(store.claim(&request("first-9")).await, Kind::WentBack);
    // One that has seen less goes on.
    let options = Options { witness: Some(elsewhere.witness()), ..Options::default() };
    let other = SqliteStore::open_with(disk.path(), options).unwrap();
    for n in 0..10 {
        claim(&other, &format!("second-{n}")).await;
    }
    let closed = async |store: &SqliteStore| {
        refused(store.claim(&request("first-9")).await, Kind::WentBack);
        refused(store.get(request("first-9").operation.id()).await, Kind::WentBack);
        assert_eq!(store.status().await.unwrap().went_back_from.unwrap().token, Token(10));
    };
    closed(&store).await;
    store.close().await;
    let store = disk.open();
    closed(&store).await;
    other.acknowledge_restore("ops").await.unwrap();
    claim(&store, "first-9").await;
    store.close().await;
    let store = disk.open();
    assert_eq!(store.status().await.unwrap().went_back_from, None, "accepted for good");
}

// G-13
#[tokio::test]
async fn a_database_in_the_place_of_another_is_not_opened_by_what_others_claim() {
    let (disk, elsewhere) = (Disk::new(), Disk::new());
    let store = disk.open();
    claim(&store, "mine").await;
    store.close().await;
    fs::remove_file(disk.path()).unwrap();
    let store = disk.open();
    refused(store.claim(&request("mine")).await, Kind::WentBack);
    let options = Options { witness: Some(elsewhere.witness()), ..Options::default() };
    let other = SqliteStore::open_with(disk.path(), options).unwrap();
    for n in 0..5 {
        claim(&other, &format!("theirs-{n}")).await;
    }
    refused(store.claim(&request("mine")).await, Kind::WentBack);
    store.close().await;
    refused(disk.open().claim(&request("mine")).await, Kind::WentBack);
}

impl Disk {
    /// What `sqlite3 semel.db ".restore other.db"` does: other contents in the same file, under everybody's feet.
    fn is_given_the_contents_of(&self, other: &Path) {
        let conn = self.meddle();
        conn.execute("ATTACH ?1 AS other", [other.to_str().unwrap()]).unwrap();
        let sql = "BEGIN IMMEDIATE;
            DELETE FROM main.semel_operation; INSERT INTO main.semel_operation SELECT * FROM other.semel_operation;
            DELETE FROM main.semel_meta; INSERT INTO main.semel_meta SELECT * FROM other.semel_meta;
            COMMIT";
        conn.execute_batch(sql).unwrap();
    }
}

// G-8, G-13: the filter of the one store knows nothing of what is in the other.
#[tokio::test]
async fn other_contents_in_the_same_file_are_noticed_and_nothing_runs_again() {
    let (disk, other) = (Disk::new(), Disk::new());
    for disk in [&disk, &other] {
        disk.has_generations_of(4);
    }
    let store = other.open();
    for n in 0..100 {
        complete(&store, &claim(&store, &format!("theirs-{n}")).await, "paid").await;
    }
    store.close().await;
    let store = disk.open();
    for n in 0..70 {
        complete(&store, &claim(&store, &format!("mine-{n}")).await, "paid").await;
    }
    store.close().await;
    let ours = disk.0.path().join("ours.db");
    fs::copy(disk.path(), &ours).unwrap();
    let store = disk.open();
    complete(&store, &claim(&store, "mine-last").await, "paid").await;

    disk.is_given_the_contents_of(&other.path());
    let mut answers = Vec::new();
    for n in 0..100 {
        answers.push(store.claim(&request(&format!("theirs-{n}"))).await);
    }
    let again = answers.iter().filter(|answer| matches!(answer, Ok(Claim::Granted(_)))).count();
    assert_eq!(again, 0, "so many run again, though their answers are in the file");
    for answer in answers {
        let text = refused(answer, Kind::Unreachable);
        assert!(text.contains("holds another store") && text.contains("restart"), "{text}");
    }
    refused(store.get(request("theirs-1").operation.id()).await, Kind::Unreachable);
    refused(store.list(&Filter::unsettled(), Token(0), 10).await, Kind::Unreachable);
    refused(store.status().await, Kind::Unreachable);
    refused(store.acknowledge_restore("ops").await, Kind::Unreachable);
    let opened = disk.open();
    refused(opened.claim(&request("mine-1")).await, Kind::WentBack);
    drop(opened);

    // Put back, from wherever: only who opens it anew believes it, as far as the witness does.
    disk.is_given_the_contents_of(&ours);
    refused(store.claim(&request("mine-1")).await, Kind::WentBack);
    store.close().await;
    let store = disk.open();
    refused(store.claim(&request("mine-last")).await, Kind::WentBack);
    store.acknowledge_restore("ops").await.unwrap();
    assert!(matches!(store.claim(&request("mine-1")).await.unwrap(), Claim::Completed { .. }));
}
