//! A database that is named by a link.

use std::fs;
use std::os::unix::fs::symlink;

use semel_core::error::Kind;
use semel_stores::sqlite::outbox::{self, SqliteOutbox};
use semel_stores::sqlite::tx;

use super::joined::{call, conn, immediate, shop};
use super::*;

/// Another name for a file, in a directory of its own.
struct Link(Disk);

impl Link {
    fn to(path: &Path) -> Self {
        let link = Self(Disk::new());
        symlink(path, link.path()).unwrap();
        link
    }

    fn path(&self) -> PathBuf {
        self.0.path()
    }

    fn lead_to(&self, path: &Path) {
        fs::remove_file(self.path()).unwrap();
        symlink(path, self.path()).unwrap();
    }
}

fn back_up(disk: &Disk) -> PathBuf {
    let copy = disk.0.path().join("copy.db");
    disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    copy
}

// G-13, G-30: SQLite tells whoever joins a transaction the path of the file, and nothing of the link.
#[tokio::test]
async fn a_transaction_on_a_restored_file_is_refused_however_the_store_was_named() {
    let (disk, store, prints) = shop().await;
    store.close().await;
    let copy = back_up(&disk);
    let link = Link::to(&disk.path());
    let store = SqliteStore::open(link.path()).unwrap();
    claim(&store, "forgotten").await;
    store.close().await;
    fs::copy(&copy, disk.path()).unwrap();
    let wish = call("restored-0000001", prints.of_bytes(b"2000"));
    let mut conns = [conn(&disk), Connection::open(link.path()).unwrap()];
    for conn in &mut conns {
        refused(tx::begin(&immediate(conn), &wish), Kind::WentBack);
    }
    refused(disk.open().claim(&request("forgotten")).await, Kind::WentBack);
}

// G-13: also a witness that earlier builds left there.
#[tokio::test]
async fn a_link_that_leads_to_an_older_copy_by_now_is_noticed() {
    let disk = Disk::new();
    let link = Link::to(&disk.path());
    disk.open().close().await;
    let copy = back_up(&disk);
    let store = SqliteStore::open(link.path()).unwrap();
    claim(&store, "forgotten").await;
    store.close().await;
    link.lead_to(&copy);
    let store = SqliteStore::open(link.path()).unwrap();
    refused(store.claim(&request("forgotten")).await, Kind::WentBack);
    store.acknowledge_restore("ops").await.unwrap();
    store.close().await;
    let store = SqliteStore::open(link.path()).unwrap();
    claim(&store, "forgotten").await;
    store.close().await;
    // Another database is noticed, too, and accepted once for both places.
    let other = Disk::new();
    other.open().close().await;
    link.lead_to(&other.path());
    let store = SqliteStore::open(link.path()).unwrap();
    refused(store.claim(&request("forgotten")).await, Kind::WentBack);
    store.acknowledge_restore("ops").await.unwrap();
    store.close().await;
    claim(&SqliteStore::open(link.path()).unwrap(), "forgotten").await;
}

// G-13
#[tokio::test]
async fn a_link_that_comes_to_lead_elsewhere_is_noticed_and_may_be_put_back() {
    let (disk, other) = (Disk::new(), Disk::new());
    disk.open().close().await;
    other.open().close().await;
    let link = Link::to(&disk.path());
    let store = SqliteStore::open(link.path()).unwrap();
    claim(&store, "before").await;
    link.lead_to(&other.path());
    let text = refused(store.claim(&request("gone")).await, Kind::Unreachable);
    assert!(text.contains("another file is there"), "{text}");
    refused(store.get(request("before").operation.id()).await, Kind::Unreachable);
    link.lead_to(&disk.path());
    claim(&store, "gone").await;
}

// A directory reached by a link holds one witness; two names in it are one file.
#[tokio::test]
async fn a_link_to_the_directory_needs_no_second_witness() {
    let (disk, elsewhere) = (Disk::new(), Disk::new());
    let directory = elsewhere.0.path().join("data");
    symlink(disk.0.path(), &directory).unwrap();
    let store = SqliteStore::open(directory.join("semel.db")).unwrap();
    claim(&store, "seen").await;
    store.close().await;
    assert!(disk.witness().exists());
    assert_eq!(fs::read_dir(elsewhere.0.path()).unwrap().count(), 1, "nothing but the link");
}

// G-44
#[tokio::test]
async fn an_outbox_named_by_a_link_is_witnessed_beside_file_and_link() {
    use semel_core::outbox::{Lane, Outbox, Taken};
    let disk = Disk::new();
    let link = Link::to(&disk.path());
    disk.open().close().await;
    let copy = back_up(&disk);
    let open = |path: &Path| SqliteOutbox::open_with(path, outbox::Options::default()).unwrap();
    let take = async |outbox: &SqliteOutbox| outbox.take(Lane(0), Nonce::random(), DAY).await.unwrap();
    assert!(matches!(take(&open(&link.path())).await, Taken::Yours(_)));
    fs::remove_file(disk.path()).unwrap();
    for beside in ["-wal", "-shm"] {
        let _ = fs::remove_file(disk.0.path().join(format!("semel.db{beside}")));
    }
    fs::copy(&copy, disk.path()).unwrap();
    assert!(matches!(take(&open(&disk.path())).await, Taken::Stopped { .. }), "by the name of the file");
    link.lead_to(&copy);
    assert!(matches!(take(&open(&link.path())).await, Taken::Stopped { .. }), "by the link");
}
