//! What a reader that lost its place may still do: nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::consumer::{Delivery, Options, Position, Receipt, Source};
use semel::inbox::Received::{Duplicate, New, Stale};
use semel::inbox::{Applied, Apply, Arrival, Aside, Assignment, Batch, Fence, Horizon, Id, Offset};
use semel::message::Header;
use semel::outbox::{Lane, Term};
use semel::store::Pending;

use crate::nats::{Running, options};
use crate::world::{World, arrival, until};

crate::on_every_database!(
    a_zombie_with_an_old_generation_commits_nothing,
    an_offset_goes_forward_only_and_with_the_effect,
    what_a_zombie_relay_publishes_late_is_kept_and_not_applied,
    a_late_commit_of_the_same_holding_is_applied,
    a_batch_is_judged_as_its_messages_are_one_by_one,
    what_was_published_before_a_newer_holding_is_applied_however_late_it_comes,
    what_a_zombie_relay_publishes_after_its_successor_began_is_stale_however_often_lanes_change_hands,
    a_zombie_relay_in_between_leaves_each_message_applied_once_and_in_order,
    the_rightful_copy_of_a_stale_message_is_applied,
    stores_that_publish_under_one_key_do_not_shut_each_other_out,
    a_partition_lost_in_the_middle_of_a_batch_takes_no_messages_of_others_with_it,
    a_place_without_messages_is_kept_behind_those_before_it_by_whoever_has_the_partition,
);

fn offset(generation: u64, first: i64, next: i64) -> Vec<Offset> {
    vec![Offset { topic: "orders".into(), partition: 0, generation, first, next }]
}

async fn a_zombie_with_an_old_generation_commits_nothing(world: World) {
    // G-47
    let old = world.inbox.assign("g", "orders", 0).await.unwrap();
    assert_eq!(old.next, None);
    let first = [arrival("1", None, "a")];
    assert!(matches!(world.try_apply(&first, offset(old.generation, 0, 1)).await, Applied::Committed(_)));
    let new = world.inbox.assign("g", "orders", 0).await.unwrap();
    assert!(new.generation > old.generation);
    assert_eq!(new.next, Some(1), "it goes on where the database says");

    let second = [arrival("2", None, "b")];
    assert_eq!(world.try_apply(&second, offset(old.generation, 1, 2)).await, Applied::Fenced);
    assert_eq!(world.effects().await, ["1"], "nothing of the zombie's");
    assert!(matches!(world.try_apply(&second, offset(new.generation, 1, 2)).await, Applied::Committed(_)));
    assert_eq!(world.effects().await, ["1", "2"]);
    assert_eq!(world.inbox.assign("g", "orders", 0).await.unwrap().next, Some(2));
    assert_eq!(world.inbox.assign("g", "orders", 1).await.unwrap().next, None);
}

async fn an_offset_goes_forward_only_and_with_the_effect(world: World) {
    // G-47
    let given = world.inbox.assign("g", "orders", 0).await.unwrap();
    world.try_apply(&[arrival("1", None, "a")], offset(given.generation, 4, 5)).await;
    let again = world.try_apply(&[arrival("2", None, "b")], offset(given.generation, 3, 4)).await;
    assert_eq!(again, Applied::Fenced, "what was read before the database's offset");
    let failed = world.try_apply(&[arrival("3", None, "poison")], offset(given.generation, 5, 6)).await;
    assert!(matches!(failed, Applied::Failed { .. }));
    assert_eq!(world.inbox.assign("g", "orders", 0).await.unwrap().next, Some(5), "no effect, no progress");
    assert_eq!(world.effects().await, ["1"]);
}

fn fenced(id: &str, epoch: u64, sequence: u64) -> Arrival {
    Arrival { fence: Some(Fence { lane: 3, epoch, sequence }), ..arrival(id, Some("k"), id) }
}

