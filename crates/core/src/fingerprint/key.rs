use std::fmt;

use siphasher::sip::SipHasher13;

use super::canonical::Canonical;
use super::error::Error;
use super::paths::{Paths, Print};
use crate::digest::Mac;

/// One secret key for fingerprints, with the version that stored prints carry.
///
/// `Debug` hides the secret.
#[derive(Clone)]
pub struct HashKey {
    /// Recorded with every print made under this key.
    pub version: u32,
    secret: [u8; 32],
}

impl HashKey {
    /// A key from bytes that were kept somewhere.
    pub fn new(version: u32, secret: [u8; 32]) -> Self {
        Self { version, secret }
    }

    /// A new key from the operating system's randomness.
    pub fn generate(version: u32) -> Result<Self, Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(Error::Random)?;
        Ok(Self { version, secret })
    }

    /// The secret bytes, for whoever keeps the key.
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashKey").field("version", &self.version).finish_non_exhaustive()
    }
}

/// A key made ready: the HMAC state after its key block, and the two SipHash keys derived from the secret.
pub(super) struct Keyed {
    pub(super) version: u32,
    mac: Mac,
    path: SipHasher13,
    value: SipHasher13,
}

impl Keyed {
    pub(super) fn new(key: &HashKey) -> Self {
        let mac = Mac::new(&key.secret);
        Self {
            version: key.version,
            path: SipHasher13::new_with_key(&derive(&mac, b"semel path digest 2")),
            value: SipHasher13::new_with_key(&derive(&mac, b"semel value digest 3")),
            mac,
        }
    }

    /// The digest of a leaf's path.
    pub(super) fn path(&self, path: &[u8]) -> u64 {
        self.path.hash(path)
    }

    /// A print of a request whose leaves' paths have these digests.
    pub(super) fn print(&self, canonical: &Canonical, path_digests: &[u64]) -> Print {
        let mut paths = Paths::with_capacity(path_digests.len(), canonical.is_truncated());
        for (value, &path) in canonical.values().zip(path_digests) {
            // The half of the path's digest that nobody sees is mixed in, so that equal values in two places do
            // not show as equal digests.
            paths.push(low_half(path), low_half(self.value.hash(value) ^ path >> 32));
        }
        Print { version: self.version, digest: self.mac.of(canonical.bytes()), paths: paths.into() }
    }
}

fn derive(mac: &Mac, purpose: &[u8]) -> [u8; 16] {
    let derived = mac.of(purpose);
    let mut key = [0; 16];
    key.copy_from_slice(&derived[..16]);
    key
}

fn low_half(digest: u64) -> u32 {
    (digest & u64::from(u32::MAX)) as u32
}
