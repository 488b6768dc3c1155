//! A request with a key, from its head to its answer.
//!
//! The order of refusals is part of the contract: key, size, client, age of the key, store, and only
//! then what the store knows. The effect is the inner service; it runs in `Once::run`, in a task of its
//! own.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body;
use semel_core::joined::Call;
use semel_core::policy::DEFAULTS;
use semel_core::{Answer, Error, Key, Origin, Refusal, Scope, mutant};
use tower_service::Service;
use tracing::{Instrument, Span};

use crate::age::{self, Age};
use crate::capture::{self, Read};
use crate::entry::sentence;
use crate::exchange::Exchange;
use crate::keys::{Loaded, in_time};
use crate::layer::Shared;
use crate::observer;
use crate::print::Sight;
use crate::problem::{Kind, Problem};
use crate::{BoxError, Joined, ReplyBody, RequestBody, Route, TooSlow, header, joined, stored, tenant};

/// Answers one keyed request.
///
/// # Cancellation
/// Safe. Before the effect began nothing is left behind; after it, the effect goes on and its outcome is
/// stored.
pub(crate) async fn answer<S, B, R>(
    shared: Arc<Shared>,
    service: S,
    request: Request<B>,
    route: Arc<Route>,
    key: Key,
) -> Response<ReplyBody<R>>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let watch = Watch::start(&shared, &route, &key);
    let (head, body) = request.into_parts();
    let (kind, response) = match admit(&shared, &route, &key, &head, body).await {
        Ok(admitted) if route.is_same_transaction() => {
            run_joined(&shared, &route, &key, head, admitted, service).await
        }
        Ok(admitted) => run(&shared, &route, &key, head, admitted, service).await,
        Err(Refused::Problem(problem)) => refusal(*problem, &route),
        Err(Refused::ByCheck(response)) => (observer::Kind::AuthRefused, response.map(ReplyBody::from)),
    };
    watch.tell(kind, response.status());
    response
}

/// Why a request does not get as far as the store.
enum Refused {
    Problem(Box<Problem>),
    ByCheck(Box<Response<Bytes>>),
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

/// A request that may ask the store.
struct Admitted {
    tenant: Option<String>,
    body: Bytes,
    trailers: Option<Box<HeaderMap>>,
    keys: Result<Arc<Loaded>, Error>,
}

async fn admit<B>(
    shared: &Shared,
    route: &Route,
    key: &Key,
    head: &Parts,
    body: B,
) -> Result<Admitted, Refused>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let made_at = route
        .expired_keys()
        .made_at(key, &head.headers)
        .map_err(|why| Problem::new(Kind::KeyNotUsable).detail(why))?;
    let age = made_at.map_or(Age::Fit, |at| age::judge(at, shared.clock.now(), route.policy().terms().ttl));
    if age == Age::Future {
        let why = "The key claims to be from the future; set the client's clock.";
        return Err(Problem::new(Kind::KeyNotUsable).detail(why).into());
    }
    let keys = shared.keys.get(&shared.once).await;
    let blind;
    let hasher = match &keys {
        Ok(loaded) => &loaded.hasher,
        Err(_) => {
            blind = tenant::Hasher::blind();
            &blind
        }
    };
    let asked = tenant_of(route, head, hasher).await;
    if asked == tenant::Answer::Undeclared {
        return Err(undeclared().into());
    }
    let (body, trailers) = whole(head, body, route.policy().request_bytes_max()).await?;
    let tenant = known(asked)?;
    if let Some(check) = route.auth_check().filter(|_| !mutant::on("auth-check-skipped")) {
        check.check(head).await.map_err(|response| Refused::ByCheck(Box::new(response)))?;
    }
    if age == Age::Expired {
        return Err(Problem::new(Kind::KeyExpired).into());
    }
    if hasher.guessed() {
        // Also where outages are open: under another name it would have other derived keys.
        return Err(Problem::new(Kind::StoreUnavailable).retry_after(DEFAULTS.retry_after_min).into());
    }
    Ok(Admitted { tenant, body, trailers, keys })
}

/// Asks the route's source, and once more if it could learn something meanwhile.
pub(crate) async fn tenant_of(route: &Route, head: &Parts, hasher: &tenant::Hasher) -> tenant::Answer {
    let answer = route.tenant().tenant(head, hasher);
    match route.tenant().learn(head, &answer) {
        Some(learning) => {
            learning.await;
            route.tenant().tenant(head, hasher)
        }
        None => answer,
    }
}

/// The tenant, once it is known that it was declared.
pub(crate) fn known(answer: tenant::Answer) -> Result<Option<String>, Problem> {
    match answer {
        tenant::Answer::Is(tenant) => Ok(Some(tenant)),
        tenant::Answer::Shared => Ok(None),
        tenant::Answer::Undeclared => Err(undeclared()),
        tenant::Answer::Missing(why) => Err(Problem::new(Kind::TenantMissing).detail(why)),
        tenant::Answer::Unverified(why) => Err(Problem::new(Kind::TenantUnverified).detail(why)),
    }
}

