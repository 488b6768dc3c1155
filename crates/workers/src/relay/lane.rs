//! The work on one lane: take it, read, publish, save, give it back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, select};
use semel_core::outbox::{Lane, Settled, Taken};
use semel_core::{Backoff, Nonce};
use tokio::sync::watch;

use super::grip::{Grip, Lost, passes};
use super::plan::{Plan, Then};
use super::settings::jitter;
use super::{Ended, Shared};
use crate::patience::answered;
use crate::sinks::{Batch, Line, Parcel, Stamp, Trouble};

/// Longest pause before a lane that somebody holds is asked for again.
const HELD_PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a relay that has its share leaves a free lane to others.
const GRACE: Duration = Duration::from_secs(1);
/// How long a relay keeps a lane beyond its share before it offers it again.
const OFFER_AFTER: Duration = Duration::from_secs(60);

/// Works on one lane until it is told to stop.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) lane: Lane,
    pub(super) draining: watch::Receiver<bool>,
}

/// Why work on a held lane ended in good order.
enum Left {
    /// The relay is to stop.
    Drained,
    /// It was more than this relay's share, and is not counted any more.
    Offered,
}

/// What came of a batch.
enum Flow {
    Saved,
    /// The line must be opened again.
    Reopen,
}

impl Worker {
    pub(super) async fn run(mut self) -> Result<(), Ended> {
        let shared = self.shared.clone();
        let mut backoff = Backoff::new(Nonce::random());
        while !self.is_draining() {
            if self.has_its_share() {
                self.pause(GRACE).await;
            }
            let sent_at = shared.runtime.elapsed();
            let asked = shared.outbox.take(self.lane, shared.holder, shared.settings.lease);
            match answered(&*shared.runtime, asked).await {
                Ok(Taken::Yours(cursor)) => {
                    backoff = Backoff::new(Nonce::random());
                    let (lease, margin) = (shared.settings.lease, shared.settings.margin);
                    let grip = Grip::new(cursor, shared.runtime.clone(), sent_at, lease, margin);
                    shared.tally.lanes.fetch_add(1, Ordering::Relaxed);
                    let left = self.work(grip).await;
                    if !matches!(left, Ok(Left::Offered)) {
                        shared.tally.lanes.fetch_sub(1, Ordering::Relaxed);
                    }
                    match left {
                        Ok(Left::Drained) => return Ok(()),
                        Ok(Left::Offered) => self.pause(GRACE).await,
                        Err(lost) => self.lost(lost).await?,
                    }
                }
                Ok(Taken::Held { wait, .. }) => {
                    self.pause(wait.min(HELD_PAUSE_MAX).mul_f64(0.5 + jitter() / 2.0)).await;
                }
                Ok(Taken::Stopped { why }) => return Err(Ended::Stopped(why)),
                Err(error) if passes(&error) => {
                    tracing::warn!(target: "semel::relay", lane = self.lane.0, %error, "the lane could not be asked for");
                    self.pause(backoff.next_pause()).await;
                }
                Err(error) => return Err(Ended::Store(error)),
            }
        }
        Ok(())
    }

    /// Whether the relay is to stop, or is gone.
    fn is_draining(&self) -> bool {
        *self.draining.borrow() || self.draining.has_changed().is_err()
    }

    fn has_its_share(&self) -> bool {
        let held = self.shared.tally.lanes.load(Ordering::Relaxed);
        self.shared.settings.share.is_some_and(|share| held >= u64::from(share))
    }

