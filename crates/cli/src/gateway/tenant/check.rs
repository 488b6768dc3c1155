//! One route's rule, and what it makes of a request.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use semel::http::header::{has_alike, is_alike};
use semel::http::tenant::{ClientCertificate, is_credential};
use semel::operation::PART_BYTES_MAX;
use semel::runtime::{Boxed, Runtime};

use super::jwks::Sources;
use super::jwt::{Reason, Verifier};
use crate::config::resolved::{Network, RouteSettings, Tenant};

/// How long a request waits for a key set that is being fetched on its behalf.
const REFRESH_WAIT: Duration = Duration::from_secs(2);

/// A route's rule, ready to use.
#[derive(Clone, Debug)]
pub(crate) struct Check(Rule);

#[derive(Clone, Debug)]
enum Rule {
    Undeclared,
    Shared,
    Hashed(HeaderName),
    Peers(HeaderName, Vec<Network>),
    Token(Verifier),
    Certificate,
}

/// Whose operation it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision<'a> {
    /// Nobody's in particular: all clients share one set of keys.
    Shared,
    /// A verified name.
    Named(Cow<'a, str>),
    /// Whoever holds this; to be hashed with the store's key before it goes anywhere.
    Credential(Credential<'a>),
}

/// The raw value of a credential. `Debug` hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credential<'a>(&'a [u8]);

impl<'a> Credential<'a> {
    /// What to hash.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}

/// Why a request has no tenant. The text is fit for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It has a credential, and the operator did not say what that means: `tenant-undeclared`.
    Undeclared,
    /// What should name the tenant is not there: `tenant-missing`.
    Missing {
        /// A header, or the certificate.
        what: String,
    },
    /// It is there and does not hold: `tenant-unverified`.
    Unverified(Reason),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undeclared => f.write_str(
                "the request carries a credential and the gateway was not told who its clients are; its operator \
                 chooses one of --tenant none, --tenant credential, --tenant header:NAME, --tenant jwt:CLAIM and \
                 --tenant certificate",
            ),
            Self::Missing { what } => write!(f, "the request does not say who sends it: {what} is missing"),
            Self::Unverified(reason) => write!(f, "{reason}"),
        }
    }
}

impl Check {
    /// Makes the rule of a route. Key sets are shared between routes through `sources`.
    pub(crate) fn new(tenant: &Tenant, sources: &mut Sources) -> Self {
        Self(match tenant {
            Tenant::Undeclared => Rule::Undeclared,
            Tenant::None => Rule::Shared,
            Tenant::Credential => Rule::Hashed(header::AUTHORIZATION),
            Tenant::Header(name) => Rule::Hashed(name.clone()),
            Tenant::PeerHeader(name, peers) => Rule::Peers(name.clone(), peers.clone()),
            Tenant::Jwt(jwt) => Rule::Token(Verifier::new(jwt, sources)),
            Tenant::Certificate => Rule::Certificate,
        })
    }

    /// Whose operation a request is. `certificate` is the client's, verified; its first name counts. `now` is in
    /// seconds since 1970.
    pub(crate) fn decide<'a>(
        &self,
        headers: &'a HeaderMap,
        peer: Option<IpAddr>,
        certificate: Option<&'a ClientCertificate>,
        now: u64,
    ) -> Result<Decision<'a>, Refused> {
        match &self.0 {
            Rule::Undeclared if semel::mutant::on("undeclared-tenant-shared") => Ok(Decision::Shared),
            Rule::Undeclared if certificate.is_some() || headers.keys().any(is_credential) => {
                Err(Refused::Undeclared)
            }
            Rule::Undeclared | Rule::Shared => Ok(Decision::Shared),
            Rule::Hashed(name) => Ok(Decision::Credential(Credential(only(headers, name)?.as_bytes()))),
            Rule::Peers(name, peers) => {
                if !lists(peers, peer) && !semel::mutant::on("peer-header-from-anyone") {
                    return Err(missing(name));
                }
                let name = only(headers, name)?.to_str().map_err(|_| Refused::Unverified(Reason::Name))?;
                named(name.into())
            }
            Rule::Token(verifier) => {
                named(verifier.subject(bearer(headers)?, now).map_err(Refused::Unverified)?.into())
            }
            Rule::Certificate => match certificate.and_then(|certificate| certificate.names.first()) {
                Some(name) => named(name.into()),
                None => Err(Refused::Missing { what: "a client certificate".into() }),
            },
        }
    }

    /// What to wait for before a request that was refused like this is decided once more: a key set that
    /// may have the key of its token by then. Bounded in time.
    ///
    /// # Cancellation
    /// Safe: the fetch goes on in its own task.
    pub(crate) fn refresh(&self, refused: &Refused, runtime: &dyn Runtime) -> Option<Boxed<()>> {
        let (Refused::Unverified(Reason::UnknownKey | Reason::NoKeys), Rule::Token(verifier)) =
            (refused, &self.0)
        else {
            return None;
        };
        let (verifier, timeout) = (verifier.clone(), runtime.sleep(REFRESH_WAIT));
        Some(Box::pin(async move {
            verifier.refreshed(timeout).await;
        }))
    }
}

