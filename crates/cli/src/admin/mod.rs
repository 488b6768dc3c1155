//! The admin listener: whether this process lives and can work, its metrics, and an API with which an
//! operator finds an operation, sees what happened to it, and settles, frees or purges it (G-81).
//!
//! Every change is a verb of the store, fenced like any other; it is noted in the operation's history
//! with who did it, logged under the target `semel::audit`, and counted. Nothing here runs an effect,
//! and nothing here is meant for clients: they have `/.well-known/idempotency` on the other listener.

mod audit;
mod changes;
mod guard;
mod operations;
mod probes;
mod problem;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use futures_util::future::{Either, select};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use semel::{EffectStore, Policy, Runtime, SubjectKeys};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use guard::Guard;
use problem::{Problem, Slug};

use crate::gateway::observe::Metrics;

/// Largest body of a call: an outcome of several MiB with its escapes.
const BODY_BYTES_MAX: usize = 8 << 20;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The document that describes the API.
const OPENAPI: &str = include_str!("openapi.json");

/// What the admin listener needs to know.
pub(crate) struct Admin {
    pub(crate) store: Arc<dyn EffectStore>,
    /// Where the keys of subjects are, if they have any.
    pub(crate) subject_keys: Option<Arc<dyn SubjectKeys>>,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Operations of this namespace are listed unless a call names another.
    pub(crate) namespace: String,
    pub(crate) guard: Guard,
    /// Why the gateway cannot work now, apart from its store: no healthy upstream, draining.
    pub(crate) not_ready: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// How a route keeps outcomes: what is settled is limited, redacted and sealed like what ran.
    pub(crate) policy: Box<dyn Fn(&str) -> Policy + Send + Sync>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The other end of the connection. Whoever serves the router puts it into the request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

type Shared = Arc<Admin>;
type Answer = Result<Response, Problem>;

/// Every path with its method.
fn routes() -> Vec<(&'static str, &'static str, MethodRouter<Shared>)> {
    vec![
        ("get", "/healthz", get(probes::healthz)),
        ("get", "/readyz", get(probes::readyz)),
        ("get", "/metrics", get(probes::metrics)),
        ("get", "/openapi.json", get(probes::openapi)),
        ("get", "/v1/status", get(probes::status)),
        ("post", "/v1/store/acknowledge", post(changes::acknowledge)),
        ("get", "/v1/operations", get(operations::find)),
        ("get", "/v1/operations/{id}", get(operations::show)),
        ("post", "/v1/operations/{id}/settle", post(changes::settle)),
        ("post", "/v1/operations/{id}/free", post(changes::free)),
        ("post", "/v1/operations/{id}/purge", post(changes::purge)),
        ("post", "/v1/subjects/{subject}/purge", post(changes::purge_subject)),
    ]
}

/// The service of the admin listener.
pub(crate) fn router(admin: Arc<Admin>) -> Router {
    let bare = routes().into_iter().fold(Router::new(), |router, (_, path, route)| router.route(path, route));
    bare.fallback(async || Problem::new(Slug::NoSuchPath, "see /openapi.json for the paths there are"))
        .method_not_allowed_fallback(async || {
            Problem::new(Slug::MethodNotAllowed, "see /openapi.json for the methods of each path")
        })
        .layer(middleware::from_fn_with_state(admin.clone(), admit))
        .with_state(admin)
}

/// Everything passes here first, also what matches no path.
async fn admit(State(admin): State<Shared>, request: Request, next: Next) -> Response {
    let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz" | "/openapi.json");
    let (mut parts, body) = request.into_parts();
    let mut response = match admin.guard.admit(&parts, is_probe) {
        Ok(standing) => {
            parts.extensions.insert(standing);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => {
            audit::turned_away(&admin, &parts, &problem);
            problem.into_response()
        }
    };
    response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

fn json(body: &Value) -> Response {
    let kind = HeaderValue::from_static("application/json");
    (StatusCode::OK, [(CONTENT_TYPE, kind)], body.to_string()).into_response()
}

/// Reads the body of a changing call. Anything but JSON is refused, so that no form of a foreign page
/// can be taken for one.
async fn read<T: DeserializeOwned>(admin: &Admin, request: Request) -> Result<T, Problem> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(Slug::NotJson, "send a body with `Content-Type: application/json`"));
    }
    let reading = std::pin::pin!(axum::body::to_bytes(Body::new(request.into_body()), BODY_BYTES_MAX));
    let bytes = match select(reading, admin.runtime.sleep(BODY_TIMEOUT)).await {
        Either::Left((Ok(bytes), _)) => bytes,
        Either::Left((Err(error), _)) if is_too_large(&error) => {
            return Err(Problem::new(Slug::TooLarge, format!("a body may have {BODY_BYTES_MAX} bytes")));
        }
        Either::Left((Err(error), _)) => return Err(Problem::bad(format!("the body broke off: {error}"))),
        Either::Right(_) => {
            return Err(Problem::new(Slug::TooSlow, format!("a body may take {BODY_TIMEOUT:?}")));
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| Problem::bad(format!("the body: {error}")))
}

fn is_too_large(error: &axum::Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}
