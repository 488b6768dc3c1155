//! `semel outbox`: an operator sees what waits to be published, and judges what could not be (G-44).
//!
//! Everything is asked of the store, while relays go on. A verdict is written in the store and carried out
//! by whichever relay has the lane; nothing here publishes.
//!
//! Exit codes: 0 done, 1 not found or refused, 2 used wrongly, 3 (status) nothing is published until somebody
//! rebases.

mod shown;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use semel::outbox::{Aside, Found, Judged, Verdict};
use semel::{Clock, Message, MessageId, Outbox, SystemClock, Topic, mutant};
use serde::Serialize;
use serde_json::json;

use crate::config::value::duration;
use crate::say;

/// The database was restored: an operator must rebase.
const STOPPED: u8 = 3;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The store: `sqlite:PATH`, `postgres://…` or `mysql://…`
    #[arg(
        long,
        global = true,
        env = "SEMEL_STORE",
        default_value = "sqlite:semel.db",
        hide_env_values = true,
        value_name = "URL"
    )]
    store: String,
    /// Print JSON, for machines
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What waits, how old it is, and who publishes it: by topic and lane
    Status,
    /// Messages that are not published yet
    List(List),
    /// Messages that were set aside: dead letters, or all of them
    Dead(Dead),
    /// One message, wherever it is
    Show(Show),
    /// Publish a dead letter again, in its place before those that wait for it
    Replay(Replay),
    /// Never publish a dead letter; those that wait for it go on
    Discard(Chosen),
    /// After a restore: take the database as it is, and publish again what is not known to have been
    ///
    /// Messages that were published since the backup can be published twice, under the same ids. None is
    /// lost that is in this database.
    Rebase(Rebase),
}

#[derive(Args)]
struct List {
    /// Only of this topic
    #[arg(long)]
    topic: Option<Topic>,
    #[command(flatten)]
    page: Page,
}

#[derive(Args)]
struct Dead {
    /// Which of those set aside
    #[arg(long, value_enum, default_value = "dead")]
    only: Only,
    #[command(flatten)]
    page: Page,
}

#[derive(Clone, Copy, ValueEnum)]
enum Only {
    /// Those that wait for a verdict
    Dead,
    /// Those that will be tried again by themselves
    Later,
    /// Those that wait for an earlier one of their key
    Behind,
    /// All
    All,
}

#[derive(Args)]
struct Page {
    /// Only above this sequence: how a list goes on
    #[arg(long, default_value_t = 0, value_name = "SEQUENCE")]
    after: u64,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

#[derive(Args)]
struct Show {
    #[command(flatten)]
    chosen: Chosen,
    /// Show the payload too; it can hold what customers said
    #[arg(long)]
    payload: bool,
}

#[derive(Args)]
struct Chosen {
    /// The id of a message
    id: MessageId,
}

#[derive(Args)]
struct Replay {
    #[command(flatten)]
    chosen: Chosen,
    /// Publish this payload instead. The message gets a new id: it is another one
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// To this topic instead. The message gets a new id, too
    #[arg(long)]
    topic: Option<Topic>,
    /// Not if the message is older than this: consumers have been told the same as `--dead-letters-kept`, and may have
    /// forgotten whether it ever arrived
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = duration)]
    kept: Duration,
}

#[derive(Args)]
struct Rebase {
    /// Who accepts that messages may be published twice; kept with the store
    #[arg(long)]
    by: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { store, json, command } = arguments;
    crate::keys::refuse_new_file(&store)?;
    let outbox = semel::stores::open_outbox(&store).await.context("the outbox cannot be opened")?;
    let desk = Desk { outbox, json };
    match command {
        Command::Status => desk.status().await,
        Command::List(list) => desk.list(&list).await,
        Command::Dead(dead) => desk.letters(&dead).await,
        Command::Show(show) => desk.show(&show).await,
        Command::Replay(replay) => desk.replay(&replay).await,
        Command::Discard(chosen) => {
            desk.judge(chosen.id, &Verdict::Discard, "discarded: it is never published").await
        }
        Command::Rebase(rebase) => desk.rebase(&rebase).await,
    }
}

struct Desk {
    outbox: Arc<dyn Outbox>,
    json: bool,
}

impl Desk {
    async fn status(&self) -> anyhow::Result<ExitCode> {
        let overview = self.outbox.overview().await.context("the outbox was not read")?;
        let shown = shown::Status::of(&self.outbox.facts(), &overview);
        match self.json {
            true => print_json(&shown)?,
            false => print(&text::status(&shown))?,
        };
        Ok(if overview.stopped.is_some() { ExitCode::from(STOPPED) } else { ExitCode::SUCCESS })
    }

    async fn list(&self, List { topic, page }: &List) -> anyhow::Result<ExitCode> {
        let entries = self
            .outbox
            .list(topic.as_ref(), page.after, page.limit)
            .await
            .context("the outbox was not read")?;
        let next = (entries.len() == page.limit as usize)
            .then(|| entries.last().map(|(_, entry)| entry.sequence))
            .flatten();
        let messages: Vec<shown::Shown> =
            entries.iter().map(|(lane, entry)| shown::Shown::waiting(*lane, entry)).collect();
        self.page(&messages, next, "nothing waits to be published\n")
    }

