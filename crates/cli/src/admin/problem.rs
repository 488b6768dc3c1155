//! What the admin API answers when it does not do what it was asked: RFC 9457 problems.
//!
//! They are for operators, so unlike the problems clients get they carry the store's own words.
//! docs/operating.md lists them all; a test compares.

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use semel::error::{Error, Kind};
use serde_json::{Value, json};

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slug {
    BadRequest,
    Unauthorized,
    HostRefused,
    OriginRefused,
    NoSuchPath,
    MethodNotAllowed,
    TooLarge,
    TooSlow,
    NotJson,
    OperationNotFound,
    OperationMovedOn,
    NotClosed,
    StoreUnavailable,
    StoreWentBack,
}

impl Slug {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 14] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::HostRefused,
        Self::OriginRefused,
        Self::NoSuchPath,
        Self::MethodNotAllowed,
        Self::TooLarge,
        Self::TooSlow,
        Self::NotJson,
        Self::OperationNotFound,
        Self::OperationMovedOn,
        Self::NotClosed,
        Self::StoreUnavailable,
        Self::StoreWentBack,
    ];

    /// The last part of the type, the status, the title.
    pub(crate) fn told(self) -> (&'static str, StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::BadRequest => ("admin-bad-request", S::BAD_REQUEST, "The call makes no sense"),
            Self::Unauthorized => ("admin-unauthorized", S::UNAUTHORIZED, "A valid token is needed"),
            Self::HostRefused => ("admin-host-refused", S::FORBIDDEN, "The Host is not one of this listener"),
            Self::OriginRefused => {
                ("admin-origin-refused", S::FORBIDDEN, "A page of another origin may not do this")
            }
            Self::NoSuchPath => ("admin-no-such-path", S::NOT_FOUND, "There is no such path"),
            Self::MethodNotAllowed => {
                ("admin-method-not-allowed", S::METHOD_NOT_ALLOWED, "The path does not take this method")
            }
            Self::TooLarge => ("admin-too-large", S::PAYLOAD_TOO_LARGE, "The body is too large"),
            Self::TooSlow => ("admin-too-slow", S::REQUEST_TIMEOUT, "The body came too slowly"),
            Self::NotJson => ("admin-not-json", S::UNSUPPORTED_MEDIA_TYPE, "The body must be JSON"),
            Self::OperationNotFound => {
                ("operation-not-found", S::NOT_FOUND, "No such operation is remembered")
            }
            Self::OperationMovedOn => {
                ("operation-moved-on", S::CONFLICT, "The operation is not in a state that allows this")
            }
            Self::NotClosed => ("store-not-closed", S::CONFLICT, "The store did not go back"),
            Self::StoreUnavailable => {
                ("store-unavailable", S::SERVICE_UNAVAILABLE, "The store does not answer")
            }
            Self::StoreWentBack => {
                ("store-went-back", S::SERVICE_UNAVAILABLE, "The store was restored from an older state")
            }
        }
    }
}

/// A refusal with its reason.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) slug: Slug,
    detail: String,
    more: Vec<(&'static str, Value)>,
}

impl Problem {
    pub(crate) fn new(slug: Slug, detail: impl Into<String>) -> Self {
        Self { slug, detail: detail.into(), more: Vec::new() }
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(Slug::BadRequest, detail)
    }

    /// Adds a member for machines.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more.push((name, value.into()));
        self
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let slug = if error.kind() == Kind::WentBack { Slug::StoreWentBack } else { Slug::StoreUnavailable };
        let advice = match error.outcome_is_unknown() {
            true => "; repeat the same call to find out: it does nothing twice",
            false => "",
        };
        Self::new(slug, format!("{error}{advice}"))
            .with("may_have_been_applied", error.outcome_is_unknown())
            .with("retryable", error.is_retryable())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (name, status, title) = self.slug.told();
        let mut body = json!({
            "type": format!("urn:semel:problem:{name}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail,
        });
        for (name, value) in self.more {
            body[name] = value;
        }
        let mut response = (status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.slug == Slug::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
