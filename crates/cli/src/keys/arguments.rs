//! What can be said on the command line.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use semel::policy::DEFAULTS;
use semel::store::Filter;
use semel::{Key, OperationId, history};

use super::{Found, Who};
use crate::shown::State;
use crate::written::{self, Response};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) target: Target,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Longest name of an operator, in bytes.
const BY_BYTES_MAX: usize = 100;
/// Longest reason, in bytes. With the name before it, it must fit into a history's note.
const NOTE_BYTES_MAX: usize = 400;
const _: () = assert!(BY_BYTES_MAX + ": ".len() + NOTE_BYTES_MAX <= history::NOTE_BYTES_MAX);

const WHERE: &str = "Where the operations are";
const NARROWED: &str = "Narrowed down";

/// Where the operations are.
#[derive(Args)]
pub(super) struct Target {
    /// The store: `sqlite:PATH`, `postgres://…` or `mysql://…` [env: SEMEL_STORE] [default: sqlite:semel.db]
    #[arg(long, global = true, conflicts_with = "admin", value_name = "URL", help_heading = WHERE)]
    store: Option<String>,
    /// Where the keys of subjects are, for `purge --subject`: `sqlite:PATH` or `postgres://…` [env: SEMEL_SUBJECT_KEYS]
    #[arg(long, global = true, conflicts_with = "admin", value_name = "URL", help_heading = WHERE)]
    subject_keys: Option<String>,
    /// The admin API of a running gateway, instead of the store: `http://127.0.0.1:8081`
    #[arg(long, global = true, value_name = "URL", help_heading = WHERE)]
    pub(super) admin: Option<String>,
    /// A file that holds the token of the admin API
    #[arg(long, global = true, value_name = "FILE", requires = "admin", help_heading = WHERE)]
    pub(super) token_file: Option<PathBuf>,
}

impl Target {
    pub(super) fn subject_keys(&self) -> Option<String> {
        self.subject_keys.clone().or_else(|| std::env::var("SEMEL_SUBJECT_KEYS").ok())
    }

    pub(super) fn store(self) -> String {
        // Not clap's `env`: a variable must not contradict --admin.
        self.store.or_else(|| std::env::var("SEMEL_STORE").ok()).unwrap_or_else(|| "sqlite:semel.db".into())
    }
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// List operations, the oldest attempt first
    List(List),
    /// Show one operation with its history and evidence
    Show(Show),
    /// End an unknown: it was done, with this answer, or it never happened
    ///
    /// Straight on a store, the answer is kept as it is given here; --admin limits, redacts and
    /// encrypts it as the route does.
    Settle(Settle),
    /// Let the next attempt of an unknown run: you know that nothing happened and nothing will
    ///
    /// If its request is still on its way to the service, the effect can happen twice. Make sure.
    Free(Free),
    /// Remove the answer and evidence of what has ended; the key stays used until it expires
    ///
    /// With --subject, all of a subject; if subjects have keys of their own, that key is forgotten too, and
    /// what it sealed is unreadable in every copy. Safe to repeat.
    Purge(Purge),
}

#[derive(Args)]
pub(super) struct List {
    /// Only these, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STATE")]
    state: Vec<State>,
    /// Only with this key
    #[arg(long, value_parser = parse_key)]
    key: Option<Key>,
    #[command(flatten)]
    scope: Scope,
    /// Only above this token: how a list goes on
    #[arg(long, default_value_t = 0, value_name = "TOKEN")]
    pub(super) after: u64,
    /// At most this many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(super) limit: u16,
    /// Print JSON, for machines
    #[arg(long)]
    pub(super) json: bool,
}

impl List {
    pub(super) fn filter(&self) -> Filter {
        let states: Vec<semel::State> = self.state.iter().map(|state| state.stored()).collect();
        Filter { states: (!states.is_empty()).then_some(states), ..self.scope.filter(self.key.clone()) }
    }
}

#[derive(Args)]
pub(super) struct Show {
    #[command(flatten)]
    pub(super) chosen: Chosen,
    /// Show the bodies of answers too; they can hold what customers said
    #[arg(long)]
    pub(super) bodies: bool,
    /// Print JSON, for machines
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct Settle {
    #[command(flatten)]
    pub(super) chosen: Chosen,
    /// It happened, and clients shall get the answer given here
    #[arg(long, required_unless_present = "never", requires = "status")]
    done: bool,
    /// It did not happen and will not: the next attempt may run
    #[arg(long, conflicts_with_all = ["done", "status", "header", "body_file"])]
    never: bool,
    /// The answer's status
    #[arg(long, requires = "done", value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// A header of the answer, `name: value`; may be repeated
    #[arg(long, requires = "done", value_parser = written::header)]
    header: Vec<(String, String)>,
    /// The answer's body
    #[arg(long, requires = "done", value_name = "FILE")]
    body_file: Option<PathBuf>,
    #[command(flatten)]
    signature: Signature,
    /// Print JSON, for machines
    #[arg(long)]
    pub(super) json: bool,
}

impl Settle {
    pub(super) fn found(&self) -> anyhow::Result<Found> {
        match self.status {
            Some(status) => {
                let response = Response::new(status, self.header.clone(), self.body()?);
                // Refused before anything is asked.
                response.clone().into_outcome()?;
                Ok(Found::Done(response))
            }
            None => Ok(Found::Never),
        }
    }

