//! A database for the measurement: on the server of `SEMEL_TEST_POSTGRES`, or on one started for it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use semel_core::Nonce;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

/// Set on a server of our own: as on a server with some gigabytes, so that neither contestant is
/// measured by its checkpoints.
const SETTINGS: [&str; 3] =
    ["shared_buffers = '1GB'", "max_wal_size = '8GB'", "checkpoint_timeout = '30min'"];

pub(crate) struct Cluster {
    _server: Option<Server>,
    admin_url: String,
    database: String,
    url: String,
}

impl Cluster {
    pub(crate) async fn reach() -> Result<Self> {
        let (server, admin_url) = match std::env::var("SEMEL_TEST_POSTGRES") {
            Ok(url) => (None, url),
            Err(_) => {
                let server = tokio::task::spawn_blocking(Server::start).await??;
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
            server.restart()?;
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

/// A private server, stopped when dropped.
struct Server {
    directory: TempDir,
}

impl Server {
    fn start() -> Result<Self> {
        let directory = TempDir::new()?;
        // The server runs as another user and must reach its directory below this one.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o711))?;
        let server = Self { directory };
        ensure!(
            server.script("postgres")?,
            "PostgreSQL could not be started; set SEMEL_TEST_POSTGRES to use another"
        );
        Ok(server)
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("servers")
    }

    fn script(&self, verb: &str) -> Result<bool> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/servers.sh");
        let status = Command::new(script).arg(verb).arg(self.place()).stdout(Stdio::null()).status()?;
        Ok(status.success())
    }

    /// What the script tells through a file of `export NAME='value'` lines.
    fn env(&self, name: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.place().join("env"))?;
        let start = format!("export {name}='");
        let line = text.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('\''));
        Ok(line.with_context(|| format!("the script told no {name}"))?.to_owned())
    }

    fn restart(&self) -> Result<()> {
        let (bin, user) = (self.env("SEMEL_TEST_PG_BIN")?, self.env("SEMEL_TEST_PG_OS_USER")?);
        let mut command = Command::new("runuser");
        command.args(["-u", &user, "--"]);
        if std::fs::metadata("/proc/self").is_ok_and(|own| own_uid(&own) != 0) {
            command = Command::new("env");
        }
        let control = Path::new(&bin).join("pg_ctl");
        let log = self.place().join("log/postgres.log");
        let status = command
            .arg(control)
            .args(["--wait", "--mode=fast", "restart", "--pgdata"])
            .arg(self.place().join("pg"))
            .arg("--log")
            .arg(log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "PostgreSQL could not be restarted with the settings of the measurement");
        Ok(())
    }
}

fn own_uid(metadata: &std::fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(metadata)
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.script("stop").unwrap_or(false) {
            eprintln!("the private PostgreSQL server could not be stopped");
        }
    }
}
