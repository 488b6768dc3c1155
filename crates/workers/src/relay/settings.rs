//! How a relay works, and how long it tries.

use std::time::Duration;

use semel_core::outbox::{BATCH_MAX, Lane};
use semel_core::{Nonce, mutant};

use crate::sinks::{About, Dedup, Format};

/// Shortest lease: below it, a busy database alone would make relays take lanes from each other.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest wait a sink can ask for.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(3600);

/// How a relay works. Every field may be changed; [`check`](Settings::check) says what makes no sense.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a lane stays with a relay that says nothing more.
    pub lease: Duration,
    /// So long before the lease ends, by this process's own monotonic clock, nothing more is published.
    pub margin: Duration,
    /// Most messages read, published and saved together.
    pub batch: usize,
    /// Pause between looks at an empty lane, at first; and the shortest time from one look to the next, unless a
    /// batch was full.
    pub poll: Duration,
    /// The same, after a while.
    pub poll_max: Duration,
    /// Pause between rounds of housekeeping.
    pub tend: Duration,
    /// The lanes it works on; all, if `None`.
    pub lanes: Option<Vec<Lane>>,
    /// Lanes it takes at once. More than these it takes only where nobody else did, and offers them
    /// again from time to time. All, if `None`.
    pub share: Option<u16>,
    /// How messages are written.
    pub format: Format,
    /// The source of CloudEvents; by default it names the store.
    pub source: Option<String>,
    /// How long a message is tried.
    pub retry: Retry,
    /// What to do when a message may be tried for longer than its sink recognizes copies.
    pub beyond_dedup: Beyond,
}

/// How long a message is tried, if it is the message that fails and not the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Tries within a batch, before it is set aside.
    pub quick_tries: u32,
    /// The wait after the first time it was set aside. It doubles.
    pub first_wait: Duration,
    /// The longest wait.
    pub wait_max: Duration,
    /// When all waits together would take longer, it is a dead letter.
    pub horizon: Duration,
}

/// What to do when the retry horizon is beyond the sink's window for copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beyond {
    /// Say so in the log, and begin.
    #[default]
    Warn,
    /// Do not begin.
    Refuse,
}

/// How a relay's horizon and its sink's memory fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// No copy comes later than the sink would notice.
    Within,
    /// A copy may come after the sink forgot the first. For people.
    Beyond(String),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            margin: Duration::from_secs(2),
            batch: 1000,
            poll: Duration::from_millis(5),
            poll_max: Duration::from_millis(25),
            tend: Duration::from_millis(500),
            lanes: None,
            share: None,
            format: Format::default(),
            source: None,
            retry: Retry::default(),
            beyond_dedup: Beyond::default(),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            quick_tries: 3,
            first_wait: Duration::from_secs(1),
            wait_max: Duration::from_secs(300),
            horizon: Duration::from_secs(3600),
        }
    }
}

impl Settings {
    /// Every contradiction, one sentence each.
    pub fn check(&self, lanes: u16) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut unless = |good: bool, text: String| {
            if !good {
                wrong.push(text);
            }
        };
        unless(self.lease >= LEASE_MIN, format!("the lease is at least {LEASE_MIN:?}, not {:?}", self.lease));
        unless(
            self.margin < self.lease / 2 && !self.margin.is_zero(),
            format!("the margin is more than nothing and less than half the lease, not {:?}", self.margin),
        );
        unless(
            (1..=BATCH_MAX).contains(&self.batch),
            format!("a batch has 1 to {BATCH_MAX} messages, not {}", self.batch),
        );
        unless(
            !self.poll.is_zero() && self.poll <= self.poll_max,
            format!("the pause between looks grows from {:?} to {:?}", self.poll, self.poll_max),
        );
        unless(self.retry.quick_tries > 0, "a message is tried at least once".into());
        unless(!self.retry.first_wait.is_zero(), "the wait between tries is more than nothing".into());
        let mut chosen = self.lanes.iter().flatten();
        if let Some(lane) = chosen.find(|lane| lane.0 >= lanes) {
            unless(false, format!("there is no lane {}: this outbox has {lanes}, from 0", lane.0));
        }
        unless(self.lanes.as_ref().is_none_or(|chosen| !chosen.is_empty()), "no lane is chosen".into());
        unless(self.share != Some(0), "a relay's share is at least one lane".into());
        wrong
    }

    /// Whether a message may be tried for longer than the sink recognizes copies of it.
    pub fn fit(&self, sink: &About) -> Fit {
        match sink.dedup {
            Dedup::Window(window)
                if self.retry.horizon > window && !mutant::on("relay-horizon-unchecked") =>
            {
                Fit::Beyond(format!(
                    "a message may be tried for {:?}, but {} recognizes copies for {window:?} only: shorten the \
                     retry horizon or lengthen that window, or let receivers tell copies apart by `semel-id`",
                    self.retry.horizon, sink.name
                ))
            }
            Dedup::Exact | Dedup::Window(_) | Dedup::Receiver => Fit::Within,
        }
    }

    /// The lanes to work on.
    pub(super) fn chosen(&self, lanes: u16) -> Vec<Lane> {
        self.lanes.clone().unwrap_or_else(|| (0..lanes).map(Lane).collect())
    }
}

