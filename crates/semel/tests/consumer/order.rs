//! What cannot be applied, and the order of a key.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel::consumer::Options;
use semel::inbox::{Aside, Judged, Verdict};

use crate::nats::{Running, Stream, options};
use crate::world::{World, until};

crate::on_every_database!(
    a_poison_message_parks_its_key_and_other_keys_go_on,
    a_message_that_fails_for_a_while_keeps_its_place,
    a_message_that_always_fails_becomes_a_dead_letter,
);

const DAY: Duration = Duration::from_secs(86_400);

async fn a_poison_message_parks_its_key_and_other_keys_go_on(world: World) {
    // G-41, G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    stream.publish(Some("k1"), Some("k"), "a").await;
    stream.publish(Some("k2"), Some("k"), "poison").await;
    stream.publish(Some("j1"), Some("j"), "a").await;
    stream.publish(Some("k3"), Some("k"), "a").await;
    stream.publish(Some("n1"), None, "a").await;
    stream.publish(Some("k4"), Some("k"), "a").await;
    stream.publish(Some("j2"), Some("j"), "a").await;
    let consumer = Running::start(&stream, &world, world.apply.clone(), options()).await;
    until("all are settled", async || stream.unacknowledged().await == 0).await;
    assert_eq!(world.effects_of("k").await, ["k1"]);
    assert_eq!(world.effects_of("j").await, ["j1", "j2"]);
    assert_eq!(world.effects_of("").await, ["n1"]);

    let letters = world.inbox.letters("g", None, 0, 9).await.unwrap();
    let kept: Vec<_> =
        letters.iter().map(|letter| (letter.id.as_ref().unwrap().as_str(), letter.aside)).collect();
    assert_eq!(kept, [("k2", Aside::Dead), ("k3", Aside::Behind), ("k4", Aside::Behind)]);
    assert_eq!(letters[0].reason, "it is poison");

    world.mood.cured.store(true, Ordering::SeqCst);
    stream.publish(Some("k5"), Some("k"), "a").await;
    let judged = world.inbox.judge("g", letters[0].number, &Verdict::Replay(None)).await.unwrap();
    assert_eq!(judged, Judged::Made);
    until("the key goes on", async || world.effects_of("k").await.len() == 5).await;
    assert_eq!(world.effects_of("k").await, ["k1", "k2", "k3", "k4", "k5"]);
    assert!(world.inbox.letters("g", None, 0, 9).await.unwrap().is_empty());
    consumer.stop().await;
    stream.delete().await;
}

async fn a_message_that_fails_for_a_while_keeps_its_place(world: World) {
    // G-41
    let Some(stream) = Stream::new(DAY).await else { return };
    stream.publish(Some("k1"), Some("k"), "flaky").await;
    stream.publish(Some("k2"), Some("k"), "a").await;
    stream.publish(Some("j1"), Some("j"), "a").await;
    stream.publish(Some("k3"), Some("k"), "a").await;
    let consumer = Running::start(&stream, &world, world.apply.clone(), options()).await;
    until("all are applied", async || world.effects().await.len() == 4).await;
    assert_eq!(world.effects_of("k").await, ["k1", "k2", "k3"]);
    assert_eq!(world.effects().await[0], "j1", "nobody else waited");
    consumer.stop().await;
    stream.delete().await;
}

async fn a_message_that_always_fails_becomes_a_dead_letter(world: World) {
    // G-44
    let Some(stream) = Stream::new(DAY).await else { return };
    stream.publish(Some("1"), None, "flaky").await;
    let options = Options { tries_max: 2, ..options() };
    let consumer = Running::start(&stream, &world, world.apply.clone(), options).await;
    let dead = async || world.inbox.letters("g", Some(Aside::Dead), 0, 9).await.unwrap();
    until("it is dead", async || !dead().await.is_empty()).await;
    let letter = dead().await.remove(0);
    assert_eq!((letter.tries, letter.reason.as_str()), (2, "not today"));
    assert!(world.effects().await.is_empty());
    consumer.stop().await;
    stream.delete().await;
}
