//! What cannot be published now is set aside, its key waits with it, and nobody else does.

use std::sync::Arc;

use semel_core::outbox::{Aside, REASON_BYTES_MAX, Settled};
use semel_core::{Message, Timestamp};

use super::Rig;
use super::scene::{Post, dead, later, message, next, save, sent, settle, text, texts, to};
use crate::scene::{MINUTE, micros};

// G-44
pub(super) async fn a_message_set_aside_is_read_again_after_its_time_and_not_before(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(1).await;
    let written = message(&keys[0], "one");
    post.write(std::slice::from_ref(&written)).await;
    let mut cursor = post.take(lane).await;
    let first = next(&mut cursor, 10).await;
    assert_eq!(first[0].tries, 0);
    let before = post.0.now().await;
    save(&mut cursor, &[later(5)]).await;
    assert_eq!(next(&mut cursor, 10).await, [], "not now");
    let letters = post.outbox().aside(None, 0, 10).await.expect("letters are listed");
    let [letter] = &letters[..] else { panic!("one letter is aside, not {letters:?}") };
    assert_eq!((letter.lane, letter.aside, &*letter.reason), (lane, Aside::Later, "the broker is away"));
    assert_eq!((&*letter.entry.message, letter.entry.tries), (&written, 1));
    let close = |at: Timestamp, to: Timestamp| at.since(to).max(to.since(at)) <= micros(MINUTE);
    assert!(close(letter.since, before), "{letter:?}");
    assert!(letter.again_at.is_some_and(|at| close(at, before.after(micros(5 * MINUTE)))), "{letter:?}");
    post.shift(4 * MINUTE);
    assert_eq!(next(&mut cursor, 10).await, [], "still not");
    post.shift(2 * MINUTE);
    let again = next(&mut cursor, 10).await;
    assert_eq!(again.len(), 1, "its time has come");
    assert_eq!((&*again[0].message, again[0].tries, again[0].behind), (&written, 1, false));
    assert_eq!(again[0].sequence, first[0].sequence);
    assert_eq!(next(&mut cursor, 10).await, again, "until it is saved");
    save(&mut cursor, &sent(1)).await;
    assert_eq!(next(&mut cursor, 10).await, []);
    assert_eq!(post.outbox().aside(None, 0, 10).await.expect("letters are listed"), []);
}

// G-41
pub(super) async fn the_key_of_a_message_set_aside_waits_and_other_keys_go_on(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    let (bad, good) = (&keys[0], &keys[1]);
    post.write(&[message(bad, "b1"), message(good, "g1"), message(bad, "b2"), message(good, "g2")]).await;
    let mut cursor = post.take(lane).await;
    let read = next(&mut cursor, 10).await;
    assert!(read.iter().all(|entry| !entry.behind));
    save(&mut cursor, &settle(&read, |entry| if text(entry) == "b1" { later(30) } else { Settled::Sent }))
        .await;
    post.write(&[message(bad, "b3"), message(good, "g3")]).await;
    let read = next(&mut cursor, 10).await;
    let seen: Vec<_> = read.iter().map(|entry| (text(entry), entry.behind)).collect();
    assert_eq!(seen, [("b3".to_owned(), true), ("g3".to_owned(), false)]);
    save(&mut cursor, &settle(&read, |_| Settled::Sent)).await;
    // Whoever comes next knows it, too.
    drop(cursor);
    post.lapse();
    post.write(&[message(bad, "b4"), message(good, "g4")]).await;
    let mut cursor = post.take(lane).await;
    let read = next(&mut cursor, 10).await;
    let seen: Vec<_> = read.iter().map(|entry| (text(entry), entry.behind)).collect();
    assert_eq!(seen, [("b4".to_owned(), true), ("g4".to_owned(), false)]);
    drop(cursor);
    post.shift(31 * MINUTE);
    let mut relay = post.relay().await;
    relay.send_all().await;
    assert_eq!(relay.sent_of(bad), ["b1", "b2", "b3", "b4"]);
    assert_eq!(relay.sent_of(good), ["g4"]);
}