async fn what_a_zombie_relay_publishes_late_is_kept_and_not_applied(world: World) {
    // G-42
    let apply = async |arrival: Arrival| world.apply(&[arrival]).await;
    assert_eq!(apply(fenced("1", 1, 5)).await, Applied::Committed(vec![New]));
    assert_eq!(apply(fenced("2", 2, 6)).await, Applied::Committed(vec![New]));
    assert_eq!(apply(fenced("1", 1, 5)).await, Applied::Committed(vec![Duplicate]), "known by its id first");
    // Below what was applied. Above it, it would be the next of the same list, see below.
    assert_eq!(apply(fenced("x", 1, 4)).await, Applied::Committed(vec![Stale]));
    assert_eq!(apply(fenced("x", 1, 4)).await, Applied::Committed(vec![Duplicate]), "one letter is enough");
    assert_eq!(apply(fenced("3", 2, 7)).await, Applied::Committed(vec![New]), "its key does not wait");
    assert_eq!(world.effects().await, ["1", "2", "3"]);
    let kept = world.inbox.letters("g", Some(Aside::Stale), 0, 9).await.unwrap();
    assert_eq!(kept.len(), 1, "nothing is lost");
}

/// The same, at a place of a stream.
fn fenced_at(place: u64, epoch: u64, sequence: u64) -> Arrival {
    let mut arrival = fenced(&format!("{sequence}@{place}"), epoch, sequence);
    arrival.message.place = place.to_string();
    arrival
}

async fn what_was_published_before_a_newer_holding_is_applied_however_late_it_comes(world: World) {
    // G-42, G-45
    let apply = async |arrivals: &[Arrival]| world.apply(arrivals).await;
    assert_eq!(apply(&[fenced_at(10, 1, 4)]).await, Applied::Committed(vec![New]));
    assert_eq!(apply(&[fenced_at(12, 2, 6)]).await, Applied::Committed(vec![New]));
    assert_eq!(apply(&[fenced_at(11, 1, 5)]).await, Applied::Committed(vec![New]), "it was on its way");
    assert_eq!(apply(&[fenced_at(13, 1, 3)]).await, Applied::Committed(vec![Stale]), "a zombie's");
    assert_eq!(apply(&[fenced_at(13, 1, 3)]).await, Applied::Committed(vec![Duplicate]));
    let batch = [fenced_at(16, 3, 9), fenced_at(15, 2, 8), fenced_at(14, 2, 7), fenced_at(17, 2, 2)];
    assert_eq!(apply(&batch).await, Applied::Committed(vec![New, New, New, Stale]), "the same in one batch");
    assert_eq!(apply(&[fenced_at(18, 2, 1)]).await, Applied::Committed(vec![Stale]));
    let letters = world.inbox.letters("g", None, 0, 9).await.unwrap();
    assert_eq!(letters.len(), 3, "{letters:?}");
}

async fn what_a_zombie_relay_publishes_after_its_successor_began_is_stale_however_often_lanes_change_hands(
    world: World,
) {
    // G-42
    let apply = async |arrivals: &[Arrival]| world.apply(arrivals).await;
    let new = |count| Applied::Committed(vec![New; count]);
    assert_eq!(apply(&[fenced_at(10, 1, 4)]).await, new(1));
    // The first message of a holding may be delivered last, here and within a batch.
    assert_eq!(apply(&[fenced_at(16, 2, 8)]).await, new(1));
    assert_eq!(apply(&[fenced_at(14, 2, 7), fenced_at(12, 2, 6)]).await, new(2));
    assert_eq!(apply(&[fenced_at(13, 1, 5)]).await, Applied::Committed(vec![Stale]));
    assert_eq!(apply(&[fenced_at(30, 3, 9)]).await, new(1));
    assert_eq!(apply(&[fenced_at(15, 1, 3)]).await, Applied::Committed(vec![Stale]), "still");
    assert_eq!(apply(&[fenced_at(11, 2, 2)]).await, new(1), "nobody else published until 30");
    // A batch with several holdings of a key that was never seen.
    let other = |place, epoch, sequence| {
        let mut arrival = fenced_at(place, epoch, sequence);
        arrival.message.key = Some("other".into());
        arrival
    };
    let batch = [other(41, 1, 21), other(43, 2, 22), other(45, 3, 24)];
    assert_eq!(apply(&batch).await, new(3));
    assert_eq!(apply(&[other(44, 2, 23)]).await, new(1));
    assert_eq!(apply(&[other(42, 1, 20)]).await, Applied::Committed(vec![Stale]), "nobody knows");
    // A ledger of an earlier build does not know where a holding began.
    world.run("UPDATE semel_inbox_fence SET since = NULL").await;
    assert_eq!(apply(&[other(46, 3, 25)]).await, new(1));
    assert_eq!(apply(&[other(40, 2, 19)]).await, Applied::Committed(vec![Stale]));
}

