//! How far a cursor will have come, as bytes a sink can keep.
//!
//! Every message is named, by number and id. A range of numbers would not do: whoever commits late may lie in
//! it, and has not landed. The id tells numbers apart that a restored database gave again.
//!
//! The same message may have another fate in a restored database: what was set aside waits again, before it. So the whole
//! has the epoch of the holding it was made under, which tells what is from before a rebase, and the number of saves, which
//! tells whether the database was restored and nobody noticed.

use bytes::Bytes;
use semel_core::error::{Error, Kind};
use semel_core::message::MessageId;
use semel_core::outbox::Position;

const FORMAT: u8 = 2;
/// As before, without an epoch and saves.
const FORMAT_WITHOUT_EPOCH: u8 = 1;

/// What has landed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Landed {
    /// The holding under which it was published; 0 if the position does not say.
    pub(super) epoch: u64,
    /// How many saves the lane had seen then; 0 if the position does not say. A lane never sees fewer later.
    pub(super) saves: u64,
    pub(super) messages: Vec<Named>,
}

/// One message that has landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) sequence: u64,
    pub(super) id: MessageId,
    /// For a letter: how often it had been tried before.
    pub(super) tries: Option<u32>,
}

impl Landed {
    pub(super) fn encode(&self) -> Position {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend(self.saves.to_be_bytes());
        for Named { sequence, id, tries } in &self.messages {
            bytes.push(u8::from(tries.is_some()));
            bytes.extend(sequence.to_be_bytes());
            bytes.extend(id.as_bytes());
            bytes.extend(tries.map(u32::to_be_bytes).into_iter().flatten());
        }
        Position(Bytes::from(bytes))
    }

    pub(super) fn decode(position: &Position) -> Result<Self, Error> {
        let parse = || {
            let mut bytes = &*position.0;
            let (epoch, saves) = match take(&mut bytes)? {
                [FORMAT] => (u64::from_be_bytes(take(&mut bytes)?), u64::from_be_bytes(take(&mut bytes)?)),
                [FORMAT_WITHOUT_EPOCH] => (0, 0),
                [_] => return None,
            };
            let mut landed = Self { epoch, saves, messages: Vec::new() };
            while let Some((kind, rest)) = bytes.split_first() {
                bytes = rest;
                let sequence = u64::from_be_bytes(take(&mut bytes)?);
                let id = MessageId::from_bytes(take(&mut bytes)?);
                let tries = match kind {
                    0 => None,
                    1 => Some(u32::from_be_bytes(take(&mut bytes)?)),
                    _ => return None,
                };
                landed.messages.push(Named { sequence, id, tries });
            }
            Some(landed)
        };
        parse().ok_or_else(|| {
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

    fn some() -> Landed {
        let id = MessageId::new();
        let messages =
            vec![Named { sequence: 7, id, tries: None }, Named { sequence: 3, id, tries: Some(2) }];
        Landed { epoch: 4, saves: 6, messages }
    }

    #[test]
    fn a_position_comes_back_as_it_was_kept_and_others_are_refused() {
        let landed = some();
        let kept = landed.encode();
        assert_eq!(Landed::decode(&kept).unwrap(), landed);
        for cut in 0..kept.0.len() {
            let decoded = Landed::decode(&Position(kept.0.slice(..cut)));
            assert!(decoded.is_err() || cut == 17 || cut == 42, "cut at {cut}");
        }
        assert!(Landed::decode(&Position(vec![9; 42].into())).is_err());
    }

    #[test]
    fn a_position_that_an_older_relay_kept_is_read_and_has_no_epoch() {
        let landed = some();
        let old = [&[FORMAT_WITHOUT_EPOCH][..], &landed.encode().0[17..]].concat();
        let decoded = Landed::decode(&Position(old.into())).unwrap();
        assert_eq!(decoded, Landed { epoch: 0, saves: 0, ..landed });
    }
}
