//! Keeps checking a live endpoint, gently: each round one fresh operation is sent twice, another by a few
//! clients at once, and each must have happened once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Uri;
use semel::{Clock, SystemClock};
use tokio::time::{Instant, sleep};

use super::profile::Profile;
use super::safety::Secrets;
use super::setup::Setup;
use super::template;
use crate::gateway::fetch::{Failed, Http};

/// The widest race of a round.
const RACE_MAX: usize = 8;
/// How long an effect may take to be counted.
const COUNTED_MAX: Duration = Duration::from_secs(5);
/// How often it is counted meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// How a canary is run.
pub(super) struct Plan {
    pub(super) every: Duration,
    /// Rounds; without end if not given.
    pub(super) times: Option<u64>,
    pub(super) keep_going: bool,
}

pub(super) struct Canary {
    pub(super) setup: Setup,
    pub(super) http: Http,
    pub(super) secrets: Secrets,
}

/// An answer, as far as a retry must repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: Bytes,
}

impl Canary {
    /// Rounds until one fails or all were played. Gives back how many failed.
    pub(super) async fn run(&self, plan: &Plan, say: &mut (dyn FnMut(&str) + Send)) -> u64 {
        // Its own in every run, also with the same seed: a key of an earlier run would only be replayed.
        let salt: String = semel::Nonce::random().to_string().chars().take(8).collect();
        let mut failed = 0;
        let mut round = 0;
        loop {
            round += 1;
            let began = Instant::now();
            let (word, said) = match self.round(&salt, round).await {
                Ok(said) => ("ok", said),
                Err(said) => {
                    failed += 1;
                    ("FAILED", self.secrets.hide(&said))
                }
            };
            let at = crate::time::write(SystemClock.now());
            say(&format!("{at}  round {round}  {word}  {said}  ({}ms)", began.elapsed().as_millis()));
            let is_over = plan.times.is_some_and(|times| round >= times);
            if is_over || (failed > 0 && !plan.keep_going) {
                return failed;
            }
            sleep(plan.every.saturating_sub(began.elapsed())).await;
        }
    }

    async fn round(&self, salt: &str, round: u64) -> Result<String, String> {
        let operation = |which: &str| format!("t-{:x}-{salt}{round}{which}", self.setup.seed);
        let twice = operation("a");
        let first = self.send(&twice).await?;
        let again = self.send(&twice).await?;
        twice_is_once(&first, &again)?;
        let effects = self.effects(&twice, "sent twice").await?;

        let raced = operation("b");
        let width = self.setup.race_max.clamp(2, RACE_MAX);
        let answers = join_all((0..width).map(|_| self.send(&raced))).await;
        let mut answers = answers.into_iter().collect::<Result<Vec<Answer>, String>>()?;
        // Those that were told to wait come back once, and must find what the winner got.
        answers.push(self.send(&raced).await?);
        one_won(&self.setup.profile, &answers)?;
        self.effects(&raced, "raced").await?;
        Ok(match effects {
            Some(_) => format!("sent twice, one effect; race of {width}, one effect"),
            None => format!("sent twice, one answer; race of {width}, one answer; effects are not counted"),
        })
    }

    async fn send(&self, tag: &str) -> Result<Answer, String> {
        let key_header = &self.setup.profile.key_header;
        let request = self.setup.template.tagged(tag).with(key_header, format!("canary-{tag}"));
        let answer = self.http.send(outgoing(request)?, self.setup.answer_max).await;
        let answer = answer.map_err(|error| match error {
            // It would show the URL.
            Failed::Address(_) => "the URL cannot be sent".to_owned(),
            other => format!("no answer: {other}"),
        })?;
        Ok(Answer { status: answer.status.as_u16(), body: answer.body })
    }

