//! SHA-256, alone and keyed.
//!
//! By ring: its assembly is half again as fast as portable code where the processor has no instructions for
//! SHA, and hashing is most of what an operation costs before it is stored.

use ring::{digest, hmac};

/// Of one run of bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    sized(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// HMAC-SHA-256 under one key, which was hashed beforehand.
#[derive(Clone)]
pub(crate) struct Mac(hmac::Key);

impl Mac {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    pub(crate) fn of(&self, bytes: &[u8]) -> [u8; 32] {
        sized(hmac::sign(&self.0, bytes).as_ref())
    }
}

fn sized(digest: &[u8]) -> [u8; 32] {
    digest.try_into().expect("a digest of SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_the_standards_say() {
        // FIPS 180-4, "abc"; RFC 4231, test case 2.
        assert!(hex(sha256(b"abc")).starts_with("ba7816bf8f01cfea"));
        assert!(hex(Mac::new(b"Jefe").of(b"what do ya want for nothing?")).starts_with("5bdcc146bf60754e"));
    }

    fn hex(digest: [u8; 32]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
