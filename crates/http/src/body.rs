//! Bodies on their way in and out: passed through untouched, or whole.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::header;

pin_project! {
    /// What the inner service gets: the client's body as it is, or all of it at once.
    pub struct RequestBody<B> {
        #[pin]
        form: RequestForm<B>,
    }
}

pin_project! {
    #[project = RequestProjection]
    enum RequestForm<B> {
        // Unprotected: nothing was read.
        Passed { #[pin] body: B },
        // Protected: read to its end before anything runs.
        Whole { whole: Whole },
    }
}

pin_project! {
    /// What the outer service answers with: the inner body as it is, all of a body at once, or what was
    /// read of a large one and then the rest.
    pub struct ReplyBody<R> {
        #[pin]
        form: ReplyForm<R>,
    }
}

pin_project! {
    #[project = ReplyProjection]
    enum ReplyForm<R> {
        Passed { #[pin] body: R },
        Whole { whole: Whole },
        Prefixed { read: Bytes, next: Bytes, rest: Pin<Box<R>> },
    }
}

/// All bytes of a body, and its trailers.
#[derive(Clone, Debug, Default)]
struct Whole {
    bytes: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl<B> RequestBody<B> {
    /// A body that nobody has touched.
    pub fn passed(body: B) -> Self {
        Self { form: RequestForm::Passed { body } }
    }

    /// A body that is there already.
    pub fn whole(bytes: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { form: RequestForm::Whole { whole: Whole { bytes, trailers } } }
    }

    /// All bytes, if they are there and none was taken.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.form {
            RequestForm::Passed { .. } => None,
            RequestForm::Whole { whole } => Some(&whole.bytes),
        }
    }
}

impl<R> ReplyBody<R> {
    /// The inner body, untouched.
    pub fn passed(body: R) -> Self {
        Self { form: ReplyForm::Passed { body } }
    }

    /// A body that is there already.
    pub fn whole(bytes: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { form: ReplyForm::Whole { whole: Whole { bytes, trailers } } }
    }

    /// What was read of a body, in two parts, and the rest of it.
    pub(crate) fn prefixed(read: Bytes, next: Bytes, rest: Pin<Box<R>>) -> Self {
        Self { form: ReplyForm::Prefixed { read, next, rest } }
    }
}

impl<R> From<Bytes> for ReplyBody<R> {
    fn from(bytes: Bytes) -> Self {
        Self::whole(bytes, None)
    }
}

impl Whole {
    fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        let bytes = std::mem::take(&mut self.bytes);
        if !bytes.is_empty() {
            return Some(Frame::data(bytes));
        }
        self.trailers.take().map(|trailers| Frame::trailers(*trailers))
    }

    fn is_over(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none()
    }

    // An exact size would make an HTTP/1 server announce a length, and then it has no place for trailers.
    fn size_hint(&self) -> SizeHint {
        let length = self.bytes.len() as u64;
        if self.trailers.is_none() {
            return SizeHint::with_exact(length);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

/// Trailers are headers that come late: Semel's own are taken out of them too.
fn clean<E>(frame: Option<Result<Frame<Bytes>, E>>) -> Option<Result<Frame<Bytes>, E>> {
    frame.map(|frame| {
        frame.map(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                header::strip(trailers);
            }
            frame
        })
    })
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().form.project() {
            RequestProjection::Passed { body } => body.poll_frame(cx).map(clean),
            RequestProjection::Whole { whole } => Poll::Ready(clean(whole.next_frame().map(Ok))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.form {
            RequestForm::Passed { body } => body.is_end_stream(),
            RequestForm::Whole { whole } => whole.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.form {
            RequestForm::Passed { body } => body.size_hint(),
            RequestForm::Whole { whole } => whole.size_hint(),
        }
    }
}

impl<R: Body<Data = Bytes>> Body for ReplyBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project().form.project() {
            ReplyProjection::Passed { body } => body.poll_frame(cx).map(clean),
            ReplyProjection::Whole { whole } => Poll::Ready(clean(whole.next_frame().map(Ok))),
            ReplyProjection::Prefixed { read, next, rest } => {
                for part in [read, next] {
                    if !part.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(std::mem::take(part)))));
                    }
                }
                rest.as_mut().poll_frame(cx).map(clean)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.form {
            ReplyForm::Passed { body } => body.is_end_stream(),
            ReplyForm::Whole { whole } => whole.is_over(),
            ReplyForm::Prefixed { read, next, rest } => {
                read.is_empty() && next.is_empty() && rest.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.form {
            ReplyForm::Passed { body } => body.size_hint(),
            ReplyForm::Whole { whole } => whole.size_hint(),
            ReplyForm::Prefixed { read, next, rest } => {
                let (ahead, rest) = ((read.len() + next.len()) as u64, rest.size_hint());
                let mut hint = SizeHint::new();
                hint.set_lower(ahead.saturating_add(rest.lower()));
                if let Some(upper) = rest.upper() {
                    hint.set_upper(ahead.saturating_add(upper));
                }
                hint
            }
        }
    }
}
