//! The flaws, one function each. None of them is invented: each was found in a service or a library
//! that people use.

use std::time::Duration;

use axum::http::HeaderMap;
use serde_json::Value;

use super::habits::{Serving, Trouble, admitted};
use super::service::{Answer, Ask, Den, KEY, once, receipt};
use super::store::{Entry, State};

/// After this, the lock of an attempt that still runs is taken for a dead one's.
const LOCK: Duration = Duration::from_millis(150);
/// How far apart two calls to the same store are.
const ROUND_TRIP: Duration = Duration::from_millis(30);
const BODY_BYTES_KEPT: usize = 4096;

// Who may run.

/// Looks first and marks later: whoever looks in between runs, too.
pub(super) fn looks_then_marks(den: Den, ask: Ask) -> Serving {
    Box::pin(async move {
        let seen = den.store.change(&ask.operation, |entry| entry.clone()).ok().flatten();
        if let Some(Err(refused)) = seen.map(|entry| admitted(&entry, &ask)) {
            return refused;
        }
        tokio::time::sleep(ROUND_TRIP).await;
        let _ = den.store.change(&ask.operation, |entry| *entry = Some(Entry::taken(ask.print.clone())));
        run_marked(den, ask, 1).await
    })
}

/// Marks nothing: only a stored answer stops a duplicate.
pub(super) fn guards_nothing(den: &Den, ask: &Ask) -> Result<u64, Answer> {
    let step = den.store.change(&ask.operation, |entry| match entry {
        Some(entry) if entry.state == State::Running && entry.print == ask.print => Ok(entry.token),
        Some(entry) => admitted(entry, ask).map(|()| entry.token),
        None => Ok(entry.insert(Entry::taken(ask.print.clone())).token),
    });
    step.unwrap_or_else(|_| Err(away()))
}

/// Takes an attempt for dead that is only slow. Tokens grow, so the slow one is refused in the end.
pub(super) fn lock_lapses(den: &Den, ask: &Ask) -> Result<u64, Answer> {
    take_over(den, ask, |entry| entry.take())
}

/// Takes over as well, and counts tokens from one again: the stale attempt looks like the new one.
pub(super) fn lock_lapses_and_token_restarts(den: &Den, ask: &Ask) -> Result<u64, Answer> {
    take_over(den, ask, |entry| *entry = Entry::taken(entry.print.clone()))
}

fn take_over(den: &Den, ask: &Ask, take: fn(&mut Entry)) -> Result<u64, Answer> {
    let step = den.store.change(&ask.operation, |entry| match entry {
        Some(entry) => {
            let lapsed = entry.state == State::Running && entry.print == ask.print && entry.age() > LOCK;
            if !lapsed {
                admitted(entry, ask)?;
            }
            take(entry);
            Ok(entry.token)
        }
        None => Ok(entry.insert(Entry::taken(ask.print.clone())).token),
    });
    step.unwrap_or_else(|_| Err(away()))
}

// What is on disk when a process dies.

/// Says that it is done, and does it then.
pub(super) fn records_then_acts(den: Den, ask: Ask) -> Serving {
    Box::pin(async move {
        let receipt = receipt(&ask);
        let step = den.store.change(&ask.operation, |entry| match entry {
            Some(entry) => admitted(entry, &ask),
            None => {
                let state = State::Done(receipt.without(|name| name == "set-cookie"));
                *entry = Some(Entry { state, ..Entry::taken(ask.print.clone()) });
                Ok(())
            }
        });
        match step.unwrap_or_else(|_| Err(away())) {
            Ok(()) => den.perform_as(&ask, receipt).await,
            Err(answer) => answer,
        }
    })
}

/// Keeps in memory that it is about to act; only the result is written.
pub(super) fn intent_in_memory(den: &Den, ask: &Ask) -> Result<u64, Answer> {
    let step = den.store.change_unwritten(&ask.operation, |entry| match entry {
        Some(entry) => {
            admitted(entry, ask)?;
            entry.take();
            Ok(entry.token)
        }
        None => Ok(entry.insert(Entry::taken(ask.print.clone())).token),
    });
    step.unwrap_or_else(|_| Err(away()))
}

/// Leaves the marks of dead attempts where they are, for ever.
pub(super) fn recovers_nothing(_: &Den) {}

/// Acts within the client's connection: if that closes, the attempt ends where it is, and a guard
/// frees the key.
pub(super) fn stops_with_its_client(den: Den, ask: Ask) -> Serving {
    struct Guard(Den, String, u64);
    impl Drop for Guard {
        fn drop(&mut self) {
            let Self(den, operation, token) = self;
            end_now(den, operation, *token, State::Free);
        }
    }
    Box::pin(async move {
        let token = match (den.habits.claim)(&den, &ask) {
            Ok(token) => token,
            Err(answer) => return answer,
        };
        let _guard = Guard(den.clone(), ask.operation.clone(), token);
        run_marked(den, ask, token).await
    })
}

