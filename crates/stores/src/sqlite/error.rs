//! What SQLite says, and what that means to an operator.

use std::path::Path;

use rusqlite::ffi;
use semel_core::error::{Error, Kind};
use semel_core::mutant;
use semel_core::store::Mark;

/// An extended code of our own, which SQLite does not have: [`Fault::exchanged`].
const EXCHANGED: i32 = ffi::SQLITE_READONLY | (0x7f << 8);

/// A failure of SQLite or of a row, kept by value: one failed commit is told to every caller in
/// its batch.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text} (SQLite code {code})")]
pub(super) struct Fault {
    code: i32,
    text: String,
}

impl Fault {
    /// A row holds what no Semel wrote.
    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self { code: ffi::SQLITE_CORRUPT, text: what.into() }
    }

    /// The file that was opened is not where it was.
    pub(super) fn displaced(what: impl Into<String>) -> Self {
        Self { code: ffi::SQLITE_READONLY_DBMOVED, text: what.into() }
    }

    /// The file that was opened is where it was, and holds another store.
    pub(super) fn exchanged() -> Self {
        Self { code: EXCHANGED, text: "the file holds another store".into() }
    }

    /// SQLite could open the file for reading only.
    pub(super) fn read_only() -> Self {
        Self { code: ffi::SQLITE_READONLY, text: "opened for reading only".into() }
    }

    /// Others hold what was wanted.
    pub(super) fn busy(what: impl Into<String>) -> Self {
        Self { code: ffi::SQLITE_BUSY, text: what.into() }
    }

    /// The operating system gave no random bytes.
    pub(super) fn no_randomness(what: impl Into<String>) -> Self {
        Self { code: ffi::SQLITE_NOMEM, text: what.into() }
    }

    /// The outbox is behind what this process saw of it.
    pub(super) fn outbox_went_back(found: Mark, seen: Mark) -> Self {
        let text = format!(
            "it is at epoch {}, message {}, and was seen at epoch {}, message {}",
            found.epoch, found.token, seen.epoch, seen.token
        );
        Self { code: ffi::SQLITE_NOTICE, text }
    }

    /// The outbox was found behind, and nobody has rebased it.
    pub(super) fn outbox_closed(from: Mark) -> Self {
        let text = format!("that was found at epoch {}, message {}", from.epoch, from.token);
        Self { code: ffi::SQLITE_NOTICE, text }
    }

    /// Somebody knows a message of an outbox by a number under which this database does not hold it.
    pub(super) fn other_message(sequence: u64, known: &str) -> Self {
        let text = format!("message {sequence}, {known}, is another one here or missing");
        Self { code: ffi::SQLITE_NOTICE, text }
    }

    /// A message waits below one that a relay has read, and it has not read it.
    pub(super) fn unread_message(sequence: u64) -> Self {
        let text = format!("message {sequence} was not there when this relay read what comes after it");
        Self { code: ffi::SQLITE_NOTICE, text }
    }

    /// Somebody knows of more saves of a lane than this database has seen.
    pub(super) fn fewer_saves(lane: u16, known: &str, saves: u64, found: u64) -> Self {
        let text = format!(
            "{known} {saves} saves of lane {lane}, and this database has seen {found}: it has lost the last of them"
        );
        Self { code: ffi::SQLITE_NOTICE, text }
    }

    /// Whether a statement named a table that is not there. SQLite has no code of its own for it.
    pub(super) fn is_missing_table(&self) -> bool {
        self.code == ffi::SQLITE_ERROR && self.text.starts_with("no such table: semel_")
    }

    /// Whether a COMMIT that failed like this certainly did nothing, also after a crash.
    ///
    /// A lock that was not got, or a page for which there was no room, fail before the frame that
    /// makes the transaction count is whole in the log. Everything else might have failed after
    /// it: a failed fsync above all leaves a whole log that the next recovery would believe.
    pub(super) fn commit_did_nothing(&self) -> bool {
        matches!(self.primary(), ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_FULL)
    }

    /// Whether the file was found to hold another store. That it could not be looked at for a moment is something else.
    pub(super) fn is_exchanged(&self) -> bool {
        self.code == EXCHANGED || (mutant::on("sqlite-absence-taken-for-exchange") && self.is_displaced())
    }

    /// Whether what was opened is not there any more.
    fn is_displaced(&self) -> bool {
        matches!(self.code, ffi::SQLITE_READONLY_DBMOVED | EXCHANGED)
    }

    /// Whether an outbox was found behind what was known of it.
    pub(super) fn is_outbox_behind(&self) -> bool {
        self.code == ffi::SQLITE_NOTICE
    }

    /// Whether others held a lock.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.primary(), ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED)
    }

    /// The error for a caller: what happened, where, and what to do.
    pub(super) fn tell(&self, path: &Path) -> Error {
        let at = path.display();
        let (kind, sentence) = match self.primary() {
            ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => (
                Kind::Busy,
                format!(
                    "another process kept the database {at} locked until the busy time-out passed; \
                     look for one that holds a write transaction open"
                ),
            ),
            ffi::SQLITE_FULL => (
                Kind::Full,
                format!("there is no room for the database {at}; free space on its disk or raise its quota"),
            ),
            ffi::SQLITE_READONLY if self.is_displaced() => (
                Kind::Unreachable,
                format!(
                    "the database {at} was moved, deleted or replaced while it was in use ({}); put it back as it \
                     was, or restart to open what is there now",
                    self.text
                ),
            ),
            ffi::SQLITE_READONLY => (
                Kind::ReadOnly,
                format!(
                    "the database {at} takes no writes; make the file, its directory and the file system \
                     writable for this user"
                ),
            ),
            ffi::SQLITE_NOTADB => {
                (Kind::Damaged, format!("{at} is no SQLite database; check the path, or restore a backup"))
            }
            ffi::SQLITE_CORRUPT | ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH => {
                (Kind::Damaged, damaged(path, &self.text))
            }
            ffi::SQLITE_IOERR if self.is_lost_data() => (Kind::Damaged, damaged(path, &self.text)),
            ffi::SQLITE_IOERR if self.code == ffi::SQLITE_IOERR_SHMSIZE => {
                (Kind::Full, format!("there is no room for the index beside {at}; free space on its disk"))
            }
            ffi::SQLITE_IOERR => (
                Kind::Unreachable,
                format!("the disk under the database {at} failed ({}); look at the system log", self.text),
            ),
            ffi::SQLITE_CANTOPEN | ffi::SQLITE_PERM | ffi::SQLITE_AUTH => (
                Kind::Denied,
                format!(
                    "the database {at} cannot be opened; let this user read and write the file and its \
                     directory, where SQLite keeps two files beside it"
                ),
            ),
            ffi::SQLITE_NOTICE => (
                Kind::WentBack,
                format!(
                    "the outbox of {at} is not where it was: {}; the database was restored from an older state. \
                     Rebase the outbox (semel outbox rebase --by NAME): what waits is then published, for all that is \
                     known, for the first time",
                    self.text
                ),
            ),
            ffi::SQLITE_NOMEM => {
                (Kind::Busy, format!("the system has no memory or no random bytes to give for work on {at}"))
            }
            ffi::SQLITE_TOOBIG => (
                Kind::TooLarge,
                format!("the record is too large for the database {at}; lower the limit of kept answers"),
            ),
            _ => (
                Kind::Schema,
                format!("the tables in {at} are not as Semel left them ({}); restore a backup", self.text),
            ),
        };
        Error::new(kind, sentence).because(self.clone())
    }

    fn primary(&self) -> i32 {
        self.code & 0xff
    }

    fn is_lost_data(&self) -> bool {
        matches!(
            self.code,
            ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_DATA | ffi::SQLITE_IOERR_CORRUPTFS
        )
    }
}

fn damaged(path: &Path, what: &str) -> String {
    format!(
        "the database {} holds something that cannot be read ({what}); keep a copy, look at the disk, \
         and restore a backup",
        path.display()
    )
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::SqliteFailure(failure, text) => {
                let text = text.unwrap_or_else(|| failure.to_string());
                Self { code: failure.extended_code, text }
            }
            // The rest is about values that are not what our own statements put there.
            other => Self::damaged(other.to_string()),
        }
    }
}
