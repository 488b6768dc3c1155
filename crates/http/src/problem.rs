//! Refusals as RFC 9457 problem documents.
//!
//! Every kind has a stable type, one status and a page in `docs/problems`. What a problem says is for the
//! client: what happened, and what to do next. It never holds a credential, a value of a request, or
//! what a store said about its trouble.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use semel_core::fingerprint::Changes;
use semel_core::{Refusal, mutant};
use serde_json::{Map, Value};

use crate::ReplyBody;

/// What every type begins with.
pub const TYPE_PREFIX: &str = "urn:semel:problem:";

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $slug:literal $status:literal $title:literal $advice:literal,)*) => {
        /// What went wrong, by kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind { $($(#[$doc])* $name,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The end of its type, and the name of its page.
            pub fn slug(self) -> &'static str {
                match self { $(Self::$name => $slug,)* }
            }

            /// Its usual status.
            pub fn status(self) -> StatusCode {
                let code: u16 = match self { $(Self::$name => $status,)* };
                StatusCode::from_u16(code).expect("the table holds real statuses")
            }

            /// The same sentence on every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// What the client does about it.
            pub fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }
        }
    };
}

kinds! {
    /// The route requires a key.
    KeyMissing "key-missing" 400 "This request needs an Idempotency-Key"
        "Send a key that is new for this intent, and repeat it on every retry.",
    /// The key cannot be read.
    KeyMalformed "key-malformed" 400 "The Idempotency-Key cannot be read"
        "Send 1 to 255 visible ASCII characters, quoted or bare.",
    /// More than one key header.
    KeyRepeated "key-repeated" 400 "There is more than one Idempotency-Key"
        "Send the header once.",
    /// The key lacks what this route asks of keys.
    KeyNotUsable "key-not-usable" 400 "This route cannot use the key"
        "Send a key of the form the route publishes.",
    /// The request asks to be taken for another method.
    MethodOverrideRefused "method-override-refused" 400 "Method overrides are refused with a key"
        "Send the method itself.",
    /// Nobody said who the clients of this route are.
    TenantUndeclared "tenant-undeclared" 400 "The route does not say who its clients are"
        "Nothing the client can do: the operator declares a tenant.",
    /// The client did not say who it is.
    TenantMissing "tenant-missing" 401 "The request does not say who the client is"
        "Authenticate, and send the same key again.",
    /// The client's claim to be somebody was not believed.
    TenantUnverified "tenant-unverified" 401 "The client could not be verified"
        "Get a valid credential, and send the same key again.",
    /// The body is larger than the route reads.
    RequestTooLarge "request-too-large" 413 "The request is too large"
        "Send less. Nothing was run.",
    /// The body broke off.
    RequestCut "request-cut" 400 "The request broke off"
        "Send it again with the same key. Nothing was run.",
    /// The body came too slowly.
    RequestSlow "request-slow" 408 "The request came too slowly"
        "Send it again with the same key. Nothing was run.",
    /// The key is older than outcomes are remembered.
    KeyExpired "key-expired" 412 "The key is older than outcomes are remembered"
        "Find out what became of the first attempt before using a new key.",
    /// The store is away.
    StoreUnavailable "store-unavailable" 503 "Operations cannot be recorded at the moment"
        "Send it again with the same key after Retry-After. Nothing was run.",
    /// As many operations are under way as may be.
    TooManyOperations "too-many-operations" 503 "Too many operations are under way"
        "Send it again with the same key after Retry-After, never with a new one. This attempt ran nothing.",
    /// The key belongs to another request.
    KeyReused "key-reused" 422 "The key was used for a different request"
        "Use a new key for a new intent; repeat a request unchanged.",
    /// Another attempt is running.
    InFlight "in-flight" 409 "The same request is being worked on"
        "Send it again with the same key after Retry-After.",
    /// It may or may not have happened.
    OutcomeUnknown "outcome-unknown" 409 "Whether the request took effect is not known yet"
        "Send it again with the same key after Retry-After. Never use a new key.",
    /// It happened; the answer was not kept.
    BodyNotKept "body-not-kept" 409 "The request took effect; its answer was not kept"
        "Look the result up. Do not send it with a new key.",
    /// It ended; the answer was purged.
    OutcomePurged "outcome-purged" 409 "The request ended; its answer was purged"
        "Look the result up. Do not send it with a new key.",
    /// It happened; the answer cannot be read.
    OutcomeUnreadable "outcome-unreadable" 500 "What is stored about this request cannot be read"
        "Ask the operator. Do not send it with a new key.",
    /// An unprotected request could not be passed on.
    UpstreamUnreachable "upstream-unreachable" 502 "The service behind the gateway cannot be reached"
        "Try again later.",
    /// An unprotected request was not answered.
    UpstreamTimeout "upstream-timeout" 504 "The service behind the gateway did not answer in time"
        "This request had no key: whether it took effect is not known.",
    /// A gateway cannot tell where the request ends or whom it is for.
    RequestMalformed "request-malformed" 400 "The request cannot be read, or can be read in two ways"
        "Correct the request. Nothing was run.",
    /// A gateway opens no tunnels.
    MethodRefused "method-refused" 405 "This gateway does not take this method"
        "Send requests to the gateway itself. Nothing was run.",
    /// The gateway takes no more connections.
    TooManyConnections "too-many-connections" 503 "The gateway has too many connections"
        "Try again after Retry-After.",
}

