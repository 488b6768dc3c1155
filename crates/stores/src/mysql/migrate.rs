//! Making and changing the schema: forward only, one migrator at a time.
//!
//! DDL is not part of a transaction here. A migration is therefore made of statements that can be run
//! again, and is remembered only once all of them have run: whoever comes after a migrator that died
//! starts the same migration from its beginning.

use semel_core::Nonce;
use semel_core::error::{Error, Kind};

use super::connect::Live;
use super::fault::Fault;
use super::options::{Migrate, Options};
use super::server::Server;
use super::{row, sql};
use crate::crash;
use crate::migrate::{Applied, Migration, plan};

static MIGRATIONS: [Migration; 2] = [
    Migration {
        version: 1,
        name: "operations",
        sql: include_str!("../../migrations/mysql/0001_operations.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 2,
        name: "outbox",
        sql: include_str!("../../migrations/mysql/0002_outbox.sql"),
        minimum_reader: 1,
    },
];

/// Applies what is missing, or only makes sure that nothing is.
pub(super) async fn bring_up_to_date(
    live: &mut Live,
    options: &Options,
    server: &Server,
    place: &str,
) -> Result<(), Error> {
    let fail = |fault: Fault| fault.error();
    let found = applied(live.within(options.call_timeout)).await.map_err(fail)?;
    if plan(&found, &MIGRATIONS)?.is_empty() {
        return Ok(());
    }
    if options.migrate == Migrate::Check {
        return Err(Error::new(
            Kind::Schema,
            format!("the schema of the store at {place} is not up to date; run the migration"),
        ));
    }
    hold(live, options).await?;
    // Another migrator may have been before us: what is missing is asked again.
    let done = apply(live.within(options.call_timeout), server).await;
    match done {
        Ok(()) => live.within(options.call_timeout).say(sql::MIGRATION_UNLOCK).await.map(drop).map_err(fail),
        // The lock goes with the connection.
        Err(fault) => Err(fault.error()),
    }
}

/// Waits for the migrators' lock.
async fn hold(live: &mut Live, options: &Options) -> Result<(), Error> {
    let seconds = options.lock_seconds();
    let asked = live.within(options.call_timeout).ask(sql::MIGRATION_LOCK, vec![seconds.into()]).await;
    let rows = asked.map_err(|fault| fault.error())?.rows;
    match rows.first().map(|row| row::maybe_int(row, 0)).transpose()?.flatten() {
        Some(1) => Ok(()),
        _ => Err(Error::new(Kind::Busy, "another process is migrating the MySQL store; try again")),
    }
}

async fn applied(live: &mut Live) -> Result<Vec<Applied>, Fault> {
    let begun = live.say(sql::MIGRATED).await?;
    if begun.first().map_or(Ok(0), |row| row::int(row, 0))? == 0 {
        return Ok(Vec::new());
    }
    let number = |row: &mysql_async::Row, at| row::int(row, at).map(|number| number as u32);
    let mut found = Vec::new();
    for row in &live.say(sql::APPLIED).await? {
        found.push(Applied {
            version: number(row, 0)?,
            name: row::text(row, 1)?.unwrap_or_default().to_owned(),
            checksum: row::bytes(row, 2)?.to_vec(),
            minimum_reader: number(row, 3)?,
        });
    }
    Ok(found)
}

async fn apply(live: &mut Live, server: &Server) -> Result<(), Fault> {
    let found = applied(live).await?;
    for migration in plan(&found, &MIGRATIONS)? {
        let (version, name) = (migration.version, migration.name);
        for statement in statements(migration.sql) {
            live.say(statement).await?;
            crash::point("my-migrating");
        }
        live.begin().await?;
        if version == 1 {
            create(live, server).await?;
        }
        let (checksum, reader) = (migration.checksum(), migration.minimum_reader);
        let values = vec![version.into(), name.into(), checksum[..].into(), reader.into()];
        live.ask(sql::APPLY, values).await?;
        live.commit(&[]).await?;
        tracing::info!(version, name, "applied a migration of the MySQL store");
    }
    Ok(())
}

/// The store's own identity and its first secret, made here and nowhere else.
async fn create(live: &mut Live, server: &Server) -> Result<(), Fault> {
    let (store_id, mut secret) = (Nonce::random(), [0; 32]);
    getrandom::fill(&mut secret)
        .map_err(|error| Fault::new(Kind::Misconfigured, format!("no random bytes: {error}")))?;
    let database = live.say("SELECT DATABASE()").await?;
    let home = database.first().map_or(Ok(None), |row| row::text(row, 0))?.map(|name| server.home(name));
    live.ask(sql::CREATE, vec![store_id.as_bytes()[..].into(), home.into()]).await?;
    live.ask(sql::ROTATE, vec![1.into(), secret[..].into()]).await?;
    Ok(())
}

/// The statements of a migration. Each ends with a semicolon at the end of a line.
fn statements(sql: &str) -> impl Iterator<Item = &str> {
    sql.split(";\n").filter(|statement| !statement.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_is_run_statement_by_statement_and_each_can_be_run_again() {
        for migration in &MIGRATIONS {
            for statement in statements(migration.sql) {
                let code = statement.lines().find(|line| !line.is_empty() && !line.starts_with("--"));
                assert!(
                    code.is_some_and(|line| ["IF NOT EXISTS", "INSERT IGNORE"]
                        .iter()
                        .any(|again| line.contains(again))),
                    "{statement}"
                );
            }
        }
        assert_eq!(statements(MIGRATIONS[0].sql).count(), 5);
    }
}
