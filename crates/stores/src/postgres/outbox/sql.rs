//! The statements, one each to a file. Nothing is ever pasted into them; values are bound.

use std::borrow::Cow;

use semel_core::mutant;

use super::super::sql::broken;

pub(super) const ANY_LETTERS: &str = include_str!("sql/any_letters.sql");
pub(super) const APPEND: &str = include_str!("sql/append.sql");
pub(super) const ASIDE: &str = include_str!("sql/aside.sql");
pub(super) const BACKLOG: &str = include_str!("sql/backlog.sql");
pub(super) const BACKLOG_ASIDE: &str = include_str!("sql/backlog_aside.sql");
pub(super) const BEGIN_STEP: &str = include_str!("sql/begin_step.sql");
pub(super) const CARRY: &str = include_str!("sql/carry.sql");
pub(super) const COUNT_DELAYED: &str = include_str!("sql/count_delayed.sql");
pub(super) const COVERED: &str = include_str!("sql/covered.sql");
pub(super) const CREATE: &str = include_str!("sql/create.sql");
pub(super) const DEAD: &str = include_str!("sql/dead.sql");
pub(super) const DEAD_LANE: &str = include_str!("sql/dead_lane.sql");
pub(super) const DISCARD: &str = include_str!("sql/discard.sql");
pub(super) const DUE: &str = include_str!("sql/due.sql");
pub(super) const EDIT: &str = include_str!("sql/edit.sql");
pub(super) const ENQUEUE: &str = include_str!("sql/enqueue.sql");
pub(super) const ENQUEUE_NOW: &str = include_str!("sql/enqueue_now.sql");
pub(super) const ENQUEUE_ONE: &str = include_str!("sql/enqueue_one.sql");
pub(super) const FACTS: &str = include_str!("sql/facts.sql");
pub(super) const FIND: &str = include_str!("sql/find.sql");
pub(super) const FIND_ASIDE: &str = include_str!("sql/find_aside.sql");
pub(super) const FIND_DELAYED: &str = include_str!("sql/find_delayed.sql");
pub(super) const FLIP: &str = include_str!("sql/flip.sql");
pub(super) const KEEP_ASIDE: &str = include_str!("sql/keep_aside.sql");
pub(super) const LETTERS: &str = include_str!("sql/letters.sql");
pub(super) const LIST: &str = include_str!("sql/list.sql");
pub(super) const LOCK_HALF: &str = include_str!("sql/lock_half.sql");
pub(super) const LOCK_LANE: &str = include_str!("sql/lock_lane.sql");
pub(super) const LOCK_LANES: &str = include_str!("sql/lock_lanes.sql");
pub(super) const LOCK_OUTBOX: &str = include_str!("sql/lock_outbox.sql");
pub(super) const LOCK_PART: &str = include_str!("sql/lock_part.sql");
pub(super) const LOOK: &str = include_str!("sql/look.sql");
pub(super) const LOOKS: &str = include_str!("sql/looks.sql");
pub(super) const LOG: &str = include_str!("sql/log.sql");
pub(super) const NEWEST: &str = include_str!("sql/newest.sql");
pub(super) const OUTDATED: &str = include_str!("sql/outdated.sql");
pub(super) const PARKED: &str = include_str!("sql/parked.sql");
pub(super) const PART: &str = include_str!("sql/part.sql");
pub(super) const PROMOTE: &str = include_str!("sql/promote.sql");
pub(super) const RANGE: &str = include_str!("sql/range.sql");
pub(super) const REBASE_ASIDE: &str = include_str!("sql/rebase_aside.sql");
pub(super) const REBASE_COUNT: &str = include_str!("sql/rebase_count.sql");
pub(super) const REBASE_RENEW: &str = include_str!("sql/rebase_renew.sql");
pub(super) const REBASE_STEP: &str = include_str!("sql/rebase_step.sql");
pub(super) const RELOAD: &str = include_str!("sql/reload.sql");
pub(super) const REPLAY: &str = include_str!("sql/replay.sql");
pub(super) const RING: &str = include_str!("sql/ring.sql");
pub(super) const RUN: &str = include_str!("sql/run.sql");
pub(super) const SET_ASIDE: &str = include_str!("sql/set_aside.sql");
pub(super) const SETTLE_ASIDE: &str = include_str!("sql/settle_aside.sql");
pub(super) const SNAPSHOT: &str = include_str!("sql/snapshot.sql");
pub(super) const STEP: &str = include_str!("sql/step.sql");
pub(super) const STEPS: &str = include_str!("sql/steps.sql");
pub(super) const TAKE: &str = include_str!("sql/take.sql");
pub(super) const TIMELINE: &str = include_str!("sql/timeline.sql");
pub(super) const TRUNCATE_HALF: &str = include_str!("sql/truncate_half.sql");
pub(super) const TRUNCATE_PART: &str = include_str!("sql/truncate_part.sql");
pub(super) const WALK: &str = include_str!("sql/walk.sql");

const BEGIN_READ: &str = include_str!("sql/begin_read.sql");
const REBASE_FORGET: &str = include_str!("sql/rebase_forget.sql");

pub(super) fn begin_read(statement_ms: u128) -> String {
    format!(
        "{BEGIN_READ}SET LOCAL statement_timeout = {statement_ms};\n\
         SET LOCAL idle_in_transaction_session_timeout = {statement_ms};\n"
    )
}

pub(super) fn rebase_forget() -> Cow<'static, str> {
    if mutant::on("outbox-rebase-forgets-new") {
        return broken(REBASE_FORGET, "o.xid::text::bigint >= made.xid", "false");
    }
    REBASE_FORGET.into()
}

/// A statement about one part of the ring. Names are no values: they cannot be bound.
pub(super) fn of_part(sql: &str, part: i32) -> String {
    sql.replace("semel_outbox_0", &format!("semel_outbox_{part}"))
}

/// A statement about one half of the log, 0 in the file, and the other, 1 there.
pub(super) fn of_half(sql: &str, half: i16) -> String {
    match half {
        0 => sql.to_owned(),
        _ => sql
            .replace("cursor_0", "cursor_this")
            .replace("cursor_1", "cursor_0")
            .replace("cursor_this", "cursor_1"),
    }
}
