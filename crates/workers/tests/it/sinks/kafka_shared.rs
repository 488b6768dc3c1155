//! Lanes that share a producer of Kafka, on a real broker: what one of them meets is no matter of the others.

use std::collections::{BTreeSet, HashSet};

use semel_core::outbox::Term;
use semel_workers::sinks::Trouble;

use super::kafka::{Read, broker, contents, relay_all, sink, topic};
use super::*;

/// What a topic takes in one request, which is enough for many messages together; and a message beyond it.
const LIMIT: &str = "100000";
const LARGE: usize = 200_000;
/// Keys of messages that are fine.
const KEYS: u32 = 40;

/// As often as it takes, like a relay: until nothing is unsent. What was said of each message in the end.
async fn insist(line: &mut dyn Line, parcels: &[Parcel]) -> Vec<Receipt> {
    let mut said = vec![Receipt::Unsent; parcels.len()];
    let mut closed = HashSet::new();
    loop {
        let is_open = |index: usize| said[index] == Receipt::Unsent && !closed.contains(&parcels[index].key);
        let open: Vec<usize> = (0..parcels.len()).filter(|index| is_open(*index)).collect();
        if open.is_empty() {
            return said;
        }
        let some: Vec<Parcel> = open.iter().map(|index| parcels[*index].clone()).collect();
        for (index, receipt) in open.into_iter().zip(publish(line, &some).await) {
            if matches!(receipt, Receipt::Refused(_)) {
                closed.insert(parcels[index].key.clone());
            }
            said[index] = receipt;
        }
    }
}

