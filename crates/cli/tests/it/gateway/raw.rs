//! Whatever a client sends, byte by byte: a clear answer, nothing run, nothing remembered.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::rig::{Caller, Gateway, ORDER, PATIENCE, Upstream, keys};

/// A gateway whose log can be read.
struct Scene {
    home: tempfile::TempDir,
    upstream: Upstream,
    gateway: Gateway,
}

impl Scene {
    async fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let upstream = Upstream::start().await;
        let log = std::fs::File::create(home.path().join("log")).expect("a file");
        let (url, store) = (upstream.url(), store(home.path()));
        let arguments =
            ["--listen", "127.0.0.1:0", "--upstream", &url, "--store", &store, "--tenant", "none"];
        let gateway = Gateway::telling(log.into(), &arguments).await;
        Self { home, upstream, gateway }
    }

    /// What comes back for these bytes until the gateway closes.
    async fn say(&self, bytes: &[u8]) -> String {
        self.talk(bytes, false).await
    }

    async fn talk(&self, bytes: &[u8], hangs_up: bool) -> String {
        let mut stream = TcpStream::connect(&self.gateway.address).await.expect("it listens");
        let mut heard = Vec::new();
        let talk = async {
            let (mut reader, mut writer) = stream.split();
            // Whoever is refused may be cut off before the end, and what was answered still be read.
            let said = async {
                if writer.write_all(bytes).await.is_ok() && hangs_up {
                    let _ = writer.shutdown().await;
                }
            };
            tokio::join!(said, async { drop(reader.read_to_end(&mut heard).await) });
        };
        tokio::time::timeout(PATIENCE, talk).await.expect("an end");
        String::from_utf8_lossy(&heard).into_owned()
    }

    /// Nothing was run or remembered, nobody panicked, and the next client is served.
    async fn is_unharmed(&mut self) {
        let remembered = keys(&["list", "--store", &store(self.home.path())]).await;
        assert_eq!(remembered["operations"], serde_json::json!([]), "{remembered}");
        assert!(self.gateway.child.try_wait().expect("it can be asked").is_none(), "it still runs");
        let next = Caller::of(&self.gateway.address).post("/next", "raw-next-client-01", ORDER).await;
        assert_eq!(next.status, 201);
        let log = std::fs::read_to_string(self.home.path().join("log")).expect("a log");
        assert!(!log.contains("panicked"), "{log}");
    }
}

fn store(home: &Path) -> String {
    format!("sqlite:{}", home.join("semel.db").display())
}

fn post(headers: &[u8], body: &[u8]) -> Vec<u8> {
    let length = format!("content-length: {}\r\n", body.len());
    [b"POST /pay HTTP/1.1\r\nhost: a\r\nconnection: close\r\n", length.as_bytes(), headers, b"\r\n", body]
        .concat()
}

#[tokio::test]
async fn keys_that_cannot_be_read_are_refused_and_leave_nothing() {
    // G-2, G-3
    let mut scene = Scene::new().await;
    let long = [b"idempotency-key: ".as_slice(), &vec![b'k'; 256], b"\r\n"].concat();
    let lines: [&[u8]; 9] = [
        b"idempotency-key: a\xff\xfeb-0123456789\r\n",
        b"idempotency-key: schl\xc3\xbcssel-0123456789\r\n",
        b"idempotency-key: a\x01b-0123456789\r\n",
        b"idempotency-key: a\x00b-0123456789\r\n",
        b"idempotency-key: \"never closed\r\n",
        b"idempotency-key: two words\r\n",
        b"idempotency-key:\r\n",
        b"idempotency-key: raw-first-000001\r\nidempotency-key: raw-second-00001\r\n",
        &long,
    ];
    for line in lines {
        let heard = scene.say(&post(line, ORDER.as_bytes())).await;
        let shown = String::from_utf8_lossy(line);
        assert!(heard.starts_with("HTTP/1.1 400 "), "{shown:?}: {heard}");
    }
    assert_eq!(scene.upstream.count("/pay"), 0);
    scene.is_unharmed().await;
}

