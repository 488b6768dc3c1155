use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::error::Error;
use super::lent::Lent;

/// The most leaves whose digests are kept with a print.
pub const PATHS_MAX: usize = 64;

const FORMAT: u8 = 1;
const COMPLETE: u8 = 0;
const TRUNCATED: u8 = 1;
const HEAD_BYTES: usize = 2;
const ENTRY_BYTES: usize = 8;

/// What a store keeps of a request: one version's digest and the digests of its leaves.
///
/// `==` on prints is for tests and maps. Whether a new request matches a stored one is asked of
/// [`Fingerprint::compare`](super::Fingerprint::compare), which knows about versions and does not stop at the
/// first differing byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Print {
    /// The version of the key this print was made with.
    pub version: u32,
    /// HMAC-SHA-256 over the canonical request.
    pub digest: [u8; 32],
    /// Digests of the leaves, to name what changed. They decide nothing.
    pub paths: Paths,
}

/// Two four-byte keyed digests per leaf, at most [`PATHS_MAX`] leaves: one of the path, one of the value
/// there.
///
/// Encoded as a format byte, a byte that says whether leaves were left out, and eight bytes per leaf.
#[derive(Clone, PartialEq, Eq, Hash)]
// `None` stands for what is encoded as `UNKNOWN`, and nothing else does.
pub struct Paths(Option<Arc<[u8]>>);

const UNKNOWN: &[u8] = &[FORMAT, TRUNCATED];

thread_local! {
    static ENTRIES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Paths {
    /// Nothing is known about the leaves. A comparison against it names no changes.
    pub fn unknown() -> Self {
        Self(None)
    }

    /// The bytes a store keeps, at most `2 + 8 * PATHS_MAX`.
    pub fn encode(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(UNKNOWN)
    }

    fn of(bytes: &[u8]) -> Self {
        Self((bytes != UNKNOWN).then(|| bytes.into()))
    }

    /// Reads what [`encode`](Self::encode) gave.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let refuse = |why| Err(Error::Paths { why });
        let Some((head, entries)) = bytes.split_at_checked(HEAD_BYTES) else {
            return refuse("shorter than their head");
        };
        if head[0] != FORMAT {
            return refuse("unknown format");
        }
        if !matches!(head[1], COMPLETE | TRUNCATED) {
            return refuse("unknown flags");
        }
        if !entries.len().is_multiple_of(ENTRY_BYTES) {
            return refuse("cut within an entry");
        }
        if entries.len() / ENTRY_BYTES > PATHS_MAX {
            return refuse("too many entries");
        }
        Ok(Self::of(bytes))
    }

    /// How many leaves have digests here.
    pub fn len(&self) -> usize {
        (self.encode().len() - HEAD_BYTES) / ENTRY_BYTES
    }

    /// Whether no leaf has a digest here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the request had more leaves than are kept here.
    pub fn is_truncated(&self) -> bool {
        self.encode()[1] != COMPLETE
    }

    pub(super) fn with_capacity(entries: usize, truncated: bool) -> Builder {
        let mut bytes = Lent::from(&ENTRIES);
        bytes.reserve(HEAD_BYTES + entries * ENTRY_BYTES);
        bytes.extend([FORMAT, if truncated { TRUNCATED } else { COMPLETE }]);
        Builder(bytes)
    }

    /// Path digest and value digest of every leaf, in canonical order.
    pub(super) fn entries(&self) -> impl ExactSizeIterator<Item = ([u8; 4], [u8; 4])> + '_ {
        self.encode()[HEAD_BYTES..]
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| ([entry[0], entry[1], entry[2], entry[3]], [entry[4], entry[5], entry[6], entry[7]]))
    }
}

impl Default for Paths {
    fn default() -> Self {
        Self::unknown()
    }
}

impl fmt::Debug for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Paths({} leaves", self.len())?;
        f.write_str(if self.is_truncated() { " and more)" } else { ")" })
    }
}

/// Paths in the making.
pub(super) struct Builder(Lent<u8>);

impl Builder {
    pub(super) fn push(&mut self, path: u32, value: u32) {
        self.0.extend_from_slice(&(u64::from(path) | u64::from(value) << 32).to_le_bytes());
    }
}

impl From<Builder> for Paths {
    fn from(builder: Builder) -> Self {
        Self::of(&builder.0)
    }
}
