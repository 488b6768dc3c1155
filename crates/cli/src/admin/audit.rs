//! Who changed what: one event of the target `semel::audit` for every changing call that reached the
//! store, whether it was applied or not, one for every look at bodies, and one for every call that was
//! turned away.
//!
//! The durable copy is the operation's own history; this one goes where the logs go. A subject is a
//! person, and a purge is how they are forgotten, so only a digest of the subject is logged.

use http::request::Parts;
use semel::{Operation, Token};
use sha2::{Digest, Sha256};

use super::problem::Problem;
use super::{Admin, Peer};

/// Longest name of an operator, in bytes. With the note it fits a history's entry.
const BY_BYTES_MAX: usize = 100;
/// Longest note, in bytes.
const NOTE_BYTES_MAX: usize = 400;

/// Who does it, from where, and why.
#[derive(Debug)]
pub(super) struct Who {
    pub(super) by: String,
    pub(super) note: String,
    peer: Option<Peer>,
}

impl Who {
    /// Checks what the call says. Too long is refused rather than cut: half a reason can say the opposite.
    pub(super) fn parse(by: String, note: Option<String>, peer: Option<Peer>) -> Result<Self, Problem> {
        let note = note.unwrap_or_default();
        let has_control = |text: &str| text.chars().any(char::is_control);
        if by.trim().is_empty() {
            return Err(Problem::bad("by: say who does this"));
        }
        if by.len() > BY_BYTES_MAX || has_control(&by) || by.contains(':') {
            return Err(Problem::bad(format!(
                "by: at most {BY_BYTES_MAX} bytes, no control characters and no colon"
            )));
        }
        if note.len() > NOTE_BYTES_MAX || has_control(&note) {
            return Err(Problem::bad(format!(
                "note: at most {NOTE_BYTES_MAX} bytes and no control characters"
            )));
        }
        Ok(Self { by, note, peer })
    }

    /// As a history's note.
    pub(super) fn signed(&self) -> String {
        format!("{}: {}", self.by, self.note)
    }
}

/// What a changing call was about.
pub(super) enum About<'a> {
    Operation(&'a Operation, Token),
    Subject(&'a str),
    Store,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Made,
    Refused,
    /// The store did not answer; it may have been applied.
    Failed,
}

impl Came {
    /// Of a call's answer.
    pub(super) fn of<T>(answer: &Result<T, Problem>) -> Self {
        use super::problem::Slug::{StoreUnavailable, StoreWentBack};
        match answer {
            Ok(_) => Self::Made,
            Err(problem) if matches!(problem.slug, StoreUnavailable | StoreWentBack) => Self::Failed,
            Err(_) => Self::Refused,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Tells of a changing call.
pub(super) fn changed(admin: &Admin, action: &'static str, about: &About<'_>, who: &Who, came: Came) {
    admin.metrics.administered(action, came.name());
    if semel::mutant::on("change-unaudited") {
        return;
    }
    let (operation, token, subject) = match about {
        About::Operation(operation, token) => (Some(*operation), Some(token.0), None),
        About::Subject(subject) => (None, None, Some(digest(subject))),
        About::Store => (None, None, None),
    };
    tracing::info!(
        target: "semel::audit",
        action,
        result = came.name(),
        by = %who.by.escape_debug(),
        note = %who.note.escape_debug(),
        peer = who.peer.map(|Peer(address)| tracing::field::display(address)),
        operation = operation.map(|each| tracing::field::display(each.id())),
        key = operation.map(|each| each.key().as_str()),
        route = operation.map(|each| each.scope().route()),
        tenant = operation.and_then(|each| each.scope().tenant()),
        token,
        subject_digest = subject,
        "an operator's call"
    );
}

/// Tells that somebody read the bodies of an operation, which can hold what customers said.
pub(super) fn read_bodies(admin: &Admin, operation: &Operation, peer: Option<Peer>) {
    admin.metrics.administered("read-bodies", "made");
    tracing::info!(
        target: "semel::audit",
        action = "read-bodies",
        peer = peer.map(|Peer(address)| tracing::field::display(address)),
        operation = %operation.id(),
        key = operation.key().as_str(),
        "bodies were shown"
    );
}

/// Tells of a call that was not let in.
pub(super) fn turned_away(admin: &Admin, request: &Parts, problem: &Problem) {
    let (reason, ..) = problem.slug.told();
    admin.metrics.administered("turned-away", "refused");
    let peer = request.extensions.get::<Peer>();
    tracing::warn!(
        target: "semel::audit",
        reason,
        method = %request.method,
        peer = peer.map(|Peer(address)| tracing::field::display(address)),
        "a call to the admin listener was turned away"
    );
}

/// The first half of a SHA-256, for finding the event of a purge again when one knows the subject.
fn digest(subject: &str) -> String {
    Sha256::digest(subject.as_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
