//! How far a cursor will have come, as bytes a sink can keep.
//!
//! Every message is named, by number and id. A range of numbers would not do: whoever commits late may lie in
//! it, and has not landed. The id tells numbers apart that a restored database gave again.

use bytes::Bytes;
use semel_core::error::{Error, Kind};
use semel_core::message::MessageId;
use semel_core::outbox::Position;

const FORMAT: u8 = 1;

/// One message that has landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Landed {
    pub(super) sequence: u64,
    pub(super) id: MessageId,
    /// For a letter: how often it had been tried before.
    pub(super) tries: Option<u32>,
}

pub(super) fn encode(landed: impl Iterator<Item = Landed>) -> Position {
    let mut bytes = vec![FORMAT];
    for Landed { sequence, id, tries } in landed {
        bytes.push(u8::from(tries.is_some()));
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(id.as_bytes());
        bytes.extend(tries.map(u32::to_be_bytes).into_iter().flatten());
    }
    Position(Bytes::from(bytes))
}

pub(super) fn decode(position: &Position) -> Result<Vec<Landed>, Error> {
    let parse = || {
        let (format, mut bytes) = position.0.split_first()?;
        let mut landed = Vec::new();
        while let Some((kind, rest)) = bytes.split_first() {
            bytes = rest;
            let sequence = u64::from_be_bytes(take(&mut bytes)?);
            let id = MessageId::from_bytes(take(&mut bytes)?);
            let tries = match kind {
                0 => None,
                1 => Some(u32::from_be_bytes(take(&mut bytes)?)),
                _ => return None,
            };
            landed.push(Landed { sequence, id, tries });
        }
        (*format == FORMAT).then_some(landed)
    };
    parse().ok_or_else(|| {
        let text = "the position a sink has kept is none of this outbox; check that the sink belongs to it";
        Error::new(Kind::Misconfigured, text)
    })
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
        let all = [Landed { sequence: 7, id, tries: None }, Landed { sequence: 3, id, tries: Some(2) }];
        let kept = encode(all.into_iter());
        assert_eq!(decode(&kept).unwrap(), all);
        for cut in 0..kept.0.len() {
            let decoded = decode(&Position(kept.0.slice(..cut)));
            assert!(decoded.is_err() || cut == 1 || cut == 26, "cut at {cut}");
        }
        assert!(decode(&Position(vec![9; 26].into())).is_err());
    }
}
