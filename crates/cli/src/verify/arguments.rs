//! What can be said on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::inputs::Source;
use super::scenario::Region;
use crate::config::value;

const REQUEST: &str = "The request (a URL, or one of the files)";
const COUNTING: &str = "Counting effects";
const MORE: &str = "More to check with";
const COMMANDS: &str = "Commands, run by sh";
const LIMITS: &str = "Limits";
const CHECKS: &str = "Checks";
const REPORTS: &str = "Reports";
const MODES: &str = "Instead of a run";

/// Flags that name a file with the whole request in it.
const FILES: [&str; 3] = ["curl", "http", "openapi"];

/// The widest race that can be asked for.
const RACE_MAX: u64 = 1000;

pub(crate) const HELP: &str = "\
Examples:
  semel verify http://127.0.0.1:3000/payments -d '{\"amount\":1,\"reference\":\"{tag}\"}' \\
      --count-url 'http://127.0.0.1:3000/payments?reference={tag}' --count-pointer /items
  semel verify --curl request.sh --profile stripe --provider 127.0.0.1:9000
  semel verify --openapi api.yaml --operation createPayment --tag-at /reference --count-command './count.sh'
  semel verify http://127.0.0.1:3000/payments -d @body.json --canary --every 1m
  semel verify http://127.0.0.1:3000 --front 127.0.0.1:9001 --cut in-body --every 3

{tag} stands for the name of one operation. It is the same in every retry and differs between
operations; effects are counted by it.

A profile in a file starts from a built-in and says what differs: base = \"ietf\", key_header = \"X-Key\",
mismatch = [409], missing_key = \"pass\", replay_marker = \"X-Replayed: yes\" or \"none\". A name that is
not known is told with the nearest one that is.

Exit codes: 0 all that was checked holds; 1 something does not (with --strict also: something
could not be shown); 2 used wrongly, refused, or the target cannot be reached.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) request: Request,
    /// What the service promises: semel, ietf, stripe, or a TOML file
    #[arg(long, default_value = "ietf", value_name = "NAME|FILE", help_heading = CHECKS)]
    pub(super) profile: String,
    #[command(flatten)]
    pub(super) counting: Counting,
    #[command(flatten)]
    pub(super) more: More,
    #[command(flatten)]
    pub(super) commands: Commands,
    #[command(flatten)]
    pub(super) limits: Limits,
    #[command(flatten)]
    pub(super) checks: Checks,
    #[command(flatten)]
    pub(super) reports: Reports,
    #[command(flatten)]
    pub(super) modes: Modes,
    /// The target is not this machine, and yours to flood and to break
    #[arg(long)]
    pub(super) i_own_this_target: bool,
}

#[derive(Args)]
pub(super) struct Request {
    /// Where the request goes; {tag} may stand in it
    #[arg(conflicts_with_all = FILES, help_heading = REQUEST)]
    pub(super) url: Option<String>,
    /// Its method [default: POST]
    #[arg(short = 'X', long = "request", value_name = "METHOD", help_heading = REQUEST)]
    #[arg(requires = "url", conflicts_with_all = FILES)]
    method: Option<String>,
    // Headers are read later: clap would repeat what it cannot read, and that can be a secret.
    /// A header, also beside a file; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = REQUEST)]
    pub(super) header: Vec<String>,
    /// Its body, or @FILE
    #[arg(short = 'd', long, value_name = "BODY|@FILE", help_heading = REQUEST)]
    #[arg(requires = "url", conflicts_with_all = FILES)]
    data: Option<String>,
    /// A file with a curl command, or - for the input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["http", "openapi"], help_heading = REQUEST)]
    curl: Option<PathBuf>,
    /// A .http file
    #[arg(long, value_name = "FILE", conflicts_with = "openapi", help_heading = REQUEST)]
    http: Option<PathBuf>,
    /// Which request of the .http file
    #[arg(long, requires = "http", conflicts_with_all = ["url", "curl", "openapi"], help_heading = REQUEST)]
    name: Option<String>,
    /// An OpenAPI 3 description, JSON or YAML
    #[arg(long, value_name = "FILE", requires = "operation", help_heading = REQUEST)]
    openapi: Option<PathBuf>,
    /// Its operation: an operationId, or 'POST /path'
    #[arg(long, value_name = "ID", help_heading = REQUEST)]
    #[arg(requires = "openapi", conflicts_with_all = ["url", "curl", "http"])]
    operation: Option<String>,
    /// Where the described service is [default: its first server]
    #[arg(long, value_name = "URL", help_heading = REQUEST)]
    #[arg(requires = "openapi", conflicts_with_all = ["url", "curl", "http"])]
    server: Option<String>,
    /// Put {tag} there in a JSON body
    #[arg(long, value_name = "POINTER", value_parser = pointer, help_heading = REQUEST)]
    pub(super) tag_at: Option<String>,
}

