//! Semel for HTTP: a tower layer that runs a request with an `Idempotency-Key` once.
//!
//! The first request runs the service inside; its answer is stored before the client hears of it. Every
//! retry gets that answer back, marked `Idempotent-Replayed: true`. A retry while the first still runs is
//! told to come back, another request under the same key is refused, and when nobody can tell whether the
//! effect happened, the client is told so. Requests without a key pass untouched.
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # mod with_axum {
//! # use std::sync::Arc;
//! # use axum::{Router, routing::post};
//! # use semel_core::{MemoryStore, Once, runtime::Tokio};
//! use semel_http::{Op, Route, SemelLayer, tenant};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # pub async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! async fn charge(op: Op, body: String) -> String {
//!     // The provider deduplicates by this key, on every attempt the same.
//!     format!("charged {body} under {}", op.derive("charge", 1))
//! }
//!
//! let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
//! let route = Route::builder("charge").required().tenant(tenant::Credential).build()?;
//! let app: Router = Router::new().route("/charges", post(charge)).layer(SemelLayer::new(once, route));
//! # use tower::ServiceExt;
//! # for replayed in [false, true] {
//! #     let request = http::Request::post("/charges").header("idempotency-key", "order-1042-payment");
//! #     let request = request.header("authorization", "Bearer x").body(axum::body::Body::from("7 eur"))?;
//! #     let response = app.clone().oneshot(request).await?;
//! #     assert_eq!(response.status(), 200);
//! #     assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
//! # }
//! # Ok(())
//! # }
//! # }
//! # #[cfg(feature = "axum")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { with_axum::main() }
//! ```
//!
//! # Map
//!
//! [`SemelLayer`] makes [`Semel`], the service. [`Route`] says how requests are run, [`Routes`] which
//! route they belong to, [`tenant`] who their client is. [`Op`] is the operation in the hands of the
//! handler. [`verdict`] decides what a response means; [`problem`] is what clients are told when there is
//! no answer. [`Observer`] hears of every decision. [`etag`] reads `If-Match`, for changes that need no key.
//!
//! What this crate refuses to know: paths and how they match, sockets, TLS, and how an upstream is
//! reached. The service inside may be a handler or a gateway's way to an upstream; the layer cannot tell.
//!
//! # What a service may say
//!
//! In this process through [`Op`], or [`Hints`] and [`Fate`] in the extensions of its response; over the
//! network in the header `Semel-Hint`, which counts only beside the attempt's `Semel-Nonce`. Every header
//! that begins with `semel-` is taken out of requests from clients and out of answers to them.

mod age;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod capture;
mod coding;
mod describe;
mod entry;
pub mod etag;
mod exchange;
mod future;
pub mod header;
mod hints;
mod joined;
mod keyed;
mod keys;
mod layer;
pub mod observer;
mod op;
mod print;
pub mod problem;
pub mod route;
mod routes;
mod status;
mod stored;
pub mod tenant;
pub mod verdict;

pub use age::ExpiredKeys;
#[cfg(feature = "axum")]
pub use axum::NoOperation;
pub use body::{ReplyBody, RequestBody};
pub use describe::describe;
pub use future::Reply;
pub use hints::{Fate, Hints};
pub use joined::{Answer, Joined};
pub use layer::{Semel, SemelLayer};
pub use observer::{Decision, Observer};
pub use op::{Op, derived_key};
pub use problem::Problem;
pub use route::{Protection, Route};
pub use routes::{Routes, Switch};
pub use verdict::Verdict;

/// Any error of a service or a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The error of a request body that came too slowly. Whoever watches the time wraps the body and ends it
/// with this, and the client is told `request-slow` instead of `request-cut`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request body came too slowly")]
pub struct TooSlow;
