//! Operations through the admin API of a running gateway, which knows its routes and its keys.
//!
//! Plain HTTP, no proxies, no redirects: the listener is on loopback or in a private network, and a
//! token must not travel further than the address somebody typed.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use semel::store::{Filter, SubjectPurge};
use semel::{Clock, OperationId, SystemClock, Timestamp, Token};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::http::{StatusCode, Uri};

use super::{Found, Listing, Operations, Who, refusal};
use crate::shown::{Bodies, Operation, State, SubjectKey};

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Largest answer read: an operation with its evidence.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Most operations the API gives in one page.
const PAGE_MAX: usize = 500;
/// How often a call is sent whose answer did not come. The gateway applies it once.
const TRIES_MAX: u32 = 3;

/// The API of one gateway.
pub(super) struct Admin {
    agent: ureq::Agent,
    base: String,
    bearer: Option<String>,
}

/// A call, ready to be sent more than once.
#[derive(Clone)]
struct Call {
    url: String,
    bearer: Option<String>,
    body: Option<String>,
}

/// A page as the API gives it.
#[derive(Deserialize)]
struct Page {
    operations: Vec<Operation>,
    next: Option<u64>,
}

/// What a changing call answers.
#[derive(Deserialize)]
struct Made {
    operation: Option<Operation>,
}

/// Why a call was refused: RFC 9457.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: String,
}

impl Admin {
    pub(super) fn at(address: &str, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let uri: Uri = address.parse().with_context(|| format!("{address:?} is not an address"))?;
        match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) if !authority.as_str().contains('@') => {}
            (Some("https"), _) => {
                bail!(
                    "the admin API speaks plain HTTP: use http://ADDRESS, on loopback or in a private network"
                )
            }
            _ => bail!("the address of the admin API looks like http://127.0.0.1:8081"),
        }
        let token = token_file.map(read_token).transpose()?;
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None);
        Ok(Self {
            agent: config.build().new_agent(),
            base: address.trim_end_matches('/').to_owned(),
            bearer: token.map(|token| format!("Bearer {token}")),
        })
    }

    async fn get_json<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Option<T>> {
        let call = Call { url: format!("{}{path}", self.base), bearer: self.bearer.clone(), body: None };
        self.send(call).await
    }

    async fn post_json<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        let (url, body) = (format!("{}{path}", self.base), Some(body.to_string()));
        let call = Call { url, bearer: self.bearer.clone(), body };
        self.send(call).await?.context("the gateway remembers no such operation")
    }

    /// `None`: 404.
    async fn send<T: DeserializeOwned>(&self, call: Call) -> anyhow::Result<Option<T>> {
        let mut tries = 1;
        let (status, body) = loop {
            let (agent, again) = (self.agent.clone(), call.clone());
            match tokio::task::spawn_blocking(move || again.send(&agent)).await? {
                Ok(answer) => break answer,
                Err(error) if tries == TRIES_MAX => {
                    return Err(error).with_context(|| {
                        format!(
                            "the admin API at {} does not answer; is a gateway running with --admin?",
                            self.base
                        )
                    });
                }
                Err(_) => tries += 1,
            }
        };
        match status {
            StatusCode::OK => {
                let answer = serde_json::from_slice(&body);
                Ok(Some(
                    answer.with_context(|| format!("{} is not the admin API of this version", self.base))?,
                ))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(refused(status, &body)),
        }
    }
}

impl Call {
    fn send(&self, agent: &ureq::Agent) -> Result<(StatusCode, Vec<u8>), ureq::Error> {
        let answer = match &self.body {
            None => {
                let get = agent.get(&self.url);
                self.bearer.iter().fold(get, |get, bearer| get.header("authorization", bearer)).call()
            }
            Some(body) => {
                let post = agent.post(&self.url).content_type("application/json");
                self.bearer.iter().fold(post, |post, bearer| post.header("authorization", bearer)).send(body)
            }
        };
        let mut answer = answer?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok((answer.status(), body))
    }
}

impl Operations for Admin {
    /// This machine's: the API does not tell the store's, and ages are for people.
    async fn now(&self) -> anyhow::Result<Timestamp> {
        Ok(SystemClock.now())
    }

