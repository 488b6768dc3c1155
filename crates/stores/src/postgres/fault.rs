//! What went wrong at the server, and whether the call may have been applied.
//!
//! A transaction and its COMMIT travel together. An error of the server before the COMMIT aborts it,
//! whatever follows. A connection that breaks, from whichever side, leaves it open.

use std::error::Error as _;
use std::fmt::Write as _;

use semel_core::error::{Error, Kind};
use tokio_postgres::error::{DbError, Severity};

use crate::horizon::Horizon;

/// A failure that several callers may have to be told.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    kind: Kind,
    maybe_applied: bool,
    sentence: String,
    cause: String,
    /// The same transaction may go through at once: it lost a deadlock or a race.
    pub(super) again: bool,
    /// The connection cannot be used any more.
    pub(super) broken: bool,
    /// Refused because a record that was committed is not there.
    pub(super) is_lost: bool,
}

impl Fault {
    /// A failure of this side, before or instead of the server's.
    pub(super) fn new(kind: Kind, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        let (maybe_applied, again, broken, is_lost) = (false, false, false, false);
        Self { kind, maybe_applied, sentence, cause: String::new(), again, broken, is_lost }
    }

    /// Not sent, because the server could neither take nor keep it. It would hang up instead of saying so.
    pub(super) fn too_large(bytes: usize) -> Self {
        let sentence = format!(
            "{bytes} bytes cannot be kept in one record of PostgreSQL; lower the limit of kept answers"
        );
        Self::new(Kind::TooLarge, sentence)
    }

    /// No answer in time. The connection is given up: its answer would come to the wrong question.
    pub(super) fn timed_out(maybe_applied: bool) -> Self {
        let sentence = "PostgreSQL did not answer in time; look for locks, load and the network";
        Self { maybe_applied, broken: true, ..Self::new(Kind::TimedOut, sentence) }
    }

    /// A write went through, and showed that the store cannot be believed.
    pub(super) fn went_back(horizon: &Horizon) -> Self {
        Self { maybe_applied: true, ..Self::from(horizon.refusal()) }
    }

    /// A statement failed, and no COMMIT was on its way.
    pub(super) fn of(error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(db) => Self::of_server(db),
            None => Self {
                cause: chain(error),
                broken: true,
                ..Self::new(Kind::Unreachable, "the connection to PostgreSQL broke")
            },
        }
    }

    fn of_server(db: &DbError) -> Self {
        Self::said(db.code().code(), db.message(), is_fatal(db))
    }

    /// The server refused, in its own words.
    pub(super) fn said(code: &str, message: &str, broken: bool) -> Self {
        let (kind, advice) = classify(code);
        let sentence = format!("PostgreSQL: {message} ({code}){advice}");
        let again = matches!(code, "40001" | "40P01");
        Self { again, broken, is_lost: code == "SM009", ..Self::new(kind, sentence) }
    }

    /// The connection broke.
    #[cfg(feature = "sqlx-postgres")]
    pub(super) fn cut(cause: String) -> Self {
        Self { cause, broken: true, ..Self::new(Kind::Unreachable, "the connection to PostgreSQL broke") }
    }

    /// The same, told by somebody whose COMMIT was on its way.
    pub(super) fn with_commit(self) -> Self {
        Self { maybe_applied: self.broken, ..self }
    }

    /// Judges statements that were sent together with their COMMIT. `before` are the results up to it,
    /// BEGIN first.
    pub(super) fn judge(
        before: &[Option<&tokio_postgres::Error>],
        commit: Option<&tokio_postgres::Error>,
    ) -> Result<(), Self> {
        let mut errors = before.iter().copied().flatten().chain(commit);
        let Some(error) = errors.next() else { return Ok(()) };
        let mut fault = Self::of(error);
        // A server that says ERROR has aborted. FATAL may be a pooler's word about a server whose
        // answer it lost; and what was sent after a BEGIN that failed ran by itself.
        let begin_failed = before.first().is_some_and(Option::is_some);
        let ran_alone = begin_failed && before.iter().skip(1).any(Option::is_none);
        fault.maybe_applied = fault.broken || ran_alone;
        fault.broken |= errors.any(|later| Self::of(later).broken);
        Err(fault)
    }

    /// Whether it certainly changed nothing.
    pub(super) fn changed_nothing(&self) -> bool {
        !self.maybe_applied
    }

    /// The error for one caller.
    pub(super) fn error(&self) -> Error {
        let mut error = Error::new(self.kind, self.sentence.clone());
        if !self.cause.is_empty() {
            error = error.because(self.cause.clone());
        }
        if self.maybe_applied { error.maybe_applied() } else { error }
    }
}

impl From<Error> for Fault {
    /// An error of this side that changed nothing.
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

pub(super) fn is_fatal(db: &DbError) -> bool {
    // What does not say how bad it is counts as the worst.
    !matches!(db.parsed_severity(), Some(Severity::Error))
}

/// The kind of a SQLSTATE, and what to do about it.
pub(super) fn classify(code: &str) -> (Kind, &'static str) {
    match code {
        "40001" | "40P01" => (Kind::Busy, ": too many conflicts; try the whole transaction again"),
        "55P03" => (Kind::Busy, ": somebody holds the row; look for long transactions on semel_operation"),
        "57014" => (Kind::Busy, ": the statement took too long; look for load and locks"),
        "53100" => (Kind::Full, ": make room on the server's disk"),
        "53200" | "53000" | "53400" => (Kind::Busy, ": the server is short of resources"),
        "53300" => (Kind::Unreachable, ": raise max_connections or lower the store's connections"),
        "25006" => (Kind::ReadOnly, ": it takes no writes; connect to the primary"),
        "42501" => (
            Kind::Denied,
            ": GRANT SELECT, INSERT, UPDATE, DELETE on the semel_ tables and USAGE, SELECT, UPDATE on the \
             sequence semel_token to this role, and EXECUTE on the semel_ functions if it was taken from PUBLIC",
        ),
        "3D000" => (Kind::Misconfigured, ": create the database, or correct its name in the address"),
        "42P01" | "42703" | "42883" | "3F000" => (
            Kind::Schema,
            ": the schema is missing or not Semel's; run the migration, or look at search_path",
        ),
        "22021" | "22P05" => {
            (Kind::Misconfigured, ": a name cannot be kept as text here; use a database with encoding UTF8")
        }
        // Not of an outcome's size, which is looked at before it is sent: a server that has no transaction ids left says
        // this, too, until it is vacuumed.
        _ if code.starts_with("54") => (Kind::Busy, ": the server is at one of its limits; see its log"),
        "SM001" | "SM003" | "SM004" => (Kind::Misconfigured, ""),
        "SM009" => (Kind::WentBack, ""),
        "SM002" => (Kind::Busy, ": roll back and try the whole transaction again"),
        "25P02" => (Kind::Misconfigured, ": an error before it was ignored; nothing was committed"),
        "XX001" | "XX002" => (Kind::Damaged, ": the server found damaged data; restore from a backup"),
        _ if code.starts_with("28") => (Kind::Denied, ": check user, password and pg_hba.conf"),
        _ if code.starts_with("08") || code.starts_with("57P") => (Kind::Unreachable, ""),
        _ if code.starts_with("58") => (Kind::Full, ": the server's file system failed; see its log"),
        _ => (Kind::Schema, ": unexpected; was the schema changed by hand?"),
    }
}

/// An error and its causes on one line.
pub(super) fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    text
}
