//! `semel check-config`: what a gateway would do with these settings, or everything that is wrong with them.

use crate::say::say;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::flags;
use super::mistake::{Mistake, Place};
use super::value::Here;

/// Wrong settings end a program with this code.
pub(crate) const EXIT_MISTAKES: u8 = 2;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The file, such as semel.toml.
    file: String,
    /// For machines: everything as JSON, on standard output.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: flags::Arguments,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let settings = flags::Arguments { config: Some(arguments.file), ..arguments.settings };
    match super::resolve(&settings, &Here) {
        Ok(resolved) if arguments.json => say!("{:#}", resolved.shown.json(&resolved.warnings)),
        Ok(resolved) => say!("{}", resolved.shown.text(&resolved.warnings)),
        Err(mistakes) if arguments.json => {
            say!("{:#}", json!({ "mistakes": mistakes.iter().map(as_json).collect::<Vec<_>>() }));
            return ExitCode::from(EXIT_MISTAKES);
        }
        Err(mistakes) => return refuse(&mistakes),
    }
    ExitCode::SUCCESS
}

/// Prints mistakes, one per line, and gives the code to end with.
pub(crate) fn refuse(mistakes: &[Mistake]) -> ExitCode {
    for mistake in mistakes {
        eprintln!("{mistake}");
    }
    ExitCode::from(EXIT_MISTAKES)
}

fn as_json(mistake: &Mistake) -> serde_json::Value {
    let (line, column) = match mistake.place {
        Place::File { line, column, .. } => (Some(line), Some(column)),
        _ => (None, None),
    };
    json!({ "place": mistake.place.to_string(), "line": line, "column": column, "sentence": mistake.sentence })
}
