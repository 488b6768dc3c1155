//! A proxy in front of the target that cuts answers off, for testing clients by hand.
//!
//! The target has answered when the client's connection breaks: that is the moment in which clients
//! must decide whether to send again. A connection carries one request, so that a cut hits one answer.

use crate::say::say;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use axum::http::{Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::provider::{end_to_end, relayed};
use super::scenario::Region;
use crate::gateway::fetch::Http;

/// Largest request passed on.
const BODY_BYTES_MAX: usize = 32 << 20;
/// How long the target may take.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// What gets through of a head that is cut: less than any head has.
const HEAD_BYTES: usize = 20;

pub(super) struct Front {
    pub(super) http: Http,
    /// `http://host:port` of the target.
    pub(super) origin: String,
    pub(super) region: Region,
    /// Every how many answers one is cut.
    pub(super) every: u64,
    pub(super) answered: AtomicU64,
}

impl Front {
    /// Takes connections until the listener fails.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(self.clone().connection(stream));
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let cut = Cut::default();
        let outlet = Outlet { stream, cut: cut.clone() };
        let service = service_fn(move |request| {
            let (front, cut) = (self.clone(), cut.clone());
            async move { Ok::<_, std::convert::Infallible>(front.answer(request, &cut).await) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .writev(false)
            .serve_connection(TokioIo::new(outlet), service);
        // A cut is an error here, and all is said about it already.
        drop(serving.await);
    }

    async fn answer(&self, request: Request<Incoming>, cut: &Cut) -> Response {
        let shown = format!("{} {}", request.method(), request.uri().path());
        let response = match self.pass_on(request).await {
            Ok(response) => response,
            Err((status, said)) => {
                say!("{shown}  {}  {said}", status.as_u16());
                return (status, format!("{said}\n")).into_response();
            }
        };
        let number = self.answered.fetch_add(1, Ordering::SeqCst) + 1;
        let status = response.status().as_u16();
        if number.is_multiple_of(self.every) {
            let place = cut.at(self.region, response.body().size_hint().exact().unwrap_or(0));
            say!("{shown}  {status}  cut {place}");
        } else {
            say!("{shown}  {status}");
        }
        response
    }

    async fn pass_on(&self, request: Request<Incoming>) -> Result<Response, (StatusCode, String)> {
        let (head, body) = request.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
        let body = body.map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?.to_bytes();
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let uri = format!("{}{target}", self.origin).parse::<Uri>();
        let mut request = Request::new(body);
        *request.uri_mut() = uri.map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
        *request.method_mut() = head.method;
        *request.headers_mut() = end_to_end(head.headers);
        let answer = self.http.send(request, ANSWER_MAX).await;
        answer.map(relayed).map_err(|error| (StatusCode::BAD_GATEWAY, format!("the target: {error}")))
    }
}

/// How much of the answer still gets through; shared by a connection and whoever answers on it.
#[derive(Clone, Default)]
struct Cut(Arc<Mutex<Passing>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Passing {
    #[default]
    All,
    Bytes(usize),
    /// The head, and so many bytes of the body. With how much of the empty line was seen.
    Head {
        seen: usize,
        body: usize,
    },
}

impl Cut {
    /// Cuts what is written from now on, and says where.
    fn at(&self, region: Region, body: u64) -> &'static str {
        let (passing, place) = match region {
            Region::BeforeHead => (Passing::Bytes(0), "before the head"),
            Region::InBody if body > 0 => {
                let half = usize::try_from(body / 2).unwrap_or(usize::MAX);
                (Passing::Head { seen: 0, body: half }, "in the body")
            }
            Region::InBody => (Passing::Bytes(HEAD_BYTES), "in the head, as there is no body"),
            Region::InHead => (Passing::Bytes(HEAD_BYTES), "in the head"),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = passing;
        place
    }
}

impl Passing {
    /// How many of these bytes may go out.
    fn allowed(self, bytes: &[u8]) -> usize {
        match self {
            Self::All => bytes.len(),
            Self::Bytes(left) => left.min(bytes.len()),
            Self::Head { seen, body } => match end_of_head(bytes, seen) {
                Ok(end) => end.saturating_add(body).min(bytes.len()),
                Err(_) => bytes.len(),
            },
        }
    }

    /// After these bytes went out.
    fn after(self, bytes: &[u8]) -> Self {
        match self {
            Self::All => Self::All,
            Self::Bytes(left) => Self::Bytes(left - bytes.len()),
            Self::Head { seen, body } => match end_of_head(bytes, seen) {
                Ok(end) => Self::Bytes(body - (bytes.len() - end)),
                Err(seen) => Self::Head { seen, body },
            },
        }
    }
}

/// Where the empty line ends, or how much of it was seen at the end.
fn end_of_head(bytes: &[u8], mut seen: usize) -> Result<usize, usize> {
    for (at, byte) in bytes.iter().enumerate() {
        seen = match byte {
            byte if *byte == b"\r\n\r\n"[seen] => seen + 1,
            b'\r' => 1,
            _ => 0,
        };
        if seen == 4 {
            return Ok(at + 1);
        }
    }
    Err(seen)
}

/// A client's connection, of which the way out can end.
struct Outlet {
    stream: TcpStream,
    cut: Cut,
}

impl AsyncRead for Outlet {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Outlet {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let passing = *self.cut.0.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = passing.allowed(bytes);
        if allowed == 0 && !bytes.is_empty() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "cut")));
        }
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, &bytes[..allowed]))?;
        *self.cut.0.lock().unwrap_or_else(PoisonError::into_inner) = passing.after(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::client;
    use axum::Router;
    use axum::routing::{any, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A target that counts, behind a front that cuts every second answer.
    async fn front(region: Region) -> (std::net::SocketAddr, Arc<AtomicU64>) {
        let effects = Arc::new(AtomicU64::new(0));
        let counted = effects.clone();
        let pay = move |body: String| async move {
            counted.fetch_add(1, Ordering::SeqCst);
            format!("paid {body}")
        };
        let router =
            Router::new().route("/pay", post(pay)).route("/empty", any(|| async { StatusCode::NO_CONTENT }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let front = Front { http: client().unwrap(), origin, region, every: 2, answered: AtomicU64::new(0) };
        tokio::spawn(Arc::new(front).serve(listener));
        (address, effects)
    }

    async fn heard(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nrent");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn every_second_answer_is_cut_where_it_was_asked_for_and_the_effect_has_happened() {
        for region in [Region::BeforeHead, Region::InHead, Region::InBody] {
            let (address, effects) = front(region).await;
            let whole = heard(address, "/pay").await;
            assert!(
                whole.starts_with("HTTP/1.1 200 OK\r\n") && whole.ends_with("\r\n\r\npaid rent"),
                "{whole}"
            );
            let cut = heard(address, "/pay").await;
            match region {
                Region::BeforeHead => assert_eq!(cut, ""),
                Region::InHead => {
                    assert!(cut.starts_with("HTTP/1.1 200") && !cut.contains("\r\n\r\n"), "{cut}")
                }
                Region::InBody => {
                    assert!(cut.ends_with("\r\n\r\npaid") && cut.contains("content-length: 9"), "{cut}")
                }
            }
            assert_eq!(effects.load(Ordering::SeqCst), 2);
            assert!(heard(address, "/pay").await.ends_with("paid rent"));
        }
    }

    #[tokio::test]
    async fn an_answer_without_a_body_is_cut_in_its_head() {
        let (address, _) = front(Region::InBody).await;
        assert!(heard(address, "/empty").await.ends_with("\r\n\r\n"));
        let cut = heard(address, "/empty").await;
        assert!(cut.starts_with("HTTP/1.1 204") && !cut.contains("\r\n\r\n"), "{cut}");
    }

    #[tokio::test]
    async fn a_target_that_is_away_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let origin = "http://127.0.0.1:1".to_owned();
        let front = Front {
            http: client().unwrap(),
            origin,
            region: Region::InBody,
            every: 1,
            answered: AtomicU64::new(0),
        };
        tokio::spawn(Arc::new(front).serve(listener));
        assert!(heard(address, "/pay").await.starts_with("HTTP/1.1 502"));
    }

    #[test]
    fn the_end_of_a_head_is_found_across_writes() {
        let mut passing = Passing::Head { seen: 0, body: 2 };
        let mut out: Vec<u8> = Vec::new();
        for piece in ["HTTP/1.1 200 OK\r", "\n\r", "\nab", "cd"] {
            let allowed = passing.allowed(piece.as_bytes());
            out.extend(&piece.as_bytes()[..allowed]);
            passing = passing.after(&piece.as_bytes()[..allowed]);
        }
        assert_eq!(out, b"HTTP/1.1 200 OK\r\n\r\nab");
        assert_eq!(passing, Passing::Bytes(0));
    }
}
