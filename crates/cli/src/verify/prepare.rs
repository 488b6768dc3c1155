//! From what was said to what a run needs.

use std::sync::Arc;
use std::time::Duration;

use semel::Nonce;
use tokio::net::TcpStream;

use super::arguments::{Arguments, Counting};
use super::count::{CountCommand, CountUrl};
use super::hooks::{self, Shell};
use super::inputs;
use super::profile::Profile;
use super::provider::Provider;
use super::safety::{self, Secrets};
use super::scorecard::About;
use super::setup::{Effects, Setup};
use super::template::{TAG, Template};
use crate::config::mistake::suggestion;
use crate::gateway::fetch::Http;

/// How long the target may take to accept the first connection.
const REACHED_MAX: Duration = Duration::from_secs(5);

/// A run that can begin.
pub(super) struct Prepared {
    pub(super) setup: Setup,
    pub(super) secrets: Secrets,
    /// What the user should know before it begins.
    pub(super) notes: Vec<String>,
}

/// Reads and judges all that was said. `checks` are those there are. The error is a sentence.
pub(super) async fn prepare(
    arguments: &Arguments,
    checks: &[About],
    http: &Http,
) -> Result<Prepared, String> {
    let profile = Profile::find(&arguments.profile)?;
    let source = arguments
        .request
        .source()
        .ok_or("there is nothing to check: give a URL, or a request with --curl, --http or --openapi")?;
    let given = &arguments.request;
    let headers = inputs::headers("--header", &given.header)?;
    let other_tenant = inputs::headers("--other-tenant", &arguments.more.other_tenant)?;
    let count_headers = inputs::headers("--count-header", &arguments.counting.count_header)?;
    let template = inputs::read(&source, &headers, &profile.key_header, given.tag_at.as_deref())?;
    for wanted in arguments.checks.only.iter().chain(&arguments.checks.skip) {
        known(wanted, checks)?;
    }
    let more = &arguments.more;
    let other_route =
        more.other_route.as_deref().map(|url| other_route(&template, url, more.other_route_data.as_deref()));
    let other_route = other_route.transpose()?;
    let other_method = more.other_method.clone();
    if let Some(method) =
        other_method.as_deref().filter(|method| http::Method::from_bytes(method.as_bytes()).is_err())
    {
        return Err(format!("--other-method `{method}` is not a method"));
    }
    let failing = more.failing_data.as_deref().map(inputs::data).transpose()?;
    let failing = failing.map(|body| Template { body, ..template.clone() });
    if !arguments.i_own_this_target {
        for url in urls(&template, other_route.as_ref(), &arguments.counting) {
            safety::only_this_machine(&url).await?;
        }
    }
    let (host, port) = safety::host_and_port(&template.url).ok_or("the URL has no host")?;
    reach(&host, port).await?;

    let headers = template.headers.iter().chain(&other_tenant).chain(&count_headers);
    let seen = [Some(&template), other_route.as_ref()].into_iter().flatten().map(|one| one.url.as_str());
    let secrets = Secrets::of(headers, seen, &profile.key_header);
    let effects = counter(&arguments.counting, count_headers, http, &secrets).await?;
    let notes = notes(&template, effects.is_some())?;
    let commands = &arguments.commands;
    let hooks = Shell(Arc::new(hooks::Commands {
        kill: commands.kill.clone(),
        start: commands.start.clone(),
        store_stop: commands.store_stop.clone(),
        store_start: commands.store_start.clone(),
        host,
        port,
        limit: hooks::HOOK_MAX,
        secrets: secrets.clone(),
    }));
    let limits = &arguments.limits;
    let setup = Setup {
        template,
        profile,
        other_tenant,
        other_route,
        other_method,
        failing,
        effects,
        hooks: Arc::new(hooks),
        seed: limits.seed.unwrap_or_else(random_seed),
        race_max: usize::try_from(limits.race).unwrap_or(usize::MAX),
        expiry: limits.expiry,
        answer_max: limits.answer_max,
        requests_max: limits.requests_max,
        time_max: limits.time_max,
        only: arguments.checks.only.clone(),
        skip: arguments.checks.skip.clone(),
    };
    Ok(Prepared { setup, secrets, notes })
}

