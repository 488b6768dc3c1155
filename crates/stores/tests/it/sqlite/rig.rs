//! A database file for the suites.

use std::sync::{Arc, Mutex};

use semel_core::{EffectStore, OperationId};
use semel_stores::sqlite::SqliteStore;
use semel_testkit::{BoxFuture, Maker, ManualClock, Rig};

use super::{Disk, on_clock};

/// Random histories compared with the reference; `./test --all` asks for more.
const HISTORIES: u32 = 32;
const HISTORIES_LONG: u32 = 512;

semel_testkit::conformance!(maker());
semel_testkit::execution!(maker());

#[test]
fn interleavings() {
    let long = std::env::var_os("SEMEL_TEST_LONG").is_some();
    semel_testkit::interleavings(maker(), if long { HISTORIES_LONG } else { HISTORIES });
}

struct SqliteRig {
    disk: Disk,
    clock: Arc<ManualClock>,
    store: Mutex<Arc<SqliteStore>>,
}

fn maker() -> Maker {
    maker_of(|_| {})
}

/// The same, with something done before the store is opened.
pub(super) fn maker_of(prepare: fn(&Disk)) -> Maker {
    Arc::new(move || {
        Box::pin(async move {
            let (disk, clock) = (Disk::new(), ManualClock::new());
            prepare(&disk);
            let store = SqliteStore::open_with(disk.path(), on_clock(&clock)).unwrap();
            Arc::new(SqliteRig { disk, clock, store: Mutex::new(Arc::new(store)) }) as Arc<dyn Rig>
        })
    })
}

impl SqliteRig {
    fn current(&self) -> Arc<SqliteStore> {
        self.store.lock().unwrap().clone()
    }

    /// Closes the store, does something to its files, and opens it again.
    async fn between(&self, change: impl FnOnce(&Disk)) {
        self.current().close().await;
        change(&self.disk);
        let store = SqliteStore::open_with(self.disk.path(), on_clock(&self.clock)).unwrap();
        *self.store.lock().unwrap() = Arc::new(store);
    }
}

/// No constraint of the database says that an operation has one record, so every case ends with a look.
impl Drop for SqliteRig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let twice = "SELECT count(*) FROM (SELECT 1 FROM semel_operation GROUP BY id HAVING count(*) > 1)";
        let conn = self.disk.meddle();
        conn.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
        let found = conn.query_row(twice, [], |row| row.get::<_, u32>(0));
        // A case may have taken the file away.
        assert!(!found.is_ok_and(|count| count > 0), "an operation has two records");
    }
}

impl Rig for SqliteRig {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    fn store(&self) -> Arc<dyn EffectStore> {
        self.current()
    }

    fn shift_clock(&self, micros: i64) {
        self.clock.shift(micros);
    }

    fn clock_stands(&self) -> bool {
        true
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.between(|_| {}))
    }

    fn back_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let copy = self.disk.0.path().join("backup.db");
            self.disk.meddle().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        })
    }

    fn restore(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.between(|disk| {
            // The last handle was closed, so the log is gone and the file is all there is.
            std::fs::copy(disk.0.path().join("backup.db"), disk.path()).unwrap();
        }))
    }

    fn damage_outcome(&self, operation: OperationId) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let sql = "UPDATE semel_operation SET outcome = x'00ff00ff' WHERE id = ?1";
            self.disk.meddle().execute(sql, [operation.as_bytes().as_slice()]).unwrap() == 1
        })
    }
}
