//! One shared HTTP/2 connection per target.
//!
//! Streams fail one by one, so writes on the connection say nothing about one request. What counts is
//! what the upstream said: a refused stream, or a GOAWAY below it, was not looked at (RFC 9113).

use std::error::Error as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::{Response, Version};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;

use super::super::alarm::{Alarmed, millis};
use super::super::headers;
use super::super::net::{Spawner, Timer, within};
use super::body::{Body, Payload};
use super::exchange::{Lost, Wait};
use super::fate::Failure;
use super::line::Line;
use super::outgoing::Outgoing;
use super::pool::Busy;
use super::target::{Protocol, Target, already_sent, unreachable};
use super::task::Task;

/// How often an upstream is asked whether it is still there, while requests are open.
const PING_EVERY: Duration = Duration::from_secs(20);

struct Open<B> {
    sender: http2::SendRequest<Outgoing<B>>,
    /// When it was opened or last answered, in milliseconds.
    alive: Arc<AtomicU64>,
}

impl<B> Clone for Open<B> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), alive: self.alive.clone() }
    }
}

pub(super) struct Http2<B> {
    shared: Mutex<Option<Open<B>>>,
    /// One connects, the others wait for it.
    connecting: tokio::sync::Mutex<()>,
}

impl<B> Default for Http2<B> {
    fn default() -> Self {
        Self { shared: Mutex::new(None), connecting: tokio::sync::Mutex::new(()) }
    }
}

impl<B: Payload> Http2<B> {
    pub(super) async fn send(
        &self,
        target: &Arc<Target<B>>,
        task: &mut Task<B>,
    ) -> Result<Response<Body<B>>, Failure> {
        let wait = Wait::new(&target.means, task.deadline);
        let mut pooled = self.take(target, task.protected);
        loop {
            let used = pooled.is_some();
            let mut open = match pooled.take() {
                Some(open) => open,
                None => self.connect_in_time(target, task.protected, &wait).await?,
            };
            let spare = if used { task.spare() } else { None };
            let line = Arc::new(Line::default());
            target.means.clock.watch(&line);
            let busy = Busy::new(target);
            let Some(request) = task.take_http2(&target.address, line.clone()) else {
                return Err(already_sent());
            };
            let mut quiet = wait.begin(&line);
            let mut answer = pin!(open.sender.try_send_request(request));
            let answered = poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(answer.map_err(Lost::from)),
                Poll::Pending => match wait.check(&line, &mut quiet, cx) {
                    Ok(()) => Poll::Pending,
                    Err(lost) => Poll::Ready(Err(lost)),
                },
            })
            .await;
            line.alarm().clear();
            match answered {
                Ok(mut response) => {
                    open.alive.store(millis(target.now()), Ordering::Release);
                    headers::drop_hop_by_hop(response.headers_mut());
                    *response.version_mut() = Version::HTTP_11;
                    return Ok(response.map(|incoming| Body::stream(incoming, busy)));
                }
                Err(Lost::Unsent(request, reason)) => {
                    task.put_back(*request);
                    self.forget();
                    if !used {
                        return Err(unreachable(reason));
                    }
                }
                Err(lost) => {
                    let (problem, reason) = lost.explain(line.body());
                    let refused = is_refused(&lost, &line);
                    match spare.filter(|_| refused || open.sender.is_closed()) {
                        Some(spare) => task.restore(spare),
                        None if refused => return Err(Failure::nothing_happened(problem, reason)),
                        None => return Err(Failure::unknown(problem, reason)),
                    }
                    self.forget();
                }
            }
        }
    }

    /// The shared connection, if it has shown life recently enough.
    fn take(&self, target: &Target<B>, protected: bool) -> Option<Open<B>> {
        let open = self.lock().clone().filter(|open| !open.sender.is_closed())?;
        let limits = target.means.limits;
        let limit = match protected && !semel::mutant::on("stale-connection-for-protected") {
            true => limits.idle_protected.min(limits.idle),
            false => limits.idle,
        };
        let silent = millis(target.now()).saturating_sub(open.alive.load(Ordering::Acquire));
        (silent < millis(limit)).then_some(open)
    }

    /// The next request opens a new connection; streams that are open go on.
    fn forget(&self) {
        *self.lock() = None;
    }

    /// Who waits for another's connection waits no longer than for its own.
    async fn connect_in_time(
        &self,
        target: &Arc<Target<B>>,
        protected: bool,
        wait: &Wait,
    ) -> Result<Open<B>, Failure> {
        let patience = wait.until_deadline(target.now()).min(target.means.connect_timeout);
        let connected = within(&*target.runtime, patience, self.connect(target, protected, wait)).await;
        connected.unwrap_or_else(|| {
            let reason = format!("no connection to {} within {patience:?}", target.address.authority);
            Err(unreachable(reason))
        })
    }

    async fn connect(
        &self,
        target: &Arc<Target<B>>,
        protected: bool,
        wait: &Wait,
    ) -> Result<Open<B>, Failure> {
        let _alone = self.connecting.lock().await;
        if let Some(open) = self.take(target, protected) {
            return Ok(open);
        }
        let transport = target.open(Protocol::Http2, Arc::new(Line::default()), wait).await?;
        let (sender, connection) = http2::Builder::new(Spawner(target.runtime.clone()))
            .timer(Timer::new(target.runtime.clone()))
            .keep_alive_interval(PING_EVERY)
            .handshake(TokioIo::new(transport))
            .await
            .map_err(|error| unreachable(format!("handshake with {}: {error}", target.address.authority)))?;
        target.runtime.spawn(Box::pin(async move {
            // Errors reach the requests on it.
            let _ = connection.await;
        }));
        let open = Open { sender, alive: Arc::new(AtomicU64::new(millis(target.now()))) };
        *self.lock() = Some(open.clone());
        Ok(open)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Open<B>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the upstream said that it did not look at the request (G-16).
fn is_refused<B>(lost: &Lost<B>, line: &Line) -> bool {
    if semel::mutant::on("lost-stream-did-not-happen") {
        return true;
    }
    let Lost::Broken(error) = lost else { return false };
    let Some(error) = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>()) else {
        return false;
    };
    if !error.is_remote() || semel::mutant::on("refused-stream-unknown") {
        return false;
    }
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    // Hyper says "going away" also of a stream it has just opened, wherever that stands. Once it has
    // taken a part of the body, only streams above the upstream's last one hear it.
    let above = error.is_go_away() && line.progress() > 0;
    refused || above
}
