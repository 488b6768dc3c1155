//! A store, its outbox and its ledgers from one line of configuration.

use std::sync::Arc;

use semel_core::error::{Error, Kind};
use semel_core::{EffectStore, Inbox, MemoryOutbox, MemoryStore, Outbox, SubjectKeys};

const FORMS: &str =
    "a store is `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE` or `memory:`";

/// Lanes of an outbox in memory.
const MEMORY_LANES: u16 = 8;

/// Opens the store an address names: `sqlite:PATH`, `postgres://…` (also `postgresql://…`),
/// `mysql://…` (also `mariadb://…`), or `memory:`, which forgets everything with the process.
///
/// An address may hold a password, so no error repeats it.
pub async fn open(address: &str) -> Result<Arc<dyn EffectStore>, Error> {
    match Named::by(address)? {
        Named::Memory => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => Ok(Arc::new(aside(move || crate::sqlite::SqliteStore::open(path)).await?)),
        #[cfg(feature = "postgres")]
        Named::Postgres(url) => Ok(Arc::new(crate::postgres::PostgresStore::connect(url).await?)),
        #[cfg(feature = "mysql")]
        Named::Mysql(url) => Ok(Arc::new(crate::mysql::MysqlStore::connect(url).await?)),
        #[allow(unreachable_patterns)]
        other => other.not_built(),
    }
}

/// Opens the outbox of the store an address names. One in `memory:` is empty and stays so; it is for trying
/// out sinks.
pub async fn open_outbox(address: &str) -> Result<Arc<dyn Outbox>, Error> {
    match Named::by(address)? {
        Named::Memory => Ok(Arc::new(MemoryOutbox::new(MEMORY_LANES))),
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => {
            Ok(Arc::new(aside(move || crate::sqlite::outbox::SqliteOutbox::open(path)).await?))
        }
        #[cfg(feature = "postgres")]
        Named::Postgres(url) => Ok(Arc::new(crate::postgres::outbox::PostgresOutbox::connect(url).await?)),
        #[cfg(feature = "mysql")]
        Named::Mysql(url) => Ok(Arc::new(crate::mysql::outbox::MysqlOutbox::connect(url).await?)),
        #[allow(unreachable_patterns)]
        other => other.not_built(),
    }
}

/// Opens the ledgers of consumers in the store an address names. Not in `memory:`, which would forget them.
pub async fn open_inbox(address: &str) -> Result<Arc<dyn Inbox>, Error> {
    match Named::by(address)? {
        Named::Memory => refuse("a ledger in `memory:` would forget what was applied"),
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => {
            Ok(Arc::new(aside(move || crate::sqlite::SqliteStore::open(path)).await?.inbox()))
        }
        #[cfg(feature = "postgres")]
        Named::Postgres(url) => Ok(Arc::new(crate::postgres::PostgresStore::connect(url).await?.inbox())),
        #[cfg(feature = "mysql")]
        Named::Mysql(url) => Ok(Arc::new(crate::mysql::MysqlStore::connect(url).await?.inbox())),
        #[allow(unreachable_patterns)]
        other => other.not_built(),
    }
}

/// Opens the place of subjects' keys an address names: `sqlite:PATH` or `postgres://…`. Not `memory:`, which
/// would forget all of them with the process, and never the place of a store.
pub async fn open_subject_keys(address: &str) -> Result<Arc<dyn SubjectKeys>, Error> {
    match Named::by(address)? {
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => {
            Ok(Arc::new(aside(move || crate::sqlite::SqliteSubjectKeys::open(path)).await?))
        }
        #[cfg(feature = "postgres")]
        Named::Postgres(url) => Ok(Arc::new(crate::postgres::PostgresSubjectKeys::connect(url).await?)),
        Named::Memory => {
            Err(Error::new(Kind::Misconfigured, "keys in `memory:` would be forgotten with the process"))
        }
        Named::Mysql(_) => {
            let sentence = "keys of subjects are kept in `sqlite:PATH` or `postgres://USER@HOST/DATABASE`";
            Err(Error::new(Kind::Misconfigured, sentence))
        }
        #[allow(unreachable_patterns)]
        other => other.not_built(),
    }
}