/// Runs without protection when the store cannot be asked.
pub(super) fn opens_when_the_store_is_away(den: Den, ask: Ask) -> Serving {
    Box::pin(async move {
        match den.store.change(&ask.operation, |_| ()) {
            Ok(()) => once(den, ask).await,
            Err(_) => den.perform(&ask).await,
        }
    })
}

// Which requests are the same.

pub(super) fn compares_nothing(_: &Ask) -> String {
    String::new()
}

/// Reads numbers as most parsers do, into 64-bit floats.
pub(super) fn rounds_numbers(ask: &Ask) -> String {
    fn round(value: &mut Value) {
        match value {
            Value::Number(number) => *value = number.as_f64().into(),
            Value::Array(items) => items.iter_mut().for_each(round),
            Value::Object(members) => members.values_mut().for_each(round),
            _ => {}
        }
    }
    let mut order = ask.order.clone();
    round(&mut order);
    order.to_string()
}

/// Compares bytes: the same order with its members in another order is refused.
pub(super) fn compares_bytes(ask: &Ask) -> String {
    ask.body.clone()
}

/// The key is everybody's.
pub(super) fn forgets_the_user(ask: &Ask) -> String {
    format!("{} {} {}", ask.method, ask.path, ask.key)
}

/// A payment and a refund with one key are one operation.
pub(super) fn forgets_the_route(ask: &Ask) -> String {
    format!("{} {}", ask.user, ask.key)
}

/// Takes two wishes for one because they look the same.
pub(super) fn finds_duplicates_by_body(ask: &Ask) -> String {
    format!("{} {} {} {}", ask.user, ask.method, ask.path, ask.order)
}

/// Takes the first line, whatever it says.
pub(super) fn takes_any_key(headers: &HeaderMap) -> Result<String, Answer> {
    let line = headers.get(KEY).ok_or_else(|| Answer::problem(400, "this route needs an Idempotency-Key"))?;
    Ok(String::from_utf8_lossy(line.as_bytes()).trim_matches('"').into())
}

/// Takes a string in quotes for another key than the same without.
pub(super) fn quotes_are_part_of_the_key(headers: &HeaderMap) -> Result<String, Answer> {
    super::habits::one_clean_key(headers)?;
    Ok(headers.get(KEY).map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned()).unwrap_or_default())
}

// What is kept of an answer.

/// Keeps status and body.
pub(super) fn drops_headers(answer: &Answer) -> Option<Answer> {
    Some(answer.without(|name| name != "content-type"))
}

/// Keeps everything, and so hands one client's session to the next.
pub(super) fn keeps_cookies(answer: &Answer) -> Option<Answer> {
    Some(answer.clone())
}

/// Keeps no large answer, so that the next request runs again.
pub(super) fn keeps_small_answers(answer: &Answer) -> Option<Answer> {
    (answer.body.len() <= BODY_BYTES_KEPT).then(|| answer.without(|name| name == "set-cookie"))
}

/// Takes an error for "nothing happened".
pub(super) fn keeps_successes(answer: &Answer) -> Option<Answer> {
    (answer.status < 500).then(|| answer.without(|name| name == "set-cookie"))
}

pub(super) fn every_third_fails(nth: u64) -> Trouble {
    if nth % 3 == 2 { Trouble::Fails } else { Trouble::None }
}

pub(super) fn every_third_is_late(nth: u64) -> Trouble {
    if nth % 3 == 2 { Trouble::Late } else { Trouble::None }
}

/// Takes a time-out for the result: the client never hears of the effect that lands later.
pub(super) fn stores_the_time_out(den: &Den, ask: &Ask, token: u64) -> Answer {
    end_by_time_out(den, ask, token, State::Done)
}

/// Takes a time-out for "nothing happened": the retry runs beside the effect that lands later.
pub(super) fn frees_on_time_out(den: &Den, ask: &Ask, token: u64) -> Answer {
    end_by_time_out(den, ask, token, |_| State::Free)
}

fn end_by_time_out(den: &Den, ask: &Ask, token: u64, end: fn(Answer) -> State) -> Answer {
    let answer = Answer::problem(504, "the bank has not answered");
    end_now(den, &ask.operation, token, end(answer.clone()));
    answer
}

/// Ends the attempt, if it is still the one that counts.
fn end_now(den: &Den, operation: &str, token: u64, state: State) {
    let _ = den.store.change(operation, |entry| {
        if let Some(entry) = entry {
            entry.end(token, state);
        }
    });
}

/// What follows a claim, in the task of the caller.
async fn run_marked(den: Den, ask: Ask, token: u64) -> Answer {
    let answer = den.perform(&ask).await;
    if let Some(kept) = (den.habits.keep)(&answer) {
        den.store.complete(&ask.operation, token, kept).await;
    }
    answer
}

fn away() -> Answer {
    Answer::problem(503, "the store is away; nothing was done").later()
}
