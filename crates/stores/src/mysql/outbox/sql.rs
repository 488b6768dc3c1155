//! The statements of the outbox, one verb per file.

use std::borrow::Cow;

use semel_core::message::MessageId;
use semel_core::mutant;

use super::super::sql::broken;

pub(super) const ANY_DUE: &str = include_str!("sql/any_due.sql");
pub(super) const ARE_LETTERS: &str = include_str!("sql/are_letters.sql");
pub(super) const BACKLOG: &str = include_str!("sql/backlog.sql");
pub(super) const BACKLOG_ASIDE: &str = include_str!("sql/backlog_aside.sql");
pub(super) const CHANGE_LETTERS: &str = include_str!("sql/change_letters.sql");
pub(super) const COUNT: &str = include_str!("sql/count.sql");
pub(super) const COUNT_DELAYED: &str = include_str!("sql/count_delayed.sql");
pub(super) const DEAD: &str = include_str!("sql/dead.sql");
pub(super) const DUE: &str = include_str!("sql/due.sql");
pub(super) const EDIT: &str = include_str!("sql/edit.sql");
pub(super) const ENQUEUE: &str = include_str!("sql/enqueue.sql");
pub(super) const ENQUEUE_DELAYED: &str = include_str!("sql/enqueue_delayed.sql");
pub(super) const FACTS: &str = include_str!("sql/facts.sql");
pub(super) const FIND: &str = include_str!("sql/find.sql");
pub(super) const FIND_DELAYED: &str = include_str!("sql/find_delayed.sql");
pub(super) const FIND_LETTER: &str = include_str!("sql/find_letter.sql");
pub(super) const FREE_LANES: &str = include_str!("sql/free_lanes.sql");
pub(super) const GIVE_BACK: &str = include_str!("sql/give_back.sql");
pub(super) const HOLD_LANE: &str = include_str!("sql/hold_lane.sql");
pub(super) const HOLD_META: &str = include_str!("sql/hold_meta.sql");
pub(super) const KEEP: &str = include_str!("sql/keep.sql");
pub(super) const LANDED: &str = include_str!("sql/landed.sql");
pub(super) const LANDED_KEYS: &str = include_str!("sql/landed_keys.sql");
pub(super) const LANES: &str = include_str!("sql/lanes.sql");
pub(super) const LANE_OF_LETTER: &str = include_str!("sql/lane_of_letter.sql");
pub(super) const LETTERS: &str = include_str!("sql/letters.sql");
pub(super) const LETTERS_OF_KEYS: &str = include_str!("sql/letters_of_keys.sql");
pub(super) const LIST: &str = include_str!("sql/list.sql");
pub(super) const LOOK: &str = include_str!("sql/look.sql");
pub(super) const LOWER_AGAIN: &str = include_str!("sql/lower_again.sql");
pub(super) const MARK: &str = include_str!("sql/mark.sql");
pub(super) const RAISE_SEQUENCE: &str = include_str!("sql/raise_sequence.sql");
pub(super) const READ_LETTERS: &str = include_str!("sql/read_letters.sql");
pub(super) const READY_ALONE: &str = include_str!("sql/ready_alone.sql");
pub(super) const READY_KEYS: &str = include_str!("sql/ready_keys.sql");
pub(super) const REBASED: &str = include_str!("sql/rebased.sql");
pub(super) const RELEASE: &str = include_str!("sql/release.sql");
pub(super) const REMOVE_DELAYED: &str = include_str!("sql/remove_delayed.sql");
pub(super) const REMOVE_LETTERS: &str = include_str!("sql/remove_letters.sql");
pub(super) const REPLAY: &str = include_str!("sql/replay.sql");
pub(super) const SET_META: &str = include_str!("sql/set_meta.sql");
pub(super) const TAKE: &str = include_str!("sql/take.sql");
pub(super) const UNPARK: &str = include_str!("sql/unpark.sql");
pub(super) const WAIT_BEHIND: &str = include_str!("sql/wait_behind.sql");
pub(super) const WRITERS: &str = include_str!("sql/writers.sql");

const PARK: &str = include_str!("sql/park.sql");
const READ: &str = include_str!("sql/read.sql");
const REMOVE: &str = include_str!("sql/remove.sql");
const SET_ASIDE: &str = include_str!("sql/set_aside.sql");

pub(super) fn park() -> Cow<'static, str> {
    if mutant::on("my-outbox-dead-goes-on") {
        return broken(PARK, "ELSE NULL", "ELSE 0");
    }
    PARK.into()
}

pub(super) fn read() -> Cow<'static, str> {
    if mutant::on("my-outbox-key-goes-on") {
        return broken(READ, "p.`key` = o.`key`", "p.`key` = o.`key` AND FALSE");
    }
    READ.into()
}

pub(super) fn remove() -> Cow<'static, str> {
    by_id(REMOVE)
}

pub(super) fn set_aside() -> Cow<'static, str> {
    by_id(SET_ASIDE)
}

fn by_id(sql: &'static str) -> Cow<'static, str> {
    if mutant::on("my-outbox-settles-another-message") {
        return broken(sql, " AND o.id = UNHEX(j.id)", "");
    }
    sql.into()
}

/// Numbers as a list that a statement joins with.
pub(super) fn list(numbers: impl IntoIterator<Item = u64>) -> String {
    objects(numbers, |number| number.to_string())
}

/// Things as a list of JSON, each already written in it.
pub(super) fn objects<T>(things: impl IntoIterator<Item = T>, write: impl Fn(T) -> String) -> String {
    let things: Vec<String> = things.into_iter().map(write).collect();
    format!("[{}]", things.join(","))
}

/// Messages as a list that a statement joins with: by number, and by id, because a database that was set back gives
/// numbers again.
pub(super) fn named(messages: impl IntoIterator<Item = (u64, MessageId)>) -> String {
    objects(messages, |(sequence, id)| format!(r#"{{"s":{sequence},"i":"{}"}}"#, hex(id.as_bytes())))
}

/// Bytes in a form that needs no escapes.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_as_the_server_reads_them() {
        assert_eq!(list([3, 1]), "[3,1]");
        assert_eq!(list([]), "[]");
        assert_eq!(hex(&[0, 0xaf, 9]), "00af09");
    }
}
