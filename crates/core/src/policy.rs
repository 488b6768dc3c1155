//! How an operation is to be run: one table of defaults, and a builder that refuses nonsense.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::OperationId;
use crate::error::Error;
use crate::fingerprint::{self, Pointers};
use crate::outcome::{Body, Outcome, Unreadable};
use crate::record::{Recovery, Terms};
use crate::seal::{self, Keyring};
use crate::subject::{self, NotRead, Place, SubjectId, SubjectKeys};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Longest TTL: ten years.
pub const TTL_MAX: Duration = Duration::from_secs(3650 * 86_400);

/// Most header and trailer lines kept.
const LINES_MAX: usize = 1000;

/// Headers that say something about every byte of the body.
const DIGESTS: [&str; 4] = ["content-digest", "content-md5", "digest", "repr-digest"];

/// Every default, in one place.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Defaults {
    /// How long a lease lasts unless renewed; it is renewed every third of it.
    pub lease: Duration,
    /// The longest an effect may still be on its way after its claim.
    pub run_max: Duration,
    /// How long an operation is remembered from its creation.
    pub ttl: Duration,
    /// How long clients may go on retrying; remembered at least that long after its end.
    pub retry_window: Duration,
    /// How long a duplicate waits for the running attempt before it is told to come back.
    pub wait: Duration,
    /// How long a call keeps trying a store that does not answer.
    pub store_patience: Duration,
    /// Largest request body read.
    pub request_bytes_max: usize,
    /// Largest outcome body kept.
    pub outcome_bytes_max: usize,
    /// How long the evidence of an unknown is kept whole.
    pub unknown_kept: Duration,
    /// Shortest advice to come back.
    pub retry_after_min: Duration,
    /// Longest advice to come back.
    pub retry_after_max: Duration,
}

/// The table of defaults.
pub const DEFAULTS: Defaults = Defaults {
    lease: Duration::from_secs(30),
    run_max: Duration::from_secs(5 * 60),
    ttl: DAY,
    retry_window: Duration::from_secs(8 * 3600),
    wait: Duration::ZERO,
    store_patience: Duration::from_secs(2),
    request_bytes_max: 1 << 20,
    outcome_bytes_max: 1 << 20,
    unknown_kept: Duration::from_secs(7 * 86_400),
    retry_after_min: SECOND,
    retry_after_max: Duration::from_secs(30),
};

/// What happens when the store cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Nothing runs.
    Closed,
    /// It runs unprotected. Only for effects declared natural: running twice does no harm.
    Open,
}

/// What is taken out of an outcome before it is stored.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    /// Header and trailer names, in lower case.
    pub headers: Vec<String>,
    /// JSON pointers into the body.
    pub body: Option<Pointers>,
}

/// How to run an operation. Cheap to clone; build it once per route.
#[derive(Clone, Debug)]
pub struct Policy(Arc<Settings>);

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) terms: Terms,
    pub(crate) wait: Duration,
    pub(crate) store_patience: Duration,
    pub(crate) outage: Outage,
    pub(crate) natural: bool,
    pub(crate) request_bytes_max: usize,
    pub(crate) outcome_bytes_max: usize,
    pub(crate) keys: Option<Keyring>,
    pub(crate) subject_keys: Option<Place>,
    pub(crate) redaction: Redaction,
    pub(crate) subject: Option<Box<str>>,
}

/// Settings that contradict each other, one sentence each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonsense(pub Vec<String>);

impl fmt::Display for Nonsense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

impl std::error::Error for Nonsense {}

impl Default for Policy {
    fn default() -> Self {
        Self::builder().build().expect("the defaults make sense")
    }
}

impl Policy {
    /// Starts from [`DEFAULTS`], with recovery `hold` and a closed outage.
    pub fn builder() -> Builder {
        Builder(Settings {
            terms: Terms {
                recovery: Recovery::Hold,
                lease: DEFAULTS.lease,
                run_max: DEFAULTS.run_max,
                ttl: DEFAULTS.ttl,
                retry_window: DEFAULTS.retry_window,
            },
            wait: DEFAULTS.wait,
            store_patience: DEFAULTS.store_patience,
            outage: Outage::Closed,
            natural: false,
            request_bytes_max: DEFAULTS.request_bytes_max,
            outcome_bytes_max: DEFAULTS.outcome_bytes_max,
            keys: None,
            subject_keys: None,
            redaction: Redaction::default(),
            subject: None,
        })
    }

