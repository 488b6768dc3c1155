//! A sink that stores how far it came together with the messages is believed.

use std::sync::Arc;

use semel_core::Message;
use semel_core::outbox::{Position, Saved, Settled};

use super::Rig;
use super::scene::{Post, ids, later, message, next, save, sent, settle, text, texts, to};
use crate::scene::MINUTE;

async fn adopt(cursor: &mut Box<dyn semel_core::outbox::Cursor>, position: &Position) {
    assert_eq!(cursor.adopt(position).await.expect("a position is answered"), Saved::Kept);
}

// G-43: the sink committed, and the relay died before it could save.
pub(super) async fn what_a_sink_says_has_landed_is_not_read_again(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    let batch: Vec<Message> = (0..12).map(|n| message(&keys[n % 2], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    let read = next(&mut cursor, 8).await;
    let (none, five) = (cursor.position(0), cursor.position(5));
    drop(cursor);
    post.lapse();
    post.write(&[message(&keys[0], "newer")]).await;
    let mut cursor = post.take(lane).await;
    adopt(&mut cursor, &none).await;
    assert_eq!(next(&mut cursor, 8).await, read, "no message had landed");
    adopt(&mut cursor, &five).await;
    let rest = next(&mut cursor, 100).await;
    assert_eq!(ids(&rest[..3]), ids(&read[5..]), "from the first that had not");
    assert_eq!(rest.len(), 8, "and all the others");
    adopt(&mut cursor, &five).await;
    assert_eq!(next(&mut cursor, 100).await, rest, "saying it twice changes nothing");
    drop(cursor);
    post.0.reopen().await;
    post.lapse();
    let mut cursor = post.take(lane).await;
    assert_eq!(next(&mut cursor, 100).await, rest, "it was written down");
    // The whole batch, on the cursor that read it.
    let all = cursor.position(rest.len());
    adopt(&mut cursor, &all).await;
    assert_eq!(next(&mut cursor, 100).await, []);
}

// G-43
pub(super) async fn an_old_position_changes_nothing(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    let batch: Vec<Message> = (0..12).map(|n| message(&keys[0], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    next(&mut cursor, 8).await;
    let positions: Vec<Position> = (0..=8).map(|n| cursor.position(n)).collect();
    save(&mut cursor, &sent(6)).await;
    for old in &positions[..=6] {
        adopt(&mut cursor, old).await;
        assert_eq!(texts(&next(&mut cursor, 2).await), ["6", "7"]);
    }
    cursor.give_back().await.expect("giving back is answered");
    let mut cursor = post.take(lane).await;
    for old in &positions[..=6] {
        adopt(&mut cursor, old).await;
    }
    let rest = next(&mut cursor, 100).await;
    assert_eq!(texts(&rest), ["6", "7", "8", "9", "10", "11"]);
    save(&mut cursor, &sent(rest.len())).await;
    for old in &positions {
        adopt(&mut cursor, old).await;
    }
    post.write(&[message(&keys[0], "newer")]).await;
    assert_eq!(texts(&next(&mut cursor, 100).await), ["newer"]);
}

// G-40, G-43: what commits after the position was made is not among what landed, whatever its number.
pub(super) async fn a_position_covers_no_transaction_that_commits_after_it(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    if !post.0.writers_overlap() {
        return;
    }
    let late: Vec<Message> = (0..16).map(|n| to("orders.paid", &format!("late {n}"))).collect();
    let open = post.hold(&late).await;
    let early: Vec<Message> = (0..64).map(|n| to("orders.paid", &format!("early {n}"))).collect();
    post.write(&early).await;
    let mut relay = post.relay().await;
    let mut positions = Vec::new();
    for cursor in &mut relay.cursors {
        let read = next(cursor, 100).await;
        positions.push(cursor.position(read.len()));
    }
    open.commit().await;
    drop(relay);
    post.lapse();
    let mut relay = post.relay().await;
    for (cursor, position) in relay.cursors.iter_mut().zip(&positions) {
        adopt(cursor, position).await;
    }
    relay.send_all().await;
    assert_eq!(relay.sent.len(), late.len());
    assert!(texts(&relay.sent).iter().all(|text| text.starts_with("late")));
}

// G-41, G-43
pub(super) async fn a_position_covers_what_was_set_aside_and_read_again(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    post.write(&[message(&keys[0], "a1"), message(&keys[0], "a2"), message(&keys[1], "b1")]).await;
    let mut cursor = post.take(lane).await;
    let read = next(&mut cursor, 10).await;
    let fails = |entry: &semel_core::outbox::Entry| match &*text(entry) {
        "a1" => later(5),
        _ => Settled::Sent,
    };
    save(&mut cursor, &settle(&read, fails)).await;
    post.shift(6 * MINUTE);
    post.write(&[message(&keys[1], "b2")]).await;
    let mut landed = Vec::new();
    // Each batch lands whole, and its relay dies before it can save.
    for _ in 0..6 {
        let read = next(&mut cursor, 10).await;
        assert!(read.iter().all(|entry| !entry.behind), "{read:?}");
        landed.extend(texts(&read));
        let position = cursor.position(read.len());
        drop(cursor);
        post.lapse();
        cursor = post.take(lane).await;
        adopt(&mut cursor, &position).await;
        adopt(&mut cursor, &position).await;
    }
    let of = |key: &str| landed.iter().filter(|text| text.starts_with(key)).cloned().collect::<Vec<_>>();
    assert_eq!((of("a"), of("b")), (vec!["a1".into(), "a2".into()], vec!["b2".into()]));
    assert_eq!(post.outbox().aside(None, 0, 10).await.expect("letters are listed"), []);
}
