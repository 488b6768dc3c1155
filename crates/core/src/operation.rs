//! What makes two requests the same operation: namespace, tenant, route and key together.
//!
//! The key alone never does. Two tenants may choose the same key, and one key may be used on two
//! routes; neither may ever meet the other's record.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::Key;
use crate::digest::sha256;

/// Longest namespace, tenant or route id, in bytes.
pub const PART_BYTES_MAX: usize = 512;

/// Where a key lives: a deployment's namespace, an authenticated tenant, a stable route id.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    // Namespace, tenant and route, one after another.
    text: Arc<str>,
    namespace_bytes: usize,
    tenant_bytes: Option<usize>,
}

/// A scope part that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// Namespace, tenant and route need at least one character each.
    #[error("the {part} of a scope is empty; give it a name, or declare no tenant with Scope::shared")]
    Empty {
        /// Which part.
        part: &'static str,
    },
    /// Over [`PART_BYTES_MAX`].
    #[error("the {part} of a scope has {bytes} bytes; the most accepted is 512")]
    TooLong {
        /// Which part.
        part: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// Stores keep the parts as text, and not every database can hold a NUL in text.
    #[error("the {part} of a scope contains a NUL character")]
    Nul {
        /// Which part.
        part: &'static str,
    },
}

impl Scope {
    /// The usual scope: every tenant has its own keys.
    pub fn new(namespace: &str, tenant: &str, route: &str) -> Result<Self, Invalid> {
        check("tenant", tenant)?;
        Self::of(namespace, Some(tenant), route)
    }

    /// A scope with no tenant: everybody who knows a key shares its outcome. Fit for jobs and
    /// for services with one caller; never for a public API.
    pub fn shared(namespace: &str, route: &str) -> Result<Self, Invalid> {
        Self::of(namespace, None, route)
    }

    fn of(namespace: &str, tenant: Option<&str>, route: &str) -> Result<Self, Invalid> {
        check("namespace", namespace)?;
        check("route", route)?;
        let text = [namespace, tenant.unwrap_or_default(), route].concat().into();
        Ok(Self { text, namespace_bytes: namespace.len(), tenant_bytes: tenant.map(str::len) })
    }

    /// The deployment.
    pub fn namespace(&self) -> &str {
        &self.text[..self.namespace_bytes]
    }

    /// The authenticated principal, if one was declared.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant_bytes.map(|bytes| &self.text[self.namespace_bytes..][..bytes])
    }

    /// The stable route id.
    pub fn route(&self) -> &str {
        &self.text[self.namespace_bytes + self.tenant_bytes.unwrap_or(0)..]
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Scope");
        shown.field("namespace", &self.namespace()).field("tenant", &self.tenant());
        shown.field("route", &self.route()).finish()
    }
}

fn check(part: &'static str, text: &str) -> Result<(), Invalid> {
    match text.len() {
        0 => Err(Invalid::Empty { part }),
        bytes if bytes > PART_BYTES_MAX => Err(Invalid::TooLong { part, bytes }),
        _ if text.contains('\0') => Err(Invalid::Nul { part }),
        _ => Ok(()),
    }
}

/// The identity of an operation: SHA-256 over its length-prefixed parts.
// Aligned, so that it is copied in whole words wherever it lies among other fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(align(8))]
pub struct OperationId([u8; 32]);

impl Hash for OperationId {
    // It is a digest already: eight bytes of it tell two ids apart as well as all of them, and nobody can make
    // many that share those.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (first, _) = self.0.as_chunks();
        state.write_u64(u64::from_ne_bytes(first[0]));
    }
}

impl OperationId {
    /// The raw digest, as stores keep it.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Takes back what a store kept.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Takes back what was displayed: 64 hexadecimal digits, in either case.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::codec::write_hex(f, &self.0)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({self})")
    }
}

/// One client intent: a scope, a key, and the id made of both.
///
/// The readable parts are stored beside the id, so that people can find what they look for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    id: OperationId,
    scope: Scope,
    key: Key,
}

impl Operation {
    /// Names an operation. Nothing is looked up.
    pub fn new(scope: Scope, key: Key) -> Self {
        Self { id: digest(&scope, &key), scope, key }
    }

    /// Its identity in a store.
    pub fn id(&self) -> OperationId {
        self.id
    }

    /// Where its key lives.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The client's key.
    pub fn key(&self) -> &Key {
        &self.key
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenant = self.scope.tenant().unwrap_or("-");
        write!(f, "{}/{}/{} {}", self.scope.namespace(), tenant, self.scope.route(), self.key)
    }
}

/// What is digested of most operations fits here; for others the allocator is asked.
const DIGESTED_BYTES: usize = 256;

