//! A store from one line of configuration.

use std::sync::Arc;

use semel_core::error::{Error, Kind};
use semel_core::{EffectStore, MemoryStore};

const FORMS: &str =
    "a store is `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE` or `memory:`";

/// Opens the store an address names: `sqlite:PATH`, `postgres://…` (also `postgresql://…`), `mysql://…`
/// (also `mariadb://…`), or `memory:`, which forgets everything with the process.
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
        "mysql" | "mariadb" => mysql(address).await,
        _ => refuse("the scheme of the store's address is not known"),
    }
}

fn refuse<T>(why: &str) -> Result<T, Error> {
    Err(Error::new(Kind::Misconfigured, format!("{why}; {FORMS}")))
}

#[cfg(feature = "sqlite")]
async fn sqlite(rest: &str) -> Result<Arc<dyn EffectStore>, Error> {
    // `sqlite:data.db`, `sqlite:/var/lib/data.db` and `sqlite:///var/lib/data.db` all name a path.
    let path = rest.strip_prefix("//").unwrap_or(rest);
    match path {
        "" => return refuse("`sqlite:` names no file"),
        ":memory:" => return refuse("a database in memory is `memory:`"),
        path if path.contains('?') => return refuse("`sqlite:` takes a path and no options after a `?`"),
        _ => {}
    }
    let path = std::path::PathBuf::from(path);
    let (opened, answer) = tokio::sync::oneshot::channel();
    // On a thread of its own: another process may hold the lock for a while, and the executor that
    // asks must not stand still.
    std::thread::spawn(move || opened.send(crate::sqlite::SqliteStore::open(path)).map_err(drop));
    match answer.await {
        Ok(store) => Ok(Arc::new(store?)),
        Err(_) => Err(Error::new(Kind::Closed, "opening the database was given up")),
    }
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_rest: &str) -> Result<Arc<dyn EffectStore>, Error> {
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

#[cfg(feature = "mysql")]
async fn mysql(address: &str) -> Result<Arc<dyn EffectStore>, Error> {
    Ok(Arc::new(crate::mysql::MysqlStore::connect(address).await?))
}

#[cfg(not(feature = "mysql"))]
async fn mysql(_address: &str) -> Result<Arc<dyn EffectStore>, Error> {
    refuse("this build has no MySQL: enable the feature `mysql`")
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
