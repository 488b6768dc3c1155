//! Connections to one target over HTTP/1.1, and which of them a request may take (G-21).
//!
//! A pooled connection may have been closed by the upstream a moment ago, and a request written into
//! it is lost in a way nobody can tell from a lost answer. So it is looked at before use, and a
//! protected request takes one only if it was used just now. The pool is last in, first out: what is
//! not needed grows old and is closed.
//!
//! No task of its own drives an idle connection: the sweep finds those that the upstream closed.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::super::crew;
use super::body::Payload;
use super::line::Line;
use super::outgoing::Outgoing;
use super::target::Target;
use super::tls::Transport;

type Driver<B> = http1::Connection<TokioIo<Transport>, Outgoing<B>>;

/// One connection, with the state that hyper keeps about it.
pub(super) struct Connection<B: Payload> {
    pub(super) sender: http1::SendRequest<Outgoing<B>>,
    driver: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    ended: bool,
    pub(super) line: Arc<Line>,
    /// Whether it has carried a request before.
    pub(super) reused: bool,
    /// Of the thread that opened it.
    place: usize,
    _carries: std::marker::PhantomData<fn(B)>,
}

impl<B: Payload> Connection<B> {
    pub(super) fn new(sender: http1::SendRequest<Outgoing<B>>, driver: Driver<B>, line: Arc<Line>) -> Self {
        let driver = Box::pin(driver.with_upgrades());
        let place = crew::place();
        Self { sender, driver, ended: false, line, reused: false, place, _carries: std::marker::PhantomData }
    }

    /// Lets hyper read and write as much as it can.
    #[inline]
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended {
            self.ended = self.driver.as_mut().poll(cx).is_ready();
        }
    }

    fn is_ready(&self) -> bool {
        !self.ended && self.sender.is_ready()
    }
}

struct Idle<B: Payload> {
    connection: Box<Connection<B>>,
    since: Duration,
}

/// How old a pooled connection may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) idle: Duration,
    pub(super) idle_protected: Duration,
    pub(super) connections_max: usize,
}

pub(super) struct Pool<B: Payload> {
    /// One list for each place: a connection is used by the thread whose runtime wakes its reader.
    idle: Box<[Mutex<Vec<Idle<B>>>]>,
    /// In all lists together.
    count: AtomicUsize,
    limits: Limits,
}

impl<B: Payload> Pool<B> {
    pub(super) fn new(limits: Limits) -> Self {
        let idle = (0..crew::places()).map(|_| Mutex::default()).collect();
        Self { idle, count: AtomicUsize::new(0), limits }
    }

    /// The connection used last, if it is young enough and, on a look, alive.
    pub(super) fn take(&self, now: Duration, protected: bool) -> Option<Box<Connection<B>>> {
        let limit = match protected && !semel::mutant::on("stale-connection-for-protected") {
            true => self.limits.idle_protected.min(self.limits.idle),
            false => self.limits.idle,
        };
        let place = crew::place();
        loop {
            let mut connection = {
                let mut idle = lock(&self.idle[place]);
                // All others are older still.
                let youngest = idle.last()?;
                if now.saturating_sub(youngest.since) >= limit {
                    return None;
                }
                self.count.fetch_sub(1, Ordering::Relaxed);
                idle.pop()?.connection
            };
            connection.drive(&mut Context::from_waker(Waker::noop()));
            if connection.is_ready() {
                connection.reused = true;
                return Some(connection);
            }
        }
    }

    fn put(&self, connection: Box<Connection<B>>, now: Duration) {
        if self.count.fetch_add(1, Ordering::Relaxed) < self.limits.connections_max {
            lock(&self.idle[connection.place]).push(Idle { connection, since: now });
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes what is too old or was closed by the other side.
    pub(super) fn sweep(&self, now: Duration) {
        let mut nobody = Context::from_waker(Waker::noop());
        for idle in &self.idle {
            lock(idle).retain_mut(|idle| {
                idle.connection.drive(&mut nobody);
                let kept = idle.connection.is_ready() && now.saturating_sub(idle.since) < self.limits.idle;
                if !kept {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                kept
            });
        }
    }
}

fn lock<B: Payload>(idle: &Mutex<Vec<Idle<B>>>) -> MutexGuard<'_, Vec<Idle<B>>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A target with one more request on it, for as long as this lives.
pub(super) struct Busy<B: Payload>(Arc<Target<B>>);

impl<B: Payload> Busy<B> {
    pub(super) fn new(target: &Arc<Target<B>>) -> Self {
        target.busy.fetch_add(1, Ordering::Relaxed);
        Self(target.clone())
    }
}

impl<B: Payload> Drop for Busy<B> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests a target has now.
pub(super) type Count = AtomicUsize;

/// A connection lent to one request. Dropped, it is closed; only [`Leased::give_back`] keeps it.
pub(super) struct Leased<B: Payload> {
    pub(super) connection: Box<Connection<B>>,
    busy: Busy<B>,
}

impl<B: Payload> Leased<B> {
    pub(super) fn new(connection: Box<Connection<B>>, busy: Busy<B>) -> Self {
        Self { connection, busy }
    }

    #[inline]
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        self.connection.drive(cx);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.connection.ended
    }

    pub(super) fn is_ready(&self) -> bool {
        self.connection.is_ready()
    }

    /// Back to the pool if hyper says that it is ready for another request; else it is closed.
    pub(super) fn give_back(self) {
        if self.connection.is_ready() {
            let target = &self.busy.0;
            target.pool.put(self.connection, target.now());
        }
    }

    /// Goes on by itself until the exchange is over, and closes then.
    pub(super) fn detach(self) {
        let runtime = self.busy.0.runtime.clone();
        let Self { connection, busy } = self;
        runtime.spawn(Box::pin(async move {
            let Connection { sender, driver, ended, .. } = *connection;
            drop(sender);
            if !ended {
                // Errors reach the request or its body, and whoever reads that.
                let _ = driver.await;
            }
            drop(busy);
        }));
    }
}
