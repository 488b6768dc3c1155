//! Forgetting what was settled long ago.
//!
//! What is to go is locked first, without waiting, and then removed by its key: a sweep waits for nobody, and so is part
//! of no deadlock.

use std::time::Duration;

use mysql_async::Value;
use mysql_async::prelude::Queryable;
use semel_core::clock;
use semel_core::inbox::Swept;

use super::super::fault::Fault;
use super::super::row;
use super::super::say::{inline, say, tell};
use super::sql;

/// Deletes at most `limit` rows of each kind, in the caller's transaction.
pub(super) async fn sweep(
    tx: &mut impl Queryable,
    group: &str,
    kept: Duration,
    limit: u32,
) -> Result<Swept, Fault> {
    let old = async |tx: &mut _, sql: &str| {
        let values = [group.into(), clock::micros(kept).into(), limit.into()];
        Ok::<_, Fault>(tell(tx, sql, &values).await?.sets.swap_remove(0))
    };
    let (mut statements, mut gone) = (Vec::new(), [0; 3]);
    let named = |row: &_, at| row::bytes(row, at).map(Value::from);
    for row in &old(tx, &sql::old()).await? {
        statements.push(inline(sql::FORGET, &[group.into(), named(row, 0)?, named(row, 1)?]));
        gone[0] += 1;
    }
    for row in &old(tx, sql::OLD_BATCHES).await? {
        statements.push(inline(sql::FORGET_BATCH, &[row::int(row, 0)?.into()]));
        gone[1] += 1;
    }
    for row in &old(tx, sql::OLD_FENCES).await? {
        let values = [group.into(), named(row, 0)?, row::int(row, 1)?.into(), named(row, 2)?];
        statements.push(inline(sql::FORGET_FENCE, &values));
        gone[2] += 1;
    }
    if !statements.is_empty() {
        say(tx, &statements.join(";\n")).await?;
    }
    Ok(Swept { deleted: gone[0], more: gone.contains(&u64::from(limit)) })
}
