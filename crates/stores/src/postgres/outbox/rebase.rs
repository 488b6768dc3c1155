//! Going on after a restore: what is not known to have been published is published again.
//!
//! A cursor's snapshot speaks of the transactions of one server. After a load into another, rows and log
//! came along and the numbers of transactions began elsewhere; compared with those, old messages would
//! look new for ever, or new ones old. So what the log settled is removed, everything else becomes a
//! message of the rebasing transaction, and the log goes on with a snapshot from just before it.

use std::time::Duration;

use semel_core::error::Error;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::chores::{no_row, transaction};
use super::super::connect::{Param, get};
use super::super::fault::Fault;
use super::super::pipeline::{End, Statement};
use super::super::pool::Link;
use super::take::Newest;
use super::{Desk, sql};

/// How long it may take: every row that is there is looked at.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// # Cancellation
/// Safe. It is one transaction, done or not.
pub(super) async fn rebase(desk: &Desk, by: &str) -> Result<u64, Error> {
    let mut link = desk.chores.link_to_any().await?;
    let here = link.live().here(desk.call_timeout).await?;
    let ms = TIMEOUT.as_millis();
    let begin = format!(
        "{}SET LOCAL statement_timeout = {ms};\nSET LOCAL idle_in_transaction_session_timeout = {ms};\n",
        desk.begin
    );
    let (lanes, clock): (Vec<i16>, _) = ((0..desk.lanes as i16).collect(), desk.clock());
    let again = transaction(&mut link, async |link| {
        let look: [Param<'_>; 2] = [(&lanes, Type::INT2_ARRAY), (&clock, Type::INT8)];
        // The snapshot first: nothing of this transaction must be visible in it.
        let first: [Statement<'_>; 4] =
            [(sql::SNAPSHOT, &[]), (sql::LOCK_OUTBOX, &[]), (sql::LOCK_LANES, &[]), (sql::NEWEST, &look)];
        let answers = link.live().run(TIMEOUT, Some(&begin), &first, End::Open).await?;
        let [snapshot, _, _, newest] = &answers[..] else { return Err(no_row().into()) };
        let before: String = get(snapshot.first().ok_or_else(no_row)?, 0)?;
        let mut again = 0;
        for row in newest {
            if Newest::read(row)?.stopped(here.as_deref()).is_some() {
                again += lane(link, row, here.as_deref(), &before).await?;
            }
        }
        link.live().run(desk.call_timeout, None, &[], End::Commit(&[])).await?;
        Ok(again)
    })
    .await?;
    tracing::warn!(
        by,
        messages = again,
        "the outbox was rebased; what may have been published is published again"
    );
    Ok(again)
}

/// One lane that was stopped. Returns how many of its messages will be published.
async fn lane(link: &Link<'_>, row: &Row, here: Option<&str>, before: &str) -> Result<u64, Fault> {
    let newest = Newest::read(row)?;
    let lane: i16 = get(row, 0)?;
    let snapshot: String = get(row, 8)?;
    let batch: Option<String> = get(row, 9)?;
    let (last, until): (i64, i64) = (get(row, 10)?, get(row, 11)?);
    let settled: [Param<'_>; 4] =
        [(&lane, Type::INT2), (&snapshot, Type::TEXT), (&batch, Type::TEXT), (&last, Type::INT8)];
    let only_lane = &settled[..1];
    // A copy of the files has the rows and the transactions it speaks of: its log holds, here too.
    let is_copy = newest.is_native && !newest.is_ahead;
    let forget = sql::rebase_forget();
    let statements: Vec<Statement<'_>> = match (is_copy, newest.is_native) {
        (true, _) => vec![(sql::REBASE_COUNT, &settled)],
        (false, false) => {
            vec![(&forget, &settled), (sql::REBASE_ASIDE, only_lane), (sql::REBASE_RENEW, only_lane)]
        }
        // Its own log, and from a future the server does not know: nothing it says counts.
        (false, true) => vec![(sql::REBASE_ASIDE, only_lane), (sql::REBASE_RENEW, only_lane)],
    };
    let answers = link.live().run(TIMEOUT, None, &statements, End::Open).await?;
    let again: i64 = get(answers.last().and_then(|rows| rows.first()).ok_or_else(no_row)?, 0)?;
    let (snapshot, batch, last, until) =
        if is_copy { (snapshot.as_str(), batch, last, until) } else { (before, None, 0, 0) };
    let step: [Param<'_>; 6] = [
        (&lane, Type::INT2),
        (&here, Type::TEXT),
        (&snapshot, Type::TEXT),
        (&batch, Type::TEXT),
        (&last, Type::INT8),
        (&until, Type::INT8),
    ];
    link.live().run(TIMEOUT, None, &[(sql::REBASE_STEP, &step)], End::Open).await?;
    Ok(again.max(0) as u64)
}
