use std::sync::Arc;

use semel_core::claim::{Claim, Request};
use semel_core::record::State;
use semel_core::store::{Filter, SubjectPurge};
use semel_core::verbs::{
    Change, Complete, Completion, MarkUnknown, Purge, Release, Renew, Renewal, Settle, Settler, Witness,
};
use semel_core::{EffectStore, Holder, Nonce, OperationId, Token};

/// Most pages a walk through a listing may take.
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
    List {
        filter: Filter,
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
    Listed(Vec<(OperationId, State)>),
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
            Self::Claim(_) | Self::Purge(_) | Self::PurgeSubject { .. } | Self::List { .. } => {}
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
            Self::List { filter, limit } => return Reply::Listed(walk(&*store, filter, *limit).await),
        };
        done.unwrap_or_else(|error| panic!("{self:?} was not answered: {error}"))
    }
}

/// All that matches, page by page, with what every page must keep.
pub(crate) async fn walk(store: &dyn EffectStore, filter: &Filter, limit: u32) -> Vec<(OperationId, State)> {
    let (mut after, mut found) = (Token(0), Vec::new());
    for _ in 0..PAGES_MAX {
        let from = after;
        let page = store.list(filter, after, limit).await.expect("a page of a listing is answered");
        assert!(page.records.len() <= limit as usize, "a page has at most {limit} records");
        for record in page.records {
            assert!(record.token > after, "pages come in the order of tokens, without repeats");
            assert!(filter.matches(&record), "{record:?} does not match {filter:?}");
            assert_eq!(record.outcome, None, "a listing carries no outcomes");
            after = record.token;
            found.push((record.operation.id(), record.state));
        }
        match page.next {
            None => return found,
            Some(next) => {
                assert!(next >= after && next > from, "the next page starts at or after the last record");
                after = next;
            }
        }
    }
    panic!("the listing had no last page within {PAGES_MAX}");
}