async fn a_batch_is_judged_as_its_messages_are_one_by_one(world: World) {
    // G-42: above what the ledger has already.
    let above: [(&[_], &[_], &[_]); 3] = [
        (&[(10, 1, 1), (20, 2, 9)], &[(15, 2, 4), (17, 1, 5)], &[New, Stale]),
        (&[(10, 1, 9)], &[(15, 2, 4), (17, 1, 5)], &[New, Stale]),
        (&[(20, 2, 5)], &[(25, 1, 9), (26, 1, 7)], &[New, Stale]),
    ];
    for (key, (before, batch, expected)) in above.iter().enumerate() {
        for at_once in [true, false] {
            let named = |(place, epoch, sequence): &(u64, u64, u64)| {
                let mut arrival = fenced_at(*place, *epoch, *sequence);
                arrival.message.key = Some(format!("{key} {at_once}"));
                arrival.id = Id::parse(&format!("{key} {at_once} {sequence}")).unwrap();
                arrival
            };
            for one in before.iter().map(named) {
                assert_eq!(world.apply(&[one]).await, Applied::Committed(vec![New]));
            }
            let batch: Vec<Arrival> = batch.iter().map(named).collect();
            let mut received = Vec::new();
            for some in batch.chunks(if at_once { batch.len() } else { 1 }) {
                let Applied::Committed(more) = world.apply(some).await else { panic!("it is not applied") };
                received.extend(more);
            }
            assert_eq!(received[..], **expected, "{before:?} {at_once}");
        }
    }
}

async fn a_late_commit_of_the_same_holding_is_applied(world: World) {
    // G-40: transactions that overlap commit out of the order of their numbers.
    assert_eq!(world.apply(&[fenced("6", 1, 6)]).await, Applied::Committed(vec![New]));
    assert_eq!(world.apply(&[fenced("5", 1, 5)]).await, Applied::Committed(vec![New]));
    let batch = [fenced("8", 1, 8), fenced("7", 1, 7)];
    assert_eq!(world.apply(&batch).await, Applied::Committed(vec![New, New]));
    assert_eq!(world.effects().await, ["6", "5", "8", "7"]);
    assert!(world.inbox.letters("g", None, 0, 9).await.unwrap().is_empty());
}

async fn a_zombie_relay_in_between_leaves_each_message_applied_once_and_in_order(world: World) {
    // G-42
    assert_eq!(world.apply(&[fenced("6", 2, 6)]).await, Applied::Committed(vec![New]));
    let zombie = [fenced("7", 1, 7), fenced("8", 1, 8), fenced("9", 1, 9)];
    assert_eq!(world.apply(&zombie).await, Applied::Committed(vec![New; 3]), "the next of the same list");
    let rightful = [fenced("7", 2, 7), fenced("8", 2, 8), fenced("9", 2, 9), fenced("10", 2, 10)];
    let all = Applied::Committed(vec![Duplicate, Duplicate, Duplicate, New]);
    assert_eq!(world.apply(&rightful).await, all);
    assert_eq!(world.effects().await, ["6", "7", "8", "9", "10"]);
    assert!(world.inbox.letters("g", None, 0, 9).await.unwrap().is_empty());
}

