//! Order per key, whatever goes wrong (G-41).

use std::collections::{HashMap, HashSet};

use super::*;

/// Pseudo-random, the same in each run.
fn dice(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

fn number(text: &str) -> u32 {
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

/// First copies, by key.
fn first_copies(recorder: &Recorder) -> HashMap<String, Vec<u32>> {
    let mut seen = HashSet::new();
    let mut by_key: HashMap<String, Vec<u32>> = HashMap::new();
    for parcel in recorder.landed.lock().unwrap().iter() {
        if seen.insert(parcel.id) {
            let text = String::from_utf8(parcel.body.to_vec()).unwrap();
            by_key.entry(parcel.key.clone().unwrap()).or_default().push(number(&text));
        }
    }
    by_key
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_key_land_in_order_whatever_fails_in_between() {
    // G-41
    let outbox = outbox(4);
    for n in 0..3000u32 {
        let key = format!("key-{}", dice(n.into()) % 40);
        outbox.write([message(&key, format!("{key} {n}"))]).unwrap();
    }
    let recorder = Recorder::new(|parcel, asked| {
        let n: u64 = number(std::str::from_utf8(&parcel.body).unwrap()).into();
        match dice(n * 31 + u64::from(asked)) % 100 {
            0..=9 => failed("no luck"),
            10 => Receipt::Down("away".into()),
            11..=12 if asked < 6 => {
                Receipt::Failed { reason: "busy".into(), after: Some(Duration::from_secs(1)) }
            }
            _ => Receipt::Landed,
        }
    });
    let running = Running::start(outbox.clone(), into(&recorder), Settings::default());
    until("everything is published", || running.published() == 3000).await;
    running.stop().await.unwrap();

    let by_key = first_copies(&recorder);
    assert_eq!(by_key.values().map(Vec::len).sum::<usize>(), 3000);
    for (key, numbers) in by_key {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
    let overview = outbox.overview().await.unwrap();
    assert_eq!(overview.backlog, [], "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_published_parks_its_key_and_no_other() {
    // G-41, G-44
    let outbox = outbox(1);
    let recorder = Recorder::new(|parcel, _| match &parcel.body[..] {
        b"a 1" => failed("the shop is closed"),
        _ => Receipt::Landed,
    });
    let running = Running::start(outbox.clone(), into(&recorder), impatient());
    outbox
        .write([message("a", "a 0"), message("a", "a 1"), message("a", "a 2"), message("b", "b 0")])
        .unwrap();
    until("other keys go on", || recorder.count() == 2).await;
    assert_eq!(recorder.texts(), ["a 0", "b 0"]);
    until("it is given up", || running.tally.dead.load(Ordering::Relaxed) == 1).await;
    outbox.write([message("a", "a 3"), message("b", "b 1")]).unwrap();
    until("other keys go on", || recorder.count() == 3).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(recorder.texts(), ["a 0", "b 0", "b 1"], "its key waits");

    let dead = letters(&outbox, Aside::Dead).await;
    assert_eq!(dead.len(), 1);
    assert!(dead[0].reason.contains("the shop is closed"), "{}", dead[0].reason);
    assert_eq!(letters(&outbox, Aside::Behind).await.len(), 2);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_is_replayed_keeps_its_id_and_its_place() {
    // G-41, G-43, G-44
    let outbox = outbox(1);
    let open = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let shop = open.clone();
    let recorder = Recorder::new(move |parcel, _| match &parcel.body[..] {
        b"a 0" if !shop.load(Ordering::Relaxed) => Receipt::Refused("too large".into()),
        _ => Receipt::Landed,
    });
    let running = Running::start(outbox.clone(), into(&recorder), Settings::default());
    let poison = message("a", "a 0");
    outbox.write([poison.clone(), message("a", "a 1")]).unwrap();
    until("it is refused", || running.tally.dead.load(Ordering::Relaxed) == 1).await;
    open.store(true, Ordering::Relaxed);
    let judged = outbox.judge(poison.id, &semel_core::outbox::Verdict::Replay).await.unwrap();
    assert_eq!(judged, semel_core::outbox::Judged::Made);
    until("both are published", || recorder.count() == 2).await;
    assert_eq!(recorder.texts(), ["a 0", "a 1"]);
    assert_eq!(recorder.ids()[0], poison.id);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_discarded_letter_goes_on_in_order() {
    // G-41, G-44
    let outbox = outbox(1);
    let recorder = Recorder::new(|parcel, _| match &parcel.body[..] {
        b"a 0" => Receipt::Refused("too large".into()),
        _ => Receipt::Landed,
    });
    let running = Running::start(outbox.clone(), into(&recorder), Settings::default());
    let poison = message("a", "a 0");
    outbox.write([poison.clone(), message("a", "a 1"), message("a", "a 2")]).unwrap();
    until("two wait", || running.tally.behind.load(Ordering::Relaxed) == 2).await;
    outbox.judge(poison.id, &semel_core::outbox::Verdict::Discard).await.unwrap();
    outbox.write([message("a", "a 3")]).unwrap();
    until("the rest is published", || recorder.count() == 3).await;
    assert_eq!(recorder.texts(), ["a 1", "a 2", "a 3"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_comes_when_it_is_due() {
    // G-41
    let clock = ManualClock::in_tokio_time();
    let outbox = Arc::new(MemoryOutbox::with_clock(2, clock.clone()));
    let due = semel_core::Clock::now(&*clock).after(Duration::from_secs(60));
    outbox.write([message("a", "late").deliver_after(due), message("a", "now")]).unwrap();
    let recorder = Recorder::taking_all();
    let running = Running::start(outbox, into(&recorder), Settings::default());
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(recorder.texts(), ["now"]);
    until("it is due", || recorder.count() == 2).await;
    running.stop().await.unwrap();
}
