//! What went wrong at the server, and whether the call may have been applied.
//!
//! Statements go one by one, and nothing is applied before the COMMIT: whatever fails earlier changed
//! nothing, also when the connection breaks. Only a COMMIT whose answer does not come leaves it open.

use std::error::Error as _;
use std::fmt::Write as _;

use mysql_async::{DriverError, ServerError};
use semel_core::error::{Error, Kind};

use crate::horizon::Horizon;

/// Whether a transaction that failed is worth another try at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    No,
    /// It waited for a lock in vain. Once more, then its caller is told.
    Waited,
    /// It lost a deadlock, or its connection before anything was committed.
    Lost,
}

/// A failure that several callers may have to be told.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    kind: Kind,
    maybe_applied: bool,
    sentence: String,
    cause: String,
    /// The same transaction may go through if it is tried again.
    pub(super) again: Again,
    /// The connection cannot be used any more.
    pub(super) broken: bool,
    /// A savepoint was gone, or could not outlive its statement: no transaction is open, or not the same any more.
    pub(super) transaction_gone: bool,
}

impl Fault {
    /// A failure of this side, before or instead of the server's.
    pub(super) fn new(kind: Kind, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        Self {
            kind,
            maybe_applied: false,
            sentence,
            cause: String::new(),
            again: Again::No,
            broken: false,
            transaction_gone: false,
        }
    }

    /// Not sent, because the server would not take it. It does not always say so itself, and not always so that one could
    /// tell.
    pub(super) fn too_large(bytes: usize, bytes_max: usize) -> Self {
        let sentence = format!(
            "{bytes} bytes cannot be kept by a MySQL server whose max_allowed_packet is {bytes_max}; raise it and start \
             again, or lower the limit of kept answers"
        );
        Self::new(Kind::TooLarge, sentence)
    }

    /// Whether the calls of a batch are better asked one by one: what is too much for all may be right for each, and
    /// one bad call must not fail its neighbours.
    pub(super) fn is_better_alone(&self) -> bool {
        !self.broken || self.kind == Kind::TooLarge
    }

    /// No answer in time. The connection is given up: its answer would come to the wrong question.
    pub(super) fn timed_out(maybe_applied: bool) -> Self {
        let sentence = "MySQL did not answer in time; look for locks, load and the network";
        Self { maybe_applied, broken: true, ..Self::new(Kind::TimedOut, sentence) }
    }

    /// A write went through, and showed that the store cannot be believed.
    pub(super) fn went_back(horizon: &Horizon) -> Self {
        Self { maybe_applied: true, ..Self::from(horizon.refusal()) }
    }

    /// A statement failed, and no COMMIT was on its way.
    pub(super) fn of(error: &mysql_async::Error) -> Self {
        match error {
            mysql_async::Error::Server(server) => Self::of_server(server),
            // The driver looks only at what it receives: this says nothing of what was sent.
            mysql_async::Error::Driver(DriverError::PacketTooLarge) => Self {
                broken: true,
                ..Self::new(
                    Kind::Misconfigured,
                    "an answer is larger than max_allowed_packet of MySQL; raise it",
                )
            },
            other => Self {
                cause: chain(other),
                broken: true,
                again: Again::Lost,
                ..Self::new(Kind::Unreachable, "the connection to MySQL broke")
            },
        }
    }

    /// A COMMIT failed. A server that lost a deadlock even there has rolled back; of any other word
    /// nobody knows whether it came before or after.
    pub(super) fn of_commit(error: &mysql_async::Error) -> Self {
        let fault = Self::of(error);
        let rolled_back = matches!(error, mysql_async::Error::Server(server) if server.code == 1213);
        match rolled_back || semel_core::mutant::on("my-lost-commit-is-certain") {
            true => fault,
            false => Self { maybe_applied: true, broken: true, again: Again::No, ..fault },
        }
    }

