//! The body of a request on its way to the upstream.
//!
//! It tells the connection's line how far it is, and holds back after `Expect: 100-continue` until the
//! upstream wants it. It buffers nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use semel::Runtime;
use semel::runtime::Boxed;

use super::super::BoxError;
use super::body::Payload;
use super::line::{BodyState, Line};

/// How long an upstream may think about `Expect: 100-continue` before it gets the body anyway: old ones
/// never answer it.
const CONTINUE_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Outgoing<B> {
    /// `None`: empty.
    body: Option<B>,
    line: Arc<Line>,
    hold: Option<Hold>,
}

struct Hold {
    go: Arc<Go>,
    patience: Boxed<()>,
}

const THINKING: u8 = 0;
const WANTED: u8 = 1;
const REFUSED: u8 = 2;

/// What the upstream said to `Expect: 100-continue`.
#[derive(Default)]
pub(super) struct Go {
    said: AtomicU8,
    waker: AtomicWaker,
}

impl Go {
    /// It wants the body.
    pub(super) fn say(&self) {
        self.tell(WANTED);
    }

    /// It has answered without the body, which is not sent any more.
    pub(super) fn refuse(&self) {
        self.tell(REFUSED);
    }

    fn tell(&self, word: u8) {
        let _ = self.said.compare_exchange(THINKING, word, Ordering::AcqRel, Ordering::Acquire);
        self.waker.wake();
    }
}

impl<B: Payload> Outgoing<B> {
    pub(super) fn new(body: B, line: Arc<Line>) -> Self {
        let outgoing = Self { body: Some(body), line, hold: None };
        outgoing.start();
        outgoing
    }

    pub(super) fn empty(line: Arc<Line>) -> Self {
        let outgoing = Self { body: None, line, hold: None };
        outgoing.start();
        outgoing
    }

    /// Waits for the upstream's word before the first part.
    pub(super) fn hold(&mut self, runtime: &dyn Runtime) -> Arc<Go> {
        let go = Arc::new(Go::default());
        self.hold = Some(Hold { go: go.clone(), patience: runtime.sleep(CONTINUE_PATIENCE) });
        go
    }

    /// The body of a request that was handed back unsent.
    pub(super) fn into_inner(mut self) -> Option<B> {
        self.body.take()
    }

    fn start(&self) {
        self.line.begin(if self.is_end_stream() { BodyState::Done } else { BodyState::Untouched });
    }
}

impl<B: Payload> Body for Outgoing<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(hold) = &mut this.hold {
            hold.go.waker.register(cx.waker());
            match hold.go.said.load(Ordering::Acquire) {
                THINKING => ready!(hold.patience.as_mut().poll(cx)),
                REFUSED => {
                    // An end would be a lie about its length: it just does not go on.
                    this.body = None;
                    this.line.set_body(BodyState::Done);
                    return Poll::Pending;
                }
                _ => {}
            }
            this.hold = None;
        }
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let (state, frame) = match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Pending => (BodyState::WaitingForClient, Poll::Pending),
            Poll::Ready(None) => (BodyState::Done, Poll::Ready(None)),
            Poll::Ready(Some(Err(error))) => (BodyState::Failed, Poll::Ready(Some(Err(error.into())))),
            Poll::Ready(Some(Ok(frame))) => {
                this.line.advance();
                let state = if body.is_end_stream() { BodyState::Done } else { BodyState::Sending };
                (state, Poll::Ready(Some(Ok(frame))))
            }
        };
        this.line.set_body(state);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B> Drop for Outgoing<B> {
    fn drop(&mut self) {
        // Hyper drops a body that is complete without asking for its end.
        if self.body.is_some() && self.line.body() != BodyState::Failed {
            self.line.set_body(BodyState::Done);
        }
    }
}