impl Request {
    /// Where the request is written, if it was given.
    pub(super) fn source(&self) -> Option<Source> {
        if let Some(file) = &self.curl {
            return Some(Source::Curl(file.clone()));
        }
        if let Some(file) = &self.http {
            return Some(Source::Http { file: file.clone(), name: self.name.clone() });
        }
        if let (Some(file), Some(operation)) = (&self.openapi, &self.operation) {
            let (file, operation) = (file.clone(), operation.clone());
            return Some(Source::OpenApi { file, operation, server: self.server.clone() });
        }
        let url = self.url.clone()?;
        Some(Source::Flags { method: self.method.clone(), url, data: self.data.clone() })
    }
}

#[derive(Args)]
pub(super) struct Counting {
    /// Answers how many effects {tag} had: a number, or JSON
    #[arg(long, value_name = "URL", help_heading = COUNTING)]
    #[arg(conflicts_with_all = ["count_command", "provider"])]
    pub(super) count_url: Option<String>,
    /// Where the number is in the JSON; a list counts by its length
    #[arg(long, value_name = "POINTER", requires = "count_url", help_heading = COUNTING)]
    #[arg(value_parser = pointer)]
    pub(super) count_pointer: Option<String>,
    /// A header for --count-url; may be repeated
    #[arg(long, value_name = "NAME: VALUE", requires = "count_url", help_heading = COUNTING)]
    pub(super) count_header: Vec<String>,
    /// Prints how many effects $SEMEL_TAG had
    #[arg(long, value_name = "COMMAND", conflicts_with = "provider", help_heading = COUNTING)]
    pub(super) count_command: Option<String>,
    /// Listen here as the provider behind the service and count what it gets; without a request, until Ctrl-C
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = COUNTING)]
    pub(super) provider: Option<SocketAddr>,
    /// The real provider, which --provider passes requests on to
    #[arg(long, value_name = "URL", requires = "provider", help_heading = COUNTING)]
    pub(super) record_to: Option<String>,
}

#[derive(Args)]
pub(super) struct More {
    /// A header that makes a request another tenant's; may be repeated
    #[arg(long, value_name = "NAME: VALUE", help_heading = MORE)]
    pub(super) other_tenant: Vec<String>,
    /// Another route of the service that takes keys
    #[arg(long, value_name = "URL", help_heading = MORE)]
    pub(super) other_route: Option<String>,
    /// A body it takes [default: the same]
    #[arg(long, value_name = "BODY|@FILE", requires = "other_route", help_heading = MORE)]
    pub(super) other_route_data: Option<String>,
    /// Another method that the same path takes
    #[arg(long, value_name = "METHOD", help_heading = MORE)]
    pub(super) other_method: Option<String>,
    /// A body the service refuses after it took the key: its error must be replayed, too
    #[arg(long, value_name = "BODY|@FILE", help_heading = MORE)]
    pub(super) failing_data: Option<String>,
    /// A body that takes longer than the service or its gateway waits: its effect comes late
    #[arg(long, value_name = "BODY|@FILE", help_heading = MORE)]
    pub(super) slow_data: Option<String>,
    /// A body whose answer is large [default: the same, with a long "note"]
    #[arg(long, value_name = "BODY|@FILE", help_heading = MORE)]
    pub(super) large_data: Option<String>,
    /// Where a request takes so long [default: the same URL]
    #[arg(long, value_name = "URL", help_heading = MORE)]
    pub(super) slow_url: Option<String>,
}

