//! Who spent the processors' time while something was measured.

use std::fmt;

use anyhow::Result;

/// The clock in which the system counts it.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time so far, of everything on this machine that takes part.
#[derive(Clone, Copy, Default)]
pub(super) struct Budget {
    own: f64,
    postgres: f64,
    broker: f64,
}

impl Budget {
    pub(super) fn now() -> Result<Self> {
        let mut spent = Self::default();
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            let is_process =
                entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
            // Processes come and go.
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some((head, rest)) = stat.rsplit_once(')').filter(|_| is_process) else { continue };
            let ticks = |at: usize| rest.split_whitespace().nth(at).and_then(|text| text.parse::<f64>().ok());
            let seconds = (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / TICKS_PER_SECOND;
            let own = entry.file_name().to_str() == Some(&std::process::id().to_string());
            match head.split_once('(').map(|(_, name)| name) {
                _ if own => spent.own += seconds,
                Some("postgres") => spent.postgres += seconds,
                Some("nats-server" | "java") => spent.broker += seconds,
                _ => {}
            }
        }
        Ok(spent)
    }

    /// Microseconds a message since then, if there were so many.
    pub(super) fn since(self, before: Self, messages: u64) -> Each {
        let each = |now: f64, then: f64| (now - then).max(0.0) * 1e6 / messages.max(1) as f64;
        Each {
            own: each(self.own, before.own),
            postgres: each(self.postgres, before.postgres),
            broker: each(self.broker, before.broker),
        }
    }
}

/// Processor time of one message, in microseconds.
#[derive(Clone, Copy)]
pub(super) struct Each {
    own: f64,
    postgres: f64,
    broker: f64,
}

impl fmt::Display for Each {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, postgres, broker } = self;
        write!(f, "writers and relay {own:.1} µs, PostgreSQL {postgres:.1} µs, broker {broker:.1} µs")
    }
}