/// Takes headers that name tenants out of a request whose peer may not set them. To be done for every
/// request before anything reads it, `own` being the settings that hold for it and `all` those of every route
/// and of the fallback: what another route believes must not reach the upstream unchecked either.
///
/// Spellings with `_` for `-` go in any case: many servers take both for the same header.
pub(crate) fn strip<'r>(
    headers: &mut HeaderMap,
    peer: Option<IpAddr>,
    own: &RouteSettings,
    all: impl Iterator<Item = &'r RouteSettings> + Clone,
) {
    let believed = |name: &HeaderName, settings: &RouteSettings| match &settings.tenant {
        Tenant::PeerHeader(other, peers) if other == name => Some(lists(peers, peer)),
        _ => None,
    };
    for settings in all.clone() {
        let Tenant::PeerHeader(name, _) = &settings.tenant else { continue };
        let by_own = believed(name, own);
        let kept = by_own.unwrap_or_else(|| all.clone().any(|other| believed(name, other) == Some(true)));
        let gone: Vec<HeaderName> = headers
            .keys()
            .filter(|other| is_alike(other, name) && !(kept && *other == name))
            .cloned()
            .collect();
        for name in gone.into_iter().filter(|_| !semel::mutant::on("peer-header-not-stripped")) {
            headers.remove(name);
        }
    }
}

fn lists(peers: &[Network], peer: Option<IpAddr>) -> bool {
    peer.is_some_and(|peer| peers.iter().any(|network| network.contains(peer)))
}

/// The header's value, if it stands there once. Many servers take `_` for `-` and would see another value
/// in another spelling.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a HeaderValue, Refused> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(missing(name)),
        (Some(_), Some(_)) => Err(Refused::Unverified(Reason::Repeated)),
        (Some(_), None) if has_alike(headers, name) && !semel::mutant::on("tenant-alike-ignored") => {
            Err(Refused::Unverified(Reason::Repeated))
        }
        (Some(value), None) if value.is_empty() => Err(missing(name)),
        (Some(value), None) => Ok(value),
    }
}

fn missing(name: &HeaderName) -> Refused {
    Refused::Missing { what: format!("the header {name}") }
}

fn bearer(headers: &HeaderMap) -> Result<&str, Refused> {
    let value = only(headers, &header::AUTHORIZATION)?.to_str().ok();
    let token = value
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    token.map(|(_, token)| token.trim()).ok_or(Refused::Unverified(Reason::NotBearer))
}

