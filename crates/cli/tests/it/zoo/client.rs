//! A client that sends exactly what it is told, and can hang up.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A payment to make. Made with [`pay`](Self::pay), changed field by field.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) user: &'static str,
    /// Header lines as they are sent.
    pub(super) keys: Vec<String>,
    pub(super) body: String,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Wish {
    pub(super) fn pay(tag: &str, key: &str) -> Self {
        let body = format!(r#"{{"amount":100,"currency":"EUR","reference":"{tag}"}}"#);
        Self { method: "POST", path: "/payments", user: "alice", keys: vec![key.into()], body }
    }

    /// The same with these members added.
    pub(super) fn with(mut self, members: &str) -> Self {
        self.body = self.body.replacen('{', &format!("{{{members},"), 1);
        self
    }

    pub(super) fn send(&self, address: &str) -> Heard {
        let mut stream = self.begin(address);
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).expect("an answer comes");
        Heard::parse(&String::from_utf8_lossy(&heard))
    }

    /// Sends it, and leaves the answer to whoever wants it.
    pub(super) fn begin(&self, address: &str) -> TcpStream {
        let mut stream = connect(address);
        stream.write_all(self.text().as_bytes()).expect("the request is sent");
        stream
    }

    fn text(&self) -> String {
        let keys: String = self.keys.iter().map(|key| format!("Idempotency-Key: {key}\r\n")).collect();
        let Self { method, path, user, body, .. } = self;
        format!(
            "{method} {path} HTTP/1.1\r\nHost: zoo\r\nConnection: close\r\nAuthorization: Bearer {user}\r\n\
             Content-Type: application/json\r\n{keys}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

impl Heard {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        Self { status, head: head.to_ascii_lowercase(), body: body.into() }
    }

    pub(super) fn has(&self, header: &str) -> bool {
        self.head.lines().any(|line| line.starts_with(&format!("{header}:")))
    }
}

pub(super) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the animal listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
    stream
}

pub(super) fn get(address: &str, path: &str) -> String {
    let mut stream = connect(address);
    let request = format!("GET {path} HTTP/1.1\r\nHost: zoo\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("an answer comes");
    Heard::parse(&heard).body
}
