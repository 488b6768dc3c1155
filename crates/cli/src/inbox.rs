//! `semel inbox`: what consumers have set aside, and what becomes of it.
//!
//! Exit codes: 0 done, 1 not found or refused, 2 used wrongly.

use crate::keys::refuse_new_file;
use crate::say::say;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand};
use semel::inbox::{Aside, Id, Inbox, Judged, Letter, State, Verdict};

use crate::time;

/// Longest part of a payload that is printed.
const PAYLOAD_SHOWN_BYTES: usize = 200;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Where the ledger is: `sqlite:PATH`, `postgres://…` or `mysql://…`
    #[arg(
        long,
        global = true,
        env = "SEMEL_STORE",
        default_value = "sqlite:semel.db",
        hide_env_values = true
    )]
    store: String,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Every group: ledger rows, open calls, and what is set aside
    Status,
    /// Messages a group has set aside, oldest first
    Dead(Dead),
    /// Apply a letter again, as it is and under its id; those behind it follow
    Replay(Replay),
    /// Never apply a letter; those behind it go on
    Discard(Which),
    /// Read a Kafka topic on at another offset, because it was made anew or has lost its end
    ///
    /// What the ledger knows is not applied again. What it has forgotten or never knew is: messages kept longer than the
    /// ledger's rows, those before a group that began at the end, those of another cluster. Check first that the
    /// consumer points at the right cluster. What lies before the offset and was not applied is never read.
    ///
    /// A partition that begins behind the offset is refused by whoever reads it: something seems to be lost. Retention moves
    /// each partition's beginning on its own; rewind those of such a topic one by one, each to where it begins or later.
    ///
    /// Start consumers that run again afterwards: on a quiet partition they do not notice by themselves.
    Rewind(Rewind),
}

#[derive(Args)]
struct Dead {
    /// Whose
    #[arg(long)]
    group: String,
    /// Also those that are tried again by themselves, and those that wait behind others
    #[arg(long)]
    all: bool,
    /// Only above this number: how a list goes on
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Show payloads too; they can hold what customers said
    #[arg(long)]
    payloads: bool,
}

#[derive(Args)]
struct Which {
    /// Whose
    #[arg(long)]
    group: String,
    /// The letter's number, as `semel inbox dead` shows it
    number: u64,
}

#[derive(Args)]
struct Replay {
    #[command(flatten)]
    which: Which,
    /// The id for a message that has none; one the group does not know yet
    #[arg(long)]
    id: Option<Id>,
}

#[derive(Args)]
struct Rewind {
    /// Who reads it
    #[arg(long)]
    group: String,
    /// The topic
    #[arg(long)]
    topic: String,
    /// Only this partition
    #[arg(long)]
    partition: Option<i32>,
    /// The next offset to read, not before the first that is still there
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    to: i64,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    refuse_new_file(&arguments.store)?;
    let inbox = semel::stores::open_inbox(&arguments.store).await.context("the store cannot be opened")?;
    match arguments.verb {
        Verb::Status => status(&inbox).await,
        Verb::Dead(dead) => list(&inbox, &dead).await,
        Verb::Replay(Replay { which, id }) => judge(&inbox, &which, Verdict::Replay(id)).await,
        Verb::Discard(which) => judge(&inbox, &which, Verdict::Discard).await,
        Verb::Rewind(which) => rewind(&inbox, &which).await,
    }
}

async fn status(inbox: &Arc<dyn Inbox>) -> anyhow::Result<ExitCode> {
    say!(
        "{:<24} {:>9} {:>6} {:>6} {:>6} {:>6}  oldest letter",
        "group",
        "ledger",
        "open",
        "later",
        "dead",
        "behind"
    );
    for group in inbox.overview().await? {
        let more = if group.more { "+" } else { "" };
        let ledger = format!("{}{more}", group.ledger);
        let oldest = group.oldest.map_or("-".into(), |at| time::short(&time::write(at)));
        say!(
            "{:<24} {ledger:>9} {:>6} {:>6} {:>6} {:>6}  {oldest}",
            group.group,
            group.open,
            group.later,
            group.dead,
            group.behind
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(inbox: &Arc<dyn Inbox>, dead: &Dead) -> anyhow::Result<ExitCode> {
    let letters = inbox.letters(&dead.group, None, dead.after, dead.limit).await?;
    let last = letters.last().map(|letter| letter.number);
    let is_shown = |letter: &Letter| dead.all || matches!(letter.aside, Aside::Dead | Aside::Stale);
    for letter in letters.iter().filter(|letter| is_shown(letter)) {
        show(letter, dead.payloads);
    }
    if letters.len() == dead.limit as usize {
        say!("there may be more: --after {}", last.unwrap_or(0));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(letter: &Letter, payloads: bool) {
    let kind = match letter.aside {
        Aside::Later => "later",
        Aside::Dead => "dead",
        Aside::Behind => "behind",
        Aside::Stale => "stale",
    };
    let id = letter.id.as_ref().map_or("(no id)", Id::as_str);
    let key = letter.message.ordering_key().unwrap_or("-".into());
    say!(
        "{:>8}  {kind:<6} {}  id {id}  key {key}  {} at {}  tries {}",
        letter.number,
        time::short(&time::write(letter.since)),
        letter.message.subject,
        letter.message.place,
        letter.tries
    );
    say!("          {}", letter.reason);
    if payloads {
        let shown = &letter.message.payload[..letter.message.payload.len().min(PAYLOAD_SHOWN_BYTES)];
        say!("          {}", String::from_utf8_lossy(shown).escape_debug());
    }
}

async fn judge(inbox: &Arc<dyn Inbox>, which: &Which, verdict: Verdict) -> anyhow::Result<ExitCode> {
    let Which { group, number } = which;
    match inbox.judge(group, *number, &verdict).await? {
        Judged::Made if verdict == Verdict::Discard => say!("letter {number} is discarded"),
        Judged::Made => say!("letter {number} is applied again as soon as a consumer of {group} runs"),
        Judged::NotThere => {
            eprintln!("semel: the group {group} has no letter {number}");
            return Ok(ExitCode::FAILURE);
        }
        Judged::NoId => {
            eprintln!("semel: letter {number} has no id; give it one with --id");
            return Ok(ExitCode::FAILURE);
        }
        Judged::HasId => {
            eprintln!(
                "semel: letter {number} is not applied: it has an id of its own (semel inbox dead --group {group} shows it), and \
                 under another its message could be applied twice. Replay it without --id"
            );
            return Ok(ExitCode::FAILURE);
        }
        Judged::IdUsed(state) => {
            let whose = match state {
                State::Done => "a message that was applied already",
                State::Intended => "a message that is being applied",
                State::Aside => "another letter, or one that was discarded",
            };
            eprintln!(
                "semel: letter {number} is not applied: that id is the one of {whose}. If it is the same message, discard \
                 this letter (semel inbox discard --group {group} {number}); if it is not, give it an id of its own"
            );
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn rewind(inbox: &Arc<dyn Inbox>, which: &Rewind) -> anyhow::Result<ExitCode> {
    let Rewind { group, topic, partition, to } = which;
    match inbox.rewind(group, topic, *partition, *to).await? {
        0 => {
            eprintln!("semel: the group {group} has taken no such partition of the topic {topic}");
            Ok(ExitCode::FAILURE)
        }
        count => {
            say!(
                "partitions of {topic} that {group} reads on at {to}: {count}. What its ledger knows is not applied again; what it \
                 has forgotten or never knew is. Start consumers of {group} that run again now"
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}