fn undeclared() -> Problem {
    Problem::new(Kind::TenantUndeclared).detail(
        "The request carries a key and a credential, and this route was not told who its clients are. The operator \
         chooses one: tenant \"none\" (all clients share one set of keys), \"credential\" (a keyed hash of \
         Authorization), \"header:NAME\" (a keyed hash of an API key), \"jwt:CLAIM\" (a claim of a verified token) or \
         \"certificate\" (a name in the client's certificate). Nothing was run.",
    )
}

/// Reads the whole body, before anything runs.
async fn whole<B>(head: &Parts, body: B, limit: usize) -> Result<(Bytes, Option<Box<HeaderMap>>), Problem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let too_large = || {
        let detail = format!("The largest request this route reads has {limit} bytes. Nothing was run.");
        Problem::new(Kind::RequestTooLarge).detail(detail)
    };
    let announced =
        head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let limit = if mutant::on("large-request-runs") { usize::MAX } else { limit };
    if announced.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large());
    }
    match capture::read(pin!(body), limit).await {
        // What was announced and did not come was cut off on the way, by whoever passed it on.
        Read::Whole { bytes, .. } if announced.is_some_and(|announced| announced > bytes.len() as u64) => {
            Err(Problem::new(Kind::RequestCut))
        }
        Read::Whole { bytes, trailers } => Ok((bytes, trailers)),
        Read::TooLarge { .. } => Err(too_large()),
        Read::Cut(error) => Err(cut(&error, too_large)),
    }
}

fn cut(error: &BoxError, too_large: impl Fn() -> Problem) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if error.is::<TooSlow>() {
            return Problem::new(Kind::RequestSlow);
        }
        if error.is::<http_body_util::LengthLimitError>() {
            return too_large();
        }
        cause = error.source();
    }
    tracing::debug!(%error, "a request broke off");
    Problem::new(Kind::RequestCut)
}

async fn run<S, B, R>(
    shared: &Shared,
    route: &Arc<Route>,
    key: &Key,
    head: Parts,
    admitted: Admitted,
    service: S,
) -> (observer::Kind, Response<ReplyBody<R>>)
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let Admitted { tenant, body, trailers, mut keys } = admitted;
    let policy = route.policy_for(&head).into_owned();
    let scope = match shared.scope(route, tenant.as_deref(), &head.method, &head.uri) {
        Ok(scope) => scope,
        Err(problem) => return refusal(problem, route),
    };
    let mut print = Sight::of(&head, &body).print(route, key, &keys);
    let request = Request::from_parts(head, RequestBody::whole(body, trailers));
    let exchange = Arc::new(Exchange::new(service, request));
    let mut reloaded = false;
    let result = loop {
        let (scope, named) = (scope.clone(), key.clone());
        let (ours, of, span) = (exchange.clone(), route.clone(), Span::current());
        let runtime = shared.once.runtime().clone();
        let effect = move |attempt| ours.perform(attempt, of, runtime).instrument(span);
        let result = match &keys {
            Ok(_) => shared.once.run(scope, named, print.clone(), &policy, effect).await,
            Err(error) => {
                shared.once.run_without_store(scope, named, print.clone(), &policy, error, effect).await
            }
        };
        match result {
            // Somebody rotated the keys. Nothing ran; learn the new one and ask once more.
            Err(Refusal::KeyNotLoaded { .. }) if !reloaded => {
                reloaded = true;
                keys = shared.keys.reload(&shared.once).await;
                let again = exchange.peek(|sent| Sight::of_request(sent).print(route, key, &keys));
                print = match again {
                    Some(print) if keys.is_ok() => print,
                    _ => break result,
                };
            }
            result => break result,
        }
    };
    if let (Ok(Answer { origin: Origin::Replayed, .. }), Ok(loaded)) = (&result, &keys) {
        exchange.peek(|sent| Sight::of_request(sent).remember(route, key, loaded, print));
    }
    conclude(result, &exchange, route)
}

