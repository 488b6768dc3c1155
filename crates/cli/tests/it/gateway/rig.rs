//! A gateway as a process, a service behind it that counts, and a client.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

/// Nothing here takes longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const HUGE: usize = 16 << 20;
pub(super) const ORDER: &str = r#"{"amount":100,"currency":"EUR"}"#;

/// The service behind the gateway: it counts what it is asked to do, by path, and does it as the
/// path says.
#[derive(Clone)]
pub(super) struct Upstream {
    pub(super) address: String,
    counts: Arc<Mutex<HashMap<String, u64>>>,
    /// What `/slow` waits for.
    pub(super) gate: Arc<Semaphore>,
    /// Rung whenever a request has come in.
    pub(super) came: Arc<Semaphore>,
    serial: Arc<AtomicU64>,
}

impl Upstream {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::on(listener)
    }

    pub(super) fn on(listener: tokio::net::TcpListener) -> Self {
        let address = listener.local_addr().expect("an address").to_string();
        let (counts, serial) = Default::default();
        let (gate, came) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let upstream = Self { address, counts, gate, came, serial };
        let app = Router::new().fallback(serve).with_state(upstream.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        upstream
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How often this path was asked for.
    pub(super) fn count(&self, path: &str) -> u64 {
        self.counts.lock().expect("no panic").get(path).copied().unwrap_or(0)
    }

    /// Waits until one more request has come in.
    pub(super) async fn comes(&self) {
        let came = tokio::time::timeout(PATIENCE, self.came.acquire()).await;
        came.expect("a request comes").expect("open").forget();
    }
}

async fn serve(State(upstream): State<Upstream>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let headers = request.headers().clone();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    *upstream.counts.lock().expect("no panic").entry(path.clone()).or_default() += 1;
    upstream.came.add_permits(1);
    let n = upstream.serial.fetch_add(1, Ordering::SeqCst) + 1;
    let kind = path.split('/').nth(1).unwrap_or_default();
    match kind {
        "slow" => {
            upstream.gate.acquire().await.expect("open").forget();
            created(n, &body)
        }
        "status" => {
            let status = path.rsplit('/').next().and_then(|code| code.parse::<u16>().ok());
            let status = status.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or_default();
            hinted(&headers, (status, format!("status {status} number {n}")).into_response())
        }
        "cut" => {
            let cut = futures_util::stream::iter([
                Ok(Bytes::from("half an ans")),
                Err(std::io::Error::other("cut")),
            ]);
            Response::new(Body::from_stream(cut))
        }
        "large" => (StatusCode::CREATED, "x".repeat(3 << 20)).into_response(),
        // More than the buffers of a connection hold.
        "huge" => (StatusCode::CREATED, "x".repeat(HUGE)).into_response(),
        "headers" => {
            let mut response = created(n, &body);
            for (name, value) in [("x-order", "1"), ("set-cookie", "session=secret"), ("x-order", "2")] {
                response.headers_mut().append(name, HeaderValue::from_static(value));
            }
            response
        }
        "echo" => {
            let shown: Vec<String> = headers
                .iter()
                .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?")))
                .collect();
            shown.join("\n").into_response()
        }
        _ => created(n, &body),
    }
}

/// Adds the hint the request asks for in `x-hint`, with the nonce it came with, or a forged one.
fn hinted(headers: &HeaderMap, mut response: Response) -> Response {
    if let Some(hint) = headers.get("x-hint") {
        response.headers_mut().insert("semel-hint", hint.clone());
        let nonce = headers.get(if headers.contains_key("x-forged") { "x-forged" } else { "semel-nonce" });
        if let Some(nonce) = nonce {
            response.headers_mut().insert("semel-nonce", nonce.clone());
        }
    }
    response
}

fn created(n: u64, body: &Bytes) -> Response {
    let text = format!("{{\"id\":\"pay_{n}\",\"bytes\":{}}}", body.len());
    (StatusCode::CREATED, [("content-type", "application/json")], text).into_response()
}

/// `semel gateway`, killed when dropped.
pub(super) struct Gateway {
    pub(super) child: Child,
    pub(super) address: String,
    /// Of the admin API, if there is one.
    pub(super) admin: Option<String>,
}

impl Gateway {
    /// On a SQLite file in `home`, with no tenants, quiet.
    pub(super) async fn start(home: &Path, upstream: &str, more: &[&str]) -> Self {
        let store = format!("sqlite:{}", home.join("semel.db").display());
        let mut arguments = vec!["--listen", "127.0.0.1:0", "--upstream", upstream, "--store", &store];
        if !more.contains(&"--tenant") {
            arguments.extend(["--tenant", "none"]);
        }
        arguments.extend(more);
        Self::with(&arguments).await
    }

    pub(super) async fn with(arguments: &[&str]) -> Self {
        Self::telling(Stdio::inherit(), arguments).await
    }

    /// Its log goes there.
    pub(super) async fn telling(log: Stdio, arguments: &[&str]) -> Self {
        Self::ready(Self::command(arguments).stderr(log)).await
    }

    pub(super) fn command(arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        // Unless a test says otherwise, a disk that is slow for a moment is no outage.
        command.arg("gateway").args(arguments).env("SEMEL_STORE_PATIENCE", "20s");
        command
    }

    /// Whatever the command does before: a gateway comes of it.
    pub(super) async fn ready(command: &mut Command) -> Self {
        let command = command.env_remove("SEMEL_STORE").stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it has output")).lines();
        let ready = async {
            let mut admin = None;
            while let Some(line) = lines.next_line().await.expect("its output is text") {
                if let Some(address) = line.strip_prefix("semel admin listening on ") {
                    admin = Some(address.to_owned());
                }
                if let Some(address) = line.strip_prefix("semel gateway listening on ") {
                    let (_scheme, address) = address.split_once("://").expect("it is a URL");
                    return (address.to_owned(), admin);
                }
            }
            panic!("the gateway ended before it was ready");
        };
        let (address, admin) = tokio::time::timeout(PATIENCE, ready).await.expect("it is ready in time");
        Self { child, address, admin }
    }

    pub(super) fn signal(&self, signal: &str) {
        let id = self.child.id().expect("it runs").to_string();
        let sent = std::process::Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(sent.success());
    }
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Heard {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The slug of the problem it tells of.
    pub(super) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem is JSON");
        assert_eq!(problem["status"], self.status, "{problem}");
        let kind = problem["type"].as_str().expect("a problem has a type");
        kind.strip_prefix("urn:semel:problem:").expect("one of ours").to_owned()
    }
}

#[derive(Clone)]
pub(super) struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    pub(super) address: String,
}

impl Caller {
    pub(super) fn of(address: &str) -> Self {
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { client, address: address.to_owned() }
    }

    pub(super) async fn post(&self, path: &str, key: &str, body: &str) -> Heard {
        self.send("POST", path, &[("idempotency-key", key)], body).await.expect("an answer")
    }

    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Heard, String> {
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| error.to_string())?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            Ok(Heard { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        tokio::time::timeout(PATIENCE, answer).await.map_err(|_| "no answer in time".to_owned())?
    }
}

/// Asks until the answer is as wanted: for states that come with time.
pub(super) async fn until(caller: &Caller, path: &str, key: &str, wanted: impl Fn(&Heard) -> bool) -> Heard {
    let ask = async {
        loop {
            let heard = caller.post(path, key, ORDER).await;
            if wanted(&heard) {
                return heard;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ask).await.expect("it comes to that")
}

/// `semel keys … --json`, and what it printed.
pub(super) async fn keys(arguments: &[&str]) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    let said = command.arg("keys").args(arguments).arg("--json").output().await.expect("it runs");
    assert!(said.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice(&said.stdout).expect("it prints JSON")
}