/// Names become part of a scope, which has limits.
fn named(name: Cow<'_, str>) -> Result<Decision<'_>, Refused> {
    if name.is_empty() || name.len() > PART_BYTES_MAX || name.contains('\0') {
        return Err(Refused::Unverified(Reason::Name));
    }
    Ok(Decision::Named(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tenant: Tenant) -> Check {
        Check::new(&tenant, &mut Sources::default())
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn certificate(names: &[&str]) -> ClientCertificate {
        ClientCertificate { names: names.iter().map(|name| (*name).to_owned()).collect() }
    }

    fn proxies() -> Tenant {
        Tenant::PeerHeader(HeaderName::from_static("x-account"), vec![Network::parse("10.0.0.0/8").unwrap()])
    }

    #[test]
    fn a_credential_without_a_declared_tenant_is_refused() {
        // G-5
        let undeclared = check(Tenant::Undeclared);
        for lines in [
            [("authorization", "Basic eDp5")],
            [("cookie", "session=1")],
            [("x-api-key", "k")],
            [("x-auth-token", "k")],
        ] {
            let refused = undeclared.decide(&headers(&lines), None, None, 0).unwrap_err();
            assert_eq!(refused, Refused::Undeclared, "{lines:?}");
            assert!(refused.to_string().contains("--tenant none"));
        }
        for shown in [certificate(&["spiffe://a"]), certificate(&[])] {
            assert_eq!(undeclared.decide(&headers(&[]), None, Some(&shown), 0), Err(Refused::Undeclared));
        }
        let open = headers(&[("content-type", "application/json")]);
        assert_eq!(undeclared.decide(&open, None, None, 0), Ok(Decision::Shared));
        let carried = headers(&[("authorization", "Basic eDp5")]);
        assert_eq!(check(Tenant::None).decide(&carried, None, None, 0), Ok(Decision::Shared));
    }

    #[test]
    fn a_header_from_a_peer_that_is_not_listed_names_nobody() {
        // G-5
        let named = headers(&[("x-account", "alice")]);
        let rule = check(proxies());
        let from = |peer: &str| rule.decide(&named, peer.parse().ok(), None, 0);
        assert_eq!(from("10.1.2.3"), Ok(Decision::Named("alice".into())));
        assert_eq!(from("::ffff:10.1.2.3"), Ok(Decision::Named("alice".into())));
        assert!(matches!(from("192.0.2.1"), Err(Refused::Missing { .. })));
        assert!(matches!(rule.decide(&named, None, None, 0), Err(Refused::Missing { .. })));
        let twice = headers(&[("x-account", "alice"), ("x-account", "bob")]);
        assert_eq!(
            rule.decide(&twice, "10.1.2.3".parse().ok(), None, 0),
            Err(Refused::Unverified(Reason::Repeated))
        );
    }

    fn settings(tenant: Tenant) -> RouteSettings {
        RouteSettings { tenant, ..crate::config::fallback_for_tests() }
    }

    #[test]
    fn the_header_of_listed_peers_is_stripped_from_all_others() {
        // G-5
        let (own, other) = (settings(proxies()), settings(Tenant::None));
        let sent = headers(&[("x-account", "alice"), ("x-account", "bob"), ("accept", "*/*")]);
        let stripped = |peer: &str, own: &RouteSettings, all: &[&RouteSettings]| {
            let mut headers = sent.clone();
            strip(&mut headers, peer.parse().ok(), own, all.iter().copied());
            headers
        };
        let plain = headers(&[("accept", "*/*")]);
        for on in [&own, &other] {
            assert_eq!(stripped("10.1.2.3", on, &[&own, &other]), sent);
            assert_eq!(stripped("192.0.2.1", on, &[&own, &other]), plain);
            assert_eq!(stripped("nowhere", on, &[&own, &other]), plain);
        }
        let name = HeaderName::from_static("x-account");
        let office = settings(Tenant::PeerHeader(name, vec![Network::parse("192.0.2.0/24").unwrap()]));
        assert_eq!(stripped("192.0.2.1", &office, &[&own, &office]), sent, "each route has its own peers");
        assert_eq!(stripped("192.0.2.1", &own, &[&own, &office]), plain);
    }

    #[test]
    fn a_tenant_header_with_underscores_is_stripped_from_everybody() {
        // G-5
        let own = settings(proxies());
        let mut sent = headers(&[("x-account", "alice"), ("x_account", "mallory")]);
        strip(&mut sent, "10.1.2.3".parse().ok(), &own, [&own].into_iter());
        assert_eq!(sent, headers(&[("x-account", "alice")]));
    }

    #[test]
    fn a_tenant_header_in_two_spellings_names_nobody() {
        // G-5: many servers take `_` for `-`, and would see the other client.
        let rule = check(Tenant::Header(HeaderName::from_static("x-api-key")));
        let sent = headers(&[("x-api-key", "alice"), ("x_api-key", "bob")]);
        assert_eq!(rule.decide(&sent, None, None, 0), Err(Refused::Unverified(Reason::Repeated)));
        let alone = headers(&[("x_api_key", "bob")]);
        assert!(matches!(rule.decide(&alone, None, None, 0), Err(Refused::Missing { .. })));
    }

    #[test]
    fn credentials_are_handed_on_for_hashing_and_never_shown() {
        // G-5
        let sent = headers(&[("authorization", "Bearer s3cret"), ("x-api-key", "k-1")]);
        let decision = check(Tenant::Credential).decide(&sent, None, None, 0);
        let Ok(Decision::Credential(credential)) = decision else { panic!("{decision:?}") };
        assert_eq!(credential.bytes(), b"Bearer s3cret");
        assert!(!format!("{decision:?}").contains("s3cret"));
        let by_key = check(Tenant::Header(HeaderName::from_static("x-api-key"))).decide(&sent, None, None, 0);
        assert_eq!(by_key, Ok(Decision::Credential(Credential(b"k-1"))));
        assert!(matches!(
            check(Tenant::Credential).decide(&headers(&[]), None, None, 0),
            Err(Refused::Missing { .. })
        ));
        let empty = headers(&[("authorization", "")]);
        assert!(matches!(
            check(Tenant::Credential).decide(&empty, None, None, 0),
            Err(Refused::Missing { .. })
        ));
    }

    #[test]
    fn a_certificate_names_its_holder() {
        // G-5
        let rule = check(Tenant::Certificate);
        let none = HeaderMap::new();
        let shop = certificate(&["shop.example", "other.example"]);
        assert_eq!(rule.decide(&none, None, Some(&shop), 0), Ok(Decision::Named("shop.example".into())));
        for nobody in [None, Some(&certificate(&[]))] {
            assert!(matches!(rule.decide(&none, None, nobody, 0), Err(Refused::Missing { .. })));
        }
        let long = "x".repeat(513);
        for bad in ["", "a\0b", &long] {
            let shown = certificate(&[bad]);
            assert_eq!(rule.decide(&none, None, Some(&shown), 0), Err(Refused::Unverified(Reason::Name)));
        }
    }
}
