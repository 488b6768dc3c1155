//! One call of the inner service: the request on its way in, the response on its way out.
//!
//! It stands between two tasks. The effect takes the request, performs it, and leaves the response; the
//! client's side picks the response up once the outcome is stored, if the client is still there.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use semel_core::outcome::{self, Outcome};
use semel_core::{Attempt, Ending, Runtime, mutant};
use tower_service::Service;

use crate::capture::{self, Read};
use crate::hints::{Fate, Hints};
use crate::verdict::{self, Ended, Verdict};
use crate::{BoxError, Op, ReplyBody, RequestBody, Route, header, stored};

pub(crate) struct Exchange<S, B, R> {
    call: Mutex<Option<(S, Request<RequestBody<B>>)>>,
    reply: Mutex<Option<Response<ReplyBody<R>>>>,
    decided: AtomicBool,
}

impl<S, B, R> Exchange<S, B, R> {
    pub(crate) fn new(service: S, request: Request<RequestBody<B>>) -> Self {
        let call = Mutex::new(Some((service, request)));
        Self { call, reply: Mutex::new(None), decided: AtomicBool::new(false) }
    }

    /// Looks at the request, if it was not sent.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&Request<RequestBody<B>>) -> T) -> Option<T> {
        let call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        call.as_ref().map(|(_, request)| look(request))
    }

    /// The response, for the client who caused it.
    pub(crate) fn take_reply(&self) -> Option<Response<ReplyBody<R>>> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the effect ran and ended with an outcome.
    pub(crate) fn was_decided(&self) -> bool {
        self.decided.load(Ordering::Acquire)
    }

    fn leave(&self, head: Parts, body: ReplyBody<R>) {
        let reply = Response::from_parts(head, body);
        *self.reply.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply);
    }
}

