//! A message that is to go out later.

use std::sync::Arc;

use semel_core::outbox::Found;
use semel_core::{Message, Timestamp};

use super::Rig;
use super::scene::{Post, message, texts, to};
use crate::scene::{HOUR, MINUTE, micros};

// G-41
pub(super) async fn a_delayed_message_is_read_after_its_time_and_not_before(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let now = post.0.now().await;
    let at = |minutes: i64| now.after(micros(minutes * MINUTE));
    let delayed: Vec<Message> =
        [30, 10, 20].map(|n| to("reminders", &n.to_string()).deliver_after(at(n))).into();
    post.write(&delayed).await;
    let past = Timestamp::from_micros(now.as_micros() - 10 * MINUTE);
    post.write(&[to("reminders", "past").deliver_after(past)]).await;
    let undone = post.hold(&[to("reminders", "undone").deliver_after(at(5))]).await;
    undone.roll_back().await;
    let mut relay = post.relay().await;
    post.tend().await;
    relay.send_all().await;
    assert_eq!(texts(&relay.sent), ["past"], "its time had come before it was written");
    assert_eq!(post.find(delayed[0].id).await, Some(Found::Delayed(delayed[0].clone())));
    for (minutes, due) in [(9, 0), (2, 1), (8, 0), (2, 1), (8, 0), (2, 1), (600, 0)] {
        post.shift(minutes * MINUTE);
        assert_eq!(post.tend().await, due);
        relay.send_all().await;
    }
    assert_eq!(texts(&relay.sent), ["past", "10", "20", "30"]);
    let overview = post.outbox().overview().await.expect("an overview is answered");
    assert_eq!(overview.delayed, 0);
    for entry in &relay.sent[1..] {
        let written = delayed.iter().find(|message| message.id == entry.message.id);
        let found = Message { deliver_after: None, ..(*entry.message).clone() };
        let written = written.map(|message| Message { deliver_after: None, ..message.clone() });
        assert_eq!(Some(found), written, "in all other fields as it was written");
    }
}

// G-41
pub(super) async fn a_delayed_message_leaves_the_order_of_its_key(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let due = post.0.now().await.after(micros(HOUR));
    post.write(&[message("a", "1"), message("a", "delayed").deliver_after(due), message("a", "2")]).await;
    let mut relay = post.relay().await;
    relay.send_all().await;
    assert_eq!(relay.sent_of("a"), ["1", "2"]);
    post.shift(HOUR + MINUTE);
    post.tend().await;
    post.write(&[message("a", "3")]).await;
    relay.send_all().await;
    assert_eq!(relay.sent_of("a"), ["1", "2", "delayed", "3"], "it comes after what was there before it");
}
