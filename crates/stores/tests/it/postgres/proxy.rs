//! A way to the server that can be cut at the worst moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// The calls of [`Cut::Answers`] have been carried over.
const ANSWERS_AWAITED: u8 = 100;
/// The message of [`Cut::Answer`] has been carried over.
const ANSWER_AWAITED: u8 = 101;
/// How a server ends its answer when no transaction is open any more.
const IDLE: &[u8] = b"Z\0\0\0\x05I";

/// What happens to the next bytes a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Cut {
    Nothing = 0,
    /// They never arrive; the connection breaks.
    Calls = 1,
    /// They arrive, are answered, and the answer is lost with the connection.
    Answers = 2,
    /// They arrive nowhere, and nobody says so.
    Silence = 3,
    /// As with `Answers`, and the server's first turn is the last, whether or not a transaction is open after it.
    Answer = 4,
}

pub(super) struct Proxy {
    url: String,
    next: Arc<AtomicU8>,
    happened: Arc<Notify>,
    turns: Arc<AtomicU64>,
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
        let (server, cut, notify) = (server.to_owned(), next.clone(), happened.clone());
        let counted = turns.clone();
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, cut, notify, mut closed) =
                    (server.clone(), cut.clone(), notify.clone(), closed.clone());
                let counted = counted.clone();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    // Nothing that is passed on may wait for an acknowledgement.
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    tokio::select! {
                        _ = carry(client, server, &cut, &notify, &counted) => {}
                        _ = closed.wait_for(|open| !*open) => {}
                    }
                });
            }
        });
        // In the clear, so that what is carried is what was said.
        let url = format!("{user}@127.0.0.1:{port}/{database}?sslmode=disable");
        Self { url, next, happened, turns, listening, open }
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    pub(super) fn cut_next(&self, cut: Cut) {
        self.next.store(cut as u8, Ordering::SeqCst);
    }

    /// How often the server has said that it waits for the client.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
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

/// Finds the ends of the server's turns in what it says, however it was cut into reads.
#[derive(Default)]
struct Turns {
    head: Vec<u8>,
    skip: usize,
}

impl Turns {
    /// How many turns end in these bytes. Each message is a letter, four bytes of length that count
    /// themselves, and so many bytes.
    fn end_in(&mut self, mut bytes: &[u8]) -> u64 {
        let mut ended = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if let Some((byte, rest)) = bytes.split_first().filter(|_| self.skip == 0) {
                self.head.push(*byte);
                bytes = rest;
            }
            if let [letter, length @ ..] = &self.head[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                ended += u64::from(*letter == b'Z');
                self.skip = u32::from_be_bytes(length) as usize - 4;
                self.head.clear();
            }
        }
        ended
    }
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
    let answers = async {
        let mut bytes = vec![0; 1 << 16];
        let mut heard = Turns::default();
        loop {
            let read = from_server.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
            let ended = heard.end_in(&bytes[..read]);
            turns.fetch_add(ended, Ordering::SeqCst);
            let is_last = match cut.load(Ordering::SeqCst) {
                ANSWERS_AWAITED => bytes[..read].ends_with(IDLE),
                ANSWER_AWAITED => ended > 0,
                _ => {
                    to_client.write_all(&bytes[..read]).await.ok()?;
                    continue;
                }
            };
            if is_last {
                // The transaction is over at the server. Nobody hears it.
                cut.store(Cut::Nothing as u8, Ordering::SeqCst);
                happened.notify_one();
                return Some(());
            }
        }
    };
    let calls = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_client.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
            match cut.load(Ordering::SeqCst) {
                now if now == Cut::Calls as u8 => {
                    cut.store(Cut::Nothing as u8, Ordering::SeqCst);
                    happened.notify_one();
                    return Some(());
                }
                now if now == Cut::Silence as u8 => {
                    cut.store(Cut::Nothing as u8, Ordering::SeqCst);
                    happened.notify_one();
                    // Read on, so that the client notices nothing.
                    while from_client.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
                    return Some(());
                }
                now if now == Cut::Answers as u8 => cut.store(ANSWERS_AWAITED, Ordering::SeqCst),
                now if now == Cut::Answer as u8 => cut.store(ANSWER_AWAITED, Ordering::SeqCst),
                _ => {}
            }
            to_server.write_all(&bytes[..read]).await.ok()?;
        }
    };
    tokio::select! {
        done = answers => done,
        done = calls => done,
    }
}