impl<S, B, R> Exchange<S, B, R>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    /// The effect: calls the service and judges its answer.
    pub(crate) async fn perform(
        self: Arc<Self>,
        attempt: Attempt,
        route: Arc<Route>,
        runtime: Arc<dyn Runtime>,
    ) -> Ending {
        let taken = self.call.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((mut service, mut request)) = taken else {
            return Ending::Unknown("the request was sent before".into());
        };
        let op = Op::new(attempt);
        if route.gives_headers() {
            op.write_headers(request.headers_mut());
        }
        request.extensions_mut().insert(op.clone());
        let answered = service.call(request).await.map_err(|error| error.into().to_string());
        drop(service);
        match answered {
            Ok(response) => self.judge(response, &op, &route, &*runtime).await,
            Err(error) => Ending::Unknown(format!("the service failed: {error}")),
        }
    }

    async fn judge(&self, response: Response<R>, op: &Op, route: &Route, runtime: &dyn Runtime) -> Ending {
        let (mut head, body) = response.into_parts();
        let Some(nonce) = op.nonce() else {
            // Unprotected: nothing is stored, so nothing needs to be judged or held back.
            header::strip(&mut head.headers);
            self.leave(head, ReplyBody::passed(body));
            return Ending::Done(Outcome::default());
        };
        let beside = head.extensions.get::<Hints>().copied().unwrap_or_default();
        let hints = Hints::in_headers(&head.headers, nonce).and(op.hints()).and(beside);
        let verdict = Verdict::of(head.status, head.extensions.get::<Fate>(), hints, route.releasing());
        header::strip(&mut head.headers);
        match verdict.ended {
            Ended::Unknown(why) => Ending::Unknown(why),
            Ended::NothingHappened => {
                self.leave(head, ReplyBody::passed(body));
                Ending::NothingHappened(Outcome::default())
            }
            Ended::Done if verdict.keep_body => self.keep(head, body, &verdict, route, runtime).await,
            Ended::Done => {
                let size = body.size_hint().exact();
                let ending = self.done(&head, None, outcome::Body::NotKept { bytes: size }, &verdict, route);
                self.leave(head, ReplyBody::passed(body));
                ending
            }
        }
    }

    /// Reads the body as far as it is kept, and no byte is passed on before the outcome is stored.
    async fn keep(
        &self,
        head: Parts,
        body: R,
        verdict: &Verdict,
        route: &Route,
        runtime: &dyn Runtime,
    ) -> Ending {
        let bytes_max = route.policy().outcome_bytes_max();
        let read_max = if verdict::may_be_problem(&head.headers) {
            bytes_max.max(verdict::PROBLEM_BYTES_MAX)
        } else {
            bytes_max
        };
        let mut body = Box::pin(body);
        let run_max = route.policy().terms().run_max;
        let read = within(runtime, run_max, capture::read(body.as_mut(), read_max)).await;
        match read.unwrap_or_else(|| Read::Cut(format!("it did not end within {run_max:?}").into())) {
            // Less than was announced: whoever passed it on took a lost connection for its end.
            Read::Whole { bytes, .. } if is_short(&head, bytes.len()) && !verdict.decided => {
                Ending::Unknown(format!("the answer, {}, is shorter than it announced", head.status))
            }
            Read::Whole { bytes, .. } if is_short(&head, bytes.len()) => {
                self.done(&head, None, outcome::Body::NotKept { bytes: None }, verdict, route)
            }
            Read::Whole { bytes, trailers } => {
                if let Some(kind) = verdict::foreign_problem(&head.headers, &bytes) {
                    return Ending::Unknown(format!("another Semel answered {} with {kind}", head.status));
                }
                let kept = outcome::Body::Kept(bytes.clone());
                let ending = self.done(&head, trailers.as_deref(), kept, verdict, route);
                self.leave(head, ReplyBody::whole(bytes, trailers));
                ending
            }
            Read::TooLarge { read, next, .. } if mutant::on("large-answer-runs-again") => {
                self.leave(head, ReplyBody::prefixed(read, next, body));
                Ending::NothingHappened(Outcome::default())
            }
            Read::TooLarge { read, next, size } => {
                let kept = outcome::Body::NotKept { bytes: size };
                let ending = self.done(&head, None, kept, verdict, route);
                self.leave(head, ReplyBody::prefixed(read, next, body));
                ending
            }
            Read::Cut(_) if verdict.decided => {
                self.done(&head, None, outcome::Body::NotKept { bytes: None }, verdict, route)
            }
            Read::Cut(_) if mutant::on("cut-body-stored") => {
                self.done(&head, None, outcome::Body::default(), verdict, route)
            }
            Read::Cut(error) => Ending::Unknown(format!("the answer, {}, broke off: {error}", head.status)),
        }
    }

    /// The one place where an outcome is handed to be stored.
    fn done(
        &self,
        head: &Parts,
        trailers: Option<&HeaderMap>,
        body: outcome::Body,
        verdict: &Verdict,
        route: &Route,
    ) -> Ending {
        self.decided.store(true, Ordering::Release);
        let outcome = stored::outcome(head.status, &head.headers, trailers, body, route);
        match verdict.keep_longer {
            Some(time) => Ending::DoneKept(outcome, time),
            None => Ending::Done(outcome),
        }
    }
}

/// What reading gives, or `None` when the time is up: an answer that stalls would be in flight for ever,
/// and nobody could settle it. What is here already sets no timer.
async fn within<T>(runtime: &dyn Runtime, time: Duration, reading: impl Future<Output = T>) -> Option<T> {
    let mut reading = pin!(reading);
    let mut alarm = None;
    poll_fn(|cx| {
        if let Poll::Ready(read) = reading.as_mut().poll(cx) {
            return Poll::Ready(Some(read));
        }
        if mutant::on("stalled-answer-runs-on") {
            return Poll::Pending;
        }
        alarm.get_or_insert_with(|| runtime.sleep(time)).as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Whether a body has fewer bytes than its response announced. A 304 announces what it does not send.
fn is_short(head: &Parts, bytes: usize) -> bool {
    let announced =
        head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    head.status != StatusCode::NOT_MODIFIED && announced.is_some_and(|announced| announced > bytes as u64)
}