/// What comes after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Set aside for so long.
    Wait(Duration),
    /// Give it up.
    GiveUp,
}

impl Retry {
    /// What comes after a message was set aside `before` times and failed again. `asked` is what the sink
    /// wants; `jitter` lies between 0 and 1.
    pub(super) fn after(&self, before: u32, asked: Option<Duration>, jitter: f64) -> Next {
        let spent = (0..before).fold(Duration::ZERO, |spent, n| spent.saturating_add(self.wait(n)));
        let wait = self.wait(before);
        let asked = asked.unwrap_or_default().min(ASKED_WAIT_MAX);
        if spent.saturating_add(wait.max(asked)) > self.horizon {
            return Next::GiveUp;
        }
        // Between half and all of it, so that the whole never takes longer than the horizon.
        Next::Wait((wait / 2 + (wait / 2).mul_f64(jitter.clamp(0.0, 1.0))).max(asked))
    }

    fn wait(&self, n: u32) -> Duration {
        self.first_wait.saturating_mul(1u32.checked_shl(n).unwrap_or(u32::MAX)).min(self.wait_max)
    }
}

/// A number between 0 and 1.
pub(super) fn jitter() -> f64 {
    let bytes = *Nonce::random().as_bytes();
    f64::from(u16::from_le_bytes([bytes[0], bytes[1]])) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_with_jitter_and_end_at_the_horizon() {
        // G-44
        let retry = Retry { horizon: Duration::from_secs(60), ..Retry::default() };
        let mut spent = Duration::ZERO;
        let mut waits = Vec::new();
        while let Next::Wait(wait) = retry.after(waits.len() as u32, None, 1.0) {
            spent += wait;
            waits.push(wait.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16]);
        assert!(spent <= retry.horizon);
        assert_eq!(retry.after(2, None, 0.0), Next::Wait(Duration::from_secs(2)));
        assert_eq!(retry.after(2, None, 1.0), Next::Wait(Duration::from_secs(4)));
        assert_eq!(retry.after(5, None, 0.0), Next::GiveUp);
    }

    #[test]
    fn a_sink_that_wants_to_be_left_alone_is() {
        let retry = Retry::default();
        let asked = Duration::from_secs(90);
        assert_eq!(retry.after(0, Some(asked), 0.0), Next::Wait(asked));
        assert_eq!(retry.after(0, Some(Duration::from_secs(1_000_000)), 0.0), Next::Wait(ASKED_WAIT_MAX));
    }

    #[test]
    fn a_horizon_beyond_the_sinks_memory_is_noticed() {
        // G-43
        let settings = Settings::default();
        let about = |dedup| About { name: "nats", dedup, attribute_prefix: "ce-" };
        let minutes = |minutes: u64| Dedup::Window(Duration::from_secs(60 * minutes));
        assert!(matches!(settings.fit(&about(minutes(2))), Fit::Beyond(why) if why.contains("120s")));
        assert_eq!(settings.fit(&about(minutes(60))), Fit::Within);
        assert_eq!(settings.fit(&about(Dedup::Exact)), Fit::Within);
    }

    #[test]
    fn nonsense_is_named_all_at_once() {
        assert_eq!(Settings::default().check(8), Vec::<String>::new());
        let nonsense = Settings {
            lease: Duration::from_millis(1),
            batch: 0,
            lanes: Some(vec![Lane(8)]),
            share: Some(0),
            ..Settings::default()
        };
        assert_eq!(nonsense.check(8).len(), 5, "{:?}", nonsense.check(8));
    }
}