    fn body(&self) -> anyhow::Result<Vec<u8>> {
        let Some(path) = &self.body_file else { return Ok(Vec::new()) };
        let body = std::fs::read(path)
            .with_context(|| format!("the body cannot be read from {}", path.display()))?;
        let most = DEFAULTS.outcome_bytes_max;
        anyhow::ensure!(
            body.len() <= most,
            "the body has {} bytes; the most that is kept is {most}",
            body.len()
        );
        Ok(body)
    }

    pub(super) fn who(&self) -> Who {
        self.signature.who()
    }
}

#[derive(Args)]
pub(super) struct Free {
    #[command(flatten)]
    pub(super) chosen: Chosen,
    #[command(flatten)]
    signature: Signature,
    /// Print JSON, for machines
    #[arg(long)]
    pub(super) json: bool,
}

impl Free {
    pub(super) fn who(&self) -> Who {
        self.signature.who()
    }
}

#[derive(Args)]
pub(super) struct Purge {
    /// A key, or an operation's id (64 hexadecimal digits)
    #[arg(value_name = "KEY|ID", value_parser = parse_which, required_unless_present = "subject")]
    which: Option<Which>,
    #[command(flatten)]
    scope: Scope,
    /// All that has ended and is about this subject
    #[arg(long, conflicts_with = "which")]
    pub(super) subject: Option<String>,
    #[command(flatten)]
    signature: Signature,
    /// Print JSON, for machines
    #[arg(long)]
    pub(super) json: bool,
}

impl Purge {
    pub(super) fn chosen(&self) -> Option<Chosen> {
        Some(Chosen { which: self.which.clone()?, scope: self.scope.clone() })
    }

    pub(super) fn who(&self) -> Who {
        self.signature.who()
    }
}

/// One operation, by what is known of it.
#[derive(Args)]
pub(super) struct Chosen {
    /// A key, or an operation's id (64 hexadecimal digits)
    #[arg(value_name = "KEY|ID", value_parser = parse_which)]
    pub(super) which: Which,
    #[command(flatten)]
    scope: Scope,
}

impl Chosen {
    pub(super) fn filter(&self) -> Filter {
        self.scope.filter(Some(self.which.key.clone()))
    }
}

/// Every id could be somebody's key too.
#[derive(Clone, Debug)]
pub(super) struct Which {
    pub(super) id: Option<OperationId>,
    pub(super) key: Key,
}

/// Where a key lives. All parts together find it at once; otherwise the store is looked through.
#[derive(Args, Clone)]
struct Scope {
    /// Only of this deployment (a gateway's is `default` unless configured)
    #[arg(long, help_heading = NARROWED)]
    namespace: Option<String>,
    /// Only of this tenant
    #[arg(long, help_heading = NARROWED)]
    tenant: Option<String>,
    /// Only those that belong to no tenant
    #[arg(long, conflicts_with = "tenant", help_heading = NARROWED)]
    no_tenant: bool,
    /// Only of this route
    #[arg(long, help_heading = NARROWED)]
    route: Option<String>,
}

impl Scope {
    fn filter(&self, key: Option<Key>) -> Filter {
        let tenant = match (&self.tenant, self.no_tenant) {
            (Some(tenant), _) => Some(Some(tenant.clone())),
            (None, true) => Some(None),
            (None, false) => None,
        };
        Filter { namespace: self.namespace.clone(), tenant, route: self.route.clone(), key, states: None }
    }
}

/// Who changes something; kept in the history.
#[derive(Args)]
struct Signature {
    /// Who you are [default: your user name and this machine]
    #[arg(long, value_parser = parse_by)]
    by: Option<String>,
    /// Why, and how you know
    #[arg(long, default_value = "", hide_default_value = true, value_parser = parse_note)]
    note: String,
}

impl Signature {
    fn who(&self) -> Who {
        Who { by: self.by.clone().unwrap_or_else(user_and_machine), note: self.note.clone() }
    }
}

fn user_and_machine() -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let file = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let user = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(variable);
    let machine =
        file("/proc/sys/kernel/hostname").or_else(|| file("/etc/hostname")).or_else(|| variable("HOSTNAME"));
    let unnamed = || "unnamed".to_owned();
    format!(
        "{}@{}",
        user.unwrap_or_else(unnamed),
        machine.filter(|name| !name.is_empty()).unwrap_or_else(unnamed)
    )
}

fn parse_by(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.contains(':') {
        return Err("say who does this, without a colon".into());
    }
    parse_within(text, BY_BYTES_MAX)
}

fn parse_note(text: &str) -> Result<String, String> {
    parse_within(text, NOTE_BYTES_MAX)
}

/// Too long is refused rather than cut: half a reason can say the opposite.
fn parse_within(text: &str, bytes_max: usize) -> Result<String, String> {
    if text.len() > bytes_max || text.chars().any(char::is_control) {
        return Err(format!("at most {bytes_max} bytes, and no control characters"));
    }
    Ok(text.to_owned())
}

fn parse_key(text: &str) -> Result<Key, String> {
    Key::parse(text.as_bytes()).map_err(|error| error.to_string())
}

fn parse_which(text: &str) -> Result<Which, String> {
    Ok(Which { id: OperationId::from_hex(text), key: parse_key(text)? })
}
