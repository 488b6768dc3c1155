//! A lane has one holder, and a stale one changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_core::outbox::{LANES_MAX, Lane, LaneStatus, Saved, Settled, Taken};
use semel_core::{Message, Nonce};

use super::Rig;
use super::scene::{LEASE, Post, dead, later, lease, message, next, save, sent, texts, to};
use crate::scene::{MINUTE, micros};

// G-42
pub(super) async fn an_outbox_says_what_it_is(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let facts = post.outbox().facts();
    assert!(!facts.engine.is_empty());
    assert!((2..=LANES_MAX).contains(&facts.lanes), "the suite needs two lanes and has {}", facts.lanes);
    assert_ne!(facts.store_id, [0; 16]);
    post.0.reopen().await;
    assert_eq!(post.outbox().facts(), facts, "constant for the life of the store");
}

// G-42
pub(super) async fn a_lane_has_one_holder_until_its_lease_lapses(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let before = post.0.now().await;
    let cursor = post.take(Lane(1)).await;
    assert_eq!(cursor.term().lane, Lane(1));
    match post.ask(Lane(1)).await {
        Taken::Held { until, wait } => {
            assert!(until >= before.after(lease()) && until <= before.after(2 * lease()), "{until:?}");
            assert!(wait <= lease() && wait > micros(LEASE - 2 * MINUTE), "{wait:?}");
        }
        _ => panic!("somebody holds it"),
    }
    post.shift(LEASE - MINUTE);
    assert!(matches!(post.ask(Lane(1)).await, Taken::Held { .. }), "still");
    post.shift(2 * MINUTE);
    post.take(Lane(1)).await;
}

// G-42
pub(super) async fn of_many_that_ask_for_a_lane_one_gets_it(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    for round in 0..3 {
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let post = post.clone();
            crowd.spawn(async move { matches!(post.ask(Lane(0)).await, Taken::Yours(_)) });
        }
        let got = crowd.join_all().await.into_iter().filter(|got| *got).count();
        assert_eq!(got, 1, "round {round}");
        post.lapse();
    }
}

// G-42
pub(super) async fn a_lane_given_back_is_free_at_once(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    for _ in 0..3 {
        let cursor = post.take(Lane(0)).await;
        cursor.give_back().await.expect("giving back is answered");
    }
    let overview = post.outbox().overview().await.expect("an overview is answered");
    let lane = overview.lanes.iter().find(|status| status.lane == Lane(0));
    assert!(lane.is_some_and(|status| status.holder.is_none()), "{lane:?}");
}

// G-42
pub(super) async fn an_epoch_grows_each_time_a_lane_changes_hands(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let mut last = None;
    for round in 0..6 {
        let mut cursor = post.take(Lane(0)).await;
        let epoch = cursor.term().epoch;
        assert!(last.is_none_or(|last| epoch > last), "{epoch} after {last:?}");
        save(&mut cursor, &[]).await;
        assert_eq!(cursor.term().epoch, epoch, "a renewal is no change");
        match round % 3 {
            0 => cursor.give_back().await.expect("giving back is answered"),
            1 => post.lapse(),
            _ => {
                post.0.reopen().await;
                post.lapse();
            }
        }
        last = Some(epoch);
    }
}

// G-42: a paused process wakes up after another took its lane.
pub(super) async fn a_zombie_saves_nothing(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    let batch: Vec<Message> = (0..6).map(|n| message(&keys[0], &n.to_string())).collect();
    post.write(&batch).await;
    let zombies: [&[Settled]; 5] =
        [&sent(3), &[later(1), Settled::Behind], &[dead(), Settled::Behind], &[Settled::Sent, dead()], &[]];
    let mut epoch = 0;
    for settled in zombies {
        let mut zombie = post.take(lane).await;
        let read = next(&mut zombie, 6).await;
        assert_eq!(texts(&read), ["0", "1", "2", "3", "4", "5"]);
        let position = zombie.position(4);
        post.lapse();
        let mut holder = post.take(lane).await;
        assert!(holder.term().epoch > zombie.term().epoch && zombie.term().epoch > epoch);
        epoch = holder.term().epoch;
        let save = zombie.save(settled).await.expect("a save is answered");
        assert_eq!(save, Saved::Fenced, "{settled:?}");
        let adopted = zombie.adopt(&position).await.expect("a position is answered");
        assert_eq!(adopted, Saved::Fenced);
        assert_eq!(next(&mut holder, 6).await, read, "{settled:?} changed nothing");
        zombie.give_back().await.expect("giving back is answered");
        let told = post.ask(lane).await;
        assert!(matches!(told, Taken::Held { .. }), "a zombie cannot give away what it lost");
        let letters = post.outbox().aside(None, 0, 10).await.expect("letters are listed");
        assert_eq!(letters, [], "{settled:?} changed nothing");
        post.lapse();
    }
    let mut holder = post.take(lane).await;
    let read = next(&mut holder, 10).await;
    save(&mut holder, &sent(read.len())).await;
    assert_eq!(read.len(), 6, "and nothing was lost");
}

