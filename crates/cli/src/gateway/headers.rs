//! Which headers a hop keeps to itself, and what it tells the next one about the client.

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, EXPECT, FORWARDED, HOST,
    HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use semel::http::header::{IDEMPOTENCY_KEY, KEY_ALIKE, is_alike, is_method_override, is_ours};
use semel::http::tenant::is_credential;
use std::net::IpAddr;

use crate::config::resolved;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");
pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers that speak to the next hop only.
const ONE_HOP: [HeaderName; 6] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHORIZATION, TRANSFER_ENCODING, UPGRADE];

/// Say what a message is, and so stand before its body or mean nothing.
const OF_THE_HEAD: [HeaderName; 8] =
    [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, EXPECT, HOST, TE, TRAILER];

/// The protocol that a request asks to switch to, if both headers say so. Never one that is HTTP again:
/// requests in such a tunnel would pass unseen.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let is_http = |value: &HeaderValue| {
        let text = value.as_bytes().to_ascii_lowercase();
        [&b"h2"[..], b"http", b"tls"].iter().any(|name| memchr::memmem::find(&text, name).is_some())
    };
    if headers.get_all(UPGRADE).iter().any(is_http) {
        return None;
    }
    let asked = headers.get_all(CONNECTION).iter().any(|value| lists(value, "upgrade"));
    asked.then(|| protocol.clone())
}

/// Drops what belongs to one hop only, and what `Connection` names.
pub(super) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.keys().any(|name| ONE_HOP.contains(name)) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            // Framing, addressing, keys and credentials are not a client's to remove from the next hop.
            .filter(|name| !matches!(name.as_str(), "host" | "content-length" | "te" | "idempotency-key"))
            .filter(|name| !is_credential(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &ONE_HOP {
        headers.remove(name);
    }
}

/// Of `TE`, the next hop may hear of trailers only.
pub(super) fn keep_te_trailers(headers: &mut HeaderMap) {
    if !headers.contains_key(TE) {
        return;
    }
    let trailers = headers.get_all(TE).iter().any(|value| lists(value, "trailers"));
    headers.remove(TE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a comma list names `token`.
pub(super) fn lists(value: &HeaderValue, token: &str) -> bool {
    value.as_bytes().split(|byte| *byte == b',').any(|part| {
        let name = part.split(|byte| *byte == b';').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(token.as_bytes())
    })
}

/// Strips our own headers from whoever sends them, and claims about the client from peers that are not
/// believed.
pub(super) fn strip_claims(headers: &mut HeaderMap, trusted: bool) {
    let is_claim = |name: &HeaderName| {
        (is_ours(name) && !semel::mutant::on("client-semel-headers-kept"))
            || (!trusted && begins(name, "x-forwarded-"))
            || (!trusted && *name == FORWARDED)
    };
    if headers.keys().any(is_claim) {
        let claims: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
        for name in claims {
            headers.remove(name);
        }
    }
}

/// Whether a name begins so. Many servers take `_` for `-`, so it counts as one here.
fn begins(name: &HeaderName, prefix: &str) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte };
    name.as_str().len() >= prefix.len()
        && name.as_str().bytes().map(fold).zip(prefix.bytes()).all(|(a, b)| a == b)
}

/// Strips our own headers from an answer: they are between the gateway and the service.
pub(super) fn strip_ours(headers: &mut HeaderMap) {
    if headers.keys().any(is_ours) {
        strip_claims(headers, true);
    }
}

/// Strips a client's trailers of what no head may hold, and of what was judged by the head: a service that adds
/// trailers to its headers would believe in another client, key, method or length than the gateway did.
/// `judged` are headers by which some route judges a request.
pub(super) fn strip_request_trailers(trailers: &mut HeaderMap, judged: &[HeaderName]) {
    retain(trailers, |name| {
        let is_judged = *name == IDEMPOTENCY_KEY
            || *name == KEY_ALIKE
            || is_method_override(name)
            || is_credential(name)
            || judged.iter().any(|judged| is_alike(name, judged)) && !semel::mutant::on("judged-in-trailers");
        !is_judged
            && !ONE_HOP.iter().chain(&OF_THE_HEAD).any(|barred| is_alike(name, barred))
            && !is_ours(name)
            // Also from proxies that are believed: they say it in the head.
            && !begins(name, "x-forwarded-")
            && *name != FORWARDED
            || semel::mutant::on("request-trailers-kept")
    });
}

/// Strips a service's trailers of what no head of an answer holds.
pub(super) fn strip_answer_trailers(trailers: &mut HeaderMap) {
    retain(trailers, |name| {
        !ONE_HOP.contains(name) && !OF_THE_HEAD.contains(name) && !is_ours(name)
            || semel::mutant::on("answer-trailers-kept")
    });
}

fn retain(headers: &mut HeaderMap, keep: impl Fn(&HeaderName) -> bool) {
    let gone: Vec<HeaderName> = headers.keys().filter(|name| !keep(name)).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
}

/// Says who asks, over what, and for which host. Appends to what believed proxies said.
pub(super) fn tell_client(headers: &mut HeaderMap, peer: &HeaderValue, proto: &'static str) {
    let client = match headers.contains_key(&X_FORWARDED_FOR) {
        false => peer.clone(),
        true => {
            let mut chain = Vec::new();
            for value in headers.get_all(&X_FORWARDED_FOR).iter().chain([peer]) {
                if !chain.is_empty() {
                    chain.extend_from_slice(b", ");
                }
                chain.extend_from_slice(value.as_bytes());
            }
            HeaderValue::from_maybe_shared(bytes::Bytes::from(chain)).unwrap_or_else(|_| peer.clone())
        }
    };
    headers.insert(X_FORWARDED_FOR, client);
    if !headers.contains_key(&X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(proto));
    }
    if !headers.contains_key(&X_FORWARDED_HOST)
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// Whether an address lies in one of these networks.
pub(super) fn is_in(address: IpAddr, networks: &[resolved::Network]) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| match (address, network.address.to_canonical()) {
        (IpAddr::V4(address), IpAddr::V4(of)) => {
            // A network written as a mapped IPv6 address counts its bits from there.
            let bits = if network.address.is_ipv6() { network.bits.saturating_sub(96) } else { network.bits };
            same_bits(u128::from(u32::from(address)) << 96, u128::from(u32::from(of)) << 96, bits)
        }
        (IpAddr::V6(address), IpAddr::V6(of)) => same_bits(u128::from(address), u128::from(of), network.bits),
        _ => false,
    })
}

