//! The statements, one verb per file. Nothing is ever pasted into them; values are bound.
//!
//! What a file puts between `/*each SEPARATOR*/` and `/*each*/` is repeated for every row. Statements are
//! prepared once per connection and number of rows, and only some numbers are used: a batch is filled up
//! by [repeating](fill) its last row, which changes nothing.

use std::borrow::Cow;

use semel_core::mutant;

pub(super) const ACKNOWLEDGE: &str = include_str!("sql/acknowledge.sql");
pub(super) const APPLIED: &str = include_str!("sql/applied.sql");
pub(super) const APPLY: &str = include_str!("sql/apply.sql");
pub(super) const CREATE: &str = include_str!("sql/create.sql");
pub(super) const DELETE: &str = include_str!("sql/delete.sql");
pub(super) const DUE: &str = include_str!("sql/due.sql");
pub(super) const EXAMINE: &str = include_str!("sql/examine.sql");
pub(super) const GET: &str = include_str!("sql/get.sql");
pub(super) const HASH_KEYS: &str = include_str!("sql/hash_keys.sql");
pub(super) const HIGHEST: &str = include_str!("sql/highest.sql");
pub(super) const HOLD_META: &str = include_str!("sql/hold_meta.sql");
pub(super) const LIST: &str = include_str!("sql/list.sql");
pub(super) const LOOK: &str = include_str!("sql/look.sql");
pub(super) const LOOK_AGAIN: &str = include_str!("sql/look_again.sql");
pub(super) const MET: &str = include_str!("sql/met.sql");
pub(super) const MIGRATED: &str = include_str!("sql/migrated.sql");
pub(super) const MIGRATION_LOCK: &str = include_str!("sql/migration_lock.sql");
pub(super) const MIGRATION_UNLOCK: &str = include_str!("sql/migration_unlock.sql");
pub(super) const MOMENT: &str = include_str!("sql/moment.sql");
pub(super) const NEW_KEY: &str = include_str!("sql/new_key.sql");
pub(super) const NO_DRAW: &str = include_str!("sql/no_draw.sql");
pub(super) const PUT: &str = include_str!("sql/put.sql");
pub(super) const ROTATE: &str = include_str!("sql/rotate.sql");
pub(super) const SERVER: &str = include_str!("sql/server.sql");
pub(super) const SET_TOKEN: &str = include_str!("sql/set_token.sql");
pub(super) const SUBJECT: &str = include_str!("sql/subject.sql");
pub(super) const SUBJECT_OPEN: &str = include_str!("sql/subject_open.sql");
pub(super) const TAKE_ALL: &str = include_str!("sql/take_all.sql");
pub(super) const TRIM: &str = include_str!("sql/trim.sql");
pub(super) const TX_OUTCOME: &str = include_str!("sql/tx_outcome.sql");
pub(super) const TX_STILL: &str = include_str!("sql/tx_still.sql");
pub(super) const TX_THERE: &str = include_str!("sql/tx_there.sql");

const CLAIM: &str = include_str!("sql/claim.sql");
const COMPLETE: &str = include_str!("sql/complete.sql");
const DRAW: &str = include_str!("sql/draw.sql");
const LOCK: &str = include_str!("sql/lock.sql");
const SESSION: &str = include_str!("sql/session.sql");
const TAKE: &str = include_str!("sql/take.sql");
const FENCE_LEASE: &str = include_str!("sql/fence_lease.sql");
const FENCE_PASS: &str = include_str!("sql/fence_pass.sql");
const TX_BEGIN: &str = include_str!("sql/tx_begin.sql");
pub(super) const TX_INSIDE: &str = include_str!("sql/tx_inside.sql");
const TX_RESOLVE: &str = include_str!("sql/tx_resolve.sql");

/// The numbers of rows statements are prepared for. At most a third of a batch is repetition.
const SIZES: [usize; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Most rows in one statement.
pub(super) const ROWS_MAX: usize = SIZES[SIZES.len() - 1];

pub(super) fn claim() -> Cow<'static, str> {
    if mutant::on("my-claim-overwrites") {
        return broken(
            CLAIM,
            "id = semel_operation.id",
            "token = VALUES(token), nonce = VALUES(nonce), lease_until = VALUES(lease_until)",
        );
    }
    CLAIM.into()
}

