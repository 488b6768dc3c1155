use std::cell::RefCell;
use std::sync::Arc;

use super::canonical::{Canonical, Names};
use super::key::Keyed;

/// Most shapes a thread keeps.
const SHAPES_MAX: usize = 4;

/// The paths of a request's leaves, with their digests under every key.
///
/// Clients send requests of one shape again and again. So a thread keeps the shapes of its last requests, and
/// digests no path twice while the same ones come: a comparison of all paths costs less than the digest of one
/// or two. Values are never kept.
pub(super) struct Shape {
    keys: Arc<[Keyed]>,
    names: Arc<Names>,
    /// Of every leaf under the first key, then under the second.
    digests: Box<[u64]>,
}

thread_local! {
    // The latest first.
    static LAST: RefCell<Vec<Shape>> = const { RefCell::new(Vec::new()) };
}

impl Shape {
    /// Lends the shape of a request: one of this thread's last ones, if it is the same.
    pub(super) fn lend<T>(keys: &Arc<[Keyed]>, canonical: &Canonical, to: impl FnOnce(&Self) -> T) -> T {
        LAST.with_borrow_mut(|last| {
            let same = last
                .iter()
                .position(|shape| Arc::ptr_eq(&shape.keys, keys) && canonical.has_names(&shape.names));
            match same {
                Some(at) => last[..=at].rotate_right(1),
                None => {
                    last.truncate(SHAPES_MAX - 1);
                    last.insert(0, Self::new(keys, canonical));
                }
            }
            to(&last[0])
        })
    }

    /// The paths of a request, as they were kept before.
    pub(super) fn names_like(canonical: &Canonical) -> Option<Arc<Names>> {
        LAST.with_borrow(|last| {
            let names = last.iter().map(|shape| &shape.names);
            names.into_iter().find(|names| canonical.has_names(names)).cloned()
        })
    }

    fn new(keys: &Arc<[Keyed]>, canonical: &Canonical) -> Self {
        let names = canonical.names();
        let digests = keys.iter().flat_map(|key| names.iter().map(|path| key.path(path))).collect();
        Self { keys: keys.clone(), names, digests }
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
