//! Bodies at the edge: what a client sends, which may stall, and what it gets.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use semel::Runtime;
use semel::runtime::Boxed;

use super::super::headers;
use super::link::Flight;
use super::stream::{PIECE_BYTES_MAX, Taken, Turn};

/// The body of a client's request, streamed. It fails if the client is silent for too long.
pub(crate) struct ClientBody {
    incoming: Incoming,
    /// Whether it comes on a stream of HTTP/2.
    is_stream: bool,
    /// `None` where there is nothing to wait for.
    patience: Option<Box<Patience>>,
    /// Headers by which requests are judged, and so may not come late.
    judged: Option<Arc<[HeaderName]>>,
}

/// Why a client's body cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the client sent nothing of its body for {0:?}")]
    Slow(Duration, #[source] semel::http::TooSlow),
    #[error("the client's body broke off")]
    Cut(#[source] hyper::Error),
    #[error("the client reset its stream within the body")]
    Reset,
}

struct Patience {
    runtime: Arc<dyn Runtime>,
    timeout: Duration,
    /// Runs while the client is silent, and is looked at again only when it ends.
    timer: Option<Boxed<()>>,
    last: Duration,
    slow: Slow,
}

/// Told to whoever answers: the body came too slowly.
#[derive(Clone, Default)]
pub(super) struct Slow(Arc<AtomicBool>);

impl Slow {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl ClientBody {
    pub(super) fn new(
        incoming: Incoming,
        is_stream: bool,
        runtime: &Arc<dyn Runtime>,
        timeout: Duration,
    ) -> (Self, Option<Slow>) {
        if incoming.is_end_stream() {
            return (Self { incoming, is_stream, patience: None, judged: None }, None);
        }
        let slow = Slow::default();
        let patience = Patience {
            last: runtime.elapsed(),
            runtime: runtime.clone(),
            timeout,
            timer: None,
            slow: slow.clone(),
        };
        (Self { incoming, is_stream, patience: Some(Box::new(patience)), judged: None }, Some(slow))
    }

    /// Keeps these headers out of the trailers too.
    pub(crate) fn bar(&mut self, judged: &Option<Arc<[HeaderName]>>) {
        if !self.incoming.is_end_stream() {
            self.judged.clone_from(judged);
        }
    }

    /// Hyper takes a stream that was reset with NO_ERROR for one that ended, and lets the request go on until it
    /// waits for something. Only END_STREAM is the end of a body.
    fn is_reset(&self) -> bool {
        self.is_stream && !self.incoming.is_end_stream() && !semel::mutant::on("reset-ends-request")
    }

    /// What may be heard of a frame. Trailers of which nothing is left are the end.
    fn clean(&self, mut frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        if let Some(trailers) = frame.trailers_mut() {
            headers::strip_request_trailers(trailers, self.judged.as_deref().unwrap_or_default());
            if trailers.is_empty() {
                return None;
            }
        }
        Some(frame)
    }
}

impl Patience {
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        loop {
            let timer = self.timer.get_or_insert_with(|| self.runtime.sleep(self.timeout));
            std::task::ready!(timer.as_mut().poll(cx));
            let silent = self.runtime.elapsed().saturating_sub(self.last);
            if silent >= self.timeout {
                self.slow.0.store(true, Ordering::Release);
                return Poll::Ready(BodyError::Slow(self.timeout, semel::http::TooSlow));
            }
            self.timer = Some(self.runtime.sleep(self.timeout - silent));
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match (Pin::new(&mut this.incoming).poll_frame(cx), &mut this.patience) {
            (Poll::Pending, Some(patience)) => patience.poll_overdue(cx).map(|error| Some(Err(error))),
            (frame, patience) => {
                if let Some(patience) = patience
                    && patience.timer.is_some()
                {
                    patience.last = patience.runtime.elapsed();
                }
                let frame = std::task::ready!(frame).transpose().map_err(BodyError::Cut).transpose();
                if frame.is_none() && this.is_reset() {
                    return Poll::Ready(Some(Err(BodyError::Reset)));
                }
                Poll::Ready(frame.and_then(|frame| frame.map(|frame| this.clean(frame)).transpose()))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

pin_project! {
    /// What a client gets: the service's answer, or the edge's own.
    #[project = EdgeBodyProjection]
    pub(super) enum EdgeBody<B> {
        Answer {
            #[pin]
            body: B,
            // What came in one part and goes in several.
            rest: Bytes,
            // Over HTTP/2 only.
            taken: Option<Arc<Taken>>,
            // Until it is dropped the connection is not idle.
            _flight: Flight,
        },
        Own {
            body: Full<Bytes>,
        },
    }
}

/// A part of an answer that says when bytes are taken out of it.
pub(super) struct Piece {
    bytes: Bytes,
    taken: Option<Arc<Taken>>,
}

impl Buf for Piece {
    #[inline]
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if count > 0
            && let Some(taken) = &self.taken
        {
            taken.note();
        }
    }
}

impl<B> EdgeBody<B> {
    /// With `taken`, large parts are handed over in several.
    pub(super) fn answer(body: B, flight: Flight, taken: Option<Arc<Taken>>) -> Self {
        EdgeBody::Answer { body, rest: Bytes::new(), taken, _flight: flight }
    }
}

/// The first part of what is in `rest`.
fn piece(rest: &mut Bytes, taken: &Option<Arc<Taken>>) -> Piece {
    let bytes = match taken {
        Some(_) if rest.len() > PIECE_BYTES_MAX => rest.split_to(PIECE_BYTES_MAX),
        _ => std::mem::take(rest),
    };
    Piece { bytes, taken: taken.clone() }
}

impl<B: Body<Data = Bytes>> Body for EdgeBody<B> {
    type Data = Piece;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, B::Error>>> {
        let frame = match self.project() {
            EdgeBodyProjection::Answer { rest, taken, .. } if !rest.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(piece(rest, taken)))))
            }
            EdgeBodyProjection::Answer { body, rest, taken, .. } => body.poll_frame(cx).map_ok(|frame| {
                frame.map_data(|data| {
                    *rest = data;
                    piece(rest, taken)
                })
            }),
            EdgeBodyProjection::Own { body } => Pin::new(body)
                .poll_frame(cx)
                .map_ok(|frame| frame.map_data(|bytes| Piece { bytes, taken: None }))
                .map_err(|never| match never {}),
        };
        if frame.is_pending() { Turn::Service } else { Turn::Client }.say();
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            EdgeBody::Answer { body, rest, .. } => rest.is_empty() && body.is_end_stream(),
            EdgeBody::Own { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            EdgeBody::Answer { body, rest, .. } => ahead(rest.len() as u64, &body.size_hint()),
            EdgeBody::Own { body } => body.size_hint(),
        }
    }
}

/// The size of a body with so much before it.
fn ahead(bytes: u64, of: &SizeHint) -> SizeHint {
    let mut hint = SizeHint::new();
    hint.set_lower(bytes.saturating_add(of.lower()));
    if let Some(upper) = of.upper() {
        hint.set_upper(bytes.saturating_add(upper));
    }
    hint
}
