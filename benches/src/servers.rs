//! Private servers for a measurement, in a temporary directory of their own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// Servers started by `scripts/servers.sh`, stopped when dropped.
pub(crate) struct Servers {
    directory: TempDir,
}

impl Servers {
    /// Starts engines side by side.
    pub(crate) async fn start(engines: &[&str]) -> Result<Self> {
        Self::with(engines, &[]).await
    }

    /// The same, with settings the script reads from its environment.
    pub(crate) async fn with(engines: &[&str], settings: &[(&str, &str)]) -> Result<Self> {
        let directory = TempDir::new()?;
        // Servers run as other users and must reach their directories below this one.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o711))?;
        let servers = Self { directory };
        let mut command = servers.script("start");
        command.args(engines).envs(settings.iter().copied());
        let status = tokio::task::spawn_blocking(move || command.status()).await??;
        ensure!(status.success(), "{} could not be started", engines.join(", "));
        Ok(servers)
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("servers")
    }

    fn script(&self, verb: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/servers.sh");
        let mut command = Command::new(script);
        // Servers are other users, who could not write to a temporary directory of ours.
        command.arg(verb).arg(self.place()).stdout(Stdio::null()).env_remove("TMPDIR");
        command
    }

    /// What the script tells through a file of `export NAME='value'` lines.
    pub(crate) fn env(&self, name: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.place().join("env"))?;
        let start = format!("export {name}='");
        let line = text.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('\''));
        Ok(line.with_context(|| format!("the script told no {name}"))?.to_owned())
    }

    pub(crate) fn restart_postgres(&self) -> Result<()> {
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

impl Drop for Servers {
    fn drop(&mut self) {
        if !self.script("stop").status().is_ok_and(|status| status.success()) {
            eprintln!("private servers could not be stopped; their files are in {}", self.place().display());
        }
    }
}
