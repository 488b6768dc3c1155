//! The statements, one verb per file. Nothing is ever pasted into them; values are bound.
//!
//! All run as unnamed statements, parsed where they are used: behind a pooler in transaction mode a
//! named one would be prepared in one session and looked for in another.

use std::borrow::Cow;

use semel_core::mutant;

pub(super) const ACKNOWLEDGE: &str = include_str!("sql/acknowledge.sql");
pub(super) const APPLIED: &str = include_str!("sql/applied.sql");
pub(super) const APPLY: &str = include_str!("sql/apply.sql");
pub(super) const CREATE: &str = include_str!("sql/create.sql");
pub(super) const EXAMINE: &str = include_str!("sql/examine.sql");
pub(super) const GET: &str = include_str!("sql/get.sql");
pub(super) const HASH_KEYS: &str = include_str!("sql/hash_keys.sql");
pub(super) const HERE: &str = include_str!("sql/here.sql");
pub(super) const HOLD_META: &str = include_str!("sql/hold_meta.sql");
pub(super) const INSERT: &str = include_str!("sql/insert.sql");
pub(super) const LIST: &str = include_str!("sql/list.sql");
pub(super) const LOOK_AGAIN: &str = include_str!("sql/look_again.sql");
pub(super) const MET: &str = include_str!("sql/met.sql");
pub(super) const MIGRATION_LOCK: &str = include_str!("sql/migration_lock.sql");
pub(super) const MOMENT: &str = include_str!("sql/moment.sql");
pub(super) const PUT: &str = include_str!("sql/put.sql");
pub(super) const ROTATE: &str = include_str!("sql/rotate.sql");
pub(super) const SERVER: &str = include_str!("sql/server.sql");
pub(super) const SUBJECT: &str = include_str!("sql/subject.sql");
pub(super) const SUBJECT_OPEN: &str = include_str!("sql/subject_open.sql");

pub(super) const FENCE_LEASE: &str = include_str!("sql/fence_lease.sql");
pub(super) const FENCE_LOOK: &str = include_str!("sql/fence_look.sql");
pub(super) const RESOLVE: &str = include_str!("sql/tx_resolve.sql");

const BEGIN: &str = include_str!("sql/begin.sql");
const BEGIN_FLIGHT: &str = include_str!("sql/begin_flight.sql");
const FLY: &str = include_str!("sql/fly.sql");
const FRESH: &str = include_str!("sql/fresh.sql");
const LOCK: &str = include_str!("sql/lock.sql");
const NEWEST: &str = include_str!("sql/newest.sql");
const SWEEP: &str = include_str!("sql/sweep.sql");
pub(super) const TX_FAIL: &str = include_str!("sql/tx_fail.sql");
const TX_COMMIT: &str = include_str!("sql/tx_commit.sql");
const TX_ENQUEUE: &str = include_str!("sql/tx_enqueue.sql");
const TX_BEGIN: &str = include_str!("sql/tx_begin.sql");
const TX_FINISH: &str = include_str!("sql/tx_finish.sql");

/// What a batch does: one statement. For mutants two, the bodies of the functions it calls, one of them broken.
pub(super) fn fly() -> Vec<Cow<'static, str>> {
    let complete = |rule| vec![claim_body(), broken_in(complete_body(), rule, "")];
    match () {
        () if mutant::on("pg-claim-overwrites") => {
            let overwrites = "DO UPDATE SET token = excluded.token, nonce = excluded.nonce, \
                lease_until = excluded.lease_until";
            vec![broken_in(claim_body(), "DO NOTHING", overwrites), complete_body()]
        }
        () if mutant::on("pg-complete-ignores-token") => complete("AND o.token = done.token"),
        () if mutant::on("pg-complete-ignores-nonce") => complete("AND o.nonce = done.nonce"),
        () if mutant::on("pg-complete-ignores-state") => complete("AND o.state = 1"),
        () if mutant::on("pg-commit-not-durable") => vec![claim_body(), complete_body()],
        () => vec![FLY.into()],
    }
}

fn claim_body() -> Cow<'static, str> {
    body_of("semel_claim_many").into()
}

/// With the parameters and the columns that `semel_fly` has.
fn complete_body() -> Cow<'static, str> {
    let alone = broken(body_of("semel_complete_many"), "$2, $3, $4, $5", "$17, $18, $19, $20");
    broken_in(alone, "RETURNING o.id", "RETURNING o.id, NULL::bigint, NULL::bigint")
}

/// For mutants: the one statement of a function, which can be broken and run in its place.
fn body_of(function: &str) -> &'static str {
    let functions = include_str!("../../migrations/postgres/0009_many.sql");
    let found = functions.split_once(function).and_then(|(_, rest)| {
        let (_, body) = rest.split_once("RETURN QUERY")?;
        Some(body.split_once(";\nEND")?.0)
    });
    found.expect("a migration does not change")
}

