//! What a service promises: the contract its answers are held against.

/// Statuses and names a service uses. What a profile leaves open is not checked, and said to be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// `semel`, `ietf`, `stripe`, or the file it came from.
    pub(crate) name: String,
    /// The request header that carries the key.
    pub(crate) key_header: String,
    /// Longest key accepted, in characters.
    pub(crate) key_chars_max: usize,
    /// Whether `"abc"` and `abc` are the same key.
    pub(crate) quoted_is_bare: bool,
    /// What a request without a key gets; `None` if it passes.
    pub(crate) missing_key: Option<u16>,
    /// What a key that cannot be used gets.
    pub(crate) bad_key: Vec<u16>,
    /// What another request under a used key gets.
    pub(crate) mismatch: Vec<u16>,
    /// What a duplicate gets while the first still runs; waiting for its answer is always right.
    pub(crate) in_flight: Vec<u16>,
    /// What a client may be told when nobody knows whether the effect happened.
    pub(crate) unknown: Vec<u16>,
    /// What is answered while the store is away.
    pub(crate) store_away: Vec<u16>,
    /// Marks a replay: header and value.
    pub(crate) replay_marker: Option<(String, String)>,
    /// Whether an in-flight answer says when to come back.
    pub(crate) retry_after: bool,
    /// Whether refusals are `application/problem+json` documents.
    pub(crate) problems: bool,
    /// Whether an error answer is kept and replayed like any other.
    pub(crate) errors_kept: bool,
    /// Whether JSON that differs in member order and spacing only is the same request.
    pub(crate) canonical_json: bool,
    /// Whether another tenant may use the same key for itself.
    pub(crate) per_tenant: bool,
    /// Whether the same key on another route or method is another operation.
    pub(crate) per_route: bool,
    /// Headers that may differ between an answer and its replay, in lower case.
    pub(crate) headers_vary: Vec<String>,
    /// Headers that must not be replayed, in lower case.
    pub(crate) headers_dropped: Vec<String>,
}
