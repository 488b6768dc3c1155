//! What a relay reads: letters that may go, and what waits.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::mutant;
use semel_core::outbox::{Aside, Entry, Lane};

use super::super::connect::Live;
use super::super::fault::Fault;
use super::super::row::{bytes, int};
use super::super::sql::{ROWS_MAX, each, fill};
use super::row::{self, number, signed};
use super::{Desk, sql};

/// A batch ends when its payloads have so many bytes.
const BATCH_BYTES_MAX: u64 = 16 << 20;

/// An entry of a batch, and where it came from.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) entry: Entry,
    pub(super) source: Source,
}

/// Where an entry was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Among those that wait.
    Outbox,
    /// Among those set aside.
    Aside,
}

/// What a cursor wants to read.
pub(super) struct Wish<'a> {
    pub(super) lane: Lane,
    pub(super) from: u64,
    pub(super) room: usize,
    /// Whether letters may come too: not after anything of their key.
    pub(super) letters: bool,
    /// Numbers it has already.
    pub(super) known: &'a BTreeSet<u64>,
}

/// What there was.
#[derive(Default)]
pub(super) struct Read {
    pub(super) items: Vec<Item>,
    /// The lowest number that waits.
    pub(super) first: Option<u64>,
    /// The highest number that was read; nothing that waited below it was left out.
    pub(super) last: Option<u64>,
}

/// A number and how many bytes its payload has.
type Sized = (u64, u64);

/// The next of a lane. Letters get at most half of the room, so that neither holds the other up.
///
/// Statements read one after the other. Nobody but the lane's holder sets anything aside, and an operator only
/// sets free; so whatever happens in between, nothing overtakes a letter of its key.
pub(super) async fn read(desk: &Desk, live: &mut Live, wish: &Wish<'_>) -> Result<Read, Fault> {
    let (lane, clock, room) = (wish.lane.0, desk.clock(), wish.room);
    let look = room + wish.known.len();
    let values = vec![
        lane.into(),
        signed(wish.from).into(),
        look.into(),
        lane.into(),
        clock.into(),
        lane.into(),
        clock.into(),
    ];
    let (mut waiting, mut due): (Vec<Sized>, bool) = (Vec::new(), false);
    for row in &live.ask(sql::LOOK, values).await?.rows {
        match int(row, 0)? {
            0 => waiting.push((number(row, 1)?, number(row, 2)?)),
            _ => due = true,
        }
    }
    waiting.sort_unstable();
    let first = waiting.first().map(|(sequence, _)| *sequence);
    let mut items = match due && wish.letters {
        true => letters(desk, live, wish.lane, room.div_ceil(2)).await?,
        false => Vec::new(),
    };
    let fresh = waiting.into_iter().filter(|(sequence, _)| !wish.known.contains(sequence));
    let wanted = within_bytes(fresh.take(room - items.len()));
    let last = wanted.last().copied();
    if let (Some(low), Some(high)) = (wanted.first(), last) {
        let wanted: BTreeSet<u64> = wanted.iter().copied().collect();
        let values = vec![lane.into(), signed(*low).into(), signed(high).into()];
        for found in live.ask(&sql::read(), values).await?.rows {
            let (_, entry) = row::waiting(found)?;
            // Whoever has committed since the look comes with the next.
            if wanted.contains(&entry.sequence) {
                items.push(Item { entry, source: Source::Outbox });
            }
        }
    }
    Ok(Read { items, first, last })
}

/// As many as have not too many bytes together; one in any case.
fn within_bytes(sized: impl Iterator<Item = Sized>) -> Vec<u64> {
    let mut bytes = 0;
    let mut numbers = Vec::new();
    for (number, size) in sized {
        bytes += size;
        if bytes > BATCH_BYTES_MAX && !numbers.is_empty() {
            break;
        }
        numbers.push(number);
    }
    numbers
}

/// Letters that may go, each key's in order and without a gap.
async fn letters(desk: &Desk, live: &mut Live, lane: Lane, room: usize) -> Result<Vec<Item>, Fault> {
    let clock = desk.clock();
    let keys = live.ask(sql::READY_KEYS, vec![lane.0.into(), clock.into(), room.into()]).await?.rows;
    let keys: Vec<Vec<u8>> =
        keys.iter().map(|row| bytes(row, 0).map(<[u8]>::to_vec)).collect::<Result<_, _>>()?;
    let mut chosen: Vec<Sized> = Vec::new();
    for keys in keys.chunks(ROWS_MAX) {
        if chosen.len() >= room {
            break;
        }
        let mut values = vec![clock.into(), lane.0.into()];
        values.extend(filled(keys).map(Into::into));
        values.push((room - chosen.len()).into());
        let rows = live.ask(&each(sql::LETTERS_OF_KEYS, fill(keys.len())), values).await?.rows;
        let mut stopped: Option<&[u8]> = None;
        for row in &rows {
            let key = bytes(row, 0)?;
            let may_go = match u8::try_from(int(row, 3)?).ok().and_then(Aside::from_byte) {
                Some(Aside::Behind) => true,
                Some(Aside::Later) => int(row, 4)? != 0,
                _ => mutant::on("my-outbox-dead-goes-on"),
            };
            match may_go && stopped != Some(key) {
                true => chosen.push((number(row, 1)?, number(row, 2)?)),
                false => stopped = Some(key),
            }
        }
    }
    let alone = vec![lane.0.into(), clock.into(), room.saturating_sub(chosen.len()).into()];
    for row in &live.ask(sql::READY_ALONE, alone).await?.rows {
        chosen.push((number(row, 0)?, number(row, 1)?));
    }
    let chosen = within_bytes(chosen.into_iter());
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let rows = live.ask(sql::READ_LETTERS, vec![sql::list(chosen.iter().copied()).into()]).await?.rows;
    let mut found = BTreeMap::new();
    for row in rows {
        let letter = row::letter(row)?;
        let entry = Entry { behind: false, ..letter.entry };
        found.insert(entry.sequence, Item { entry, source: Source::Aside });
    }
    Ok(chosen.iter().filter_map(|sequence| found.remove(sequence)).collect())
}

/// Keys, filled up to a number statements are prepared for.
pub(super) fn filled<T: AsRef<[u8]>>(keys: &[T]) -> impl Iterator<Item = &[u8]> {
    let last = keys.last().into_iter().cycle();
    keys.iter().chain(last).take(fill(keys.len())).map(AsRef::as_ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_bounded_in_bytes_and_never_empty() {
        let big = BATCH_BYTES_MAX + 1;
        assert_eq!(within_bytes([(1, big), (2, 1)].into_iter()), [1]);
        assert_eq!(within_bytes([(1, 1), (2, big), (3, 1)].into_iter()), [1]);
        assert_eq!(within_bytes([(1, 1), (2, 1)].into_iter()), [1, 2]);
    }
}
