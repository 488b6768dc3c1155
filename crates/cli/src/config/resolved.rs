//! What is true: the settings of a gateway after files, variables and flags were read and judged.
//!
//! Plain values only. Nothing here reads anything, and nothing behind it judges again.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode, Uri};
use semel::http::{ExpiredKeys, Protection};

/// Everything a gateway needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Option<ServerTls>,
    pub(crate) admin: Option<Admin>,
    pub(crate) store: Secret,
    /// Where the keys of subjects are, if they have any. Never the store.
    pub(crate) subject_keys: Option<Secret>,
    /// Belongs to the deployment: a gateway and a layer behind it can share a store.
    pub(crate) namespace: String,
    pub(crate) upstream: Upstream,
    pub(crate) client: ClientLimits,
    /// Most requests with a key under way, with a client or without.
    pub(crate) operations_max: usize,
    /// Addresses whose `X-Forwarded-*` are believed and extended; all others' are replaced.
    pub(crate) trusted_proxies: Vec<Network>,
    /// How long replays are answered without asking the store; none if zero.
    pub(crate) replay_memory: Duration,
    pub(crate) drain: Duration,
    pub(crate) log: Log,
    /// In their order; the first that matches counts.
    pub(crate) routes: Vec<Route>,
    /// For keyed requests that match no route.
    pub(crate) fallback: RouteSettings,
    pub(crate) encryption: Option<Encryption>,
}

/// A value that must not be printed: a store URL with a password, a token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// An address with the number of bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) address: IpAddr,
    pub(crate) bits: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct ServerTls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Ask clients for certificates signed by these.
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
    /// Required off loopback.
    pub(crate) token: Option<Secret>,
}

#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) targets: Vec<Target>,
    /// Speak HTTP/2 to the upstream: by prior knowledge over plain text, by ALPN over TLS.
    pub(crate) http2: bool,
    /// Certificates to believe beside the system's.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) health: Option<Health>,
    pub(crate) connect_timeout: Duration,
    /// From the last byte sent to the first byte of the answer.
    pub(crate) response_timeout: Duration,
    pub(crate) pool_idle: Duration,
    /// A protected request takes a pooled connection only if it was idle for less than this.
    pub(crate) pool_idle_protected: Duration,
    pub(crate) pool_idle_connections_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `http` or `https`, an authority, and perhaps a path prefix.
    Url(Uri),
    /// The built-in payments service.
    Demo,
}

#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) path: String,
    pub(crate) every: Duration,
    pub(crate) timeout: Duration,
}

/// What a client may take its time for, and how much.
#[derive(Clone, Debug)]
pub(crate) struct ClientLimits {
    pub(crate) header_timeout: Duration,
    /// Longest silence within a request body.
    pub(crate) body_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) header_bytes_max: usize,
    pub(crate) connections_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) json: bool,
    /// As `tracing_subscriber::EnvFilter` reads it.
    pub(crate) filter: String,
}