/// One refusal, on its way to the client.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: Kind,
    status: StatusCode,
    detail: Option<String>,
    retry_after: Option<Duration>,
    described_by: Option<HeaderValue>,
    members: Map<String, Value>,
}

impl Problem {
    /// A problem of this kind, with its usual status.
    pub fn new(kind: Kind) -> Self {
        let members = Map::new();
        Self { kind, status: kind.status(), detail: None, retry_after: None, described_by: None, members }
    }

    /// What is special about this occurrence.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Another status than the usual one.
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// When to come back; rounded up to whole seconds, never zero.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// A `Link` to what describes the route, as a header value.
    pub fn described_by(mut self, link: Option<HeaderValue>) -> Self {
        self.described_by = link;
        self
    }

    /// A further member of the document.
    pub fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// As a response.
    pub fn into_response(self) -> Response<Bytes> {
        let mut document = Map::new();
        document.insert("type".into(), format!("{TYPE_PREFIX}{}", self.kind.slug()).into());
        document.insert("title".into(), self.kind.title().into());
        document.insert("status".into(), self.status.as_u16().into());
        let detail = self.detail.unwrap_or_else(|| self.kind.advice().to_owned());
        document.insert("detail".into(), detail.into());
        document.extend(self.members);
        let mut response = Response::new(Bytes::from(Value::Object(document).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        if let Some(link) = self.described_by.filter(|_| !mutant::on("problem-unlinked")) {
            headers.insert(LINK, link);
        }
        response
    }

    /// As a response of a service with bodies of type `R`.
    pub fn into_reply<R>(self) -> Response<ReplyBody<R>> {
        self.into_response().map(ReplyBody::from)
    }
}

fn whole_seconds(wait: Duration) -> u64 {
    let rounded_up = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    rounded_up.max(1)
}

/// Text for the client. `Unreadable` and key versions are the operator's business and stay in the log.
impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Mismatch(changes) => mismatch(changes),
            Refusal::InFlight { retry_after } => Self::new(Kind::InFlight).retry_after(retry_after),
            Refusal::OutcomeUnknown { retry_after } => {
                Self::new(Kind::OutcomeUnknown).retry_after(retry_after)
            }
            Refusal::BodyNotKept { status } => Self::new(Kind::BodyNotKept)
                .detail(format!("It completed with status {status}. {}", Kind::BodyNotKept.advice()))
                .member("original_status", status),
            Refusal::Unreadable(_) | Refusal::Incomparable { .. } => Self::new(Kind::OutcomeUnreadable),
            Refusal::Purged => Self::new(Kind::OutcomePurged),
            Refusal::StoreUnavailable { retry_after } | Refusal::KeyNotLoaded { retry_after, .. } => {
                Self::new(Kind::StoreUnavailable).retry_after(retry_after)
            }
            Refusal::TooManyOperations { retry_after } => {
                Self::new(Kind::TooManyOperations).retry_after(retry_after)
            }
            // A refusal this build does not know: nothing may be claimed about the effect.
            _ => Self::new(Kind::OutcomeUnknown),
        }
    }
}

