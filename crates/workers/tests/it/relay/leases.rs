//! One publisher per lane, whoever was paused, killed or told to stop (G-42).

use semel_core::Nonce;
use semel_core::inbox::Fence;
use semel_core::outbox::{
    Cursor, Entry, Found, Judged, Lane, Overview, Position, Saved, Settled, Taken, Tended, Verdict,
};
use semel_core::store::Pending;
use tokio::sync::watch;

use super::*;

/// What happens to the calls of one relay while the others go on.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// A batch that was read is handed over only when the gate opens: a paused process.
    NextWaits,
    /// Saves of something vanish: a process that dies between publishing and saving.
    SavesVanish,
}

/// The same outbox, seen by a process in trouble.
struct Troubled {
    outbox: Arc<MemoryOutbox>,
    fault: Fault,
    gate: watch::Receiver<bool>,
}

struct TroubledCursor {
    cursor: Box<dyn Cursor>,
    fault: Fault,
    gate: watch::Receiver<bool>,
}

impl Outbox for Troubled {
    fn facts(&self) -> Facts {
        self.outbox.facts()
    }

    fn take(&self, lane: Lane, holder: Nonce, lease: Duration) -> Pending<'_, Taken> {
        Box::pin(async move {
            Ok(match self.outbox.take(lane, holder, lease).await? {
                Taken::Yours(cursor) => Taken::Yours(Box::new(TroubledCursor {
                    cursor,
                    fault: self.fault,
                    gate: self.gate.clone(),
                })),
                other => other,
            })
        })
    }

    fn tend(&self) -> Pending<'_, Tended> {
        self.outbox.tend()
    }

    fn overview(&self) -> Pending<'_, Overview> {
        self.outbox.overview()
    }

    fn list(&self, topic: Option<&Topic>, after: u64, limit: u32) -> Pending<'_, Vec<(Lane, Entry)>> {
        self.outbox.list(topic, after, limit)
    }

    fn aside(&self, only: Option<Aside>, after: u64, limit: u32) -> Pending<'_, Vec<Letter>> {
        self.outbox.aside(only, after, limit)
    }

    fn find(&self, id: MessageId) -> Pending<'_, Option<Found>> {
        self.outbox.find(id)
    }

    fn judge<'a>(&'a self, id: MessageId, verdict: &'a Verdict) -> Pending<'a, Judged> {
        self.outbox.judge(id, verdict)
    }

    fn rebase<'a>(&'a self, by: &'a str) -> Pending<'a, u64> {
        self.outbox.rebase(by)
    }
}

impl Cursor for TroubledCursor {
    fn term(&self) -> Term {
        self.cursor.term()
    }

