//! A small payments service in this process, right or wrong in one way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::verify::json::Json;

/// What a service does wrong. Nothing, by default.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Broken {
    #[default]
    No,
    /// It does not look at keys.
    Ignores,
    /// It looks for the key first and stores it afterwards.
    LooksFirst,
    /// It compares no bodies.
    NoFingerprint,
    /// It does not know tenants.
    OneTenant,
    /// It compares numbers as floating-point ones.
    Floats,
    /// It answers success and does nothing.
    Lazy,
    /// A replay is a new answer.
    Rewrites,
    /// A replay has lost a header.
    LosesHeaders,
    /// A replay has the status of a conflict.
    Conflicts,
    /// It gives cookies to replays.
    Cookies,
    /// It takes any key.
    AnyKey,
    /// It forgets all answers when killed.
    Forgets,
    /// It runs what it cannot look up.
    OpensWithoutStore,
    /// A replay queues the work once more, for later.
    WorksLater,
    /// It is right in everything, and takes so few requests that most are told to come back.
    Limits,
    /// It is right in everything, and whoever stands in front of it loses one replay.
    Strays,
    /// All its replays are answered 503.
    RefusesReplays,
    /// A client that leaves takes the claim with it, but not the effect.
    DropsClaims,
}

pub(super) struct Stored {
    print: Vec<u8>,
    answer: Option<(StatusCode, String)>,
}

pub(super) struct Service {
    pub(super) broken: Broken,
    pub(super) keys: Mutex<HashMap<String, Stored>>,
    pub(super) effects: Mutex<HashMap<String, u64>>,
    pub(super) up: Mutex<(bool, bool)>,
    pub(super) pace: Duration,
    replays: AtomicUsize,
}

impl Service {
    pub(super) async fn start(broken: Broken) -> (Arc<Self>, String) {
        let pace = Duration::from_millis(15);
        let service = Self {
            broken,
            keys: Mutex::default(),
            effects: Mutex::default(),
            up: Mutex::new((true, true)),
            pace,
            replays: AtomicUsize::new(0),
        };
        let service = Arc::new(service);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pay", listener.local_addr().unwrap());
        let app = Router::new().fallback(serve).with_state(service.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (service, url)
    }

    fn print(&self, body: &[u8]) -> Vec<u8> {
        let text = match (self.broken, Json::read(body)) {
            (Broken::NoFingerprint, _) => Vec::new(),
            (Broken::Floats, Some(_)) => {
                let value: serde_json::Value = serde_json::from_slice(body).unwrap();
                let amount = value["amount"].as_f64().unwrap();
                format!("{amount}{}", value["tag"]).into_bytes()
            }
            (_, Some(Json::Members(mut members))) => {
                members.sort_by(|(one, _), (other, _)| one.cmp(other));
                Json::Members(members).write().into_bytes()
            }
            _ => body.to_vec(),
        };
        Sha256::digest(text).to_vec()
    }

    fn effect(&self, body: &[u8]) {
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let tag = value["tag"].as_str().unwrap_or_default().to_owned();
        if self.broken != Broken::Lazy {
            *self.effects.lock().unwrap().entry(tag).or_default() += 1;
        }
    }

    async fn run(&self, body: &[u8]) -> (StatusCode, String) {
        tokio::time::sleep(self.pace).await;
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        if value["amount"] == 0 {
            return (StatusCode::BAD_REQUEST, "nothing to pay".into());
        }
        self.effect(body);
        let id = semel::Nonce::random();
        (StatusCode::CREATED, format!("{{\"id\":\"{:?}\"}}", id.as_bytes()))
    }
}

fn problem(status: u16, kind: &str) -> Response {
    let body = format!("{{\"type\":\"urn:{kind}\",\"title\":\"{kind}\",\"status\":{status}}}");
    let status = StatusCode::from_u16(status).unwrap();
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::RETRY_AFTER, "1")];
    (status, headers, body).into_response()
}