/// Lets the handler run the operation in its own transaction, and passes on what it says.
async fn run_joined<S, B, R>(
    shared: &Shared,
    route: &Arc<Route>,
    key: &Key,
    head: Parts,
    admitted: Admitted,
    mut service: S,
) -> (observer::Kind, Response<ReplyBody<R>>)
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: Body<Data = Bytes>,
{
    let Admitted { tenant, body, trailers, keys } = admitted;
    if keys.is_err() {
        return refusal(Problem::new(Kind::StoreUnavailable).retry_after(DEFAULTS.retry_after_min), route);
    }
    let scope = match shared.scope(route, tenant.as_deref(), &head.method, &head.uri) {
        Ok(scope) => scope,
        Err(problem) => return refusal(problem, route),
    };
    let print = Sight::of(&head, &body).print(route, key, &keys);
    let policy = route.policy_for(&head);
    let call = Call::new(scope, key.clone(), print, &policy);
    let ready = match policy.wants_subject_key() {
        true => in_time(&shared.once, Box::pin(call.with_subject_key())).await,
        false => Ok(call),
    };
    let call = match ready {
        Ok(call) => call,
        Err(error) => {
            tracing::warn!(%error, key = key.as_str(), "the key of its subject cannot be had; nothing was run");
            let problem = Problem::new(Kind::StoreUnavailable).retry_after(DEFAULTS.retry_after_min);
            return refusal(problem, route);
        }
    };
    let mut request = Request::from_parts(head, RequestBody::whole(body, trailers));
    request.extensions_mut().insert(Joined::new(call, route.clone()));
    let mut response = match service.call(request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::warn!(error = %error.into(), key = key.as_str(), "the service failed");
            let unknown = Refusal::OutcomeUnknown { retry_after: DEFAULTS.retry_after_min };
            return refusal(Problem::from(unknown).with_status(StatusCode::SERVICE_UNAVAILABLE), route);
        }
    };
    let kind = match response.extensions_mut().remove::<joined::Mark>() {
        Some(mark) => {
            if mark.key_not_loaded {
                // Somebody rotated the keys. Nothing ran, and the client's next try is read with the new one.
                let _ = shared.keys.reload(&shared.once).await;
            }
            mark.kind
        }
        // In the handler's own words: it committed nothing, or a retry will find what it did.
        None => {
            header::strip(response.headers_mut());
            observer::Kind::Released
        }
    };
    (kind, response.map(ReplyBody::passed))
}

/// Turns what the semantics say into what the client gets.
fn conclude<S, B, R>(
    result: Result<Answer, Refusal>,
    exchange: &Exchange<S, B, R>,
    route: &Route,
) -> (observer::Kind, Response<ReplyBody<R>>) {
    let Answer { outcome, origin } = match result {
        Ok(answer) => answer,
        // The effect was decided, and its outcome is on its way to a store that does not answer.
        Err(refused @ Refusal::OutcomeUnknown { .. })
            if exchange.was_decided() && !mutant::on("unstored-told-as-unknown") =>
        {
            let problem = Problem::from(refused).with_status(StatusCode::SERVICE_UNAVAILABLE);
            return refusal(problem, route);
        }
        Err(refused) => return refusal(refused.into(), route),
    };
    let status = outcome.status;
    let (kind, response) = match origin {
        Origin::Replayed => match stored::replay(outcome, route) {
            Ok(response) => (observer::Kind::Replayed, Some(response)),
            Err(stored::NotHttp) => return refusal(Problem::new(Kind::OutcomeUnreadable), route),
        },
        // The first client gets the response itself, with what is not stored of it.
        Origin::Fresh => (observer::Kind::Fresh, exchange.take_reply()),
        Origin::NothingHappened => (observer::Kind::Released, exchange.take_reply()),
        Origin::Unprotected => {
            let mut reply = exchange.take_reply();
            if let Some(response) = &mut reply
                && !mutant::on("unprotected-unmarked")
            {
                response.headers_mut().insert(header::UNPROTECTED, HeaderValue::from_static("true"));
            }
            (observer::Kind::Unprotected, reply)
        }
    };
    match response {
        Some(response) => (kind, response),
        // Decided, and its body broke off: there is nothing whole to pass on.
        None => refusal(Refusal::BodyNotKept { status }.into(), route),
    }
}

fn refusal<R>(problem: Problem, route: &Route) -> (observer::Kind, Response<ReplyBody<R>>) {
    let kind = observer::Kind::Refused(problem.kind());
    (kind, problem.described_by(route.described_by()).into_reply())
}

impl Shared {
    /// The scope of an operation; the error is for the client whose name cannot be used.
    pub(crate) fn scope(
        &self,
        route: &Route,
        tenant: Option<&str>,
        method: &Method,
        uri: &Uri,
    ) -> Result<Scope, Problem> {
        let scope = route.scope(&self.namespace, tenant, method, uri);
        scope.map_err(|error| Problem::new(Kind::TenantUnverified).detail(sentence(&error.to_string())))
    }
}

/// Tells the observer what was decided, also when nobody waits for it any more.
struct Watch<'a> {
    shared: &'a Shared,
    route: &'a Route,
    key: &'a Key,
    start: Duration,
    told: bool,
}

impl<'a> Watch<'a> {
    fn start(shared: &'a Shared, route: &'a Route, key: &'a Key) -> Self {
        Self { shared, route, key, start: shared.once.runtime().elapsed(), told: false }
    }

    fn tell(mut self, kind: observer::Kind, status: StatusCode) {
        self.told = true;
        self.report(kind, Some(status));
    }

    fn report(&self, kind: observer::Kind, status: Option<StatusCode>) {
        let latency = self.shared.once.runtime().elapsed().saturating_sub(self.start);
        self.shared.decided(&observer::Decision {
            route: Some(self.route.label()),
            kind,
            key: Some(self.key),
            status: status.map(|status| status.as_u16()),
            latency,
        });
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.report(observer::Kind::Abandoned, None);
        }
    }
}