// G-41: also what an outbox had read before the message was set aside.
pub(super) async fn the_rest_of_a_backlog_waits_for_a_message_of_its_key_that_was_set_aside(
    rig: Arc<dyn Rig>,
) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    let (bad, good) = (&keys[0], &keys[1]);
    let pairs = (1..=6).flat_map(|n| [message(bad, &format!("b{n}")), message(good, &format!("g{n}"))]);
    post.write(&pairs.collect::<Vec<_>>()).await;
    let mut cursor = post.take(lane).await;
    assert_eq!(texts(&next(&mut cursor, 4).await), ["b1", "g1", "b2", "g2"]);
    save(&mut cursor, &[later(30), Settled::Sent, Settled::Behind, Settled::Sent]).await;
    for (first, second) in [(3, 4), (5, 6)] {
        let read = next(&mut cursor, 4).await;
        let seen: Vec<_> = read.iter().map(|entry| (text(entry), entry.behind)).collect();
        let expected = [first, second].map(|n| [(format!("b{n}"), true), (format!("g{n}"), false)]);
        assert_eq!(seen, expected.concat());
        save(&mut cursor, &settle(&read, |_| Settled::Sent)).await;
    }
    drop(cursor);
    post.lapse();
    post.shift(31 * MINUTE);
    let mut relay = post.relay().await;
    relay.send_all().await;
    assert_eq!(relay.sent_of(bad), ["b1", "b2", "b3", "b4", "b5", "b6"]);
    assert_eq!(relay.sent_of(good), [""; 0], "they went on meanwhile");
}

// G-41
pub(super) async fn a_save_of_a_part_holds_up_the_rest_of_the_key(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (lane, keys) = post.one_lane(2).await;
    post.write(&[message(&keys[0], "a1"), message(&keys[1], "b1"), message(&keys[0], "a2")]).await;
    let mut cursor = post.take(lane).await;
    assert_eq!(texts(&next(&mut cursor, 10).await), ["a1", "b1", "a2"]);
    save(&mut cursor, &[later(30)]).await;
    let read = next(&mut cursor, 10).await;
    let seen: Vec<_> = read.iter().map(|entry| (text(entry), entry.behind)).collect();
    assert_eq!(seen, [("b1".to_owned(), false), ("a2".to_owned(), true)]);
}

// G-41
pub(super) async fn those_behind_come_in_order_and_before_newer_ones(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (_, keys) = post.one_lane(2).await;
    let (bad, good) = (&keys[0], &keys[1]);
    let many = |key: &str, range: std::ops::Range<usize>| -> Vec<Message> {
        range.map(|n| message(key, &n.to_string())).collect()
    };
    post.write(&many(bad, 0..20)).await;
    post.write(&many(good, 0..20)).await;
    let mut relay = post.relay().await;
    relay
        .run(6, |entry| if entry.message.key.as_ref() == Some(bad) { later(30) } else { Settled::Sent })
        .await;
    assert_eq!(relay.sent.len(), 20, "the other key went on");
    assert_eq!(relay.aside.iter().filter(|(_, settled)| *settled == Settled::Behind).count(), 19);
    post.write(&many(bad, 20..25)).await;
    relay.run(6, |_| Settled::Sent).await;
    assert_eq!(relay.sent_of(bad), [""; 0], "newer ones wait, too");
    post.shift(31 * MINUTE);
    // More come while those behind are let go, a few at a time.
    for n in 0..10 {
        post.write(&many(bad, 25 + n..26 + n)).await;
        for cursor in &mut relay.cursors {
            let read = next(cursor, 3).await;
            save(cursor, &settle(&read, |_| Settled::Sent)).await;
            relay.sent.extend(read.into_iter().filter(|entry| !entry.behind));
        }
    }
    relay.run(6, |_| Settled::Sent).await;
    let expected: Vec<String> = (0..35).map(|n| n.to_string()).collect();
    assert_eq!(relay.sent_of(bad), expected);
    assert_eq!(post.outbox().aside(None, 0, 10).await.expect("letters are listed"), []);
    let after = message(bad, "after");
    post.write(std::slice::from_ref(&after)).await;
    relay.send_all().await;
    assert_eq!(relay.sent_of(bad).last().map(String::as_str), Some("after"), "the key is free again");
}

