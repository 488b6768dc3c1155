//! Consumers that die: what had committed is not applied again, and what had not is.

mod outage;
mod own;

use std::process::Stdio;
use std::time::Duration;

use crate::nats::{Running, Stream, options};
use crate::world::{Place, World, until};

crate::on_every_database!(
    a_crash_between_commit_and_acknowledgement_applies_nothing_twice,
    a_crash_before_the_commit_loses_nothing,
);

const DAY: Duration = Duration::from_secs(86_400);

/// Consumes until it dies, in a process of its own.
#[test]
fn child_that_consumes_until_it_dies() {
    let Ok(stream) = std::env::var("SEMEL_CHILD_STREAM") else { return };
    let given = |name: &str| std::env::var(name).ok();
    let place = given("SEMEL_CHILD_SQLITE").map(|path| Place::Sqlite(path.into()));
    let place = place.or_else(|| given("SEMEL_CHILD_POSTGRES").map(Place::Postgres));
    let place = place.or_else(|| given("SEMEL_CHILD_MYSQL").map(Place::Mysql)).unwrap();
    crate::world::runtime().block_on(async {
        let world = World::open(place).await;
        let stream = Stream::found(stream).await;
        let consumer = Running::start(&stream, &world, world.apply.clone(), options()).await;
        until("it dies", async || false).await;
        consumer.stop().await;
    });
}

async fn die_at(point: &str, world: &World, stream: &Stream) {
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "crash::child_that_consumes_until_it_dies", "--nocapture"]);
    child.env("SEMEL_CRASH_AT", point).env("SEMEL_CHILD_STREAM", &stream.name);
    match &world.place {
        Place::Sqlite(path) => child.env("SEMEL_CHILD_SQLITE", path),
        Place::Postgres(url) => child.env("SEMEL_CHILD_POSTGRES", url),
        Place::Mysql(url) => child.env("SEMEL_CHILD_MYSQL", url),
    };
    let died = child.stdout(Stdio::null()).stderr(Stdio::null()).status().await.unwrap();
    assert!(!died.success(), "it died");
}

async fn then_everything_is_there_once(world: &World, stream: &Stream) {
    let source = stream.source(Duration::from_secs(1)).await;
    let consumer = Running::with(source, world, world.apply.clone(), options());
    until("all are settled", async || stream.unacknowledged().await == 0).await;
    consumer.stop().await;
    let mut effects = world.effects().await;
    effects.sort();
    assert_eq!(effects, ["1", "2", "3", "4", "5"]);
    stream.delete().await;
}

async fn publish(stream: &Stream) {
    // The child's deadline is short, so that what it held comes again soon.
    drop(stream.source(Duration::from_secs(1)).await);
    for n in 1..=5 {
        stream.publish(Some(&n.to_string()), None, "a").await;
    }
}

async fn a_crash_between_commit_and_acknowledgement_applies_nothing_twice(world: World) {
    // G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    publish(&stream).await;
    for _ in 0..2 {
        die_at("inbox-before-ack", &world, &stream).await;
        assert!(stream.unacknowledged().await > 0);
    }
    assert!(!world.effects().await.is_empty(), "it had committed");
    then_everything_is_there_once(&world, &stream).await;
}

async fn a_crash_before_the_commit_loses_nothing(world: World) {
    // G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    publish(&stream).await;
    die_at("inbox-before-commit", &world, &stream).await;
    assert!(world.effects().await.is_empty(), "nothing had committed");
    then_everything_is_there_once(&world, &stream).await;
}
