//! Header names of the contract, and which headers must not travel or be kept.

use http::header::{self, HeaderMap, HeaderName};
use semel_core::mutant;

/// The client's key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The same to the many servers that take `_` for `-`, and another header to us.
pub const KEY_ALIKE: HeaderName = HeaderName::from_static("idempotency_key");
/// On a replay, unless the route names another.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// On a replay from which something was taken out before it was stored.
pub const REPLAY_REDACTED: HeaderName = HeaderName::from_static("idempotent-replay-redacted");
/// On the answer of an effect that ran without protection.
pub const UNPROTECTED: HeaderName = HeaderName::from_static("idempotency-unprotected");

/// To the handler: the attempt's token.
pub const TOKEN: HeaderName = HeaderName::from_static("semel-token");
/// To the handler: the attempt's nonce. A hint counts only beside the same nonce.
pub const NONCE: HeaderName = HeaderName::from_static("semel-nonce");
/// To the handler: which attempt this is, from 1.
pub const ATTEMPT: HeaderName = HeaderName::from_static("semel-attempt");
/// To the handler: a key for the next call downstream, the same on every attempt.
pub const DERIVED_KEY: HeaderName = HeaderName::from_static("semel-derived-key");
/// From the handler: what it knows about the effect.
pub const HINT: HeaderName = HeaderName::from_static("semel-hint");

/// The namespace nobody outside may speak in.
const NAMESPACE: &str = "semel";

/// Headers with which a request asks to be taken for another method.
const METHOD_OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// Belong to one connection and mean nothing on a replay.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Secrets of the first client: not stored unless a route says so.
const SECRETS: [&str; 11] = [
    "authentication-info",
    "authorization",
    "cookie",
    "proxy-authentication-info",
    "proxy-authorization",
    "set-cookie",
    "set-cookie2",
    "x-api-key",
    "x-amz-security-token",
    "x-auth-token",
    "x-csrf-token",
];

/// Whether a header belongs to Semel. Many servers take `_` for `-`, so both count.
pub fn is_ours(name: &HeaderName) -> bool {
    let rest = name.as_str().strip_prefix(NAMESPACE);
    rest.is_some_and(|rest| rest.starts_with(['-', '_']))
}

/// Whether servers that take `_` for `-` take both for the same header.
pub fn is_alike(name: &HeaderName, other: &HeaderName) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte };
    name.as_str().bytes().map(fold).eq(other.as_str().bytes().map(fold))
}

/// Whether a header of this name stands there in another spelling, which some servers take for it.
pub fn has_alike(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.keys().any(|other| other != name && is_alike(other, name))
}

/// Whether a header asks for a request to be taken for another method.
pub fn is_method_override(name: &HeaderName) -> bool {
    match name.as_str().contains('_') {
        true => METHOD_OVERRIDES.contains(&&*name.as_str().replace('_', "-")),
        false => METHOD_OVERRIDES.contains(&name.as_str()),
    }
}

/// Whether a header belongs to one connection.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(&name.as_str())
}

/// Whether a header of an answer is a secret between the service and its first client.
pub fn is_secret(name: &HeaderName) -> bool {
    let widened = mutant::on("answer-token-taken") && crate::tenant::is_credential(name);
    SECRETS.contains(&name.as_str()) || crate::tenant::is_named_as_one(name) || widened
}

/// Whether `Connection` declares the header to belong to this connection.
pub(crate) fn is_nominated(headers: &HeaderMap, name: &HeaderName) -> bool {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|option| option.trim().eq_ignore_ascii_case(name.as_str()))
}

/// Removes every header of Semel's namespace. The others keep their order, which `HeaderMap::remove` would
/// not keep.
pub(crate) fn strip(headers: &mut HeaderMap) {
    if !headers.keys().any(is_ours) || mutant::on("semel-headers-pass") {
        return;
    }
    let mut name = None;
    for (next, value) in std::mem::take(headers) {
        // Repeats come without their name.
        name = next.or(name);
        if let Some(name) = name.as_ref().filter(|name| !is_ours(name)) {
            headers.append(name, value);
        }
    }
}

/// The method a request asks to be taken for, where that differs from the one it has. What is no
/// method at all differs too.
pub(crate) fn overriding<'a>(method: &http::Method, headers: &'a HeaderMap) -> Option<&'a [u8]> {
    headers
        .iter()
        .filter(|(name, _)| is_method_override(name))
        .map(|(_, value)| value.as_bytes().trim_ascii())
        .find(|value| !value.eq_ignore_ascii_case(method.as_str().as_bytes()))
}
