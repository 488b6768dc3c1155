//! A client's bytes, watched on their way to hyper.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::super::net::{Stream, one_of};
use super::framing::Framing;
use super::link::Link;

/// What an HTTP/2 client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The most of a body that is taken after its answer was given.
const LINGER_BYTES_MAX: usize = 16 << 20;

/// A client's connection after TLS.
pub(super) enum Client {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

one_of!(Client: Plain, Tls);

impl Client {
    /// From now on the runtime of this thread wakes whoever reads and writes it.
    pub(super) fn move_here(&mut self) -> io::Result<()> {
        match self {
            Client::Plain(stream) => stream.move_here(),
            Client::Tls(stream) => stream.get_mut().0.move_here(),
        }
    }
}

/// Reads just enough to tell HTTP/2 from HTTP/1, and says which, with what was read. `None`: the client
/// went away first.
pub(super) async fn sniff(client: &mut Client) -> io::Result<Option<(bool, Bytes)>> {
    let mut first = Vec::with_capacity(PREFACE.len());
    loop {
        let mut limited = (&mut *client).take((PREFACE.len() - first.len()) as u64);
        if limited.read_buf(&mut first).await? == 0 {
            return Ok((!first.is_empty()).then(|| (false, first.into())));
        }
        if !PREFACE.starts_with(&first) {
            return Ok(Some((false, first.into())));
        }
        if first.len() == PREFACE.len() {
            return Ok(Some((true, first.into())));
        }
    }
}

/// The connection as hyper reads it: what was sniffed first, then the rest, watched.
pub(super) struct Wire {
    client: Client,
    first: Bytes,
    link: Arc<Link>,
    /// `None` for HTTP/2, which has frames of its own.
    framing: Option<Framing>,
    /// The client was told that nothing more comes.
    has_ended: bool,
    /// What was read and thrown away since.
    lingered: usize,
}

impl Wire {
    pub(super) fn new(client: Client, first: Bytes, link: Arc<Link>, framing: Option<Framing>) -> Self {
        Self { client, first, link, framing, has_ended: false, lingered: 0 }
    }

    /// Takes what is still coming of a body that was refused. A connection that is closed with unread bytes is
    /// reset, and a reset takes back an answer that the client has not read yet. How long is up to the link.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(framing) = &mut self.framing else { return Poll::Ready(()) };
        let mut room = [0; 8 << 10];
        while framing.is_in_body() && self.lingered < LINGER_BYTES_MAX && !self.link.is_stopping() {
            let mut buffer = ReadBuf::new(&mut room);
            match ready!(Pin::new(&mut self.client).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => break,
            }
            self.lingered += buffer.filled().len();
            framing.see(buffer.filled());
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        if this.first.is_empty() {
            match Pin::new(&mut this.client).poll_read(cx, buffer) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        } else {
            let step = this.first.len().min(buffer.remaining());
            buffer.put_slice(&this.first[..step]);
            this.first.advance(step);
        }
        if let Some(framing) = &mut this.framing
            && !this.link.is_tunnelled()
        {
            this.link.saw(framing.see(&buffer.filled()[before..]));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.client).poll_write(cx, bytes);
        this.link.wrote(written.is_ready());
        written
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.client).poll_write_vectored(cx, slices);
        this.link.wrote(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.client.is_write_vectored()
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().client).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.has_ended {
            ready!(Pin::new(&mut this.client).poll_shutdown(cx))?;
            this.has_ended = true;
        }
        this.poll_linger(cx).map(Ok)
    }
}
