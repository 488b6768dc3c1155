//! Processes that listen on a free port: contestants and what stands behind them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::{get, post};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A process that serves, ended when this is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) address: String,
    _scratch: Option<tempfile::TempDir>,
}

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

    /// A contestant of its own, given the answer it is to serve.
    pub(super) async fn peer(program: &Path) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let answer = scratch.path().join("answer.json");
        std::fs::write(&answer, super::json_of_1_kb())?;
        let mut command = Command::new(program);
        command.arg(&answer);
        Self::announced(command, "listening on ", Some(scratch)).await
    }

    /// `semel gateway` with these arguments; its log goes to a file in a directory of its own.
    pub(super) async fn gateway(semel: &Path, arguments: &[&str], sqlite: bool) -> Result<Self> {
        let scratch = tempfile::tempdir()?;
        let log = std::fs::File::create(scratch.path().join("log"))?;
        let mut command = Command::new(semel);
        command.args(["gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--tenant", "none"]);
        command.args(arguments).env_remove("SEMEL_STORE").stderr(log);
        if sqlite {
            command.arg("--store").arg(format!("sqlite:{}", scratch.path().join("semel.db").display()));
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
                return Ok(Self { child, address: address.to_owned(), _scratch: scratch });
            }
        }
        anyhow::bail!("{command:?} ended before it served")
    }

    /// nginx in front of `upstream`, with its connections kept and its access log as it comes.
    pub(super) async fn nginx(upstream: &str) -> Result<Self> {
        super::install("nginx", "nginx-light").await?;
        let scratch = tempfile::tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
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
        let mut child =
            command.kill_on_drop(true).stderr(Stdio::null()).spawn().context("nginx does not start")?;
        let address = format!("127.0.0.1:{port}");
        loop {
            ensure!(child.try_wait()?.is_none(), "nginx ended before it served");
            if tokio::net::TcpStream::connect(&address).await.is_ok() {
                return Ok(Self { child, address, _scratch: Some(scratch) });
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

/// Serves as one of the parts until it is ended.
pub(crate) async fn part(what: &str) -> Result<()> {
    let app = match what {
        "bare" => app(),
        "slow" => slow_app(),
        "semel" => super::layer::with_semel(app()).await?,
        _ => anyhow::bail!("no such server: {what}"),
    };
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
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

pub(crate) fn app() -> Router {
    let answer: &'static str = super::json_of_1_kb().leak();
    let json = [(header::CONTENT_TYPE, "application/json")];
    Router::new().route(
        "/payments",
        get(move || async move { (json.clone(), "{\"charges\":1}") }).merge(post(
            move |body: Bytes| async move {
                std::hint::black_box(body.len());
                ([(header::CONTENT_TYPE, "application/json")], answer)
            },
        )),
    )
}
