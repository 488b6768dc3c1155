//! What an operator may change: settle an unknown, free it, purge what ended, accept a restored store.
//!
//! A finding is about one attempt, so a settlement names its token: if the operation has moved on
//! since the operator looked, nothing is changed. Each call's nonce is a digest of what it says, so
//! that sending a call again finds out whether it was applied and never does more.

use std::future::Future;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use semel::error::Error;
use semel::store::SubjectPurge;
use semel::subject::SubjectId;
use semel::verbs::{Change, Finding, Purge, Settle, Settler, Stale};
use semel::{Nonce, OperationId, Outcome, Record, Token};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::audit::{self, About, Came, Who};
use super::operations::{not_found, parse, part};
use super::problem::{Problem, Slug};
use super::{Admin, Answer, Peer, Shared, read};
use crate::shown::{self, Operation};
use crate::written::Response as Written;

/// Records purged in one step of a purge by subject.
const SUBJECT_STEP: u32 = 500;
/// Steps of one call; beyond it the answer says that there is more.
const SUBJECT_STEPS_MAX: u32 = 100;
/// Longest subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 512;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settlement {
    token: u64,
    finding: Found,
    outcome: Option<Written>,
    by: String,
    note: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Found {
    Done,
    Never,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Freeing {
    token: u64,
    by: String,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    by: String,
    note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Acknowledgement {
    by: String,
    note: Option<String>,
    /// For a store that gives tokens it gave before, though nobody has seen it further.
    #[serde(default)]
    even_if_open: bool,
}

pub(super) async fn settle(
    State(admin): State<Shared>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answer {
    let (id, peer) = (parse(id)?, peer(&request));
    let call: Settlement = read(&admin, request).await?;
    let who = Who::parse(call.by, call.note, peer)?;
    let outcome = match (call.finding, call.outcome) {
        (Found::Done, Some(written)) => {
            Some(written.into_outcome().map_err(|unusable| Problem::bad(format!("outcome: {unusable}")))?)
        }
        (Found::Never, None) => None,
        (Found::Done, None) => {
            return Err(Problem::bad("outcome: say with which response it was done; clients will get it"));
        }
        (Found::Never, Some(_)) => {
            return Err(Problem::bad("outcome: what never happened has none; leave it out"));
        }
    };
    let work = end_unknown(admin.clone(), "settle", id, Token(call.token), outcome, who);
    to_the_end(&admin, work).await
}

pub(super) async fn free(
    State(admin): State<Shared>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answer {
    let (id, peer) = (parse(id)?, peer(&request));
    let call: Freeing = read(&admin, request).await?;
    let who = Who::parse(call.by, call.note, peer)?;
    let work = end_unknown(admin.clone(), "free", id, Token(call.token), None, who);
    to_the_end(&admin, work).await
}

/// Ends an unknown: done with an outcome, or never.
async fn end_unknown(
    admin: Shared,
    action: &'static str,
    id: OperationId,
    token: Token,
    outcome: Option<Outcome>,
    who: Who,
) -> Answer {
    let record = admin.store.get(id).await?.ok_or_else(|| not_found(id))?;
    let token = if semel::mutant::on("settlement-about-any-attempt") { record.token } else { token };
    let said = outcome.as_ref().map(Outcome::encode);
    let nonce = nonce(&[
        b"settle",
        id.as_bytes(),
        &token.0.to_be_bytes(),
        &[u8::from(said.is_some())],
        said.as_deref().unwrap_or_default(),
        who.by.as_bytes(),
        who.note.as_bytes(),
    ]);
    let finding = match &outcome {
        Some(outcome) => {
            let policy = (admin.policy)(record.operation.scope().route());
            Finding::Done(policy.prepare(outcome, id, record.subject.as_deref()).await?)
        }
        None => Finding::Never,
    };
    let by = match semel::mutant::on("settled-by-nobody") {
        true => Settler::Operator(String::new()),
        false => Settler::Operator(who.by.clone()),
    };
    let settle = Settle { operation: id, token, nonce, finding, by, note: who.note.clone() };
    let made = judged(admin.store.settle(&settle).await, id, token);
    audit::changed(&admin, action, &About::Operation(&record.operation, token), &who, Came::of(&made));
    made?;
    Ok(super::json(&made_of(&admin, id).await))
}

pub(super) async fn purge(
    State(admin): State<Shared>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answer {
    let (id, peer) = (parse(id)?, peer(&request));
    let call: Signed = read(&admin, request).await?;
    let who = Who::parse(call.by, call.note, peer)?;
    to_the_end(&admin, purge_one(admin.clone(), id, who)).await
}

async fn purge_one(admin: Shared, id: OperationId, who: Who) -> Answer {
    let record = admin.store.get(id).await?.ok_or_else(|| not_found(id))?;
    let nonce = nonce(&[b"purge", id.as_bytes(), who.by.as_bytes(), who.note.as_bytes()]);
    let purge = Purge { operation: id, nonce, note: who.signed() };
    let made = judged(admin.store.purge(&purge).await, id, record.token);
    let about = About::Operation(&record.operation, record.token);
    audit::changed(&admin, "purge", &about, &who, Came::of(&made));
    made?;
    Ok(super::json(&made_of(&admin, id).await))
}

pub(super) async fn purge_subject(
    State(admin): State<Shared>,
    subject: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answer {
    let (subject, peer) = (part(subject)?, peer(&request));
    if subject.is_empty() || subject.len() > SUBJECT_BYTES_MAX {
        return Err(Problem::bad(format!("a subject has 1 to {SUBJECT_BYTES_MAX} bytes")));
    }
    let call: Signed = read(&admin, request).await?;
    let who = Who::parse(call.by, call.note, peer)?;
    let shared = admin.clone();
    let work = async move {
        let purged = purge_all(&shared, &subject, &who).await.map_err(Problem::from);
        audit::changed(&shared, "purge-subject", &About::Subject(&subject), &who, Came::of(&purged));
        let SubjectPurge { purged, open, more } = purged?;
        // After the bodies: what began before now and ends later is sealed with the key that goes here.
        let key = match &shared.subject_keys {
            Some(place) if !semel::mutant::on("purge-keeps-the-key") => {
                let forgotten = place.forget(SubjectId::of(&subject)).await.map_err(Problem::from);
                audit::changed(&shared, "forget-key", &About::Subject(&subject), &who, Came::of(&forgotten));
                shown::SubjectKey::of(Some(forgotten?))
            }
            _ => shown::SubjectKey::of(None),
        };
        Ok(super::json(&json!({ "purged": purged, "open": open, "more": more, "key": key })))
    };
    to_the_end(&admin, work).await
}

async fn purge_all(admin: &Admin, subject: &str, who: &Who) -> Result<SubjectPurge, Error> {
    let nonce = nonce(&[b"purge subject", subject.as_bytes(), who.by.as_bytes(), who.note.as_bytes()]);
    let mut total = SubjectPurge::default();
    for _ in 0..SUBJECT_STEPS_MAX {
        let step = admin.store.purge_subject(subject, nonce, &who.signed(), SUBJECT_STEP).await?;
        total = SubjectPurge { purged: total.purged + step.purged, ..step };
        if !step.more {
            break;
        }
    }
    Ok(total)
}

pub(super) async fn acknowledge(State(admin): State<Shared>, request: Request) -> Answer {
    let peer = peer(&request);
    let call: Acknowledgement = read(&admin, request).await?;
    let who = Who::parse(call.by, call.note, peer)?;
    if !call.even_if_open && admin.store.status().await?.went_back_from.is_none() {
        return Err(Problem::new(Slug::NotClosed, "the store is where it was last seen; nothing to accept"));
    }
    let shared = admin.clone();
    let work = async move {
        let mark = shared.store.acknowledge_restore(&who.by).await.map_err(Problem::from);
        audit::changed(&shared, "acknowledge", &About::Store, &who, Came::of(&mark));
        let mark = mark?;
        Ok(super::json(&json!({ "result": "made", "epoch": mark.epoch, "token": mark.token.0 })))
    };
    to_the_end(&admin, work).await
}

/// Runs a change in a task of its own: a caller who hangs up must not leave a change that nobody told of.
async fn to_the_end(admin: &Admin, work: impl Future<Output = Answer> + Send + 'static) -> Answer {
    if semel::mutant::on("change-dies-with-its-caller") {
        return work.await;
    }
    let (tell, told) = oneshot::channel();
    admin.runtime.spawn(Box::pin(async move { drop(tell.send(work.await)) }));
    told.await.unwrap_or_else(|_| {
        let cut = "the call was cut off; repeat it to find out what came of it: it does nothing twice";
        Err(Problem::new(Slug::StoreUnavailable, cut).with("may_have_been_applied", true))
    })
}

fn peer(request: &Request) -> Option<Peer> {
    request.extensions().get::<Peer>().copied()
}

/// Sixteen bytes that say which call this is. Parts carry their lengths, so that none runs into the next.
fn nonce(parts: &[&[u8]]) -> Nonce {
    let mut hash = Sha256::new();
    hash.update(b"semel admin call");
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    Nonce::from_bytes(std::array::from_fn(|index| digest[index]))
}

fn judged(answer: Result<Change, Error>, id: OperationId, token: Token) -> Result<(), Problem> {
    let stale = match answer? {
        Change::Made => return Ok(()),
        Change::Refused(stale) => stale,
    };
    let Stale { state: Some(state), token: Some(newest), .. } = stale else { return Err(not_found(id)) };
    let why = match newest == token {
        true => format!("it is {}", shown::State::of(state).name()),
        false => {
            format!("attempt {newest} came after attempt {token}; it is {}", shown::State::of(state).name())
        }
    };
    let detail = format!("{why}: look at it again. Only an unknown can be settled, only what ended purged");
    Err(Problem::new(Slug::OperationMovedOn, detail)
        .with("state", shown::State::of(state).name())
        .with("token", newest.0))
}

/// The operation as it stands after a change. The change is made even if it cannot be read now.
async fn made_of(admin: &Admin, id: OperationId) -> Value {
    let record: Option<Record> = admin.store.get(id).await.ok().flatten();
    json!({ "result": "made", "operation": record.as_ref().map(Operation::summary) })
}
