//! The binary `semel`: one match that names every mode.

use clap::{Parser, Subcommand};

#[allow(dead_code, unused_imports)]
mod config;
mod demo;
mod keys;
// What the gateway will call; `semel check-config` uses the rest already.
#[allow(dead_code, unused_imports)]
mod config {
    //! The settings of a gateway.
    #[allow(dead_code, reason = "read by parts of the gateway that are not wired up yet")]
    pub(crate) mod resolved;
}
#[allow(dead_code, unused_imports, reason = "not wired up yet")]
mod gateway;
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
    /// Find operations, see what happened to them, settle, free and purge them.
    Keys(Box<keys::Arguments>),
    /// Show the settings a gateway would have, and where each comes from; or all that is wrong with them.
    CheckConfig(Box<config::check::Arguments>),
    /// Look at a store, and accept one that was restored from a backup.
    Store(store::Arguments),
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let done = match Arguments::parse().mode {
        Mode::Demo(arguments) => demo::run(arguments).await,
        Mode::DemoService(arguments) => demo::service::run(arguments).await,
        Mode::Keys(arguments) => keys::run(*arguments).await,
        Mode::CheckConfig(arguments) => Ok(config::check::run(*arguments)),
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
