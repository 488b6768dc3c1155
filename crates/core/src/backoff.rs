//! Pauses between tries: growing, bounded, and never in step with others.

use std::time::Duration;

use crate::lease::Nonce;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(2);

/// A growing pause with full jitter, seeded by a nonce.
pub struct Backoff {
    ceiling: Duration,
    random: u64,
}

impl Backoff {
    /// Starts at ten milliseconds.
    pub fn new(seed: Nonce) -> Self {
        let seed = seed.as_bytes()[..8].try_into().map(u64::from_le_bytes).unwrap_or(1);
        Self { ceiling: FIRST, random: seed | 1 }
    }

    /// The next pause: between half and all of a ceiling that doubles each time, two seconds at most.
    pub fn next_pause(&mut self) -> Duration {
        // xorshift64: jitter needs no more.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = self.ceiling / 2;
        let jitter = half.mul_f64((self.random >> 11) as f64 / (1u64 << 53) as f64);
        self.ceiling = (self.ceiling * 2).min(LONGEST);
        half + jitter
    }
}