// G-41, G-44
pub(super) async fn a_message_that_fails_again_and_again_keeps_its_place_and_its_count(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (_, keys) = post.one_lane(1).await;
    post.write(&[message(&keys[0], "1"), message(&keys[0], "2"), message(&keys[0], "3")]).await;
    let mut relay = post.relay().await;
    let mut tries = Vec::new();
    for n in 0..4 {
        relay
            .run(10, |entry| {
                assert_eq!(text(entry), "1", "nobody overtakes");
                tries.push(entry.tries);
                later(5 + n)
            })
            .await;
        post.shift((6 + n) * MINUTE);
    }
    assert_eq!(tries, [0, 1, 2, 3]);
    relay.send_all().await;
    assert_eq!(relay.sent_of(&keys[0]), ["1", "2", "3"]);
    let counts: Vec<u32> = relay.sent.iter().map(|entry| entry.tries).collect();
    assert_eq!(counts, [4, 0, 0], "who waited behind was not tried");
}

// G-41
pub(super) async fn a_message_without_a_key_holds_nobody_up(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let messages: Vec<Message> = (0..24).map(|n| to("orders.paid", &n.to_string())).collect();
    post.write(&messages).await;
    let mut relay = post.relay().await;
    relay
        .run(5, |entry| match text(entry).parse::<u32>() {
            Ok(n) if n % 3 == 0 => later(5),
            Ok(n) if n % 3 == 1 => dead(),
            _ => Settled::Sent,
        })
        .await;
    assert_eq!((relay.sent.len(), relay.aside.len()), (8, 16));
    assert!(relay.aside.iter().all(|(_, settled)| *settled != Settled::Behind), "nobody is behind");
    post.write(&[to("orders.paid", "more")]).await;
    relay.send_all().await;
    assert_eq!(relay.sent.len(), 9);
    post.shift(6 * MINUTE);
    relay.send_all().await;
    assert_eq!(relay.sent.len(), 17, "the dead stay dead");
}

// G-44
pub(super) async fn what_was_set_aside_survives_a_restart(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    let (_, keys) = post.one_lane(3).await;
    for key in &keys {
        post.write(&[message(key, "1"), message(key, "2")]).await;
    }
    let mut relay = post.relay().await;
    relay
        .run(10, |entry| match entry.message.key.as_ref() {
            Some(key) if *key == keys[0] => later(5),
            Some(key) if *key == keys[1] => dead(),
            _ => Settled::Sent,
        })
        .await;
    let before = post.outbox().aside(None, 0, 10).await.expect("letters are listed");
    assert_eq!(before.len(), 4);
    drop(relay);
    post.0.reopen().await;
    assert_eq!(post.outbox().aside(None, 0, 10).await.expect("letters are listed"), before);
    post.lapse();
    let mut relay = post.relay().await;
    relay.send_all().await;
    assert_eq!(relay.sent_of(&keys[0]), ["1", "2"]);
    assert_eq!(texts(&relay.sent).len(), 2, "the rest is dead or behind the dead");
}

// G-44
pub(super) async fn a_long_reason_is_kept_in_part(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    post.write(&[to("orders.paid", "1"), to("orders.paid", "2")]).await;
    let reason = format!("x{}", "ä\u{0}'".repeat(REASON_BYTES_MAX));
    let mut relay = post.relay().await;
    relay
        .run(10, |entry| match &*text(entry) {
            "1" => Settled::Dead { reason: reason.clone() },
            _ => Settled::Later { reason: reason.clone(), again_in: micros(MINUTE) },
        })
        .await;
    let letters = post.outbox().aside(None, 0, 10).await.expect("letters are listed");
    assert_eq!(letters.len(), 2);
    for letter in letters {
        assert!(letter.reason.starts_with("xä"), "{:?}", letter.reason.get(..9));
        let bytes = letter.reason.len();
        assert!((REASON_BYTES_MAX / 2..=REASON_BYTES_MAX).contains(&bytes), "{bytes} bytes");
    }
}
