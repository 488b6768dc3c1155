//! Who the client is. A replay reveals a stored answer, so this decides who may see it.
//!
//! A route is told once how its clients are told apart ([`Source`]). A source sees the head of the request
//! and a keyed [`Hasher`]; a credential leaves it only as a hash, and is neither stored nor logged.
//!
//! The hash is made with the *oldest* fingerprint key the store has: rotating those keys adds new ones
//! in front, and a tenant must keep its records through that. A store keeps eight keys. The eighth rotation
//! drops the first and changes every hash: a retry after it, of a request before it, would not find its
//! record. With hashed tenants, rotate seven times at most, or while no client retries.

use std::sync::atomic::{AtomicBool, Ordering};

use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, COOKIE, HeaderName, PROXY_AUTHORIZATION};
use http::request::Parts;
use semel_core::fingerprint::HashKey;
use semel_core::mutant;
use semel_core::runtime::Boxed;
use sha2::Sha256;

use crate::header;

/// What a source says about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This is the tenant.
    Is(String),
    /// All clients share one set of keys.
    Shared,
    /// The request carries a credential, and nobody said what to make of it.
    Undeclared,
    /// The request does not say who the client is. The text is for the client.
    Missing(String),
    /// The request says so and cannot be believed. The text is for the client.
    Unverified(String),
}

/// Tells the clients of a route apart.
///
/// Called for every request with a key, before the store is asked and on replays too: whatever expires
/// must be checked here each time. Closures of the same shape are sources.
pub trait Source: Send + Sync + 'static {
    /// Who sent this.
    fn tenant(&self, request: &Parts, hasher: &Hasher) -> Answer;

    /// What to wait for before asking once more, if `answer` is for want of something that can be had: a
    /// key set with the key of this token, say. Bounded in time by whoever gives it.
    fn learn(&self, _request: &Parts, _answer: &Answer) -> Option<Boxed<()>> {
        None
    }
}

impl<F> Source for F
where
    F: Fn(&Parts, &Hasher) -> Answer + Send + Sync + 'static,
{
    fn tenant(&self, request: &Parts, hasher: &Hasher) -> Answer {
        self(request, hasher)
    }
}

/// Put into a request's extensions by the application's own authentication; see [`FromExtension`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(pub String);

/// Put into a request's extensions by whoever ended TLS, when the client showed a certificate that was
/// verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Its subject alternative names, in their order.
    pub names: Vec<String>,
}

/// Nothing was declared: requests with a key and a credential are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Undeclared;

/// All clients share one set of keys. For services with one caller; never for a public API.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

/// The hash of the `Authorization` header. Wrong for tokens that rotate: a new token is a new tenant,
/// and a retry under it would run again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credential;

/// The hash of an API key in a header of this name.
#[derive(Clone, Debug)]
pub struct ApiKeyHeader(pub HeaderName);

/// The [`Tenant`] that the application's own authentication put into the extensions.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromExtension;

impl Source for Undeclared {
    fn tenant(&self, request: &Parts, _hasher: &Hasher) -> Answer {
        if has_credential(request) && !mutant::on("tenant-undeclared-shared") {
            Answer::Undeclared
        } else {
            Answer::Shared
        }
    }
}

impl Source for Nobody {
    fn tenant(&self, _request: &Parts, _hasher: &Hasher) -> Answer {
        Answer::Shared
    }
}

impl Source for Credential {
    fn tenant(&self, request: &Parts, hasher: &Hasher) -> Answer {
        hashed(request, &AUTHORIZATION, hasher)
    }
}

impl Source for ApiKeyHeader {
    fn tenant(&self, request: &Parts, hasher: &Hasher) -> Answer {
        hashed(request, &self.0, hasher)
    }
}

impl Source for FromExtension {
    fn tenant(&self, request: &Parts, _hasher: &Hasher) -> Answer {
        match request.extensions.get::<Tenant>() {
            Some(Tenant(name)) if !name.is_empty() => Answer::Is(name.clone()),
            _ => Answer::Missing("The request was not authenticated.".into()),
        }
    }
}

fn hashed(request: &Parts, name: &HeaderName, hasher: &Hasher) -> Answer {
    let mut lines = request.headers.get_all(name).iter();
    if request.headers.contains_key(name)
        && header::has_alike(&request.headers, name)
        && !mutant::on("tenant-alike-ignored")
    {
        return Answer::Unverified(format!("The header {name} is there in two spellings."));
    }
    match (lines.next().map(|value| value.as_bytes()), lines.next()) {
        (Some(value), None) if !value.is_empty() => Answer::Is(hasher.hash(name.as_str(), value)),
        (None | Some(_), None) => Answer::Missing(format!("The header {name} is missing.")),
        (_, Some(_)) => Answer::Unverified(format!("The header {name} is there more than once.")),
    }
}

/// Whether a header of this name carries a credential: the standard ones, and whatever is named as an API
/// key or a token.
pub fn is_credential(name: &HeaderName) -> bool {
    // Many servers take `_` for `-`.
    is_named_as_one(name) || name.as_str().ends_with("_token")
}