    /// What a store keeps of it.
    pub fn terms(&self) -> Terms {
        self.0.terms
    }

    /// Largest request body to read.
    pub fn request_bytes_max(&self) -> usize {
        self.0.request_bytes_max
    }

    /// Largest outcome body kept.
    pub fn outcome_bytes_max(&self) -> usize {
        self.0.outcome_bytes_max
    }

    /// How long a duplicate waits for the running attempt.
    pub fn wait(&self) -> Duration {
        self.0.wait
    }

    /// The same policy for one subject: outcomes can then be purged by that name, and are sealed with a key of
    /// its own where there are [subject keys](Builder::subject_keys).
    pub fn for_subject(&self, subject: &str) -> Self {
        Self(Arc::new(Settings { subject: Some(subject.into()), ..(*self.0).clone() }))
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0
    }

    /// Whether outcomes are sealed with a key of the policy's subject. It must be there before anything runs.
    pub fn wants_subject_key(&self) -> bool {
        self.0.subject_keys.is_some() && self.0.subject.is_some() && self.0.keys.is_some()
    }

    /// The key of the policy's subject, made if there is none; `None` if outcomes are sealed without one.
    ///
    /// # Cancellation
    /// Safe. A key may have been made; the next call finds it.
    pub async fn subject_key(&self) -> Result<Option<subject::Key>, Error> {
        self.key_of(self.0.subject.as_deref()).await
    }

    async fn key_of(&self, subject: Option<&str>) -> Result<Option<subject::Key>, Error> {
        let (Some(subject), Some(place), Some(ring)) = (subject, &self.0.subject_keys, &self.0.keys) else {
            return Ok(None);
        };
        if crate::mutant::on("subject-key-unused") {
            return Ok(None);
        }
        subject::obtain(SubjectId::of(subject), &*place.0, ring).await.map(Some)
    }

    /// The bytes a store keeps of an outcome: within the limit, redacted, encoded, and sealed, with the
    /// subject's key if the operation has a subject and subjects have keys. Fails only if the key place does.
    ///
    /// # Cancellation
    /// Safe. A key may have been made; the next call finds it.
    pub async fn prepare(
        &self,
        outcome: &Outcome,
        operation: OperationId,
        subject: Option<&str>,
    ) -> Result<Bytes, Error> {
        let key = self.key_of(subject).await?;
        Ok(self.seal(&self.kept(outcome), operation, key.as_ref()))
    }

    /// Seals what is kept with the key in hand, or else with the ring.
    pub(crate) fn seal(&self, kept: &Outcome, operation: OperationId, key: Option<&subject::Key>) -> Bytes {
        match key {
            Some(key) => seal::close_for(kept, operation, key),
            None => seal::close(kept, operation, self.0.keys.as_ref()),
        }
    }

    /// Reads back what a store keeps, whoever's key sealed it.
    ///
    /// # Cancellation
    /// Safe; it only reads.
    pub async fn read(&self, stored: &Bytes, operation: OperationId) -> Result<Outcome, NotRead> {
        let Settings { keys, subject_keys, .. } = &*self.0;
        let (Some(id), Some(place), Some(ring)) = (seal::subject_key(stored), subject_keys, keys) else {
            return Ok(self.open(stored, operation)?);
        };
        let key = subject::find(id, &*place.0, ring).await.map_err(NotRead::Away)??;
        Ok(seal::open_with(stored, operation, &key)?)
    }

    /// Reads back what no subject's key sealed.
    pub(crate) fn open(&self, stored: &Bytes, operation: OperationId) -> Result<Outcome, Unreadable> {
        seal::open(stored, operation, self.0.keys.as_ref())
    }