pub(super) fn fresh() -> Cow<'static, str> {
    if mutant::on("pg-token-restarts") {
        return broken(FRESH, "nextval('semel_token')", "1::bigint");
    }
    FRESH.into()
}

pub(super) fn lock() -> Cow<'static, str> {
    if mutant::on("pg-step-without-lock") {
        return broken(LOCK, "FOR UPDATE", "");
    }
    LOCK.into()
}

pub(super) fn newest() -> Cow<'static, str> {
    if mutant::on("pg-deleted-passes-for-lost") {
        let unseen =
            "coalesce($2 > 0, false) AND NOT EXISTS (SELECT FROM semel_operation AS o WHERE o.id = $1)";
        return broken(NEWEST, "semel_is_lost($1, $2)", unseen);
    }
    NEWEST.into()
}

pub(super) fn sweep() -> Cow<'static, str> {
    if mutant::on("pg-sweep-ignores-retry-window") {
        return broken(SWEEP, "settled_at + least(window_us, 9223372036854775807 - settled_at)", "0");
    }
    if mutant::on("pg-sweep-deletes-unknown") {
        return broken(SWEEP, "state IN (2, 3, 5) AND", "");
    }
    if mutant::on("pg-sweepers-queue") {
        return broken(SWEEP, "EXISTS (SELECT FROM turn) AND ", "");
    }
    if mutant::on("pg-sweep-waits") {
        return broken(SWEEP, "FOR UPDATE SKIP LOCKED", "FOR UPDATE");
    }
    SWEEP.into()
}

pub(super) fn tx_begin() -> Cow<'static, str> {
    if mutant::on("joined-lock-skipped") {
        return broken(TX_BEGIN, "semel_begin($1, $2)", UNLOCKED);
    }
    TX_BEGIN.into()
}

/// For a mutant: what `semel_begin` does, without its lock.
const UNLOCKED: &str = "(SELECT true, semel_now(), nextval('semel_token'), o.xmin::text::bigint, o.id, \
    o.namespace, o.tenant, o.route, o.key, o.state, o.token, o.nonce, o.fp_version, o.fp_digest, o.fp_paths, \
    o.recovery, o.lease_us, o.run_max_us, o.ttl_us, o.window_us, o.attempts, o.created_at, o.attempt_at, \
    o.lease_until, o.settled_at, o.subject, o.outcome, o.history \
    FROM (SELECT set_config('semel.joined', \
        jsonb_build_object(encode($1, 'hex'), encode($2, 'hex'))::text, true)) AS joined \
    LEFT JOIN semel_operation AS o ON o.id = $1)";

pub(super) fn tx_commit() -> &'static str {
    match () {
        () if mutant::on("joined-commit-unchecked") => "COMMIT",
        () if mutant::on("joined-savepoint-ignored") => "SELECT; COMMIT",
        () => TX_COMMIT,
    }
}

pub(super) fn tx_finish(messages: usize) -> Cow<'static, str> {
    let finish = tx_finish_alone();
    match messages {
        0 => finish,
        _ if mutant::on("joined-messages-lost") => finish,
        _ => format!("{finish}{TX_ENQUEUE}").into(),
    }
}

fn tx_finish_alone() -> Cow<'static, str> {
    if mutant::on("joined-replaces-unchecked") {
        let anything = "(SELECT xmin::text::bigint FROM semel_operation WHERE id = $15), \
            (SELECT token FROM semel_operation WHERE id = $15), \
            (SELECT nonce FROM semel_operation WHERE id = $15)";
        return broken(TX_FINISH, "$26, $27, $28", anything);
    }
    TX_FINISH.into()
}

/// How a transaction begins, with the limits of this store. They are numbers, hence no parameters:
/// `SET` takes none.
pub(super) fn begin(statement_ms: u128, lock_ms: u128) -> String {
    let begin = match mutant::on("pg-commit-not-durable") {
        true => broken(BEGIN, "replace(current_setting('synchronous_commit'), 'off', 'on')", "'off'"),
        false => BEGIN.into(),
    };
    limited(&begin, statement_ms, lock_ms)
}

/// The same for a batch.
pub(super) fn begin_flight(statement_ms: u128, lock_ms: u128) -> String {
    limited(BEGIN_FLIGHT, statement_ms, lock_ms)
}

fn limited(begin: &str, statement_ms: u128, lock_ms: u128) -> String {
    format!(
        "{begin}SET LOCAL statement_timeout = {statement_ms};\n\
         SET LOCAL idle_in_transaction_session_timeout = {statement_ms};\n\
         SET LOCAL lock_timeout = {lock_ms};\n"
    )
}

pub(super) fn broken(sql: &'static str, rule: &str, without: &str) -> Cow<'static, str> {
    broken_in(sql.into(), rule, without)
}

fn broken_in(sql: Cow<'static, str>, rule: &str, without: &str) -> Cow<'static, str> {
    assert!(sql.contains(rule), "a mutant breaks a rule that is not in the statement: {rule}");
    sql.replace(rule, without).into()
}
