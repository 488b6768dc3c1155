//! Load by wrk: 64 connections on two threads, keys made in Lua.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::servers::Server;
use crate::board::{Latency, Sample};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Traffic {
    Get,
    /// 1 KB of JSON without a key.
    Post,
    /// 1 KB of JSON, each with a key nobody used.
    NewKeys,
    /// 1 KB of JSON under one of so many keys, again and again.
    Replays(u32),
}

const CONNECTIONS: &str = "64";
const THREADS: &str = "2";

/// The scripts, in a directory that lives as long as this.
pub(super) struct Wrk {
    scripts: tempfile::TempDir,
}

impl Wrk {
    pub(super) async fn ready() -> Result<Self> {
        super::install("wrk", "wrk").await?;
        Ok(Self { scripts: tempfile::tempdir()? })
    }

    /// One window against a server; every answer must be a success.
    pub(super) async fn window(&self, server: &Server, traffic: Traffic, time: Duration) -> Result<Sample> {
        let (script, url) = (self.script(traffic)?, server.url());
        let seconds = time.as_secs_f64().ceil().max(1.0);
        let output = Command::new("wrk")
            .args(["-t", THREADS, "-c", CONNECTIONS, "-d", &format!("{seconds}s"), "--latency", "-s"])
            .arg(script)
            .arg(&url)
            .kill_on_drop(true)
            .output()
            .await
            .context("wrk does not start")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr));
        parse(&text).with_context(|| format!("wrk against {url}, {traffic:?}:\n{text}"))
    }

    fn script(&self, traffic: Traffic) -> Result<PathBuf> {
        let path = self.scripts.path().join(format!("{traffic:?}.lua"));
        write_script(&path, traffic)?;
        Ok(path)
    }
}

fn write_script(path: &Path, traffic: Traffic) -> Result<()> {
    let body = super::json_of_1_kb();
    let common = format!(
        "local body = [[{body}]]\nlocal threads = 0\nfunction setup(thread) thread:set('id', threads); threads = threads + 1 end\n\
         local head = {{ ['content-type'] = 'application/json' }}\n"
    );
    let run = semel_core::Nonce::random();
    let request = match traffic {
        Traffic::Get => "function request() return wrk.format('GET', nil, {}) end\n".to_owned(),
        Traffic::Post => "local text\nfunction init() text = wrk.format('POST', nil, head, body) end\n\
             function request() return text end\n"
            .to_owned(),
        Traffic::NewKeys => format!(
            "local n = 0\nfunction request() n = n + 1; head['idempotency-key'] = '{run}-' .. id .. '-' .. n\n\
             return wrk.format('POST', nil, head, body) end\n"
        ),
        Traffic::Replays(keys) => format!(
            "local n = 0\nlocal texts = {{}}\nfunction init() for i = 1, {keys} do head['idempotency-key'] = 'bench-replay-key-' .. id .. '-' .. i\n\
             texts[i] = wrk.format('POST', nil, head, body) end end\n\
             function request() n = n % {keys} + 1; return texts[n] end\n"
        ),
    };
    std::fs::write(path, common + &request)?;
    Ok(())
}

fn parse(text: &str) -> Result<Sample> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
        line.map(str::trim).with_context(|| format!("no line {name:?}"))
    };
    ensure!(field("Non-2xx or 3xx responses:").is_err(), "some answers were no success");
    ensure!(field("Socket errors:").is_err(), "some connections failed");
    let value = field("Requests/sec:")?.parse()?;
    let latency = Latency { p50_ms: millis(field("50%")?)?, p99_ms: millis(field("99%")?)? };
    Ok(Sample { value, latency: Some(latency) })
}

fn millis(text: &str) -> Result<f64> {
    let cut = text.find(|at: char| at.is_ascii_alphabetic()).context("a time without a unit")?;
    let (number, unit) = text.split_at(cut);
    let scale = match unit {
        "us" => 0.001,
        "ms" => 1.0,
        "s" => 1000.0,
        _ => anyhow::bail!("unknown unit {unit:?}"),
    };
    Ok(number.parse::<f64>()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_report_is_read() {
        let text =
            "  Latency Distribution\n     50%  594.00us\n     99%    5.90ms\nRequests/sec:  86123.45\n";
        let sample = parse(text).expect("it is read");
        assert_eq!(sample.value, 86123.45);
        assert_eq!(sample.latency, Some(Latency { p50_ms: 0.594, p99_ms: 5.9 }));
        assert!(parse(&format!("{text}  Non-2xx or 3xx responses: 3\n")).is_err());
    }
}
