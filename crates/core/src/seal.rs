//! Outcomes at rest: sealed with an authenticated cipher, each bound to its operation.
//!
//! A store only ever sees the sealed bytes. A key that was forgotten makes what it sealed
//! unreadable for good; the operation still counts as done, and nothing runs again.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use crate::codec::{Reader, Truncated, Writer};
use crate::outcome::{Outcome, SEALED, Unreadable};
use crate::subject::{KEY_ID_BYTES, Key, KeyId};
use crate::{OperationId, mutant};

/// Version byte of the sealed form: XChaCha20-Poly1305, 24-byte random nonce.
const SEALED_V1: u8 = SEALED | 1;
/// The same, sealed with the key of a subject: its id has a fixed length.
const SEALED_V2: u8 = SEALED | 2;
const NONCE_BYTES: usize = 24;

/// Longest key id, in bytes.
pub const KEY_ID_BYTES_MAX: usize = 128;

/// The keys outcomes are sealed with: one active, any number of older ones for reading.
///
/// Rotation: add the new key as active, keep the old one until its outcomes expired.
/// Shredding: [`SubjectKeys`](crate::subject::SubjectKeys) give each subject a key of its own, which this ring
/// wraps.
#[derive(Clone)]
pub struct Keyring {
    active: String,
    ciphers: BTreeMap<String, XChaCha20Poly1305>,
}

/// A keyring that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key id {0:?} must have 1 to {KEY_ID_BYTES_MAX} bytes")]
pub struct BadKeyId(pub String);

impl Keyring {
    /// A keyring with one key, active.
    pub fn new(id: &str, key: &[u8; 32]) -> Result<Self, BadKeyId> {
        let mut ring = Self { active: id.to_owned(), ciphers: BTreeMap::new() };
        ring.ciphers.insert(checked(id)?, XChaCha20Poly1305::new(key.into()));
        Ok(ring)
    }

    /// Adds a key for reading what it sealed earlier.
    pub fn with_older(mut self, id: &str, key: &[u8; 32]) -> Result<Self, BadKeyId> {
        self.ciphers.insert(checked(id)?, XChaCha20Poly1305::new(key.into()));
        Ok(self)
    }

    /// The same keys with another one active; a key of this id must be present.
    pub fn activate(mut self, id: &str) -> Result<Self, BadKeyId> {
        if !self.ciphers.contains_key(id) {
            return Err(BadKeyId(id.to_owned()));
        }
        self.active = id.to_owned();
        Ok(self)
    }

    /// Forgets a key: what it sealed can never be read again through this ring.
    /// The active key cannot be forgotten; activate another first.
    pub fn forget(&mut self, id: &str) -> bool {
        id != self.active && self.ciphers.remove(id).is_some()
    }

    /// The id of the key that seals.
    pub fn active(&self) -> &str {
        &self.active
    }

    /// The ids of the others.
    pub(crate) fn older(&self) -> impl Iterator<Item = &str> {
        self.ciphers.keys().map(String::as_str).filter(|id| *id != self.active)
    }

    fn seal(&self, operation: OperationId, plain: &[u8]) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(plain.len() + 64 + self.active.len()));
        out.byte(SEALED_V1);
        out.bytes(self.active.as_bytes());
        encrypt(&self.ciphers[&self.active], bound_to(&operation), plain, &mut out.0);
        out.0
    }

    /// Seals with the active key, and says which that is.
    pub(crate) fn seal_bytes(&self, bound_to: &[u8], plain: &[u8]) -> (&str, Vec<u8>) {
        let mut out = Vec::new();
        encrypt(&self.ciphers[&self.active], bound_to, plain, &mut out);
        (&self.active, out)
    }

    /// Opens what [`seal_bytes`](Self::seal_bytes) made.
    pub(crate) fn open_bytes(&self, id: &str, bound_to: &[u8], sealed: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let key = || id.to_owned();
        let cipher = self.ciphers.get(id).ok_or_else(|| Unreadable::KeyMissing { key: key() })?;
        decrypt(cipher, bound_to, sealed).ok_or_else(|| Unreadable::SealBroken { key: key() })
    }
}

/// Appends a random nonce and the sealed bytes.
fn encrypt(cipher: &XChaCha20Poly1305, bound_to: &[u8], plain: &[u8], out: &mut Vec<u8>) {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).expect("the operating system gives random bytes");
    let payload = Payload { msg: plain, aad: bound_to };
    let sealed = cipher
        .encrypt(&XNonce::from(nonce), payload)
        .expect("sealing fails only beyond 256 GiB, and outcomes are bounded");
    out.extend_from_slice(&nonce);
    out.extend_from_slice(&sealed);
}

fn decrypt(cipher: &XChaCha20Poly1305, bound_to: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
    cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: bound_to }).ok()
}

/// The operation is part of what is authenticated.
fn bound_to(operation: &OperationId) -> &[u8] {
    if mutant::on("seal-unbound") { b"" } else { operation.as_bytes() }
}

/// Key ids are shown; keys never are.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.ciphers.keys().collect();
        f.debug_struct("Keyring").field("active", &self.active).field("ids", &ids).finish_non_exhaustive()
    }
}

fn checked(id: &str) -> Result<String, BadKeyId> {
    if id.is_empty() || id.len() > KEY_ID_BYTES_MAX {
        Err(BadKeyId(id.to_owned()))
    } else {
        Ok(id.to_owned())
    }
}

/// Turns an outcome into what a store keeps: encoded, and sealed if there is a keyring.
pub fn close(outcome: &Outcome, operation: OperationId, keys: Option<&Keyring>) -> Bytes {
    let plain = outcome.encode();
    match keys {
        Some(ring) if !mutant::on("stored-in-the-clear") => ring.seal(operation, &plain).into(),
        _ => plain.into(),
    }
}

