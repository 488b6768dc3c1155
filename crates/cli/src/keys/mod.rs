//! `semel keys`: an operator finds operations, sees what happened to them, and ends what nobody
//! knows (G-81).
//!
//! On a store, or through the admin API of a running gateway: commands see [`Operations`] and do not
//! care which. Every change is a verb of the store, fenced like any other, and noted in the
//! operation's history with who did it. Nothing here runs an effect, and nothing here overrides the
//! rules: what is in flight cannot be freed, and a stored outcome cannot be changed.
//!
//! Exit codes: 0 done, 1 not found or refused, 2 used wrongly.

mod admin;
mod arguments;
mod refusal;
mod store;
mod text;

use std::process::ExitCode;

use anyhow::{Context, bail};
use semel::store::{Filter, SubjectPurge};
use semel::{OperationId, Timestamp, Token};
use serde::Serialize;
use serde_json::json;

use crate::say;
use crate::shown::{Bodies, Operation, State, SubjectKey};
use crate::time;
use crate::written::Response;
pub(crate) use arguments::Arguments;
use arguments::{Chosen, Command, Target};
pub(crate) use store::refuse_new_file;
pub(crate) use text::plain;

/// Most operations listed where one was asked for and several were found.
const SEVERAL_MAX: usize = 20;

/// What an operator can do, wherever the operations are.
trait Operations {
    /// The time ages are counted from.
    async fn now(&self) -> anyhow::Result<Timestamp>;

    /// Operations that match, above a token and in the order of tokens, at most `limit`.
    async fn list(&self, filter: &Filter, after: Token, limit: usize) -> anyhow::Result<Listing>;

    /// One operation with history, evidence and outcome.
    async fn get(&self, id: OperationId, bodies: Bodies) -> anyhow::Result<Option<Operation>>;

    /// Ends an unknown, if it still is what was seen.
    async fn settle(&self, seen: &Operation, found: &Found, who: &Who) -> anyhow::Result<Operation>;

    /// Removes the body of what has ended.
    async fn purge(&self, seen: &Operation, who: &Who) -> anyhow::Result<Operation>;

    /// The same for all that is about a subject; then its key is forgotten.
    async fn purge_subject(&self, subject: &str, who: &Who) -> anyhow::Result<(SubjectPurge, SubjectKey)>;
}

/// Part of all operations.
#[derive(Serialize)]
struct Listing {
    operations: Vec<Operation>,
    /// Go on after this token; `None` at the end.
    next: Option<u64>,
}

/// What an operator found out.
enum Found {
    /// It happened, and this was the answer.
    Done(Response),
    /// It did not.
    Never,
    /// It did not, and the next attempt shall run. The same in other words.
    Free,
}

/// Who wants something, and why; kept in the history.
struct Who {
    by: String,
    note: String,
}

impl Who {
    fn signed(&self) -> String {
        if self.note.is_empty() { self.by.clone() } else { format!("{}: {}", self.by, self.note) }
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { target, command } = arguments;
    match target {
        Target { admin: Some(address), token_file, .. } => {
            serve(&admin::Admin::at(&address, token_file.as_deref())?, command).await
        }
        target => {
            let keys = target.subject_keys();
            serve(&store::Store::open(&target.store(), keys.as_deref()).await?, command).await
        }
    }
}

async fn serve(operations: &impl Operations, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(list) => {
            let listing = operations.list(&list.filter(), Token(list.after), list.limit.into()).await?;
            if list.json {
                return print_json(&listing);
            }
            print(&listed(&listing, operations.now().await?))
        }
        Command::Show(show) => {
            let bodies = if show.bodies { Bodies::Shown } else { Bodies::Hidden };
            let Some(seen) = find(operations, &show.chosen, bodies).await? else {
                return Ok(ExitCode::FAILURE);
            };
            if show.json {
                return print_json(&seen);
            }
            print(&text::whole(&seen, operations.now().await?))
        }
        Command::Settle(settle) => {
            let (found, who) = (settle.found()?, settle.who());
            end(operations, &settle.chosen, &found, &who, settle.json).await
        }
        Command::Free(free) => {
            let who = free.who();
            end(operations, &free.chosen, &Found::Free, &who, free.json).await
        }
        Command::Purge(purge) => match &purge.subject {
            Some(subject) => purge_subject(operations, subject, &purge.who(), purge.json).await,
            None => {
                let chosen = purge.chosen().context("name a key or an id, or --subject")?;
                purge_one(operations, &chosen, &purge.who(), purge.json).await
            }
        },
    }
}

