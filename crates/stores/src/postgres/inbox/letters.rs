//! Letters, as the table holds them.

use semel_core::Timestamp;
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Aside, Id, Incoming, Letter, headers_of};
use tokio_postgres::Row;

use crate::postgres::connect::get;

/// Reads the columns of `inbox_due.sql` and `inbox_letters.sql`.
pub(super) fn read(row: &Row) -> Result<Letter, Error> {
    let number = |at| get::<i64>(row, at);
    let damaged = || Error::new(Kind::Damaged, "a letter of the inbox holds something that cannot be read");
    let id: Option<&str> = get(row, 8)?;
    let aside = u8::try_from(get::<i16>(row, 4)?).ok().and_then(Aside::from_byte).ok_or_else(damaged)?;
    let again_at = get::<Option<i64>>(row, 2)?.filter(|_| aside == Aside::Later);
    Ok(Letter {
        number: u64::try_from(number(0)?).map_err(|_| damaged())?,
        group: get(row, 5)?,
        id: id.map(Id::parse).transpose().map_err(|_| damaged())?,
        message: Incoming {
            source: get(row, 6)?,
            place: get(row, 7)?,
            subject: get(row, 9)?,
            key: get(row, 10)?,
            headers: headers_of(get(row, 11)?),
            payload: get::<Vec<u8>>(row, 13)?.into(),
        },
        aside,
        reason: get(row, 12)?,
        tries: u32::try_from(get::<i32>(row, 3)?).unwrap_or(0),
        since: Timestamp::from_micros(number(1)?),
        again_at: again_at.map(Timestamp::from_micros),
    })
}
