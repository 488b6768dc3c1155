//! Tokens: a signature, two times, perhaps an issuer and an audience, and one claim that names the tenant.
//!
//! Everything is judged on every request, a replay included: an expired token does not see what it was once
//! answered. Nothing of a token is believed before its signature holds, but which key to try. The time is a
//! parameter. Tokens without `exp` are refused: they would be good for ever.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use semel::runtime::Boxed;
use serde_json::{Map, Value};

use super::jwk::{Algorithm, Key};
use super::jwks::{Keys, Sources};
use crate::config::resolved::{Jwt, JwtKeys};

/// Longest token read.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Most keys tried for a token that names none, or a name that several have: each try costs a signature.
const KEYS_TRIED_MAX: usize = 8;

/// Why a token, or what stood in its place, names nobody. Fit for the client; holds nothing of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Repeated,
    NotBearer,
    Malformed,
    Algorithm,
    UnknownKey,
    NoKeys,
    Signature,
    Expired,
    NotYet,
    Times,
    Issuer,
    Audience,
    Claim,
    Name,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Repeated => {
                "the header that names the client stands there more than once, or in two spellings"
            }
            Self::NotBearer => "the header Authorization holds no bearer token",
            Self::Malformed => "the token is not a signed JSON Web Token",
            Self::Algorithm => "the token's algorithm is not accepted for its key",
            Self::UnknownKey => "the token names a key that is not known here",
            Self::NoKeys => "the keys that verify tokens have not been fetched yet; try again shortly",
            Self::Signature => "the token's signature does not hold",
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet",
            Self::Times => "the token's exp is missing, or its exp or nbf is not a number",
            Self::Issuer => "the token comes from another issuer",
            Self::Audience => "the token is meant for another audience",
            Self::Claim => "the token has no usable claim that names the client",
            Self::Name => "the client's name is empty, too long or not plain text",
        })
    }
}

/// Verifies the tokens of one route.
#[derive(Clone, Debug)]
pub(super) struct Verifier {
    claim: String,
    keys: Material,
    issuer: Option<String>,
    audience: Option<String>,
    leeway: Duration,
}

#[derive(Clone, Debug)]
enum Material {
    Secret(Key),
    Set(Arc<Keys>),
}

impl Verifier {
    pub(super) fn new(jwt: &Jwt, sources: &mut Sources) -> Self {
        let keys = match &jwt.keys {
            JwtKeys::Secret(secret) => Material::Secret(Key::secret(secret.0.as_bytes())),
            JwtKeys::JwksFile(_) | JwtKeys::JwksUrl(_) => Material::Set(sources.keys(&jwt.keys)),
        };
        let Jwt { claim, issuer, audience, leeway, .. } = jwt.clone();
        Self { claim, keys, issuer, audience, leeway }
    }

    /// The claim of a token that holds at `now`, in seconds since 1970.
    pub(super) fn subject(&self, token: &str, now: u64) -> Result<String, Reason> {
        let claims = self.signed(token)?;
        self.in_time(&claims, now)?;
        if self
            .issuer
            .as_ref()
            .is_some_and(|issuer| claims.get("iss").and_then(Value::as_str) != Some(issuer))
        {
            return Err(Reason::Issuer);
        }
        self.audience(&claims)?;
        match named(&claims, &self.claim) {
            Some(Value::String(name)) => Ok(name.clone()),
            // Numbers with a fraction have more than one spelling, and so could name two tenants.
            Some(Value::Number(number)) if number.is_u64() || number.is_i64() => Ok(number.to_string()),
            _ => Err(Reason::Claim),
        }
    }

    /// Waits until the key set was fetched again; whether it was before `timeout` ended.
    pub(super) async fn refreshed(&self, timeout: Boxed<()>) -> bool {
        match &self.keys {
            Material::Secret(_) => false,
            Material::Set(keys) => keys.refreshed(timeout).await,
        }
    }

    /// The claims, once the signature holds.
    fn signed(&self, token: &str) -> Result<Map<String, Value>, Reason> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Reason::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Reason::Malformed)?;
        let (head, payload) = message.split_once('.').ok_or(Reason::Malformed)?;
        let head = object(head)?;
        // Extensions that must be understood are not.
        if head.contains_key("crit") {
            return Err(Reason::Algorithm);
        }
        let algorithm =
            head.get("alg").and_then(Value::as_str).and_then(Algorithm::parse).ok_or(Reason::Algorithm)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Reason::Malformed)?;
        let verified = |keys: &mut dyn Iterator<Item = &Key>| {
            let mut allowed = keys.filter(|key| key.allows(algorithm)).peekable();
            if allowed.peek().is_none() {
                return Err(Reason::Algorithm);
            }
            let holds = allowed
                .take(KEYS_TRIED_MAX)
                .any(|key| key.verifies(algorithm, message.as_bytes(), &signature));
            if holds || semel::mutant::on("jwt-signature-ignored") { Ok(()) } else { Err(Reason::Signature) }
        };
        match &self.keys {
            Material::Secret(key) => verified(&mut std::iter::once(key))?,
            Material::Set(keys) => {
                let set = keys.current().ok_or(Reason::NoKeys)?;
                match head.get("kid").map(|id| id.as_str().ok_or(Reason::Malformed)).transpose()? {
                    None => verified(&mut set.keys.iter())?,
                    Some(id) => {
                        let mut named =
                            set.keys.iter().filter(|key| key.id.as_deref() == Some(id)).peekable();
                        if named.peek().is_none() {
                            return Err(Reason::UnknownKey);
                        }
                        verified(&mut named)?;
                    }
                }
            }
        }
        object(payload)
    }

    fn in_time(&self, claims: &Map<String, Value>, now: u64) -> Result<(), Reason> {
        let (now, leeway) = (now as f64, self.leeway.as_secs_f64());
        // A time that cannot be read is refused, never taken for absent.
        let time = |name: &str| claims.get(name).map(|time| time.as_f64().ok_or(Reason::Times)).transpose();
        let expires = time("exp")?.ok_or(Reason::Times)?;
        if now >= expires + leeway && !semel::mutant::on("jwt-expiry-ignored") {
            return Err(Reason::Expired);
        }
        match time("nbf")? {
            Some(from) if now + leeway < from && !semel::mutant::on("jwt-nbf-ignored") => Err(Reason::NotYet),
            _ => Ok(()),
        }
    }

    /// A token that names audiences must name us (RFC 7519, 4.1.3), also when we do not know our name.
    fn audience(&self, claims: &Map<String, Value>) -> Result<(), Reason> {
        let ours = |one: &Value| one.as_str().is_some() && one.as_str() == self.audience.as_deref();
        let meant = match claims.get("aud") {
            None => self.audience.is_none(),
            Some(Value::Array(several)) => several.iter().any(ours),
            Some(one) => ours(one),
        };
        if meant { Ok(()) } else { Err(Reason::Audience) }
    }
}

fn object(part: &str) -> Result<Map<String, Value>, Reason> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Reason::Malformed)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(members)) => Ok(members),
        _ => Err(Reason::Malformed),
    }
}

/// A member of that name, or else the one at the end of `a.b.c`. The whole name comes first: some claims are
/// URLs, with dots of their own.
fn named<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(whole) = claims.get(path) {
        return Some(whole);
    }
    let (first, rest) = path.split_once('.')?;
    rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