async fn the_rightful_copy_of_a_stale_message_is_applied(world: World) {
    // G-42, G-45
    let apply = async |arrival: Arrival| world.apply(&[arrival]).await;
    assert_eq!(apply(fenced("6", 2, 6)).await, Applied::Committed(vec![New]));
    assert_eq!(apply(fenced("5", 1, 5)).await, Applied::Committed(vec![Stale]));
    assert_eq!(apply(fenced("5", 2, 5)).await, Applied::Committed(vec![New]), "the successor's late commit");
    assert_eq!(apply(fenced("5", 2, 5)).await, Applied::Committed(vec![Duplicate]));
    assert_eq!(apply(fenced("5", 1, 5)).await, Applied::Committed(vec![Duplicate]));
    let both = [fenced("4", 1, 4), fenced("4", 2, 4)];
    assert_eq!(world.apply(&both).await, Applied::Committed(vec![New, Duplicate]), "also in one batch");
    assert_eq!(world.effects().await, ["6", "5", "4"]);
    assert!(world.inbox.letters("g", None, 0, 9).await.unwrap().is_empty(), "its letter is taken away");
}

async fn stores_that_publish_under_one_key_do_not_shut_each_other_out(world: World) {
    // G-42, G-45
    let from = |store, id: &str, epoch, sequence| {
        let fence = Fence::new(&[store; 16], Term { lane: Lane(0), epoch }, sequence);
        Arrival { fence: Some(fence), ..arrival(id, Some("order-7"), id) }
    };
    assert_eq!(world.apply(&[from(1, "1", 9, 100)]).await, Applied::Committed(vec![New]));
    assert_eq!(world.apply(&[from(2, "2", 1, 5)]).await, Applied::Committed(vec![New]));
    let both = [from(1, "3", 9, 101), from(2, "4", 1, 6)];
    assert_eq!(world.apply(&both).await, Applied::Committed(vec![New, New]));
    assert_eq!(
        world.apply(&[from(1, "5", 8, 99)]).await,
        Applied::Committed(vec![Stale]),
        "its own are compared"
    );
    assert_eq!(world.effects().await, ["1", "2", "3", "4"]);
}

/// Partitions of a topic, read as Kafka is: what was handed out comes again only if its partition is taken again.
struct Log {
    world: World,
    /// What lies in each, and from where it is read on.
    partitions: Vec<(Vec<Arrival>, Assignment)>,
    /// Places behind the messages of each where there is none.
    marks: i64,
}

impl Log {
    async fn take(&mut self, partition: usize) {
        let given = self.world.inbox.assign("g", "orders", partition as i32).await.unwrap();
        self.partitions[partition].1 = given;
    }

    fn read(&mut self, limit: usize) -> Vec<Delivery> {
        let mut read = Vec::new();
        for (partition, (messages, at)) in self.partitions.iter_mut().enumerate() {
            if at.next == Some(messages.len() as i64) {
                at.next = Some(messages.len() as i64 + self.marks);
            }
            while let Some(arrival) = messages.get(at.next.unwrap_or(0) as usize)
                && read.len() < limit
            {
                let offset = at.next.unwrap_or(0);
                let (topic, generation) = ("orders".to_owned(), at.generation);
                let position = Some(Position { topic, partition: partition as i32, generation, offset });
                let mut message = arrival.message.clone();
                message.headers.push(Header { name: "semel-id".into(), value: arrival.id.to_string() });
                read.push(Delivery { receipt: Receipt(0), message, position });
                at.next = Some(offset + 1);
            }
        }
        read
    }
}