    fn next(&mut self, limit: usize) -> Pending<'_, Vec<Entry>> {
        Box::pin(async move {
            let read = self.cursor.next(limit).await;
            if self.fault == Fault::NextWaits {
                self.gate.wait_for(|open| *open).await.unwrap();
            }
            read
        })
    }

    fn save<'a>(&'a mut self, settled: &'a [Settled]) -> Pending<'a, Saved> {
        match self.fault == Fault::SavesVanish && !settled.is_empty() {
            true => Box::pin(std::future::pending()),
            false => self.cursor.save(settled),
        }
    }

    fn position(&self, count: usize) -> Position {
        self.cursor.position(count)
    }

    fn adopt<'a>(&'a mut self, position: &'a Position) -> Pending<'a, Saved> {
        self.cursor.adopt(position)
    }

    fn give_back(self: Box<Self>) -> Pending<'static, ()> {
        self.cursor.give_back()
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_was_paused_past_its_lease_publishes_nothing_more() {
    // G-42
    let outbox = outbox(1);
    outbox.write((0..10).map(|n| message("a", format!("a {n}")))).unwrap();
    let (open, gate) = watch::channel(false);
    // It would land at once, before anybody could notice.
    let zombies = Recorder::slow(Duration::ZERO, |_, _| Receipt::Landed);
    let others = Recorder::taking_all();
    let paused = Troubled { outbox: outbox.clone(), fault: Fault::NextWaits, gate };
    let zombie = Running::start(Arc::new(paused), into(&zombies), Settings::default());
    until("the lane is held", || zombie.tally.lanes.load(Ordering::Relaxed) == 1).await;

    let other = Running::start(outbox.clone(), into(&others), Settings::default());
    until("the other took over", || other.published() == 10).await;
    open.send(true).unwrap();
    until("the zombie noticed", || zombie.tally.lost.load(Ordering::Relaxed) == 1).await;
    assert_eq!(zombies.count(), 0, "its time was over");
    assert_eq!(others.count(), 10);
    zombie.stop().await.unwrap();
    other.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_publish_and_save_publishes_again_under_the_same_ids_in_the_same_order() {
    // G-42, G-43
    let outbox = outbox(1);
    outbox.write((0..10).map(|n| message("a", format!("a {n}")))).unwrap();
    let (_open, gate) = watch::channel(false);
    let recorder = Recorder::taking_all();
    let dying = Troubled { outbox: outbox.clone(), fault: Fault::SavesVanish, gate };
    let dying = Running::start(Arc::new(dying), into(&recorder), Settings::default());
    until("it published", || recorder.count() == 10).await;
    dying.task.abort();

    let heir = Running::start(outbox.clone(), into(&recorder), Settings::default());
    until("the heir saved", || heir.published() == 10).await;
    heir.stop().await.unwrap();
    let ids = recorder.ids();
    assert_eq!(ids.len(), 20);
    assert_eq!(ids[..10], ids[10..]);
    let fences: Vec<Fence> = recorder.landed.lock().unwrap().iter().map(fence).collect();
    assert!(fences.iter().all(|fence| fence.lane == fences[0].lane), "{fences:?}");
    assert!(fences[..10].iter().all(|fence| fence.epoch == 1), "{fences:?}");
    assert!(fences[10..].iter().all(|fence| fence.epoch == 2), "receivers can tell: {fences:?}");
}

fn fence(parcel: &Parcel) -> Fence {
    let value = parcel.headers.get("semel-fence").unwrap();
    Fence::parse(value).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_slow_publish_keeps_its_lane() {
    // G-42
    let outbox = outbox(1);
    outbox.write([message("a", "a 0")]).unwrap();
    let slow = Recorder::slow(Duration::from_secs(120), |_, _| Receipt::Landed);
    let quick = Recorder::taking_all();
    let first = Running::start(outbox.clone(), into(&slow), Settings::default());
    until("the lane is held", || first.tally.lanes.load(Ordering::Relaxed) == 1).await;
    let second = Running::start(outbox.clone(), into(&quick), Settings::default());
    until("it is published", || first.published() == 1).await;
    assert_eq!((slow.count(), quick.count()), (1, 0));
    assert_eq!(first.tally.lost.load(Ordering::Relaxed), 0);
    first.stop().await.unwrap();
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_told_to_stop_finishes_its_batch_and_gives_its_lanes_back() {
    // G-42
    let outbox = outbox(2);
    outbox.write((0..100).map(|n| message(&format!("k{n}"), format!("k {n}")))).unwrap();
    let slow = Recorder::slow(Duration::from_secs(1), |_, _| Receipt::Landed);
    let running = Running::start(outbox.clone(), into(&slow), Settings::default());
    until("it is at it", || slow.count() > 0).await;
    running.stop().await.unwrap();
    assert_eq!(slow.count(), 100);
    let overview = outbox.overview().await.unwrap();
    assert_eq!(overview.backlog, [], "what was published is saved");
    assert!(overview.lanes.iter().all(|lane| lane.holder.is_none()), "{:?}", overview.lanes);
}

#[tokio::test(start_paused = true)]
async fn relays_with_a_share_leave_the_rest_to_each_other_and_take_over_what_is_free() {
    // G-42
    let outbox = outbox(8);
    let recorder = Recorder::taking_all();
    let half = Settings { share: Some(4), ..Settings::default() };
    let lanes = |relay: &Running| relay.tally.lanes.load(Ordering::Relaxed);
    let first = Running::start(outbox.clone(), into(&recorder), half.clone());
    until("alone it takes all", || lanes(&first) == 8).await;
    let second = Running::start(outbox.clone(), into(&recorder), half);
    until("they share", || lanes(&first) == 4 && lanes(&second) == 4).await;
    first.stop().await.unwrap();
    until("what is free is taken over", || lanes(&second) == 8).await;
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_relay_stops_and_says_why_when_the_outbox_was_restored() {
    // G-44
    let outbox = outbox(2);
    outbox.write([message("a", "a 0")]).unwrap();
    let backup = outbox.back_up();
    let recorder = Recorder::taking_all();
    let running = Running::start(outbox.clone(), into(&recorder), Settings::default());
    until("it is published", || running.published() == 1).await;
    running.stop().await.unwrap();
    outbox.restore(backup);

    let again = Running::start(outbox.clone(), into(&recorder), Settings::default());
    let ended = again.task.await.unwrap().unwrap_err().to_string();
    assert!(ended.contains("restored") && ended.contains("rebase"), "{ended}");
    assert_eq!(outbox.rebase("me").await.unwrap(), 1);
    let again = Running::start(outbox.clone(), into(&recorder), Settings::default());
    until("it is published again", || again.published() == 1).await;
    again.stop().await.unwrap();
    let ids = recorder.ids();
    assert!(ids.len() == 2 && ids[0] == ids[1], "a duplicate under its id, no loss: {ids:?}");
}
