//! The routes in force: which one a request belongs to, and how its operations are run.
//!
//! A table is made whole from the settings and never changed; a reload puts another in its place, and
//! requests under way keep the one they were found in.

use std::sync::Arc;

use anyhow::Context;
use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use semel::http::problem::Kind;
use semel::http::{self as door, Problem, Routes};
use semel::runtime::Boxed;
use semel::{Ask, Operation, Policy, Runtime, SubjectKeys, SystemClock};

use super::ask::Reconcile;
use super::fetch::Http;
use super::matching::{Match, Matcher};
use super::source::Source;
use super::tenant::{self, Sources};
use super::{WELL_KNOWN, headers};
use crate::config::policy;
use crate::config::resolved::{self, Gateway, Recovery, RouteSettings};

/// One route, ready to use.
pub(crate) struct Entry {
    pub(crate) settings: RouteSettings,
    pub(crate) route: Arc<door::Route>,
    pub(crate) ask: Option<Arc<dyn Ask>>,
    /// What its operations are stored under, where that is not method and path.
    stored: Option<String>,
}

/// All routes of one configuration.
pub(crate) struct Table {
    matcher: Matcher,
    entries: Vec<Entry>,
    fallback: Entry,
    namespace: String,
    /// The routes as clients may read about them: a page and a document.
    pub(crate) described: (Bytes, Bytes),
    pub(crate) sources: Sources,
    /// Every header by which some route judges a request, if there is one.
    pub(crate) judged_headers: Option<Arc<[HeaderName]>>,
}

impl Table {
    /// `sources` are those of the table before, or empty.
    pub(crate) fn new(
        settings: &Gateway,
        mut sources: Sources,
        subject_keys: Option<&Arc<dyn SubjectKeys>>,
        http: &Arc<Http>,
        runtime: &Arc<dyn Runtime>,
    ) -> anyhow::Result<Self> {
        let keyring = settings.encryption.as_ref().map(policy::keyring).transpose();
        let keyring = keyring.map_err(anyhow::Error::msg).context("the encryption keys cannot be used")?;
        let mut make = |route: Option<&resolved::Route>, settings: &RouteSettings| -> anyhow::Result<Entry> {
            let builder = match route {
                Some(resolved::Route { id, stored: Some(stored), .. }) => {
                    door::Route::builder(id).known_as(stored)
                }
                _ => door::Route::by_path(),
            };
            let methods = route.map_or(&resolved::Route::PROTECTED_METHODS[..], |route| route.methods());
            let check = tenant::Check::new(&settings.tenant, &mut sources);
            let source = Source { check, runtime: runtime.clone(), clock: SystemClock };
            let link = HeaderValue::from_str(&format!("<{WELL_KNOWN}>; rel=\"describedby\""));
            let mut builder = builder
                .methods(methods.iter().cloned())
                .protection(settings.protection)
                .policy(policy::policy(settings, keyring.as_ref(), subject_keys)?)
                .releasing(settings.releasing.iter().copied())
                .store_headers(settings.store_headers.iter().cloned())
                .fingerprint_headers(settings.fingerprint_headers.iter().cloned())
                .fingerprint_exclude(settings.fingerprint_exclude.iter().cloned())
                .replay_header(settings.replay_header.clone())
                .expired_keys(settings.expired_keys.clone())
                .tenant(source)
                .attempt_headers(true)
                .described_by(link.expect("a path can stand in a header"));
            if let Some(url) = &settings.auth_check {
                builder = builder.auth_check(Door { url: url.clone(), http: http.clone() });
            }
            if let Some(name) = &settings.subject_header {
                builder = builder.subject_header(name.clone());
            }
            let ask = match &settings.recovery {
                Recovery::Ask(url) => {
                    Some(Arc::new(Reconcile::new(url.clone(), door::derived_key, http.clone()))
                        as Arc<dyn Ask>)
                }
                Recovery::Hold | Recovery::Rerun => None,
            };
            let stored = route.and_then(|route| route.stored.clone());
            Ok(Entry { settings: settings.clone(), route: Arc::new(builder.build()?), ask, stored })
        };
        let entries = settings.routes.iter().map(|route| {
            make(Some(route), &route.settings)
                .with_context(|| format!("the route `{}` cannot be used", route.id))
        });
        let entries: Vec<Entry> = entries.collect::<anyhow::Result<_>>()?;
        let fallback = make(None, &settings.fallback).context("the defaults of routes cannot be used")?;
        let of_all = entries.iter().chain([&fallback]);
        let judged_headers: Arc<[HeaderName]> =
            of_all.flat_map(|entry| entry.settings.judged_headers()).cloned().collect();
        let (page, document) = door::describe(entries.iter().chain([&fallback]).map(|entry| &*entry.route));
        Ok(Self {
            matcher: Matcher::new(&settings.routes),
            entries,
            fallback,
            namespace: settings.namespace.clone(),
            described: (page.into(), document.into()),
            sources,
            judged_headers: (!judged_headers.is_empty()).then_some(judged_headers),
        })
    }

