//! The suite of outboxes on the one in memory.

use std::sync::Arc;

use semel_core::{Clock, Error, MemoryOutbox, Message, Outbox, Timestamp, outbox};
use semel_testkit::outbox::{Maker, Open, Rig};
use semel_testkit::{BoxFuture, ManualClock};

struct MemoryRig {
    clock: Arc<ManualClock>,
    outbox: Arc<MemoryOutbox>,
}

/// What a transaction would write.
struct Draft {
    outbox: Arc<MemoryOutbox>,
    messages: Vec<Message>,
}

fn maker() -> Maker {
    Arc::new(|| {
        Box::pin(async {
            let clock = ManualClock::new();
            let outbox = Arc::new(MemoryOutbox::with_clock(4, clock.clone()));
            Arc::new(MemoryRig { clock, outbox }) as Arc<dyn Rig>
        })
    })
}

impl Rig for MemoryRig {
    fn engine(&self) -> &'static str {
        "memory"
    }

    fn outbox(&self) -> Arc<dyn Outbox> {
        self.outbox.clone()
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async { self.clock.now() })
    }

    fn shift_clock(&self, micros: i64) {
        self.clock.shift(micros);
    }

    fn begin(&self, messages: Vec<Message>) -> BoxFuture<'_, Result<Box<dyn Open>, Error>> {
        Box::pin(async move {
            let mut draft = Draft { outbox: self.outbox.clone(), messages: Vec::new() };
            draft.write(messages).await?;
            Ok(Box::new(draft) as Box<dyn Open>)
        })
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl Open for Draft {
    fn write(&mut self, messages: Vec<Message>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            outbox::check(&messages)?;
            self.messages.extend(messages);
            Ok(())
        })
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.outbox.write(self.messages).expect("they were checked") })
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

semel_testkit::outbox_conformance!(maker());
