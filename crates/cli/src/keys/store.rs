//! Operations straight from a store, also while services use it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use semel::store::{Filter, LOOK_MAX, SubjectPurge};
use semel::subject::SubjectId;
use semel::verbs::{Change, Finding, MarkUnknown, Purge, Settle, Settler, Witness};
use semel::{
    Backoff, EffectStore, Error, Nonce, Operation as Named, OperationId, Record, Timestamp, Token, mutant,
};

use super::{Found, Listing, Operations, Who, refusal};
use crate::shown::{Bodies, Operation, State, SubjectKey};

/// Records of a subject purged in one step.
const SUBJECT_STEP: u32 = 500;
/// Pages looked through before a word about it.
const PAGES_QUIET: u32 = 100;
/// How often a call is tried whose answer did not come.
const TRIES_MAX: u32 = 5;

/// A store, opened for an operator.
pub(super) struct Store {
    store: Arc<dyn EffectStore>,
    /// Where the keys of subjects are, if that was said.
    subject_keys: Option<String>,
}

impl Store {
    pub(super) async fn open(address: &str, subject_keys: Option<&str>) -> anyhow::Result<Self> {
        refuse_new_file(address)?;
        let store = semel::stores::open(address).await.context("the store cannot be opened")?;
        Ok(Self { store, subject_keys: subject_keys.map(str::to_owned) })
    }

    async fn forget_key(&self, subject: &str, address: &str) -> anyhow::Result<SubjectKey> {
        refuse_new_file(address)?;
        let place = semel::stores::open_subject_keys(address).await;
        let place = place.context("the place of subjects' keys cannot be opened; the key is still there")?;
        let forgotten = insist(|| place.forget(SubjectId::of(subject))).await;
        Ok(SubjectKey::of(Some(forgotten.context("the key was not forgotten; repeat this")?)))
    }

    /// A lapsed attempt is called unknown first, as the recoverer would; what still runs is not.
    async fn lapse(&self, seen: &Operation, who: &Who) -> anyhow::Result<()> {
        let (operation, token) = (seen.operation_id()?, Token(seen.token));
        let note = format!("{}: found lapsed", who.by);
        let mark = MarkUnknown { witness: Witness::Lapse { operation, token }, note };
        match insist(|| self.store.mark_unknown(&mark)).await? {
            Change::Made => Ok(()),
            Change::Refused(_) => bail!(refusal::in_flight(seen, self.now().await?)),
        }
    }

    async fn changed(&self, change: Change, id: OperationId) -> anyhow::Result<Operation> {
        let record = self.store.get(id).await.context("the store was not asked what came of it")?;
        match (change, record) {
            (Change::Made, Some(record)) => Ok(Operation::whole(&record, Bodies::Hidden)),
            (_, None) => bail!("the store remembers no operation {id}"),
            (Change::Refused(_), Some(record)) => bail!(refusal::moved_on(&Operation::summary(&record))),
        }
    }
}

impl Operations for Store {
    async fn now(&self) -> anyhow::Result<Timestamp> {
        // Beyond the last token there is nothing but the time.
        let end = Token(i64::MAX.unsigned_abs());
        Ok(self
            .store
            .list(&Filter::unsettled(), end, 1)
            .await
            .context("the store does not tell its time")?
            .now)
    }

    async fn list(&self, filter: &Filter, after: Token, limit: usize) -> anyhow::Result<Listing> {
        let named = filter.operation().filter(|_| after == Token(0));
        if let Some(named) = named {
            return self.list_one(&named, filter).await;
        }
        let (mut found, mut next, mut pages): (Vec<Record>, _, u32) = (Vec::new(), Some(after), 0);
        while let Some(from) = next {
            let page = self.store.list(filter, from, LOOK_MAX).await.context("the store cannot be listed")?;
            found.extend(page.records);
            next = page.next;
            if found.len() >= limit {
                let is_end = found.len() == limit && next.is_none();
                found.truncate(limit);
                next = found.last().map(|record| record.token).filter(|_| !is_end);
                break;
            }
            pages += 1;
            if pages == PAGES_QUIET && filter.key.is_some() {
                eprintln!(
                    "semel: looking through the whole store, {LOOK_MAX} operations at a time; with --namespace, --route, \
                     --tenant or --no-tenant, and the key, it is found at once"
                );
            }
        }
        let operations = found.iter().map(Operation::summary).collect();
        Ok(Listing { operations, next: next.map(|token| token.0) })
    }

