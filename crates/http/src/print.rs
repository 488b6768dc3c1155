//! The fingerprint of a request, and a short memory of those whose answers were replayed.
//!
//! Bringing a body to its canonical form costs more than all the rest of a replay, and a client that retries
//! sends the same bytes again. So the fingerprint of a request that was replayed is kept beside a digest of
//! the request as it was sent: the same bytes under the same key have the same fingerprint, whoever sent
//! them. What the store knows is not kept here; it is asked every time.
//!
//! That digest never leaves the process and is made under a secret of the process, so that nobody can look for
//! two requests that share one.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use semel_core::{Error, Fingerprint, Key, Nonce, mutant};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::keys::Loaded;
use crate::{RequestBody, Route, coding};

/// A body may grow to so many times the request limit when its content coding is taken off.
const GROWTH_MAX: usize = 4;

/// Most bytes of fingerprints a route keeps in one generation; there are at most two.
const RECENT_BYTES_MAX: usize = 4 << 20;

/// A digest of a request as it was sent.
type Raw = u128;

static SECRET: LazyLock<SipHasher13> =
    LazyLock::new(|| SipHasher13::new_with_key(Nonce::random().as_bytes()));

/// What of a request may count.
pub(crate) struct Sight<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    body: &'a [u8],
}

impl<'a> Sight<'a> {
    pub(crate) fn of(head: &'a Parts, body: &'a Bytes) -> Self {
        Self { method: &head.method, uri: &head.uri, headers: &head.headers, body }
    }

    pub(crate) fn of_request<B>(request: &'a Request<RequestBody<B>>) -> Self {
        let body = request.body().bytes().map_or(&b""[..], |bytes| bytes);
        Self { method: request.method(), uri: request.uri(), headers: request.headers(), body }
    }

    /// The fingerprint of a request. Without the store's keys it is one that nothing is compared with.
    pub(crate) fn print(&self, route: &Route, key: &Key, keys: &Result<Arc<Loaded>, Error>) -> Fingerprint {
        match keys {
            Ok(loaded) => {
                let recent = route.recent().find(key, loaded.loading, || self.raw(route));
                recent.unwrap_or_else(|| self.read(route, loaded))
            }
            Err(_) => self.read(route, &Loaded::blind()),
        }
    }

    /// Keeps the fingerprint of a request that was replayed.
    pub(crate) fn remember(&self, route: &Route, key: &Key, loaded: &Loaded, print: Fingerprint) {
        route.recent().keep(key, loaded.loading, || self.raw(route), print);
    }

    fn read(&self, route: &Route, loaded: &Loaded) -> Fingerprint {
        let counted: Vec<(&str, &[u8])> = self.counted(route).collect();
        let bytes_max = route.policy().request_bytes_max().saturating_mul(GROWTH_MAX);
        let decoded = if mutant::on("coding-counts") {
            self.body.into()
        } else {
            coding::decoded(self.headers, self.body, bytes_max)
        };
        let request = semel_core::fingerprint::Request::new(self.method.as_str(), self.uri.path())
            .query(self.uri.query())
            .content_type(self.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes))
            .headers(&counted)
            .body(&decoded)
            .exclusions(route.exclusions());
        loaded.prints.print(&request)
    }

    fn counted<'b>(&'b self, route: &'b Route) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        let values = |name| self.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        route
            .fingerprint_headers()
            .iter()
            .flat_map(move |name| values(name).map(|value| (name.as_str(), value)))
    }

    /// A digest of everything [`read`](Self::read) looks at, as it was sent. Each part carries its length.
    fn raw(&self, route: &Route) -> Raw {
        let mut digest = *SECRET;
        let mut part = |bytes: &[u8]| {
            digest.write_u64(bytes.len() as u64);
            digest.write(bytes);
        };
        part(self.method.as_str().as_bytes());
        part(self.uri.path().as_bytes());
        part(&[u8::from(self.uri.query().is_some())]);
        part(self.uri.query().unwrap_or_default().as_bytes());
        for name in [CONTENT_TYPE, CONTENT_ENCODING] {
            let values = self.headers.get_all(name);
            part(&values.iter().count().to_le_bytes());
            values.iter().for_each(|value| part(value.as_bytes()));
        }
        for (name, value) in self.counted(route) {
            part(name.as_bytes());
            part(value);
        }
        part(b"body");
        part(self.body);
        digest.finish128().as_u128()
    }
}

/// Fingerprints of requests that were replayed lately, by key. Of a key that several clients use, the latest.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Key, Kept>,
    old: HashMap<Key, Kept>,
    young_bytes: usize,
}

struct Kept {
    loading: u64,
    raw: Raw,
    print: Fingerprint,
}

impl Recent {
    /// The digest is asked for only if something is kept for the key.
    fn find(&self, key: &Key, loading: u64, raw: impl FnOnce() -> Raw) -> Option<Fingerprint> {
        let (kept_raw, print) = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let found = kept.young.get(key).or_else(|| kept.old.get(key));
            let found = found.filter(|kept| kept.loading == loading)?;
            (found.raw, found.print.clone())
        };
        (kept_raw == raw() || mutant::on("recent-print-for-any-request")).then_some(print)
    }

    fn keep(&self, key: &Key, loading: u64, raw: impl FnOnce() -> Raw, print: Fingerprint) {
        let is_kept =
            |found: Option<&Kept>| found.is_some_and(|kept| kept.loading == loading && kept.print == print);
        if is_kept(self.0.lock().unwrap_or_else(PoisonError::into_inner).young.get(key)) {
            return;
        }
        let raw = raw();
        let bytes = print.bytes() + size_of::<Kept>() + key.as_str().len();
        // Dropped last, after the lock: thousands may go here.
        let _forgotten;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.young_bytes + bytes > RECENT_BYTES_MAX {
            kept.young_bytes = 0;
            let before = std::mem::take(&mut kept.young);
            _forgotten = std::mem::replace(&mut kept.old, before);
        }
        kept.young_bytes += bytes;
        kept.young.insert(key.clone(), Kept { loading, raw, print });
    }
}
