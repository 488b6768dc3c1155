//! What an animal does where services differ. [`SOUND`] is right everywhere; an animal differs from
//! it in one place, and in the pace that makes the place visible.

use std::pin::Pin;
use std::time::Duration;

use axum::http::HeaderMap;

use super::canonical::canonical;
use super::service::{Answer, Ask, Den, KEY, once};
use super::store::{Away, Entry, State};

/// A keyed request on its way to its answer.
pub(super) type Serving = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What can go wrong at the bank, without any fault of the service.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Trouble {
    None,
    /// The bank does it, later than the service waits.
    Late,
    /// The bank does it, and then the service fails.
    Fails,
}

#[derive(Clone, Copy)]
pub(super) struct Habits {
    /// Reads the key, or says why not.
    pub(super) key: fn(&HeaderMap) -> Result<String, Answer>,
    /// What is one operation.
    pub(super) operation: fn(&Ask) -> String,
    /// What is the same request.
    pub(super) print: fn(&Ask) -> String,
    /// From the request to the answer.
    pub(super) flow: fn(Den, Ask) -> Serving,
    /// The right to run, as a token; or the answer for whoever may not.
    pub(super) claim: fn(&Den, &Ask) -> Result<u64, Answer>,
    /// What is kept of an answer; nothing, if the key is to be free again.
    pub(super) keep: fn(&Answer) -> Option<Answer>,
    /// Called when the bank takes longer than `patience`, while it goes on.
    pub(super) give_up: fn(&Den, &Ask, u64) -> Answer,
    /// Called once at the start, with what a dead process left behind.
    pub(super) recover: fn(&Den),
    /// Whether records are on disk.
    pub(super) durable: bool,
    /// How long the effect takes; it happens in the middle.
    pub(super) pace: Duration,
    pub(super) patience: Duration,
    /// How long an answer is remembered.
    pub(super) memory: Duration,
    /// What goes wrong with the n-th attempt of a process.
    pub(super) trouble: fn(u64) -> Trouble,
}

pub(super) const SOUND: Habits = Habits {
    key: one_clean_key,
    operation: user_route_and_key,
    print: the_request_unaltered,
    flow: once,
    claim,
    keep: all_but_cookies,
    give_up: leave_it_running,
    recover: ask_the_ledger,
    durable: true,
    pace: Duration::from_millis(40),
    patience: Duration::from_secs(5),
    memory: Duration::from_secs(24 * 3600),
    trouble: |_| Trouble::None,
};

const KEY_CHARS_MAX: usize = 255;

/// One header line; a string in quotes and the same without are one key.
pub(super) fn one_clean_key(headers: &HeaderMap) -> Result<String, Answer> {
    let refuse = |why: &str| Answer::problem(400, why);
    let mut lines = headers.get_all(KEY).iter();
    let line = lines.next().ok_or_else(|| refuse("this route needs an Idempotency-Key"))?;
    if lines.next().is_some() {
        return Err(refuse("two keys"));
    }
    let text = line.to_str().map_err(|_| refuse("the key is not ASCII"))?.trim();
    let key = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    if key.is_empty() || key.len() > KEY_CHARS_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(refuse("a key has 1 to 255 visible characters"));
    }
    if key.contains('"') {
        return Err(refuse("the quotes of the key do not match"));
    }
    Ok(key.into())
}

fn user_route_and_key(ask: &Ask) -> String {
    format!("{} {} {} {}", ask.user, ask.method, ask.path, ask.key)
}

fn the_request_unaltered(ask: &Ask) -> String {
    let body = canonical(&ask.body).unwrap_or_else(|| ask.body.clone());
    format!("{}\n{}\n{body}", ask.query, ask.content_type)
}

/// In one step of the store: whoever finds the key free takes it.
fn claim(den: &Den, ask: &Ask) -> Result<u64, Answer> {
    let step = den.store.change(&ask.operation, |entry| match entry {
        Some(entry) if entry.is_current(den.habits.memory) => {
            admitted(entry, ask)?;
            entry.take();
            Ok(entry.token)
        }
        _ => {
            *entry = Some(Entry::taken(ask.print.clone()));
            Ok(1)
        }
    });
    step.unwrap_or_else(|Away| Err(Answer::problem(503, "the store is away; nothing was done").later()))
}

/// The answer to whoever finds this record, unless it may run.
pub(super) fn admitted(entry: &Entry, ask: &Ask) -> Result<(), Answer> {
    if entry.print != ask.print {
        return Err(Answer::problem(422, "this key was used for another request"));
    }
    match &entry.state {
        State::Running => Err(Answer::problem(409, "this request is being worked on").later()),
        State::Done(answer) => Err(answer.replayed()),
        State::Free => Ok(()),
    }
}

/// Cookies are for one client; a replay may go to another.
fn all_but_cookies(answer: &Answer) -> Option<Answer> {
    Some(answer.without(|name| name == "set-cookie"))
}

/// Nobody knows yet, so nothing is stored: the attempt will, when it ends.
fn leave_it_running(_: &Den, _: &Ask, _: u64) -> Answer {
    Answer::problem(504, "the bank has not answered yet").later()
}

/// The ledger knows which of the lost attempts took effect, and what their answers were.
fn ask_the_ledger(den: &Den) {
    for operation in den.store.running() {
        let answer = den.ledger.answer_of(&operation);
        let state = answer.as_ref().and_then(den.habits.keep).map_or(State::Free, State::Done);
        let _ = den.store.change(&operation, |entry| {
            if let Some(entry) = entry {
                entry.state = state;
            }
        });
    }
}