    async fn letters(&self, Dead { only, page }: &Dead) -> anyhow::Result<ExitCode> {
        let only = match only {
            Only::Dead => Some(Aside::Dead),
            Only::Later => Some(Aside::Later),
            Only::Behind => Some(Aside::Behind),
            Only::All => None,
        };
        let letters =
            self.outbox.aside(only, page.after, page.limit).await.context("the outbox was not read")?;
        let next = (letters.len() == page.limit as usize)
            .then(|| letters.last().map(|letter| letter.entry.sequence))
            .flatten();
        let messages: Vec<shown::Shown> = letters.iter().map(shown::Shown::letter).collect();
        self.page(&messages, next, "no message was set aside\n")
    }

    fn page(&self, messages: &[shown::Shown], next: Option<u64>, none: &str) -> anyhow::Result<ExitCode> {
        if self.json {
            return print_json(&json!({ "messages": messages, "next": next }));
        }
        if messages.is_empty() {
            return print(none);
        }
        let more = next.map(|next| format!("there may be more: --after {next}\n")).unwrap_or_default();
        print(&format!("{}{more}", text::table(messages)))
    }

    async fn find(&self, id: MessageId) -> anyhow::Result<Found> {
        let found = self.outbox.find(id).await.context("the outbox was not read")?;
        found.with_context(|| {
            format!("the outbox does not hold message {id}: it was published and removed, discarded, or never there")
        })
    }

    async fn show(&self, show: &Show) -> anyhow::Result<ExitCode> {
        let found = self.find(show.chosen.id).await?;
        let mut shown = match &found {
            Found::Waiting(lane, entry) => shown::Shown::waiting(*lane, entry),
            Found::Aside(letter) => shown::Shown::letter(letter),
            Found::Delayed(message) => shown::Shown::delayed(message),
        };
        if show.payload {
            shown.reveal(message_of(&found));
        }
        match self.json {
            true => print_json(&shown),
            false => print(&text::whole(&shown)),
        }
    }

    async fn replay(&self, replay: &Replay) -> anyhow::Result<ExitCode> {
        let id = replay.chosen.id;
        if replay.payload_file.is_none() && replay.topic.is_none() {
            self.refuse_forgotten(id, replay.kept).await?;
            return self.judge(id, &Verdict::Replay, "will be published again, under its id").await;
        }
        let found = self.find(id).await?;
        let mut edited = Message { id: MessageId::new(), ..message_of(&found).clone() };
        if let Some(path) = &replay.payload_file {
            let payload = std::fs::read(path);
            edited.payload = payload
                .with_context(|| format!("the payload cannot be read from {}", path.display()))?
                .into();
        }
        edited.topic = replay.topic.clone().unwrap_or(edited.topic);
        edited.check().context("the edited message cannot be published")?;
        let told = format!("will be published as edited, under the id {}", edited.id);
        self.judge(id, &Verdict::Edit(Box::new(edited)), &told).await
    }

    /// A message whose answer got lost may have arrived, and only a consumer that remembers it applies it once (G-46).
    async fn refuse_forgotten(&self, id: MessageId, kept: Duration) -> anyhow::Result<()> {
        let Found::Aside(letter) = self.find(id).await? else { return Ok(()) };
        let made_at = letter.entry.message.id.made_at().unwrap_or(letter.since);
        let age = SystemClock.now().since(made_at);
        if age <= kept || mutant::on("forgotten-letter-replayed") {
            return Ok(());
        }
        bail!(
            "message {id} is {} old. Consumers remember messages that may come again for {} (their --dead-letters-kept); \
             if it had arrived once, they would apply it twice. Discard it, or say --kept with what your consumers have",
            crate::time::span(age),
            crate::time::span(kept)
        )
    }

    async fn judge(&self, id: MessageId, verdict: &Verdict, told: &str) -> anyhow::Result<ExitCode> {
        match self.outbox.judge(id, verdict).await.context("the verdict was not written")? {
            Judged::Made if self.json => print_json(&json!({ "result": "made", "id": id.to_string() })),
            Judged::Made => print(&format!("message {id} {told}\n")),
            Judged::NotDead => match self.outbox.find(id).await? {
                Some(_) => bail!("message {id} is no dead letter; see `semel outbox show {id}`"),
                None => bail!("the outbox does not hold message {id}"),
            },
        }
    }

    async fn rebase(&self, rebase: &Rebase) -> anyhow::Result<ExitCode> {
        let again = self.outbox.rebase(&rebase.by).await.context("the outbox was not rebased")?;
        if self.json {
            return print_json(&json!({ "result": "made", "may_come_again": again }));
        }
        print(&format!(
            "rebased: {again} messages are published, some of them maybe again, under their ids\n"
        ))
    }
}

fn message_of(found: &Found) -> &Message {
    match found {
        Found::Waiting(_, entry) => &entry.message,
        Found::Aside(letter) => &letter.entry.message,
        Found::Delayed(message) => message,
    }
}

fn print_json(value: &impl Serialize) -> anyhow::Result<ExitCode> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    say::text(text);
    Ok(ExitCode::SUCCESS)
}
