//! The seams of the gateway, on turmoil.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel::runtime::{Boxed, Tokio};
use semel::{Clock, Runtime, Timestamp};
use turmoil::net::{TcpListener, TcpStream};

use super::super::net::{Accepting, Listener, Network, Stream};

/// The network between the hosts of a simulation.
pub(super) struct Simulated;

impl Network for Simulated {
    fn connect(&self, host: &str, port: u16) -> Boxed<io::Result<Stream>> {
        let host = host.to_owned();
        Box::pin(async move { Ok(Stream::Other(Box::new(TcpStream::connect((host, port)).await?))) })
    }

    fn bind(&self, address: SocketAddr) -> Boxed<io::Result<Box<dyn Listener>>> {
        Box::pin(async move { Ok(Box::new(TcpListener::bind(address).await?) as Box<dyn Listener>) })
    }
}

impl Listener for TcpListener {
    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn accept(&mut self) -> Accepting<'_> {
        Box::pin(async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            Ok((Stream::Other(Box::new(stream)), peer))
        })
    }
}

/// The store's clock. It stands where the simulation was last when nobody runs.
#[derive(Default)]
pub(super) struct StoreClock(AtomicI64);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        const BEGIN_MICROS: i64 = 1_767_225_600_000_000;
        if let Some(elapsed) = turmoil::sim_elapsed() {
            self.0.fetch_max(semel::clock::micros(elapsed), Ordering::SeqCst);
        }
        Timestamp::from_micros(BEGIN_MICROS + self.0.load(Ordering::SeqCst))
    }
}

/// Tokio, with what would come out different in every run made the same.
///
/// Tasks are local ones: a crash drops those in their order, and all others in an order that depends on
/// how many tasks this process has ever had.
///
/// The pauses between tries at the store have jitter, seeded by nonces that nobody can repeat. Each lies
/// between half and all of a ceiling; here every short pause lasts until the end of its ceiling. A timer
/// may always be late, so nothing happens that could not happen elsewhere.
pub(super) struct Punctual(Tokio);

impl Punctual {
    pub(super) fn new() -> Self {
        Self(Tokio::new())
    }
}

/// The ceilings of the pauses between tries, in milliseconds. Those of 1280 and 2000 overlap.
const CEILINGS: [u64; 8] = [10, 20, 40, 80, 160, 320, 640, 2000];

impl Runtime for Punctual {
    fn spawn(&self, work: Boxed<()>) {
        tokio::task::spawn_local(work);
    }

    fn sleep(&self, wait: Duration) -> Boxed<()> {
        let ceiling = CEILINGS.into_iter().map(Duration::from_millis).find(|ceiling| wait <= *ceiling);
        self.0.sleep(ceiling.unwrap_or(wait))
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
