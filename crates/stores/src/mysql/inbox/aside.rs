//! Messages that are not applied, kept whole.

use mysql_async::Value;
use mysql_async::prelude::Queryable;
use semel_core::error::Error;
use semel_core::inbox::{self, SetAside};
use semel_core::{clock, outbox};
use sha2::{Digest, Sha256};

use super::super::chores::no_row;
use super::super::fault::Fault;
use super::super::row;
use super::super::say::{bind, tell};
use super::{signed, sql};

/// Keeps messages that are not applied, whole, with the reason.
///
/// # Cancellation
/// Some may be kept: roll the transaction back.
pub async fn set_aside(tx: &mut impl Queryable, group: &str, letters: &[SetAside<'_>]) -> Result<(), Error> {
    put_all(tx, group, letters).await.map_err(|fault| fault.error())
}

pub(super) async fn put_all(
    tx: &mut impl Queryable,
    group: &str,
    letters: &[SetAside<'_>],
) -> Result<(), Fault> {
    for letter in letters {
        put(tx, group, letter).await?;
    }
    Ok(())
}

/// Keeps messages that failed in a transaction that is gone. One that somebody else has applied since stays applied,
/// and gets no letter.
pub(super) async fn put_later(
    tx: &mut impl Queryable,
    group: &str,
    letters: &[SetAside<'_>],
) -> Result<(), Fault> {
    for letter in letters {
        if let (Some(id), None) = (letter.id, letter.letter)
            && is_done(tx, group, letter.message, id).await?
        {
            continue;
        }
        put(tx, group, letter).await?;
    }
    Ok(())
}

async fn is_done(
    tx: &mut impl Queryable,
    group: &str,
    message: &inbox::Incoming,
    id: &inbox::Id,
) -> Result<bool, Fault> {
    let hash = Sha256::digest(&message.payload);
    let named = || [group.into(), message.source.as_str().into(), id.as_str().into()];
    let mut values = named().to_vec();
    values.extend([size(message), hash[..].into(), hash[..].into()]);
    values.extend(named());
    let said = tell(tx, sql::CLAIM, &values).await?;
    Ok(row::int(said.row(1).ok_or_else(no_row)?, 0)? == 1)
}

async fn put(tx: &mut impl Queryable, group: &str, letter: &SetAside<'_>) -> Result<(), Fault> {
    let reason = outbox::shortened(&letter.reason);
    let (aside, wait) = (Value::from(letter.aside as u8), Value::from(clock::micros(letter.again_in)));
    if let Some(number) = letter.letter {
        let values =
            vec![aside, letter.tries.into(), (*reason).into(), wait, signed(number).into(), group.into()];
        return bind(tx, sql::ASIDE_AGAIN, values).await.map(drop);
    }
    let message = letter.message;
    let hash = Sha256::digest(&message.payload);
    if let Some(id) = letter.id {
        let (source, id) = (message.source.as_str().into(), id.as_str().into());
        let values = [group.into(), source, id, size(message), hash[..].into()];
        tell(tx, sql::ASIDE_ENTRY, &values).await?;
    }
    let id = letter.id.map(inbox::Id::as_str);
    let values = vec![
        same(group, message, id, &hash)[..].into(),
        wait,
        letter.tries.into(),
        aside,
        group.into(),
        message.source.as_str().into(),
        message.place.as_str().into(),
        id.into(),
        message.subject.as_str().into(),
        message.ordering_key().as_deref().into(),
        message.kept_key().as_deref().into(),
        inbox::headers_text(&message.headers).into(),
        (*reason).into(),
        hash[..].into(),
        message.payload[..].into(),
    ];
    bind(tx, sql::ASIDE, values).await.map(drop)
}

fn size(message: &inbox::Incoming) -> Value {
    u32::try_from(message.payload.len()).unwrap_or(u32::MAX).into()
}

/// What the same message at the same place has in common with itself. Each part is preceded by its length, so that
/// parts do not run into each other; no id is empty.
fn same(group: &str, message: &inbox::Incoming, id: Option<&str>, hash: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    let id = id.unwrap_or_default();
    for part in [group.as_bytes(), message.source.as_bytes(), message.place.as_bytes(), id.as_bytes(), hash] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}
