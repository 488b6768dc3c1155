//! The layer over the memory store, beside bare axum and beside the crate `idempotent`.
//!
//! All are measured twice: with the C library's allocator, which a program has unless it chooses another, and with
//! mimalloc. The targets are for the first: whoever adds a layer brings the program.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::servers::Server;
use super::wrk::{Traffic, Wrk};
use super::{json_of_1_kb, peers};
use crate::Effort;
use crate::board::Board;

const BARE: &str = "bare axum";
/// Keys whose replays are asked for.
const KEYS: u32 = 1000;
/// What fills caches and stores, and is not counted.
const WARM_UP: Duration = Duration::from_secs(1);

/// Who stands around the handler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layered {
    Semel,
    Idempotent,
    IdempotentRedis,
}

use Layered::{Idempotent, IdempotentRedis, Semel};

impl Layered {
    fn new_keys(self) -> &'static str {
        match self {
            Semel => "Semel, new keys",
            Idempotent => "idempotent, new keys",
            IdempotentRedis => "idempotent on Redis, new keys",
        }
    }

    fn replays(self) -> &'static str {
        match self {
            Semel => "Semel, replays",
            Idempotent => "idempotent, replays",
            IdempotentRedis => "idempotent on Redis, replays",
        }
    }
}

/// The contestants with one allocator.
struct Programs {
    /// `None` for parts of this program, which has mimalloc.
    ours: Option<PathBuf>,
    peer: PathBuf,
}

impl Programs {
    async fn with_the_c_librarys() -> Result<Self> {
        Ok(Self {
            ours: Some(super::build_layered().await?),
            peer: peers::idempotent("peer-idempotent").await?,
        })
    }

    async fn with_mimalloc() -> Result<Self> {
        Ok(Self { ours: None, peer: peers::idempotent("with_mimalloc").await? })
    }

    async fn ours(&self, what: &str) -> Result<Server> {
        match &self.ours {
            Some(program) => Server::layered(program, what).await,
            None => Server::part(&[what]).await,
        }
    }

    async fn start(&self, layered: Layered, redis: &Server) -> Result<Server> {
        match layered {
            Semel => self.ours("semel").await,
            Idempotent => Server::idempotent(&self.peer, None).await,
            IdempotentRedis => Server::idempotent(&self.peer, Some(redis)).await,
        }
    }

    /// Everybody's turn.
    async fn round(&self, wrk: &Wrk, effort: Effort, board: &mut Board) -> Result<()> {
        // Anew each time: nobody may be measured by what earlier rounds left in memory or store.
        let bare = self.ours("bare").await?;
        wrk.window(&bare, Traffic::NewKeys, WARM_UP).await?;
        board.add(BARE, wrk.window(&bare, Traffic::NewKeys, effort.window).await?);
        for layered in [Semel, Idempotent, IdempotentRedis] {
            let redis = Server::redis().await?;
            let server = self.start(layered, &redis).await?;
            wrk.window(&server, Traffic::NewKeys, WARM_UP).await?;
            board.add(layered.new_keys(), wrk.window(&server, Traffic::NewKeys, effort.window).await?);
            wrk.window(&server, Traffic::Replays(KEYS), WARM_UP).await?;
            board.add(layered.replays(), wrk.window(&server, Traffic::Replays(KEYS), effort.window).await?);
        }
        Ok(())
    }
}

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let wrk = Wrk::ready().await?;
    let programs = [Programs::with_the_c_librarys().await?, Programs::with_mimalloc().await?];
    let title = "Layer over the memory store, POST of 1 KB";
    let mut boards = ["", ", everybody with mimalloc"]
        .map(|with| Board::new(format!("{title}{with}"), "req/s").against(BARE));
    for _ in 0..effort.rounds {
        for (programs, board) in programs.iter().zip(&mut boards) {
            programs.round(&wrk, effort, board).await?;
        }
    }
    let [usual, mimalloc] = &mut boards;
    check(usual);
    usual.note(format!(
        "Bodies have {} bytes. Everybody has the C library's allocator, as a program has that chooses none. The Redis is \
         private, on loopback, and writes nothing to disk.",
        json_of_1_kb().len()
    ));
    mimalloc.note("The same rounds with another allocator; without targets, because the program chooses it.");
    Ok(boards.map(Board::print).into())
}

fn check(board: &mut Board) {
    for (name, share) in [(Layered::new_keys as fn(Layered) -> &'static str, 75.0), (Layered::replays, 82.0)]
    {
        let ours = name(Semel);
        let reached = 100.0 * board.median(ours) / board.median(BARE);
        board.at_least(format!("Layer: {ours}: share of bare axum"), reached, share, " %");
        for theirs in [Idempotent, IdempotentRedis].map(name) {
            let ahead = board.median(ours) / board.median(theirs);
            board.at_least(format!("Layer: {ours} against {theirs}"), ahead, 1.0, "×");
        }
    }
}
