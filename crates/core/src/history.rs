//! What happened to an operation beyond the plain claim and completion: kept with the record,
//! bounded, and shown to people who must decide.
//!
//! The plain path writes nothing here; its times are fields of the record.

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::codec::{Reader, Truncated, Writer};
use crate::lease::{Holder, Nonce, Token};

/// Most events kept per operation; beyond it the oldest plain event goes, and is counted.
pub const EVENTS_MAX: usize = 32;
/// Most refused outcomes kept whole per operation.
pub const EVIDENCE_MAX: usize = 4;
/// Longest name or note kept with an event, in bytes.
pub const NOTE_BYTES_MAX: usize = 512;

const VERSION: u8 = 1;

/// What an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// The lease passed with no outcome; the record became unknown.
    Lapsed = 1,
    /// A later attempt took over a lapsed lease (`rerun`).
    TakenOver = 2,
    /// The holder itself reported that it cannot tell.
    ReportedUnknown = 3,
    /// The holder reported that nothing happened.
    Released = 4,
    /// A later attempt claimed a released record.
    Reclaimed = 5,
    /// The newest attempt answered after all, and its outcome was taken.
    LateOutcome = 6,
    /// An outcome came from an attempt that no longer counts: possibly a second effect.
    RefusedOutcome = 7,
    /// Settled as done.
    SettledDone = 8,
    /// Settled as never happened.
    SettledNever = 9,
    /// The body was purged.
    Purged = 10,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::*;
        [
            Lapsed,
            TakenOver,
            ReportedUnknown,
            Released,
            Reclaimed,
            LateOutcome,
            RefusedOutcome,
            SettledDone,
            SettledNever,
            Purged,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// One entry of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, on the store's clock.
    pub at: Timestamp,
    /// What.
    pub kind: Kind,
    /// The attempt it speaks of.
    pub token: Token,
    /// That attempt's nonce, or the nonce of the settling or purging call.
    pub nonce: Nonce,
    /// Who did it, for settlements and purges; why, where somebody said.
    pub note: String,
    /// The refused outcome itself, sealed as it came.
    pub evidence: Option<Bytes>,
}

/// The bounded list of events of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct History {
    events: Vec<Event>,
    dropped: u32,
}

impl History {
    /// The events, oldest first.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many events were dropped to keep the bound.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    /// Whether an attempt that no longer counted brought an outcome: a possible double effect.
    pub fn possible_double_effect(&self) -> bool {
        self.events.iter().any(|event| event.kind == Kind::RefusedOutcome)
    }

    /// The outcome this attempt brought when it no longer counted.
    pub(crate) fn refused(&self, holder: &Holder) -> Option<&Event> {
        let of = |event: &&Event| event.token == holder.token && event.nonce == holder.nonce;
        self.events.iter().filter(|event| event.kind == Kind::RefusedOutcome).find(of)
    }

    pub(crate) fn push(&mut self, mut event: Event) {
        event.note.truncate(event.note.floor_char_boundary(NOTE_BYTES_MAX));
        let kept = self.events.iter().filter(|event| event.evidence.is_some()).count();
        if kept >= EVIDENCE_MAX {
            event.evidence = None;
        }
        if self.events.len() >= EVENTS_MAX {
            // Plain events go first: an operator will need the evidence, and the mark that there was some.
            let plain = |event: &Event| event.kind != Kind::RefusedOutcome && event.evidence.is_none();
            let victim = self.events.iter().position(plain).unwrap_or(0);
            self.events.remove(victim);
            self.dropped = self.dropped.saturating_add(1);
        }
        self.events.push(event);
    }

    pub(crate) fn drop_evidence(&mut self) {
        self.events.iter_mut().for_each(|event| event.evidence = None);
    }

    pub(crate) fn has_evidence(&self) -> bool {
        self.events.iter().any(|event| event.evidence.is_some())
    }

