//! The extractors for axum handlers: `Op`, or `Option<Op>` where keys are optional; `Joined` on routes of the
//! handler's own transaction.

use std::convert::Infallible;

use axum_core::body::Body;
use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::problem::{Kind, Problem};
use crate::{Joined, Op, header};

/// There is no operation to give to the handler.
#[derive(Debug)]
pub enum NoOperation {
    /// The request has no key. Make keys required on this route, or take `Option<Op>`.
    NoKey,
    /// The request has a key, and nothing protects the handler: its layer or its route is missing.
    NotProtected,
}

impl IntoResponse for NoOperation {
    fn into_response(self) -> Response {
        match self {
            Self::NoKey => Problem::new(Kind::KeyMissing).into_response().map(Body::from),
            Self::NotProtected => {
                tracing::error!(
                    "a handler takes Op or Joined and is not under SemelLayer, or its route takes no keys or the other kind"
                );
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Op {
    type Rejection = NoOperation;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NoOperation> {
        match parts.extensions.get::<Self>() {
            Some(op) => Ok(op.clone()),
            None if parts.headers.contains_key(header::IDEMPOTENCY_KEY) => Err(NoOperation::NotProtected),
            None => Err(NoOperation::NoKey),
        }
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Op {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

impl<S: Sync> FromRequestParts<S> for Joined {
    type Rejection = NoOperation;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NoOperation> {
        match parts.extensions.get::<Self>() {
            Some(joined) => Ok(joined.clone()),
            None if parts.headers.contains_key(header::IDEMPOTENCY_KEY) => Err(NoOperation::NotProtected),
            None => Err(NoOperation::NoKey),
        }
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Joined {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