/// The one operation an operator means, whole. `None`: they were told why there is none.
async fn find(
    operations: &impl Operations,
    chosen: &Chosen,
    bodies: Bodies,
) -> anyhow::Result<Option<Operation>> {
    if let Some(id) = chosen.which.id
        && let Some(found) = operations.get(id, bodies).await?
    {
        return Ok(Some(found));
    }
    let key = text::plain(chosen.which.key.as_str());
    let listing = operations.list(&chosen.filter(), Token(0), SEVERAL_MAX).await?;
    match &listing.operations[..] {
        [] => bail!(
            "no operation with the key or id {key} is remembered: it never was, or it expired and was swept"
        ),
        [only] => {
            let found = operations.get(only.operation_id()?, bodies).await?;
            Ok(Some(found.with_context(|| format!("operation {} is gone meanwhile", only.id))?))
        }
        several => {
            let more = if listing.next.is_some() { " or more" } else { "" };
            eprintln!(
                "semel: {}{more} operations have the key {key}; name one by its id, or narrow it down with --route, \
                 --tenant and --namespace",
                several.len()
            );
            eprint!("{}", text::table(several, operations.now().await?));
            Ok(None)
        }
    }
}

async fn end(
    operations: &impl Operations,
    chosen: &Chosen,
    found: &Found,
    who: &Who,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let Some(seen) = find(operations, chosen, Bodies::Hidden).await? else { return Ok(ExitCode::FAILURE) };
    if let Some(refusal) = refusal::not_unknown(&seen) {
        bail!(refusal);
    }
    let ended = operations.settle(&seen, found, who).await?;
    if !matches!(found, Found::Done(_))
        && let Some(until) = seen.may_run_until(operations.now().await?)
    {
        eprintln!(
            "semel: its request may be on its way to the service until {until}; if it is, it happens twice"
        );
    }
    let told = match found {
        Found::Done(written) => {
            format!("settled as done: retries get the answer with status {}", written.status)
        }
        Found::Never => "settled as never: the next attempt runs".to_owned(),
        Found::Free => "freed: the next attempt runs".to_owned(),
    };
    made(&ended, &told, json)
}

async fn purge_one(
    operations: &impl Operations,
    chosen: &Chosen,
    who: &Who,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let Some(seen) = find(operations, chosen, Bodies::Hidden).await? else { return Ok(ExitCode::FAILURE) };
    if let Some(refusal) = refusal::not_ended(&seen) {
        bail!(refusal);
    }
    let told = if seen.state == State::Tombstone { "was purged before" } else { "purged" };
    let ended = operations.purge(&seen, who).await?;
    let until = ended.expires_at.as_deref().map(time::short).unwrap_or_default();
    made(&ended, &format!("{told}: its key stays used until {until}"), json)
}

async fn purge_subject(
    operations: &impl Operations,
    subject: &str,
    who: &Who,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let (SubjectPurge { purged, open, more }, key) = operations.purge_subject(subject, who).await?;
    if json {
        return print_json(&json!({ "purged": purged, "open": open, "more": more, "key": key }));
    }
    let mut told =
        format!("{purged} operations of this subject were purged; their keys stay used until they expire\n");
    if open > 0 {
        told += &format!("{open} have not ended and were left alone: settle them first, then repeat this\n");
    }
    told += match key {
        SubjectKey::Forgotten => {
            "its key was forgotten: what it sealed is unreadable, also what still runs and in every backup of the store\n"
        }
        SubjectKey::None => "there is no key of this subject\n",
        SubjectKey::NoPlace => {
            "no place of subjects' keys is known here (--subject-keys): if there is one, this subject's key is still there\n"
        }
    };
    print(&told)
}

fn made(operation: &Operation, told: &str, json: bool) -> anyhow::Result<ExitCode> {
    match json {
        true => print_json(&json!({ "result": "made", "operation": operation })),
        false => print(&format!("operation {} {told}\n", operation.id)),
    }
}

fn listed(listing: &Listing, now: Timestamp) -> String {
    if listing.operations.is_empty() {
        return "no operation matches\n".to_owned();
    }
    let mut shown = text::table(&listing.operations, now);
    if let Some(next) = listing.next {
        shown += &format!("there may be more: --after {next}\n");
    }
    shown
}

fn print_json(value: &impl Serialize) -> anyhow::Result<ExitCode> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    say::text(text);
    Ok(ExitCode::SUCCESS)
}
