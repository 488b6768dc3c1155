//! `semel migrate`: the tables of a store, and what is there for other languages.
//!
//! Every mode that opens a store migrates it, if it may. This is for those who want it done before, by
//! somebody with more rights, or by hand.

use crate::say::say;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

#[derive(Args)]
pub(crate) struct Arguments {
    /// `sqlite:PATH`, `postgres://…` or `mysql://…`
    #[arg(long, env = "SEMEL_STORE", default_value = "sqlite:semel.db", hide_env_values = true)]
    store: String,
    /// Change nothing, and print as SQL what is missing: one transaction (on MySQL statements that can be run
    /// again). Nothing is printed where nothing is missing.
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { store, print } = arguments;
    let missing = semel::stores::plan(&store).await.context("the store cannot be looked at")?;
    if print {
        crate::say::text(&missing.script);
        return Ok(ExitCode::SUCCESS);
    }
    semel::stores::open(&store).await.context("the store cannot be migrated")?;
    match &missing.names[..] {
        [] => say!("the schema is up to date"),
        names => say!("applied {}", names.join(", ")),
    }
    Ok(ExitCode::SUCCESS)
}
