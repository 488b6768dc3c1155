//! How far a cursor will have come, as bytes a sink can keep.
//!
//! Each message is named by number and id, and the whole by the epoch of the holding it was made under. A restored
//! database gives numbers again, to other messages, and the same ones may have another fate: what was set aside is
//! waiting again. The epoch tells which positions are from before a rebase; the id and the number of saves, whether the
//! database was restored and nobody noticed.

use bytes::Bytes;
use semel_core::error::{Error, Kind};
use semel_core::message::MessageId;
use semel_core::outbox::Position;
use sha2::{Digest, Sha256};

const FORMAT: u8 = 3;
/// As before, without what it covers.
const FORMAT_WITHOUT_DIGEST: u8 = 2;
/// As before, without an epoch and saves.
const FORMAT_WITHOUT_EPOCH: u8 = 1;

/// What has landed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Landed {
    /// The holding under which it was published; 0 if the position does not say.
    pub(super) epoch: u64,
    /// How many saves the lane had seen then, at least, and had on disk; 0 if the position does not say. A lane never
    /// sees fewer later.
    pub(super) saves: u64,
    /// The last that came from the outbox itself; with it, all before it.
    pub(super) last: Option<(u64, MessageId)>,
    /// Which ones those are, if the position says.
    pub(super) covers: Option<Covers>,
    /// Letters that were read again, with the number of tries they had then.
    pub(super) letters: Vec<(u64, MessageId, u32)>,
}

/// Messages of a lane, one after the other: above a number, and a digest of their numbers and ids. Their last alone would
/// not tell: whoever does its work again after a restore may give a message its old id and, by chance, its old number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Covers {
    pub(super) above: u64,
    digest: [u8; 16],
}

impl Covers {
    pub(super) fn of<'a>(above: u64, messages: impl Iterator<Item = (&'a u64, &'a MessageId)>) -> Self {
        let mut hash = Sha256::new();
        for (sequence, id) in messages {
            hash.update(sequence.to_be_bytes());
            hash.update(id.as_bytes());
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.finalize()[..16]);
        Self { above, digest }
    }
}

impl Landed {
    pub(super) fn encode(&self) -> Position {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend(self.saves.to_be_bytes());
        let Covers { above, digest } = self.covers.unwrap_or(Covers { above: u64::MAX, digest: [0; 16] });
        bytes.extend(above.to_be_bytes());
        bytes.extend(digest);
        let (sequence, id) = self.last.unwrap_or((0, MessageId::from_bytes([0; 16])));
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(id.as_bytes());
        bytes.extend((self.letters.len() as u32).to_be_bytes());
        for (sequence, id, tries) in &self.letters {
            bytes.extend(sequence.to_be_bytes());
            bytes.extend(id.as_bytes());
            bytes.extend(tries.to_be_bytes());
        }
        Position(Bytes::from(bytes))
    }

    pub(super) fn decode(position: &Position) -> Result<Self, Error> {
        let mut bytes = &*position.0;
        let read = |bytes: &mut &[u8]| {
            let sequence = u64::from_be_bytes(take(bytes)?);
            Some((sequence, MessageId::from_bytes(take(bytes)?)))
        };
        let parse = |bytes: &mut &[u8]| {
            let [format] = take(bytes)?;
            let number = |bytes: &mut &[u8]| Some(u64::from_be_bytes(take(bytes)?));
            let (epoch, saves) = match format {
                FORMAT | FORMAT_WITHOUT_DIGEST => (number(bytes)?, number(bytes)?),
                FORMAT_WITHOUT_EPOCH => (0, 0),
                _ => return None,
            };
            let covers = match format {
                FORMAT => Some(Covers { above: number(bytes)?, digest: take(bytes)? }),
                _ => None,
            };
            let covers = covers.filter(|covers| covers.above < u64::MAX);
            let (sequence, id) = read(bytes)?;
            let last = (sequence > 0).then_some((sequence, id));
            let mut landed = Self { epoch, saves, last, covers, letters: Vec::new() };
            let letters = u32::from_be_bytes(take(bytes)?);
            for _ in 0..letters {
                let (sequence, id) = read(bytes)?;
                landed.letters.push((sequence, id, u32::from_be_bytes(take(bytes)?)));
            }
            bytes.is_empty().then_some(landed)
        };
        parse(&mut bytes).ok_or_else(|| {
            let text =
                "the position a sink has kept is none of this outbox; check that the sink belongs to it";
            Error::new(Kind::Misconfigured, text)
        })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_as_it_was_kept_and_others_are_refused() {
        let id = MessageId::new();
        let covers = Some(Covers::of(6, [(&7, &id)].into_iter()));
        let some = [
            Landed::default(),
            Landed { epoch: 4, saves: 6, last: Some((7, id)), covers, letters: Vec::new() },
            Landed { epoch: 5, covers, letters: vec![(3, id, 2), (9, id, 0)], ..Landed::default() },
        ];
        for landed in some {
            let kept = landed.encode();
            assert_eq!(Landed::decode(&kept).unwrap(), landed);
            for cut in 0..kept.0.len() {
                let decoded = Landed::decode(&Position(kept.0.slice(..cut)));
                assert!(decoded.is_err(), "cut at {cut}");
            }
        }
        assert!(Landed::decode(&Position(vec![9; 45].into())).is_err());
    }

    #[test]
    fn a_position_that_an_older_relay_kept_is_read_and_says_less() {
        let id = MessageId::new();
        let landed = Landed { epoch: 4, saves: 6, last: Some((7, id)), ..Landed::default() };
        let kept = landed.encode();
        let rest = &kept.0[41..];
        let old = |format: u8, head: &[u8]| Position([&[format][..], head, rest].concat().into());
        assert_eq!(Landed::decode(&old(FORMAT_WITHOUT_DIGEST, &kept.0[1..17])).unwrap(), landed);
        let decoded = Landed::decode(&old(FORMAT_WITHOUT_EPOCH, &[])).unwrap();
        assert_eq!(decoded, Landed { epoch: 0, saves: 0, ..landed });
    }
}
