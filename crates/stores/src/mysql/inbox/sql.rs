//! The ledger's statements, one per file. Values are written into them as digits, or bound.

use std::borrow::Cow;

use semel_core::mutant;

use super::super::sql::broken;

pub(super) const AGAIN: &str = include_str!("sql/again.sql");
pub(super) const ASIDE: &str = include_str!("sql/aside.sql");
pub(super) const ASIDE_AGAIN: &str = include_str!("sql/aside_again.sql");
pub(super) const ASIDE_ENTRY: &str = include_str!("sql/aside_entry.sql");
pub(super) const ASSIGN: &str = include_str!("sql/assign.sql");
pub(super) const BEGIN: &str = include_str!("sql/begin.sql");
pub(super) const CLAIM: &str = include_str!("sql/claim.sql");
pub(super) const COUNTS: &str = include_str!("sql/counts.sql");
pub(super) const DISCARD: &str = include_str!("sql/discard.sql");
pub(super) const DONE: &str = include_str!("sql/done.sql");
pub(super) const DUE: &str = include_str!("sql/due.sql");
pub(super) const FENCES: &str = include_str!("sql/fences.sql");
pub(super) const FINISH: &str = include_str!("sql/finish.sql");
pub(super) const FORGET: &str = include_str!("sql/forget.sql");
pub(super) const FORGET_BATCH: &str = include_str!("sql/forget_batch.sql");
pub(super) const FORGET_FENCE: &str = include_str!("sql/forget_fence.sql");
pub(super) const FURTHER: &str = include_str!("sql/further.sql");
pub(super) const GROUPS: &str = include_str!("sql/groups.sql");
pub(super) const INSERT: &str = include_str!("sql/insert.sql");
pub(super) const LETTER: &str = include_str!("sql/letter.sql");
pub(super) const LETTERS: &str = include_str!("sql/letters.sql");
pub(super) const NAME: &str = include_str!("sql/name.sql");
pub(super) const OLD_BATCHES: &str = include_str!("sql/old_batches.sql");
pub(super) const OLD_FENCES: &str = include_str!("sql/old_fences.sql");
pub(super) const PARKED: &str = include_str!("sql/parked.sql");
pub(super) const PARKED_HELD: &str = concat!(include_str!("sql/parked.sql"), "LOCK IN SHARE MODE\n");
pub(super) const REPLAY: &str = include_str!("sql/replay.sql");
pub(super) const REWIND: &str = include_str!("sql/rewind.sql");
pub(super) const SHELVE: &str = include_str!("sql/shelve.sql");
pub(super) const STALE_LETTER: &str = include_str!("sql/stale_letter.sql");
pub(super) const TAKE_LETTER: &str = include_str!("sql/take_letter.sql");
pub(super) const WAITING: &str = include_str!("sql/waiting.sql");

const ADVANCE: &str = include_str!("sql/advance.sql");
const LOOK: &str = include_str!("sql/look.sql");
const OLD: &str = include_str!("sql/old.sql");

pub(super) fn advance() -> Cow<'static, str> {
    if mutant::on("inbox-offset-not-compared") {
        return ADVANCE.replace("generation = ?", "? > 0").replace("next_offset <= ?", "? >= 0").into();
    }
    ADVANCE.into()
}

pub(super) fn look() -> Cow<'static, str> {
    if mutant::on("my-inbox-old-snapshot") {
        return broken(LOOK, "FOR UPDATE", "");
    }
    LOOK.into()
}

pub(super) fn old() -> Cow<'static, str> {
    if mutant::on("my-inbox-sweep-waits") {
        return broken(OLD, "SKIP LOCKED", "");
    }
    OLD.into()
}