    async fn get(&self, id: OperationId, bodies: Bodies) -> anyhow::Result<Option<Operation>> {
        let record = self.store.get(id).await.context("the operation cannot be read")?;
        Ok(record.map(|record| Operation::whole(&record, bodies)))
    }

    async fn settle(&self, seen: &Operation, found: &Found, who: &Who) -> anyhow::Result<Operation> {
        let id = seen.operation_id()?;
        if seen.state == State::InProgress {
            self.lapse(seen, who).await?;
        }
        let finding = match found {
            Found::Done(written) => Finding::Done(written.clone().into_outcome()?.encode().into()),
            Found::Never | Found::Free => Finding::Never,
        };
        let by = if mutant::on("keys-settled-by-nobody") { "" } else { who.by.as_str() };
        let settle = Settle {
            operation: id,
            token: Token(seen.token),
            nonce: Nonce::random(),
            finding,
            by: Settler::Operator(by.to_owned()),
            note: who.note.clone(),
        };
        self.changed(insist(|| self.store.settle(&settle)).await?, id).await
    }

    async fn purge(&self, seen: &Operation, who: &Who) -> anyhow::Result<Operation> {
        let id = seen.operation_id()?;
        let purge = Purge { operation: id, nonce: Nonce::random(), note: who.signed() };
        self.changed(insist(|| self.store.purge(&purge)).await?, id).await
    }

    async fn purge_subject(&self, subject: &str, who: &Who) -> anyhow::Result<(SubjectPurge, SubjectKey)> {
        let (nonce, note, mut purged) = (Nonce::random(), who.signed(), 0);
        let purge = loop {
            let step = insist(|| self.store.purge_subject(subject, nonce, &note, SUBJECT_STEP)).await?;
            purged += step.purged;
            if !step.more {
                break SubjectPurge { purged, ..step };
            }
        };
        // After the bodies: what began before now and ends later is sealed with the key that goes here.
        match &self.subject_keys {
            Some(address) => Ok((purge, self.forget_key(subject, address).await?)),
            None => Ok((purge, SubjectKey::NoPlace)),
        }
    }
}

impl Store {
    /// All four parts are known: no need to search.
    async fn list_one(&self, named: &Named, filter: &Filter) -> anyhow::Result<Listing> {
        let record = self.store.get(named.id()).await.context("the operation cannot be read")?;
        let matching = record.filter(|record| filter.matches(record));
        Ok(Listing { operations: matching.iter().map(Operation::summary).collect(), next: None })
    }
}

/// Repeats a write whose answer did not come, nonce and all: it is applied once.
async fn insist<T, Answer>(call: impl Fn() -> Answer) -> anyhow::Result<T>
where
    Answer: Future<Output = Result<T, Error>>,
{
    let mut backoff = Backoff::new(Nonce::random());
    for _ in 1..TRIES_MAX {
        match call().await {
            Err(error) if error.is_retryable() || error.outcome_is_unknown() => {
                tokio::time::sleep(backoff.next_pause()).await;
            }
            answer => return answer.context("the store did not do it"),
        }
    }
    call().await.context("the store did not do it")
}

/// An operator's command looks at what is there; it must not leave a new database where a name was
/// mistyped.
pub(crate) fn refuse_new_file(address: &str) -> anyhow::Result<()> {
    let Some(path) = address.strip_prefix("sqlite:") else { return Ok(()) };
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.is_empty() && !path.contains(['?', '\0']) && !Path::new(path).exists() {
        bail!(
            "there is no store at {path}; name the file the gateway or service uses with --store sqlite:PATH"
        );
    }
    Ok(())
}
