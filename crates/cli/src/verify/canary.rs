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
/// After this it is counted once more: a second effect may come behind its answer.
const SETTLES: Duration = Duration::from_millis(500);

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

/// Why a round is not well.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    /// The service did not keep its word.
    Failed(String),
    /// Nothing was told about it: no answer, too many requests, no count.
    NotTold(String),
}

/// What rounds came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rounds {
    pub(super) well: u64,
    pub(super) failed: u64,
    pub(super) not_told: u64,
}

/// An answer, as far as a retry must repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: Bytes,
}

impl Canary {
    /// Rounds until one fails or all were played.
    pub(super) async fn run(&self, plan: &Plan, say: &mut (dyn FnMut(&str) + Send)) -> Rounds {
        // Its own in every run, also with the same seed: a key of an earlier run would only be replayed.
        let salt: String = semel::Nonce::random().to_string().chars().take(8).collect();
        let mut rounds = Rounds::default();
        let mut round = 0;
        loop {
            round += 1;
            let began = Instant::now();
            let (word, said) = match self.round(&salt, round).await {
                Ok(said) => {
                    rounds.well += 1;
                    ("ok", said)
                }
                Err(Wrong::Failed(said)) => {
                    rounds.failed += 1;
                    ("FAILED", self.secrets.hide(&said))
                }
                Err(Wrong::NotTold(said)) => {
                    rounds.not_told += 1;
                    ("not told", self.secrets.hide(&said))
                }
            };
            let at = crate::time::write(SystemClock.now());
            say(&format!("{at}  round {round}  {word}  {said}  ({}ms)", began.elapsed().as_millis()));
            let is_over = plan.times.is_some_and(|times| round >= times);
            if is_over || (rounds.failed > 0 && !plan.keep_going) {
                return rounds;
            }
            sleep(plan.every.saturating_sub(began.elapsed())).await;
        }
    }

    async fn round(&self, salt: &str, round: u64) -> Result<String, Wrong> {
        let operation = |which: &str| format!("t-{:x}-{salt}{round}{which}", self.setup.seed);
        let twice = operation("a");
        let first = self.told(&twice).await?;
        let again = self.told(&twice).await?;
        twice_is_once(&first, &again).map_err(Wrong::Failed)?;
        let effects = self.effects(&twice, "sent twice").await?;

        let raced = operation("b");
        let width = self.setup.race_max.clamp(2, RACE_MAX);
        let answers = join_all((0..width).map(|_| self.send(&raced))).await;
        // Those that were told to wait come back once, and must find what the winner got.
        let last = self.send(&raced).await;
        let (told, mut troubles) = (answers.into_iter().chain([last])).partition::<Vec<_>, _>(Result::is_ok);
        let told: Vec<Answer> = told.into_iter().flatten().collect();
        // What was told is judged first: trouble of the network hides no second answer.
        let differ = told_differ(&told);
        let trouble = troubles.pop().and_then(Result::err);
        let limited = told.iter().any(|answer| answer.status == TOO_MANY);
        match trouble {
            _ if differ => return Err(Wrong::Failed(DIFFER.into())),
            Some(trouble) => return self.doubtful(&raced, trouble).await,
            None if limited => return self.doubtful(&raced, too_many()).await,
            None => one_won(&self.setup.profile, &told).map_err(Wrong::Failed)?,
        }
        self.effects(&raced, "raced").await?;
        if effects.is_some() {
            sleep(SETTLES).await;
            for (tag, how) in [(&twice, "sent twice"), (&raced, "raced")] {
                self.effects(tag, how).await?;
            }
        }
        Ok(match effects {
            Some(_) => format!("sent twice, one effect; race of {width}, one effect"),
            None => format!("sent twice, one answer; race of {width}, one answer; effects are not counted"),
        })
    }

    /// A race that was not heard to its end may have had its effect twice, and that is told.
    async fn doubtful(&self, tag: &str, why: String) -> Result<String, Wrong> {
        match self.effects(tag, "raced").await {
            Err(Wrong::Failed(said)) if !said.ends_with(NO_EFFECT) => Err(Wrong::Failed(said)),
            _ => Err(Wrong::NotTold(why)),
        }
    }