#[derive(Args)]
pub(super) struct Commands {
    /// Kill the service without warning
    #[arg(long, value_name = "COMMAND", requires = "start", help_heading = COMMANDS)]
    pub(super) kill: Option<String>,
    /// Start the service again
    #[arg(long, value_name = "COMMAND", requires = "kill", help_heading = COMMANDS)]
    pub(super) start: Option<String>,
    /// Take the service's store away
    #[arg(long, value_name = "COMMAND", requires = "store_start", help_heading = COMMANDS)]
    pub(super) store_stop: Option<String>,
    /// Give it back
    #[arg(long, value_name = "COMMAND", requires = "store_stop", help_heading = COMMANDS)]
    pub(super) store_start: Option<String>,
}

#[derive(Args)]
pub(super) struct Limits {
    /// Clients in the widest race, up to 1000
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = LIMITS)]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=RACE_MAX))]
    pub(super) race: u64,
    /// After this keys are forgotten: waits for it, and checks
    #[arg(long, value_name = "DURATION", value_parser = value::duration, help_heading = LIMITS)]
    pub(super) expiry: Option<Duration>,
    /// Decides all that is random; printed with every run [default: random]
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    pub(super) seed: Option<u64>,
    /// Most requests sent
    #[arg(long, value_name = "N", default_value_t = 20_000, help_heading = LIMITS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) requests_max: u64,
    /// Longest run
    #[arg(long, value_name = "DURATION", default_value = "10m", help_heading = LIMITS)]
    #[arg(value_parser = value::duration)]
    pub(super) time_max: Duration,
    /// Longest wait for one answer
    #[arg(long, value_name = "DURATION", default_value = "30s", help_heading = LIMITS)]
    #[arg(value_parser = value::duration)]
    pub(super) answer_max: Duration,
}

#[derive(Args)]
pub(super) struct Checks {
    /// Only these checks, by id or family, separated by commas
    #[arg(long, value_name = "CHECK", value_delimiter = ',', help_heading = CHECKS)]
    pub(super) only: Vec<String>,
    /// All but these
    #[arg(long, value_name = "CHECK", value_delimiter = ',', help_heading = CHECKS)]
    pub(super) skip: Vec<String>,
    /// What could not be shown counts as failed
    #[arg(long, help_heading = CHECKS)]
    pub(super) strict: bool,
}

/// Files to write.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Reports {
    /// The scorecard as JSON
    #[arg(long, value_name = "FILE", help_heading = REPORTS)]
    pub(crate) json: Option<PathBuf>,
    /// As JUnit's XML, for CI
    #[arg(long, value_name = "FILE", help_heading = REPORTS)]
    pub(crate) junit: Option<PathBuf>,
    /// As SARIF, for code scanning
    #[arg(long, value_name = "FILE", help_heading = REPORTS)]
    pub(crate) sarif: Option<PathBuf>,
    /// As a page with pictures
    #[arg(long, value_name = "FILE", help_heading = REPORTS)]
    pub(crate) html: Option<PathBuf>,
    /// A shell script for each failure that shows it again
    #[arg(long, value_name = "DIRECTORY", help_heading = REPORTS)]
    pub(crate) repro: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct Modes {
    /// Print the checks
    #[arg(long, help_heading = MODES)]
    pub(super) list: bool,
    /// Keep checking a live endpoint: one operation sent twice, one raced, both must happen once
    #[arg(long, conflicts_with_all = ["list", "front"], requires = "every", help_heading = MODES)]
    pub(super) canary: bool,
    /// A duration between rounds of --canary; for --front, every how many answers one is cut
    #[arg(long, value_name = "DURATION|N", help_heading = MODES)]
    pub(super) every: Option<String>,
    /// Rounds of --canary [default: without end]
    #[arg(long, value_name = "N", requires = "canary", help_heading = MODES)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) times: Option<u64>,
    /// --canary goes on after a failure
    #[arg(long, requires = "canary", help_heading = MODES)]
    pub(super) keep_going: bool,
    /// Listen here as a proxy in front of URL that cuts answers off, to test clients by hand
    #[arg(long, value_name = "ADDRESS:PORT", requires_all = ["url", "cut", "every"], help_heading = MODES)]
    pub(super) front: Option<SocketAddr>,
    /// Where --front cuts
    #[arg(long, value_enum, value_name = "PLACE", requires = "front", help_heading = MODES)]
    pub(super) cut: Option<Place>,
}