/// Which requests a route takes, and how.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// Its name in logs, metrics and the published page. Without an id in the configuration: the pattern.
    pub(crate) id: String,
    /// Stable, and part of every operation's identity: the id it had first, before all aliases. A route
    /// without an id in the configuration has none; its operations go by method and raw path.
    pub(crate) stored: Option<String>,
    /// Empty: POST and PATCH.
    pub(crate) methods: Vec<Method>,
    /// `/orders/{id}`, `/files/{*rest}`.
    pub(crate) pattern: String,
    pub(crate) settings: RouteSettings,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteSettings {
    pub(crate) protection: Protection,
    pub(crate) tenant: Tenant,
    pub(crate) recovery: Recovery,
    pub(crate) ttl: Duration,
    pub(crate) retry_window: Duration,
    pub(crate) lease: Duration,
    /// The longest the upstream may take; after it the outcome is unknown.
    pub(crate) run_max: Duration,
    pub(crate) wait: Duration,
    pub(crate) store_patience: Duration,
    /// Run unprotected while the store is away. Needs `natural_effect`.
    pub(crate) outage_open: bool,
    pub(crate) natural_effect: bool,
    pub(crate) request_bytes_max: usize,
    pub(crate) outcome_bytes_max: usize,
    /// Upstream statuses that mean: nothing happened, try again. 429 unless set.
    pub(crate) releasing: Vec<StatusCode>,
    /// Stored although they usually are not (`set-cookie`, say).
    pub(crate) store_headers: Vec<HeaderName>,
    pub(crate) redact_headers: Vec<HeaderName>,
    pub(crate) redact_body: Vec<String>,
    pub(crate) encrypt: bool,
    pub(crate) fingerprint_headers: Vec<HeaderName>,
    pub(crate) fingerprint_exclude: Vec<String>,
    pub(crate) replay_header: HeaderName,
    pub(crate) expired_keys: ExpiredKeys,
    /// Asked with the client's credentials before the store is; 401 and 403 are passed on.
    pub(crate) auth_check: Option<Uri>,
    /// The request header whose value names the subject, for purging by subject.
    pub(crate) subject_header: Option<HeaderName>,
}

impl RouteSettings {
    /// Headers by which a request is judged before its body has ended.
    pub(crate) fn judged_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let first_sent = match &self.expired_keys {
            ExpiredKeys::FirstSent(name) => Some(name),
            _ => None,
        };
        let named = [self.tenant.header(), self.subject_header.as_ref(), first_sent];
        named.into_iter().flatten().chain(&self.fingerprint_headers)
    }
}

/// Who the client is (G-5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tenant {
    /// Not said: keyed requests with a credential are refused.
    Undeclared,
    /// All clients share one set of keys.
    None,
    /// A keyed hash of the `Authorization` header.
    Credential,
    /// An API key's header: a keyed hash of its value.
    Header(HeaderName),
    /// A header set by these peers, which have authenticated the client; stripped from all others.
    PeerHeader(HeaderName, Vec<Network>),
    /// A claim of a verified token.
    Jwt(Jwt),
    /// The first subject alternative name of the client's certificate.
    Certificate,
}

impl Tenant {
    /// The header that is for naming the client, and nothing else.
    pub(crate) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) | Self::PeerHeader(name, _) => Some(name),
            Self::Undeclared | Self::None | Self::Credential | Self::Jwt(_) | Self::Certificate => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Jwt {
    pub(crate) claim: String,
    pub(crate) keys: JwtKeys,
    pub(crate) issuer: Option<String>,
    pub(crate) audience: Option<String>,
    pub(crate) leeway: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JwtKeys {
    Secret(Secret),
    JwksFile(PathBuf),
    JwksUrl(Uri),
}

/// What becomes of an attempt whose lease lapsed with no outcome (G-15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    Hold,
    Rerun,
    /// Ask here.
    Ask(Uri),
}

/// Keys that seal outcomes, newest first.
#[derive(Clone, Debug)]
pub(crate) struct Encryption {
    pub(crate) keys: Vec<(String, Secret)>,
}

impl Route {
    /// What a route takes that names no methods, and what the defaults protect.
    pub(crate) const PROTECTED_METHODS: [Method; 2] = [Method::POST, Method::PATCH];

    /// The methods it takes.
    pub(crate) fn methods(&self) -> &[Method] {
        if self.methods.is_empty() { &Self::PROTECTED_METHODS } else { &self.methods }
    }

    /// The id that operations of a request have in the store (G-1).
    pub(crate) fn stored_id(&self, method: &Method, path: &str) -> String {
        match &self.stored {
            Some(id) => id.clone(),
            None => raw_id(method, path),
        }
    }
}

/// The id of operations on no route, or on a route without an id: method and raw path.
pub(crate) fn raw_id(method: &Method, path: &str) -> String {
    format!("{method} {path}")
}
