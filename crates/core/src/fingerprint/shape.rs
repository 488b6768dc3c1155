use std::cell::RefCell;
use std::sync::Arc;

use super::canonical::{Canonical, Names};
use super::key::Keyed;

/// The paths of a request's leaves, with their digests under every key.
///
/// Clients send requests of one shape again and again. So a thread keeps the shape of its last request, and
/// digests no path twice while the same ones come: a comparison of all paths costs less than the digest of one
/// or two. Values are never kept.
pub(super) struct Shape {
    keys: Arc<[Keyed]>,
    names: Arc<Names>,
    /// Of every leaf under the first key, then under the second.
    digests: Box<[u64]>,
}

thread_local! {
    static LAST: RefCell<Option<Shape>> = const { RefCell::new(None) };
}

impl Shape {
    /// Lends the shape of a request: this thread's last one, if it is the same.
    pub(super) fn lend<T>(keys: &Arc<[Keyed]>, canonical: &Canonical, to: impl FnOnce(&Self) -> T) -> T {
        LAST.with_borrow_mut(|last| {
            let same = last.take().filter(|last| last.is_of(keys, canonical));
            to(last.insert(same.unwrap_or_else(|| Self::new(keys, canonical))))
        })
    }

    fn new(keys: &Arc<[Keyed]>, canonical: &Canonical) -> Self {
        let of_key = |key: &Keyed| canonical.leaves().map(|(path, _)| key.path(path)).collect::<Vec<_>>();
        let digests = keys.iter().flat_map(of_key).collect();
        Self { keys: keys.clone(), names: Arc::new(canonical.names()), digests }
    }

    fn is_of(&self, keys: &Arc<[Keyed]>, canonical: &Canonical) -> bool {
        Arc::ptr_eq(&self.keys, keys) && canonical.has_names(&self.names)
    }

    pub(super) fn names(&self) -> Arc<Names> {
        self.names.clone()
    }

    /// The digest of every leaf's path under one of the keys.
    pub(super) fn paths(&self, key: usize) -> &[u64] {
        let leaves = self.digests.len() / self.keys.len();
        &self.digests[key * leaves..][..leaves]
    }
}
