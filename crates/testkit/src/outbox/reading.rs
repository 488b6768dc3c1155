//! What committed is read, all of it, once, and in the order of its key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use semel_core::outbox::{Lane, Saved, Settled};
use semel_core::{Message, MessageId, Timestamp};

use super::Rig;
use super::scene::{Post, ids, message, next, save, sent, text, texts, to};
use crate::scene::MINUTE;

// G-40
pub(super) async fn what_committed_is_read_and_what_rolled_back_never_is(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    post.write(&[message("a", "one"), to("orders.paid", "two")]).await;
    let undone = post.hold(&[message("a", "undone"), to("orders.paid", "undone")]).await;
    undone.roll_back().await;
    post.write(&[message("a", "three")]).await;
    let mut relay = post.relay().await;
    relay.send_all().await;
    let mut found: Vec<String> = texts(&relay.sent);
    found.sort();
    assert_eq!(found, ["one", "three", "two"]);
    assert_eq!(relay.sent_of("a"), ["one", "three"]);
    relay.send_all().await;
    assert_eq!(relay.sent.len(), 3, "nothing comes after the end");
}

// G-40
pub(super) async fn nothing_is_read_before_its_transaction_commits(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let mut relay = post.relay().await;
    let mut open = post.hold(&[message("a", "one")]).await;
    for cursor in &mut relay.cursors {
        assert_eq!(next(cursor, 10).await, [], "it has not happened yet");
    }
    open.write(vec![message("a", "two")]).await.expect("more can be written");
    for cursor in &mut relay.cursors {
        assert_eq!(next(cursor, 10).await, []);
    }
    open.commit().await;
    relay.send_all().await;
    assert_eq!(texts(&relay.sent), ["one", "two"]);
}

// G-40: a relay that remembers only the highest number it saw loses what commits late.
pub(super) async fn a_transaction_that_began_first_and_committed_last_is_not_skipped(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let mut relay = post.relay().await;
    if !post.0.writers_overlap() {
        // The second has to wait; neither is lost.
        let first = post.hold(&[to("orders.paid", "first")]).await;
        let writer = post.clone();
        let second = tokio::spawn(async move { writer.write(&[to("orders.paid", "second")]).await });
        relay.send_all().await;
        assert_eq!(relay.sent, []);
        first.commit().await;
        second.await.expect("the second writes once the first is done");
        relay.send_all().await;
        let found: BTreeSet<String> = relay.sent.iter().map(text).collect();
        assert_eq!(found, BTreeSet::from(["first".into(), "second".into()]));
        return;
    }
    const OPEN: usize = 6;
    let mut open = Vec::new();
    for n in 0..OPEN {
        let many: Vec<Message> = (0..3).map(|m| to("orders.paid", &format!("{n}-{m}"))).collect();
        open.push(post.hold(&many).await);
    }
    post.write(&[to("orders.paid", "last and first")]).await;
    relay.send_all().await;
    assert_eq!(texts(&relay.sent), ["last and first"], "who is open holds nobody up");
    // The latest first; and one in the middle never.
    let mut expected: BTreeSet<String> = ["last and first".to_owned()].into();
    for (n, open) in open.into_iter().enumerate().rev() {
        if n == OPEN / 2 {
            open.roll_back().await;
        } else {
            open.commit().await;
            expected.extend((0..3).map(|m| format!("{n}-{m}")));
        }
        post.write(&[to("orders.paid", &format!("between {n}"))]).await;
        expected.insert(format!("between {n}"));
        relay.send_all().await;
        let found: BTreeSet<String> = relay.sent.iter().map(text).collect();
        assert_eq!(found, expected);
        assert_eq!(relay.sent.len(), expected.len(), "and nothing twice");
    }
}

// G-41
pub(super) async fn messages_of_one_key_are_read_in_the_order_they_were_written(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    const KEYS: usize = 7;
    let mut written: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for transaction in 0..12 {
        let messages: Vec<Message> = (0..5 * KEYS)
            .map(|n| message(&format!("customer-{}", n * n % KEYS), &format!("{transaction}-{n}")))
            .collect();
        for message in &messages {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            written.entry(message.key.clone().unwrap_or_default()).or_default().push(text);
        }
        post.write(&messages).await;
    }
    let mut relay = post.relay().await;
    relay.run(17, |_| Settled::Sent).await;
    for (key, texts) in &written {
        assert_eq!(&relay.sent_of(key), texts, "{key}");
        let of_key = relay.sent.iter().filter(|entry| entry.message.key.as_ref() == Some(key));
        let sequences: Vec<u64> = of_key.map(|entry| entry.sequence).collect();
        assert!(sequences.is_sorted_by(|a, b| a < b), "{key}: {sequences:?}");
    }
    assert_eq!(relay.sent.len(), 12 * 5 * KEYS);
    assert!(relay.sent.iter().all(|entry| entry.tries == 0 && !entry.behind));
}

