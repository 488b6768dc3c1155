//! The binary `semel`: one match that names every mode.

use clap::{Parser, Subcommand};

#[allow(dead_code)] // Wired up by `semel gateway`.
mod admin;
mod config {
    #[allow(dead_code)] // Wired up by `semel gateway`.
    pub(crate) mod resolved;
}
mod demo;
#[allow(dead_code)] // Wired up by `semel gateway`.
mod gateway;
mod json;
#[allow(dead_code)] // Wired up by `semel gateway`.
mod log;
mod store;

/// A retry must not happen twice.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Crash a service on purpose, with and without Semel, and count what happened.
    Demo(demo::Arguments),
    /// The service the demo crashes.
    #[command(hide = true)]
    DemoService(demo::service::Arguments),
    /// Look at a store, and accept one that was restored from a backup.
    Store(store::Arguments),
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let done = match Arguments::parse().mode {
        Mode::Demo(arguments) => demo::run(arguments).await,
        Mode::DemoService(arguments) => demo::service::run(arguments).await,
        Mode::Store(arguments) => store::run(arguments).await,
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("semel: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
