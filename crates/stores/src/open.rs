//! A store from one line of configuration.

use std::sync::Arc;

use semel_core::error::{Error, Kind};
use semel_core::{EffectStore, MemoryOutbox, MemoryStore, Outbox};

const FORMS: &str = "a store is `sqlite:PATH`, `postgres://USER@HOST/DATABASE` or `memory:`";

/// Opens the store an address names: `sqlite:PATH`, `postgres://…` (also `postgresql://…`), or
/// `memory:`, which forgets everything with the process.
///
/// An address may hold a password, so no error repeats it.
pub async fn open(address: &str) -> Result<Arc<dyn EffectStore>, Error> {
    let Some((scheme, rest)) = address.split_once(':') else {
        return refuse("the address of the store has no scheme");
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryStore::new())),
        "memory" => refuse("`memory:` takes nothing after the colon"),
        "sqlite" => sqlite(rest).await,
        "postgres" | "postgresql" => postgres(address).await,
        _ => refuse("the scheme of the store's address is not known"),
    }
}

/// Lanes of an outbox in memory.
const MEMORY_LANES: u16 = 8;

/// Opens the outbox of the store an address names.
///
/// An address may hold a password, so no error repeats it.
pub async fn open_outbox(address: &str) -> Result<Arc<dyn Outbox>, Error> {
    let Some((scheme, rest)) = address.split_once(':') else {
        return refuse("the address of the store has no scheme");
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryOutbox::new(MEMORY_LANES))),
        "memory" => refuse("`memory:` takes nothing after the colon"),
        "sqlite" => sqlite_outbox(rest).await,
        _ => refuse("the scheme of the store's address is not known, or it keeps no outbox"),
    }
}

fn refuse<T>(why: &str) -> Result<T, Error> {
    Err(Error::new(Kind::Misconfigured, format!("{why}; {FORMS}")))
}

#[cfg(feature = "sqlite")]
async fn sqlite(rest: &str) -> Result<Arc<dyn EffectStore>, Error> {
    let path = sqlite_path(rest)?;
    Ok(Arc::new(apart(move || crate::sqlite::SqliteStore::open(path)).await?))
}

#[cfg(feature = "sqlite")]
async fn sqlite_outbox(rest: &str) -> Result<Arc<dyn Outbox>, Error> {
    let path = sqlite_path(rest)?;
    Ok(Arc::new(apart(move || crate::sqlite::outbox::SqliteOutbox::open(path)).await?))
}

/// `sqlite:data.db`, `sqlite:/var/lib/data.db` and `sqlite:///var/lib/data.db` all name a path.
#[cfg(feature = "sqlite")]
fn sqlite_path(rest: &str) -> Result<std::path::PathBuf, Error> {
    match rest.strip_prefix("//").unwrap_or(rest) {
        "" => refuse("`sqlite:` names no file"),
        ":memory:" => refuse("a database in memory is `memory:`"),
        path if path.contains('?') => refuse("`sqlite:` takes a path and no options after a `?`"),
        path => Ok(path.into()),
    }
}

/// On a thread of its own: another process may hold the lock for a while, and the executor that asks must
/// not stand still.
#[cfg(feature = "sqlite")]
async fn apart<T: Send + 'static>(
    open: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (opened, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || opened.send(open()).map_err(drop));
    answer.await.unwrap_or_else(|_| Err(Error::new(Kind::Closed, "opening the database was given up")))
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_rest: &str) -> Result<Arc<dyn EffectStore>, Error> {
    refuse("this build has no SQLite: enable the feature `sqlite`")
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite_outbox(_rest: &str) -> Result<Arc<dyn Outbox>, Error> {
    refuse("this build has no SQLite: enable the feature `sqlite`")
}

#[cfg(feature = "postgres")]
async fn postgres(address: &str) -> Result<Arc<dyn EffectStore>, Error> {
    Ok(Arc::new(crate::postgres::PostgresStore::connect(address).await?))
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_address: &str) -> Result<Arc<dyn EffectStore>, Error> {
    refuse("this build has no Postgres: enable the feature `postgres`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_that_make_no_sense_are_refused_without_repeating_them() {
        for address in ["", "semel.db", "sqlite:", "sqlite:///", "memory:x", "mysql://u:hunter2@h/d"] {
            let refused = open(address).await.map(drop).unwrap_err();
            assert_eq!(refused.kind(), Kind::Misconfigured, "{address}");
            assert!(!refused.to_string().contains("hunter2"), "{refused}");
        }
        assert_eq!(open("memory:").await.unwrap().capabilities().engine, "memory");
    }
}
