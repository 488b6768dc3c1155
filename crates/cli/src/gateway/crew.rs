//! Threads that attend to clients, one per core, each with a runtime of its own.
//!
//! A connection of HTTP/1 stays with one of them, and so do its requests and their connections to the
//! upstream: nobody else is woken for a request that passes, and no task moves between cores. What has
//! many requests on one connection (HTTP/2), and whatever runs beside, stays on the runtime that all
//! threads share, where one busy connection can use all cores.
//!
//! Simulations and tests have no crew: everything runs where it is spawned.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use anyhow::Context;
use semel::runtime::Boxed;
use tokio::runtime::{Builder, Handle};

/// Most threads: beyond it, a gateway waits for its store and its upstream.
const HANDS_MAX: usize = 64;

thread_local! {
    /// 0: not of a crew.
    static PLACE: Cell<usize> = const { Cell::new(0) };
}

/// Where this thread keeps what it shares with no other: 0 outside of crews, else its number, from 1.
pub(crate) fn place() -> usize {
    PLACE.get()
}

/// How many places there can be, 0 among them.
pub(crate) fn places() -> usize {
    1 + hands()
}

/// Counted once: a machine may be given more cores later, and numbers must stay below [`places`].
fn hands() -> usize {
    static HANDS: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(HANDS_MAX));
    *HANDS
}

/// The threads, which live as long as the process.
pub(crate) struct Crew {
    hands: Vec<Hand>,
}

struct Hand {
    runtime: Handle,
    /// Connections it has now.
    connections: Arc<AtomicUsize>,
}

impl Crew {
    pub(crate) fn gather() -> anyhow::Result<Self> {
        let hands = (1..=hands()).map(Hand::start).collect::<anyhow::Result<_>>()?;
        Ok(Self { hands })
    }

    /// Gives a connection to whoever has the fewest.
    pub(crate) fn take(&self, connection: Boxed<()>) {
        let fewest = self.hands.iter().min_by_key(|hand| hand.connections.load(Ordering::Relaxed));
        let hand = fewest.expect("a crew has at least one thread");
        hand.connections.fetch_add(1, Ordering::Relaxed);
        let one = One(hand.connections.clone());
        hand.runtime.spawn(async move {
            connection.await;
            drop(one);
        });
    }
}

/// A connection that is counted until it is dropped.
struct One(Arc<AtomicUsize>);

impl Drop for One {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hand {
    fn start(place: usize) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("a thread for clients has no runtime")?;
        let hand = Self { runtime: runtime.handle().clone(), connections: Arc::default() };
        let work = move || {
            PLACE.set(place);
            runtime.block_on(std::future::pending::<()>());
        };
        let started = thread::Builder::new().name(format!("semel-hand-{place}")).spawn(work);
        started.context("the system gives no thread for clients")?;
        Ok(hand)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::sync::{mpsc, oneshot};

    use super::*;

    #[tokio::test]
    async fn connections_are_spread_evenly_and_stay_where_they_are() {
        let crew = Crew::gather().unwrap();
        let (tell, mut told) = mpsc::unbounded_channel();
        let mut open = Vec::new();
        for _ in 0..3 * hands() {
            let (close, closed) = oneshot::channel::<()>();
            open.push(close);
            let tell = tell.clone();
            crew.take(Box::pin(async move {
                let before = place();
                tell.send(before).unwrap();
                let _ = closed.await;
                tell.send(if place() == before { 0 } else { usize::MAX }).unwrap();
            }));
        }
        let mut connections = HashMap::new();
        for _ in 0..3 * hands() {
            *connections.entry(told.recv().await.unwrap()).or_insert(0) += 1;
        }
        assert_eq!(connections, (1..places()).map(|place| (place, 3)).collect());
        drop(open);
        for _ in 0..3 * hands() {
            assert_eq!(told.recv().await, Some(0));
        }
        assert_eq!(place(), 0, "this thread is of no crew");
    }
}