    /// What is kept of an outcome: within the limit, and without what must not be kept.
    pub(crate) fn kept<'a>(&self, outcome: &'a Outcome) -> Cow<'a, Outcome> {
        let Settings { redaction, outcome_bytes_max, .. } = &*self.0;
        let body = outcome.body_bytes().filter(|body| !body.is_empty());
        let lines = || outcome.headers.iter().chain(&outcome.trailers);
        let head_bytes: usize = lines().map(|line| line.name.len() + line.value.len()).sum();
        if head_bytes > *outcome_bytes_max || lines().count() > LINES_MAX {
            // Headers beyond all measure: what is kept is that it happened, and with which status.
            return Cow::Owned(outcome.without_body());
        }
        let too_large = body.is_some_and(|body| body.len() > *outcome_bytes_max);
        let unredacted = redaction.headers.is_empty() && redaction.body.is_none();
        if !too_large && (unredacted || crate::mutant::on("stored-unredacted")) {
            return Cow::Borrowed(outcome);
        }
        let mut kept = outcome.clone();
        for lines in [&mut kept.headers, &mut kept.trailers] {
            let before = lines.len();
            lines.retain(|line| !redaction.headers.iter().any(|name| line.name.eq_ignore_ascii_case(name)));
            kept.redacted |= lines.len() != before;
        }
        let Some(body) = body else { return Cow::Owned(kept) };
        let clean = match &redaction.body {
            _ if too_large => None,
            // A body that should be redacted and cannot be read may hold the secret: it is not kept.
            Some(pointers) => fingerprint::redact(body, pointers, fingerprint::REDACTED).map(Bytes::from),
            None => Some(body.clone()),
        };
        let is_whole = clean.as_ref().is_some_and(|clean| clean == body);
        if redaction.body.is_some() && !is_whole && !crate::mutant::on("digest-of-secrets-kept") {
            // They are true of what is not kept, and would help to guess it.
            for lines in [&mut kept.headers, &mut kept.trailers] {
                lines.retain(|line| !DIGESTS.iter().any(|name| line.name.eq_ignore_ascii_case(name)));
            }
        }
        kept.redacted |= clean.as_ref().is_some_and(|clean| clean != body);
        kept.body = clean.map_or(Body::NotKept { bytes: Some(body.len() as u64) }, Body::Kept);
        Cow::Owned(kept)
    }

    /// What is allowed but deserves a second look, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let Terms { ttl, retry_window, recovery, .. } = self.0.terms;
        let mut warnings = Vec::new();
        if ttl < retry_window * 2 {
            warnings.push(format!(
                "The TTL ({ttl:?}) is below twice the retry window ({retry_window:?}): a client that retries \
                 a little longer than declared would run again."
            ));
        }
        if recovery == Recovery::Rerun && !self.0.natural {
            warnings.push(
                "Recovery is `rerun` and the effect is not declared natural: make sure that running it \
                 twice does no harm."
                    .into(),
            );
        }
        warnings
    }
}

/// Collects settings; [`build`](Builder::build) judges them.
#[derive(Clone, Debug)]
pub struct Builder(Settings);

/// One setter per setting.
impl Builder {
    /// What happens when a lease lapses with no outcome.
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.0.terms.recovery = recovery;
        self
    }

    /// How long a lease lasts unless renewed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.terms.lease = lease;
        self
    }

    /// The longest an effect may still be on its way after its claim.
    pub fn run_max(mut self, run_max: Duration) -> Self {
        self.0.terms.run_max = run_max;
        self
    }

    /// How long an operation is remembered from its creation.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.terms.ttl = ttl;
        self
    }

    /// How long clients may go on retrying.
    pub fn retry_window(mut self, retry_window: Duration) -> Self {
        self.0.terms.retry_window = retry_window;
        self
    }

    /// How long a duplicate waits for the running attempt.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0.wait = wait;
        self
    }

    /// How long to keep trying a store that does not answer.
    pub fn store_patience(mut self, patience: Duration) -> Self {
        self.0.store_patience = patience;
        self
    }

    /// What happens when the store cannot be reached.
    pub fn outage(mut self, outage: Outage) -> Self {
        self.0.outage = outage;
        self
    }

    /// Declares that running the effect twice does no harm.
    pub fn natural_effect(mut self) -> Self {
        self.0.natural = true;
        self
    }

    /// Largest request body read.
    pub fn request_bytes_max(mut self, bytes: usize) -> Self {
        self.0.request_bytes_max = bytes;
        self
    }

    /// Largest outcome body kept.
    pub fn outcome_bytes_max(mut self, bytes: usize) -> Self {
        self.0.outcome_bytes_max = bytes;
        self
    }

    /// Seals outcomes with these keys.
    pub fn encrypt(mut self, keys: Keyring) -> Self {
        self.0.keys = Some(keys);
        self
    }

    /// Seals the outcomes of each subject with a key of its own, kept in this place and wrapped by the keys of
    /// [`encrypt`](Self::encrypt). Forgetting a subject's key there makes its outcomes unreadable for good.
    pub fn subject_keys(mut self, place: Arc<dyn SubjectKeys>) -> Self {
        self.0.subject_keys = Some(Place(place));
        self
    }

    /// Takes these out of outcomes before they are stored.
    pub fn redact(mut self, redaction: Redaction) -> Self {
        self.0.redaction = redaction;
        self
    }

    /// The policy, or every reason why not.
    pub fn build(self) -> Result<Policy, Nonsense> {
        let problems = problems(&self.0);
        if problems.is_empty() || crate::mutant::on("nonsense-accepted") {
            Ok(Policy(Arc::new(self.0)))
        } else {
            Err(Nonsense(problems))
        }
    }
}

