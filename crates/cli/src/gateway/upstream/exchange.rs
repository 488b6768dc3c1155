//! One request, one answer, on one HTTP/1.1 connection, in the task of whoever asks.
//!
//! Request and connection are driven together, so that a request wakes nobody else.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use semel::http::problem::Kind;

use super::super::alarm::{Alarmed, Clock, millis};
use super::body::Payload;
use super::line::{BodyState, Line};
use super::outgoing::Outgoing;
use super::pool::Leased;
use super::target::Means;

/// How a request was lost.
pub(super) enum Lost<B> {
    /// The connection was gone before hyper began with the request: here it is again.
    Unsent(Box<Request<Outgoing<B>>>, String),
    /// Something broke after hyper took it.
    Broken(hyper::Error),
    TimedOut(String),
    /// The connection ended and nobody said anything.
    Ended,
}

impl<B> Lost<B> {
    pub(super) fn from(mut error: hyper::client::conn::TrySendError<Request<Outgoing<B>>>) -> Self {
        match error.take_message() {
            Some(request) => Lost::Unsent(Box::new(request), error.error().to_string()),
            None => Lost::Broken(error.into_error()),
        }
    }

    pub(super) fn explain(&self, body: BodyState) -> (Kind, String) {
        match self {
            _ if body == BodyState::Failed => {
                (Kind::UpstreamUnreachable, "the client's request broke off".to_owned())
            }
            Lost::Unsent(_, reason) => (Kind::UpstreamUnreachable, reason.clone()),
            Lost::Broken(error) => {
                let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
                (Kind::UpstreamUnreachable, format!("{error}{}", cause.unwrap_or_default()))
            }
            Lost::TimedOut(reason) => (Kind::UpstreamTimeout, reason.clone()),
            Lost::Ended => (Kind::UpstreamUnreachable, "the connection ended".to_owned()),
        }
    }
}

/// How long to wait for an answer.
pub(super) struct Wait {
    clock: Arc<Clock<Line>>,
    response: Duration,
    deadline: Option<Duration>,
}

/// Since when nothing moved towards the upstream.
pub(super) struct Quiet {
    since: u64,
    progress: u64,
}

impl Wait {
    pub(super) fn new(means: &Means, deadline: Option<Duration>) -> Self {
        // A request with a deadline is waited for until then: its outcome is wanted, however late.
        let response = if deadline.is_some() { Duration::MAX } else { means.response_timeout };
        Self { clock: means.clock.clone(), response, deadline }
    }

    pub(super) fn until_deadline(&self, now: Duration) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_sub(now))
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.clock.now() >= millis(deadline))
    }

    pub(super) fn begin(&self, line: &Line) -> Quiet {
        Quiet { since: self.clock.next(), progress: line.progress() }
    }

    /// Whether the time is up; if not, the line's alarm wakes this task when it may be.
    pub(super) fn check<B>(&self, line: &Line, quiet: &mut Quiet, cx: &Context<'_>) -> Result<(), Lost<B>> {
        let now = self.clock.now();
        let progress = line.progress();
        // The client's pauses are the client's, not the upstream's.
        if progress != quiet.progress || line.body() == BodyState::WaitingForClient {
            *quiet = Quiet { since: self.clock.next(), progress };
        }
        let response = quiet.since.saturating_add(millis(self.response));
        let deadline = self.deadline.map_or(u64::MAX, millis);
        if now >= deadline {
            return Err(Lost::TimedOut("no answer before the route's limit".to_owned()));
        }
        if now >= response {
            return Err(Lost::TimedOut(format!("no answer within {:?}", self.response)));
        }
        line.alarm().set(Some(response.min(deadline)), cx.waker());
        Ok(())
    }
}

/// Sends a request and waits for the head of its answer.
///
/// # Cancellation
///
/// Dropped before the answer, the connection is closed with its lease; the request may have had its
/// effect.
pub(super) async fn exchange<B: Payload>(
    leased: &mut Leased<B>,
    request: Request<Outgoing<B>>,
    wait: &Wait,
) -> Result<Response<Incoming>, Lost<B>> {
    let line = leased.connection.line.clone();
    if wait.is_over() {
        return Err(Lost::TimedOut("the route's limit passed before it was sent".to_owned()));
    }
    let mut quiet = wait.begin(&line);
    // The answer is handed over while the connection is driven, right here: it needs no waker, and
    // must not be put off by the scheduler's budget, since nobody would wake it again.
    let mut answer = pin!(tokio::task::unconstrained(leased.connection.sender.try_send_request(request)));
    let answered = poll_fn(|cx| {
        leased.drive(cx);
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Poll::Ready(answer.map_err(Lost::from));
        }
        if leased.has_ended() {
            return Poll::Ready(Err(Lost::Ended));
        }
        match wait.check(&line, &mut quiet, cx) {
            Ok(()) => Poll::Pending,
            Err(lost) => Poll::Ready(Err(lost)),
        }
    })
    .await;
    line.alarm().clear();
    answered
}