    async fn list(&self, filter: &Filter, after: Token, limit: usize) -> anyhow::Result<Listing> {
        let query = query(filter);
        let (mut operations, mut next) = (Vec::new(), Some(after.0));
        while let Some(from) = next.filter(|_| operations.len() < limit) {
            let room = (limit - operations.len()).min(PAGE_MAX);
            let path = format!("/v1/operations?after={from}&limit={room}{query}");
            let page: Page = self.get_json(&path).await?.context("there is no admin API of this version")?;
            operations.extend(page.operations);
            if page.next == next {
                bail!("the admin API at {} lists the same page for ever", self.base);
            }
            next = page.next;
        }
        Ok(Listing { operations, next })
    }

    async fn get(&self, id: OperationId, bodies: Bodies) -> anyhow::Result<Option<Operation>> {
        let view = if bodies == Bodies::Shown { "?body=1" } else { "" };
        self.get_json(&format!("/v1/operations/{id}{view}")).await
    }

    async fn settle(&self, seen: &Operation, found: &Found, who: &Who) -> anyhow::Result<Operation> {
        if seen.state == State::InProgress {
            bail!(refusal::not_yet_unknown(seen, self.now().await?));
        }
        let mut body = json!({ "token": seen.token, "by": who.by, "note": who.note });
        let verb = match found {
            Found::Done(written) => {
                body["finding"] = "done".into();
                body["outcome"] = serde_json::to_value(written)?;
                "settle"
            }
            Found::Never => {
                body["finding"] = "never".into();
                "settle"
            }
            Found::Free => "free",
        };
        self.change(seen, verb, &body).await
    }

    async fn purge(&self, seen: &Operation, who: &Who) -> anyhow::Result<Operation> {
        self.change(seen, "purge", &json!({ "by": who.by, "note": who.note })).await
    }

    async fn purge_subject(&self, subject: &str, who: &Who) -> anyhow::Result<(SubjectPurge, SubjectKey)> {
        #[derive(Deserialize)]
        struct Purged {
            purged: u64,
            open: u64,
            #[serde(default)]
            more: bool,
            /// A gateway from before says nothing of it.
            key: Option<SubjectKey>,
        }
        let path = format!("/v1/subjects/{}/purge", encoded(subject));
        let body = json!({ "by": who.by, "note": who.note });
        let (mut total, mut forgotten) = (0, false);
        loop {
            let Purged { purged, open, more, key } = self.post_json(&path, &body).await?;
            total += purged;
            forgotten |= key == Some(SubjectKey::Forgotten);
            if !more || purged == 0 {
                let key = if forgotten { SubjectKey::Forgotten } else { key.unwrap_or(SubjectKey::NoPlace) };
                return Ok((SubjectPurge { purged: total, open, more }, key));
            }
        }
    }
}

impl Admin {
    async fn change(&self, seen: &Operation, verb: &str, body: &Value) -> anyhow::Result<Operation> {
        let id = seen.operation_id()?;
        let made: Made = self.post_json(&format!("/v1/operations/{id}/{verb}"), body).await?;
        // It is done even if it could not be read again.
        Ok(made.operation.unwrap_or_else(|| seen.clone()))
    }
}

fn query(filter: &Filter) -> String {
    let mut query = String::new();
    let mut add = |name: &str, value: &str| {
        let _ = write!(query, "&{name}={}", encoded(value));
    };
    filter.namespace.iter().for_each(|namespace| add("namespace", namespace));
    filter.route.iter().for_each(|route| add("route", route));
    filter.key.iter().for_each(|key| add("key", key.as_str()));
    // An empty tenant asks for operations that have none.
    filter.tenant.iter().for_each(|tenant| add("tenant", tenant.as_deref().unwrap_or_default()));
    if let Some(states) = &filter.states {
        let names: Vec<&str> = states.iter().map(|state| State::of(*state).name()).collect();
        add("state", &names.join(","));
    }
    query
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn refused(status: StatusCode, body: &[u8]) -> anyhow::Error {
    let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
    let told: Vec<&str> = [&problem.title, &problem.detail].into_iter().map(String::as_str).collect();
    let told: Vec<&str> = told.into_iter().filter(|part| !part.is_empty()).collect();
    match status {
        StatusCode::UNAUTHORIZED => {
            anyhow!("the admin API asks for its token: give it with --token-file FILE")
        }
        _ if told.is_empty() => anyhow!("the admin API answered {status}"),
        _ => anyhow!("the gateway refused: {}", told.join(": ")),
    }
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the token file {} cannot be read", path.display()))?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("the token file {} holds no token: one line of visible ASCII", path.display());
    }
    Ok(token.to_owned())
}
