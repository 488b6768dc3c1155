//! A message as a call: intent, call, result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use semel::Error;
use semel::inbox::{Applied, Apply, Arrival, Batch, Failure, Inbox, Received};
use semel::store::Pending;

use crate::gateway::fetch::Http;

/// Headers of a message that are not passed on: they speak of another connection, or are set here.
const NOT_PASSED: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Most of an answer that is kept as a reason.
const ANSWER_SHOWN_BYTES: usize = 300;

/// Whom to call.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) url: Uri,
    pub(super) timeout: Duration,
    pub(super) concurrency: usize,
}

impl Target {
    /// Without user, password and query: those may be secrets.
    pub(super) fn shown(&self) -> String {
        let (url, port) = (&self.url, self.url.port().map(|port| format!(":{port}")));
        let (scheme, host) = (url.scheme_str().unwrap_or_default(), url.host().unwrap_or_default());
        format!("{scheme}://{host}{}{}", port.unwrap_or_default(), url.path())
    }
}

/// Calls a service for each message.
pub(super) struct Call {
    inbox: Arc<dyn Inbox>,
    http: Http,
    target: Target,
}

/// What came of a call, and how long it took.
type Called = (usize, Result<(), Failure>, Duration);

impl Call {
    pub(super) fn new(inbox: Arc<dyn Inbox>, http: Http, target: Target) -> Self {
        Self { inbox, http, target }
    }

    async fn run(&self, batch: &Batch) -> Result<Applied, Error> {
        // A letter is an intent that is still there.
        let is_letters = batch.arrivals.iter().any(|arrival| arrival.letter.is_some());
        let received = match is_letters {
            true => vec![Received::New; batch.arrivals.len()],
            false => self.inbox.intend(batch).await?,
        };
        let mut each: Vec<Result<Received, Failure>> = received.iter().copied().map(Ok).collect();
        let (mut done, mut took) = (Vec::new(), Vec::new());
        for (index, called, time) in self.call_all(&batch.arrivals, &received).await {
            match called {
                Ok(()) => {
                    done.push(batch.arrivals[index].clone());
                    took.push(time);
                }
                Err(failure) => each[index] = Err(failure),
            }
        }
        if !done.is_empty() {
            let done = Batch { group: batch.group.clone(), arrivals: done, offsets: Vec::new() };
            self.inbox.finish(&done, &took).await?;
        }
        Ok(Applied::Each(each))
    }

    /// Calls for all new messages: one after the other for each key, keys beside each other.
    async fn call_all(&self, arrivals: &[Arrival], received: &[Received]) -> Vec<Called> {
        let mut lines: BTreeMap<(bool, String), Vec<usize>> = BTreeMap::new();
        for (index, arrival) in arrivals.iter().enumerate() {
            if received[index] == Received::New {
                let line = match arrival.message.ordering_key() {
                    Some(key) => (true, key.into_owned()),
                    None => (false, index.to_string()),
                };
                lines.entry(line).or_default().push(index);
            }
        }
        let calls =
            futures_util::stream::iter(lines.into_values().map(|line| self.call_line(arrivals, line)));
        let called: Vec<Vec<Called>> = calls.buffer_unordered(self.target.concurrency).collect().await;
        called.into_iter().flatten().collect()
    }

    async fn call_line(&self, arrivals: &[Arrival], line: Vec<usize>) -> Vec<Called> {
        let mut called: Vec<Called> = Vec::with_capacity(line.len());
        for index in line {
            let failed = called.last().is_some_and(|(_, called, _)| called.is_err());
            if failed {
                // Not called at all: it waits for the one before it.
                let failure = Failure::Later("an earlier message of its key was not applied".into());
                called.push((index, Err(failure), Duration::ZERO));
                continue;
            }
            let began = Instant::now();
            let done = self.call(&arrivals[index]).await;
            called.push((index, done, began.elapsed()));
        }
        called
    }

    async fn call(&self, arrival: &Arrival) -> Result<(), Failure> {
        let request = self.request(arrival)?;
        match self.http.send(request, self.target.timeout).await {
            Ok(answer) => judge(answer.status, &answer.body),
            Err(failed) => Err(Failure::Later(failed.to_string())),
        }
    }

    fn request(&self, arrival: &Arrival) -> Result<Request<bytes::Bytes>, Failure> {
        let never = |what: &str| Failure::Never(format!("{what} cannot be sent as a header of HTTP"));
        let id = HeaderValue::from_str(arrival.id.as_str()).map_err(|_| never("the id of the message"))?;
        let mut headers = HeaderMap::new();
        for header in &arrival.message.headers {
            let parsed = (HeaderName::try_from(&*header.name), HeaderValue::from_str(&header.value));
            if let (Ok(name), Ok(value)) = parsed
                && !NOT_PASSED.contains(&name.as_str())
            {
                headers.append(name, value);
            }
        }
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
        headers.insert("idempotency-key", id);
        let key = arrival.message.ordering_key();
        let also = [
            ("semel-source", Some(arrival.message.source.as_str())),
            ("semel-subject", Some(arrival.message.subject.as_str())),
            ("semel-key", key.as_deref()),
        ];
        for (name, value) in also {
            if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
                headers.insert(name, value);
            }
        }
        let request = Request::builder().method(Method::POST).uri(self.target.url.clone());
        let mut request = request.body(arrival.message.payload.clone()).map_err(|_| never("the address"))?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// What an answer means for the message.
fn judge(status: StatusCode, body: &[u8]) -> Result<(), Failure> {
    if status.is_success() {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(&body[..body.len().min(ANSWER_SHOWN_BYTES)]).into_owned();
    let reason = format!("the service answered {}: {shown}", status.as_u16());
    let later = matches!(status.as_u16(), 408 | 409 | 425 | 429) || status.is_server_error();
    Err(if later { Failure::Later(reason) } else { Failure::Never(reason) })
}

impl Apply for Call {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(self.run(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_whether_another_try_can_help() {
        // G-47
        let judged = |status: u16| judge(StatusCode::from_u16(status).unwrap(), b"why");
        for good in [200, 201, 204] {
            assert_eq!(judged(good), Ok(()));
        }
        for later in [408, 409, 425, 429, 500, 502, 503, 504] {
            assert!(matches!(judged(later), Err(Failure::Later(_))), "{later}");
        }
        for never in [301, 400, 401, 404, 410, 413, 422] {
            assert!(matches!(judged(never), Err(Failure::Never(_))), "{never}");
        }
        assert!(judged(422).unwrap_err().reason().contains("422: why"));
    }
}
