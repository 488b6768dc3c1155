//! A database for the measurement: on the server of `SEMEL_TEST_POSTGRES`, or on one started for it.

use anyhow::{Context, Result};
use semel_core::Nonce;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::servers::Servers;

/// Set on a server of our own: as on a server with some gigabytes, so that neither contestant is
/// measured by its checkpoints.
const SETTINGS: [&str; 3] =
    ["shared_buffers = '1GB'", "max_wal_size = '8GB'", "checkpoint_timeout = '30min'"];

pub(crate) struct Cluster {
    _server: Option<Servers>,
    admin_url: String,
    database: String,
    url: String,
}

impl Cluster {
    pub(crate) async fn reach() -> Result<Self> {
        let (server, admin_url) = match std::env::var("SEMEL_TEST_POSTGRES") {
            Ok(url) => (None, url),
            Err(_) => {
                let server =
                    Servers::start(&["postgres"]).await.context("set SEMEL_TEST_POSTGRES to use another")?;
                let url = server.env("SEMEL_TEST_POSTGRES")?;
                (Some(server), url)
            }
        };
        if let Some(server) = &server {
            let mut admin = PgConnection::connect(&admin_url).await?;
            for setting in SETTINGS {
                sqlx::raw_sql(AssertSqlSafe(format!("ALTER SYSTEM SET {setting}")))
                    .execute(&mut admin)
                    .await?;
            }
            admin.close().await?;
            server.restart_postgres()?;
        }
        let database = format!("semel_bench_{}", Nonce::random());
        let mut admin = PgConnection::connect(&admin_url).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}"))).execute(&mut admin).await?;
        admin.close().await?;
        let (base, _) = admin_url.rsplit_once('/').context("the address names a database")?;
        // Neither contestant encrypts: one of them would otherwise be measured with it.
        let url = format!("{base}/{database}?sslmode=disable");
        Ok(Self { _server: server, admin_url, database, url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Drops the database. A server of our own goes with it.
    pub(crate) async fn leave(self) -> Result<()> {
        let mut admin = PgConnection::connect(&self.admin_url).await?;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut admin).await?;
        Ok(admin.close().await?)
    }
}

/// What was set on the server, for the report.
pub(super) async fn settings(watch: &PgPool) -> Result<String> {
    let text = "SELECT 'PostgreSQL ' || current_setting('server_version') || ', ' || string_agg(name || ' = ' || \
                current_setting(name), ', ' ORDER BY name) FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', \
                'full_page_writes', 'shared_buffers', 'max_wal_size')";
    Ok(sqlx::query_scalar(text).fetch_one(watch).await?)
}
