//! Brings a database to the schema this build knows, under SQLite's own write lock.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use semel_core::clock::Timestamp;
use semel_core::error::Error;
use semel_core::fingerprint::HashKey;
use semel_core::{Nonce, mutant};

use super::error::Fault;
use super::place::Place;
use crate::migrate::{Applied, Migration, Missing, hex, plan};

static KNOWN: [Migration; 6] = [
    Migration {
        version: 1,
        name: "operations",
        sql: include_str!("../../migrations/sqlite/0001_operations.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 2,
        name: "outbox",
        sql: include_str!("../../migrations/sqlite/0002_outbox.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 3,
        name: "fence",
        sql: include_str!("../../migrations/sqlite/0003_fence.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 4,
        name: "inbox",
        sql: include_str!("../../migrations/sqlite/0004_inbox.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 5,
        name: "since",
        sql: include_str!("../../migrations/sqlite/0005_since.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 6,
        name: "generations",
        sql: include_str!("../../migrations/sqlite/0006_generations.sql"),
        minimum_reader: 6,
    },
];

/// Applies what is missing, all or nothing. A database that lacks nothing is only read.
pub(super) fn run(conn: &mut Connection, place: &Place, now: Timestamp) -> Result<(), Error> {
    let tell = |fault: Fault| fault.tell(place.path());
    if plan(&applied(conn).map_err(tell)?, &KNOWN)?.is_empty() {
        return Ok(());
    }
    // An index of millions of ids is sorted in files, not in memory.
    conn.pragma_update(None, "temp_store", "FILE").map_err(|error| tell(error.into()))?;
    let done = apply_missing(conn, now, tell);
    conn.pragma_update(None, "temp_store", "MEMORY").map_err(|error| tell(error.into()))?;
    done
}

fn apply_missing(
    conn: &mut Connection,
    now: Timestamp,
    tell: impl Fn(Fault) -> Error + Copy,
) -> Result<(), Error> {
    let locked = conn.transaction_with_behavior(TransactionBehavior::Immediate);
    let locked = locked.map_err(|error| tell(error.into()))?;
    // Looked at again: another process may have done it while this one waited for the lock.
    for migration in plan(&applied(&locked).map_err(tell)?, &KNOWN)? {
        apply(&locked, migration, now).map_err(tell)?;
    }
    locked.commit().map_err(|error| tell(error.into()))
}

/// What a file lacks. A file that does not exist lacks everything, and still does not afterwards.
pub(super) fn missing(path: &Path) -> Result<Missing, Error> {
    let found = if path.exists() {
        let look = || applied(&Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?);
        look().map_err(|fault| fault.tell(path))?
    } else {
        Vec::new()
    };
    let now = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
    let record = |migration: &Migration| {
        let Migration { version, name, minimum_reader, .. } = migration;
        include_str!("sql/record_migration.sql")
            .replace("?1", &version.to_string())
            .replace("?2", &format!("'{name}'"))
            .replace("?3", &format!("x'{}'", hex(&migration.checksum())))
            .replace("?4", &minimum_reader.to_string())
            .replace("?5", now)
    };
    let begin = format!("BEGIN IMMEDIATE;\n{}", include_str!("sql/schema_table.sql"));
    let found_store = include_str!("sql/found.sql").replace("?1", "randomblob(16)")
        + &include_str!("sql/add_hash_key.sql").replace("?1", "randomblob(32)").replace("?2", now);
    Ok(Missing::of(plan(&found, &KNOWN)?, &begin, record, &found_store))
}

fn applied(conn: &Connection) -> Result<Vec<Applied>, Fault> {
    let exists: u32 = conn.query_row(include_str!("sql/schema_exists.sql"), [], |row| row.get(0))?;
    if exists == 0 {
        return Ok(Vec::new());
    }
    let mut statement = conn.prepare(include_str!("sql/applied.sql"))?;
    let found = statement.query_map([], |row| {
        Ok(Applied {
            version: row.get(0)?,
            name: row.get(1)?,
            checksum: row.get(2)?,
            minimum_reader: row.get(3)?,
        })
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}

fn apply(conn: &Connection, migration: &Migration, now: Timestamp) -> Result<(), Fault> {
    conn.execute_batch(include_str!("sql/schema_table.sql"))?;
    conn.execute_batch(migration.sql)?;
    if migration.version == 1 {
        found_store(conn, now)?;
    }
    let Migration { version, name, minimum_reader, .. } = migration;
    let values = params![version, name, migration.checksum(), minimum_reader, now.as_micros()];
    conn.execute(include_str!("sql/record_migration.sql"), values)?;
    Ok(())
}

/// Identity and first hash key are made with the tables, so that no store is ever without them.
fn found_store(conn: &Connection, now: Timestamp) -> Result<(), Fault> {
    conn.execute(include_str!("sql/found.sql"), [Nonce::random().as_bytes().as_slice()])?;
    add_hash_key(conn, now).map(drop)
}

/// Adds a key under the next version, and returns that.
pub(super) fn add_hash_key(conn: &Connection, now: Timestamp) -> Result<u32, Fault> {
    let key = HashKey::generate(0).map_err(|error| Fault::no_randomness(error.to_string()))?;
    let values = params![key.secret().as_slice(), now.as_micros()];
    let sql = include_str!("sql/add_hash_key.sql");
    if mutant::on("lost-key-version-again") {
        return Ok(conn.query_row(&sql.replace("<< 16", "<< 0"), values, |row| row.get(0))?);
    }
    Ok(conn.query_row(sql, values, |row| row.get(0))?)
}
