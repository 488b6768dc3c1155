/// Why a fingerprinter, a set of pointers or a stored list of paths could not be made.
///
/// Taking a fingerprint itself never fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A fingerprinter needs at least one key.
    #[error("no fingerprint key given")]
    NoKeys,
    /// More keys than [`KEYS_MAX`](super::KEYS_MAX).
    #[error("{count} fingerprint keys given, at most {} are allowed", super::KEYS_MAX)]
    TooManyKeys {
        /// How many were given.
        count: usize,
    },
    /// Two keys carry the same version, so a stored print would not say which one made it.
    #[error("fingerprint key version {version} is given twice")]
    DuplicateVersion {
        /// The version that occurs twice.
        version: u32,
    },
    /// The operating system gave no randomness for a new key.
    #[error("no randomness for a fingerprint key")]
    Random(#[source] getrandom::Error),
    /// Not a JSON pointer this module accepts.
    #[error("JSON pointer {pointer:?} {why}")]
    Pointer {
        /// The pointer as written.
        pointer: String,
        /// What is wrong with it, as the end of a sentence.
        why: &'static str,
    },
    /// More pointers than [`POINTERS_MAX`](super::POINTERS_MAX).
    #[error("{count} JSON pointers given, at most {} are allowed", super::POINTERS_MAX)]
    TooManyPointers {
        /// How many were given.
        count: usize,
    },
    /// Stored bytes are not a list of path digests.
    #[error("stored path digests are unreadable: {why}")]
    Paths {
        /// What is wrong with them.
        why: &'static str,
    },
}
