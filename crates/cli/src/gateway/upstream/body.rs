//! The body of an answer, straight from the connection it comes over.
//!
//! The task that reads the body also drives the connection: nobody else is woken, and a slow reader
//! slows down the upstream instead of filling memory. At its end the connection goes back to the pool.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;

use super::super::{BoxError, headers};
use super::pool::{Busy, Leased};

/// What an upstream answered, or what the gateway says in its place.
pub(crate) struct Body<B: Payload>(Kind<B>);

enum Kind<B: Payload> {
    /// Needs nobody: it is here already, or another task drives its connection.
    Whole(Incoming),
    Driven {
        incoming: Incoming,
        /// Gone once the body has ended.
        over: Option<Leased<B>>,
    },
    /// Over HTTP/2; the target counts as busy until it is dropped.
    Stream(Incoming, #[expect(dead_code, reason = "held for its drop")] Busy<B>),
    Own(Full<Bytes>),
}

/// What a request body has to be to go upstream.
pub(crate) trait Payload:
    HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static
{
}

impl<T> Payload for T where T: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B: Payload> Body<B> {
    pub(super) fn whole(incoming: Incoming) -> Self {
        Self(Kind::Whole(incoming))
    }

    pub(super) fn driven(incoming: Incoming, over: Leased<B>) -> Self {
        Self(Kind::Driven { incoming, over: Some(over) })
    }

    pub(super) fn stream(incoming: Incoming, busy: Busy<B>) -> Self {
        Self(Kind::Stream(incoming, busy))
    }

    pub(super) fn own(text: Full<Bytes>) -> Self {
        Self(Kind::Own(text))
    }
}

impl<B: Payload> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = match &mut this.0 {
            Kind::Whole(incoming) => poll(incoming, cx),
            Kind::Stream(incoming, _) => poll_stream(incoming, cx),
            Kind::Driven { incoming, over } => poll_driven(incoming, over, cx),
            Kind::Own(text) => Pin::new(text).poll_frame(cx).map_err(|never| match never {}),
        };
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && frame.is_trailers()
            && matches!(this.0, Kind::Driven { over: None, .. })
        {
            // Nothing comes after them, and nobody drives the connection for this body any more.
            this.0 = Kind::Own(Full::default());
        }
        frame.map(|frame| frame.and_then(|frame| frame.map(clean).transpose()))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(incoming) | Kind::Stream(incoming, _) | Kind::Driven { incoming, .. } => {
                incoming.is_end_stream()
            }
            Kind::Own(text) => text.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(incoming) | Kind::Stream(incoming, _) | Kind::Driven { incoming, .. } => {
                incoming.size_hint()
            }
            Kind::Own(text) => text.size_hint(),
        }
    }
}

/// What may be heard of a frame. Trailers of which nothing is left are the end.
fn clean(mut frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
    if let Some(trailers) = frame.trailers_mut() {
        headers::strip_answer_trailers(trailers);
        if trailers.is_empty() {
            return None;
        }
    }
    Some(frame)
}

fn poll(incoming: &mut Incoming, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    Pin::new(incoming).poll_frame(cx).map_err(Into::into)
}

/// Over HTTP/2 hyper takes a stream that was reset with NO_ERROR, or given up with a GOAWAY of that code, for one
/// that ended. Proxies say so for most of their failures; only END_STREAM is the end of an answer.
fn poll_stream(
    incoming: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    let frame = ready!(poll(incoming, cx));
    if frame.is_none() && !incoming.is_end_stream() && !semel::mutant::on("reset-ends-answer") {
        return Poll::Ready(Some(Err("the stream was reset within an answer".into())));
    }
    Poll::Ready(frame)
}

fn poll_driven<B: Payload>(
    incoming: &mut Incoming,
    over: &mut Option<Leased<B>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    let Some(leased) = over else { return poll(incoming, cx) };
    // Parts arrive only by driving the connection, which happens here: no waker is needed for them.
    let mut unwoken = Context::from_waker(Waker::noop());
    let mut frame = poll(incoming, &mut unwoken);
    if frame.is_pending() {
        leased.drive(cx);
        frame = poll(incoming, &mut unwoken);
    }
    if frame.is_pending() {
        if !leased.has_ended() {
            return Poll::Pending;
        }
        // Cannot be: hyper ends the body before the connection. If it were, the answer is not whole.
        frame = Poll::Ready(Some(Err("the connection ended within an answer".into())));
    }
    let ended = match &frame {
        // Who hears trailers, or an end in their place, does not ask again.
        Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => !semel::mutant::on("trailers-lose-connection"),
        Poll::Ready(Some(Ok(_))) => incoming.is_end_stream(),
        _ => true,
    };
    if ended && let Some(mut leased) = over.take() {
        // The connection learns here that the body was taken, and may be ready for the next request.
        leased.drive(cx);
        leased.give_back();
    }
    frame
}
