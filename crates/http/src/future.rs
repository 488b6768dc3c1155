//! The future of an answer: the inner service's own for what passes, a boxed one for what is keyed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;

use crate::{ReplyBody, header};

pin_project! {
    /// The future of [`Semel`](crate::Semel).
    pub struct Reply<F, R> {
        #[pin]
        way: Way<F, R>,
    }
}

pin_project! {
    #[project = WayProjection]
    pub(crate) enum Way<F, R> {
        Passing { #[pin] inner: F },
        Refused { response: Option<Box<Response<ReplyBody<R>>>> },
        Keyed { work: Pin<Box<dyn Future<Output = Response<ReplyBody<R>>> + Send>> },
    }
}

impl<F, R> From<Way<F, R>> for Reply<F, R> {
    fn from(way: Way<F, R>) -> Self {
        Self { way }
    }
}

impl<F, R, E> Future for Reply<F, R>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ReplyBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().way.project() {
            WayProjection::Passing { inner } => {
                let mut response = ready!(inner.poll(cx))?;
                header::strip(response.headers_mut());
                Poll::Ready(Ok(response.map(ReplyBody::passed)))
            }
            WayProjection::Refused { response } => {
                Poll::Ready(Ok(*response.take().expect("a future is not polled after its end")))
            }
            WayProjection::Keyed { work } => work.as_mut().poll(cx).map(Ok),
        }
    }
}