    /// Whether this lane is one too many. If so it is no longer counted, so that no other lane goes for the
    /// same reason.
    fn leave_if_surplus(&self) -> bool {
        let Some(share) = self.shared.settings.share else { return false };
        let without = |held: u64| (held > u64::from(share)).then(|| held - 1);
        self.shared.tally.lanes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, without).is_ok()
    }

    /// Waits, but no longer than until the relay is to stop.
    async fn pause(&mut self, wait: Duration) {
        let sleep = self.shared.runtime.sleep(wait);
        let draining = std::pin::pin!(self.draining.wait_for(|draining| *draining));
        match select(sleep, draining).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }

    async fn lost(&mut self, lost: Lost) -> Result<(), Ended> {
        let lane = self.lane.0;
        match lost {
            Lost::Store(error) => return Err(Ended::Store(error)),
            Lost::Sink(why) => return Err(Ended::Sink(why)),
            Lost::Fenced => {
                tracing::warn!(target: "semel::relay", lane, "somebody else has the lane; what is unsaved comes again");
            }
            Lost::Lapsed(error) => {
                let error = error.map(tracing::field::display);
                tracing::warn!(target: "semel::relay", lane, error, "the lease could not be renewed in time");
            }
        }
        self.shared.tally.lost.fetch_add(1, Ordering::Relaxed);
        self.pause(HELD_PAUSE_MAX.mul_f64(jitter())).await;
        Ok(())
    }

    async fn work(&mut self, mut grip: Grip) -> Result<Left, Lost> {
        let shared = self.shared.clone();
        let since = shared.runtime.elapsed();
        let term = grip.term();
        tracing::info!(target: "semel::relay", lane = term.lane.0, epoch = term.epoch, "lane taken");
        let about = shared.sink.about();
        let (format, source) = (shared.settings.format, shared.settings.source.as_deref());
        let stamp = Stamp::new(&shared.facts, term, format, about.attribute_prefix, source);
        let mut idle = shared.settings.poll;
        loop {
            let Some(mut line) = self.open(&mut grip).await? else {
                grip.give_back().await;
                return Ok(Left::Drained);
            };
            loop {
                if self.is_draining() {
                    grip.give_back().await;
                    return Ok(Left::Drained);
                }
                if shared.runtime.elapsed().saturating_sub(since) > OFFER_AFTER && self.leave_if_surplus() {
                    grip.give_back().await;
                    return Ok(Left::Offered);
                }
                let read_at = shared.runtime.elapsed();
                let entries = grip.next(shared.settings.batch).await?.unwrap_or_default();
                if entries.is_empty() {
                    grip.hold(self.pause(idle)).await?;
                    idle = (idle * 2).min(shared.settings.poll_max);
                    continue;
                }
                idle = shared.settings.poll;
                let more_waits = entries.len() >= shared.settings.batch;
                match self.publish(&mut grip, &mut line, &stamp, Plan::new(entries)).await? {
                    Flow::Saved => {}
                    Flow::Reopen => break,
                }
                // Steps as small as they can be would cost the database more than the messages do.
                let rest = (read_at + shared.settings.poll).saturating_sub(shared.runtime.elapsed());
                if !more_waits && !rest.is_zero() {
                    grip.hold(self.pause(rest)).await?;
                }
            }
        }
    }

    /// Opens the sink's line, waiting for as long as the sink is down. `None`: the relay is to stop.
    async fn open(&mut self, grip: &mut Grip) -> Result<Option<Box<dyn Line>>, Lost> {
        let shared = self.shared.clone();
        let mut backoff = Backoff::new(Nonce::random());
        let (mut told, term) = (false, grip.term());
        while !self.is_draining() {
            match grip.hold(shared.sink.open(&shared.facts, term)).await? {
                Ok(opened) => {
                    if let Some(landed) = &opened.landed {
                        grip.adopt(landed).await?;
                    }
                    return Ok(Some(opened.line));
                }
                Err(Trouble::Fenced) => return Err(Lost::Fenced),
                Err(Trouble::Unusable(why)) => return Err(Lost::Sink(why)),
                Err(Trouble::Down(reason)) => {
                    self.down(&reason, &mut told);
                    grip.hold(self.pause(backoff.next_pause())).await?;
                }
            }
        }
        Ok(None)
    }

    fn down(&self, reason: &str, told: &mut bool) {
        self.shared.tally.downs.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(told, true) {
            tracing::warn!(target: "semel::relay", lane = self.lane.0, reason, "the sink is down; messages wait");
        }
    }

    /// Publishes a batch and saves what became of it.
    async fn publish(
        &mut self,
        grip: &mut Grip,
        line: &mut Box<dyn Line>,
        stamp: &Stamp,
        mut plan: Plan,
    ) -> Result<Flow, Lost> {
        let shared = self.shared.clone();
        let mut backoff = Backoff::new(Nonce::random());
        let mut told = false;
        loop {
            let atomic = line.is_atomic();
            let indexes = if atomic { (0..plan.open_first()).collect() } else { plan.open() };
            if indexes.is_empty() {
                break;
            }
            grip.ensure().await?;
            let parcels: Vec<Parcel> = indexes.iter().map(|index| stamp.parcel(plan.entry(*index))).collect();
            let position = atomic.then(|| grip.position(parcels.len()));
            let batch = Batch { parcels: &parcels, position: position.as_ref() };
            let receipts = grip.hold(line.publish(batch)).await?;
            match plan.take_in(&indexes, receipts, &shared.settings.retry, jitter()) {
                Then::Fenced => return Err(Lost::Fenced),
                Then::Save => break,
                // Its next position counts from what is saved.
                _ if atomic && !plan.settled().is_empty() => break,
                Then::GoOn => {}
                Then::Pause => grip.hold(self.pause(backoff.next_pause())).await?,
                Then::Wait(reason) => {
                    self.down(&reason, &mut told);
                    grip.hold(self.pause(backoff.next_pause())).await?;
                    // What landed of a batch with a position is for the sink to say.
                    if atomic {
                        return Ok(Flow::Reopen);
                    }
                    match self.open(grip).await? {
                        Some(opened) => *line = opened,
                        None => break,
                    }
                }
            }
        }
        if told {
            tracing::info!(target: "semel::relay", lane = self.lane.0, "the sink is back");
        }
        let settled = plan.settled();
        grip.save(&settled).await?;
        shared.tally.add(&settled);
        self.tell(&plan, &settled);
        Ok(Flow::Saved)
    }

    /// Says what was set aside, and why.
    fn tell(&self, plan: &Plan, settled: &[Settled]) {
        for (index, settled) in settled.iter().enumerate() {
            let message = &plan.entry(index).message;
            let (lane, id, topic) = (self.lane.0, message.id, message.topic.as_str());
            match settled {
                Settled::Sent | Settled::Behind => {}
                Settled::Later { reason, again_in } => {
                    tracing::warn!(target: "semel::relay", lane, %id, topic, reason, ?again_in, "message set aside");
                }
                Settled::Dead { reason } => {
                    tracing::error!(target: "semel::relay", lane, %id, topic, reason, "message is a dead letter");
                }
            }
        }
    }
}
