//! Servers of a test's own, to be killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One private server, stopped with the test.
pub(super) struct Own {
    engine: &'static str,
    dir: tempfile::TempDir,
}

impl Own {
    /// Starts it, if the tests are given such a server at all.
    pub(super) async fn start(engine: &'static str, variable: &str) -> Option<Self> {
        crate::world::named(engine, variable)?;
        let dir = tempfile::tempdir().unwrap();
        // The server may run as another user and must reach its directory below this one.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let own = Self { engine, dir };
        own.run().await;
        Some(own)
    }

    /// Runs it: anew, or with the data and the port it had.
    pub(super) async fn run(&self) {
        let mut command = self.script(self.engine);
        let done = tokio::task::spawn_blocking(move || command.status()).await.unwrap().unwrap();
        assert!(done.success(), "{} runs", self.engine);
    }

    /// `kill -9`, for a server of several processes the first of them; it is gone when this returns.
    pub(super) async fn kill(&self) {
        let file = match self.engine {
            "postgres" => self.place().join("pg/postmaster.pid"),
            engine => self.place().join(engine).join("pid"),
        };
        let text = std::fs::read_to_string(file).unwrap();
        let pid = text.lines().next().unwrap().trim().to_owned();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
        let process = Path::new("/proc").join(pid).join("cmdline");
        // One that nobody has waited for has no command line any more.
        let gone = async || std::fs::read(&process).is_ok_and(|line| !line.is_empty());
        crate::world::until("it is gone", async || !gone().await).await;
    }

    /// What the tests are told about it.
    pub(super) fn told(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.place().join("env")).unwrap();
        let start = format!("export {name}='");
        let line = text.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('\''));
        line.unwrap().to_owned()
    }

    fn place(&self) -> PathBuf {
        self.dir.path().join("own")
    }

    fn script(&self, verb: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/servers.sh");
        let mut command = Command::new(script);
        command.arg(verb).arg(self.place()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.script("stop").status();
    }
}
