//! Measures Semel beside what it is compared with.
//!
//! Contestants take turns (A B C A B C …), so that a machine that is busy for a while is busy for
//! all of them; what counts is each one's median and the ratios between them. Absolute numbers
//! belong to the machine they were taken on.

mod board;
mod callgrind;
mod chart;
mod copies;
mod growth;
mod http;
mod load;
mod machine;
mod messages;
mod overhead;
mod postgres;
mod raw_log;
mod report;
mod servers;
mod slow_disk;
mod sqlite;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use board::Board;
use machine::Machine;
use tokio::signal::unix::{SignalKind, signal};

/// The product's own allocator, for every contestant that is a part of this program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long an interrupted run may take to put things away.
const STOP_MAX: Duration = Duration::from_secs(15);
/// How often everybody takes a turn, unless somebody wants less.
const ROUNDS: u8 = 5;

#[derive(Parser)]
#[command(about = "Measures Semel beside what it is compared with.")]
struct Args {
    /// What to measure.
    #[arg(value_enum, default_value = "all")]
    mode: Mode,
    /// Small counts and short windows: shows that the runner works, proves nothing about speed.
    #[arg(long)]
    quick: bool,
    /// Of `messages` or `gateway` only these, separated by commas. Of `messages`: parts, databases, brokers, where a kind
    /// that is not named is measured whole.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How often everybody takes a turn.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Where the HTML report goes; by default report/<mode>.html beside this program's sources.
    #[arg(long)]
    report: Option<PathBuf>,
    /// How this program calls itself: one part of a measurement, in a process of its own.
    #[arg(long, hide = true, num_args = 1.., allow_hyphen_values = true)]
    part: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Core,
    Sqlite,
    Postgres,
    Layer,
    Gateway,
    Crowd,
    MemoryGrowth,
    Messages,
    All,
}

/// How much to measure.
#[derive(Clone, Copy)]
struct Effort {
    quick: bool,
    rounds: usize,
    /// Before each window, not counted.
    warm_up: Duration,
    /// What is counted.
    window: Duration,
}

impl Effort {
    fn new(quick: bool) -> Self {
        let [warm_up, window] = if quick { [50, 150] } else { [500, 2500] }.map(Duration::from_millis);
        Self { quick, rounds: ROUNDS.into(), warm_up, window }
    }

    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(part) = &args.part {
        return run_part(part);
    }
    let runtime = runtime();
    // A panic or a signal must not leave servers behind: both unwind through their guards.
    let done = runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            done = measure(&args) => done,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
            _ = terminated.recv() => anyhow::bail!("terminated"),
        }
    });
    runtime.shutdown_timeout(STOP_MAX);
    done
}

/// The runtime every contestant's callers run on.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("the system has threads to give")
}

fn run_part(part: &[String]) -> Result<()> {
    match part.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["loop", what, count] => overhead::fixed(what, count.parse()?),
        ["slow-disk", quick, database] => {
            runtime().block_on(slow_disk::part(Effort::new(quick.parse()?), Path::new(database)))
        }
        ["serve", what] => runtime().block_on(http::part(what)),
        ["growth", engine, operations, directory] => {
            runtime().block_on(growth::part(engine, operations.parse()?, Path::new(directory)))
        }
        _ => anyhow::bail!("no such part: {part:?}"),
    }
}

async fn measure(args: &Args) -> Result<()> {
    let effort = Effort { rounds: args.rounds.into(), ..Effort::new(args.quick) };
    let machine = Machine::look()?;
    println!("{machine}");
    if args.quick {
        println!("--quick: the numbers below prove nothing about speed.\n");
    }
    let (of_messages, of_gateway) = match args.mode {
        Mode::Gateway => (Vec::new(), words(&args.only)?),
        _ => (words(&args.only)?, Vec::new()),
    };
    let wants = |mode| args.mode == mode || args.mode == Mode::All;
    let mut boards: Vec<Board> = Vec::new();
    let start = Instant::now();
    if wants(Mode::Core) {
        boards.extend(overhead::measure(effort).await?);
    }
    if wants(Mode::Sqlite) {
        boards.extend(sqlite::measure(effort).await?);
    }
    if wants(Mode::Postgres) {
        boards.extend(postgres::measure(effort).await?);
    }
    if wants(Mode::Layer) {
        boards.extend(http::measure_layer(effort).await?);
    }
    if wants(Mode::Gateway) {
        boards.extend(http::measure_gateway(effort, &of_gateway).await?);
    }
    if wants(Mode::Crowd) {
        boards.extend(http::measure_crowd(effort).await?);
    }
    if wants(Mode::MemoryGrowth) {
        boards.extend(growth::measure(effort).await?);
    }
    if wants(Mode::Messages) {
        boards.extend(messages::measure(effort, &messages::Choice(of_messages)).await?);
    }
    let path = args.report.clone().unwrap_or_else(|| default_report(args.mode));
    report::write(&path, &machine, &boards, args.quick)
        .with_context(|| format!("the report could not be written to {}", path.display()))?;

    println!("Targets, after {} s", start.elapsed().as_secs());
    for check in boards.iter().flat_map(|board| &board.checks) {
        println!("  {check}");
    }
    println!("Report: {}", path.display());
    Ok(())
}

/// What `--only` names.
fn words<Word: ValueEnum>(only: &[String]) -> Result<Vec<Word>> {
    let name =
        |word: &Word| word.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let known = || Word::value_variants().iter().map(name).collect::<Vec<_>>().join(", ");
    let read = |word: &String| {
        Word::from_str(word, true)
            .map_err(|_| anyhow::anyhow!("--only knows no {word:?} here, but {}", known()))
    };
    only.iter().map(read).collect()
}

fn default_report(mode: Mode) -> PathBuf {
    let name = mode.to_possible_value().expect("no mode is hidden").get_name().to_owned();
    Path::new(env!("CARGO_MANIFEST_DIR")).join("report").join(name).with_extension("html")
}
