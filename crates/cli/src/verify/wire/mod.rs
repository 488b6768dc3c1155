//! The client of `semel verify`: it says exactly what it is told to, and breaks off where it is told to.
//!
//! A polite client repairs requests, reuses connections and retries on its own. This one does none of that:
//! a header goes out byte for byte, one call is one request on the network, and a race begins when every
//! racer is connected and has only its last byte left to send.

mod held;
mod http1;
mod http2;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::scenario::{Call, How, Region, Reply};
use super::template::Request;

/// How long a connection may take to be made, TLS included.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// What every reason begins with that is our own doing.
pub(super) const BY_US: &str = "cut by us";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
type Link = Box<dyn Stream>;

/// Sends calls. Times are since it was made.
pub(super) struct Wire {
    tls: Option<Arc<rustls::ClientConfig>>,
    answer_max: Duration,
    begun: Instant,
}

/// What became of one call of a step, by its place in it.
pub(super) struct Ended {
    pub(super) at: usize,
    pub(super) sent: Duration,
    pub(super) ended: Duration,
    pub(super) reply: Result<Reply, String>,
}

/// A connection with the calls that go on it.
pub(super) struct Line {
    calls: Vec<(usize, Call)>,
    link: Result<Link, String>,
    /// The last byte, if all others are on their way.
    held: Option<u8>,
    begun: Instant,
    answer_max: Duration,
}

/// Where a URL leads.
struct Place {
    host: String,
    port: u16,
    authority: String,
    target: String,
    secure: bool,
}

impl Place {
    fn of(url: &str) -> Result<Self, String> {
        let wrong = || format!("{url} is no address: it needs http or https, and a host");
        let uri: http::Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        let (secure, port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(wrong()),
        };
        let shown = authority.as_str();
        Ok(Self {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(port),
            authority: shown.rsplit_once('@').map_or(shown, |(_, host)| host).to_owned(),
            target: uri.path_and_query().map_or("/", |target| target.as_str()).to_owned(),
            secure,
        })
    }
}

impl Wire {
    /// For targets with `https`, roots of the system are believed.
    pub(super) fn new(answer_max: Duration) -> Self {
        let tls = crate::gateway::client_config(None).ok().map(Arc::new);
        Self { tls, answer_max, begun: Instant::now() }
    }

    /// From now on times are counted.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Connects for every call of a step. Those that share a connection share a line.
    pub(super) async fn open(&self, calls: &[Call]) -> Vec<Line> {
        let mut groups: Vec<Vec<(usize, Call)>> = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            let shared = matches!(call.how, How::Pipelined(_) | How::Http2(_));
            match groups.iter_mut().find(|group| shared && group[0].1.how == call.how) {
                Some(group) => group.push((at, call.clone())),
                None => groups.push(vec![(at, call.clone())]),
            }
        }
        let race = groups.len() > 1;
        join_all(groups.into_iter().map(|group| self.line(group, race))).await
    }

    async fn line(&self, calls: Vec<(usize, Call)>, race: bool) -> Line {
        let first = &calls[0].1;
        let alpn: &[u8] = if matches!(first.how, How::Http2(_)) { b"h2" } else { b"http/1.1" };
        let link = match Place::of(&first.request.url) {
            Ok(place) => self.connect(&place, alpn).await,
            Err(wrong) => Err(wrong),
        };
        let mut line = Line { link, held: None, begun: self.begun, answer_max: self.answer_max, calls };
        if race && line.calls[0].1.how == How::Plain {
            line.hold().await;
        }
        line
    }

    async fn connect(&self, place: &Place, alpn: &[u8]) -> Result<Link, String> {
        let connecting = async {
            let plain = TcpStream::connect((place.host.as_str(), place.port)).await?;
            plain.set_nodelay(true)?;
            if !place.secure {
                return Ok(Box::new(plain) as Link);
            }
            let no = |why: &str| io::Error::other(why.to_owned());
            let mut tls = self.tls.as_deref().ok_or_else(|| no("TLS cannot be set up here"))?.clone();
            tls.alpn_protocols = vec![alpn.to_vec()];
            let name =
                ServerName::try_from(place.host.clone()).map_err(|_| no("TLS cannot check this name"))?;
            let secured = TlsConnector::from(Arc::new(tls)).connect(name, plain).await?;
            if alpn == b"h2" && secured.get_ref().1.alpn_protocol() != Some(alpn) {
                return Err(no("it does not offer HTTP/2"));
            }
            Ok(Box::new(secured) as Link)
        };
        match tokio::time::timeout(CONNECT_MAX, connecting).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(format!("no connection: {error}")),
            Err(_) => Err(format!("no connection within {CONNECT_MAX:?}")),
        }
    }
}