    /// Bytes for a store's column; nothing for an empty history.
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.events.is_empty() && self.dropped == 0 {
            return None;
        }
        let mut out = Writer::default();
        out.byte(VERSION);
        out.number(u64::from(self.dropped));
        out.number(self.events.len() as u64);
        for event in &self.events {
            out.byte(event.kind as u8);
            out.0.extend_from_slice(&event.at.as_micros().to_be_bytes());
            out.number(event.token.0);
            out.0.extend_from_slice(event.nonce.as_bytes());
            out.bytes(event.note.as_bytes());
            out.byte(u8::from(event.evidence.is_some()));
            if let Some(evidence) = &event.evidence {
                out.bytes(evidence);
            }
        }
        Some(out.0)
    }

    /// Reads a store's column back.
    pub fn decode(stored: Option<&[u8]>) -> Result<Self, Damaged> {
        let Some(stored) = stored else { return Ok(Self::default()) };
        let mut input = Reader(stored);
        match input.byte() {
            Ok(VERSION) => {}
            Ok(found) if found > VERSION => return Err(Damaged::NewerVersion { found }),
            _ => return Err(Damaged::Truncated),
        }
        read(&mut input).map_err(|Truncated| Damaged::Truncated)
    }
}

/// A history that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damaged {
    /// Written by a newer Semel.
    #[error("the history was written in format {found}; this build reads up to {VERSION}: upgrade it")]
    NewerVersion {
        /// The version found.
        found: u8,
    },
    /// The bytes end early or are not a history.
    #[error("the stored history is damaged or truncated")]
    Truncated,
}

fn read(input: &mut Reader<'_>) -> Result<History, Truncated> {
    let dropped = u32::try_from(input.number()?).map_err(|_| Truncated)?;
    let count = input.number()?;
    if count > 4 * EVENTS_MAX as u64 {
        return Err(Truncated);
    }
    let mut events = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let kind = Kind::from_byte(input.byte()?).ok_or(Truncated)?;
        let at = i64::from_be_bytes(input.take(8)?.try_into().map_err(|_| Truncated)?);
        let token = Token(input.number()?);
        let nonce = Nonce::from_bytes(input.take(16)?.try_into().map_err(|_| Truncated)?);
        let note = String::from_utf8(input.bytes()?.to_vec()).map_err(|_| Truncated)?;
        let evidence = match input.byte()? {
            0 => None,
            _ => Some(Bytes::copy_from_slice(input.bytes()?)),
        };
        events.push(Event { at: Timestamp::from_micros(at), kind, token, nonce, note, evidence });
    }
    if input.0.is_empty() { Ok(History { events, dropped }) } else { Err(Truncated) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, evidence: Option<&'static str>) -> Event {
        Event {
            at: Timestamp::from_micros(-5),
            kind,
            token: Token(9),
            nonce: Nonce::from_bytes([3; 16]),
            note: "by ops: seen at the bank".into(),
            evidence: evidence.map(Bytes::from),
        }
    }

    #[test]
    fn a_history_comes_back_and_a_cut_one_is_an_error() {
        let mut history = History::default();
        assert_eq!(history.encode(), None);
        history.push(event(Kind::Lapsed, None));
        history.push(event(Kind::RefusedOutcome, Some("body")));
        let stored = history.encode().unwrap();
        assert_eq!(History::decode(Some(&stored)), Ok(history));
        for cut in 0..stored.len() {
            assert_eq!(History::decode(Some(&stored[..cut])), Err(Damaged::Truncated));
        }
        let newer = [&[VERSION + 1], &stored[1..]].concat();
        assert_eq!(History::decode(Some(&newer)), Err(Damaged::NewerVersion { found: VERSION + 1 }));
    }

    #[test]
    fn a_history_is_bounded_and_evidence_outlives_plain_events() {
        let mut history = History::default();
        history.push(event(Kind::RefusedOutcome, Some("first")));
        for _ in 0..100 {
            history.push(event(Kind::TakenOver, None));
        }
        for _ in 0..EVIDENCE_MAX + 3 {
            history.push(event(Kind::RefusedOutcome, Some("more")));
        }
        assert_eq!(history.events().len(), EVENTS_MAX);
        assert_eq!(history.dropped(), 101 + EVIDENCE_MAX as u32 + 3 - EVENTS_MAX as u32);
        assert_eq!(history.events()[0].evidence, Some("first".into()));
        assert_eq!(history.events().iter().filter(|e| e.evidence.is_some()).count(), EVIDENCE_MAX);
    }
}
