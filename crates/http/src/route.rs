//! A route: which requests are protected, and how.
//!
//! A route is made once and shared. [`Builder::build`] judges all of it and returns every contradiction
//! at once. What a route does not do is match paths: see [`Routes`](crate::Routes).

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Uri};
use semel_core::fingerprint::Pointers;
use semel_core::operation::PART_BYTES_MAX;
use semel_core::policy::Nonsense;
use semel_core::runtime::Boxed;
use semel_core::{Policy, Scope, mutant, operation};
use sha2::{Digest, Sha256};

use crate::age::ExpiredKeys;
use crate::print::Recent;
use crate::{header, tenant};

/// Whether a route wants keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A request without a key is refused.
    Required,
    /// A request without a key passes untouched.
    Optional,
    /// Keys mean nothing here; everything passes untouched.
    Off,
}

/// Asked before the store is, on replays too: may this client have the answer? An error is passed on to
/// the client as it is. Closures of the same shape are checks.
pub trait AuthCheck: Send + Sync + 'static {
    /// Looks at the head of the request.
    fn check(&self, request: &Parts) -> Boxed<Result<(), Response<Bytes>>>;
}

impl<F> AuthCheck for F
where
    F: Fn(&Parts) -> Boxed<Result<(), Response<Bytes>>> + Send + Sync + 'static,
{
    fn check(&self, request: &Parts) -> Boxed<Result<(), Response<Bytes>>> {
        self(request)
    }
}

/// Names whom an outcome is about.
type Subject = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// How the requests of one route are run. Cheap to share behind an `Arc`.
pub struct Route {
    id: Option<String>,
    identity: Option<String>,
    methods: Vec<Method>,
    protection: Protection,
    policy: Policy,
    releasing: Vec<StatusCode>,
    stored_headers: Vec<HeaderName>,
    fingerprint_headers: Vec<HeaderName>,
    exclusions: Pointers,
    replay_header: HeaderName,
    expired_keys: ExpiredKeys,
    tenant: Arc<dyn tenant::Source>,
    auth_check: Option<Arc<dyn AuthCheck>>,
    subject: Option<Subject>,
    described_by: Option<HeaderValue>,
    attempt_headers: bool,
    recent: Recent,
    shared_scope: OnceLock<Scope>,
    same_transaction: bool,
}

impl Route {
    /// A route with a stable id. The id is part of every operation's identity: a route that gets another
    /// id forgets what it did, unless [`Builder::known_as`] names the old one.
    pub fn builder(id: impl Into<String>) -> Builder {
        Builder::new(Some(id.into()))
    }

    /// A route without an id: each operation is identified by the request's method and raw path.
    pub fn by_path() -> Builder {
        Builder::new(None)
    }

    /// Its name in logs and metrics: the id, or `default`; never a raw path.
    pub fn label(&self) -> &str {
        self.id.as_deref().unwrap_or("default")
    }

    /// Whether requests of this method may use the store.
    pub fn takes(&self, method: &Method) -> bool {
        let taken = !is_safe(method) && self.methods.contains(method);
        self.protection != Protection::Off && (taken || mutant::on("key-on-get-used"))
    }

    /// The route's part in the identity of an operation.
    pub fn identity(&self, method: &Method, uri: &Uri) -> Cow<'_, str> {
        if let Some(identity) = self.identity.as_deref().or(self.id.as_deref()) {
            return Cow::Borrowed(identity);
        }
        let path = if mutant::on("path-does-not-count") { "" } else { uri.path() };
        let whole = format!("{method} {path}");
        if whole.len() <= PART_BYTES_MAX {
            return Cow::Owned(whole);
        }
        let digest = Sha256::digest(uri.path().as_bytes());
        Cow::Owned(digest.iter().fold(format!("{method} sha256:"), |id, byte| format!("{id}{byte:02x}")))
    }

    /// The policy operations run under.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether it wants keys.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// The methods it protects.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// Statuses after which the key is free again.
    pub fn releasing(&self) -> &[StatusCode] {
        &self.releasing
    }

    /// The header that marks a replay.
    pub fn replay_header(&self) -> &HeaderName {
        &self.replay_header
    }

    /// How the age of keys is known.
    pub fn expired_keys(&self) -> &ExpiredKeys {
        &self.expired_keys
    }

    pub(crate) fn tenant(&self) -> &dyn tenant::Source {
        &*self.tenant
    }

    pub(crate) fn auth_check(&self) -> Option<&dyn AuthCheck> {
        self.auth_check.as_deref()
    }

    pub(crate) fn described_by(&self) -> Option<HeaderValue> {
        self.described_by.clone()
    }

    pub(crate) fn gives_headers(&self) -> bool {
        self.attempt_headers
    }

    pub(crate) fn is_same_transaction(&self) -> bool {
        self.same_transaction
    }

    pub(crate) fn stores(&self, name: &HeaderName) -> bool {
        !header::is_secret(name) || self.stored_headers.contains(name) || mutant::on("set-cookie-stored")
    }

    pub(crate) fn exclusions(&self) -> &Pointers {
        &self.exclusions
    }

    /// Fingerprints of what was replayed lately. Here, because what a route leaves out or counts in is part of
    /// them.
    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// The scope of an operation. Where neither client nor path is part of it, all operations share one.
    pub(crate) fn scope(
        &self,
        namespace: &str,
        tenant: Option<&str>,
        method: &Method,
        uri: &Uri,
    ) -> Result<Scope, operation::Invalid> {
        let identity = self.identity(method, uri);
        let (Cow::Borrowed(id), None) = (&identity, tenant) else {
            return match tenant {
                Some(tenant) => Scope::new(namespace, tenant, &identity),
                None => Scope::shared(namespace, &identity),
            };
        };
        // Layers of several namespaces may share a route.
        let ours =
            |scope: &&Scope| scope.namespace() == namespace || mutant::on("namespace-of-another-layer");
        match self.shared_scope.get().filter(ours) {
            Some(scope) => Ok(scope.clone()),
            None => {
                let scope = Scope::shared(namespace, id)?;
                let _ = self.shared_scope.set(scope.clone());
                Ok(scope)
            }
        }
    }

    pub(crate) fn fingerprint_headers(&self) -> &[HeaderName] {
        &self.fingerprint_headers
    }

    /// The policy for one request: with its subject, if the route knows one.
    pub(crate) fn policy_for(&self, request: &Parts) -> Cow<'_, Policy> {
        match self.subject.as_ref().and_then(|subject| subject(request)) {
            Some(subject) => Cow::Owned(self.policy.for_subject(&subject)),
            None => Cow::Borrowed(&self.policy),
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("id", &self.label())
            .field("protection", &self.protection)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::CONNECT)
}

