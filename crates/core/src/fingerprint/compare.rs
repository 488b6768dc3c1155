use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use super::canonical::Names;
use super::paths::{Paths, Print};

/// The most names in each list of [`Changes`].
pub const NAMES_MAX: usize = 16;

/// The longest name in [`Changes`], in characters.
pub const NAME_CHARS_MAX: usize = 128;

/// The fingerprint of one request under every key version its fingerprinter knows.
///
/// It also holds the paths of the request's first leaves (not their values), in order to name what changed.
/// `Debug` shows neither. Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Fingerprint(Arc<Parts>);

#[derive(PartialEq, Eq)]
struct Parts {
    current: Print,
    older: Vec<Print>,
    names: Arc<Names>,
}

/// What comparing a new request with a stored print gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same request.
    Same,
    /// Another request.
    Different(Changes),
    /// The stored print was made under a key version that is not known here. Nothing can be said, so nothing
    /// may run.
    Incomparable {
        /// The version the stored print carries.
        version: u32,
    },
}

/// Where two requests differ. Names come from the new request, never values.
///
/// A name is a JSON pointer into the body (`/items/0/price`; for form fields and multipart parts `/name`), or
/// one of `method`, `path`, `query`, `content-type`, `header:x` and `body`. `body` stands for an opaque body,
/// for a JSON document that is a single scalar, and for a change in a body that could not be named more
/// closely. There are at most [`NAMES_MAX`] names in each list, of at most [`NAME_CHARS_MAX`] characters,
/// with control characters escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// In both requests, with different values.
    pub changed: Vec<String>,
    /// In the new request only.
    pub added: Vec<String>,
    /// How many were in the stored request only. Their names are not known.
    pub removed: usize,
    /// Whether this is all. It is not when a request had more leaves than are kept or there were too many
    /// names.
    pub complete: bool,
}

impl Fingerprint {
    pub(super) fn new(current: Print, older: Vec<Print>, names: Arc<Names>) -> Self {
        Self(Arc::new(Parts { current, older, names }))
    }

    /// The print to store: the one under the current key.
    pub fn current(&self) -> &Print {
        &self.0.current
    }

    /// The print under one key version.
    pub fn under(&self, version: u32) -> Option<&Print> {
        self.prints().find(|print| print.version == version)
    }

    /// What it takes in memory, roughly, for whoever keeps many.
    pub fn bytes(&self) -> usize {
        let prints = self.prints().map(|print| size_of::<Print>() + print.paths.encode().len());
        prints.sum::<usize>() + self.0.names.bytes()
    }

    fn prints(&self) -> impl Iterator<Item = &Print> {
        std::iter::once(&self.0.current).chain(&self.0.older)
    }

    /// Compares with a stored print, under the version of the stored one.
    pub fn compare(&self, stored: &Print) -> Comparison {
        let Some(own) = self.under(stored.version) else {
            return Comparison::Incomparable { version: stored.version };
        };
        if same_digest(&own.digest, &stored.digest) {
            return Comparison::Same;
        }
        Comparison::Different(self.changes(&own.paths, &stored.paths))
    }

    fn changes(&self, new: &Paths, old: &Paths) -> Changes {
        let (changed, added, removed) = differing(new, old);
        // A leaf that one side lacks is only news if the other side kept all of its own.
        let added = if old.is_truncated() { Vec::new() } else { added };
        let removed = if new.is_truncated() { 0 } else { removed };
        let found = changed.len() + added.len() + removed;
        let mut complete = found > 0 && !new.is_truncated() && !old.is_truncated();
        let mut changes = Changes {
            changed: self.name(changed, &mut complete),
            added: self.name(added, &mut complete),
            removed,
            complete,
        };
        // The parts beside the body come first and are among the leaves kept, so what remains is in the body.
        if found == 0 && !old.is_empty() {
            changes.changed.push("body".to_owned());
        }
        changes
    }

    fn name(&self, mut leaves: Vec<usize>, complete: &mut bool) -> Vec<String> {
        leaves.sort_unstable();
        let mut names: Vec<String> =
            leaves.into_iter().map(|leaf| self.0.names.show(leaf, NAME_CHARS_MAX)).collect();
        names.dedup();
        *complete &= names.len() <= NAMES_MAX;
        names.truncate(NAMES_MAX);
        names
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fingerprint")
            .field("prints", &self.prints().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The leaves of `new` that changed, those that were added, and how many of `old` are gone. The n-th leaf of
/// a path is held against the n-th leaf of the same path, for paths occur more than once (duplicate members).
fn differing(new: &Paths, old: &Paths) -> (Vec<usize>, Vec<usize>, usize) {
    let (new, old) = (by_path(new), by_path(old));
    let (mut changed, mut added, mut removed) = (Vec::new(), Vec::new(), 0);
    let (mut new, mut old) = (new.into_iter().peekable(), old.into_iter().peekable());
    while let (Some(n), Some(o)) = (new.peek(), old.peek()) {
        match n.path.cmp(&o.path) {
            std::cmp::Ordering::Less => added.extend(new.next().map(|leaf| leaf.at)),
            std::cmp::Ordering::Greater => removed += usize::from(old.next().is_some()),
            std::cmp::Ordering::Equal => {
                if n.value != o.value {
                    changed.push(n.at);
                }
                new.next();
                old.next();
            }
        }
    }
    added.extend(new.map(|leaf| leaf.at));
    (changed, added, removed + old.count())
}

struct Leaf {
    path: [u8; 4],
    value: [u8; 4],
    at: usize,
}

fn by_path(paths: &Paths) -> Vec<Leaf> {
    let mut leaves: Vec<Leaf> =
        paths.entries().enumerate().map(|(at, (path, value))| Leaf { path, value, at }).collect();
    leaves.sort_by_key(|leaf| leaf.path);
    leaves
}

/// Looks at every byte, so that the time taken does not say how many of them agree.
fn same_digest(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| black_box(difference | (a ^ b)));
    black_box(difference) == 0
}