async fn line_of(sink: &dyn Sink, lane: u16) -> Box<dyn Line> {
    let opened = sink.open(&facts(), Term { lane: Lane(lane), epoch: 1 }).await;
    opened.map(|opened| opened.line).unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn what_is_refused_of_one_lane_is_refused_of_no_other() {
    // G-41, G-44
    let Some(broker) = broker() else { return };
    let topic = topic(&broker, "shared", &[("max.message.bytes", LIMIT)]).await;
    let missing = unique("missing");
    let sink = sink(&broker, "").await;
    let (mut ill, mut well) = (line_of(&sink, 0).await, line_of(&sink, 1).await);
    let with_large: Vec<Message> = (0..40)
        .map(|n| match n % 10 {
            3 => message(&topic, &format!("large{n}"), "9".repeat(LARGE)),
            6 => message(&missing, "m", n.to_string()),
            _ => message(&topic, &format!("k{}", n % 7), n.to_string()),
        })
        .collect();
    let with_large = parcels(&sink, 1, &with_large);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let others = async {
        let (mut stopped, mut count) = (stopped, 0_u32);
        while count < 2000 || stopped.try_recv().is_err() {
            let numbers = count..count + 50;
            let some: Vec<Message> =
                numbers.map(|n| message(&topic, &format!("o{}", n % KEYS), n.to_string())).collect();
            let said = insist(&mut *well, &parcels(&sink, 1, &some)).await;
            assert_eq!(said, vec![Receipt::Landed; 50]);
            count += 50;
        }
        count
    };
    let refused = async {
        let said = insist(&mut *ill, &with_large).await;
        let _ = stop.send(());
        said
    };
    let (said, count) = tokio::join!(refused, others);
    for (n, receipt) in said.iter().enumerate() {
        match (n % 10, receipt) {
            (3, Receipt::Refused(why)) => assert!(why.contains("bytes are more"), "{why}"),
            (6, Receipt::Refused(why)) => assert!(why.contains("does not exist"), "{why}"),
            (3 | 6, other) => panic!("{n}: {other:?}"),
            (_, receipt) => assert_eq!(*receipt, Receipt::Landed, "{n}"),
        }
    }
    let found = contents(&broker, &topic).await;
    assert_each_in_order(&found, 'o', count);
    assert_eq!(found.iter().filter(|one| one.key.starts_with('k')).count(), 32);
}

/// All numbers below `count` are there, and whatever comes again comes after nothing that is new.
fn assert_each_in_order(found: &[Read], prefix: char, count: u32) {
    let mut all = BTreeSet::new();
    for key in 0..KEYS {
        let of_key = found.iter().filter(|one| one.key == format!("{prefix}{key}"));
        let numbers: Vec<u32> = of_key.map(|one| one.text.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{prefix}{key}: {numbers:?}");
        all.extend(numbers);
    }
    assert_eq!(all, (0..count).collect(), "each of them landed");
}

#[tokio::test]
async fn a_relay_with_messages_too_large_in_several_lanes_publishes_all_others_in_order() {
    // G-41, G-44
    let Some(broker) = broker() else { return };
    let topic = topic(&broker, "lanes", &[("max.message.bytes", LIMIT)]).await;
    let outbox = Arc::new(MemoryOutbox::new(8));
    for n in 0..3000 {
        outbox.write([message(&topic, &format!("o{}", n % KEYS), n.to_string())]).unwrap();
        if n % 500 == 250 {
            outbox.write([message(&topic, &format!("large{n}"), "9".repeat(LARGE))]).unwrap();
        }
    }
    relay_all(&outbox, sink(&broker, "").await).await;
    assert_eq!(dead(&outbox).await.len(), 6);
    assert_each_in_order(&contents(&broker, &topic).await, 'o', 3000);
}

#[tokio::test]
async fn nothing_of_a_call_that_was_dropped_comes_after_what_is_sent_next() {
    // G-41, G-42
    let Some(broker) = broker() else { return };
    let topic = topic(&broker, "dropped", &[]).await;
    // One record at a time, so that most of the batch has not left when the call is dropped.
    let sink = sink(&broker, "?batch.num.messages=1&max.in.flight=1").await;
    const MANY: usize = 20_000;
    let many: Vec<Message> = (0..MANY).map(|n| message(&topic, "k0", n.to_string())).collect();
    let many = parcels(&sink, 1, &many);
    let (mut paused, mut other, mut next) =
        (line_of(&sink, 0).await, line_of(&sink, 1).await, line_of(&sink, 0).await);
    let beside: Vec<Message> = (0..100).map(|n| message(&topic, "k1", n.to_string())).collect();
    let beside = parcels(&sink, 1, &beside);
    let first = parcels(&sink, 1, &[message(&topic, "k0", "first")]);
    assert_eq!(publish(&mut *paused, &first).await, [Receipt::Landed]);
    // Another lane waits for its own meanwhile.
    let other = tokio::spawn(async move { insist(&mut *other, &beside).await });
    let soon = Duration::from_millis(100);
    let landed = tokio::time::timeout(soon, publish(&mut *paused, &many)).await;
    assert!(landed.is_err(), "so much cannot land in so little time");
    let marker = parcels(&sink, 2, &[message(&topic, "k0", "marker")]);
    assert_eq!(publish(&mut *next, &marker).await, [Receipt::Landed]);
    assert_eq!(other.await.unwrap(), vec![Receipt::Landed; 100]);
    let texts: Vec<String> = contents(&broker, &topic)
        .await
        .into_iter()
        .filter(|one| one.key == "k0")
        .map(|one| one.text)
        .collect();
    assert!(texts.len() < MANY, "most of it was taken back: {}", texts.len());
    assert_eq!(texts.last().map(String::as_str), Some("marker"));
}

#[tokio::test]
async fn settings_that_contradict_the_order_are_unusable_when_a_line_is_opened() {
    // G-41
    let Some(broker) = broker() else { return };
    let sink = sink(&broker, "?max.in.flight=10").await;
    let opened = sink.open(&facts(), term(1)).await.map(drop);
    assert!(matches!(opened, Err(Trouble::Unusable(_))), "{opened:?}");
}
