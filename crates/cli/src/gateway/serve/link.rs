//! What is known of one client connection: its peer, its requests in flight, its silence.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use http::header::HeaderValue;
use semel::Runtime;
use semel::http::tenant::ClientCertificate;
use tokio::sync::Notify;

use super::super::alarm::{Alarm, Alarmed, Clock, millis};
use super::framing::Seen;
use crate::config::resolved::ClientLimits;

/// Why a connection is closed by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// A request's head did not end in time.
    Head,
    /// Nothing was asked for too long.
    Idle,
    /// The client takes nothing of its answer.
    Stalled,
}

pub(super) struct Link {
    pub(super) peer: SocketAddr,
    /// The peer's address as `X-Forwarded-For` has it.
    pub(super) forwarded_for: HeaderValue,
    pub(super) is_trusted: bool,
    pub(super) is_secure: bool,
    pub(super) certificate: Option<ClientCertificate>,
    pub(super) place: Held,
    pub(super) runtime: Arc<dyn Runtime>,
    clock: Arc<Clock<Link>>,
    header_timeout: u64,
    idle_timeout: u64,
    alarm: Alarm,
    /// Since when a head is being read, in milliseconds of the clock; 0: none is.
    head_since: AtomicU64,
    /// Since when nothing is in flight.
    idle_since: AtomicU64,
    /// Since when the client takes nothing of what is written; 0: it does.
    stalled_since: AtomicU64,
    in_flight: AtomicUsize,
    /// Requests handed to the service.
    requests: AtomicU64,
    refuse_from: AtomicU64,
    tunnelled: AtomicBool,
}

impl Alarmed for Link {
    fn alarm(&self) -> &Alarm {
        &self.alarm
    }
}

/// Who a connection is from.
pub(super) struct Origin {
    pub(super) peer: SocketAddr,
    pub(super) is_trusted: bool,
    pub(super) is_secure: bool,
    pub(super) certificate: Option<ClientCertificate>,
}

impl Link {
    pub(super) fn new(
        origin: Origin,
        limits: &ClientLimits,
        runtime: &Arc<dyn Runtime>,
        clock: &Arc<Clock<Link>>,
        place: Held,
    ) -> Arc<Self> {
        let address = origin.peer.ip().to_canonical().to_string();
        let link = Arc::new(Self {
            peer: origin.peer,
            forwarded_for: HeaderValue::from_str(&address).expect("an address is printable ASCII"),
            is_trusted: origin.is_trusted,
            is_secure: origin.is_secure,
            certificate: origin.certificate,
            place,
            runtime: runtime.clone(),
            clock: clock.clone(),
            header_timeout: millis(limits.header_timeout),
            idle_timeout: millis(limits.idle_timeout),
            alarm: Alarm::default(),
            head_since: AtomicU64::new(0),
            idle_since: AtomicU64::new(clock.next()),
            stalled_since: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            refuse_from: AtomicU64::new(u64::MAX),
            tunnelled: AtomicBool::new(false),
        });
        clock.watch(&link);
        link
    }

    /// Bytes came in.
    #[inline]
    pub(super) fn saw(&self, seen: Seen) {
        if let Some(number) = seen.refuse_from {
            self.refuse_from.store(number, Ordering::Release);
        }
        match seen.in_head {
            false => self.head_since.store(0, Ordering::Relaxed),
            // A head is as old as its first byte, however often another one comes.
            true if self.head_since.load(Ordering::Relaxed) == 0 => {
                self.head_since.store(self.clock.next(), Ordering::Relaxed);
            }
            true => {}
        }
    }

    /// A write was tried; `taken`: the client took something.
    #[inline]
    pub(super) fn wrote(&self, taken: bool) {
        let stalled = self.stalled_since.load(Ordering::Relaxed);
        if taken && stalled != 0 {
            self.stalled_since.store(0, Ordering::Relaxed);
        } else if !taken && stalled == 0 {
            self.stalled_since.store(self.clock.next(), Ordering::Relaxed);
        }
    }

    /// Whether the next request, which is counted here, must be refused for its framing.
    pub(super) fn next_is_refused(&self) -> bool {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        number >= self.refuse_from.load(Ordering::Acquire)
    }

    pub(super) fn tunnel(&self) {
        self.tunnelled.store(true, Ordering::Release);
    }

    pub(super) fn is_tunnelled(&self) -> bool {
        self.tunnelled.load(Ordering::Acquire)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.clock.is_stopping()
    }

    pub(super) fn is_cut(&self) -> bool {
        self.clock.is_cut()
    }

    /// Nothing is in flight as of now: its idle time begins anew.
    pub(super) fn rest(&self) {
        self.idle_since.store(self.clock.next(), Ordering::Relaxed);
    }

    /// When the clock's next tick is due: a wait that is counted from here is never too short.
    pub(super) fn next_tick(&self) -> u64 {
        self.clock.next()
    }

    /// How long a client may take nothing of an answer.
    pub(super) fn stall_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout)
    }

    /// How much is left of that time, if it began at `since`.
    pub(super) fn left_of_stall(&self, since: u64) -> Duration {
        let end = since.saturating_add(self.idle_timeout);
        Duration::from_millis(end.saturating_sub(self.clock.now()))
    }

    /// Whether its time is up; else its alarm wakes this task when it may be.
    #[inline]
    pub(super) fn overdue(&self, cx: &Context<'_>) -> Option<Overdue> {
        let now = self.clock.now();
        let stalled = self.stalled_since.load(Ordering::Relaxed);
        let in_flight = self.in_flight.load(Ordering::Acquire) > 0;
        let (head, idle) = (self.head_since.load(Ordering::Relaxed), self.idle_since.load(Ordering::Relaxed));
        let (since, timeout, overdue) = if stalled != 0 {
            (stalled, self.idle_timeout, Overdue::Stalled)
        } else if in_flight {
            // The next head may be half here, but it is not its turn yet.
            self.alarm.set(None, cx.waker());
            return None;
        } else if head != 0 {
            (head.max(idle), self.header_timeout, Overdue::Head)
        } else {
            (idle, self.idle_timeout, Overdue::Idle)
        };
        let deadline = since.saturating_add(timeout);
        if now >= deadline {
            return Some(overdue);
        }
        self.alarm.set(Some(deadline), cx.waker());
        None
    }
}

/// A request in flight, from its head to the end of its answer.
pub(super) struct Flight(Arc<Link>);

impl Flight {
    pub(super) fn begin(link: &Arc<Link>) -> Self {
        link.in_flight.fetch_add(1, Ordering::AcqRel);
        Self(link.clone())
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.0
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.rest();
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The connections a listener has, and a bell for when there are none.
#[derive(Default)]
pub(super) struct Census {
    count: AtomicUsize,
    empty: Notify,
}

impl Census {
    /// A place for one more, or `None` if `max` are taken.
    pub(super) fn admit(self: &Arc<Self>, max: usize) -> Option<Held> {
        let admitted = self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| (count < max).then_some(count + 1));
        admitted.ok().map(|_| Held(Arc::new(Place(self.clone()))))
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) async fn wait_until_empty(&self) {
        loop {
            let mut rung = std::pin::pin!(self.empty.notified());
            rung.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            rung.await;
        }
    }
}

/// A client's place among the connections, held until its last owner is gone. A tunnel owns it too.
#[derive(Clone)]
pub(crate) struct Held(#[expect(dead_code, reason = "held for its drop")] Arc<Place>);

struct Place(Arc<Census>);

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.empty.notify_waiters();
        }
    }
}
