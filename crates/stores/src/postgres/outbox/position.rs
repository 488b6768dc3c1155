//! A place in a lane as a sink keeps it: text, so that people can read it where it lies.
//!
//! It is believed only by the next holder of the lane it was made in, and only if exactly one settlement
//! is missing. From a server that lost some of its history, or is another one, it would skip messages:
//! cluster, database, timeline and run must be the same.

use bytes::Bytes;
use semel_core::outbox::{Entry, Position};

use super::cursor::{Batch, Place, PostgresCursor};

const HEAD: &str = "semel outbox postgres 2";

/// What a position says.
pub(super) struct Mark {
    pub(super) place: Place,
    /// Letters that were sent, and their keys.
    pub(super) letters: Vec<i64>,
    pub(super) keys: Vec<String>,
}

impl Mark {
    pub(super) fn write(
        cursor: &PostgresCursor,
        progress: i64,
        place: &Place,
        letters: &[Entry],
    ) -> Position {
        let (batch, last, until) = place
            .batch
            .as_ref()
            .map_or((String::new(), 0, 0), |batch| (batch.snapshot.clone(), batch.last, batch.until));
        let (head, snapshot) = (head(cursor), &place.snapshot);
        let mut text = format!("{head}\n{progress}\n{snapshot}\n{batch}\n{last}\n{until}\n");
        for letter in letters {
            // A key has no control characters, so it ends with the line.
            let key = letter.message.key.as_deref().unwrap_or_default();
            text.push_str(&format!("{} {key}\n", letter.sequence));
        }
        Position(Bytes::from(text))
    }

    /// What a position adds to what is saved; nothing if it cannot be believed, or is not ahead.
    pub(super) fn read(position: &Position, cursor: &PostgresCursor) -> Option<Self> {
        if cursor.home.is_none() || cursor.timeline.is_none() {
            return None;
        }
        let text = std::str::from_utf8(&position.0).ok()?;
        let mut lines = text.strip_prefix(&head(cursor))?.strip_prefix('\n')?.lines();
        let progress: i64 = lines.next()?.parse().ok()?;
        if progress != cursor.progress + 1 {
            return None;
        }
        let snapshot = lines.next()?.to_owned();
        let batch = lines.next()?.to_owned();
        let (last, until) = (lines.next()?.parse().ok()?, lines.next()?.parse().ok()?);
        let batch = (!batch.is_empty()).then_some(Batch { snapshot: batch, last, until });
        let (mut letters, mut keys) = (Vec::new(), Vec::new());
        for line in lines {
            let (sequence, key) = line.split_once(' ')?;
            letters.push(sequence.parse().ok()?);
            keys.extend((!key.is_empty()).then(|| key.to_owned()));
        }
        Some(Self { place: Place { snapshot, batch }, letters, keys })
    }
}

/// What must be the same for whoever reads it.
fn head(cursor: &PostgresCursor) -> String {
    let store: String = cursor.desk.store_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (home, timeline) = (cursor.home.as_deref(), cursor.timeline.as_deref());
    let (home, timeline) = (home.unwrap_or("-"), timeline.unwrap_or("-"));
    format!("{HEAD}\n{store} {home} {timeline} {} {}", cursor.run, cursor.lane)
}
