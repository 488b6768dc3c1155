//! `semel verify`: proves or breaks the idempotency of any HTTP API, from outside.
//!
//! It sends one request again and again, in every way in which retries come, and counts what happened.
//! A check plans a scenario, the runner plays it, the check
//! judges what was seen, and the scorecard says so in every form people and machines read.

mod arguments;
mod canary;
mod checks;
mod count;
mod front;
mod hooks;
mod inputs;
mod json;
mod prepare;
mod profile;
mod progress;
mod provider;
mod report;
mod repro;
mod runner;
mod safety;
mod scenario;
mod scorecard;
mod setup;
mod shell;
mod shrink;
mod template;
mod wire;

use crate::say::say;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, anyhow, bail};
use semel::runtime::Tokio;
use tokio::net::TcpListener;

pub(crate) use arguments::{Arguments, HELP};
use arguments::{Modes, Reports};
use canary::{Canary, Plan, Rounds};
use front::Front;
use prepare::Prepared;
use progress::Progress;
use report::Report;
use report::text::Colours;
use scorecard::{About, Scorecard};
use setup::Setup;

use crate::config::value;
use crate::gateway::client_config;
use crate::gateway::fetch::{self, Http};
use crate::gateway::net::RealNetwork;

/// All holds.
const HOLDS: u8 = 0;
/// Something does not.
const BROKEN: u8 = 1;
/// Used wrongly, refused, or the target cannot be reached.
const UNUSABLE: u8 = 2;

/// Every error here is a way in which nothing could be checked; what was checked ends in the exit code.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match mode(arguments).await {
        Ok(code) => Ok(code.into()),
        Err(error) => {
            eprintln!("semel: {error:#}");
            Ok(UNUSABLE.into())
        }
    }
}

async fn mode(arguments: Arguments) -> anyhow::Result<u8> {
    if arguments.modes.list {
        crate::say::text(&listed(&checks()));
        return Ok(HOLDS);
    }
    let http = client()?;
    if let Some(address) = arguments.modes.front {
        return stand_in_front(&arguments, address, http).await;
    }
    if arguments.request.source().is_none() && arguments.counting.provider.is_some() {
        return provide(&arguments, &http).await;
    }
    let Prepared { setup, secrets, notes } =
        prepare::prepare(&arguments, &checks(), &http).await.map_err(|said| anyhow!(said))?;
    for note in notes {
        eprintln!("note: {note}");
    }
    // Printed before anything is sent: a run that is broken off can be played again.
    eprintln!("seed {}", setup.seed);
    if arguments.modes.canary {
        let plan = plan(&arguments.modes)?;
        let rounds = Canary { setup, http, secrets }.run(&plan, &mut |line| say!("{line}")).await;
        return Ok(match rounds {
            Rounds { failed: 1.., .. } => BROKEN,
            // Nothing was told at all.
            Rounds { well: 0, .. } => UNUSABLE,
            _ => HOLDS,
        });
    }
    let scorecard = play(&setup).await;
    report(&scorecard, &setup, &arguments.reports)?;
    Ok(code(&scorecard, arguments.checks.strict))
}

/// The checks there are.
fn checks() -> Vec<About> {
    checks::all().into_iter().map(|check| check.about).collect()
}

/// Plays all checks.
async fn play(setup: &Setup) -> Scorecard {
    runner::verify(setup, &Progress::on_stderr()).await
}

/// Writes the files that were asked for, and prints the report.
fn report(scorecard: &Scorecard, setup: &Setup, files: &Reports) -> anyhow::Result<()> {
    let scripts = match &files.repro {
        Some(directory) => repro::keep(scorecard, setup, directory)
            .with_context(|| format!("cannot write scripts to {}", directory.display()))?,
        None => BTreeMap::new(),
    };
    let report = Report { card: scorecard, scripts: &scripts };
    keep(&files.json, || report::json::write(&report))?;
    keep(&files.junit, || report::junit::write(&report))?;
    keep(&files.sarif, || report::sarif::write(&report))?;
    keep(&files.html, || report::html::write(&report))?;
    crate::say::text(&report::text::write(&report, Colours::of(&std::io::stdout())));
    Ok(())
}

fn keep(file: &Option<PathBuf>, write: impl FnOnce() -> String) -> anyhow::Result<()> {
    match file {
        Some(file) => {
            std::fs::write(file, write()).with_context(|| format!("cannot write {}", file.display()))
        }
        None => Ok(()),
    }
}

fn code(scorecard: &Scorecard, strict: bool) -> u8 {
    match scorecard.totals() {
        (_, 1.., _) => BROKEN,
        // Nothing was shown at all: that is no good news.
        (0, ..) => UNUSABLE,
        (_, _, 1..) if strict => BROKEN,
        _ => HOLDS,
    }
}

