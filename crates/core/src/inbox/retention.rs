//! How long the ledger must remember: longer than anybody can deliver again (G-46).

use std::time::Duration;

use crate::mutant;

/// For how long after its first delivery a message may be delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// No longer than this.
    Within(Duration),
    /// The source keeps messages without a limit of age, so it cannot tell.
    Unbounded,
}

/// How long things are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Ledger rows.
    pub ledger: Duration,
    /// Dead letters of producers and brokers, which may be published again as long as they are there.
    pub dead_letters: Duration,
    /// What an operator says about redeliveries. What the source itself says counts if it is longer.
    pub redelivery: Option<Duration>,
}

impl Default for Retention {
    /// Fifteen days for the ledger, seven for dead letters, and what the source says.
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self { ledger: 15 * day, dead_letters: 7 * day, redelivery: None }
    }
}

impl Retention {
    /// Refuses a ledger that would forget a message that can still come again.
    pub fn check(&self, source: Horizon) -> Result<(), TooShort> {
        if mutant::on("inbox-retention-unchecked") {
            return Ok(());
        }
        let redelivery = match (self.redelivery, source) {
            (Some(said), Horizon::Within(known)) => said.max(known),
            (Some(said), Horizon::Unbounded) => said,
            (None, Horizon::Within(known)) => known,
            (None, Horizon::Unbounded) => return Err(TooShort::Unbounded),
        };
        let (ledger, dead_letters) = (self.ledger, self.dead_letters);
        if ledger <= redelivery.saturating_add(dead_letters) {
            return Err(TooShort::Ledger { ledger, redelivery, dead_letters });
        }
        Ok(())
    }
}

/// Why a consumer does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooShort {
    /// It would forget too soon.
    #[error(
        "the ledger would forget a message after {ledger:?}, but it can be delivered again for {redelivery:?}, \
         and for {dead_letters:?} more out of dead letters: keep the ledger longer than both together"
    )]
    Ledger {
        /// How long the ledger remembers.
        ledger: Duration,
        /// How long the source delivers again.
        redelivery: Duration,
        /// How long dead letters are kept.
        dead_letters: Duration,
    },
    /// Nobody knows how long.
    #[error(
        "the source keeps messages without a limit of age, so they can be delivered again for ever: \
         give it a limit, or say how long after its first delivery a message can come again"
    )]
    Unbounded,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_ledger_that_forgets_before_the_last_redelivery_is_refused_with_a_sentence() {
        // G-46
        let kept = |ledger, dead_letters| Retention { ledger, dead_letters, redelivery: None };
        assert_eq!(kept(9 * DAY, DAY).check(Horizon::Within(7 * DAY)), Ok(()));
        let short = kept(8 * DAY, DAY).check(Horizon::Within(7 * DAY)).unwrap_err();
        assert!(short.to_string().contains("keep the ledger longer"), "{short}");
        assert_eq!(kept(9 * DAY, DAY).check(Horizon::Unbounded), Err(TooShort::Unbounded));
        let said = Retention { redelivery: Some(DAY), ..kept(3 * DAY, DAY) };
        assert_eq!(said.check(Horizon::Unbounded), Ok(()));
        assert!(Retention { redelivery: Some(2 * DAY), ..said }.check(Horizon::Unbounded).is_err());
        assert!(said.check(Horizon::Within(7 * DAY)).is_err(), "the source knows better");
        assert_eq!(Retention::default().check(Horizon::Within(7 * DAY)), Ok(()), "Kafka's default");
    }
}