/// Parts are short enough for two bytes of length. Length prefixes make them unambiguous: ("ab", "c") and ("a", "bc") differ.
fn digest(scope: &Scope, key: &Key) -> OperationId {
    let domain = b"semel op";
    // Four parts, each with a tag and a length.
    let size = domain.len() + 4 * 3 + scope.text.len() + key.as_str().len();
    let (mut short, mut long) = ([0; DIGESTED_BYTES], Vec::new());
    let all = if size <= DIGESTED_BYTES {
        &mut short[..]
    } else {
        long.resize(size, 0);
        &mut long[..]
    };
    let mut end = 0;
    let mut put = |bytes: &[u8]| {
        all[end..][..bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
    };
    put(domain);
    let mut part = |tag: u8, bytes: &[u8]| {
        put(&[tag]);
        if !crate::mutant::on("id-parts-unprefixed") {
            put(&(bytes.len() as u16).to_be_bytes());
        }
        put(bytes);
    };
    if !crate::mutant::on("id-without-namespace") {
        part(1, scope.namespace().as_bytes());
    }
    match scope.tenant() {
        Some(_) if crate::mutant::on("id-without-tenant") => {}
        Some(tenant) => part(2, tenant.as_bytes()),
        None => part(3, b""),
    }
    if !crate::mutant::on("id-without-route") {
        part(4, scope.route().as_bytes());
    }
    part(5, key.as_str().as_bytes());
    OperationId(sha256(&all[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(namespace: &str, tenant: Option<&str>, route: &str, key: &str) -> OperationId {
        let scope = match tenant {
            Some(tenant) => Scope::new(namespace, tenant, route),
            None => Scope::shared(namespace, route),
        };
        Operation::new(scope.unwrap(), key.parse().unwrap()).id()
    }

    #[test]
    fn an_operation_is_all_four_parts_never_the_key_alone() {
        // G-1
        let base = id("prod", Some("alice"), "charge", "k-1");
        assert_eq!(base, id("prod", Some("alice"), "charge", "k-1"));
        assert_ne!(base, id("test", Some("alice"), "charge", "k-1"));
        assert_ne!(base, id("prod", Some("bob"), "charge", "k-1"));
        assert_ne!(base, id("prod", None, "charge", "k-1"));
        assert_ne!(base, id("prod", Some("alice"), "refund", "k-1"));
        assert_ne!(base, id("prod", Some("alice"), "charge", "k-2"));
    }

    #[test]
    fn shifting_a_character_between_parts_changes_the_operation() {
        // G-1: tags keep neighbours apart, prefixes keep a part from imitating a tag.
        assert_ne!(id("p", Some("a\u{4}b"), "c", "k"), id("p", Some("a"), "b\u{4}c", "k"));
        assert_ne!(id("ab", Some("c"), "r", "k"), id("a", Some("bc"), "r", "k"));
    }

    #[test]
    fn an_id_comes_back_from_its_digits_and_nothing_else_is_one() {
        let id = id("prod", Some("alice"), "charge", "k-1");
        assert_eq!(OperationId::from_hex(&id.to_string()), Some(id));
        assert_eq!(OperationId::from_hex(&id.to_string().to_uppercase()), Some(id));
        for not in ["", "00", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32), &"+".repeat(64)] {
            assert_eq!(OperationId::from_hex(not), None, "{not}");
        }
    }

    #[test]
    fn ids_are_what_they_were_in_earlier_releases() {
        // G-1: another id for the same operation would run it again.
        let known = |id: OperationId, hex: &str| assert_eq!(id.to_string(), hex);
        known(
            id("shop", Some("alice"), "charge", "k-1"),
            "cc9b37aba4ce0e896fb53e14cb5ebd456352f9f77bd888471a6367f04d64d79c",
        );
        known(
            id("shop", None, "charge", "k-1"),
            "830e45096e40ebefe3529e590f21a8332e3c7b474d29ef35d3d5d0e94855690c",
        );
        // Just below, at and above what is digested without asking the allocator.
        for (route, hex) in [
            (223, "78a898f1daee3563a7ef6031fc8db970353302aa5b93af5de6c6c908beda5aa6"),
            (224, "492685b343cceffe77b297ab3c62c0a788af696f84c861024716d874d32b8ed8"),
            (225, "e2a6e95572ba608b8a3f41a8d1ca9e8717297737d398f8e69b2c9d43cbbe4ca6"),
        ] {
            known(id("shop", Some("alice"), &"r".repeat(route), "k-1"), hex);
        }
    }

    #[test]
    fn unusable_parts_are_refused_by_name() {
        assert_eq!(Scope::new("", "t", "r"), Err(Invalid::Empty { part: "namespace" }));
        assert_eq!(Scope::new("n", "", "r"), Err(Invalid::Empty { part: "tenant" }));
        assert_eq!(Scope::shared("n", "a\0b"), Err(Invalid::Nul { part: "route" }));
        let long = "x".repeat(513);
        assert_eq!(Scope::new("n", &long, "r"), Err(Invalid::TooLong { part: "tenant", bytes: 513 }));
    }
}
