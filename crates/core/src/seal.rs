//! Outcomes at rest: sealed with an authenticated cipher, each bound to its operation.
//!
//! A store only ever sees the sealed bytes. A key that was forgotten makes what it sealed
//! unreadable for good; the operation still counts as done, and nothing runs again.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use crate::codec::{Reader, Writer};
use crate::outcome::{Outcome, SEALED, Unreadable};
use crate::{OperationId, mutant};

/// Version byte of the sealed form: XChaCha20-Poly1305, 24-byte random nonce.
const SEALED_V1: u8 = SEALED | 1;
const NONCE_BYTES: usize = 24;

/// Longest key id, in bytes.
pub const KEY_ID_BYTES_MAX: usize = 128;

/// The keys outcomes are sealed with: one active, any number of older ones for reading.
///
/// Rotation: add the new key as active, keep the old one until its outcomes expired.
/// Shredding: give a subject a key of its own and forget it.
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

    fn seal(&self, operation: OperationId, plain: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).expect("the operating system gives random bytes");
        let payload = Payload { msg: plain, aad: bound_to(&operation) };
        let sealed = self.ciphers[&self.active]
            .encrypt(&XNonce::from(nonce), payload)
            .expect("sealing fails only beyond 256 GiB, and outcomes are bounded");
        let mut out = Writer(Vec::with_capacity(sealed.len() + 64));
        out.byte(SEALED_V1);
        out.bytes(self.active.as_bytes());
        out.0.extend_from_slice(&nonce);
        out.0.extend_from_slice(&sealed);
        out.0
    }
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

/// Turns stored bytes back into the outcome.
pub fn open(stored: &Bytes, operation: OperationId, keys: Option<&Keyring>) -> Result<Outcome, Unreadable> {
    if stored.first().is_none_or(|first| *first < SEALED) {
        return Outcome::decode(stored);
    }
    if stored[0] != SEALED_V1 {
        return Err(Unreadable::NewerVersion { found: stored[0] });
    }
    let damaged = |_| Unreadable::Damaged { what: "its seal ends early" };
    let mut input = Reader(&stored[1..]);
    let id = input.bytes().map_err(damaged)?;
    let key = String::from_utf8_lossy(id).into_owned();
    let nonce: [u8; NONCE_BYTES] =
        input.take(NONCE_BYTES).map_err(damaged)?.try_into().expect("take gives the length asked for");
    let Some(cipher) = keys.and_then(|ring| ring.ciphers.get(&key)) else {
        return Err(Unreadable::KeyMissing { key });
    };
    // A seal moved to another record stays shut.
    let payload = Payload { msg: input.0, aad: bound_to(&operation) };
    let plain = cipher.decrypt(&XNonce::from(nonce), payload).map_err(|_| Unreadable::SealBroken { key })?;
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
