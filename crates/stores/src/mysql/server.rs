//! What a server says of itself, and whether a store may live there.

use std::fmt;

use mysql_async::Row;
use semel_core::error::{Error, Kind};
use semel_core::mutant;

use super::row;

/// The oldest servers whose SQL is used: `SKIP LOCKED` there, `CHECK` here.
const MARIADB_MIN: (u32, u32, u32) = (10, 6, 0);
const MYSQL_MIN: (u32, u32, u32) = (8, 0, 16);

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    MySql,
    MariaDb,
}

impl Make {
    /// The name of a store on such a server.
    pub(super) fn engine(self) -> &'static str {
        match self {
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
        }
    }
}

impl fmt::Display for Make {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::MySql { "MySQL" } else { "MariaDB" })
    }
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) make: Make,
    version: (u32, u32, u32),
    /// MySQL's own identity, kept beside its data. MariaDB has none that a move of its machine leaves alone.
    id: Option<String>,
    read_only: bool,
    /// Several servers of one cluster take writes.
    several_write: bool,
    /// The largest message it takes or sends.
    pub(super) packet_max: usize,
    /// What it would have to be set to, to keep what it has committed.
    lax: Option<&'static str>,
}

impl Server {
    /// Reads `server.sql`.
    pub(super) fn of(rows: &[Row]) -> Result<Self, Error> {
        let mut variables = Vec::with_capacity(rows.len());
        for row in rows {
            variables.push((row::text(row, 0)?.unwrap_or_default(), row::text(row, 1)?.unwrap_or_default()));
        }
        let is = |name: &str| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
        let on = |name: &str| is(name).is_some_and(|value| !matches!(value, "OFF" | "0" | ""));
        let version = is("version").unwrap_or_default();
        // With a binary log that is not flushed, a crash rolls back what was committed without it.
        let lax = if !matches!(is("innodb_flush_log_at_trx_commit"), Some("1" | "3")) {
            Some("innodb_flush_log_at_trx_commit = 1")
        } else if on("log_bin") && is("sync_binlog") != Some("1") {
            Some("sync_binlog = 1")
        } else {
            None
        };
        Ok(Self {
            make: if version.contains("MariaDB") { Make::MariaDb } else { Make::MySql },
            version: numbers(version),
            id: is("server_uuid").map(str::to_owned),
            read_only: on("read_only") || on("super_read_only") || on("innodb_read_only"),
            several_write: on("wsrep_on"),
            packet_max: is("max_allowed_packet").and_then(|bytes| bytes.parse().ok()).unwrap_or(usize::MAX),
            lax,
        })
    }

    /// Refuses a server on which a store would not be what it says.
    pub(super) fn refuse(&self, place: &str, commits_may_be_lost: bool) -> Result<(), Error> {
        let refuse = |kind, sentence| Err(Error::new(kind, sentence));
        let make = self.make;
        if self.read_only && !mutant::on("my-replica-accepted") {
            return refuse(
                Kind::ReadOnly,
                format!("{make} at {place} is read-only: a replica may lag; connect to the primary"),
            );
        }
        let (least, (major, minor, patch)) =
            (if make == Make::MariaDb { MARIADB_MIN } else { MYSQL_MIN }, self.version);
        if self.version < least {
            let (a, b, c) = least;
            return refuse(
                Kind::Misconfigured,
                format!(
                    "the server at {place} is {make} {major}.{minor}.{patch}; the store needs {a}.{b}.{c} or later"
                ),
            );
        }
        if self.several_write {
            return refuse(
                Kind::Misconfigured,
                format!(
                    "{make} at {place} is a Galera cluster: each node numbers for itself, so tokens would not grow"
                ),
            );
        }
        match self.lax {
            Some(setting) if !commits_may_be_lost && !mutant::on("my-commit-not-durable") => refuse(
                Kind::Misconfigured,
                format!("{make} at {place} may forget what it has committed; set {setting} on the server"),
            ),
            _ => Ok(()),
        }
    }

    /// Whether an answered write is on disk.
    pub(super) fn is_durable(&self) -> bool {
        self.lax.is_none()
    }

    /// Where a store in this database is at home.
    pub(super) fn home(&self, database: &str) -> String {
        format!("{}/{database}", self.id.as_deref().unwrap_or(self.make.engine()))
    }
}

/// The numbers a version begins with.
fn numbers(version: &str) -> (u32, u32, u32) {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_what_servers_say() {
        assert_eq!(numbers("10.11.19-MariaDB-0+deb12u1"), (10, 11, 19));
        assert_eq!(numbers("8.0.36-0ubuntu0.22.04.1"), (8, 0, 36));
        assert_eq!(numbers("8.4.0"), (8, 4, 0));
        assert!(numbers("10.6.0-MariaDB") >= MARIADB_MIN && numbers("5.7.44-log") < MYSQL_MIN);
    }
}
