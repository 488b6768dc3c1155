//! What operators see.

use std::collections::BTreeMap;
use std::sync::Arc;

use semel_core::outbox::{Aside, Backlog, Found, Lane, Letter, Settled};
use semel_core::{Message, MessageId, Nonce, Topic};

use super::Rig;
use super::scene::{LEASE, Post, dead, later, lease, message, text, to};
use crate::scene::{HOUR, MINUTE, micros};

// G-44
pub(super) async fn a_message_is_found_wherever_it_is(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    let due = post.0.now().await.after(micros(HOUR));
    let delayed = message(&keys[0], "delayed").deliver_after(due);
    let gone = message(&keys[0], "gone");
    let (dead_one, behind) = (message(&keys[0], "dead"), message(&keys[0], "behind"));
    let (late, waiting) = (message(&keys[1], "late"), message(&keys[1], "waiting"));
    post.write(&[delayed.clone(), gone.clone(), dead_one.clone(), behind.clone(), late.clone()]).await;
    let mut relay = post.relay().await;
    relay
        .run(10, |entry| match &*text(entry) {
            "dead" => dead(),
            "late" => later(5),
            _ => Settled::Sent,
        })
        .await;
    post.write(std::slice::from_ref(&waiting)).await;
    assert_eq!(post.find(delayed.id).await, Some(Found::Delayed(delayed)));
    for (message, aside) in [(dead_one, Aside::Dead), (behind, Aside::Behind), (late, Aside::Later)] {
        match post.find(message.id).await {
            Some(Found::Aside(letter)) => {
                assert_eq!((letter.aside, letter.lane, letter.entry.message), (aside, lane, message.into()));
            }
            other => panic!("{aside:?} is aside, not {other:?}"),
        }
    }
    match post.find(waiting.id).await {
        Some(Found::Waiting(at, entry)) => {
            assert_eq!((at, entry.message, entry.tries), (lane, waiting.into(), 0))
        }
        other => panic!("it waits, and is not {other:?}"),
    }
    let found = post.find(gone.id).await;
    assert!(matches!(found, None | Some(Found::Waiting(..))), "published; removed now or later: {found:?}");
    assert_eq!(post.find(MessageId::new()).await, None);
}

// G-44
pub(super) async fn the_overview_counts_what_waits_by_topic_and_lane(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    let overview = || async { post.outbox().overview().await.expect("an overview is answered") };
    let empty = overview().await;
    assert_eq!((empty.delayed, empty.more, &empty.stopped), (0, false, &None));
    assert!(counted(&empty.backlog).is_empty(), "{empty:?}");
    let due = post.0.now().await.after(micros(HOUR));
    let paid = |key: &str, text: &str| to("orders.paid", text).key(key);
    post.write(&[
        paid(&keys[0], "dead"),
        paid(&keys[0], "behind"),
        to("refunds", "behind").key(&*keys[0]),
        paid(&keys[1], "late"),
        paid(&keys[1], "delayed").deliver_after(due),
    ])
    .await;
    let mut relay = post.relay().await;
    relay
        .run(10, |entry| match &*text(entry) {
            "dead" => dead(),
            _ => later(15),
        })
        .await;
    relay.give_back().await;
    let oldest = post.0.now().await;
    post.write(&[to("refunds", "waits").key(&*keys[1]), to("refunds", "waits").key(&*keys[1])]).await;
    post.shift(5 * MINUTE);
    post.write(&[to("refunds", "waits").key(&*keys[1])]).await;
    let holder = Nonce::random();
    let taken = post.outbox().take(lane, holder, lease()).await.expect("asking is answered");
    assert!(matches!(taken, semel_core::outbox::Taken::Yours(_)));
    let full = overview().await;
    assert_eq!((full.delayed, full.more, &full.stopped), (1, false, &None));
    let expected =
        BTreeMap::from([(("orders.paid".into(), lane), (0, 2, 1)), (("refunds".into(), lane), (3, 1, 0))]);
    assert_eq!(counted(&full.backlog), expected);
    let refunds =
        full.backlog.iter().find(|backlog| backlog.topic.as_str() == "refunds" && backlog.waiting > 0);
    let age = refunds.and_then(|refunds| refunds.oldest).expect("somebody waits");
    assert!(age >= micros(4 * MINUTE) && age <= micros(7 * MINUTE), "{age:?} since {oldest:?}");
    let status = full.lanes.iter().find(|status| status.lane == lane).expect("every lane is there");
    assert_eq!(status.holder, Some(holder));
    let until = status.lease_until.expect("a held lane is held until some time");
    assert!(until.since(post.0.now().await) <= micros(LEASE));
    assert!(status.epoch > 0);
}