/// Small enough for every reader of JSON.
fn random_seed() -> u64 {
    let nonce = Nonce::random();
    nonce.as_bytes().iter().take(6).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

fn known(wanted: &str, checks: &[About]) -> Result<(), String> {
    let names = || checks.iter().flat_map(|about| [about.id, about.family]);
    if names().any(|name| name.eq_ignore_ascii_case(wanted)) {
        return Ok(());
    }
    let near = suggestion(wanted, names());
    Err(format!("no check or family is called `{wanted}`{near}; --list prints them"))
}

fn other_route(template: &Template, url: &str, data: Option<&str>) -> Result<Template, String> {
    let (url, credentials) = inputs::target(url)?;
    let mut headers = template.headers.clone();
    if let Some(credentials) = credentials {
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        headers.push(credentials);
    }
    let body = data.map(inputs::data).transpose()?.unwrap_or_else(|| template.body.clone());
    Ok(Template { method: template.method.clone(), url, headers, body })
}

/// Wherever requests of a run go.
fn urls(template: &Template, other_route: Option<&Template>, counting: &Counting) -> Vec<String> {
    let mut urls = vec![template.url.clone()];
    urls.extend(other_route.map(|other| other.url.clone()));
    let asked = [&counting.count_url, &counting.record_to].into_iter().flatten();
    urls.extend(asked.filter_map(|url| Some(inputs::target(url).ok()?.0)));
    urls
}

pub(super) async fn reach(host: &str, port: u16) -> Result<(), String> {
    match tokio::time::timeout(REACHED_MAX, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("the target cannot be reached: {host}:{port}: {error}")),
        Err(_) => Err(format!(
            "the target cannot be reached: {host}:{port} did not answer within {}s",
            REACHED_MAX.as_secs()
        )),
    }
}

async fn counter(
    counting: &Counting,
    headers: Vec<(String, String)>,
    http: &Http,
    secrets: &Secrets,
) -> Result<Option<Arc<dyn Effects>>, String> {
    if let Some(url) = &counting.count_url {
        let counter = CountUrl::new(http.clone(), url, counting.count_pointer.clone(), headers)?;
        return Ok(Some(Arc::new(counter)));
    }
    if let Some(command) = &counting.count_command {
        return Ok(Some(Arc::new(CountCommand { command: command.clone(), secrets: secrets.clone() })));
    }
    match provider(counting, http).await? {
        Some(provider) => Ok(Some(Arc::new(provider))),
        None => Ok(None),
    }
}

/// Starts the provider that was asked for.
pub(super) async fn provider(counting: &Counting, http: &Http) -> Result<Option<Provider>, String> {
    let Some(address) = counting.provider else { return Ok(None) };
    let forward = match &counting.record_to {
        Some(url) => {
            let (base, credentials) = inputs::target(url)?;
            if credentials.is_some() {
                return Err(
                    "--record-to takes no user and password: the service under test sends its own".into()
                );
            }
            Some((http.clone(), base))
        }
        None => None,
    };
    Provider::listen(address, forward).await.map(Some)
}

fn notes(template: &Template, is_counted: bool) -> Result<Vec<String>, String> {
    if is_counted && !template.has_tag() {
        return Err(format!(
            "effects are to be counted, but {TAG} is nowhere in the request; put it where the service \
             passes it on (a reference, a description, a path), or give --tag-at POINTER"
        ));
    }
    let mut notes = Vec::new();
    if !is_counted {
        notes.push(
            "effects are not counted, so only answers can be judged; give --count-url, --count-command or \
             --provider"
                .into(),
        );
    }
    if matches!(template.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE") {
        notes.push(format!(
            "{} has no effects by its meaning, and most services ignore keys on it",
            template.method
        ));
    }
    Ok(notes)
}