    /// An answer that tells something.
    async fn told(&self, tag: &str) -> Result<Answer, Wrong> {
        match self.send(tag).await {
            Ok(Answer { status: TOO_MANY, .. }) => Err(Wrong::NotTold(too_many())),
            Ok(answer) => Ok(answer),
            Err(why) => Err(Wrong::NotTold(why)),
        }
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
    async fn effects(&self, tag: &str, how: &str) -> Result<Option<u64>, Wrong> {
        let Some(effects) = self.setup.effects.as_ref().map(Arc::clone) else { return Ok(None) };
        let failed = |what: String| Err(Wrong::Failed(format!("operation {tag}, {how}, {what}")));
        let deadline = Instant::now() + COUNTED_MAX;
        loop {
            match effects.count(tag).await.map_err(Wrong::NotTold)? {
                1 => return Ok(Some(1)),
                0 if Instant::now() < deadline => sleep(PAUSE).await,
                0 => return failed(format!("was answered and {NO_EFFECT}")),
                many => return failed(format!("had {many} effects")),
            }
        }
    }
}

const TOO_MANY: u16 = 429;
const NO_EFFECT: &str = "had no effect";
const DIFFER: &str = "two in a race were answered with success, and differently";

fn too_many() -> String {
    format!("answered {TOO_MANY}: too many requests for this service")
}

/// Whether two succeeded with answers that are not the same.
fn told_differ(answers: &[Answer]) -> bool {
    let mut won = answers.iter().filter(|answer| (200..300).contains(&answer.status));
    won.next().is_some_and(|first| won.any(|other| other != first))
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
        Some(first) if won.iter().any(|other| other != first) => Err(DIFFER.into()),
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
        /// Takes no more requests.
        Limits,
        /// Charges once more a little after a replay.
        Late,
    }

    #[derive(Clone)]
    struct Service {
        kind: Kind,
        provider: SocketAddr,
        /// Answers by key; `None` while the first runs.
        kept: Arc<Mutex<HashMap<String, Option<String>>>>,
    }

    async fn charge(provider: SocketAddr, body: String) -> String {
        let request = http::Request::post(format!("http://{provider}/charge")).body(body.into()).unwrap();
        let receipt = client().unwrap().send(request, Duration::from_secs(20)).await.unwrap();
        String::from_utf8(receipt.body.to_vec()).unwrap()
    }

    async fn pay(State(service): State<Service>, headers: HeaderMap, body: String) -> (StatusCode, String) {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        let found = service.kept.lock().unwrap().get(&key).cloned();
        match (service.kind, found) {
            (Kind::Away, _) => return (StatusCode::SERVICE_UNAVAILABLE, String::new()),
            (Kind::Limits, _) => return (StatusCode::TOO_MANY_REQUESTS, String::new()),
            (Kind::Late, Some(Some(kept))) => {
                tokio::spawn(async move {
                    sleep(Duration::from_millis(200)).await;
                    charge(service.provider, body).await;
                });
                return (StatusCode::OK, kept);
            }
            (Kind::Lying, _) => return (StatusCode::OK, "same".into()),
            (Kind::Right | Kind::Late, None) => drop(service.kept.lock().unwrap().insert(key.clone(), None)),
            (Kind::Right | Kind::Late, Some(None)) => return (StatusCode::CONFLICT, String::new()),
            (Kind::Right | Kind::NotAtomic, Some(Some(kept))) => return (StatusCode::OK, kept),
            _ => {}
        }
        let receipt = charge(service.provider, body).await;
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
        let rounds = canary.run(&plan, &mut |line| lines.push(line.to_owned())).await;
        assert_eq!(rounds.well + rounds.failed + rounds.not_told, lines.len() as u64);
        (rounds.failed, lines)
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

    #[tokio::test]
    async fn a_second_effect_behind_the_answer_is_found() {
        let (failed, lines) = played(&canary(Kind::Late).await, 1, false).await;
        assert!(failed == 1 && lines[0].contains("had 2 effects"), "{lines:?}");
    }

    #[tokio::test]
    async fn trouble_on_the_way_tells_nothing_and_fails_nothing() {
        let (failed, lines) = played(&canary(Kind::Limits).await, 2, false).await;
        assert!(failed == 0 && lines[1].contains("not told") && lines[1].contains("429"), "{lines:?}");
        let mut gone = canary(Kind::Right).await;
        gone.setup.template.url = "http://127.0.0.1:1/pay".into();
        let (failed, lines) = played(&gone, 1, false).await;
        assert!(failed == 0 && lines[0].contains("not told  no answer"), "{lines:?}");
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