/// What the store an address names lacks of its schema. Changes nothing; [`open`] applies it.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub async fn plan(address: &str) -> Result<crate::Missing, Error> {
    match Named::by(address)? {
        Named::Memory => refuse("`memory:` has no schema"),
        #[cfg(feature = "sqlite")]
        Named::Sqlite(path) => crate::sqlite::missing(&path),
        #[cfg(feature = "postgres")]
        Named::Postgres(url) => crate::postgres::missing(crate::postgres::Options::new(url)).await,
        #[cfg(feature = "mysql")]
        Named::Mysql(url) => crate::mysql::missing(crate::mysql::Options::new(url)).await,
        #[allow(unreachable_patterns)]
        other => other.not_built(),
    }
}

/// What an address names.
#[allow(dead_code, reason = "each build leaves out some")]
enum Named<'a> {
    Memory,
    Sqlite(std::path::PathBuf),
    Postgres(&'a str),
    Mysql(&'a str),
}

impl<'a> Named<'a> {
    fn by(address: &'a str) -> Result<Self, Error> {
        let Some((scheme, rest)) = address.split_once(':') else {
            return refuse("the address of the store has no scheme");
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => refuse("`memory:` takes nothing after the colon"),
            "sqlite" => path_of(rest).map(Self::Sqlite),
            "postgres" | "postgresql" => Ok(Self::Postgres(address)),
            "mysql" | "mariadb" => Ok(Self::Mysql(address)),
            _ => refuse("the scheme of the store's address is not known"),
        }
    }

    fn not_built<T>(&self) -> Result<T, Error> {
        refuse(match self {
            Self::Memory => "this build keeps nothing in memory",
            Self::Sqlite(_) => "this build has no SQLite: enable the feature `sqlite`",
            Self::Postgres(_) => "this build has no Postgres: enable the feature `postgres`",
            Self::Mysql(_) => "this build has no MySQL: enable the feature `mysql`",
        })
    }
}

fn path_of(rest: &str) -> Result<std::path::PathBuf, Error> {
    // `sqlite:data.db`, `sqlite:/var/lib/data.db` and `sqlite:///var/lib/data.db` all name a path.
    match rest.strip_prefix("//").unwrap_or(rest) {
        "" => refuse("`sqlite:` names no file"),
        ":memory:" => refuse("a database in memory is `memory:`"),
        path if path.contains('?') => refuse("`sqlite:` takes a path and no options after a `?`"),
        path => Ok(path.into()),
    }
}

fn refuse<T>(why: &str) -> Result<T, Error> {
    Err(Error::new(Kind::Misconfigured, format!("{why}; {FORMS}")))
}

/// Opens on a thread of its own: another process may hold the lock for a while, and the executor that asks
/// must not stand still.
#[cfg(feature = "sqlite")]
async fn aside<T: Send + 'static>(
    open: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (opened, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || opened.send(open()).map_err(drop));
    match answer.await {
        Ok(store) => store,
        Err(_) => Err(Error::new(Kind::Closed, "opening the database was given up")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_that_make_no_sense_are_refused_without_repeating_them() {
        for address in [
            "",
            "semel.db",
            "sqlite:",
            "sqlite:///",
            "memory:x",
            "oracle://u:hunter2@h/d",
            "mysql://u:hunter2@",
        ] {
            let refused = open(address).await.map(drop).unwrap_err();
            assert_eq!(refused.kind(), Kind::Misconfigured, "{address}");
            assert!(!refused.to_string().contains("hunter2"), "{refused}");
        }
        assert_eq!(open("memory:").await.unwrap().capabilities().engine, "memory");
    }
}
