//! The seam to the network: who listens, who connects, and how bytes travel.
//!
//! A simulation puts its own [`Network`] here and nothing else in the gateway changes. The seam gives
//! streams of bytes; it knows neither TLS nor HTTP.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use semel::Runtime;
use semel::runtime::Boxed;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;

/// What the gateway needs of a network.
pub(crate) trait Network: Send + Sync + 'static {
    /// Connects to a host by name or address. The caller bounds the time.
    fn connect(&self, host: &str, port: u16) -> Boxed<io::Result<Stream>>;

    /// Listens at an address; port 0 takes a free one.
    fn bind(&self, address: SocketAddr) -> Boxed<io::Result<Box<dyn Listener>>>;
}

/// A place where clients arrive.
pub(crate) trait Listener: Send + 'static {
    /// Where clients find it.
    fn address(&self) -> io::Result<SocketAddr>;

    /// The next client. A dropped future loses nobody.
    fn accept(&mut self) -> Accepting<'_>;
}

/// A client on its way in.
pub(crate) type Accepting<'a> = Pin<Box<dyn Future<Output = io::Result<(Stream, SocketAddr)>> + Send + 'a>>;

/// A byte stream of a network that is not this machine's.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection. TCP stays unboxed: it is what production runs on.
pub(crate) enum Stream {
    Tcp(TcpStream),
    /// Of a simulation.
    Other(Box<dyn Io>),
}

/// Reads and writes of a connection that is one of several kinds.
macro_rules! one_of {
    ($connection:ident: $($kind:ident),+) => {
        impl tokio::io::AsyncRead for $connection {
            #[inline]
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() { $($connection::$kind(io) => std::pin::Pin::new(io).poll_read(cx, buffer),)+ }
            }
        }

        impl tokio::io::AsyncWrite for $connection {
            #[inline]
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() { $($connection::$kind(io) => std::pin::Pin::new(io).poll_write(cx, bytes),)+ }
            }

            #[inline]
            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() {
                    $($connection::$kind(io) => std::pin::Pin::new(io).poll_write_vectored(cx, slices),)+
                }
            }

            #[inline]
            fn is_write_vectored(&self) -> bool {
                match self { $($connection::$kind(io) => io.is_write_vectored(),)+ }
            }

            #[inline]
            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() { $($connection::$kind(io) => std::pin::Pin::new(io).poll_flush(cx),)+ }
            }

            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() { $($connection::$kind(io) => std::pin::Pin::new(io).poll_shutdown(cx),)+ }
            }
        }
    };
}
pub(crate) use one_of;

one_of!(Stream: Tcp, Other);

impl Stream {
    /// From now on the runtime of this thread wakes whoever reads and writes it.
    ///
    /// # Errors
    ///
    /// If this machine refuses; the connection is closed then.
    pub(crate) fn move_here(&mut self) -> io::Result<()> {
        let nobody = Stream::Other(Box::new(tokio::io::empty()));
        *self = match std::mem::replace(self, nobody) {
            Stream::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream.into_std()?)?),
            other => other,
        };
        Ok(())
    }
}

/// The network of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RealNetwork;

impl Network for RealNetwork {
    fn connect(&self, host: &str, port: u16) -> Boxed<io::Result<Stream>> {
        let host = host.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        })
    }

    fn bind(&self, address: SocketAddr) -> Boxed<io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A restart must not wait for connections of the process before.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            Ok(Box::new(socket.listen(BACKLOG)?) as Box<dyn Listener>)
        })
    }
}

impl Listener for TcpListener {
    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn accept(&mut self) -> Accepting<'_> {
        Box::pin(async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
            Ok((Stream::Tcp(stream), peer))
        })
    }
}

/// Awaits `work` for no longer than `wait`. Work that passes it is dropped.
pub(crate) async fn within<T>(
    runtime: &dyn Runtime,
    wait: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let work = std::pin::pin!(work);
    match futures_util::future::select(work, runtime.sleep(wait)).await {
        futures_util::future::Either::Left((done, _)) => Some(done),
        futures_util::future::Either::Right(((), _)) => None,
    }
}

/// Hyper's tasks, on our runtime.
#[derive(Clone)]
pub(crate) struct Spawner(pub(crate) Arc<dyn Runtime>);

impl<Work> hyper::rt::Executor<Work> for Spawner
where
    Work: Future + Send + 'static,
{
    fn execute(&self, work: Work) {
        self.0.spawn(Box::pin(async move {
            work.await;
        }));
    }
}

/// Hyper's timers, on our runtime.
#[derive(Clone)]
pub(crate) struct Timer {
    runtime: Arc<dyn Runtime>,
    /// Hyper counts in `Instant`s; only differences to this one are used.
    origin: Instant,
}

impl Timer {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, origin: Instant::now() }
    }
}

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Nap(Mutex::new(self.runtime.sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }

    fn now(&self) -> Instant {
        self.origin + self.runtime.elapsed()
    }
}

/// The mutex is never locked: it makes the future `Sync`, as hyper asks.
struct Nap(Mutex<Boxed<()>>);

impl Future for Nap {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx)
    }
}

impl hyper::rt::Sleep for Nap {}