fn mismatch(changes: Changes) -> Problem {
    let mut problem = Problem::new(Kind::KeyReused);
    let named: Vec<&str> = changes.changed.iter().chain(&changes.added).map(String::as_str).collect();
    if !named.is_empty() {
        let detail = format!("These differ: {}. {}", named.join(", "), Kind::KeyReused.advice());
        problem = problem.detail(detail);
    }
    problem
        .member("changed", changes.changed)
        .member("added", changes.added)
        .member("removed", changes.removed)
        .member("complete", changes.complete)
}

#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for Problem {
    fn into_response(self) -> axum_core::response::Response {
        Problem::into_response(self).map(axum_core::body::Body::from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_page_and_every_page_a_kind() {
        // G-22
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/problems");
        let pages: BTreeSet<String> = std::fs::read_dir(pages)
            .unwrap()
            .map(|page| page.unwrap().file_name().into_string().unwrap())
            .collect();
        let kinds: BTreeSet<String> = Kind::ALL.iter().map(|kind| format!("{}.md", kind.slug())).collect();
        assert_eq!(pages, kinds);
        assert_eq!(kinds.len(), Kind::ALL.len(), "two kinds share a slug");
    }

    #[test]
    fn every_page_names_its_type_status_and_title() {
        // G-22
        for kind in Kind::ALL {
            let page = format!("{}/../../docs/problems/{}.md", env!("CARGO_MANIFEST_DIR"), kind.slug());
            let text = std::fs::read_to_string(&page).unwrap();
            for part in [
                format!("`{TYPE_PREFIX}{}`", kind.slug()),
                kind.title().to_owned(),
                kind.status().as_str().to_owned(),
                "**What the client does.**".to_owned(),
                "**What the operator does.**".to_owned(),
            ] {
                assert!(text.contains(&part), "{page} does not say {part:?}");
            }
        }
    }

    #[test]
    fn a_problem_is_a_document_with_its_headers() {
        // G-22
        let link = HeaderValue::from_static("</docs>; rel=\"describedby\"");
        let response = Problem::new(Kind::InFlight)
            .retry_after(Duration::from_millis(1200))
            .described_by(Some(link))
            .into_response();
        assert_eq!(response.status(), 409);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(response.headers()[LINK], "</docs>; rel=\"describedby\"");
        let document: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(document["type"], "urn:semel:problem:in-flight");
        assert_eq!(document["status"], 409);
        assert_eq!(document["detail"], Kind::InFlight.advice());
    }

    #[test]
    fn a_mismatch_names_what_changed_and_never_a_value() {
        // G-6
        let changes = Changes {
            changed: vec!["/amount".into()],
            added: vec!["/note".into()],
            removed: 2,
            complete: true,
        };
        let response = Problem::from(Refusal::Mismatch(changes)).into_response();
        let document: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(response.status(), 422);
        assert_eq!(document["changed"], serde_json::json!(["/amount"]));
        assert_eq!(document["added"], serde_json::json!(["/note"]));
        assert_eq!(document["removed"], 2);
        assert!(document["detail"].as_str().unwrap().contains("/amount, /note"));
    }
}
