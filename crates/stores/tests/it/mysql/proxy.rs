//! A way to the server that can be cut at the worst moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// The COMMIT of [`Cut::CommitAnswer`] has been carried over.
const ANSWER_AWAITED: u8 = 100;
/// A packet of the client that commits: its kind, and the text.
const COMMIT: &[u8] = b"\x03COMMIT";

/// What happens to the next packets a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Cut {
    Nothing = 0,
    /// The next packet never arrives; the connection breaks.
    Call = 1,
    /// The next COMMIT never arrives; the connection breaks.
    Commit = 2,
    /// The next COMMIT arrives, is answered, and the answer is lost with the connection.
    CommitAnswer = 3,
    /// The next COMMIT arrives nowhere, and nobody says so.
    Silence = 4,
}

pub(super) struct Proxy {
    url: String,
    next: Arc<AtomicU8>,
    turns: Arc<AtomicU64>,
    happened: Arc<Notify>,
    listening: JoinHandle<()>,
    open: watch::Sender<bool>,
}

impl Proxy {
    pub(super) async fn to(url: &str) -> Self {
        let (user, rest) = url.rsplit_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (next, happened) = (Arc::<AtomicU8>::default(), Arc::<Notify>::default());
        let (open, closed) = watch::channel(true);
        let turns = Arc::<AtomicU64>::default();
        let (server, cut, notify, count) = (server.to_owned(), next.clone(), happened.clone(), turns.clone());
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, cut, notify, count, mut closed) =
                    (server.clone(), cut.clone(), notify.clone(), count.clone(), closed.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    // Nothing that is passed on may wait for an acknowledgement.
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    tokio::select! {
                        _ = carry(client, server, &cut, &notify, &count) => {}
                        _ = closed.wait_for(|open| !*open) => {}
                    }
                });
            }
        });
        // In the clear, so that what is carried is what was said.
        let url = format!("{user}@127.0.0.1:{port}/{database}?sslmode=disable");
        Self { url, next, turns, happened, listening, open }
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    /// How many messages clients have sent that await an answer. One that is longer than a packet may be counts once.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    pub(super) fn cut_next(&self, cut: Cut) {
        self.next.store(cut as u8, Ordering::SeqCst);
    }

    /// Waits until the cut was made.
    pub(super) async fn happened(&self) {
        self.happened.notified().await;
    }

    /// Breaks all connections, and accepts no more.
    pub(super) async fn close(&self) {
        self.listening.abort();
        let _ = self.open.send(false);
        while !self.listening.is_finished() {
            tokio::task::yield_now().await;
        }
    }
}

/// One packet with its head: three bytes of length, one of sequence.
async fn packet(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut packet = vec![0; 4];
    from.read_exact(&mut packet).await.ok()?;
    let length = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(4 + length, 0);
    from.read_exact(&mut packet[4..]).await.ok()?;
    Some(packet)
}

async fn carry(
    client: TcpStream,
    server: TcpStream,
    cut: &AtomicU8,
    happened: &Notify,
    turns: &AtomicU64,
) -> Option<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let is = |cutting: Cut| cut.load(Ordering::SeqCst) == cutting as u8;
    let cut_now = || {
        cut.store(Cut::Nothing as u8, Ordering::SeqCst);
        happened.notify_one();
    };
    let awaiting = watch::channel(false).0;
    let answers = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_server.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
            if *awaiting.borrow() {
                // The transaction is over at the server. Nobody hears it.
                cut_now();
                return Some(());
            }
            to_client.write_all(&bytes[..read]).await.ok()?;
        }
    };
    let calls = async {
        loop {
            let packet = packet(&mut from_client).await?;
            // The first packet of a message has the number 0.
            turns.fetch_add(u64::from(packet[3] == 0), Ordering::SeqCst);
            let commits = &packet[4..] == COMMIT;
            if is(Cut::Call) || commits && is(Cut::Commit) {
                cut_now();
                return Some(());
            }
            if commits && is(Cut::Silence) {
                cut_now();
                // Read on, so that the client notices nothing.
                let mut bytes = vec![0; 1 << 16];
                while from_client.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
                return Some(());
            }
            if commits && is(Cut::CommitAnswer) {
                cut.store(ANSWER_AWAITED, Ordering::SeqCst);
                awaiting.send_replace(true);
            }
            to_server.write_all(&packet).await.ok()?;
        }
    };
    tokio::select! {
        done = answers => done,
        done = calls => done,
    }
}