type Counts = BTreeMap<(String, Lane), (u64, u64, u64)>;

/// What is more than nothing: waiting, aside, dead.
fn counted(backlog: &[Backlog]) -> Counts {
    let mut counts = Counts::new();
    for line in backlog.iter().filter(|line| line.waiting + line.aside + line.dead > 0) {
        let sums = counts.entry((line.topic.as_str().to_owned(), line.lane)).or_default();
        *sums = (sums.0 + line.waiting, sums.1 + line.aside, sums.2 + line.dead);
    }
    counts
}

// G-44
pub(super) async fn waiting_messages_are_listed_page_by_page(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let messages: Vec<Message> = (0..25)
        .map(|n| to(["orders", "refunds"][n % 2], &n.to_string()).key(format!("customer-{}", n % 5)))
        .collect();
    post.write(&messages).await;
    let open = post.hold(&[to("orders", "open")]).await;
    let refunds = Topic::parse("refunds").expect("a topic");
    for (topic, expected) in [(None, 25), (Some(&refunds), 12)] {
        let (mut after, mut found) = (0, Vec::new());
        loop {
            let page = post.outbox().list(topic, after, 4).await.expect("a list is answered");
            assert!(page.len() <= 4);
            let Some((_, last)) = page.last() else { break };
            assert!(last.sequence > after);
            after = last.sequence;
            found.extend(page);
        }
        assert_eq!(found.len(), expected);
        assert!(found.is_sorted_by(|(_, a), (_, b)| a.sequence < b.sequence));
        assert!(topic.is_none_or(|topic| found.iter().all(|(_, entry)| entry.message.topic == *topic)));
        for (lane, entry) in &found {
            assert!(messages.contains(&entry.message), "as it was written");
            assert_eq!(post.lane_of(entry.message.id).await, *lane);
        }
    }
    open.commit().await;
}

// G-44
pub(super) async fn letters_are_listed_page_by_page_and_by_kind(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let messages: Vec<Message> =
        (0..30).map(|n| message(&format!("customer-{}", n % 10), &n.to_string())).collect();
    post.write(&messages).await;
    let mut relay = post.relay().await;
    relay
        .run(7, |entry| match text(entry).parse::<usize>() {
            Ok(n) if n % 10 < 4 => dead(),
            Ok(n) if n % 10 < 7 => later(5),
            _ => Settled::Sent,
        })
        .await;
    for (only, expected) in
        [(None, 21), (Some(Aside::Dead), 4), (Some(Aside::Later), 3), (Some(Aside::Behind), 14)]
    {
        let (mut after, mut found): (u64, Vec<Letter>) = (0, Vec::new());
        loop {
            let page = post.outbox().aside(only, after, 4).await.expect("letters are listed");
            assert!(page.len() <= 4);
            let Some(last) = page.last() else { break };
            assert!(last.entry.sequence > after);
            after = last.entry.sequence;
            found.extend(page);
        }
        assert_eq!(found.len(), expected, "{only:?}");
        assert!(found.is_sorted_by(|a, b| a.entry.sequence < b.entry.sequence));
        assert!(only.is_none_or(|only| found.iter().all(|letter| letter.aside == only)));
    }
}