impl Source for Log {
    fn horizon(&mut self) -> Pending<'_, Horizon> {
        Box::pin(async { Ok(Horizon::Within(Duration::from_secs(60))) })
    }

    fn next(&mut self, limit: usize, _wait: Duration) -> Pending<'_, Vec<Delivery>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok(self.read(limit))
        })
    }

    fn passed(&self) -> Vec<Offset> {
        let passed = |(partition, (messages, at)): (usize, &(Vec<Arrival>, Assignment))| {
            let end = messages.len() as i64;
            let (topic, partition, next) = ("orders".into(), partition as i32, end + self.marks);
            let offset = Offset { topic, partition, generation: at.generation, first: next, next };
            (self.marks > 0 && at.next == Some(end)).then_some(offset)
        };
        self.partitions.iter().enumerate().filter_map(passed).collect()
    }

    fn extend_every(&self) -> Option<Duration> {
        None
    }

    fn extend<'a>(&'a mut self, _: &'a [Receipt]) -> Pending<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn ack<'a>(&'a mut self, _: &'a [Receipt]) -> Pending<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn nack<'a>(&'a mut self, _: &'a [Receipt], _: Duration) -> Pending<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn fenced<'a>(&'a mut self, offsets: &'a [Offset]) -> Pending<'a, ()> {
        Box::pin(async move {
            for offset in offsets {
                self.take(offset.partition as usize).await;
            }
            Ok(())
        })
    }
}

/// After its first batch, somebody else is given the first partition.
struct Rebalanced {
    world: World,
    done: AtomicBool,
}

impl Apply for Rebalanced {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(async move {
            let applied = self.world.apply.apply(batch).await?;
            if !self.done.swap(true, Ordering::SeqCst) {
                assert!(matches!(applied, Applied::Failed { .. }), "it is divided: {applied:?}");
                self.world.inbox.assign("g", "orders", 0).await?;
            }
            Ok(applied)
        })
    }
}

async fn a_partition_lost_in_the_middle_of_a_batch_takes_no_messages_of_others_with_it(world: World) {
    // G-45, G-47
    let first = vec![arrival("a", None, "a"), arrival("b", None, "poison")];
    let second = ["c", "d", "e"].map(|id| arrival(id, None, id)).to_vec();
    let nothing = || Assignment { generation: 0, next: None };
    let partitions = vec![(first, nothing()), (second, nothing())];
    let mut log = Log { world: world.clone(), partitions, marks: 0 };
    log.take(0).await;
    log.take(1).await;
    let rebalanced = Arc::new(Rebalanced { world: world.clone(), done: AtomicBool::new(false) });
    let consumer = Running::with(log, &world, rebalanced, Options { batch_max: 4, ..options() });
    until("the last of the second partition is applied", async || {
        world.effects().await.contains(&"e".to_owned())
    })
    .await;
    consumer.stop().await;
    let mut effects = world.effects().await;
    effects.sort();
    assert_eq!(effects, ["a", "c", "d", "e"]);
}

/// After its first batch, somebody else is given the partition.
struct Taken {
    world: World,
    done: AtomicBool,
}

impl Apply for Taken {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(async move {
            let applied = self.world.apply.apply(batch).await?;
            if !self.done.swap(true, Ordering::SeqCst) {
                self.world.inbox.assign("g", "orders", 0).await?;
            }
            Ok(applied)
        })
    }
}

async fn a_place_without_messages_is_kept_behind_those_before_it_by_whoever_has_the_partition(world: World) {
    // G-47
    let messages = ["a", "b"].map(|id| arrival(id, None, id)).to_vec();
    let partitions = vec![(messages, Assignment { generation: 0, next: None })];
    let mut log = Log { world: world.clone(), partitions, marks: 2 };
    log.take(0).await;
    let taken = Arc::new(Taken { world: world.clone(), done: AtomicBool::new(false) });
    let consumer = Running::with(log, &world, taken, options());
    let kept = "SELECT CAST(next_offset AS TEXT) FROM semel_inbox_offset WHERE next_offset IS NOT NULL";
    until("the place is kept", async || world.texts(kept).await == ["4"]).await;
    consumer.stop().await;
    assert_eq!(world.effects().await, ["a", "b"]);
    let assigned = world.inbox.assign("g", "orders", 0).await.unwrap();
    assert_eq!(assigned.generation, 4, "what was refused is taken again, once");
}