/// A [`Region`], as it is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Place {
    BeforeHead,
    InHead,
    InBody,
}

impl Place {
    pub(super) fn region(self) -> Region {
        match self {
            Self::BeforeHead => Region::BeforeHead,
            Self::InHead => Region::InHead,
            Self::InBody => Region::InBody,
        }
    }
}

fn pointer(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        pointer if pointer.starts_with('/') => Ok(pointer.to_owned()),
        _ => Err("a JSON pointer begins with a slash, such as /a/b".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &[&str]) -> Result<Arguments, String> {
        let words = std::iter::once(&"verify").chain(line);
        Line::try_parse_from(words).map(|line| line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn every_way_to_give_a_request_is_understood() {
        let source = |line: &[&str]| parse(line).unwrap().request.source();
        let flags = source(&["http://h/", "-X", "PUT", "-d", "x", "-H", "a: b"]);
        let expected =
            Source::Flags { method: Some("PUT".into()), url: "http://h/".into(), data: Some("x".into()) };
        assert_eq!(flags, Some(expected));
        assert_eq!(source(&["--curl", "-"]), Some(Source::Curl("-".into())));
        let http = Source::Http { file: "r.http".into(), name: Some("pay".into()) };
        assert_eq!(source(&["--http", "r.http", "--name", "pay"]), Some(http));
        let api = Source::OpenApi { file: "a.yaml".into(), operation: "pay".into(), server: None };
        assert_eq!(source(&["--openapi", "a.yaml", "--operation", "pay"]), Some(api));
        assert_eq!(source(&["--provider", "127.0.0.1:0"]), None);
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let arguments = parse(&["http://h/"]).unwrap();
        assert_eq!((arguments.profile.as_str(), arguments.limits.race), ("ietf", 64));
        assert_eq!(arguments.limits.requests_max, 20_000);
        assert_eq!(arguments.limits.time_max, Duration::from_secs(600));
        assert_eq!(arguments.limits.answer_max, Duration::from_secs(30));
        let arguments = parse(&["http://h/", "--only", "race,Key", "--only", "replay"]).unwrap();
        assert_eq!(arguments.checks.only, ["race", "Key", "replay"]);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            &["http://h/", "--curl", "f"][..],
            &["--http", "f", "--openapi", "g", "--operation", "x"],
            &["--openapi", "g"],
            &["--curl", "f", "-d", "x"],
            &["--name", "x", "http://h/"],
            &["--server", "x", "http://h/"],
            &["--operation", "x", "--curl", "f"],
            &["http://h/", "--count-url", "u", "--count-command", "c"],
            &["http://h/", "--count-pointer", "/a"],
            &["http://h/", "--count-url", "u", "--count-pointer", "a"],
            &["http://h/", "--record-to", "u"],
            &["http://h/", "--kill", "k"],
            &["http://h/", "--store-stop", "k"],
            &["http://h/", "--race", "1"],
            &["http://h/", "--race", "1001"],
            &["http://h/", "--time-max", "10"],
            &["http://h/", "--canary"],
            &["http://h/", "--keep-going"],
            &["http://h/", "--front", "127.0.0.1:1", "--every", "2"],
            &["--front", "127.0.0.1:1", "--every", "2", "--cut", "in-head"],
            &["http://h/", "--other-route-data", "x"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }
}