/// As [`is_credential`], for headers of answers, where `next_page_token` and its like are no secrets.
pub(crate) fn is_named_as_one(name: &HeaderName) -> bool {
    const STANDARD: [HeaderName; 3] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION];
    const ENDS: [&str; 4] = ["api-key", "apikey", "api_key", "-token"];
    STANDARD.contains(name) || ENDS.iter().any(|end| name.as_str().ends_with(end))
}

/// Whether the request carries something that tells clients apart.
fn has_credential(request: &Parts) -> bool {
    request.headers.keys().any(is_credential)
        || request.extensions.get::<ClientCertificate>().is_some()
        || request.extensions.get::<Tenant>().is_some()
}

/// Turns a credential into a name that tells nothing about it.
pub struct Hasher {
    mac: Hmac<Sha256>,
    /// Without a key: whether it was asked for a name all the same.
    blind: Option<AtomicBool>,
}

impl Hasher {
    /// With the store's oldest key.
    pub(crate) fn new(keys: &[HashKey]) -> Self {
        let oldest = keys.iter().min_by_key(|key| key.version);
        Self::keyed(oldest.map_or(&[0; 32], HashKey::secret))
    }

    /// For a time when the store is away and its keys were never loaded. What it makes is no name: whoever
    /// used it must be refused.
    pub(crate) fn blind() -> Self {
        Self { blind: Some(AtomicBool::new(false)), ..Self::keyed(&[0; 32]) }
    }

    /// Whether a name was made without a key.
    pub(crate) fn guessed(&self) -> bool {
        self.blind.as_ref().is_some_and(|used| used.load(Ordering::Relaxed)) && !mutant::on("blind-name-used")
    }

    fn keyed(secret: &[u8; 32]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        mac.update(b"semel tenant 1\0");
        Self { mac, blind: None }
    }

    /// The name for a credential of some kind: the kind, and 40 hex digits.
    pub fn hash(&self, kind: &str, credential: &[u8]) -> String {
        if mutant::on("credential-in-the-clear") {
            return String::from_utf8_lossy(credential).into_owned();
        }
        if let Some(used) = &self.blind {
            used.store(true, Ordering::Relaxed);
        }
        let mut mac = self.mac.clone();
        mac.update(&(kind.len() as u64).to_be_bytes());
        mac.update(kind.as_bytes());
        mac.update(credential);
        let digest: [u8; 32] = mac.finalize().into_bytes().into();
        let mut name = String::with_capacity(kind.len() + 41);
        name.push_str(kind);
        name.push(':');
        for byte in &digest[..20] {
            for digit in [byte >> 4, byte & 15] {
                name.push(char::from_digit(digit.into(), 16).expect("four bits are a hex digit"));
            }
        }
        name
    }
}

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn hasher(keys: &[(u32, u8)]) -> Hasher {
        Hasher::new(
            &keys.iter().map(|(version, byte)| HashKey::new(*version, [*byte; 32])).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn a_credential_is_told_apart_by_its_hash_and_never_shown() {
        // G-5
        let hasher = hasher(&[(1, 7)]);
        let of = |value| Credential.tenant(&parts(&[("authorization", value)]), &hasher);
        let Answer::Is(alice) = of("Bearer alice-secret") else { panic!("no tenant") };
        assert!(!alice.contains("alice-secret"));
        assert_eq!(of("Bearer alice-secret"), Answer::Is(alice.clone()));
        assert_ne!(of("Bearer bob-secret"), Answer::Is(alice));
        assert!(matches!(Credential.tenant(&parts(&[]), &hasher), Answer::Missing(_)));
        let twice = parts(&[("authorization", "a"), ("authorization", "b")]);
        assert!(matches!(Credential.tenant(&twice, &hasher), Answer::Unverified(_)));
    }

    #[test]
    fn a_rotation_of_fingerprint_keys_does_not_move_a_tenant() {
        // G-5
        let (before, after) = (hasher(&[(1, 7)]), hasher(&[(2, 9), (1, 7)]));
        assert_eq!(before.hash("authorization", b"x"), after.hash("authorization", b"x"));
        assert_ne!(before.hash("authorization", b"x"), hasher(&[(1, 8)]).hash("authorization", b"x"));
    }

    #[test]
    fn undeclared_is_refused_with_every_kind_of_credential_and_only_then() {
        // G-5
        let hasher = hasher(&[(1, 7)]);
        for name in [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "apikey",
            "x-auth-token",
            "x_auth_token",
        ] {
            assert_eq!(Undeclared.tenant(&parts(&[(name, "x")]), &hasher), Answer::Undeclared, "{name}");
        }
        let mut certified = parts(&[]);
        certified.extensions.insert(ClientCertificate { names: vec![] });
        assert_eq!(Undeclared.tenant(&certified, &hasher), Answer::Undeclared);
        assert_eq!(Undeclared.tenant(&parts(&[("accept", "*/*")]), &hasher), Answer::Shared);
        assert_eq!(Nobody.tenant(&parts(&[("cookie", "x")]), &hasher), Answer::Shared);
    }

    #[test]
    fn the_applications_own_authentication_names_the_tenant() {
        // G-5
        let hasher = hasher(&[(1, 7)]);
        let mut request = parts(&[]);
        assert!(matches!(FromExtension.tenant(&request, &hasher), Answer::Missing(_)));
        request.extensions.insert(Tenant("acme".into()));
        assert_eq!(FromExtension.tenant(&request, &hasher), Answer::Is("acme".into()));
    }
}