pub(super) fn complete() -> Cow<'static, str> {
    if mutant::on("my-complete-ignores-token") {
        return broken(COMPLETE, "token = ?", "token + 0 * ? = token");
    }
    if mutant::on("my-complete-ignores-nonce") {
        return broken(COMPLETE, "nonce = ?", "nonce <> CONCAT(?, 'x')");
    }
    if mutant::on("my-complete-ignores-state") {
        return broken(COMPLETE, "state = 1 AND", "");
    }
    COMPLETE.into()
}

pub(super) fn draw() -> Cow<'static, str> {
    if mutant::on("my-token-restarts") {
        return broken(DRAW, "LAST_INSERT_ID()", "1");
    }
    DRAW.into()
}

pub(super) fn lock() -> Cow<'static, str> {
    if mutant::on("my-step-without-lock") {
        return broken(LOCK, "FOR UPDATE", "");
    }
    LOCK.into()
}

pub(super) fn take() -> Cow<'static, str> {
    if mutant::on("my-sweep-waits") {
        return broken(TAKE, "SKIP LOCKED", "");
    }
    TAKE.into()
}

pub(super) fn tx_begin() -> Cow<'static, str> {
    if mutant::on("my-tx-without-lock") {
        return broken(TX_BEGIN, "WHERE slot = ? FOR UPDATE NOWAIT", "WHERE slot = ?");
    }
    if mutant::on("my-tx-old-snapshot") {
        return broken(TX_BEGIN, "WHERE id = ?\nFOR UPDATE", "WHERE id = ?");
    }
    if mutant::on("my-tx-without-transaction") {
        return broken(TX_BEGIN, "RELEASE SAVEPOINT", "SAVEPOINT");
    }
    TX_BEGIN.into()
}

pub(super) fn tx_resolve() -> Cow<'static, str> {
    if mutant::on("my-tx-purged-denied") {
        return broken(TX_RESOLVE, "state <> 1", "state = 2");
    }
    if mutant::on("my-tx-resolve-keeps-lock") {
        return broken(TX_RESOLVE, "COMMIT", "DO 0");
    }
    TX_RESOLVE.into()
}

/// What finishes an attempt: a check that a transaction is open, statements in between, the outcome.
pub(super) fn tx_finish(between: &[String], outcome: &str) -> String {
    let mut text = TX_INSIDE.to_owned();
    for statement in between {
        text.push_str(statement);
        text.push_str(";\n");
    }
    text.push_str(outcome);
    text
}

pub(super) fn fence_lease() -> Cow<'static, str> {
    if mutant::on("my-fence-gives-twice") {
        return broken(FENCE_LEASE, "GREATEST(given, LAST_INSERT_ID())", "LAST_INSERT_ID(given + 1)");
    }
    FENCE_LEASE.into()
}

pub(super) fn fence_pass() -> String {
    TX_INSIDE.to_owned() + FENCE_PASS
}

/// How a session begins, with the limits of this store. They are whole seconds; less than one is one.
pub(super) fn session(lock_seconds: u64) -> String {
    let lock = lock_seconds.max(1);
    format!("{SESSION}SET SESSION innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {lock}")
}

/// For how many rows the statement for `rows` rows is prepared.
pub(super) fn fill(rows: usize) -> usize {
    SIZES.into_iter().find(|size| *size >= rows).unwrap_or(ROWS_MAX)
}

/// A statement for so many rows.
pub(super) fn each(sql: &str, rows: usize) -> String {
    const BEGIN: &str = "/*each ";
    const END: &str = "/*each*/";
    let mut out = String::with_capacity(sql.len() * rows.min(16));
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (separator, after) = after.split_once("*/").expect("a mark has its separator");
        let (row, after) = after.split_once(END).expect("what begins with a mark ends with one");
        out.push_str(before);
        for at in 0..rows {
            out.push_str(if at == 0 { "" } else { separator });
            out.push_str(row);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

pub(super) fn broken(sql: &'static str, rule: &str, without: &str) -> Cow<'static, str> {
    assert!(sql.contains(rule), "a mutant breaks a rule that is not in the statement: {rule}");
    sql.replace(rule, without).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_repeated_and_the_rest_is_not() {
        assert_eq!(each("a (/*each ,*/?/*each*/) b /*each OR */(?)/*each*/ c", 2), "a (?,?) b (?)OR (?) c");
        assert_eq!(each("nothing", 7), "nothing");
        let claim = each(CLAIM, 3);
        assert_eq!(claim.matches('?').count(), 75);
        assert_eq!((fill(1), fill(5), fill(200), fill(256)), (1, 6, 256, 256));
    }
}
