//! One run of `semel verify`, and its scorecard.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A service under test, with all that checks want to know about it.
pub(super) struct Target {
    /// `http://host:port`
    pub(super) origin: String,
    /// Path and query of the request under test.
    pub(super) path: &'static str,
    /// Path and query that count, with `{tag}`.
    pub(super) count: &'static str,
    /// Where the number is in what is counted, if it is not all of it.
    pub(super) pointer: Option<&'static str>,
    pub(super) kill: String,
    pub(super) start: String,
    pub(super) store_stop: String,
    pub(super) store_start: String,
    /// What only this service needs.
    pub(super) more: Vec<String>,
}

/// What one run came to.
pub(super) struct Card {
    pub(super) code: Option<i32>,
    /// By check: `pass`, the cause of a failure, or `not shown` with the reason.
    pub(super) found: BTreeMap<String, String>,
    /// All that was printed.
    pub(super) said: String,
}

pub(super) const ORDER: &str = r#"{"tax":0.19,"amount":100,"currency":"EUR","reference":"{tag}"}"#;

impl Target {
    /// Plays what `more` asks for. Reports go to `place`.
    pub(super) fn verify(&self, place: &Path, more: &[&str]) -> Card {
        let json = place.join("card.json");
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command
            .args(["verify", &format!("{}{}", self.origin, self.path), "-d", ORDER])
            .args(["-H", "Content-Type: application/json", "-H", "Authorization: Bearer alice"])
            .args(["--other-tenant", "Authorization: Bearer bob"])
            .args(["--other-route", &format!("{}/refunds", self.origin)])
            .args(["--count-url", &format!("{}{}", self.origin, self.count)])
            .args(["--kill", &self.kill, "--start", &self.start])
            .args(["--store-stop", &self.store_stop, "--store-start", &self.store_start])
            .args(["--seed", "1", "--json"])
            .arg(&json)
            .args(&self.more)
            .args(more);
        if !more.contains(&"--answer-max") {
            command.args(["--answer-max", "3s"]);
        }
        if let Some(pointer) = self.pointer {
            command.args(["--count-pointer", pointer]);
        }
        let output = command.output().expect("the binary starts");
        let said =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        let card = std::fs::read_to_string(&json).unwrap_or_else(|error| panic!("{error}: {said}"));
        let card: Value = serde_json::from_str(&card).expect("a scorecard is JSON");
        let checks = card["checks"].as_array().expect("it has checks").iter().map(|check| {
            let text = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
            let found = match text("verdict").as_str() {
                "fail" => text("cause"),
                "not_shown" => format!("not shown: {}", text("reason")),
                verdict => verdict.to_owned(),
            };
            (text("id"), found)
        });
        Card { code: output.status.code(), found: checks.collect(), said }
    }
}

/// Every check there is.
pub(super) fn all_checks() -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_semel")).args(["verify", "--list"]).output();
    let listed = String::from_utf8(output.expect("the binary starts").stdout).expect("it prints text");
    let checks = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    checks.map(str::to_owned).collect()
}

/// A free port below the ephemeral range: no outgoing connection sits on it between two lives of a service.
pub(super) fn free_port() -> u16 {
    let start =
        semel::Nonce::random().as_bytes()[..2].iter().fold(0, |sum, byte| sum * 256 + u16::from(*byte));
    let ports = (0..12_000).map(|nth| 20_000 + (start % 12_000 + nth) % 12_000);
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(is_free).expect("a free port")
}
