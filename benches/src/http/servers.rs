//! Processes that listen on a free port: contestants and what stands behind them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::{get, post};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::handler::{app, serve, with_semel};

/// A process that serves, ended when this is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) address: String,
    /// Where payments are made.
    path: &'static str,
    scratch: Option<tempfile::TempDir>,
}

/// Where payments are made, unless a contestant asks for another path.
const PAYMENTS: &str = "/payments";
/// The file in which a gateway's SQLite store is.
const DATABASE: &str = "semel.db";

impl Drop for Server {
    fn drop(&mut self) {
        // Asked to end, nginx ends its workers too; killed, it leaves them behind.
        if let Some(id) = self.child.id() {
            let _ = std::process::Command::new("kill").arg(id.to_string()).status();
            for _ in 0..50 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

impl Server {
    /// This program again, as one of its parts.
    pub(super) async fn part(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--part").arg("serve").args(arguments);
        Self::announced(command, "listening on ", None).await
    }

    /// The handler, bare or in Semel's layer, in a program without an allocator of its own.
    pub(super) async fn layered(program: &Path, what: &str) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg(what);
        Self::announced(command, "listening on ", None).await
    }

    /// Where payments are made.
    pub(super) fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }

    /// Where a gateway on SQLite has its records.
    pub(super) fn database(&self) -> Result<PathBuf> {
        Ok(self.scratch.as_ref().context("it has no directory")?.path().join(DATABASE))
    }

    /// `idempotent` around the handler, over its memory store or over Redis.
    pub(super) async fn idempotent(program: &Path, redis: Option<&Server>) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let answer = scratch.path().join("answer.json");
        std::fs::write(&answer, super::json_of_1_kb())?;
        let mut command = Command::new(program);
        command.arg(&answer).args(redis.map(Server::redis_url));
        Self::announced(command, "listening on ", Some(scratch)).await
    }

    /// `idempotent-proxy-server` in front of `upstream`, over its memory store or over Redis, as it comes but for
    /// its address; its log goes to a file.
    pub(super) async fn proxy(program: &Path, upstream: &str, redis: Option<&Server>) -> Result<Self> {
        let (scratch, port) = (tempfile::tempdir()?, free_port()?);
        // It does not start without this file.
        std::fs::write(scratch.path().join(".env"), "")?;
        let mut command = Command::new(program);
        command
            .current_dir(scratch.path())
            .env("SERVER_ADDR", format!("127.0.0.1:{port}"))
            .env("URL_PAYMENTS", format!("{upstream}{PAYMENTS}"))
            .env_remove("REDIS_URL")
            .envs(redis.map(|redis| ("REDIS_URL", redis.redis_url())))
            .stdout(std::fs::File::create(scratch.path().join("log"))?);
        let mut server = Self::connectable(command, port, scratch).await?;
        server.path = "/URL_PAYMENTS";
        Ok(server)
    }

    /// A Redis that keeps everything in memory and writes nothing to disk.
    pub(super) async fn redis() -> Result<Self> {
        super::install("redis-server", "redis-server").await?;
        let (scratch, port) = (tempfile::tempdir()?, free_port()?);
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()])
            .arg("--dir")
            .arg(scratch.path())
            .stdout(Stdio::null());
        Self::connectable(command, port, scratch).await
    }

    fn redis_url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// `semel gateway` with these arguments; its log goes to a file in a directory of its own.
    pub(super) async fn gateway(semel: &Path, arguments: &[&str], sqlite: bool) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let log = std::fs::File::create(scratch.path().join("log"))?;
        let mut command = Command::new(semel);
        command.args(["gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--tenant", "none"]);
        command.args(arguments).env_remove("SEMEL_STORE").stderr(log);
        if sqlite {
            command.arg("--store").arg(format!("sqlite:{}", scratch.path().join(DATABASE).display()));
        }
        Self::announced(command, "semel gateway listening on http://", Some(scratch)).await
    }

    /// What the process holds in memory.
    pub(super) fn resident_mib(&self) -> Result<f64> {
        let id = self.child.id().context("it has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no resident size")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }

    async fn announced(
        mut command: Command,
        prefix: &str,
        scratch: Option<tempfile::TempDir>,
    ) -> Result<Self> {
        command.stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("{command:?} does not start"))?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        while let Some(line) = lines.next_line().await? {
            if let Some(address) = line.strip_prefix(prefix) {
                return Ok(Self { child, address: address.to_owned(), path: PAYMENTS, scratch });
            }
        }
        anyhow::bail!("{command:?} ended before it served")
    }

    /// nginx in front of `upstream`, with its connections kept and its access log as it comes.
    pub(super) async fn nginx(upstream: &str) -> Result<Self> {
        super::install("nginx", "nginx-light").await?;
        let (scratch, port) = (tempfile::tempdir()?, free_port()?);
        let home = scratch.path().display();
        let config = format!(
            "worker_processes 2; daemon off; pid {home}/pid; error_log {home}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log {home}/access.log; client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;\n\
             fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s; keepalive_requests 1000000000;\n\
             upstream service {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://service; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr; }} }} }}\n"
        );
        std::fs::write(scratch.path().join("nginx.conf"), config)?;
        let mut command = Command::new("nginx");
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
        command
            .env("PATH", path)
            .arg("-c")
            .arg(scratch.path().join("nginx.conf"))
            .arg("-p")
            .arg(scratch.path());
        command.stderr(Stdio::null());
        Self::connectable(command, port, scratch).await
    }

    /// A process that says nothing when it begins to listen.
    async fn connectable(mut command: Command, port: u16, scratch: tempfile::TempDir) -> Result<Self> {
        let mut child =
            command.kill_on_drop(true).spawn().with_context(|| format!("{command:?} does not start"))?;
        let address = format!("127.0.0.1:{port}");
        loop {
            ensure!(child.try_wait()?.is_none(), "{command:?} ended before it served");
            if tokio::net::TcpStream::connect(&address).await.is_ok() {
                return Ok(Self { child, address, path: PAYMENTS, scratch: Some(scratch) });
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Serves as one of the parts until it is ended.
pub(crate) async fn part(what: &str) -> Result<()> {
    let app = match what {
        "bare" => app(),
        "slow" => slow_app(),
        "semel" => with_semel(app())?,
        _ => anyhow::bail!("no such server: {what}"),
    };
    serve(app).await
}

/// Takes its time for each payment, and counts them.
fn slow_app() -> Router {
    let effects = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = effects.clone();
    let pay = move |body: Bytes| async move {
        std::hint::black_box(body.len());
        tokio::time::sleep(super::crowd::HANDLER).await;
        effects.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        ([(header::CONTENT_TYPE, "application/json")], "{}")
    };
    let count = move || async move { counted.load(std::sync::atomic::Ordering::SeqCst).to_string() };
    Router::new().route("/payments", post(pay)).route("/effects", get(count))
}