    /// The route of a request; `None` if its method is protected only where configured.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&Entry> {
        match self.matcher.find(method, path) {
            Match::Route(at) => Some(&self.entries[at]),
            Match::Fallback => Some(&self.fallback),
            Match::Untouched => None,
        }
    }

    /// The route with this id.
    pub(crate) fn by_id(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.route.label() == id && entry.stored.is_some())
    }

    /// The route that an operation in the store belongs to, if it is one of this gateway's.
    pub(crate) fn owner(&self, operation: &Operation) -> Option<&Entry> {
        (operation.scope().namespace() == self.namespace).then(|| self.keeper(operation.scope().route()))
    }

    /// The route whose operations are stored under this id.
    pub(crate) fn keeper(&self, stored: &str) -> &Entry {
        if let Some(entry) = self.entries.iter().find(|entry| entry.stored.as_deref() == Some(stored)) {
            return entry;
        }
        let by_path = stored.split_once(' ').and_then(|(method, path)| {
            let entry = self.find(&method.parse().ok()?, path)?;
            entry.stored.is_none().then_some(entry)
        });
        by_path.unwrap_or(&self.fallback)
    }

    /// Takes headers that name tenants out of a request whose peer may not set them.
    pub(crate) fn strip(&self, request: &mut Parts, own: &Entry, peer: Option<std::net::IpAddr>) {
        let all = self.entries.iter().chain([&self.fallback]).map(|entry| &entry.settings);
        tenant::strip(&mut request.headers, peer, &own.settings, all);
    }

    pub(crate) fn fallback(&self) -> &Entry {
        &self.fallback
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().chain([&self.fallback]).map(|entry| entry.route.label())
    }

    pub(crate) fn shortest_lease(&self) -> std::time::Duration {
        let leases = self.entries.iter().map(|entry| entry.settings.lease);
        leases.fold(self.fallback.settings.lease, std::time::Duration::min)
    }
}

impl Entry {
    pub(crate) fn policy(&self) -> &Policy {
        self.route.policy()
    }
}

/// The table in force.
#[derive(Clone)]
pub(crate) struct Tables(Arc<ArcSwap<Table>>);

impl Tables {
    pub(crate) fn new(table: Table) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(table)))
    }

    pub(crate) fn set(&self, table: Table) {
        self.0.store(Arc::new(table));
    }

    pub(crate) fn load(&self) -> Guard<Arc<Table>> {
        self.0.load()
    }
}

impl Routes for Tables {
    fn find(&self, request: &Parts) -> Option<Arc<door::Route>> {
        let table = self.load();
        Some(table.find(&request.method, request.uri.path())?.route.clone())
    }
}

/// Asks a service whether the client may have an answer.
struct Door {
    url: Uri,
    http: Arc<Http>,
}

impl door::route::AuthCheck for Door {
    fn check(&self, request: &Parts) -> Boxed<Result<(), Response<Bytes>>> {
        let mut sent = request.headers.clone();
        headers::drop_hop_by_hop(&mut sent);
        for name in [CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING, door::header::IDEMPOTENCY_KEY] {
            sent.remove(name);
        }
        let original = |value: &str| HeaderValue::from_str(value).ok();
        let about = [
            ("x-original-method", original(request.method.as_str())),
            ("x-original-uri", original(&request.uri.to_string())),
        ];
        for (name, value) in about.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            sent.insert(name, value);
        }
        let asking = self.http.get(self.url.clone(), sent);
        Box::pin(async move {
            match asking.await {
                Ok(answer) if answer.status.is_success() => Ok(()),
                Ok(answer) if matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                    Err(passed_on(answer.status, answer.headers, answer.body))
                }
                Ok(answer) => Err(cannot_ask(&format!("status {}", answer.status.as_u16()))),
                Err(failed) => Err(cannot_ask(&failed.to_string())),
            }
        })
    }
}

fn passed_on(status: StatusCode, mut headers: HeaderMap, body: Bytes) -> Response<Bytes> {
    headers::drop_hop_by_hop(&mut headers);
    headers.remove(CONTENT_LENGTH);
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn cannot_ask(why: &str) -> Response<Bytes> {
    tracing::warn!(why, "the authorisation check did not answer; the request was refused");
    let detail = "Whether this client may have the answer cannot be checked now; nothing was run.";
    Problem::new(Kind::UpstreamUnreachable).detail(detail).into_response()
}
