//! The binary `semel`: one match that names every mode.

use clap::{Parser, Subcommand};

mod admin;
mod config;
mod consume;
mod demo;
mod gateway;
mod inbox;
mod keys;
mod log;
mod metrics;
mod migrate;
mod outbox;
mod relay;
mod say;
mod shown;
mod store;
mod time;
mod verify;
mod written;

/// The gateway allocates and frees a few dozen times per request, from several threads: with this it
/// passes about a tenth more requests than with the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A retry must not happen twice.
#[derive(Parser)]
#[command(name = "semel", version, arg_required_else_help = true, after_help = START)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

const START: &str = "Start with:  semel gateway --upstream demo";

const GATEWAY: &str = "\
Examples:
  semel gateway --upstream demo
  semel gateway --upstream http://127.0.0.1:3000 --tenant credential
  semel gateway --config semel.toml --admin 127.0.0.1:8081

Every flag is also a variable (--listen, SEMEL_LISTEN) and a line in the file (listen).
SIGTERM finishes what began and ends; SIGHUP reads the settings again.";

#[derive(Subcommand)]
enum Mode {
    /// Stand in front of a service, and let a request with an Idempotency-Key happen once.
    #[command(after_help = GATEWAY)]
    Gateway(Box<config::flags::Arguments>),
    /// Pay over a bad network, with and without Semel, and count what happened.
    Demo(demo::Arguments),
    /// Find operations, see what happened to them, settle, free and purge them.
    Keys(Box<keys::Arguments>),
    /// Show the settings a gateway would have, and where each comes from; or all that is wrong with them.
    CheckConfig(Box<config::check::Arguments>),
    /// Publish the messages of an outbox, in order, at least once, until told to stop.
    #[command(after_help = relay::HELP)]
    Relay(Box<relay::Arguments>),
    /// See what waits to be published, and judge what could not be.
    Outbox(Box<outbox::Arguments>),
    /// Read messages of NATS or Kafka, and call a service once for each.
    #[command(after_help = consume::HELP)]
    Consume(Box<consume::Arguments>),
    /// See what consumers have set aside, and replay or discard it.
    Inbox(inbox::Arguments),
    /// Look at a store, and accept one that was restored from a backup.
    Store(store::Arguments),
    /// Bring the tables of a store up to date, or print the SQL that would.
    Migrate(migrate::Arguments),
    /// Prove or break the idempotency of an HTTP API, from outside, by counting effects.
    #[command(after_help = verify::HELP)]
    Verify(Box<verify::Arguments>),
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let done = match Arguments::parse().mode {
        Mode::Gateway(arguments) => gateway::run(*arguments).await,
        Mode::Demo(arguments) => demo::run(arguments).await,
        Mode::Keys(arguments) => keys::run(*arguments).await,
        Mode::CheckConfig(arguments) => Ok(config::check::run(*arguments)),
        Mode::Relay(arguments) => relay::run(*arguments).await,
        Mode::Outbox(arguments) => outbox::run(*arguments).await,
        Mode::Consume(arguments) => consume::run(*arguments).await,
        Mode::Inbox(arguments) => inbox::run(arguments).await,
        Mode::Store(arguments) => store::run(arguments).await,
        Mode::Migrate(arguments) => migrate::run(arguments).await,
        Mode::Verify(arguments) => verify::run(*arguments).await,
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("semel: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        super::Arguments::command().debug_assert();
    }
}