    /// Waits for the effect to be counted, and says how it was sent if there is not one.
    async fn effects(&self, tag: &str, how: &str) -> Result<Option<u64>, String> {
        let Some(effects) = self.setup.effects.as_ref().map(Arc::clone) else { return Ok(None) };
        let deadline = Instant::now() + COUNTED_MAX;
        loop {
            match effects.count(tag).await? {
                1 => return Ok(Some(1)),
                0 if Instant::now() < deadline => sleep(PAUSE).await,
                0 => return Err(format!("operation {tag}, {how}, was answered and had no effect")),
                many => return Err(format!("operation {tag}, {how}, had {many} effects")),
            }
        }
    }
}

fn outgoing(request: template::Request) -> Result<http::Request<Bytes>, String> {
    let url: Uri = request.url.parse().map_err(|_| "the URL cannot be sent".to_owned())?;
    let mut outgoing = http::Request::builder().method(request.method.as_str()).uri(url);
    for (name, value) in &request.headers {
        outgoing = outgoing.header(name, value.as_slice());
    }
    outgoing.body(request.body).map_err(|error| format!("the request cannot be sent: {error}"))
}

fn twice_is_once(first: &Answer, again: &Answer) -> Result<(), String> {
    if !(200..300).contains(&first.status) {
        return Err(format!(
            "a fresh operation was answered {}, and the canary needs one that succeeds",
            first.status
        ));
    }
    if first.status != again.status {
        return Err(format!("the first was answered {}, its retry {}", first.status, again.status));
    }
    if first.body != again.body {
        return Err("the retry was answered with another body than the first".into());
    }
    Ok(())
}