// G-43
pub(super) async fn a_message_comes_back_field_by_field(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let past = Timestamp::from_micros(1_500_000_000_123_456);
    let mut full = to("orders.paid-2_x.Z", "{\"total\": \"4 €\"}")
        .key("customer-ä/七 ' \" \\ %_")
        .header("x-shop", "berlin")
        .header("x-twice", "1")
        .header("x-twice", "2")
        .header("x-empty", "")
        .header("x-text", "ä七 ' \" \\ , = {}")
        .content_type("application/vnd.shop.order+json; charset=utf-8")
        .correlation("req-018f 'quoted'")
        .causation("018f3c1e-7d2a-7c4b-9b1a-5e2f0c9d8a77");
    full.trace_parent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
    let bare = Message { id: MessageId::at(past), ..to("t", "") }.content_type("");
    post.write(&[full.clone(), bare.clone()]).await;
    let mut relay = post.relay().await;
    relay.send_all().await;
    let mut found: Vec<Message> = relay.sent.into_iter().map(|entry| (*entry.message).clone()).collect();
    found.sort_by_key(|message| message.id);
    assert_eq!(found, [bare, full]);
}

// G-43
pub(super) async fn payloads_of_any_size_come_back_byte_for_byte(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let bytes = |n: usize| -> Vec<u8> { (0..n).map(|at| (at * 89 % 251) as u8).collect() };
    let mut written = BTreeMap::new();
    for size in [0, 1, 255, 256, 8_191, 70_000, 1 << 20, post.0.payload_bytes_max()] {
        let mut message = to("blobs", "").content_type("application/octet-stream");
        message.payload = bytes(size).into();
        post.write(std::slice::from_ref(&message)).await;
        written.insert(message.id, message);
    }
    let every_byte: Vec<u8> = (0..=255).collect();
    let message = Message { payload: every_byte.into(), ..to("blobs", "") };
    post.write(std::slice::from_ref(&message)).await;
    written.insert(message.id, message);
    let mut relay = post.relay().await;
    relay.send_all().await;
    assert_eq!(relay.sent.len(), written.len());
    for entry in &relay.sent {
        let expected = &written[&entry.message.id];
        assert_eq!(entry.message.payload.len(), expected.payload.len());
        assert!(*entry.message == *expected, "{} bytes came back changed", expected.payload.len());
    }
}

// G-44: what is in an outbox can be published; nonsense is refused while its writer can still be told.
pub(super) async fn a_message_that_could_not_be_published_is_refused_when_it_is_written(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let good = message("a", "good");
    for bad in [message("", "bad"), good.clone().header("semel-id", "1"), good.clone().correlation("a\nb")] {
        let refused = post.0.begin(vec![good.clone(), bad.clone()]).await;
        assert!(refused.is_err(), "{bad:?}");
    }
    post.write(&[good]).await;
    let mut relay = post.relay().await;
    relay.send_all().await;
    assert_eq!(texts(&relay.sent), ["good"], "with a bad one nothing was written");
}

