//! A lease is the right to run an effect until a deadline.
//!
//! It does not stop its holder: a paused process wakes up and goes on. What stops a stale holder
//! is the store, which compares token and nonce before it believes anything.

use std::fmt;
use std::time::Duration;

use crate::OperationId;
use crate::clock::Timestamp;

/// The number a store gives an attempt. Later attempts of an operation have larger ones, always:
/// release, purge and expiry do not restart the count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The random id a caller gives an attempt before the store hears of it.
///
/// It makes every write repeatable: a write that finds its own nonce already there has happened.
// Aligned, so that it is copied in whole words wherever it lies among other fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(8))]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// A new random nonce, from a cryptographic generator that the operating system seeds. Asking
    /// the operating system each time would cost more than all the rest of a replay. The time is mixed
    /// in, to the nanosecond: a forked child and a copy of a running virtual machine go on with the same
    /// generator, and must not repeat what it gave.
    ///
    /// # Panics
    /// When the operating system has no randomness to seed with. Going on with a guessable nonce
    /// would let two attempts pass for one.
    pub fn random() -> Self {
        let random: u128 = rand::random();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self((random ^ since.map_or(0, |since| since.as_nanos())).to_ne_bytes())
    }

    /// Takes back what a store kept.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The raw bytes, as stores keep them.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::codec::write_hex(f, &self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({self})")
    }
}

/// Who is writing: the attempt that holds, or held, the lease of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The operation.
    pub operation: OperationId,
    /// The attempt's token.
    pub token: Token,
    /// The attempt's nonce.
    pub nonce: Nonce,
}

/// A granted claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub holder: Holder,
    /// Which attempt at the operation this is, from 1.
    pub attempt: u32,
    /// When it lapses, on the store's clock.
    pub until: Timestamp,
    /// How long it was granted for. Count it on a monotonic clock from *before* the claim was sent.
    pub granted: Duration,
}
