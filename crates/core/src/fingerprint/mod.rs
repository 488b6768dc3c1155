//! A fingerprint says whether two requests under one key ask for the same thing.
//!
//! It is an HMAC-SHA-256 over method, path, query, content type, the headers a route selects, and the
//! content-decoded body. Bodies are brought to a canonical form first, so that a client may serialise the
//! same request twice without being refused:
//!
//! | body | does not count | counts |
//! |---|---|---|
//! | JSON | member order, spacing, string escapes | everything else: number lexemes as written, duplicate members and their order, `null` against absent |
//! | form | percent and plus encoding, order of unrelated fields | names, values, order of fields with one root name (`a`, `a[]`, `a[0]`), `a` against `a=` |
//! | multipart | boundary, order of unrelated parts, case of header names | part names, parameters, headers, bytes, preamble and epilogue |
//! | other | nothing | the bytes |
//!
//! No value is ever changed on the way: there is no number type here, only lexemes. What cannot be read
//! strictly (broken JSON, a charset other than UTF-8, a malformed multipart) is compared as bytes; that is
//! never an error.
//!
//! Beside the digest a [`Print`] holds two four-byte keyed digests per leaf, one of its path and one of its
//! value. From these a refusal can name what changed, and the store learns neither names nor values.
//!
//! What this module does not do: it never finds duplicates. Two equal bodies under two keys are two
//! operations. It does not decode content encodings and does not choose the headers; the caller has done
//! both.
//!
//! # Limits
//!
//! Compared as bytes are also: JSON deeper than 128 levels, of more than 2^20 values or longer than 1 GiB;
//! forms of more than 2^16 fields; multipart bodies of more than 1024 parts or with a part whose head exceeds
//! 16 KiB. While it is read, a body takes about 36 bytes of memory per JSON value besides its canonical form;
//! afterwards a [`Fingerprint`] keeps neither, only the paths of at most [`PATHS_MAX`] leaves. So does a thread, of
//! the last four shapes of requests it saw, and of JSON up to 16 KiB also what was spelt around the scalars.
//!
//! # Excluded members
//!
//! A route may exclude JSON pointers (a client timestamp, say). An excluded object member, form field or part
//! is ignored on both sides, so present and absent are the same. An excluded array element keeps its place:
//! its value does not count, the length of the array does. A pointer that matches nothing has no effect;
//! `{"meta":{}}` and `{}` stay different when `/meta/sent_at` is excluded. Opaque bodies have no members, so
//! nothing in them is excluded.

mod canonical;
mod compare;
mod error;
mod form;
mod json;
mod json_value;
mod key;
mod lent;
mod media;
mod multipart;
mod paths;
mod pointer;
mod redact;
mod request;
mod shape;
mod template;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use canonical::Canonical;
use key::Keyed;
use shape::Shape;

pub use compare::{Changes, Comparison, Fingerprint, NAME_CHARS_MAX, NAMES_MAX};
pub use error::Error;
pub use key::HashKey;
pub use paths::{PATHS_MAX, Paths, Print};
pub use pointer::{POINTERS_MAX, Pointers};
pub use redact::{REDACTED, redact};
pub use request::Request;

/// The most key versions one [`Fingerprinter`] holds; every request is digested once per version.
pub const KEYS_MAX: usize = 8;

/// Makes fingerprints under one current key and any number of older ones.
///
/// Rotation: put the new key first and keep the old ones for as long as records made under them live. A
/// stored print is compared under its own version. To let all instances know a key before any of them uses
/// it, list it behind the current one for a while.
///
/// Cloning is cheap. `Debug` shows versions, never secrets.
#[derive(Clone)]
pub struct Fingerprinter {
    keys: Arc<[Keyed]>,
}

impl Fingerprinter {
    /// Takes the current key first, then the older ones. Refuses an empty list, two keys of one version, and
    /// more than [`KEYS_MAX`] keys.
    pub fn new(keys: Vec<HashKey>) -> Result<Self, Error> {
        if keys.is_empty() {
            return Err(Error::NoKeys);
        }
        if keys.len() > KEYS_MAX {
            return Err(Error::TooManyKeys { count: keys.len() });
        }
        for (at, key) in keys.iter().enumerate() {
            if keys[..at].iter().any(|earlier| earlier.version == key.version) {
                return Err(Error::DuplicateVersion { version: key.version });
            }
        }
        Ok(Self { keys: keys.iter().map(Keyed::new).collect() })
    }

    /// The version new fingerprints are stored under.
    pub fn version(&self) -> u32 {
        self.keys[0].version
    }

    /// All known versions, the current one first.
    pub fn versions(&self) -> impl Iterator<Item = u32> + '_ {
        self.keys.iter().map(|key| key.version)
    }

    /// The fingerprint of an HTTP request.
    pub fn print(&self, request: &Request<'_>) -> Fingerprint {
        self.seal(request.canonical())
    }

    /// The fingerprint of plain bytes, for callers without HTTP. Every byte counts.
    pub fn of_bytes(&self, bytes: &[u8]) -> Fingerprint {
        self.seal(request::canonical_bytes(bytes))
    }

    /// The fingerprint of a JSON document, for callers without HTTP. What is not JSON counts as bytes, and
    /// gives the same fingerprint as [`of_bytes`](Self::of_bytes).
    pub fn of_json(&self, json: &[u8]) -> Fingerprint {
        self.seal(request::canonical_json(json))
    }

    fn seal(&self, canonical: Canonical) -> Fingerprint {
        Shape::lend(&self.keys, &canonical, |shape| {
            let keys = self.keys.iter().enumerate();
            let mut prints = keys.map(|(at, key)| key.print(&canonical, shape.paths(at)));
            let current = prints.next().expect("a fingerprinter has at least one key");
            Fingerprint::new(current, prints.collect(), shape.names())
        })
    }
}

impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.versions()).finish()
    }
}