// G-42
pub(super) async fn a_batch_has_no_more_than_its_limit_and_begins_the_same_until_it_is_saved(
    rig: Arc<dyn Rig>,
) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    let batch: Vec<Message> = (0..20).map(|n| message(&keys[n % 2], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    let first = next(&mut cursor, 7).await;
    assert_eq!(first.len(), 7);
    assert_eq!(next(&mut cursor, 7).await, first, "nothing was saved");
    let more = next(&mut cursor, 12).await;
    assert_eq!((more.len(), &more[..7]), (12, &first[..]));
    assert_eq!(next(&mut cursor, 7).await, first);
    post.write(&[message(&keys[0], "newer")]).await;
    assert_eq!(next(&mut cursor, 7).await, first, "whatever comes meanwhile");
    let all = next(&mut cursor, 100).await;
    assert_eq!((all.len(), &all[..7]), (21, &first[..]));
}

// G-42
pub(super) async fn what_was_settled_is_not_read_again_and_the_rest_is(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    let batch: Vec<Message> = (0..12).map(|n| message(&keys[0], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    let read = next(&mut cursor, 10).await;
    save(&mut cursor, &sent(4)).await;
    let rest = next(&mut cursor, 10).await;
    assert_eq!(ids(&rest[..6]), ids(&read[4..]), "from the first that was not settled");
    assert_eq!(texts(&rest), ["4", "5", "6", "7", "8", "9", "10", "11"]);
    save(&mut cursor, &sent(rest.len())).await;
    assert_eq!(next(&mut cursor, 10).await, []);
    let listed = post.outbox().list(None, 0, 100).await.expect("a list is answered");
    assert!(listed.is_empty(), "{listed:?}");
    cursor.give_back().await.expect("giving back is answered");
    let mut cursor = post.take(lane).await;
    assert_eq!(next(&mut cursor, 10).await, [], "nor by the next holder");
}

// G-40, G-42: whatever an outbox has read beforehand, what it gives begins where it is settled.
pub(super) async fn a_backlog_goes_on_from_the_first_that_was_not_settled(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    let batch: Vec<Message> = (0..20).map(|n| message(&keys[0], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    assert_eq!(texts(&next(&mut cursor, 4).await), ["0", "1", "2", "3"]);
    save(&mut cursor, &sent(2)).await;
    assert_eq!(texts(&next(&mut cursor, 4).await), ["2", "3", "4", "5"], "some of it was settled");
    save(&mut cursor, &sent(4)).await;
    assert_eq!(texts(&next(&mut cursor, 4).await), ["6", "7", "8", "9"], "all of it was");
    save(&mut cursor, &[]).await;
    assert_eq!(texts(&next(&mut cursor, 4).await), ["6", "7", "8", "9"], "nothing was");
    save(&mut cursor, &sent(4)).await;
    assert_eq!(texts(&next(&mut cursor, 2).await), ["10", "11"], "fewer are wanted");
    save(&mut cursor, &sent(1)).await;
    drop(cursor);
    post.lapse();
    let mut cursor = post.take(lane).await;
    assert_eq!(texts(&next(&mut cursor, 4).await), ["11", "12", "13", "14"], "somebody else goes on");
    save(&mut cursor, &sent(4)).await;
    let rest = next(&mut cursor, 100).await;
    assert_eq!(texts(&rest), ["15", "16", "17", "18", "19"]);
}

// G-42, G-43: a crash between publishing and saving publishes again, the same, under the same ids.
pub(super) async fn what_was_read_and_not_saved_is_read_again_by_the_next_holder(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(3).await;
    let batch: Vec<Message> = (0..30).map(|n| message(&keys[n % 3], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    let first = next(&mut cursor, 10).await;
    save(&mut cursor, &sent(5)).await;
    let read = next(&mut cursor, 10).await;
    assert_eq!(read[..5], first[5..]);
    drop(cursor);
    post.lapse();
    let mut cursor = post.take(lane).await;
    assert_eq!(next(&mut cursor, 10).await, read);
    cursor.give_back().await.expect("giving back is answered");
    let mut cursor = post.take(lane).await;
    assert_eq!(next(&mut cursor, 10).await, read, "giving back settles nothing");
    post.0.reopen().await;
    post.lapse();
    let mut cursor = post.take(lane).await;
    let again = next(&mut cursor, 100).await;
    assert_eq!(again[..10], read[..]);
    assert_eq!(again.len(), 25);
}

// G-40, G-42
pub(super) async fn a_backlog_is_read_to_its_end_through_restarts(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    const MANY: usize = 1200;
    let mut written: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for part in 0..4 {
        let messages: Vec<Message> = (0..MANY / 4)
            .map(|n| message(&format!("customer-{}", (n * 7 + part) % 23), &format!("{part}-{n}")))
            .collect();
        for message in &messages {
            written.entry(message.key.clone().unwrap_or_default()).or_default().push(message.id);
        }
        post.write(&messages).await;
    }
    let mut settled: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for lane in post.lanes() {
        // Reads 64, saves 40, dies; and so on. What arrives meanwhile goes to the end.
        for round in 0.. {
            assert!(round < MANY, "it comes to an end");
            let mut cursor = post.take(lane).await;
            let read = next(&mut cursor, 64).await;
            let kept = read.len().min(40);
            save(&mut cursor, &sent(kept)).await;
            for entry in &read[..kept] {
                settled
                    .entry(entry.message.key.clone().unwrap_or_default())
                    .or_default()
                    .push(entry.message.id);
            }
            drop(cursor);
            post.lapse();
            if read.is_empty() {
                break;
            }
        }
    }
    assert_eq!(settled, written);
}

// G-40, G-41
pub(super) async fn while_writers_write_every_message_is_read_once_in_the_order_of_its_key(
    rig: Arc<dyn Rig>,
) {
    const WRITERS: usize = 4;
    const TRANSACTIONS: usize = 40;
    let post = Post(rig);
    let mut relay = post.relay().await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let post = post.clone();
        writers.spawn(async move {
            let mut written = Vec::new();
            for n in 0..TRANSACTIONS {
                let key = format!("writer-{writer}");
                let (one, two) = (message(&key, &format!("{n}a")), message(&key, &format!("{n}b")));
                let mut open = post.hold(&[one]).await;
                // Every fifth changes its mind.
                if n % 5 == 4 {
                    open.roll_back().await;
                    continue;
                }
                tokio::task::yield_now().await;
                open.write(vec![two]).await.expect("more can be written");
                open.commit().await;
                written.extend([format!("{n}a"), format!("{n}b")]);
            }
            (format!("writer-{writer}"), written)
        });
    }
    let mut written = BTreeMap::new();
    while written.len() < WRITERS {
        relay.run(13, |_| Settled::Sent).await;
        while let Some(done) = writers.try_join_next() {
            let (key, texts) = done.expect("a writer ends");
            written.insert(key, texts);
        }
        tokio::task::yield_now().await;
    }
    relay.run(13, |_| Settled::Sent).await;
    for (key, texts) in &written {
        assert_eq!(&relay.sent_of(key), texts, "{key}");
    }
    assert_eq!(relay.sent.len(), written.values().map(Vec::len).sum::<usize>());
}

// G-42: an answer that got lost is found out by saving the same once more.
pub(super) async fn a_save_whose_answer_was_lost_is_repeated_without_harm(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    let batch: Vec<Message> = (0..9).map(|n| message(&keys[n % 2], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    let read = next(&mut cursor, 6).await;
    // The third fails; the fifth is of its key.
    let mut settled = sent(6);
    settled[2] = super::scene::later(5);
    settled[4] = Settled::Behind;
    if !post.0.lose_answer_of_next_save() {
        return;
    }
    let lost = cursor.save(&settled).await;
    assert!(lost.is_err_and(|error| error.outcome_is_unknown()), "the answer is lost");
    assert_eq!(cursor.save(&settled).await.expect("the second is answered"), Saved::Kept);
    assert_eq!(ids_in_lane(&post, lane).await, ids_of(&batch[6..]), "no further one was settled");
    let rest = next(&mut cursor, 10).await;
    assert!(rest.iter().all(|entry| entry.sequence > read[5].sequence));
    let settled: Vec<Settled> =
        rest.iter().map(|entry| if entry.behind { Settled::Behind } else { Settled::Sent }).collect();
    save(&mut cursor, &settled).await;
    post.shift(6 * MINUTE);
    let mut found = Vec::new();
    for _ in 0..10 {
        let due = next(&mut cursor, 10).await;
        save(&mut cursor, &sent(due.len())).await;
        found.extend(texts(&due));
    }
    assert_eq!(found, ["2", "4", "6", "8"], "each was set aside once");
}

// G-42: what was read stays read while nobody knows whether the lease was renewed.
pub(super) async fn a_renewal_whose_answer_was_lost_forgets_nothing(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    let batch: Vec<Message> = (0..5).map(|n| message(&keys[0], &n.to_string())).collect();
    post.write(&batch).await;
    let mut cursor = post.take(lane).await;
    assert_eq!(next(&mut cursor, 3).await.len(), 3);
    if !post.0.lose_answer_of_next_save() {
        return;
    }
    let lost = cursor.save(&[]).await;
    assert!(lost.is_err_and(|error| error.outcome_is_unknown()), "the answer is lost");
    assert_eq!(cursor.save(&[]).await.expect("the second is answered"), Saved::Kept);
    assert_eq!(cursor.save(&sent(3)).await.expect("what was read can be settled"), Saved::Kept);
    assert_eq!(ids_in_lane(&post, lane).await, ids_of(&batch[3..]));
}

async fn ids_in_lane(post: &Post, lane: Lane) -> Vec<MessageId> {
    let listed = post.outbox().list(None, 0, 1000).await.expect("a list is answered");
    listed.into_iter().filter(|(at, _)| *at == lane).map(|(_, entry)| entry.message.id).collect()
}

fn ids_of(messages: &[Message]) -> Vec<MessageId> {
    messages.iter().map(|message| message.id).collect()
}