#[tokio::test]
async fn heads_beyond_all_measure_are_refused() {
    // G-2
    let mut scene = Scene::new().await;
    let key = [b"idempotency-key: ".as_slice(), &vec![b'k'; 10 << 20], b"\r\n"].concat();
    let many: Vec<u8> =
        (0..4000).flat_map(|at| format!("x-filler-{at}: {at:064}\r\n").into_bytes()).collect();
    for headers in [key, many] {
        let heard = scene.say(&post(&headers, ORDER.as_bytes())).await;
        // A kernel may throw the answer away when the rest of ten megabytes meets a closed door.
        assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 431 "), "{heard}");
    }
    let key = [b"idempotency-key: ".as_slice(), &vec![b'k'; 40_000], b"\r\n"].concat();
    let heard = scene.say(&post(&key, ORDER.as_bytes())).await;
    assert!(heard.starts_with("HTTP/1.1 4"), "{heard}");
    assert_eq!(scene.upstream.count("/pay"), 0);
    scene.is_unharmed().await;
}

#[tokio::test]
async fn requests_that_can_be_read_in_two_ways_or_in_none_are_refused() {
    // G-21
    let mut scene = Scene::new().await;
    let keyed = "host: a\r\nidempotency-key: raw-two-ways-0001\r\n";
    let both = format!("{keyed}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    let twice = format!("{keyed}content-length: 2\r\ncontent-length: 3\r\n\r\nabc");
    let odd = format!("{keyed}transfer-encoding: gzip\r\n\r\nabc");
    let coded = format!("{keyed}transfer-encoding: gzip, chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n");
    for rest in [both, twice, odd, coded] {
        let heard = scene.say(format!("POST /pay HTTP/1.1\r\n{rest}").as_bytes()).await;
        assert!(heard.starts_with("HTTP/1.1 400 "), "{rest:?}: {heard}");
        assert_eq!(heard.matches("HTTP/1.1").count(), 1, "nothing after it is read: {heard}");
    }
    let path = [
        b"POST /p\xff\xfe HTTP/1.1\r\ncontent-length: 0\r\nconnection: close\r\n",
        keyed.as_bytes(),
        b"\r\n",
    ]
    .concat();
    let heard = scene.say(&path).await;
    assert!(heard.starts_with("HTTP/1.1 400 "), "{heard}");
    assert_eq!(scene.upstream.count("/pay"), 0);
    scene.is_unharmed().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_runs_nothing() {
    // G-16
    let mut scene = Scene::new().await;
    let cut = b"POST /pay HTTP/1.1\r\nhost: a\r\nidempotency-key: raw-cut-00000001\r\ncontent-length: 50\r\n\r\nhalf";
    let heard = scene.talk(cut, true).await;
    // Who hangs up within a request may not be told.
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 400 "), "{heard}");
    assert_eq!(scene.upstream.count("/pay"), 0);
    scene.is_unharmed().await;
}

#[tokio::test]
async fn a_key_on_a_get_and_semels_own_headers_mean_nothing() {
    // G-4, G-21
    let mut scene = Scene::new().await;
    let get =
        b"GET /get HTTP/1.1\r\nhost: a\r\nidempotency-key: raw-get-00000001\r\nconnection: close\r\n\r\n";
    for _ in 0..2 {
        let heard = scene.say(get).await;
        assert!(heard.starts_with("HTTP/1.1 201 ") && !heard.contains("idempotent-replayed"), "{heard}");
    }
    assert_eq!(scene.upstream.count("/get"), 2);
    let forged = "semel-token: 999\r\nSemel-Nonce: 888\r\nsemel-hint: decided\r\nconnection: close\r\n";
    let echo = format!("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{forged}\r\n");
    let heard = scene.say(echo.as_bytes()).await;
    assert!(heard.starts_with("HTTP/1.1 200 ") && heard.contains("host: a"), "{heard}");
    assert!(!heard.contains("semel-") && !heard.contains(": 999"), "{heard}");
    scene.is_unharmed().await;
}
