//! A listener on loopback, a store behind it, a client in front, and an ear on the audit log.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::Request;
use axum::middleware::{self, Next};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use semel::claim::{self, Claim};
use semel::runtime::Tokio;
use semel::verbs::{Complete, Completion, MarkUnknown, Witness};
use semel::{
    EffectStore, Fingerprinter, Holder, Keyring, MemoryStore, MemorySubjectKeys, Nonce, Operation, Outcome,
    Policy, Record, Scope,
};
use semel_testkit::subjects::FaultyKeys;
use semel_testkit::{Fault, FaultyStore, ManualClock};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tracing::subscriber::DefaultGuard;

use crate::admin::{Admin, Guard, Peer, router};
use crate::config::resolved::Secret;
use crate::gateway::observe::Metrics;
use crate::log::Page;

/// The admin API of a gateway in namespace `shop`. Routes named `sealed` seal their outcomes.
pub(super) struct Rig {
    pub(super) store: Arc<MemoryStore>,
    /// What the listener sees of it.
    pub(super) network: Arc<FaultyStore>,
    /// Where the keys of subjects are.
    pub(super) keys: Arc<FaultyKeys>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) not_ready: Arc<Mutex<Vec<String>>>,
    address: SocketAddr,
    token: Option<String>,
    log: Page,
    _listening: DefaultGuard,
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: http::HeaderMap,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {}", self.text))
    }

    /// The problem's name, without the common part of its type.
    pub(super) fn problem(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        let body = self.json();
        assert_eq!(body["status"], self.status.as_u16());
        assert!(body["detail"].as_str().is_some_and(|detail| detail.len() > 5), "{body}");
        let kind = body["type"].as_str().and_then(|kind| kind.strip_prefix("urn:semel:problem:"));
        kind.expect("the type is Semel's").to_owned()
    }
}

impl Rig {
    pub(super) async fn new() -> Self {
        Self::with_token(None).await
    }

    /// Must run on a current-thread runtime, so that its log is the test's own.
    pub(super) async fn with_token(token: Option<&str>) -> Self {
        let clock = ManualClock::new();
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        let log = Page::default();
        let written = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(move || written.clone())
            .finish();
        let metrics = Arc::new(Metrics::new(["charge"], Arc::new(|| vec![("granted", 7)]), Box::new(|| 0)));
        let not_ready: Arc<Mutex<Vec<String>>> = Arc::default();
        let reasons = not_ready.clone();
        let secret = token.map(|token| Secret(token.to_owned()));
        let network = FaultyStore::new(store.clone(), |_| Fault::None);
        let keys = FaultyKeys::new(Arc::new(MemorySubjectKeys::new()));
        let kept = keys.clone();
        let admin = Arc::new(Admin {
            store: network.clone(),
            subject_keys: Some(keys.clone()),
            runtime: Arc::new(Tokio::new()),
            namespace: "shop".into(),
            guard: Guard::new(secret.as_ref(), &[]),
            not_ready: Box::new(move || reasons.lock().unwrap().clone()),
            policy: Box::new(move |route| match route {
                "shredded" => shredded(&kept),
                _ => policy(route),
            }),
            metrics: metrics.clone(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router(admin).layer(middleware::from_fn(async |mut request: Request, next: Next| {
            request.extensions_mut().insert(Peer(([192, 0, 2, 7], 4711).into()));
            next.run(request).await
        }));
        tokio::spawn(async move { axum::serve(listener, service).await });
        let token = token.map(str::to_owned);
        let _listening = tracing::subscriber::set_default(subscriber);
        Self { store, network, keys, clock, metrics, not_ready, address, token, log, _listening }
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, &[("content-type", "application/json")], &body.to_string()).await
    }

    /// One request on a connection of its own.
    pub(super) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.address.to_string());
        }
        if let Some(token) =
            self.token.as_ref().filter(|_| !headers.iter().any(|(name, _)| *name == "authorization"))
        {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    /// The audit events so far.
    pub(super) fn audited(&self) -> Vec<Value> {
        let log = self.log.text();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["target"] == "semel::audit").collect()
    }

    /// Claims, and must get the lease.
    pub(super) async fn claim(&self, operation: &Arc<Operation>) -> Holder {
        match self.try_claim(operation).await {
            Claim::Granted(lease) => lease.holder,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub(super) async fn try_claim(&self, operation: &Arc<Operation>) -> Claim {
        let keys = self.store.status().await.unwrap().hash_keys;
        let request = claim::Request {
            operation: operation.clone(),
            nonce: Nonce::random(),
            print: Fingerprinter::new(keys).unwrap().of_bytes(b"body").current().clone(),
            terms: policy(operation.scope().route()).terms(),
            subject: Some("customer-7".into()),
        };
        self.store.claim(&request).await.unwrap()
    }

    /// An attempt whose answer got lost.
    pub(super) async fn unknown(&self, operation: &Arc<Operation>) -> Holder {
        let holder = self.claim(operation).await;
        let mark = MarkUnknown { witness: Witness::Holder(holder), note: "the answer got lost".into() };
        self.store.mark_unknown(&mark).await.unwrap();
        holder
    }

    pub(super) async fn complete(&self, holder: Holder, route: &str, body: &str) -> Completion {
        let outcome = policy(route).prepare(&Outcome::text(body), holder.operation, None).await.unwrap();
        self.store.complete(&Complete { holder, outcome, ttl_min: None }).await.unwrap()
    }

    pub(super) async fn record(&self, operation: &Operation) -> Record {
        self.store.get(operation.id()).await.unwrap().expect("the record is there")
    }
}

pub(super) fn operation(tenant: Option<&str>, route: &str, key: &str) -> Arc<Operation> {
    let scope = match tenant {
        Some(tenant) => Scope::new("shop", tenant, route),
        None => Scope::shared("shop", route),
    };
    Arc::new(Operation::new(scope.unwrap(), key.parse().unwrap()))
}

/// What the route `shredded` does: it seals with the keys of subjects.
pub(super) fn shredded(keys: &Arc<FaultyKeys>) -> Policy {
    let ring = Keyring::new("2026-11", &[7; 32]).unwrap();
    Policy::builder().encrypt(ring).subject_keys(keys.clone()).build().unwrap()
}

pub(super) fn policy(route: &str) -> Policy {
    let builder = Policy::builder();
    let builder = match route {
        "sealed" => builder.encrypt(Keyring::new("2026-11", &[7; 32]).unwrap()),
        _ => builder,
    };
    builder.build().unwrap()
}
