//! Making and changing the schema: forward only, one migrator at a time, all or nothing.

use semel_core::error::{Error, Kind};
use semel_core::{Nonce, mutant};
use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::connect::{Live, Param, get, refuse_replica};
use super::fault::Fault;
use super::options::{Migrate, Options};
use super::sql;
use crate::migrate::{Applied, Migration, Missing, hex, plan};

/// The oldest server whose SQL is used.
const SERVER_VERSION_MIN: i32 = 130_000;

static MIGRATIONS: [Migration; 15] = [
    Migration {
        version: 1,
        name: "operations",
        sql: include_str!("../../migrations/postgres/0001_operations.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 2,
        name: "outbox",
        sql: include_str!("../../migrations/postgres/0002_outbox.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 3,
        name: "fence",
        sql: include_str!("../../migrations/postgres/0003_fence.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 4,
        name: "inbox",
        sql: include_str!("../../migrations/postgres/0004_inbox.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 5,
        name: "functions",
        sql: include_str!("../../migrations/postgres/0005_functions.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 6,
        name: "flow",
        sql: include_str!("../../migrations/postgres/0006_flow.sql"),
        minimum_reader: 1,
    },
    Migration {
        version: 7,
        name: "quick",
        sql: include_str!("../../migrations/postgres/0007_quick.sql"),
        // Older ones write messages without a lane, which is refused from here on.
        minimum_reader: 6,
    },
    Migration {
        version: 8,
        name: "together",
        sql: include_str!("../../migrations/postgres/0008_together.sql"),
        minimum_reader: 6,
    },
    Migration {
        version: 9,
        name: "many",
        sql: include_str!("../../migrations/postgres/0009_many.sql"),
        minimum_reader: 6,
    },
    Migration {
        version: 10,
        name: "ledger",
        sql: include_str!("../../migrations/postgres/0010_ledger.sql"),
        minimum_reader: 6,
    },
    Migration {
        version: 11,
        name: "since",
        sql: include_str!("../../migrations/postgres/0011_since.sql"),
        minimum_reader: 6,
    },
    Migration {
        version: 12,
        name: "past",
        sql: include_str!("../../migrations/postgres/0012_past.sql"),
        minimum_reader: 6,
    },
    Migration {
        version: 13,
        name: "fences",
        sql: include_str!("../../migrations/postgres/0013_fences.sql"),
        minimum_reader: 6,
    },
    Migration {
        version: 14,
        name: "flight",
        sql: include_str!("../../migrations/postgres/0014_flight.sql"),
        minimum_reader: 6,
    },
    Migration {
        version: 15,
        name: "walk",
        sql: include_str!("../../migrations/postgres/0015_walk.sql"),
        minimum_reader: 6,
    },
];

/// What the server says before anything of ours is there.
struct Server {
    schema: String,
    may_create: bool,
    role: String,
    migrated: bool,
}

/// Applies what is missing, or only makes sure that nothing is.
pub(super) async fn bring_up_to_date(live: &Live, options: &Options, place: &str) -> Result<(), Error> {
    let fail = |fault: Fault| fault.error();
    let server = server(live, options, place).await?;
    let found = if server.migrated { applied(live, options).await.map_err(fail)? } else { Vec::new() };
    let missing = plan(&found, &MIGRATIONS)?;
    if missing.is_empty() {
        return Ok(());
    }
    if options.migrate == Migrate::Check {
        return Err(Error::new(
            Kind::Schema,
            format!("the schema of the store at {place} is not up to date; run the migration"),
        ));
    }
    if !server.may_create {
        let Server { schema, role, .. } = server;
        return Err(Error::new(
            Kind::Denied,
            format!(
                "the role {role} may not create tables in the schema {schema} of {place}; \
                 GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}, or run the migration as the owner"
            ),
        ));
    }
    match apply(live, options).await {
        Ok(()) => Ok(()),
        Err(fault) => {
            if !fault.broken {
                let _ = timeout(options.call_timeout, live.client.batch_execute("ROLLBACK")).await;
            }
            Err(fault.error())
        }
    }
}

/// What the database lacks. Changes nothing.
pub(super) async fn missing(live: &Live, options: &Options, place: &str) -> Result<Missing, Error> {
    let server = server(live, options, place).await?;
    let found = match server.migrated {
        true => applied(live, options).await.map_err(|fault| fault.error())?,
        false => Vec::new(),
    };
    let record = |migration: &Migration| {
        let Migration { version, name, minimum_reader, .. } = migration;
        let record = sql::APPLY
            .replace("$1", &version.to_string())
            .replace("$2", &format!("'{name}'"))
            .replace("$3", &format!("'\\x{}'", hex(&migration.checksum())))
            .replace("$4", &minimum_reader.to_string());
        format!("{};\n", record.trim_end())
    };
    // Asked where the script runs, if this server tells: it may run elsewhere.
    let home = match live.here(options.call_timeout).await? {
        Some(_) => format!("({})", sql::HERE.trim_end()),
        None => "NULL".to_owned(),
    };
    let random = "uuid_send(gen_random_uuid())";
    let create = sql::CREATE.replace("$1", random).replace("$2", &home);
    let rotate = sql::ROTATE.replace("$1", &format!("{random} || {random}"));
    let found_store = format!("{};\n{};\n", create.trim_end(), rotate.trim_end());
    let begin = format!("BEGIN;\n{};\n", sql::MIGRATION_LOCK.trim_end());
    Ok(Missing::of(plan(&found, &MIGRATIONS)?, &begin, record, &found_store))
}

async fn server(live: &Live, options: &Options, place: &str) -> Result<Server, Error> {
    let rows = live.query(options.call_timeout, sql::SERVER, &[]).await.map_err(|fault| fault.error())?;
    let row = rows.first().ok_or_else(super::chores::no_row)?;
    refuse_replica(row, place)?;
    let version: i32 = get(row, 2)?;
    if version < SERVER_VERSION_MIN {
        return Err(Error::new(
            Kind::Misconfigured,
            format!("the server at {place} is PostgreSQL {}; the store needs 13 or later", version / 10_000),
        ));
    }
    let schema: Option<String> = get(row, 3)?;
    let schema = schema.ok_or_else(|| {
        let sentence = format!("search_path at {place} names no schema that exists; create one or set it");
        Error::new(Kind::Misconfigured, sentence)
    })?;
    Ok(Server { schema, may_create: get(row, 4)?, role: get(row, 5)?, migrated: get(row, 6)? })
}

async fn applied(live: &Live, options: &Options) -> Result<Vec<Applied>, Fault> {
    let rows = live.query(options.call_timeout, sql::APPLIED, &[]).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        found.push(Applied {
            version: get::<i32>(row, 0)? as u32,
            name: get(row, 1)?,
            checksum: get(row, 2)?,
            minimum_reader: get::<i32>(row, 3)? as u32,
        });
    }
    Ok(found)
}

/// One transaction. The lock comes first; then what is missing is asked again, because another
/// migrator may have been before us.
async fn apply(live: &Live, options: &Options) -> Result<(), Fault> {
    let here = live.here(options.call_timeout).await?;
    let begin = sql::begin(options.statement_timeout().as_millis(), options.lock_timeout.as_millis());
    run(live, options, &begin).await?;
    live.query(options.call_timeout, sql::MIGRATION_LOCK, &[]).await?;
    let server = live.query(options.call_timeout, sql::SERVER, &[]).await?;
    let migrated = get(server.first().ok_or_else(super::chores::no_row)?, 6)?;
    let found = if migrated { applied(live, options).await? } else { Vec::new() };
    for migration in plan(&found, &MIGRATIONS)? {
        if mutant::on("pg-inbox-looks-once") {
            run(live, options, &migration.sql.replace("IF NOT is_all AND", "IF false AND")).await?;
        } else if mutant::on("pg-fence-restarts") {
            run(live, options, &migration.sql.replace("IF given < beginning", "IF false")).await?;
        } else {
            run(live, options, migration.sql).await?;
        }
        let (version, checksum) = (migration.version as i32, migration.checksum());
        let reader = migration.minimum_reader as i32;
        let params: [Param<'_>; 4] = [
            (&version, Type::INT4),
            (&migration.name, Type::TEXT),
            (&&checksum[..], Type::BYTEA),
            (&reader, Type::INT4),
        ];
        live.query(options.call_timeout, sql::APPLY, &params).await?;
        match migration.name {
            "operations" => create(live, options, here.as_deref()).await?,
            "outbox" => super::outbox::create(live, options.call_timeout, here.as_deref()).await?,
            _ => {}
        }
        tracing::info!(version, name = migration.name, "applied a migration of the PostgreSQL store");
    }
    run(live, options, "COMMIT").await
}

/// The store's own identity and its first secret, made here and nowhere else.
async fn create(live: &Live, options: &Options, home: Option<&str>) -> Result<(), Fault> {
    let (store_id, mut secret) = (Nonce::random(), [0; 32]);
    getrandom::fill(&mut secret)
        .map_err(|error| Fault::new(Kind::Misconfigured, format!("no random bytes: {error}")))?;
    let store: [Param<'_>; 2] = [(&&store_id.as_bytes()[..], Type::BYTEA), (&home, Type::TEXT)];
    live.query(options.call_timeout, sql::CREATE, &store).await?;
    live.query(options.call_timeout, sql::ROTATE, &[(&&secret[..], Type::BYTEA)]).await?;
    Ok(())
}

async fn run(live: &Live, options: &Options, sql: &str) -> Result<(), Fault> {
    match timeout(options.call_timeout, live.client.batch_execute(sql)).await {
        Ok(done) => done.map_err(|error| Fault::of(&error)),
        Err(_) => Err(Fault::timed_out(true)),
    }
}