/// Collects settings; [`build`](Builder::build) judges them.
pub struct Builder {
    route: Route,
    pointers: Vec<String>,
    subject_header: Option<HeaderName>,
}

/// One setter per setting.
impl Builder {
    fn new(id: Option<String>) -> Self {
        let route = Route {
            id,
            identity: None,
            methods: vec![Method::POST, Method::PATCH],
            protection: Protection::Optional,
            policy: Policy::default(),
            releasing: vec![StatusCode::TOO_MANY_REQUESTS],
            stored_headers: Vec::new(),
            fingerprint_headers: Vec::new(),
            exclusions: Pointers::none(),
            replay_header: header::IDEMPOTENT_REPLAYED,
            expired_keys: ExpiredKeys::NotChecked,
            tenant: Arc::new(tenant::Undeclared),
            auth_check: None,
            subject: None,
            described_by: None,
            attempt_headers: false,
            recent: Recent::default(),
            shared_scope: OnceLock::new(),
            same_transaction: false,
        };
        Self { route, pointers: Vec::new(), subject_header: None }
    }

    /// The id this route had before: its operations go on living under that one.
    pub fn known_as(mut self, old: impl Into<String>) -> Self {
        self.route.identity = Some(old.into());
        self
    }

    /// The methods it protects instead of POST and PATCH. GET, HEAD, OPTIONS, TRACE and CONNECT never are.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.route.methods = methods.into_iter().collect();
        self
    }

    /// Whether it wants keys. Optional unless set.
    pub fn protection(mut self, protection: Protection) -> Self {
        self.route.protection = protection;
        self
    }

    /// A request without a key is refused.
    pub fn required(self) -> Self {
        self.protection(Protection::Required)
    }

    /// The policy operations run under: times, limits, recovery, outage, redaction, encryption.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.route.policy = policy;
        self
    }

    /// Statuses that mean: nothing happened, try again. 429 unless set.
    pub fn releasing(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.route.releasing = statuses.into_iter().collect();
        self
    }

    /// Headers of answers that are stored although they usually are not: `set-cookie`, say.
    pub fn store_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.route.stored_headers = names.into_iter().collect();
        self
    }

    /// Request headers that count: the same body with another value is another request.
    pub fn fingerprint_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.route.fingerprint_headers = names.into_iter().collect();
        self
    }

    /// JSON pointers of what does not count in a body: a client's timestamp, say.
    pub fn fingerprint_exclude<P: Into<String>>(mut self, pointers: impl IntoIterator<Item = P>) -> Self {
        self.pointers = pointers.into_iter().map(Into::into).collect();
        self
    }

    /// The header that marks a replay, instead of `Idempotent-Replayed`.
    pub fn replay_header(mut self, name: HeaderName) -> Self {
        self.route.replay_header = name;
        self
    }

    /// How the age of keys is known, to refuse one older than the TTL.
    pub fn expired_keys(mut self, expired_keys: ExpiredKeys) -> Self {
        self.route.expired_keys = expired_keys;
        self
    }

    /// Who the client is. Without this, requests with a key and a credential are refused.
    pub fn tenant(mut self, source: impl tenant::Source) -> Self {
        self.route.tenant = Arc::new(source);
        self
    }

    /// Asked before the store is.
    pub fn auth_check(mut self, check: impl AuthCheck) -> Self {
        self.route.auth_check = Some(Arc::new(check));
        self
    }

    /// The request header that names whom the outcome is about, for purging by subject.
    pub fn subject_header(mut self, name: HeaderName) -> Self {
        self.subject_header = Some(name.clone());
        self.route.subject =
            Some(Arc::new(move |request| Some(request.headers.get(&name)?.to_str().ok()?.to_owned())));
        self
    }

    /// Names whom the outcome is about, for purging by subject.
    pub fn subject(mut self, of: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.subject_header = None;
        self.route.subject = Some(Arc::new(of));
        self
    }

    /// The value of `Link` on problems, such as `</.well-known/idempotency>; rel="describedby"`: where
    /// what [`describe`](crate::describe) made is served. None unless set.
    pub fn described_by(mut self, link: HeaderValue) -> Self {
        self.route.described_by = Some(link);
        self
    }

    /// Whether the inner service gets token, nonce, attempt and derived key as headers: switch it on where
    /// requests go on to another process. [`Op`](crate::Op) is in the extensions in either case.
    pub fn attempt_headers(mut self, given: bool) -> Self {
        self.route.attempt_headers = given;
        self
    }

    /// The handler runs operations in its own transaction: the layer neither claims nor stores, and gives it a
    /// [`Joined`](crate::Joined) instead of an [`Op`](crate::Op).
    pub fn same_transaction(mut self) -> Self {
        self.route.same_transaction = true;
        self
    }

    /// The route, or every reason why not.
    pub fn build(mut self) -> Result<Route, Nonsense> {
        let mut found = self.problems();
        match Pointers::parse(&self.pointers) {
            Ok(pointers) => self.route.exclusions = pointers,
            Err(error) => found.push(format!("A fingerprint exclusion cannot be used: {error}.")),
        }
        if found.is_empty() { Ok(self.route) } else { Err(Nonsense(found)) }
    }

    fn problems(&self) -> Vec<String> {
        let route = &self.route;
        let mut found = Vec::new();
        for id in route.id.iter().chain(&route.identity) {
            if let Err(error) = Scope::shared("namespace", id) {
                found.push(format!("The route id {id:?} cannot be used: {error}."));
            }
        }
        if route.methods.is_empty() {
            found.push(
                "The route protects no method: name at least one, or switch its protection off.".into(),
            );
        }
        for method in route.methods.iter().filter(|method| is_safe(method)) {
            found.push(format!("{method} requests never use the store: take {method} out of the methods."));
        }
        for status in route.releasing.iter().filter(|status| status.as_u16() < 400) {
            found.push(format!(
                "Status {status} cannot mean that nothing happened: only errors release a key."
            ));
        }
        for name in &route.stored_headers {
            if header::is_hop_by_hop(name) || header::is_ours(name) {
                found.push(format!("The header {name} is never stored: take it out of the stored headers."));
            }
        }
        for name in &route.fingerprint_headers {
            if header::is_ours(name) || *name == header::IDEMPOTENCY_KEY {
                found
                    .push(format!("The header {name} cannot count: take it out of the fingerprint headers."));
            }
        }
        if route.same_transaction && route.attempt_headers {
            found.push(
                "Attempts in the handler's own transaction have no headers for another process.".into(),
            );
        }
        let replay = &route.replay_header;
        if header::is_hop_by_hop(replay) || header::is_ours(replay) || replay.as_str().starts_with("content-")
        {
            found.push(format!("The header {replay} cannot mark a replay: choose a name of your own."));
        }
        if let Some(name) = &self.subject_header
            && (tenant::is_credential(name) || header::is_secret(name))
        {
            found.push(format!(
                "The header {name} holds a credential, and a subject is stored: name another."
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;

    #[test]
    fn every_contradiction_is_named_at_once() {
        // G-4, G-5, G-16
        let refused = Route::builder("")
            .methods([Method::GET, Method::POST])
            .releasing([StatusCode::OK])
            .store_headers([http::header::CONNECTION])
            .fingerprint_headers([header::IDEMPOTENCY_KEY])
            .fingerprint_exclude(["no-slash"])
            .replay_header(HeaderName::from_static("content-length"))
            .subject_header(AUTHORIZATION)
            .build()
            .unwrap_err();
        assert_eq!(refused.0.len(), 8, "{refused}");
    }

    #[test]
    fn an_operation_without_a_route_id_is_known_by_method_and_raw_path() {
        // G-1
        let route = Route::by_path().build().unwrap();
        let of = |uri: &str| route.identity(&Method::POST, &uri.parse().unwrap()).into_owned();
        assert_eq!(of("/orders/7%2F?draft=1"), "POST /orders/7%2F");
        let long = format!("/{}", "a".repeat(600));
        assert!(of(&long).starts_with("POST sha256:") && of(&long).len() < PART_BYTES_MAX);
        assert_ne!(of(&long), of(&format!("{long}b")));
        assert_eq!(route.label(), "default");
    }

    #[test]
    fn a_renamed_route_goes_on_under_its_old_id() {
        // G-1
        let route = Route::builder("charges").known_as("charge").build().unwrap();
        assert_eq!(route.identity(&Method::POST, &"/x".parse().unwrap()), "charge");
        assert_eq!(route.label(), "charges");
    }
}
