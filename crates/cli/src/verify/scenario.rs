//! What a check does, as data: the runner plays it, the shrinker makes it smaller, the reporter turns it
//! into a shell script that does the same.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;

use super::template::Request;

/// Steps in order, and how many effects there must be afterwards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scenario {
    pub(crate) steps: Vec<Step>,
    pub(crate) counts: Vec<Count>,
}

/// Effects that one tag may have.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) tag: String,
    pub(crate) allowed: RangeInclusive<u64>,
}

/// One thing done.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// These at the same moment: connections are opened first, then all are let go at once. Ends when each
    /// was answered or failed.
    Send(Vec<Call>),
    /// The same, but goes on at once. [`Step::Join`] waits for them.
    Start(Vec<Call>),
    Join,
    Wait(Duration),
    /// The user's command for it.
    Hook(Hook),
}

/// One request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// What it is called in findings and pictures: `first`, `retry`, `racer 3`.
    pub(crate) name: String,
    pub(crate) request: Request,
    pub(crate) how: How,
}

/// How a request is sent and its answer taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    /// The connection is dropped when the answer has come so far.
    Cut(Region),
    /// The connection is dropped so long after the request went out, answered or not.
    Abort(Duration),
    /// The body goes out in so many pieces with a pause between them.
    Slow {
        pieces: usize,
        pause: Duration,
    },
    /// On one HTTP/1.1 connection with the other calls of this number in the same step, without waiting.
    Pipelined(usize),
    /// On one HTTP/2 connection with the other calls of this number in the same step.
    Http2(usize),
}

/// Where an answer is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    BeforeHead,
    InHead,
    InBody,
}

/// A command the user gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Kill,
    Start,
    StoreStop,
    StoreStart,
}

/// All that was seen while a scenario was played.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// In the order of the scenario's calls.
    pub(crate) answers: Vec<Answer>,
    /// In the order of the scenario's counts; `None` where they could not be counted.
    pub(crate) effects: Vec<Option<u64>>,
    /// Commands and pauses, for the picture: what, from, to.
    pub(crate) events: Vec<(String, Duration, Duration)>,
    /// A command to kill the service ended, and the service did not.
    pub(crate) spared: bool,
}

/// What became of one call. Times are since the scenario began.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) name: String,
    pub(crate) sent: Duration,
    pub(crate) ended: Duration,
    /// Or what went wrong, in words: `connection refused`, `cut by us before the head`, `no answer within 30s`.
    pub(crate) reply: Result<Reply, String>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// In order, as they came.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

impl Reply {
    /// The first header of that name, as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(there, _)| there.eq_ignore_ascii_case(name));
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }
}

impl Seen {
    /// The answer of a call by its name.
    pub(crate) fn answer(&self, name: &str) -> Option<&Answer> {
        self.answers.iter().find(|answer| answer.name == name)
    }
}