fn listed(checks: &[About]) -> String {
    let width = checks.iter().map(|about| about.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut family = "";
    for about in checks {
        if about.family != family {
            family = about.family;
            let _ = writeln!(text, "{family}");
        }
        let _ = writeln!(text, "  {:<width$}  {}  [{}]", about.id, about.must, about.rules.join(", "));
    }
    text
}

/// For all small requests beside the checks: counts, canaries, what a proxy passes on.
fn client() -> anyhow::Result<Http> {
    let tls = Arc::new(client_config(None)?);
    Ok(Http::new(fetch::over(Arc::new(RealNetwork)), tls, Arc::new(Tokio::new())))
}

fn plan(modes: &Modes) -> anyhow::Result<Plan> {
    let every = modes.every.as_deref().unwrap_or("1m");
    let every = value::duration(every).map_err(|said| anyhow!("--every: {said}"))?;
    Ok(Plan { every, times: modes.times, keep_going: modes.keep_going })
}

async fn stand_in_front(arguments: &Arguments, address: SocketAddr, http: Http) -> anyhow::Result<u8> {
    let modes = &arguments.modes;
    let every = modes.every.as_deref().unwrap_or("1");
    let every: u64 = every
        .parse()
        .ok()
        .filter(|every| *every > 0)
        .with_context(|| format!("--every {every}: with --front it is a number of answers, such as 3"))?;
    let region = modes.cut.context("--front needs --cut")?.region();
    let url = arguments.request.url.as_deref().context("--front needs a URL")?;
    let (url, credentials) = inputs::target(url).map_err(|said| anyhow!(said))?;
    if credentials.is_some() {
        bail!("--front passes on what clients send; leave user and password out of the URL");
    }
    if !arguments.i_own_this_target {
        safety::only_this_machine(&url).await.map_err(|said| anyhow!(said))?;
    }
    let (host, port) = safety::host_and_port(&url).context("the URL has no host")?;
    prepare::reach(&host, port).await.map_err(|said| anyhow!(said))?;
    let origin = origin(&url);
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    say!("in front of {origin} on http://{}; ends with Ctrl-C", listener.local_addr()?);
    let front = Front { http, origin, region, every, answered: AtomicU64::new(0) };
    Arc::new(front).serve(listener).await.context("no more connections can be taken")?;
    Ok(HOLDS)
}

/// `http://host:port` of a URL.
fn origin(url: &str) -> String {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority..].find('/').map_or(url.len(), |at| authority + at);
    url[..end].to_owned()
}

/// The provider alone, for a service whose requests come from elsewhere, and for scripts.
async fn provide(arguments: &Arguments, http: &Http) -> anyhow::Result<u8> {
    if let Some(url) = &arguments.counting.record_to
        && !arguments.i_own_this_target
    {
        let (url, _) = inputs::target(url).map_err(|said| anyhow!(said))?;
        safety::only_this_machine(&url).await.map_err(|said| anyhow!(said))?;
    }
    let provider = prepare::provider(&arguments.counting, http).await.map_err(|said| anyhow!(said))?;
    let provider = provider.context("--provider needs an address")?;
    let address = provider.address();
    say!(
        "provider on http://{address}; http://{address}{}TAG counts; ends with Ctrl-C",
        provider::COUNT_PATH
    );
    tokio::signal::ctrl_c().await.context("signals cannot be heard")?;
    say!("{} requests", provider.requests());
    Ok(HOLDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::{Scenario, Seen};
    use scorecard::{Finding, Verdict};
    use std::time::{Duration, SystemTime};

    const REPLAY: About =
        About { id: "replay", family: "Replay", rules: &["G-14"], must: "A retry is answered alike." };
    const RACE: About =
        About { id: "race", family: "Race", rules: &["G-8", "G-14"], must: "One of many wins." };

    fn scorecard(verdicts: Vec<Verdict>) -> Scorecard {
        let finding = |verdict| Finding {
            about: REPLAY,
            verdict,
            took: Duration::ZERO,
            scenario: Scenario::default(),
            seen: Seen::default(),
        };
        Scorecard {
            target: "POST http://127.0.0.1:1/".into(),
            profile: "ietf".into(),
            seed: 1,
            started: SystemTime::UNIX_EPOCH,
            took: Duration::ZERO,
            requests: 0,
            findings: verdicts.into_iter().map(finding).collect(),
        }
    }

    #[test]
    fn the_exit_code_says_whether_all_holds() {
        let fail = Verdict::Fail { cause: "not-atomic", what: String::new(), advice: "" };
        let not_shown = Verdict::NotShown("no counter".into());
        assert_eq!(code(&scorecard(vec![Verdict::Pass]), true), HOLDS);
        assert_eq!(code(&scorecard(vec![Verdict::Pass, not_shown.clone()]), false), HOLDS);
        assert_eq!(code(&scorecard(vec![Verdict::Pass, not_shown.clone()]), true), BROKEN);
        assert_eq!(code(&scorecard(vec![not_shown]), false), UNUSABLE, "silence is no consent");
        assert_eq!(code(&scorecard(vec![Verdict::Pass, fail]), false), BROKEN);
    }

    #[test]
    fn checks_are_listed_by_family() {
        let expected = "Replay\n  replay  A retry is answered alike.  [G-14]\nRace\n  race    One of many wins.  [G-8, G-14]\n";
        assert_eq!(listed(&[REPLAY, RACE]), expected);
    }

    #[test]
    fn an_origin_ends_before_the_path() {
        assert_eq!(origin("https://h:1/a/b?c=d"), "https://h:1");
        assert_eq!(origin("http://[::1]/"), "http://[::1]");
    }
}
