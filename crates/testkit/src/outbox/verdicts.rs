//! A dead letter waits for an operator, and its key waits with it.

use std::sync::Arc;

use semel_core::outbox::{Aside, Judged, Settled, Verdict};
use semel_core::{Message, MessageId};

use super::Rig;
use super::scene::{Post, Relay, dead, later, message, text, to};
use crate::scene::{DAY, MINUTE};

/// A key whose first of four messages is dead, and a relay that knows.
async fn parked(post: &Post) -> (String, Vec<Message>, Relay) {
    let (_, keys) = post.one_lane(1).await;
    let messages: Vec<Message> = (1..=4).map(|n| message(&keys[0], &n.to_string())).collect();
    post.write(&messages[..3]).await;
    let mut relay = post.relay().await;
    relay.run(10, |entry| if text(entry) == "1" { dead() } else { Settled::Sent }).await;
    post.write(&messages[3..]).await;
    relay.send_all().await;
    assert_eq!(relay.sent, [], "the key is parked");
    (keys[0].clone(), messages, relay)
}

// G-41, G-44
pub(super) async fn a_dead_letter_parks_its_key_until_it_is_judged(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (key, messages, mut relay) = parked(&post).await;
    for _ in 0..3 {
        post.shift(30 * DAY);
        post.tend().await;
        relay.send_all().await;
        assert_eq!(relay.sent, [], "no time makes it go");
    }
    let letters = post.outbox().aside(None, 0, 10).await.expect("letters are listed");
    let kinds: Vec<Aside> = letters.iter().map(|letter| letter.aside).collect();
    assert_eq!(kinds, [Aside::Dead, Aside::Behind, Aside::Behind, Aside::Behind]);
    assert_eq!(letters[0].reason, "the broker will never take it");
    assert_eq!((letters[0].again_at, letters[0].entry.tries), (None, 1));
    assert_eq!(*letters[0].entry.message, messages[0]);
    // Others go on.
    post.write(&[message("somebody-else", "x"), to("orders.paid", "y")]).await;
    relay.send_all().await;
    assert_eq!(relay.sent.len(), 2);
    assert_eq!(post.judge(messages[0].id, Verdict::Replay).await, Judged::Made);
    relay.send_all().await;
    assert_eq!(relay.sent_of(&key), ["1", "2", "3", "4"]);
}

// G-44
pub(super) async fn a_replayed_dead_letter_comes_under_its_id_before_those_behind_it(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (key, messages, mut relay) = parked(&post).await;
    assert_eq!(post.judge(messages[0].id, Verdict::Replay).await, Judged::Made);
    post.write(&[message(&key, "5")]).await;
    // It dies once more; its key goes on waiting.
    relay.run(10, |entry| if text(entry) == "1" { dead() } else { Settled::Sent }).await;
    assert_eq!(relay.sent, []);
    assert_eq!(post.judge(messages[0].id, Verdict::Replay).await, Judged::Made);
    relay.run(2, |_| Settled::Sent).await;
    assert_eq!(relay.sent_of(&key), ["1", "2", "3", "4", "5"]);
    let found: Vec<MessageId> = relay.sent[..4].iter().map(|entry| entry.message.id).collect();
    assert_eq!(found, messages.iter().map(|message| message.id).collect::<Vec<_>>());
}

// G-44
pub(super) async fn an_edited_dead_letter_takes_its_place_under_an_id_of_its_own(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (key, messages, mut relay) = parked(&post).await;
    let edited = message(&key, "1, mended").header("x-edited", "yes");
    let same_id = Message { id: messages[0].id, ..edited.clone() };
    let refused = post.outbox().judge(messages[0].id, &Verdict::Edit(Box::new(same_id))).await;
    assert!(refused.is_err(), "another message under a used id would pass for a duplicate");
    let nonsense = Verdict::Edit(Box::new(edited.clone().header("Semel Id", "1")));
    assert!(post.outbox().judge(messages[0].id, &nonsense).await.is_err(), "it could not be published");
    relay.send_all().await;
    assert_eq!(relay.sent, [], "a refused verdict changes nothing");
    let verdict = Verdict::Edit(Box::new(edited.clone()));
    assert_eq!(post.judge(messages[0].id, verdict.clone()).await, Judged::Made);
    assert_eq!(post.judge(messages[0].id, verdict).await, Judged::NotDead, "it is gone");
    assert_eq!(post.find(messages[0].id).await, None);
    relay.send_all().await;
    assert_eq!(relay.sent_of(&key), ["1, mended", "2", "3", "4"]);
    assert_eq!(*relay.sent[0].message, edited);
}

// G-44
pub(super) async fn a_discarded_dead_letter_never_comes_and_those_behind_go_on(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (key, messages, mut relay) = parked(&post).await;
    assert_eq!(post.judge(messages[0].id, Verdict::Discard).await, Judged::Made);
    assert_eq!(post.judge(messages[0].id, Verdict::Discard).await, Judged::NotDead);
    assert_eq!(post.find(messages[0].id).await, None);
    post.write(&[message(&key, "5")]).await;
    relay.run(2, |_| Settled::Sent).await;
    assert_eq!(relay.sent_of(&key), ["2", "3", "4", "5"]);
    // The last of a key can be discarded, too, and the key is free.
    let alone = message(&key, "alone");
    post.write(std::slice::from_ref(&alone)).await;
    relay.run(10, |_| dead()).await;
    assert_eq!(post.judge(alone.id, Verdict::Discard).await, Judged::Made);
    post.write(&[message(&key, "6")]).await;
    relay.send_all().await;
    assert_eq!(relay.sent_of(&key), ["2", "3", "4", "5", "6"]);
    post.shift(30 * DAY);
    relay.send_all().await;
    assert_eq!(relay.sent.len(), 5);
}

// G-44
pub(super) async fn only_a_dead_letter_is_judged(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (key, messages, mut relay) = parked(&post).await;
    let (waits, unlucky) = (to("orders.paid", "waits"), to("orders.paid", "unlucky"));
    post.write(std::slice::from_ref(&unlucky)).await;
    relay.run(10, |_| later(5)).await;
    post.write(std::slice::from_ref(&waits)).await;
    for id in [messages[1].id, waits.id, unlucky.id, MessageId::new()] {
        for verdict in [
            Verdict::Replay,
            Verdict::Discard,
            Verdict::Edit(Box::new(Message { key: Some(key.clone()), ..to("orders.paid", "other") })),
        ] {
            assert_eq!(post.judge(id, verdict).await, Judged::NotDead);
        }
    }
    post.shift(6 * MINUTE);
    relay.send_all().await;
    assert_eq!(relay.sent.len(), 2, "nothing was lost by it");
}
