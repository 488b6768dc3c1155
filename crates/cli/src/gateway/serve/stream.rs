//! Streams of HTTP/2: a client that takes nothing of an answer for too long loses its stream.
//!
//! On HTTP/1.1 a client that does not read is seen by the writes on its connection ([`link`](super::link)). On
//! HTTP/2 it can shut the window of one stream and let all others go on; hyper then waits inside the stream's
//! task for the window to open. What can be seen from around that task is whose turn it is: the service's, if
//! its body was asked for the next part and has none, else the client's. Ending the task resets the stream.
//!
//! The client's time begins anew with every byte of the answer that goes out on the connection, which it does only
//! as far as the stream's window is open: the parts of an answer say when bytes are [taken](Taken) out of them. So
//! whoever reads slowly is no stalled client, nor is one of many streams on a slow connection.
//!
//! What hyper has taken of an answer and not sent is out of sight, also when the task has ended. So large parts
//! are handed over in [pieces](PIECE_BYTES_MAX), and no more than one can be left there; the connection keeps it
//! for as long as it lives.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use semel::runtime::Boxed;

use super::link::Link;

/// The largest part of an answer that hyper is given at a time: what fits into a frame of HTTP/2.
pub(super) const PIECE_BYTES_MAX: usize = 16 << 10;

/// Who has to do something before an answer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nobody has said.
    Unsaid,
    /// There is something for the client to take.
    Client,
    /// The service has not said the next part.
    Service,
}

thread_local! {
    /// Said by the answer while its stream's task is polled, and read by the task right after: both happen on one
    /// thread, and nothing has to be allocated for it.
    static TURN: Cell<Turn> = const { Cell::new(Turn::Unsaid) };
    /// Left by the answer for its stream's task, in the same way.
    static TAKEN: RefCell<Option<Arc<Taken>>> = const { RefCell::new(None) };
}

/// When bytes of an answer went out last.
pub(super) struct Taken {
    link: Arc<Link>,
    /// In milliseconds of the connection's clock; 0: none did.
    at: AtomicU64,
}

impl Taken {
    /// For an answer whose stream's task is being polled.
    pub(super) fn of_this_stream(link: &Arc<Link>) -> Arc<Self> {
        let taken = Arc::new(Self { link: link.clone(), at: AtomicU64::new(0) });
        TAKEN.set(Some(taken.clone()));
        taken
    }

    #[inline]
    pub(super) fn note(&self) {
        if !semel::mutant::on("progress-ignored") {
            self.at.store(self.link.next_tick(), Ordering::Relaxed);
        }
    }
}

impl Turn {
    #[inline]
    pub(super) fn say(self) {
        TURN.set(self);
    }
}

/// Runs the tasks of one connection's streams.
#[derive(Clone)]
pub(super) struct Streams(pub(super) Arc<Link>);

impl<Work> hyper::rt::Executor<Work> for Streams
where
    Work: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: Work) {
        let Self(link) = self;
        link.runtime.spawn(Box::pin(Streaming {
            work,
            link: link.clone(),
            untaken: None,
            taken: None,
            timer: None,
        }));
    }
}

pin_project! {
    struct Streaming<Work> {
        #[pin]
        work: Work,
        link: Arc<Link>,
        // Since when the client has taken nothing of what there is, in milliseconds of the connection's clock.
        untaken: Option<u64>,
        taken: Option<Arc<Taken>>,
        // Once it runs, it is looked at again only when it ends.
        timer: Option<Boxed<()>>,
    }
}

impl<Work: Future<Output = ()>> Future for Streaming<Work> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let link = this.link;
        let around = TURN.replace(Turn::Unsaid);
        let done = this.work.poll(cx);
        let turn = TURN.replace(around);
        if let Some(taken) = TAKEN.take() {
            *this.taken = Some(taken);
        }
        if done.is_ready() {
            return Poll::Ready(());
        }
        match turn {
            Turn::Service if semel::mutant::on("silent-service-cut") => {
                this.untaken.get_or_insert(link.next_tick());
            }
            Turn::Service => *this.untaken = None,
            Turn::Client if semel::mutant::on("progress-ignored") => {
                this.untaken.get_or_insert(link.next_tick());
            }
            Turn::Client => *this.untaken = Some(link.next_tick()),
            // Polled for another reason: as it was.
            Turn::Unsaid => {}
        }
        loop {
            let Some(since) = *this.untaken else { return Poll::Pending };
            if semel::mutant::on("shut-window-waits-for-ever") {
                return Poll::Pending;
            }
            let timer = this.timer.get_or_insert_with(|| link.runtime.sleep(link.stall_timeout()));
            ready!(timer.as_mut().poll(cx));
            let taken = this.taken.as_ref().map_or(0, |taken| taken.at.load(Ordering::Relaxed));
            let left = link.left_of_stall(since.max(taken));
            if left.is_zero() {
                tracing::debug!(peer = %link.peer, "a client took nothing of an answer; its stream is reset");
                return Poll::Ready(());
            }
            *this.timer = Some(link.runtime.sleep(left));
        }
    }
}
