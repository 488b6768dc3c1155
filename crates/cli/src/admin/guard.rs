//! Who may speak to the admin listener.
//!
//! A token, where one is configured, is all that counts. Without one the listener is on loopback, and
//! the danger is a web page in the browser of somebody on this machine: it can send requests here
//! (CSRF), or point a name of its own at 127.0.0.1 and read the answers (DNS rebinding). So without a
//! token the `Host` must be a loopback address or a configured name, and with or without one a
//! changing call must not come from a page of another origin.
//!
//! It does not know who the operator is: `by` in a changing call is what they say.

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Method};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::problem::{Problem, Slug};
use crate::config::resolved::Secret;

/// What the listener accepts.
pub(crate) struct Guard {
    /// The digest of the token, so that comparing takes the same time whatever its length.
    token: Option<[u8; 32]>,
    hosts: Vec<String>,
}

/// What a call was allowed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may see and do everything.
    Operator,
    /// It may only know whether the process is up.
    Probe,
}

impl Guard {
    /// `hosts`: names, without port, by which the listener is reached beside loopback ones.
    pub(crate) fn new(token: Option<&Secret>, hosts: &[String]) -> Self {
        Self {
            token: token.map(|Secret(token)| digest(token.as_bytes())),
            hosts: hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
        }
    }

    /// Judges a request by its head. `is_probe`: the path tells nothing that needs a token.
    pub(crate) fn admit(&self, request: &Parts, is_probe: bool) -> Result<Standing, Problem> {
        let authority = authority(request)?;
        if self.token.is_none() && !self.is_ours(&authority) {
            return Err(Problem::new(
                Slug::HostRefused,
                format!(
                    "without a token this listener answers to loopback names only, not to {:?}",
                    authority.host()
                ),
            ));
        }
        let changes = request.method != Method::GET && request.method != Method::HEAD;
        if changes && !semel::mutant::on("admin-origin-unchecked") {
            same_origin(&request.headers, &authority)?;
        }
        match &self.token {
            None => Ok(Standing::Operator),
            Some(_) if semel::mutant::on("admin-token-unchecked") => Ok(Standing::Operator),
            Some(expected) if bears(&request.headers, expected) => Ok(Standing::Operator),
            Some(_) if is_probe => Ok(Standing::Probe),
            Some(_) => Err(Problem::new(
                Slug::Unauthorized,
                "send the configured token as `Authorization: Bearer TOKEN`",
            )),
        }
    }

    fn is_ours(&self, authority: &Authority) -> bool {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        loopback || host == "localhost" || self.hosts.contains(&host)
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn bears(headers: &HeaderMap, expected: &[u8; 32]) -> bool {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return false };
    let Some((scheme, token)) = line.as_bytes().split_at_checked(7) else { return false };
    let token = token.trim_ascii();
    scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty() && digest(token).ct_eq(expected).into()
}

/// The host asked for: of the request line or `:authority`, else of the one `Host` line.
fn authority(request: &Parts) -> Result<Authority, Problem> {
    if let Some(authority) = request.uri.authority() {
        return Ok(authority.clone());
    }
    let mut lines = request.headers.get_all(HOST).iter();
    match (lines.next().map(|line| Authority::try_from(line.as_bytes())), lines.next()) {
        (Some(Ok(authority)), None) => Ok(authority),
        _ => Err(Problem::new(Slug::HostRefused, "the request needs one valid `Host`")),
    }
}

/// Browsers name the page a request comes from; other clients send neither header.
fn same_origin(headers: &HeaderMap, authority: &Authority) -> Result<(), Problem> {
    let refused = |what: String| Err(Problem::new(Slug::OriginRefused, what));
    for origin in headers.get_all(ORIGIN) {
        let origin = origin.to_str().unwrap_or("(unreadable)");
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !rest.is_some_and(|rest| rest.eq_ignore_ascii_case(authority.as_str())) {
            return refused(format!("the call comes from a page of {origin:?}, not of {authority}"));
        }
    }
    match headers.get("sec-fetch-site").map(|site| site.as_bytes()) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => refused("the browser says that the call comes from another site".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri("/v1/operations");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn judged(guard: &Guard, method: &str, headers: &[(&str, &str)]) -> Result<Standing, Slug> {
        guard.admit(&parts(method, headers), false).map_err(|problem| problem.slug)
    }

    #[test]
    fn without_a_token_only_loopback_names_are_answered() {
        let guard = Guard::new(None, &["Ops.internal".into()]);
        for host in
            ["127.0.0.1:8081", "localhost", "LOCALHOST:1", "[::1]:8081", "127.8.8.8", "ops.INTERNAL:8081"]
        {
            assert_eq!(judged(&guard, "GET", &[("host", host)]), Ok(Standing::Operator), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8081", "localhost.evil", ""] {
            assert_eq!(judged(&guard, "GET", &[("host", host)]), Err(Slug::HostRefused), "{host}");
        }
        assert_eq!(judged(&guard, "GET", &[]), Err(Slug::HostRefused));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(judged(&guard, "GET", &two), Err(Slug::HostRefused));
    }

    #[test]
    fn a_page_of_another_origin_changes_nothing() {
        let guard = Guard::new(None, &[]);
        let host = ("host", "localhost:8081");
        let from = |origin| judged(&guard, "POST", &[host, ("origin", origin)]);
        assert_eq!(from("http://localhost:8081"), Ok(Standing::Operator));
        for origin in ["http://evil.example", "null", "http://localhost:9999", "http://localhost:8081.evil"] {
            assert_eq!(from(origin), Err(Slug::OriginRefused), "{origin}");
        }
        let site = |site| judged(&guard, "POST", &[host, ("sec-fetch-site", site)]);
        assert_eq!(site("cross-site"), Err(Slug::OriginRefused));
        assert_eq!(site("same-origin"), Ok(Standing::Operator));
        assert_eq!(judged(&guard, "GET", &[host, ("origin", "null")]), Ok(Standing::Operator));
    }

    #[test]
    fn a_configured_token_is_required_and_compared_whole() {
        let guard = Guard::new(Some(&Secret("s3cret".into())), &[]);
        let with = |value| judged(&guard, "GET", &[("host", "gateway.internal"), ("authorization", value)]);
        assert_eq!(with("Bearer s3cret"), Ok(Standing::Operator));
        assert_eq!(with("bearer s3cret"), Ok(Standing::Operator));
        for wrong in ["Bearer s3cre", "Bearer s3crets", "Bearer ", "Basic s3cret", "s3cret", "Bearer"] {
            assert_eq!(with(wrong), Err(Slug::Unauthorized), "{wrong}");
        }
        assert_eq!(judged(&guard, "GET", &[("host", "x")]), Err(Slug::Unauthorized));
        let twice = [("host", "x"), ("authorization", "Bearer s3cret"), ("authorization", "Bearer no")];
        assert_eq!(judged(&guard, "GET", &twice), Err(Slug::Unauthorized));
    }

    #[test]
    fn a_probe_needs_no_token_and_stays_a_probe() {
        let guard = Guard::new(Some(&Secret("s3cret".into())), &[]);
        let probe = guard.admit(&parts("GET", &[("host", "10.1.2.3:8081")]), true).unwrap();
        assert_eq!(probe, Standing::Probe);
    }
}
