//! What is known of a connection while a request is on it: did a byte of it go out?
//!
//! Whether a failed request may have had an effect is not read off an error's text. The connection's
//! own writes are watched, and to say "nothing happened" is to *seal* the line first: no byte was
//! written, and none will be, even if the connection's owner tries a moment later.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::alarm::{Alarm, Alarmed};
use super::super::net::Stream;

/// No byte of this request was written.
const CLEAN: u8 = 0;
/// A write is under way.
const WRITING: u8 = 1;
/// At least one byte was written.
const SENT: u8 = 2;
/// Nothing was written and nothing will be.
const SEALED: u8 = 3;

/// Where a request's body stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum BodyState {
    /// There is one, and nobody has asked for it yet.
    Untouched = 0,
    Sending = 1,
    /// The client has not sent the next part.
    WaitingForClient = 2,
    /// Sent, given up, or never there.
    Done = 3,
    /// The client's side broke.
    Failed = 4,
}

/// What sealing a line found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sealing {
    NothingSent,
    MaybeSent,
}

#[derive(Default)]
pub(super) struct Line {
    gate: AtomicU8,
    body: AtomicU8,
    /// Grows with everything that moves towards the upstream.
    progress: AtomicU64,
    alarm: Alarm,
}

impl Alarmed for Line {
    fn alarm(&self) -> &Alarm {
        &self.alarm
    }
}

impl Line {
    /// A new request begins on it. A sealed line stays sealed.
    pub(super) fn begin(&self, body: BodyState) {
        let _ = self.gate.compare_exchange(SENT, CLEAN, Ordering::AcqRel, Ordering::Acquire);
        self.set_body(body);
    }

    /// Says whether anything of the request went out. If nothing did, nothing can from now on.
    pub(super) fn seal(&self) -> Sealing {
        if semel::mutant::on("sent-bytes-forgotten") {
            return Sealing::NothingSent;
        }
        match self.gate.compare_exchange(CLEAN, SEALED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(SEALED) => Sealing::NothingSent,
            Err(_) => Sealing::MaybeSent,
        }
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    pub(super) fn advance(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_body(&self, state: BodyState) {
        self.body.store(state as u8, Ordering::Release);
    }

    pub(super) fn body(&self) -> BodyState {
        match self.body.load(Ordering::Acquire) {
            0 => BodyState::Untouched,
            1 => BodyState::Sending,
            2 => BodyState::WaitingForClient,
            3 => BodyState::Done,
            _ => BodyState::Failed,
        }
    }

    /// Runs one write, unless the line is sealed.
    #[inline]
    fn write(&self, write: impl FnOnce() -> Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let begun = self.gate.compare_exchange(CLEAN, WRITING, Ordering::AcqRel, Ordering::Acquire);
        if begun == Err(SEALED) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let done = write();
        if let Poll::Ready(Ok(1..)) = done {
            self.gate.store(SENT, Ordering::Release);
            self.advance();
        } else {
            // A failed write put nothing on the wire; one before it in this request may have.
            let _ = self.gate.compare_exchange(WRITING, CLEAN, Ordering::AcqRel, Ordering::Acquire);
        }
        done
    }
}

/// A connection whose writes its line knows. It sits below TLS: what counts is what left the machine.
pub(super) struct Gated {
    stream: Stream,
    line: Arc<Line>,
}

impl Gated {
    pub(super) fn new(stream: Stream, line: Arc<Line>) -> Self {
        Self { stream, line }
    }
}

impl AsyncRead for Gated {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gated {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, line } = self.get_mut();
        line.write(|| Pin::new(stream).poll_write(cx, bytes))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, line } = self.get_mut();
        line.write(|| Pin::new(stream).poll_write_vectored(cx, slices))
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrote(count: usize) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(count))
    }

    #[test]
    fn a_sealed_line_writes_nothing_ever_again() {
        // G-16
        let line = Line::default();
        assert!(line.write(|| Poll::Pending).is_pending());
        assert_eq!(line.seal(), Sealing::NothingSent, "a write that did not happen is no byte");
        let refused = line.write(|| panic!("a sealed line reached the network"));
        assert!(matches!(refused, Poll::Ready(Err(_))));
        line.begin(BodyState::Done);
        assert_eq!(line.seal(), Sealing::NothingSent, "a new request does not break the seal");
        assert!(matches!(line.write(|| wrote(1)), Poll::Ready(Err(_))));
    }

    #[test]
    fn a_written_byte_cannot_be_sealed_away_until_the_next_request() {
        // G-16
        let line = Line::default();
        assert!(line.write(|| wrote(1)).is_ready());
        assert_eq!(line.seal(), Sealing::MaybeSent);
        assert!(line.write(|| Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))).is_ready());
        assert_eq!(line.seal(), Sealing::MaybeSent, "a failure after the first byte does not unsend it");
        line.begin(BodyState::Done);
        assert_eq!(line.seal(), Sealing::NothingSent, "the next request has sent nothing yet");
    }

    #[test]
    fn a_write_under_way_counts_as_sent() {
        // G-16
        let line = Line::default();
        let _ = line.write(|| {
            assert_eq!(line.seal(), Sealing::MaybeSent);
            Poll::Pending
        });
        assert_eq!(line.seal(), Sealing::NothingSent);
    }
}
