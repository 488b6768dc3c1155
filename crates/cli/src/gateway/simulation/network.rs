//! The seams of the gateway, on turmoil.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
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

/// The store's clock. It stands where the simulation was last when nobody runs, and it may be wrong.
#[derive(Default)]
pub(super) struct StoreClock(Mutex<Hands>);

#[derive(Default)]
struct Hands {
    /// The simulation's time when they were moved last.
    elapsed: Duration,
    micros: i64,
    /// How many times too fast it runs, less one.
    haste: i64,
}

impl StoreClock {
    fn hands(&self) -> MutexGuard<'_, Hands> {
        let mut hands = self.0.lock().expect("no panic");
        if let Some(elapsed) = turmoil::sim_elapsed() {
            let passed = semel::clock::micros(elapsed.saturating_sub(hands.elapsed));
            hands.micros += passed * (1 + hands.haste);
            hands.elapsed = hands.elapsed.max(elapsed);
        }
        hands
    }

    pub(super) fn jump_ahead(&self, by: Duration) {
        self.hands().micros += semel::clock::micros(by);
    }

    pub(super) fn jump_back(&self, by: Duration) {
        self.hands().micros -= semel::clock::micros(by);
    }

    pub(super) fn run(&self, haste: i64) {
        self.hands().haste = haste;
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        const BEGIN_MICROS: i64 = 1_767_225_600_000_000;
        Timestamp::from_micros(BEGIN_MICROS + self.hands().micros)
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