    fn of_server(server: &ServerError) -> Self {
        let (kind, advice) = classify(server.code);
        let sentence = format!("MySQL: {} ({}){advice}", server.message, server.code);
        let again = match server.code {
            1213 => Again::Lost,
            1205 | 3572 => Again::Waited,
            1153 => Again::No,
            _ if ends_session(server.code) => Again::Lost,
            _ => Again::No,
        };
        let (broken, transaction_gone) = (ends_session(server.code), server.code == 1305);
        Self { again, broken, transaction_gone, ..Self::new(kind, sentence) }
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

/// After these the server hangs up.
fn ends_session(code: u16) -> bool {
    // Shutdown, aborted connections, packets, a KILL (MariaDB's and MySQL's word), inactivity.
    matches!(code, 1053 | 1080 | 1152 | 1153 | 1156..=1161 | 1184 | 1927 | 3169 | 4031)
}

/// The kind of an error's number, and what to do about it.
fn classify(code: u16) -> (Kind, &'static str) {
    match code {
        1213 => (Kind::Busy, ": too many conflicts; try again"),
        1020 => (Kind::Busy, ": the transaction looks at an older state; roll it back and try it again"),
        // MariaDB's word for a row that is not waited for, and MySQL's.
        1205 | 3572 => {
            (Kind::Busy, ": somebody holds the row; look for long transactions on semel_operation")
        }
        1305 => (
            Kind::Misconfigured,
            ": there is no transaction to join. Begin one, and do all of it there; a statement like CREATE or ALTER ends \
             one, and so does an error after which MySQL rolls back",
        ),
        1317 | 1969 | 3024 => (Kind::Busy, ": the statement took too long or was cancelled"),
        1461 => (Kind::Busy, ": raise max_prepared_stmt_count"),
        3 | 1021 | 1026 | 1114 => (Kind::Full, ": make room on the server's disk"),
        1037 | 1038 | 1041 => (Kind::Busy, ": the server is short of memory"),
        1040 | 1203 | 1226 => (Kind::Unreachable, ": raise max_connections or lower the store's connections"),
        1290 | 1792 | 1836 => (Kind::ReadOnly, ": it takes no writes; connect to the primary"),
        1142 | 1143 => (
            Kind::Denied,
            ": GRANT SELECT, INSERT, UPDATE, DELETE on the semel_ tables to this user, and CREATE, ALTER, INDEX, \
             CREATE ROUTINE, ALTER ROUTINE to whoever migrates",
        ),
        1044 | 1227 | 1370 => (
            Kind::Denied,
            ": grant it to this user (a migration needs CREATE ROUTINE and ALTER ROUTINE, too), or run the migration as \
             the owner",
        ),
        1045 | 1129 | 1130 | 1251 | 1275 | 1698 | 1820 | 1862 | 3118 | 3159 | 4151 => {
            (Kind::Denied, ": check user, password, host and whether TLS is required")
        }
        1046 | 1049 => (Kind::Misconfigured, ": create the database, or correct its name in the address"),
        1146 | 1054 | 1136 => (Kind::Schema, ": the schema is missing or not Semel's; run the migration"),
        1153 => (Kind::TooLarge, ": raise max_allowed_packet, or lower the limit of kept answers"),
        // InnoDB of MySQL takes a tenth of its log in one transaction.
        1118 => {
            (Kind::TooLarge, ": raise the size of the server's redo log, or lower the limit of kept answers")
        }
        1366 | 1406 => (Kind::Misconfigured, ": a value cannot be kept as it is"),
        126 | 127 | 144 | 145 | 1034 | 1194 | 1195 | 1712 | 1877 => {
            (Kind::Damaged, ": the server found damaged data; restore from a backup")
        }
        1030 => (Kind::Full, ": the storage engine failed; see the server's log"),
        _ if ends_session(code) => (Kind::Unreachable, ""),
        _ => (Kind::Schema, ": unexpected; was the schema changed by hand?"),
    }
}

/// An error and its causes on one line.
pub(super) fn chain(error: &mysql_async::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: u16) -> mysql_async::Error {
        let (message, state) = ("no".into(), "HY000".into());
        mysql_async::Error::Server(ServerError { code, message, state })
    }

    #[test]
    fn only_a_commit_leaves_open_whether_it_was_applied() {
        // G-9
        let broken = || mysql_async::Error::Driver(DriverError::ConnectionClosed);
        assert!(!Fault::of(&broken()).error().outcome_is_unknown());
        assert!(Fault::of_commit(&broken()).error().outcome_is_unknown());
        assert!(Fault::of_commit(&server(1053)).error().outcome_is_unknown());
        let deadlock = Fault::of_commit(&server(1213));
        assert!(deadlock.changed_nothing() && deadlock.again == Again::Lost);
        assert_eq!(Fault::of(&server(1205)).again, Again::Waited);
        assert_eq!(Fault::of(&server(1142)).error().kind(), Kind::Denied);
    }
}