fn problems(settings: &Settings) -> Vec<String> {
    let Terms { lease, run_max, ttl, retry_window, .. } = settings.terms;
    let mut found = Vec::new();
    let mut refuse = |wrong: bool, sentence: String| {
        if wrong {
            found.push(sentence);
        }
    };
    refuse(
        lease < Duration::from_millis(10) || lease > DAY,
        format!("The lease is {lease:?}; it must be between 10 ms and a day."),
    );
    refuse(
        ttl <= lease,
        format!(
            "The TTL ({ttl:?}) must exceed the lease ({lease:?}), or a running operation could be forgotten."
        ),
    );
    refuse(
        ttl <= retry_window,
        format!(
            "The TTL ({ttl:?}) must exceed the retry window ({retry_window:?}), or a late retry would run again."
        ),
    );
    refuse(
        ttl <= run_max,
        format!(
            "The TTL ({ttl:?}) must exceed the longest run ({run_max:?}), or a slow effect could outlive its record."
        ),
    );
    refuse(ttl > TTL_MAX, format!("The TTL ({ttl:?}) is over ten years."));
    refuse(
        settings.wait > HOUR,
        format!(
            "Waiting {:?} for a running duplicate is over an hour; let clients come back instead.",
            settings.wait
        ),
    );
    refuse(
        settings.store_patience > 5 * MINUTE,
        format!(
            "A store patience of {:?} is over five minutes; callers would pile up.",
            settings.store_patience
        ),
    );
    refuse(
        settings.outage == Outage::Open && !settings.natural,
        "Running open during a store outage needs an effect declared natural: without the store, \
         duplicates run."
            .into(),
    );
    refuse(
        settings.outcome_bytes_max == 0,
        "An outcome of zero bytes at most keeps no body at all; set 1 or more.".into(),
    );
    refuse(
        settings.subject_keys.is_some() && settings.keys.is_none(),
        "Keys of subjects need a key that wraps them; without one they would lie open in their place.".into(),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_not_above_lease_and_retry_window_is_refused_with_a_sentence() {
        // G-11
        let short = Policy::builder().ttl(SECOND).build().unwrap_err();
        assert_eq!(short.0.len(), 3, "{short}");
        assert!(short.to_string().contains("retry window"));
        assert!(Policy::builder().ttl(8 * HOUR).build().is_err(), "equal is not above");
        assert!(Policy::builder().ttl(8 * HOUR + SECOND).build().is_ok());
    }

    #[test]
    fn a_ttl_below_twice_the_retry_window_warns() {
        // G-11
        let tight = Policy::builder().ttl(15 * HOUR).build().unwrap();
        assert!(tight.warnings()[0].contains("retry window"));
        assert!(Policy::default().warnings().is_empty());
    }

    #[test]
    fn running_open_needs_a_natural_effect() {
        // G-18
        assert!(Policy::builder().outage(Outage::Open).build().is_err());
        assert!(Policy::builder().outage(Outage::Open).natural_effect().build().is_ok());
    }
}
