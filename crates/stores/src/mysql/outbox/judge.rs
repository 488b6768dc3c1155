//! What an operator does with a dead letter.

use semel_core::error::{Error, Kind};
use semel_core::message::MessageId;
use semel_core::outbox::{Judged, Verdict, check};

use super::super::connect::Live;
use super::super::fault::Fault;
use super::super::pool::retried;
use super::super::row::text;
use super::row::{self, number, signed};
use super::settle::park;
use super::take::hold;
use super::{Desk, sql};

/// # Cancellation
/// It may be done or not; the letter says which.
pub(super) async fn judge(desk: &Desk, id: MessageId, verdict: &Verdict) -> Result<Judged, Error> {
    if let Verdict::Edit(message) = verdict {
        check(std::slice::from_ref(message))?;
        if message.id == id {
            return Err(wrong(
                "an edited message needs an id of its own: under the old one it would pass for a duplicate",
            ));
        }
    }
    retried!(desk.chores.tries_on_any(), live => carry_out(desk, live, id, verdict))
}

fn wrong(sentence: &str) -> Error {
    Error::new(Kind::Misconfigured, sentence)
}

async fn carry_out(desk: &Desk, live: &mut Live, id: MessageId, verdict: &Verdict) -> Result<Judged, Fault> {
    let values = || vec![id.as_bytes()[..].into()];
    let lane = live.ask(sql::LANE_OF_LETTER, values()).await?.rows;
    let Some(lane) = lane.first().map(|found| row::lane(found, 0)).transpose()? else {
        return Ok(Judged::NotDead);
    };
    live.begin().await?;
    hold(live, lane).await?;
    // With the lane in hand nobody else changes its letters.
    let dead = live.ask(sql::DEAD, values()).await?.rows;
    let Some(dead) = dead.first() else {
        live.roll_back().await?;
        return Ok(Judged::NotDead);
    };
    let (sequence, key) = (number(dead, 0)?, text(dead, 1)?);
    let now = desk.now(live).await?;
    let replay = vec![now.as_micros().into(), signed(sequence).into()];
    match verdict {
        Verdict::Replay => {
            live.ask(sql::REPLAY, replay).await?;
        }
        Verdict::Edit(message) if message.key.as_deref() != key => {
            let why = "an edited message keeps its ordering key, because it takes its place among those of that key";
            return Err(wrong(why).into());
        }
        Verdict::Edit(message) => {
            live.ask(sql::EDIT, row::edit(message, signed(sequence))).await?;
            live.ask(sql::REPLAY, replay).await?;
        }
        Verdict::Discard => {
            live.ask(sql::REMOVE_LETTERS, vec![sql::list([sequence]).into()]).await?;
        }
    }
    let keys: Vec<&str> = key.into_iter().collect();
    park(live, lane, &keys, now).await?;
    live.commit(&[]).await?;
    Ok(Judged::Made)
}
