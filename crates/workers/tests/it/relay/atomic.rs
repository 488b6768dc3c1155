//! Sinks that keep a position together with the messages: what landed is known exactly.

use semel_core::outbox::Position;

use super::*;

/// A sink with transactions.
#[derive(Default)]
struct Broker {
    landed: Mutex<Vec<String>>,
    position: Mutex<Option<Position>>,
    /// So many batches land and are not answered.
    mute: Mutex<u32>,
}

struct Door(Arc<Broker>);

impl Sink for Door {
    fn about(&self) -> About {
        About { name: "broker", dedup: Dedup::Exact, attribute_prefix: "ce-" }
    }

    fn open(&self, _outbox: &Facts, _term: Term) -> Answer<'_, Result<Opened, Trouble>> {
        let landed = self.0.position.lock().unwrap().clone();
        Box::pin(async move { Ok(Opened { line: Box::new(Door(self.0.clone())), landed }) })
    }
}

impl Line for Door {
    fn is_atomic(&self) -> bool {
        true
    }

    fn publish<'a>(&'a mut self, batch: Batch<'a>) -> Answer<'a, Vec<Receipt>> {
        Box::pin(async move {
            let mut receipts = vec![Receipt::Unsent; batch.parcels.len()];
            let texts: Vec<String> =
                batch.parcels.iter().map(|parcel| String::from_utf8(parcel.body.to_vec()).unwrap()).collect();
            if let Some(bad) = texts.iter().position(|text| text.starts_with("poison")) {
                receipts[bad] = Receipt::Refused("poison".into());
                return receipts;
            }
            self.0.landed.lock().unwrap().extend(texts);
            *self.0.position.lock().unwrap() = batch.position.cloned();
            let mut mute = self.0.mute.lock().unwrap();
            if *mute > 0 {
                *mute -= 1;
                return vec![Receipt::Down("the answer got lost".into()); batch.parcels.len()];
            }
            vec![Receipt::Landed; batch.parcels.len()]
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_landed_with_its_position_is_not_published_again() {
    // G-43
    let outbox = outbox(1);
    let broker = Arc::new(Broker { mute: Mutex::new(3), ..Broker::default() });
    let settings = Settings { batch: 4, ..Settings::default() };
    let running = Running::start(outbox.clone(), Arc::new(Door(broker.clone())), settings);
    outbox.write((0..40).map(|n| message("a", format!("{n}")))).unwrap();
    until("all is settled", || broker.landed.lock().unwrap().len() >= 40).await;
    running.stop().await.unwrap();
    let expected: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    assert_eq!(*broker.landed.lock().unwrap(), expected);
    assert_eq!(outbox.overview().await.unwrap().backlog, []);
}

#[tokio::test(start_paused = true)]
async fn a_position_never_covers_a_message_that_did_not_land() {
    // G-44
    let outbox = outbox(1);
    let broker = Arc::new(Broker::default());
    let running = Running::start(outbox.clone(), Arc::new(Door(broker.clone())), Settings::default());
    let texts = ["a 0", "poison 1", "b 2", "poison 3", "c 4", "a 5"];
    let keys = ["a", "p", "b", "p", "c", "a"];
    outbox.write(texts.iter().zip(keys).map(|(text, key)| message(key, *text))).unwrap();
    until("all is settled", || broker.landed.lock().unwrap().len() >= 4).await;
    running.stop().await.unwrap();
    assert_eq!(*broker.landed.lock().unwrap(), ["a 0", "b 2", "c 4", "a 5"]);
    let dead = letters(&outbox, Aside::Dead).await;
    let behind = letters(&outbox, Aside::Behind).await;
    assert_eq!((dead.len(), behind.len()), (1, 1), "both are kept");
}
