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
use super::say::inline;
use super::server::{Make, Server};
use super::{row, sql};
use crate::crash;
use crate::migrate::{Applied, Migration, Missing, plan};

static MIGRATIONS: [Migration; 6] = [
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
    Migration {
        version: 3,
        name: "fence",
        sql: include_str!("../../migrations/mysql/0003_fence.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 4,
        name: "inbox",
        sql: include_str!("../../migrations/mysql/0004_inbox.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 5,
        name: "procedures",
        sql: include_str!("../../migrations/mysql/0005_procedures.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 6,
        name: "since",
        sql: include_str!("../../migrations/mysql/0006_since.sql"),
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
    let done = apply(live, options, server).await;
    match done {
        Ok(()) => live.within(options.call_timeout).say(sql::MIGRATION_UNLOCK).await.map(drop).map_err(fail),
        // The lock goes with the connection.
        Err(fault) => Err(fault.error()),
    }
}

/// What the database lacks. Changes nothing.
///
/// DDL commits by itself, so the script is no transaction: it can be run again if it was interrupted. It is for the
/// server's shell, which must be told where a procedure ends. Its secrets are made where it runs, by `RANDOM_BYTES` (MySQL, or MariaDB 10.10 and later).
pub(super) async fn missing(live: &mut Live, options: &Options, server: &Server) -> Result<Missing, Error> {
    let found = applied(live.within(options.call_timeout)).await.map_err(|fault| fault.error())?;
    let ended = |statement: String| format!("{};\n", statement.trim_end());
    let record = |migration: &Migration| {
        let Migration { version, name, minimum_reader, .. } = migration;
        let checksum = migration.checksum();
        let values = [(*version).into(), (*name).into(), checksum[..].into(), (*minimum_reader).into()];
        ended(inline(sql::APPLY, &values))
    };
    let id = match server.make {
        Make::MySql => "@@server_uuid".to_owned(),
        make @ Make::MariaDb => format!("'{}'", make.engine()),
    };
    let create = sql::CREATE.replacen('?', "RANDOM_BYTES(16)", 1);
    let create = create.replacen('?', &format!("CONCAT({id}, '/', DATABASE())"), 1);
    let rotate = sql::ROTATE.replacen('?', "1", 1).replacen('?', "RANDOM_BYTES(32)", 1);
    // Procedures keep the mode they were made under.
    let mode = ended("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'".to_owned());
    let begin = mode + &ended(inline(sql::MIGRATION_LOCK, &[options.lock_seconds().into()]));
    let migrations = plan(&found, &MIGRATIONS)?;
    let names = migrations.iter().map(|migration| migration.name).collect::<Vec<_>>();
    let mut script = if names.is_empty() { String::new() } else { begin };
    for migration in migrations {
        script += &format!("\n-- {}: {}\n", migration.version, migration.name);
        script.extend(statements(migration.sql).into_iter().map(spoken));
        script += "START TRANSACTION;\n";
        if migration.version == 1 {
            script += &(ended(create.clone()) + &ended(rotate.clone()));
        }
        script += &(record(migration) + "COMMIT;\n");
    }
    Ok(Missing { names, script })
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

/// Each statement has the time of a call: together they may take longer.
async fn apply(live: &mut Live, options: &Options, server: &Server) -> Result<(), Fault> {
    let limit = options.call_timeout;
    let found = applied(live.within(limit)).await?;
    for migration in plan(&found, &MIGRATIONS)? {
        let (version, name) = (migration.version, migration.name);
        for statement in statements(migration.sql) {
            live.within(limit).say(statement).await?;
            crash::point("my-migrating");
        }
        live.within(limit).begin().await?;
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

/// The statements of a migration. Each ends with a semicolon at the end of a line, a procedure with its `END`.
fn statements(sql: &str) -> Vec<&str> {
    let (mut all, mut rest) = (Vec::new(), sql);
    while !rest.trim().is_empty() {
        let end = match is_procedure(rest) {
            true => rest.find("\nEND;\n").map(|at| at + "\nEND".len()),
            false => rest.find(";\n"),
        };
        let (statement, after) = rest.split_at(end.unwrap_or(rest.len()));
        all.push(statement);
        rest = after.strip_prefix(";\n").unwrap_or_default();
    }
    all
}

/// Whether what comes first makes a procedure, which has semicolons of its own.
fn is_procedure(sql: &str) -> bool {
    let code = sql.lines().find(|line| !line.is_empty() && !line.starts_with("--"));
    code.is_some_and(|line| line.starts_with("CREATE PROCEDURE"))
}

/// A statement as the server's shell takes it.
fn spoken(statement: &str) -> String {
    match is_procedure(statement) {
        true => format!("\nDELIMITER //{statement}//\nDELIMITER ;\n"),
        false => format!("{statement};\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_is_run_statement_by_statement_and_each_can_be_run_again() {
        let again = ["IF NOT EXISTS", "INSERT IGNORE", "DROP PROCEDURE IF EXISTS", "CALL semel_add_since()"];
        for migration in &MIGRATIONS {
            let mut before = "";
            for statement in statements(migration.sql) {
                let code = statement.lines().find(|line| !line.is_empty() && !line.starts_with("--"));
                let code = code.unwrap_or_default();
                match code.strip_prefix("CREATE PROCEDURE ").and_then(|rest| rest.split_once('(')) {
                    Some((name, _)) => assert_eq!(before, format!("DROP PROCEDURE IF EXISTS {name}")),
                    None => assert!(again.iter().any(|again| code.contains(again)), "{statement}"),
                }
                before = code;
            }
        }
        assert_eq!(statements(MIGRATIONS[0].sql).len(), 5);
    }
}