/// All that succeeded got one answer, and the rest were told to wait; in the end there is an answer.
fn one_won(profile: &Profile, answers: &[Answer]) -> Result<(), String> {
    let succeeded = |answer: &&Answer| (200..300).contains(&answer.status);
    let told_to_wait = |answer: &Answer| {
        profile.in_flight.contains(&answer.status) || profile.unknown.contains(&answer.status)
    };
    if let Some(other) = answers.iter().find(|answer| !succeeded(answer) && !told_to_wait(answer)) {
        return Err(format!("one of {} in a race was answered {}", answers.len() - 1, other.status));
    }
    let won: Vec<&Answer> = answers.iter().filter(succeeded).collect();
    match won.first() {
        None => Err("nobody in a race was answered with success".into()),
        Some(first) if won.iter().any(|other| other != first) => {
            Err("two in a race were answered with success, and differently".into())
        }
        Some(_) if !answers.last().is_some_and(|last| succeeded(&last)) => {
            Err("after a race was over, a retry was told to wait".into())
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::client;
    use crate::verify::hooks::{Commands, Shell};
    use crate::verify::provider::Provider;
    use crate::verify::template::Template;
    use axum::Router;
    use axum::extract::State;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::post;
    use std::collections::HashMap;
    use std::net::SocketAddr;
    use std::sync::Mutex;

    /// How a service under test goes wrong.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kind {
        Right,
        /// Looks first and writes later.
        NotAtomic,
        NoKeys,
        /// Does nothing and says that it did.
        Lying,
        Away,
    }

    #[derive(Clone)]
    struct Service {
        kind: Kind,
        provider: SocketAddr,
        /// Answers by key; `None` while the first runs.
        kept: Arc<Mutex<HashMap<String, Option<String>>>>,
    }

    async fn pay(State(service): State<Service>, headers: HeaderMap, body: String) -> (StatusCode, String) {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        let found = service.kept.lock().unwrap().get(&key).cloned();
        match (service.kind, found) {
            (Kind::Away, _) => return (StatusCode::SERVICE_UNAVAILABLE, String::new()),
            (Kind::Lying, _) => return (StatusCode::OK, "same".into()),
            (Kind::Right, None) => drop(service.kept.lock().unwrap().insert(key.clone(), None)),
            (Kind::Right, Some(None)) => return (StatusCode::CONFLICT, String::new()),
            (Kind::Right | Kind::NotAtomic, Some(Some(kept))) => return (StatusCode::OK, kept),
            _ => {}
        }
        let request =
            http::Request::post(format!("http://{}/charge", service.provider)).body(body.into()).unwrap();
        let receipt = client().unwrap().send(request, Duration::from_secs(20)).await.unwrap();
        let receipt = String::from_utf8(receipt.body.to_vec()).unwrap();
        service.kept.lock().unwrap().insert(key, Some(receipt.clone()));
        (StatusCode::OK, receipt)
    }

    async fn canary(kind: Kind) -> Canary {
        let provider = Provider::listen("127.0.0.1:0".parse().unwrap(), None).await.unwrap();
        let service = Service { kind, provider: provider.address(), kept: Arc::default() };
        let router = Router::new().route("/pay", post(pay)).with_state(service);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pay", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let template =
            Template { method: "POST".into(), url, headers: vec![], body: r#"{"r":"{tag}"}"#.into() };
        let setup = Setup {
            template,
            profile: Profile::find("ietf").unwrap(),
            other_tenant: vec![],
            other_route: None,
            other_method: None,
            failing: None,
            slow: None,
            large: None,
            effects: Some(Arc::new(provider)),
            hooks: Arc::new(Shell(Arc::new(Commands::default()))),
            seed: 7,
            race_max: 4,
            expiry: None,
            answer_max: Duration::from_secs(20),
            requests_max: 100,
            time_max: Duration::from_secs(60),
            only: vec![],
            skip: vec![],
        };
        Canary { setup, http: client().unwrap(), secrets: Secrets::default() }
    }

    async fn played(canary: &Canary, times: u64, keep_going: bool) -> (u64, Vec<String>) {
        let mut lines = Vec::new();
        let plan = Plan { every: Duration::from_millis(1), times: Some(times), keep_going };
        let failed = canary.run(&plan, &mut |line| lines.push(line.to_owned())).await;
        (failed, lines)
    }

    #[tokio::test]
    async fn a_service_that_keeps_its_word_passes_round_after_round() {
        let mut canary = canary(Kind::Right).await;
        let (failed, lines) = played(&canary, 3, false).await;
        assert_eq!((failed, lines.len()), (0, 3), "{lines:?}");
        assert!(lines[2].contains("round 3  ok  sent twice, one effect; race of 4, one effect"), "{lines:?}");
        canary.setup.effects = None;
        canary.setup.seed = 8;
        let (failed, lines) = played(&canary, 1, false).await;
        assert!(failed == 0 && lines[0].contains("effects are not counted"), "{lines:?}");
    }

    #[tokio::test]
    async fn services_that_repeat_forget_or_pretend_fail_and_it_is_said_how() {
        for (kind, named) in
            [(Kind::NotAtomic, "differently"), (Kind::NoKeys, "another body"), (Kind::Away, "503")]
        {
            let (failed, lines) = played(&canary(kind).await, 3, false).await;
            assert_eq!((failed, lines.len()), (1, 1), "it ends with the first failure: {lines:?}");
            assert!(lines[0].contains("FAILED") && lines[0].contains(named), "{lines:?}");
        }
        let (failed, lines) = played(&canary(Kind::NoKeys).await, 2, true).await;
        assert_eq!((failed, lines.len()), (2, 2), "{lines:?}");
    }

    #[tokio::test]
    async fn an_effect_that_is_promised_and_does_not_come_fails() {
        let (failed, lines) = played(&canary(Kind::Lying).await, 1, false).await;
        assert!(failed == 1 && lines[0].contains("had no effect"), "{lines:?}");
    }

    #[test]
    fn a_race_is_judged_by_all_its_answers() {
        let profile = Profile::find("semel").unwrap();
        let answer = |status: u16, body: &'static str| Answer { status, body: body.into() };
        let (won, wait) = (answer(201, "a"), answer(409, ""));
        assert_eq!(one_won(&profile, &[wait.clone(), won.clone(), won.clone()]), Ok(()));
        for wrong in [
            vec![won.clone(), answer(201, "b"), won.clone()],
            vec![won.clone(), answer(500, ""), won.clone()],
            vec![won.clone(), wait.clone()],
            vec![wait.clone(), wait.clone()],
        ] {
            assert!(one_won(&profile, &wrong).is_err(), "{wrong:?}");
        }
    }
}
