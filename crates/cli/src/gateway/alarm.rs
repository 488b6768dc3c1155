//! Coarse alarms: deadlines that are set and moved for every request, and almost never ring.
//!
//! A timer per request costs more than the request's other book-keeping. Here a deadline is one atomic
//! store, and one task looks at all of them every tick. An alarm rings up to a tick late, never early;
//! it is for limits on silence, not for measuring time.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use semel::Runtime;

/// The longest time between two looks.
const TICK_MAX: Duration = Duration::from_millis(100);
const TICK_MIN: Duration = Duration::from_millis(5);

const RUNNING: u8 = 0;
const STOPPING: u8 = 1;
const CUT: u8 = 2;

/// Something with an alarm in it.
pub(crate) trait Alarmed: Send + Sync + 'static {
    fn alarm(&self) -> &Alarm;
}

/// A deadline and who is to be woken at it.
#[derive(Default)]
pub(crate) struct Alarm {
    /// In milliseconds of the clock; 0: none.
    deadline: AtomicU64,
    waker: AtomicWaker,
}

impl Alarm {
    /// Wakes at `deadline` (milliseconds of [`Clock::now`]); `None`: only when everybody is woken.
    #[inline]
    pub(crate) fn set(&self, deadline: Option<u64>, waker: &Waker) {
        self.waker.register(waker);
        self.deadline.store(deadline.unwrap_or(0), Ordering::Release);
    }

    #[inline]
    pub(crate) fn clear(&self) {
        self.deadline.store(0, Ordering::Release);
    }
}

/// A clock with alarms. It runs until it is dropped.
pub(crate) struct Clock<T> {
    now: AtomicU64,
    tick: u64,
    phase: AtomicU8,
    alarms: Mutex<Vec<Weak<T>>>,
}

impl<T: Alarmed> Clock<T> {
    /// `shortest`: the shortest wait that will be asked for; a tick is a fraction of it.
    pub(crate) fn start(runtime: &Arc<dyn Runtime>, shortest: Duration) -> Arc<Self> {
        let tick = (shortest / 8).clamp(TICK_MIN, TICK_MAX);
        let clock = Arc::new(Self {
            tick: millis(tick),
            now: AtomicU64::new(millis(runtime.elapsed())),
            phase: AtomicU8::new(RUNNING),
            alarms: Mutex::new(Vec::new()),
        });
        let (weak, clockwork) = (Arc::downgrade(&clock), runtime.clone());
        runtime.spawn(Box::pin(async move {
            loop {
                clockwork.sleep(tick).await;
                let Some(clock) = weak.upgrade() else { return };
                clock.strike(millis(clockwork.elapsed()));
            }
        }));
        clock
    }

    /// Milliseconds of the runtime's time, as of the last tick: it is not earlier than that.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// When the next tick is due. A wait that is counted from here is never too short.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.now().saturating_add(self.tick)
    }

    /// Looks after it until it is dropped.
    pub(crate) fn watch(&self, alarmed: &Arc<T>) {
        self.lock().push(Arc::downgrade(alarmed));
    }

    /// Tells everybody to come to an end: they are woken and find [`Clock::is_stopping`].
    pub(crate) fn stop(&self) {
        self.phase.fetch_max(STOPPING, Ordering::AcqRel);
        self.wake_all();
    }

    /// Tells everybody to end at once.
    pub(crate) fn cut(&self) {
        self.phase.fetch_max(CUT, Ordering::AcqRel);
        self.wake_all();
    }

    fn wake_all(&self) {
        for alarmed in self.lock().iter().filter_map(Weak::upgrade) {
            alarmed.alarm().waker.wake();
        }
    }

    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= STOPPING
    }

    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.phase.load(Ordering::Acquire) == CUT
    }

    fn strike(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
        self.lock().retain(|alarmed| {
            let Some(alarmed) = alarmed.upgrade() else { return false };
            let alarm = alarmed.alarm();
            let deadline = alarm.deadline.load(Ordering::Acquire);
            if deadline != 0 && deadline <= now {
                alarm.waker.wake();
            }
            true
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<T>>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole milliseconds, rounded up: a deadline is never early.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
