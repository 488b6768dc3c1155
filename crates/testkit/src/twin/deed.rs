use std::sync::Arc;

use semel_core::claim::{Claim, Request};
use semel_core::record::State;
use semel_core::store::SubjectPurge;
use semel_core::verbs::{
    Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle, Settler, Witness,
};
use semel_core::{EffectStore, Holder, Nonce, OperationId, Token};

/// Most pages a walk through the unsettled may take.
const PAGES_MAX: usize = 10_000;

/// Something to do to a store.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Claim(Request),
    Renew(Renew),
    Complete(Complete),
    Release(Release),
    MarkUnknown(MarkUnknown),
    Settle(Settle),
    Purge(Purge),
    /// All of a subject's records.
    PurgeSubject {
        subject: String,
        nonce: Nonce,
    },
    /// A walk through all pages of this size.
    Unsettled {
        limit: u32,
    },
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Claim(Claim),
    Renewal(Renewal),
    Completion(Completion),
    Change(Change),
    Subject(SubjectPurge),
    Unsettled(Vec<(OperationId, State)>),
}

impl Deed {
    /// The same deed in another numbering of tokens.
    pub(crate) fn with_tokens(mut self, name: &dyn Fn(Token) -> Token) -> Self {
        let rename = |holder: &mut Holder| holder.token = name(holder.token);
        match &mut self {
            Self::Renew(renew) => rename(&mut renew.holder),
            Self::Complete(complete) => rename(&mut complete.holder),
            Self::Release(release) => rename(&mut release.holder),
            Self::MarkUnknown(mark) => match &mut mark.witness {
                Witness::Holder(holder) => rename(holder),
                Witness::Lapse { token, .. } => *token = name(*token),
            },
            Self::Settle(settle) => {
                settle.token = name(settle.token);
                if let Settler::Asked { refused_through } = &mut settle.by {
                    *refused_through = name(*refused_through);
                }
            }
            Self::Claim(_) | Self::Purge(_) | Self::PurgeSubject { .. } | Self::Unsettled { .. } => {}
        }
        self
    }

    /// Does it.
    pub(crate) async fn perform(&self, store: Arc<dyn EffectStore>) -> Reply {
        let done = match self {
            Self::Claim(claim) => store.claim(claim).await.map(Reply::Claim),
            Self::Renew(renew) => store.renew(renew).await.map(Reply::Renewal),
            Self::Complete(complete) => store.complete(complete).await.map(Reply::Completion),
            Self::Release(release) => store.release(release).await.map(Reply::Change),
            Self::MarkUnknown(mark) => store.mark_unknown(mark).await.map(Reply::Change),
            Self::Settle(settle) => store.settle(settle).await.map(Reply::Change),
            Self::Purge(purge) => store.purge(purge).await.map(Reply::Change),
            Self::PurgeSubject { subject, nonce } => {
                store.purge_subject(subject, *nonce, "on request", 1_000).await.map(Reply::Subject)
            }
            Self::Unsettled { limit } => return Reply::Unsettled(walk(&*store, *limit).await),
        };
        done.unwrap_or_else(|error| panic!("{self:?} was not answered: {error}"))
    }
}

/// All that is unsettled, page by page, with what every page must keep.
pub(crate) async fn walk(store: &dyn EffectStore, limit: u32) -> Vec<(OperationId, State)> {
    let (mut after, mut found) = (Token(0), Vec::new());
    for _ in 0..PAGES_MAX {
        let page = store.unsettled(after, limit).await.expect("a page of the unsettled is answered");
        assert!(page.records.len() <= limit as usize, "a page has at most {limit} records");
        for record in page.records {
            assert!(record.token > after, "pages come in the order of tokens, without repeats");
            assert!(
                matches!(record.state, State::InProgress | State::Unknown),
                "{:?} has ended",
                record.state
            );
            after = record.token;
            found.push((record.operation.id(), record.state));
        }
        match page.next {
            None => return found,
            Some(next) => {
                assert!(next >= after, "the next page starts at or after the last record");
                after = next;
            }
        }
    }
    panic!("the unsettled had no last page within {PAGES_MAX}");
}
