//! One verb at a time: lock the row, decide by the core's rules, write, commit.
//!
//! Everything that is not a plain first claim or a plain completion goes this way, and whatever the
//! batches could not answer.

use mysql_async::Row;
use semel_core::Token;
use semel_core::error::Error;
use semel_core::record::{Moment, Record, Verb};

use super::chores::no_row;
use super::connect::{Crashes, Live};
use super::fault::Fault;
use super::pool::Tried;
use super::{Shared, row, sql};

const CRASHES: Crashes = &[("my-before-step-commit", "my-after-step-commit")];

/// Runs a verb by itself.
///
/// # Cancellation
/// Safe. The transaction is committed or not, as if its answer had been lost.
pub(super) async fn step<V: Verb>(shared: &Shared, verb: &V) -> Result<V::Answer, Error> {
    let mut tries = shared.verbs.tries();
    loop {
        let mut link = tries.link().await?;
        let tried = attempt(shared, link.live(), verb).await;
        if let Some(answer) = tries.judge(link, tried).await? {
            return Ok(answer);
        }
    }
}

async fn attempt<V: Verb>(shared: &Shared, live: &mut Live, verb: &V) -> Result<Tried<V::Answer>, Fault> {
    let seen = shared.horizon.seen();
    live.begin().await?;
    let locked = live.ask(&sql::lock(), vec![row::key(verb.operation())]).await?.rows;
    // Asked for with the row in hand: a token drawn, or a time read, while waiting for it could be older
    // than those the row then has.
    let moment = if V::TAKES_TOKEN { draw(shared, live).await? } else { moment(shared, live).await? };
    let current = locked.first().map(row::record).transpose()?;
    let step = verb.decide(current.as_ref(), moment);
    let Some(put) = step.put else {
        // Nothing that counts was written, so nothing can be lost: a token nobody got is a gap.
        live.roll_back().await?;
        return Ok(Tried::Answer(step.answer));
    };
    if !write(live, &put, current.is_some()).await? {
        live.roll_back().await?;
        return Ok(Tried::LostRace);
    }
    live.commit(CRASHES).await?;
    // It is committed, and must not be believed.
    if V::TAKES_TOKEN && put.token == moment.fresh && !shared.horizon.note(moment.fresh, seen) {
        return Err(Fault::went_back(&shared.horizon));
    }
    Ok(Tried::Answer(step.answer))
}

/// Draws a token, and reads the time.
async fn draw(shared: &Shared, live: &mut Live) -> Result<Moment, Fault> {
    let rows = live.say(&sql::each(&sql::draw(), 1)).await?;
    drawn(shared, rows.first())
}

/// Begins a transaction, draws tokens that follow each other, and reads the time, all in one go. The
/// moment has the first of the tokens.
pub(super) async fn begin_with(shared: &Shared, live: &mut Live, tokens: usize) -> Result<Moment, Fault> {
    let draw = if tokens == 0 { sql::NO_DRAW.into() } else { sql::each(&sql::draw(), tokens) };
    let rows = live.say(&format!("START TRANSACTION;\n{draw}")).await?;
    drawn(shared, rows.first())
}

/// Reads `draw.sql`.
fn drawn(shared: &Shared, row: Option<&Row>) -> Result<Moment, Fault> {
    let row = row.ok_or_else(no_row)?;
    Ok(Moment { now: shared.now(row::time(row, 1)?), fresh: Token(row::int(row, 0)? as u64) })
}

/// The time, and no token.
pub(super) async fn moment(shared: &Shared, live: &mut Live) -> Result<Moment, Fault> {
    let rows = live.say(sql::MOMENT).await?;
    let now = row::time(rows.first().ok_or_else(no_row)?, 0)?;
    Ok(Moment { now: shared.now(now), fresh: Token(0) })
}

/// Writes what was decided. `false`: somebody else inserted the row meanwhile.
async fn write(live: &mut Live, put: &Record, exists: bool) -> Result<bool, Fault> {
    let (sql, mut values) = (if exists { sql::PUT.into() } else { sql::claim() }, Vec::new());
    row::values(put, &mut values);
    let done = live.ask(&sql::each(&sql, 1), values).await?;
    Ok(exists || done.changed == 1)
}

/// Writes decided records over those that are there and locked.
pub(super) async fn put_all(live: &mut Live, records: &[Record]) -> Result<(), Fault> {
    for records in records.chunks(sql::ROWS_MAX) {
        let rows = sql::fill(records.len());
        let mut values = Vec::with_capacity(rows * (row::COLUMNS + 1));
        let last = records.last().into_iter().cycle();
        records.iter().chain(last).take(rows).for_each(|record| row::values(record, &mut values));
        live.ask(&sql::each(sql::PUT, rows), values).await?;
    }
    Ok(())
}
