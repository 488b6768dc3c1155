//! Sinks that are away, and settings that do not fit them.

use semel_workers::relay::Beyond;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_away_for_minutes_costs_nothing_but_time() {
    // G-44
    let outbox = outbox(2);
    let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let gone = away.clone();
    let recorder = Recorder::new(move |_, _| match gone.load(Ordering::Relaxed) {
        true => Receipt::Down("connection refused".into()),
        false => Receipt::Landed,
    });
    let running = Running::start(outbox.clone(), into(&recorder), impatient());
    outbox.write((0..50).map(|n| message(&format!("k{n}"), format!("k {n}")))).unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(outbox.aside(None, 0, 100).await.unwrap(), [], "nothing is set aside");
    away.store(false, Ordering::Relaxed);
    until("everything is published", || running.published() == 50).await;
    assert_eq!(recorder.count(), 50);
    assert_eq!(running.tally.lost.load(Ordering::Relaxed), 0, "the lanes were renewed all the while");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_topic_that_takes_nothing_does_not_stop_its_lane() {
    // G-44
    let outbox = outbox(1);
    let recorder = Recorder::new(|parcel, _| match parcel.key.as_deref() {
        Some("ill") => Receipt::Down("the partition has no leader".into()),
        _ => Receipt::Landed,
    });
    let running = Running::start(outbox.clone(), into(&recorder), impatient());
    outbox.write((0..20).map(|n| message(&format!("k{n}"), format!("k {n}")))).unwrap();
    outbox.write([message("ill", "ill 0"), message("ill", "ill 1")]).unwrap();
    outbox.write((20..40).map(|n| message(&format!("k{n}"), format!("k {n}")))).unwrap();
    until("the others are published", || running.published() == 40).await;
    let waits =
        || running.tally.set_aside.load(Ordering::Relaxed) + running.tally.dead.load(Ordering::Relaxed);
    until("the ill one is set aside", || waits() > 0).await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_relay_can_stop_while_its_sink_is_away() {
    let outbox = outbox(1);
    let recorder = Recorder::new(|_, _| Receipt::Down("connection refused".into()));
    let running = Running::start(outbox.clone(), into(&recorder), Settings::default());
    outbox.write([message("a", "a 0")]).unwrap();
    until("it is down", || running.tally.downs.load(Ordering::Relaxed) > 3).await;
    running.stop().await.unwrap();
    assert_eq!(outbox.list(None, 0, 10).await.unwrap().len(), 1, "the message is kept");
}

#[tokio::test(start_paused = true)]
async fn a_failing_message_is_tried_with_growing_waits_and_the_same_id() {
    // G-43, G-44
    let outbox = outbox(1);
    let tries = Arc::new(Mutex::new(Vec::new()));
    let seen = tries.clone();
    let recorder = Recorder::new(move |parcel, _| {
        seen.lock().unwrap().push((tokio::time::Instant::now(), parcel.id));
        failed("no")
    });
    let poison = message("a", "a 0");
    outbox.write([poison.clone()]).unwrap();
    let settings = Settings { retry: Retry { quick_tries: 1, ..impatient().retry }, ..Settings::default() };
    let running = Running::start(outbox.clone(), into(&recorder), settings);
    until("it is given up", || running.tally.dead.load(Ordering::Relaxed) == 1).await;
    running.stop().await.unwrap();
    let tries = tries.lock().unwrap();
    assert_eq!(tries.len(), 4, "waits of at most 1, 2 and 4 seconds fit into ten");
    assert!(tries.iter().all(|(_, id)| *id == poison.id));
    let waits: Vec<Duration> = tries.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    for (wait, most) in waits.iter().zip([1u64, 2, 4]) {
        let most = Duration::from_secs(most);
        assert!(*wait >= most / 2 && *wait <= most + Duration::from_millis(100), "{waits:?}");
    }
}

/// A sink with a memory for copies.
struct Forgetful;

impl Sink for Forgetful {
    fn about(&self) -> About {
        About { name: "forgetful", dedup: Dedup::Window(Duration::from_secs(120)), attribute_prefix: "ce-" }
    }

    fn open(&self, _outbox: &Facts, _term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        Box::pin(async { Err(Trouble::Unusable("wrong password".into())) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_horizon_beyond_the_sinks_memory_is_refused_or_warned_about_as_declared() {
    // G-43
    let relay = |beyond_dedup| {
        let settings = Settings { beyond_dedup, ..Settings::default() };
        Relay::new(outbox(1), Arc::new(Forgetful), Arc::new(Tokio::new()), settings)
    };
    let refused = relay(Beyond::Refuse).map(drop).unwrap_err().to_string();
    assert!(refused.contains("recognizes copies for 120s only"), "{refused}");
    assert!(relay(Beyond::Warn).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_can_never_be_used_ends_the_relay_with_the_reason() {
    let running = Running::start(outbox(4), Arc::new(Forgetful), Settings::default());
    let ended = running.task.await.unwrap().unwrap_err().to_string();
    assert!(ended.contains("wrong password"), "{ended}");
}