impl Line {
    /// Sends all but the last byte, so that letting go is one small write.
    async fn hold(&mut self) {
        let Ok(link) = &mut self.link else { return };
        let bytes = match http1::written(&self.calls[0].1.request) {
            Ok(bytes) => bytes,
            Err(wrong) => return self.link = Err(wrong),
        };
        let Some((last, most)) = bytes.split_last() else { return };
        match tokio::time::timeout(self.answer_max, http1::send(link, most)).await {
            Ok(Ok(())) => self.held = Some(*last),
            Ok(Err(error)) => self.link = Err(error),
            Err(_) => self.link = Err(format!("the request was not taken within {:?}", self.answer_max)),
        }
    }

    /// Lets go, and waits for what comes.
    pub(super) async fn go(self) -> Vec<Ended> {
        match self.calls[0].1.how {
            How::Pipelined(_) => self.go_pipelined().await,
            How::Http2(_) => self.go_http2().await,
            _ => vec![self.go_alone().await],
        }
    }

    async fn go_alone(self) -> Ended {
        let Self { calls, link, held, begun, answer_max } = self;
        let (at, Call { request, how, .. }) = &calls[0];
        let sent = begun.elapsed();
        let talk = async {
            let mut link = link?;
            let sent = match (held, *how) {
                (Some(last), _) => http1::send(&mut link, &[last]).await,
                (None, How::Slow { pieces, pause }) => {
                    http1::send_slowly(&mut link, request, pieces, pause).await
                }
                (None, _) => http1::send(&mut link, &http1::written(request)?).await,
            };
            if let Err(why) = sent {
                // Whoever refuses a body need not read it to its end, and may have said so.
                return http1::read(&mut link, request).await.map_err(|_| why);
            }
            match *how {
                How::Cut(region) => Err(http1::read_until(&mut link, request, region).await?),
                How::Abort(after) => {
                    tokio::time::sleep(after).await;
                    Err(format!("{BY_US} {after:?} after the request went out"))
                }
                _ => http1::read(&mut link, request).await,
            }
        };
        let reply = tokio::time::timeout(answer_max, talk).await;
        let reply = reply.unwrap_or_else(|_| Err(too_long(answer_max)));
        Ended { at: *at, sent, ended: begun.elapsed(), reply }
    }

    /// What came before a failure counts; the rest is told how far it got.
    async fn go_pipelined(self) -> Vec<Ended> {
        let Self { calls, link, begun, answer_max, .. } = self;
        let sent = begun.elapsed();
        let requests: Vec<&Request> = calls.iter().map(|(_, call)| &call.request).collect();
        let mut replies = Vec::with_capacity(calls.len());
        let talk = async {
            http1::pipelined(link?, &requests, |reply| replies.push((begun.elapsed(), reply))).await
        };
        let done = tokio::time::timeout(answer_max, talk).await;
        let why = done.unwrap_or_else(|_| Err(too_long(answer_max))).err().unwrap_or_default();
        let missing = format!("{why} (after {} of {} pipelined answers)", replies.len(), calls.len());
        let mut replies = replies.into_iter();
        let end = |at: usize| match replies.next() {
            Some((ended, reply)) => Ended { at, sent, ended, reply: Ok(reply) },
            None => Ended { at, sent, ended: begun.elapsed(), reply: Err(missing.clone()) },
        };
        calls.iter().map(|(at, _)| *at).map(end).collect()
    }

    async fn go_http2(self) -> Vec<Ended> {
        let Self { calls, link, begun, answer_max, .. } = self;
        let sent = begun.elapsed();
        let requests: Vec<&Request> = calls.iter().map(|(_, call)| &call.request).collect();
        let talk = async { http2::exchange(link?, &requests, begun).await };
        let done = tokio::time::timeout(answer_max, talk).await;
        let replies = match done.unwrap_or_else(|_| Err(too_long(answer_max))) {
            Ok(replies) => replies,
            Err(why) => vec![(begun.elapsed(), Err(why)); calls.len()],
        };
        let ended = calls.iter().zip(replies);
        ended.map(|((at, _), (ended, reply))| Ended { at: *at, sent, ended, reply }).collect()
    }
}

fn too_long(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

fn where_cut(region: Region) -> &'static str {
    match region {
        Region::BeforeHead => "before the head",
        Region::InHead => "in the head",
        Region::InBody => "in the body",
    }
}
