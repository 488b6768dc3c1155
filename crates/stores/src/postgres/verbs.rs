//! The contract of a store, verb by verb.

use std::time::Duration;

use semel_core::claim::{self, Claim};
use semel_core::error::{Error, Kind};
use semel_core::record::{Record, Verb};
use semel_core::store::{
    Capabilities, ClockSource, Durability, EffectStore, Filter, Mark, Page, Pending, Status, SubjectPurge,
    SweepReport,
};
use semel_core::verbs::{Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle};
use semel_core::{Nonce, OperationId, Token, mutant};

use super::fault::Fault;
use super::{PostgresStore, chores, step, sweep};
use crate::gather::{self, Job};

/// A field, and a message with it, ends at 1 GiB. There is room for the rest of the record, which is read with it, and for
/// the others of its batch.
const OUTCOME_BYTES_MAX: usize = (1 << 30) - (8 << 20);

impl PostgresStore {
    /// A verb that always goes alone.
    fn alone<'a, V: Verb>(&'a self, verb: &'a V) -> Pending<'a, V::Answer> {
        Box::pin(async move {
            self.shared.ready().await?;
            step::step(&self.shared, verb).await
        })
    }

    async fn claim_one(&self, request: &claim::Request) -> Result<Claim, Error> {
        self.shared.ready().await?;
        if request.subject.as_deref().is_some_and(|subject| subject.contains('\0')) {
            return Err(Error::new(Kind::Misconfigured, "a subject contains a NUL character"));
        }
        match gather::ask(&self.queue, self.shared.waits(), request.clone(), Job::Claim).await? {
            Some(claim) => Ok(claim),
            None => step::step(&self.shared, request).await,
        }
    }

    async fn complete_one(&self, complete: &Complete) -> Result<Completion, Error> {
        self.shared.ready().await?;
        let bytes = complete.outcome.len();
        if bytes > OUTCOME_BYTES_MAX && !mutant::on("pg-outcome-not-measured") {
            return Err(Fault::too_large(bytes).error());
        }
        // The batch writes outcomes and nothing else; a wish to be remembered longer goes alone.
        if complete.ttl_min.is_some() && !mutant::on("pg-keep-longer-ignored") {
            return step::step(&self.shared, complete).await;
        }
        match gather::ask(&self.queue, self.shared.waits(), complete.clone(), Job::Complete).await? {
            Some(completion) => Ok(completion),
            None => step::step(&self.shared, complete).await,
        }
    }
}

impl EffectStore for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: "postgres",
            clock: ClockSource::Server,
            durability: Durability::Disk,
            same_transaction: true,
            time_precision: Duration::from_micros(1),
        }
    }

    fn claim<'a>(&'a self, request: &'a claim::Request) -> Pending<'a, Claim> {
        Box::pin(self.claim_one(request))
    }

    fn renew<'a>(&'a self, renew: &'a Renew) -> Pending<'a, Renewal> {
        self.alone(renew)
    }

    fn complete<'a>(&'a self, complete: &'a Complete) -> Pending<'a, Completion> {
        Box::pin(self.complete_one(complete))
    }

    fn release<'a>(&'a self, release: &'a Release) -> Pending<'a, Change> {
        self.alone(release)
    }

    fn mark_unknown<'a>(&'a self, mark: &'a MarkUnknown) -> Pending<'a, Change> {
        self.alone(mark)
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Change> {
        self.alone(settle)
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> Pending<'a, Change> {
        self.alone(purge)
    }

    fn purge_subject<'a>(
        &'a self,
        subject: &'a str,
        nonce: Nonce,
        note: &'a str,
        limit: u32,
    ) -> Pending<'a, SubjectPurge> {
        Box::pin(async move {
            self.shared.ready().await?;
            chores::purge_subject(&self.shared, subject, nonce, note, limit).await
        })
    }

    fn get(&self, operation: OperationId) -> Pending<'_, Option<Record>> {
        Box::pin(async move {
            self.shared.ready().await?;
            chores::get_record(&self.shared, operation).await
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter, after: Token, limit: u32) -> Pending<'a, Page> {
        Box::pin(async move {
            self.shared.ready().await?;
            chores::list(&self.shared, filter, after, limit).await
        })
    }

    fn sweep(&self, limit: u32, unknown_kept: Duration) -> Pending<'_, SweepReport> {
        Box::pin(async move {
            self.shared.ready().await?;
            sweep::sweep(&self.shared, limit, unknown_kept).await
        })
    }

    fn status(&self) -> Pending<'_, Status> {
        Box::pin(chores::status(&self.shared))
    }

    fn acknowledge_restore<'a>(&'a self, by: &'a str) -> Pending<'a, Mark> {
        Box::pin(chores::acknowledge(&self.shared, by))
    }

    fn rotate_hash_key(&self) -> Pending<'_, u32> {
        Box::pin(async move {
            self.shared.ready().await?;
            chores::rotate_hash_key(&self.shared).await
        })
    }
}
