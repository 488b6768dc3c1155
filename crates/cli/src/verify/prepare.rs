//! From what was said to what a run needs.

use std::sync::Arc;
use std::time::Duration;

use semel::Nonce;
use tokio::net::TcpStream;

use super::arguments::{Arguments, Counting, More};
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
    let others = Others::of(&template, &arguments.more)?;
    let urls = || [Some(&template), others.route.as_ref(), others.slow.as_ref()].into_iter().flatten();
    let urls = || urls().map(|request| request.url.as_str());
    if !arguments.i_own_this_target {
        for url in urls().map(str::to_owned).chain(asked(&arguments.counting)) {
            safety::only_this_machine(&url).await?;
        }
    }
    let (host, port) = safety::host_and_port(&template.url).ok_or("the URL has no host")?;
    reach(&host, port).await?;

    let headers = template.headers.iter().chain(&other_tenant).chain(&count_headers);
    let secrets = Secrets::of(headers, urls(), &profile.key_header);
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
        other_route: others.route,
        other_method: others.method,
        failing: others.failing,
        slow: others.slow,
        large: others.large,
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

/// Requests beside the one under test.
struct Others {
    route: Option<Template>,
    method: Option<String>,
    failing: Option<Template>,
    slow: Option<Template>,
    large: Option<Template>,
}

impl Others {
    fn of(template: &Template, more: &More) -> Result<Self, String> {
        let method = more.other_method.clone();
        let is_method = |method: &String| http::Method::from_bytes(method.as_bytes()).is_ok();
        if let Some(method) = method.as_ref().filter(|method| !is_method(method)) {
            return Err(format!("--other-method `{method}` is not a method"));
        }
        let route = more.other_route.as_deref();
        let route = route.map(|url| elsewhere(template, url, more.other_route_data.as_deref()));
        let failing = more.failing_data.as_deref();
        let failing = failing.map(|data| elsewhere(template, &template.url, Some(data)));
        let slow = match (more.slow_url.as_deref(), more.slow_data.as_deref()) {
            (None, None) => None,
            (url, data) => Some(elsewhere(template, url.unwrap_or(&template.url), data)),
        };
        let large = more.large_data.as_deref();
        let large = large.map(|data| elsewhere(template, &template.url, Some(data)));
        Ok(Self {
            route: route.transpose()?,
            method,
            failing: failing.transpose()?,
            slow: slow.transpose()?,
            large: large.transpose()?,
        })
    }
}

/// The same request to another URL, perhaps with another body.
fn elsewhere(template: &Template, url: &str, data: Option<&str>) -> Result<Template, String> {
    let (url, credentials) = inputs::target(url)?;
    let mut headers = template.headers.clone();
    if let Some(credentials) = credentials {
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        headers.push(credentials);
    }
    let body = data.map(inputs::data).transpose()?.unwrap_or_else(|| template.body.clone());
    Ok(Template { method: template.method.clone(), url, headers, body })
}

/// Where else requests of a run go.
fn asked(counting: &Counting) -> Vec<String> {
    let asked = [&counting.count_url, &counting.record_to].into_iter().flatten();
    asked.filter_map(|url| Some(inputs::target(url).ok()?.0)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::client;
    use crate::verify::scenario::Hook;
    use clap::Parser;
    use tokio::net::TcpListener;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    const RACE: About = About { id: "race", family: "Race", rules: &[], must: "" };

    /// Prepares with `URL` standing for a target that accepts connections.
    async fn prepared(line: &[&str]) -> Result<Prepared, String> {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pay", target.local_addr().unwrap());
        let words: Vec<String> = line.iter().map(|word| word.replace("URL", &url)).collect();
        let line = Line::try_parse_from(std::iter::once("verify".to_owned()).chain(words)).unwrap();
        prepare(&line.arguments, &[RACE], &client().unwrap()).await
    }

    #[tokio::test]
    async fn what_was_said_is_what_a_run_gets() {
        let place = tempfile::tempdir().unwrap();
        let body = place.path().join("body");
        std::fs::write(&body, "{\"from\":\"{tag}\"}").unwrap();
        let body = format!("@{}", body.display());
        let words = "URL -X PUT -H X-A:1 --profile stripe --other-tenant X-T:2 --other-route URL/other \
                     --other-route-data other --other-method PATCH --failing-data bad --slow-url URL?delay=9 --large-data long \
                     --kill true --start true --race 7 --expiry 3s --seed 5 --requests-max 6 --time-max 4s \
                     --answer-max 2s --only RACE --skip race --count-command";
        let mut line: Vec<&str> = words.split_whitespace().collect();
        line.extend(["echo 1", "-d", &body]);
        let Prepared { setup, notes, .. } = prepared(&line).await.unwrap();
        assert_eq!((setup.template.method.as_str(), notes.len()), ("PUT", 0), "{notes:?}");
        assert_eq!(setup.template.body, "{\"from\":\"{tag}\"}");
        assert_eq!(setup.profile.name, "stripe");
        assert_eq!(setup.other_tenant, [("X-T".to_owned(), "2".to_owned())]);
        let other = setup.other_route.unwrap();
        assert!(other.url.ends_with("/pay/other") && other.headers == setup.template.headers);
        assert_eq!((other.body.as_ref(), other.method.as_str()), (b"other".as_slice(), "PUT"));
        assert_eq!(setup.other_method.as_deref(), Some("PATCH"));
        assert_eq!((setup.failing.unwrap().body, setup.large.unwrap().body), ("bad".into(), "long".into()));
        let slow = setup.slow.unwrap();
        assert!(slow.url.ends_with("?delay=9") && slow.body == setup.template.body);
        assert_eq!(setup.effects.unwrap().count("t-1").await, Ok(1));
        assert!(setup.hooks.has(Hook::Kill) && !setup.hooks.has(Hook::StoreStop));
        assert_eq!((setup.race_max, setup.seed, setup.requests_max), (7, 5, 6));
        let seconds = [setup.expiry.unwrap(), setup.time_max, setup.answer_max].map(|time| time.as_secs());
        assert_eq!(seconds, [3, 4, 2]);
        assert_eq!((setup.only, setup.skip), (vec!["RACE".to_owned()], vec!["race".to_owned()]));
    }

    #[tokio::test]
    async fn what_would_prove_nothing_is_said_before_anything_is_sent() {
        let said = prepared(&["URL", "-d", "{}", "--count-command", "echo 1"]).await.err().unwrap();
        assert!(said.contains("--tag-at"), "{said}");
        let notes = prepared(&["URL", "-X", "GET"]).await.unwrap().notes;
        assert!(
            notes.len() == 2 && notes[0].contains("--count-url") && notes[1].contains("GET"),
            "{notes:?}"
        );
        let said = prepared(&["URL", "--skip", "rac"]).await.err().unwrap();
        assert!(said.contains("did you mean `race`?"), "{said}");
        let said = prepared(&["URL", "--other-method", "A B"]).await.err().unwrap();
        assert!(said.contains("A B"), "{said}");
    }

    #[tokio::test]
    async fn seeds_are_random_unless_given() {
        let (one, other) = (prepared(&["URL"]).await.unwrap(), prepared(&["URL"]).await.unwrap());
        assert_ne!(one.setup.seed, other.setup.seed);
        assert!(one.setup.seed < 1 << 53);
    }
}