/// Puts the claim back if its client leaves: what a careless handler does.
struct Claim<'a>(&'a Service, String, bool);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.2 {
            self.0.keys.lock().unwrap().remove(&self.1);
        }
    }
}

async fn serve(
    State(service): State<Arc<Service>>,
    method: Method,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let broken = service.broken;
    let (alive, has_store) = *service.up.lock().unwrap();
    if !alive {
        return problem(502, "down");
    }
    if broken == Broken::Limits && service.keys.lock().unwrap().len() > 5 {
        return problem(429, "too-many");
    }
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        return service.run(&body).await.into_response();
    };
    if method != Method::POST {
        return "a list".into_response();
    }
    let text = key.to_str().unwrap_or_default();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let is_bad = bare.is_empty() || bare.len() > 255 || keys.next().is_some();
    if is_bad && broken != Broken::AnyKey {
        return problem(400, "key");
    }
    let tenant = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let tenant = if broken == Broken::OneTenant { "" } else { tenant };
    let id = format!("{} {tenant} {bare}", uri.path());
    if !has_store && broken != Broken::OpensWithoutStore {
        return problem(503, "store");
    }
    if broken == Broken::Ignores || !has_store {
        return service.run(&body).await.into_response();
    }
    let (print, order) = (service.print(&body), body.clone());
    if let Some(stored) = service.keys.lock().unwrap().get(&id) {
        if stored.print != print {
            return problem(422, "reused");
        }
        let Some((status, body)) = stored.answer.clone() else { return problem(409, "in-flight") };
        let status = if broken == Broken::Conflicts { StatusCode::CONFLICT } else { status };
        if broken == Broken::WorksLater {
            let (service, order) = (service.clone(), order.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(900)).await;
                service.effect(&order);
            });
        }
        // The fourth: the plain retry comes first, and is well.
        let replays = service.replays.fetch_add(1, Ordering::Relaxed) + 1;
        if broken == Broken::RefusesReplays || (broken == Broken::Strays && replays % 4 == 0) {
            return problem(503, "away");
        }
        let body = if broken == Broken::Rewrites { body.replace("id", "ID") } else { body };
        let mut answer = (status, [("idempotent-replayed", "true")], body).into_response();
        if broken == Broken::Cookies {
            answer.headers_mut().insert(header::SET_COOKIE, "session=1".parse().unwrap());
        }
        return answer;
    }
    let stored = Stored { print, answer: None };
    if broken == Broken::LooksFirst {
        let answer = service.run(&body).await;
        let stored = Stored { answer: Some(answer.clone()), ..stored };
        service.keys.lock().unwrap().insert(id, stored);
        return answer.into_response();
    }
    // Between the look above and this nothing is awaited, but another thread may have been here.
    {
        let mut keys = service.keys.lock().unwrap();
        if keys.contains_key(&id) {
            return problem(409, "in-flight");
        }
        keys.insert(id.clone(), stored);
    }
    if broken == Broken::DropsClaims {
        let mut claim = Claim(&service, id.clone(), false);
        service.effect(&body);
        tokio::time::sleep(service.pace).await;
        claim.2 = true;
        let answer = (StatusCode::CREATED, "{}".to_owned());
        service.keys.lock().unwrap().get_mut(&id).unwrap().answer = Some(answer.clone());
        return answer.into_response();
    }
    // In a task of its own: a client that leaves stops nothing.
    let work = service.clone();
    let done = tokio::spawn(async move {
        let answer = work.run(&body).await;
        if let Some(stored) = work.keys.lock().unwrap().get_mut(&id) {
            stored.answer = Some(answer.clone());
        }
        answer
    });
    let answer = done.await.unwrap();
    let mut answer = (answer.0, [(header::SET_COOKIE, "session=1")], answer.1).into_response();
    if broken == Broken::LosesHeaders {
        answer.headers_mut().insert("x-receipt", "1".parse().unwrap());
    }
    answer
}
