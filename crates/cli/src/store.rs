//! `semel store`: what an operator needs to know of a store, and the one thing only they may do.

use crate::keys::refuse_new_file;
use crate::say::say;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use semel::EffectStore;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Engine, identity, epoch, highest token, and whether it was restored from an older state.
    Status(Target),
    /// Accept a store that was restored from an older state. Operations since that state are forgotten:
    /// a retry of one of them would run again. Reconcile first.
    Acknowledge(Acknowledge),
    /// Add a new key for fingerprints. Older ones stay for comparing.
    RotateHashKey(Target),
}

#[derive(Args)]
struct Target {
    /// `sqlite:PATH`, `postgres://…` or `mysql://…`
    #[arg(long, env = "SEMEL_STORE", default_value = "sqlite:semel.db", hide_env_values = true)]
    store: String,
}

#[derive(Args)]
struct Acknowledge {
    #[command(flatten)]
    target: Target,
    /// Who accepts it; kept in the log.
    #[arg(long)]
    by: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.verb {
        Verb::Status(target) => status(&target).await,
        Verb::Acknowledge(Acknowledge { target, by }) => {
            let store = target.open().await?;
            let mark = store.acknowledge_restore(&by).await.context("the store was not acknowledged")?;
            say!("acknowledged by {by}: epoch {}, tokens continue above {}", mark.epoch, mark.token);
            Ok(ExitCode::SUCCESS)
        }
        Verb::RotateHashKey(target) => {
            let store = target.open().await?;
            let version = store.rotate_hash_key().await.context("no key was added")?;
            say!("fingerprints use key version {version} as soon as each process restarts");
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Target {
    async fn open(&self) -> anyhow::Result<std::sync::Arc<dyn EffectStore>> {
        refuse_new_file(&self.store)?;
        semel::stores::open(&self.store).await.context("the store cannot be opened")
    }
}

/// Exit code 3 tells scripts that the store waits for an acknowledgement.
async fn status(target: &Target) -> anyhow::Result<ExitCode> {
    let store = target.open().await?;
    let status = store.status().await.context("the store does not describe itself")?;
    let hex: String = status.store_id.iter().map(|byte| format!("{byte:02x}")).collect();
    say!("engine         {}", store.capabilities().engine);
    say!("store id       {hex}");
    say!("epoch          {}", status.mark.epoch);
    say!("highest token  {}", status.mark.token);
    say!("hash key       version {}", status.hash_keys.first().map_or(0, |key| key.version));
    match status.went_back_from {
        None => {
            say!("standing       open");
            Ok(ExitCode::SUCCESS)
        }
        Some(seen) => {
            say!("standing       CLOSED: epoch {} and token {} were seen before;", seen.epoch, seen.token);
            say!("               it was restored from an older state. See `semel store acknowledge --help`.");
            Ok(ExitCode::from(3))
        }
    }
}