fn same_bits(left: u128, right: u128, bits: u8) -> bool {
    match bits {
        0 => true,
        bits => (left ^ right) >> 128_u32.saturating_sub(u32::from(bits)) == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn what_connection_names_is_dropped_but_not_the_framing() {
        let mut headers = map(&[
            ("connection", "close, X-Secret, content-length, host, Idempotency-Key, authorization"),
            ("idempotency-key", "k"),
            ("authorization", "Bearer x"),
            ("x-secret", "1"),
            ("content-length", "5"),
            ("host", "a"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("accept", "*/*"),
        ]);
        drop_hop_by_hop(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "authorization", "content-length", "host", "idempotency-key"]);
    }

    #[test]
    fn underscores_do_not_get_past_what_is_stripped() {
        // G-21: many servers take them for dashes.
        let mut headers = map(&[
            ("semel_token", "99"),
            ("semel-nonce", "mine"),
            ("x_forwarded_for", "10.0.0.1"),
            ("x-forwarded_host", "a"),
            ("semelish", "not ours"),
            ("x_forward", "not one"),
        ]);
        strip_claims(&mut headers, false);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["semelish", "x_forward"]);
    }

    #[test]
    fn our_own_headers_are_stripped_even_from_trusted_peers() {
        // G-21
        let mut headers = map(&[("semel-token", "7"), ("x-forwarded-for", "10.0.0.1"), ("accept", "*/*")]);
        strip_claims(&mut headers, true);
        assert!(!headers.contains_key("semel-token"));
        assert!(headers.contains_key("x-forwarded-for"), "a trusted peer's claim is kept");
        strip_claims(&mut headers, false);
        assert!(!headers.contains_key("x-forwarded-for"), "another's is not");
    }

    #[test]
    fn networks_compare_the_bits_that_count() {
        let network = |text: &str, bits| resolved::Network { address: text.parse().unwrap(), bits };
        let inside = |address: &str, net: resolved::Network| is_in(address.parse().unwrap(), &[net]);
        assert!(inside("10.1.2.3", network("10.0.0.0", 8)));
        assert!(!inside("11.1.2.3", network("10.0.0.0", 8)));
        assert!(inside("::ffff:10.1.2.3", network("10.0.0.0", 8)), "mapped addresses are IPv4");
        assert!(inside("1.2.3.4", network("0.0.0.0", 0)));
        assert!(inside("fd00::1", network("fd00::", 8)));
        assert!(!inside("fe00::1", network("fd00::", 8)));
        assert!(!inside("10.0.0.2", network("10.0.0.1", 32)));
    }

    #[test]
    fn te_keeps_trailers_only() {
        let mut headers = map(&[("te", "gzip, trailers;q=0.5")]);
        keep_te_trailers(&mut headers);
        assert_eq!(headers[TE], "trailers");
        let mut headers = map(&[("te", "gzip")]);
        keep_te_trailers(&mut headers);
        assert!(!headers.contains_key(TE));
    }
}
