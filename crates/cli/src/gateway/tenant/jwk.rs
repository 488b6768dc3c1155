//! Keys that verify tokens, and which algorithms each of them may be used with.
//!
//! The key decides, never the token: an RSA key verifies RSA signatures only, so that a token cannot have its
//! public key taken for a shared secret; `none` is no key's algorithm. Secrets in a key set are skipped: a set
//! is published, a secret is not.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{hmac, signature};
use serde_json::Value;

/// Most keys of one set that are used.
pub(crate) const KEYS_MAX: usize = 100;

/// What a token says it was signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "HS256" => Self::Hs256,
            "HS384" => Self::Hs384,
            "HS512" => Self::Hs512,
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" | "Ed25519" => Self::EdDsa,
            _ => return None,
        })
    }
}

/// One key.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: Option<String>,
    /// Set if the key itself names the one algorithm it is for.
    only: Option<Algorithm>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(Box<[u8]>),
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Ids are shown; secrets never are.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Key {
    pub(super) fn secret(secret: &[u8]) -> Self {
        Self { id: None, only: None, material: Material::Secret(secret.into()) }
    }

    pub(super) fn allows(&self, algorithm: Algorithm) -> bool {
        use Algorithm::*;
        if semel::mutant::on("jwt-algorithm-from-token") {
            return true;
        }
        let by_kind = match &self.material {
            Material::Secret(_) => matches!(algorithm, Hs256 | Hs384 | Hs512),
            Material::Rsa { .. } => matches!(algorithm, Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512),
            Material::P256(_) => algorithm == Es256,
            Material::P384(_) => algorithm == Es384,
            Material::Ed25519(_) => algorithm == EdDsa,
        };
        by_kind && self.only.is_none_or(|only| only == algorithm)
    }

    /// Whether the signature of `message` holds.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        use Algorithm::*;
        let rsa = match algorithm {
            Hs256 | Hs384 | Hs512 => {
                let hash = match algorithm {
                    Hs256 => hmac::HMAC_SHA256,
                    Hs384 => hmac::HMAC_SHA384,
                    _ => hmac::HMAC_SHA512,
                };
                return hmac::verify(&hmac::Key::new(hash, self.bytes()), message, signature).is_ok();
            }
            Es256 => return self.plain(&signature::ECDSA_P256_SHA256_FIXED, message, signature),
            Es384 => return self.plain(&signature::ECDSA_P384_SHA384_FIXED, message, signature),
            EdDsa => return self.plain(&signature::ED25519, message, signature),
            Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        };
        match &self.material {
            Material::Rsa { n, e } => {
                signature::RsaPublicKeyComponents { n, e }.verify(rsa, message, signature).is_ok()
            }
            _ => false,
        }
    }

    fn plain(
        &self,
        algorithm: &'static dyn signature::VerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        signature::UnparsedPublicKey::new(algorithm, self.bytes()).verify(message, signature).is_ok()
    }

    fn bytes(&self) -> &[u8] {
        match &self.material {
            Material::Secret(bytes) => bytes,
            Material::Rsa { n: bytes, .. }
            | Material::P256(bytes)
            | Material::P384(bytes)
            | Material::Ed25519(bytes) => bytes,
        }
    }
}

/// A set of public keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySet {
    pub(super) keys: Vec<Key>,
}

/// Reads a JSON Web Key Set. Keys of other kinds are skipped, as the standard asks; a set without a usable
/// key is an error.
pub(crate) fn parse_set(bytes: &[u8]) -> Result<KeySet, String> {
    let set: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("the key set is not JSON: {error}"))?;
    let Some(listed) = set.get("keys").and_then(Value::as_array) else {
        return Err("the key set has no list `keys`".into());
    };
    let keys: Vec<Key> = listed.iter().filter_map(key).take(KEYS_MAX).collect();
    if keys.is_empty() {
        return Err("the key set has no RSA, P-256, P-384 or Ed25519 key for signatures".into());
    }
    Ok(KeySet { keys })
}

fn key(jwk: &Value) -> Option<Key> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
    let point = |size: usize| {
        let (x, y) = (bytes("x")?, bytes("y")?);
        (x.len() == size && y.len() == size).then(|| [&[4][..], &x, &y].concat())
    };
    if text("use").is_some_and(|used| used != "sig") {
        return None;
    }
    let verifies =
        |operations: &Value| operations.as_array().is_some_and(|list| list.iter().any(|one| one == "verify"));
    if !jwk.get("key_ops").is_none_or(verifies) {
        return None;
    }
    let only = match jwk.get("alg") {
        Some(name) => Some(Algorithm::parse(name.as_str()?)?),
        None => None,
    };
    let material = match (text("kty")?, text("crv")) {
        ("RSA", _) => Material::Rsa { n: unpadded(bytes("n")?), e: unpadded(bytes("e")?) },
        ("EC", Some("P-256")) => Material::P256(point(32)?),
        ("EC", Some("P-384")) => Material::P384(point(48)?),
        ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x").filter(|x| x.len() == 32)?),
        _ => return None,
    };
    Some(Key { id: text("kid").map(str::to_owned), only, material })
}

/// Some issuers write numbers with a zero in front.
fn unpadded(mut number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.drain(..zeros);
    number
}
