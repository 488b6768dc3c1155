//! A batch of one line on its way, and what the client has said of each of its messages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::sync::oneshot;

/// What goes along with a message, and comes back with its report.
pub(super) struct Ticket {
    flight: Arc<Flight>,
    index: usize,
}

impl Ticket {
    /// Passes on what became of the message.
    pub(super) fn tell(&self, told: Result<(), Code>) {
        let mut state = self.flight.state();
        state.flying -= 1;
        // Whoever gave up waiting has taken the list.
        if let Some(slot) = state.told.get_mut(self.index) {
            *slot = Told::Answered(told);
        }
        state.finish_if_done();
    }
}

/// What is known of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was not handed to the client.
    Kept,
    /// The client has it and has not said anything.
    Flying,
    Answered(Result<(), Code>),
}

/// A batch on its way.
pub(super) struct Flight {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    told: Vec<Told>,
    /// How many the client has.
    flying: usize,
    /// Whether it may get more of them.
    loading: bool,
    late: bool,
    /// Dropped when there is nothing more to wait for.
    waiter: Option<oneshot::Sender<()>>,
}

impl State {
    fn finish_if_done(&mut self) {
        if self.flying == 0 && !self.loading {
            self.waiter = None;
        }
    }
}

impl Flight {
    /// A batch of so many messages, of which none is on its way yet. The receiver hears when all that were sent are
    /// answered, or never will be.
    pub(super) fn new(count: usize) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (waiter, done) = oneshot::channel();
        let told = vec![Told::Kept; count];
        let state = State { told, flying: 0, loading: true, late: false, waiter: Some(waiter) };
        (Arc::new(Self { began: Instant::now(), state: Mutex::new(state) }), done)
    }

    /// For a message that is about to be handed over.
    pub(super) fn ticket(self: &Arc<Self>, index: usize) -> Ticket {
        let mut state = self.state();
        state.flying += 1;
        state.told[index] = Told::Flying;
        Ticket { flight: self.clone(), index }
    }

    /// The client did not take it.
    pub(super) fn keep(&self, index: usize) {
        let mut state = self.state();
        state.flying -= 1;
        state.told[index] = Told::Kept;
    }

    /// No more are handed over.
    pub(super) fn loaded(&self) {
        let mut state = self.state();
        state.loading = false;
        state.finish_if_done();
    }

    pub(super) fn is_done(&self) -> bool {
        self.state().waiter.is_none()
    }

    /// Notes that it is on its way for longer than it should, if it is.
    pub(super) fn note_if_late(&self, limit: Duration) -> bool {
        let mut state = self.state();
        state.late |= state.waiter.is_some() && self.began.elapsed() >= limit;
        state.late
    }

    /// Nothing more will be said.
    pub(super) fn give_up(&self) {
        self.state().waiter = None;
    }

    /// What is known of each message, and whether the batch took too long.
    pub(super) fn told(&self) -> (Vec<Told>, bool) {
        let mut state = self.state();
        (std::mem::take(&mut state.told), state.late)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
