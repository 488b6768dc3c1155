//! One small HTTP exchange: a POST of JSON, an answer of bounded size within a bounded time.
//!
//! For questions to services whose address the operator configured. It keeps no connections, follows
//! no redirects, and never sends twice. How a connection is made comes from outside, so that the same
//! code runs on a simulated network.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use semel::Runtime;
use semel::runtime::Boxed;
use tokio::io::{AsyncRead, AsyncWrite};

use super::net::Network;

/// How long a connection may take to be made, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the whole exchange may take.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer read.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Asks over HTTP.
pub(crate) trait Fetch: Send + Sync + 'static {
    /// Posts JSON and gives back what came.
    fn post(&self, url: Uri, body: Bytes) -> Boxed<Result<Fetched, Failed>>;
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why nothing usable came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("{0} is no address: it needs http or https, and a host")]
    Address(Uri),
    #[error("no connection: {0}")]
    Unreachable(io::Error),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("the exchange broke: {0}")]
    Broken(hyper::Error),
    #[error("the answer broke off, or has more than {ANSWER_BYTES_MAX} bytes: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

/// A connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to a host and port.
pub(crate) type Dial = Arc<dyn Fn(String, u16) -> Boxed<io::Result<Box<dyn Stream>>> + Send + Sync>;

/// Connects over a network.
pub(crate) fn over(network: Arc<dyn Network>) -> Dial {
    Arc::new(move |host, port| {
        let connecting = network.connect(&host, port);
        Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Stream>) })
    })
}

/// HTTP/1.1, plain or over TLS.
#[derive(Clone)]
pub(crate) struct Http {
    dial: Dial,
    tls: Arc<rustls::ClientConfig>,
    runtime: Arc<dyn Runtime>,
}

impl Http {
    pub(crate) fn new(dial: Dial, tls: Arc<rustls::ClientConfig>, runtime: Arc<dyn Runtime>) -> Self {
        // Nothing but what is spoken here may be agreed on, whatever else the settings are for.
        let mut tls = (*tls).clone();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { dial, tls: Arc::new(tls), runtime }
    }

    async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        match select(std::pin::pin!(work), self.runtime.sleep(limit)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(Failed::TimedOut(limit)),
        }
    }

    async fn connect(&self, url: &Uri) -> Result<Box<dyn Stream>, Failed> {
        let address = || Failed::Address(url.clone());
        let host = url.host().filter(|host| !host.is_empty()).ok_or_else(address)?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let (port, is_tls) = match url.scheme_str() {
            Some("http") => (80, false),
            Some("https") => (443, true),
            _ => return Err(address()),
        };
        let plain = (self.dial)(bare.to_owned(), url.port_u16().unwrap_or(port));
        let plain = plain.await.map_err(Failed::Unreachable)?;
        if !is_tls {
            return Ok(plain);
        }
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| address())?;
        let secured = tokio_rustls::TlsConnector::from(self.tls.clone()).connect(name, plain);
        Ok(Box::new(secured.await.map_err(Failed::Unreachable)?))
    }

    /// Asks with these headers and gives back what came, within a bounded time.
    pub(crate) fn get(&self, url: Uri, headers: HeaderMap) -> Boxed<Result<Fetched, Failed>> {
        let http = self.clone();
        Box::pin(async move {
            let work = http.exchange(Method::GET, url, headers, Bytes::new());
            http.within(EXCHANGE_TIMEOUT, work).await
        })
    }

    /// Sends a request and gives back what came, within this time.
    pub(crate) fn send(&self, request: Request<Bytes>, limit: Duration) -> Boxed<Result<Fetched, Failed>> {
        let http = self.clone();
        let (head, body) = request.into_parts();
        Box::pin(async move {
            let work = http.exchange(head.method, head.uri, head.headers, body);
            http.within(limit, work).await
        })
    }

    async fn exchange(
        &self,
        method: Method,
        url: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Fetched, Failed> {
        let stream = self.within(CONNECT_TIMEOUT, self.connect(&url)).await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(Failed::Broken)?;
        // It ends when the sender is dropped, at the latest with this exchange's time.
        self.runtime.spawn(Box::pin(async { drop(connection.await) }));
        let target = url.path_and_query().map_or("/", |target| target.as_str());
        let host = url.authority().map_or("", |authority| {
            authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host)
        });
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .body(Full::new(body))
            .map_err(|_| Failed::Address(url.clone()))?;
        *request.headers_mut() = headers;
        let host = HeaderValue::from_str(host).map_err(|_| Failed::Address(url.clone()))?;
        request.headers_mut().entry(HOST).or_insert(host);
        let (head, body) = sender.send_request(request).await.map_err(Failed::Broken)?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Failed::Body)?;
        Ok(Fetched { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

impl Fetch for Http {
    fn post(&self, url: Uri, body: Bytes) -> Boxed<Result<Fetched, Failed>> {
        let this = self.clone();
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, json.clone()), (ACCEPT, json)]);
        Box::pin(async move {
            let work = this.exchange(Method::POST, url, headers, body);
            this.within(EXCHANGE_TIMEOUT, work).await
        })
    }
}

/// Key sets of token issuers.
impl super::tenant::Fetch for Http {
    fn fetch(&self, uri: &Uri) -> Boxed<Result<Vec<u8>, String>> {
        let asking = self.get(uri.clone(), HeaderMap::new());
        Box::pin(async move {
            match asking.await {
                Ok(Fetched { status: StatusCode::OK, body, .. }) => Ok(body.into()),
                Ok(fetched) => Err(format!("status {} instead of 200", fetched.status.as_u16())),
                Err(failed) => Err(failed.to_string()),
            }
        })
    }
}
