//! What a service promises: the contract its answers are held against.

mod file;

use std::path::Path;

use crate::config::mistake::suggestion;

/// Statuses and names a service uses. What a profile leaves open is not checked, and said to be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// `semel`, `ietf`, `stripe`, or the file it came from.
    pub(crate) name: String,
    /// The request header that carries the key.
    pub(crate) key_header: String,
    /// Longest key accepted, in characters; `None` if nothing is promised.
    pub(crate) key_chars_max: Option<usize>,
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
    /// Headers that may differ between an answer and its replay, in lower case, besides those that differ anywhere.
    pub(crate) headers_vary: Vec<String>,
    /// Headers that must not be replayed, in lower case.
    pub(crate) headers_dropped: Vec<String>,
}

/// The profiles that are there without a file.
pub(crate) const BUILT_IN: [&str; 3] = ["semel", "ietf", "stripe"];

/// Headers that belong to a connection, a moment or somebody on the way, and not to an answer: they differ from
/// one answer to the next anywhere. A star stands for any end.
const VARYING: [&str; 37] = [
    "age",
    "alt-svc",
    "cf-cache-status",
    "cf-ray",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-connection",
    "ratelimit*",
    "request-id",
    "retry-after",
    "server-timing",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "via",
    "x-amz-cf-id",
    "x-amz-cf-pop",
    "x-amz-request-id",
    "x-amzn-requestid",
    "x-amzn-trace-id",
    "x-b3-*",
    "x-cache",
    "x-cache-hits",
    "x-correlation-id",
    "x-envoy-*",
    "x-rate-limit-*",
    "x-ratelimit-*",
    "x-request-id",
    "x-response-time",
    "x-runtime",
    "x-served-by",
    "x-timer",
    "x-trace-id",
    "x-varnish",
];

/// Says that something was taken out of a replay (G-14), so the first answer cannot have it.
const REDACTED: &str = "Idempotent-Replay-Redacted";

impl Profile {
    /// Whether a header, in lower case, may differ between an answer and its replay.
    pub(crate) fn may_vary(&self, name: &str) -> bool {
        let is = |listed: &str| match listed.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == listed,
        };
        VARYING.iter().any(|listed| is(listed)) || self.headers_vary.iter().any(|listed| is(listed))
    }

    /// A built-in by its name, or a file. The error has a sentence for each mistake.
    pub(crate) fn find(name: &str) -> Result<Self, String> {
        if let Some(profile) = built_in(name) {
            return Ok(profile);
        }
        let path = Path::new(name);
        if !path.exists() && path.extension().is_none() {
            let near = suggestion(name, BUILT_IN.into_iter());
            return Err(format!(
                "no profile is called `{name}`{near}; there are {}, or name a file",
                BUILT_IN.join(", ")
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
        file::read(&text, name)
    }
}

fn built_in(name: &str) -> Option<Profile> {
    match name {
        "semel" => Some(semel()),
        "ietf" => Some(ietf()),
        "stripe" => Some(stripe()),
        _ => None,
    }
}

/// What docs/guarantees.md promises, on a route where keys are optional.
fn semel() -> Profile {
    let marker = ("Idempotent-Replayed", "true");
    Profile {
        name: "semel".into(),
        key_header: "Idempotency-Key".into(),
        key_chars_max: Some(255),
        quoted_is_bare: true,
        missing_key: None,
        bad_key: vec![400],
        mismatch: vec![422],
        in_flight: vec![409],
        unknown: vec![409, 503],
        store_away: vec![503],
        replay_marker: Some((marker.0.into(), marker.1.into())),
        retry_after: true,
        problems: true,
        errors_kept: true,
        canonical_json: true,
        per_tenant: true,
        per_route: true,
        headers_vary: vary(&[marker.0, REDACTED]),
        headers_dropped: vec!["set-cookie".into(), "authorization".into()],
    }
}

/// draft-ietf-httpapi-idempotency-key-header-07. It asks for a structured-field string as the key, leaves it
/// to services whether errors are replayed, and knows no mark of a replay and no longest key.
fn ietf() -> Profile {
    Profile {
        name: "ietf".into(),
        key_chars_max: None,
        quoted_is_bare: false,
        missing_key: Some(400),
        unknown: vec![409, 500, 502, 503, 504],
        store_away: vec![500, 502, 503, 504],
        replay_marker: None,
        retry_after: false,
        problems: false,
        errors_kept: false,
        canonical_json: false,
        per_route: false,
        headers_vary: vary(&["set-cookie", "idempotent-replayed", REDACTED]),
        headers_dropped: Vec::new(),
        ..semel()
    }
}

/// Stripe's API v1, by its documentation and the errors its libraries report: another request under a used
/// key is an `idempotency_error` with status 400, also on another endpoint; one in flight is
/// `idempotency_key_in_use` with 409; answers are kept, 500 included.
fn stripe() -> Profile {
    let marker = ("Idempotent-Replayed", "true");
    Profile {
        name: "stripe".into(),
        quoted_is_bare: false,
        missing_key: None,
        mismatch: vec![400],
        unknown: vec![409, 500, 502, 503, 504],
        store_away: vec![500, 502, 503, 504],
        retry_after: false,
        problems: false,
        errors_kept: true,
        canonical_json: false,
        per_route: false,
        headers_vary: vary(&[marker.0, "original-request", "set-cookie"]),
        headers_dropped: Vec::new(),
        ..semel()
    }
}

fn vary(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_ins_are_found_by_name_and_a_slip_is_mended() {
        for name in BUILT_IN {
            let profile = Profile::find(name).unwrap();
            assert_eq!(profile.name, name);
            assert!(profile.headers_vary.iter().all(|header| *header == header.to_ascii_lowercase()));
        }
        assert!(Profile::find("strip").unwrap_err().contains("did you mean `stripe`?"));
        assert!(Profile::find("none.toml").unwrap_err().contains("none.toml"));
    }

    #[test]
    fn headers_of_a_moment_may_vary_and_headers_of_an_answer_may_not() {
        // G-14
        let profile = Profile { headers_vary: vec!["x-own".into()], ..Profile::find("semel").unwrap() };
        let moment =
            ["date", "x-envoy-upstream-service-time", "ratelimit-reset", "cf-ray", "x-runtime", "x-own"];
        assert_eq!(moment.into_iter().find(|name| !profile.may_vary(name)), None);
        let answer =
            ["content-type", "location", "etag", "x-receipt", "x-own-id", "x-cache-control", "dated"];
        assert_eq!(answer.into_iter().find(|name| profile.may_vary(name)), None);
    }

    #[test]
    fn built_ins_differ_where_their_services_do() {
        let [semel, ietf, stripe] = BUILT_IN.map(|name| Profile::find(name).unwrap());
        assert_eq!((semel.missing_key, ietf.missing_key, stripe.missing_key), (None, Some(400), None));
        assert_eq!((semel.mismatch, ietf.mismatch, stripe.mismatch), (vec![422], vec![422], vec![400]));
        assert_eq!(ietf.replay_marker, None);
        let longest = [semel.key_chars_max, ietf.key_chars_max, stripe.key_chars_max];
        assert_eq!(longest, [Some(255), None, Some(255)]);
        assert_eq!(semel.replay_marker, stripe.replay_marker);
    }
}