/// The same, sealed with the key of a subject. What is kept names that key, never the subject.
pub(crate) fn close_for(outcome: &Outcome, operation: OperationId, key: &Key) -> Bytes {
    let plain = outcome.encode();
    let mut out = Writer(Vec::with_capacity(plain.len() + 64));
    out.byte(SEALED_V2);
    out.0.extend_from_slice(key.id().as_bytes());
    encrypt(&key.cipher, bound_to(&operation), &plain, &mut out.0);
    out.0.into()
}

/// Which subject's key opens stored bytes, if it is one that does.
pub fn subject_key(stored: &[u8]) -> Option<KeyId> {
    let (&SEALED_V2, rest) = stored.split_first()? else { return None };
    rest.first_chunk::<KEY_ID_BYTES>().map(|id| KeyId::from_bytes(*id))
}

/// Opens what [`close_for`] made with this key.
pub(crate) fn open_with(stored: &Bytes, operation: OperationId, key: &Key) -> Result<Outcome, Unreadable> {
    let broken = || Unreadable::SealBroken { key: key.id().to_string() };
    if subject_key(stored) != Some(key.id()) {
        return Err(broken());
    }
    let sealed = &stored[1 + KEY_ID_BYTES..];
    let plain = decrypt(&key.cipher, bound_to(&operation), sealed).ok_or_else(broken)?;
    Outcome::decode(&plain.into())
}

/// Turns stored bytes back into the outcome. What was sealed with the key of a subject stays shut: see
/// [`Policy::read`](crate::Policy::read).
pub fn open(stored: &Bytes, operation: OperationId, keys: Option<&Keyring>) -> Result<Outcome, Unreadable> {
    if stored.first().is_none_or(|first| *first < SEALED) {
        return Outcome::decode(stored);
    }
    let damaged = |_| Unreadable::Damaged { what: "its seal ends early" };
    match stored[0] {
        SEALED_V1 => {}
        SEALED_V2 => {
            let key = subject_key(stored).ok_or(Truncated).map_err(damaged)?.to_string();
            return Err(Unreadable::SubjectKeyMissing { key });
        }
        found => return Err(Unreadable::NewerVersion { found }),
    }
    let mut input = Reader(&stored[1..]);
    let id = input.bytes().map_err(damaged)?;
    let key = String::from_utf8_lossy(id).into_owned();
    if input.0.len() < NONCE_BYTES {
        return Err(damaged(Truncated));
    }
    let Some(cipher) = keys.and_then(|ring| ring.ciphers.get(&key)) else {
        return Err(Unreadable::KeyMissing { key });
    };
    // A seal moved to another record stays shut.
    let plain = decrypt(cipher, bound_to(&operation), input.0).ok_or(Unreadable::SealBroken { key })?;
    Outcome::decode(&plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Scope};

    fn operation(key: &str) -> OperationId {
        Operation::new(Scope::shared("test", "r").unwrap(), key.parse().unwrap()).id()
    }

    #[test]
    fn a_sealed_outcome_hides_its_body_and_opens_only_for_its_operation() {
        // G-20
        let ring = Keyring::new("2026-11", &[7; 32]).unwrap();
        let outcome = Outcome::text("card 4242");
        let stored = close(&outcome, operation("a"), Some(&ring));
        assert!(!stored.windows(4).any(|window| window == b"4242"));
        assert_eq!(open(&stored, operation("a"), Some(&ring)), Ok(outcome));
        let moved = open(&stored, operation("b"), Some(&ring));
        assert_eq!(moved, Err(Unreadable::SealBroken { key: "2026-11".into() }));
    }

    #[test]
    fn rotation_keeps_old_outcomes_readable_until_their_key_is_forgotten() {
        // G-20
        let old = Keyring::new("old", &[1; 32]).unwrap();
        let stored = close(&Outcome::text("x"), operation("a"), Some(&old));
        let mut both = old.with_older("new", &[2; 32]).unwrap().activate("new").unwrap();
        assert_eq!(open(&stored, operation("a"), Some(&both)), Ok(Outcome::text("x")));
        let fresh = close(&Outcome::text("y"), operation("a"), Some(&both));
        assert!(both.forget("old"));
        assert!(!both.forget("new"), "the active key stays");
        let gone = open(&stored, operation("a"), Some(&both));
        assert_eq!(gone, Err(Unreadable::KeyMissing { key: "old".into() }));
        assert_eq!(open(&fresh, operation("a"), Some(&both)), Ok(Outcome::text("y")));
        assert_eq!(open(&fresh, operation("a"), None), Err(Unreadable::KeyMissing { key: "new".into() }));
    }

    #[test]
    fn a_wrong_key_under_the_right_id_and_any_cut_are_errors() {
        // G-20
        let stored = close(&Outcome::text("x"), operation("a"), Some(&Keyring::new("k", &[1; 32]).unwrap()));
        let wrong = Keyring::new("k", &[2; 32]).unwrap();
        assert_eq!(
            open(&stored, operation("a"), Some(&wrong)),
            Err(Unreadable::SealBroken { key: "k".into() })
        );
        for cut in 0..stored.len() {
            assert!(open(&stored.slice(..cut), operation("a"), Some(&wrong)).is_err());
        }
    }

    #[test]
    fn debug_shows_ids_and_no_keys() {
        let shown = format!("{:?}", Keyring::new("id-1", &[0x42; 32]).unwrap());
        assert!(shown.contains("id-1") && !shown.contains("66") && !shown.contains("42"));
    }
}