// G-42: lapsing alone takes nothing from anybody.
pub(super) async fn a_lapsed_lane_that_nobody_took_stays_with_its_holder(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    post.write(&[message(&keys[0], "one"), message(&keys[0], "two")]).await;
    let mut cursor = post.take(lane).await;
    next(&mut cursor, 1).await;
    post.lapse();
    save(&mut cursor, &sent(1)).await;
    assert!(matches!(post.ask(lane).await, Taken::Held { .. }), "saving renewed it");
    assert_eq!(texts(&next(&mut cursor, 10).await), ["two"]);
}

// G-42
pub(super) async fn an_empty_save_renews_the_lease_and_settles_nothing(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    post.write(&[message(&keys[0], "one"), message(&keys[0], "two")]).await;
    let mut cursor = post.take(lane).await;
    let read = next(&mut cursor, 10).await;
    for _ in 0..4 {
        post.shift(LEASE - MINUTE);
        save(&mut cursor, &[]).await;
        assert!(matches!(post.ask(lane).await, Taken::Held { .. }), "it is renewed");
    }
    // The batch is still the one to settle.
    save(&mut cursor, &sent(1)).await;
    assert_eq!(next(&mut cursor, 10).await, read[1..]);
}

// G-41
pub(super) async fn messages_of_one_key_are_in_one_lane(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let mut used = BTreeSet::new();
    for key in 0..32 {
        let key = format!("customer-{key}");
        let topics = ["orders", "refunds", "orders.paid"];
        let messages: Vec<Message> = topics.iter().map(|topic| to(topic, "x").key(&*key)).collect();
        post.write(&messages).await;
        post.0.reopen().await;
        let mut lanes = BTreeSet::new();
        for message in &messages {
            lanes.insert(post.lane_of(message.id).await);
        }
        assert_eq!(lanes.len(), 1, "{key} is in {lanes:?}");
        used.extend(lanes);
    }
    assert!(used.len() > 1, "keys are spread");
    let lanes = post.outbox().facts().lanes;
    assert!(used.iter().all(|lane| lane.0 < lanes));
}

// G-41
pub(super) async fn lanes_do_not_wait_for_each_other(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let messages: Vec<Message> = (0..64).map(|n| message(&format!("customer-{n}"), &n.to_string())).collect();
    post.write(&messages).await;
    // The first is held by somebody who does nothing with it.
    let mut stuck = post.take(Lane(0)).await;
    let held = next(&mut stuck, 1000).await;
    let mut found = 0;
    for lane in post.lanes().skip(1) {
        let mut cursor = post.take(lane).await;
        let read = next(&mut cursor, 1000).await;
        save(&mut cursor, &sent(read.len())).await;
        assert_eq!(next(&mut cursor, 1000).await, []);
        found += read.len();
    }
    assert_eq!(found + held.len(), 64);
    assert!(found > 0 && !held.is_empty());
    assert_eq!(next(&mut stuck, 1000).await, held);
}

// G-42
pub(super) async fn a_lane_that_does_not_exist_cannot_be_taken(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let lanes = post.outbox().facts().lanes;
    for lane in [lanes, u16::MAX] {
        let refused = post.outbox().take(Lane(lane), Nonce::random(), lease()).await;
        assert!(refused.is_err(), "there is no lane {lane}");
    }
    let overview = post.outbox().overview().await.expect("an overview is answered");
    let mut known: Vec<Lane> = overview.lanes.iter().map(|LaneStatus { lane, .. }| *lane).collect();
    known.sort();
    assert_eq!(known, post.lanes().collect::<Vec<_>>());
}
