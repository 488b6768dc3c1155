//! How to reach a store, as written and as understood.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};
use semel_core::error::{Error, Kind};

use super::sql::ROWS_MAX;
use super::tls;

const PORT: u16 = 3306;
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Statements kept prepared on each connection: one per verb and number of rows.
const STATEMENTS_MAX: usize = 128;

/// Whether a store may change the schema when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrate {
    /// Apply what is missing.
    Apply,
    /// Refuse to work on a schema that lacks something.
    Check,
}

/// How to reach a MySQL or MariaDB store and how long to wait for it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// `mysql://user:password@host:port/database?sslmode=…&sslrootcert=…`, also `mariadb://…`. Modes are
    /// `disable`, `prefer` (unless said: encrypted if the server can, nobody's identity checked),
    /// `require`, `verify-ca` and `verify-full`. MySQL's own word `ssl-mode` is understood too.
    pub url: String,
    /// Certificates to trust, in PEM. The address's `sslrootcert` counts more; without either,
    /// `verify-full` trusts what the operating system trusts.
    pub tls_ca: Option<PathBuf>,
    /// Connections on which claims and completions travel in batches.
    pub lanes: usize,
    /// Connections for everything else, opened as needed. One more is kept for the sweeper.
    pub connections: usize,
    /// Claims and completions waiting for a lane; beyond it callers wait, then are told to come later.
    pub queue_max: usize,
    /// Most claims and completions in one batch; 256 at most.
    pub batch_max: usize,
    /// How long one attempt at connecting may take.
    pub connect_timeout: Duration,
    /// How long a call waits for a connection before it fails as unreachable.
    pub connect_wait: Duration,
    /// How long a transaction may take from its first statement to the answer to its COMMIT.
    pub call_timeout: Duration,
    /// How long a statement waits for a lock. The server counts in seconds: a part of one is a whole one.
    pub lock_timeout: Duration,
    /// Whether the schema is brought up to date.
    pub migrate: Migrate,
    /// A file, on a disk the database does not share, that remembers how far the store has come. With
    /// it a restored database is noticed even if this process was restarted too.
    pub witness: Option<PathBuf>,
    /// Accept a server that does not flush its log at every commit. It may forget what it has answered,
    /// and an effect may then run twice: for trying things out only. `?commits=may-be-lost` in the
    /// address says the same.
    pub commits_may_be_lost: bool,
    /// For tests: a clock instead of the server's, in microseconds since 1970.
    #[doc(hidden)]
    pub clock: Option<Arc<AtomicI64>>,
}

impl Options {
    /// The defaults for an address.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            tls_ca: None,
            lanes: 2,
            connections: 8,
            queue_max: 4096,
            batch_max: ROWS_MAX,
            connect_timeout: Duration::from_secs(5),
            connect_wait: Duration::from_secs(1),
            call_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            migrate: Migrate::Apply,
            witness: None,
            commits_may_be_lost: false,
            clock: None,
        }
    }

    /// As the server counts it.
    pub(super) fn lock_seconds(&self) -> u64 {
        self.lock_timeout.as_secs() + u64::from(self.lock_timeout.subsec_nanos() > 0)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::new(Kind::Misconfigured, format!("MySQL store: {what}")));
        if self.lanes == 0 || self.connections == 0 || self.queue_max == 0 || self.batch_max == 0 {
            return wrong("lanes, connections, queue_max and batch_max must each be at least 1");
        }
        if self.batch_max > ROWS_MAX {
            return wrong("batch_max must be 256 at most");
        }
        if self.call_timeout < Duration::from_millis(1) || self.lock_timeout < Duration::from_millis(1) {
            return wrong("call_timeout and lock_timeout must be at least a millisecond");
        }
        let longest = self.call_timeout.max(self.connect_wait).max(self.connect_timeout);
        if longest > Duration::from_secs(3600) {
            return wrong("call_timeout, connect_wait and connect_timeout must be an hour at most");
        }
        if self.lock_timeout >= self.call_timeout {
            return wrong("lock_timeout must be shorter than call_timeout");
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the address: it holds the password.
        f.debug_struct("Options").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

/// How much TLS a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// None.
    Plain,
    /// If the server can; nobody's identity is checked.
    Preferred,
    /// Always; nobody's identity is checked.
    Encrypted,
    /// Who signed the certificate is checked.
    Chain,
    /// And whose it is.
    ChainAndName,
}

/// An address as understood. No `Debug`: it holds the password.
pub(super) struct Address {
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: String,
    pub(super) secrecy: Secrecy,
    pub(super) ca: Option<PathBuf>,
    pub(super) commits_may_be_lost: bool,
}

impl Address {
    pub(super) fn of(options: &Options) -> Result<Self, Error> {
        // No part of a malformed address is repeated: it may be a piece of the password.
        Self::read(options).ok_or_else(|| {
            Error::new(
                Kind::Misconfigured,
                "the address of the MySQL store cannot be read; write \
                 mysql://user:password@host:port/database?sslmode=verify-full, with special characters of \
                 the password percent-encoded; sslmode is one of disable, prefer, require, verify-ca, \
                 verify-full",
            )
        })
    }

    fn read(options: &Options) -> Option<Self> {
        let (base, query) = options.url.split_once('?').unwrap_or((&options.url, ""));
        let rest = base.strip_prefix("mysql://").or_else(|| base.strip_prefix("mariadb://"))?;
        let (account, place) = rest.split_once('@')?;
        let (user, password) = match account.split_once(':') {
            Some((user, password)) => (user, Some(percent_decoded(password)?)),
            None => (account, None),
        };
        let (host, database) = place.split_once('/')?;
        let (host, port) = host_and_port(host)?;
        let fits = |text: &str| !text.is_empty() && !text.contains(['@', '/', ':']);
        if user.is_empty() || !fits(database) {
            return None;
        }
        let mut address = Self {
            user: percent_decoded(user)?,
            password,
            host,
            port,
            database: percent_decoded(database)?,
            secrecy: Secrecy::Preferred,
            ca: options.tls_ca.clone(),
            commits_may_be_lost: options.commits_may_be_lost,
        };
        let mut mode = "prefer";
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=')? {
                ("sslmode" | "ssl-mode" | "ssl_mode", value) => mode = value,
                ("sslrootcert" | "ssl-ca", value) => address.ca = Some(percent_decoded(value)?.into()),
                ("commits", "may-be-lost") => address.commits_may_be_lost = true,
                _ => return None,
            }
        }
        address.secrecy = secrecy(&mode.to_ascii_lowercase(), address.ca.is_some())?;
        Some(address)
    }

    /// Host, port and database, for sentences.
    pub(super) fn place(&self) -> String {
        format!("{}:{}/{}", self.host, self.port, self.database)
    }

    /// What the driver needs, with or without TLS.
    pub(super) fn driver(&self, encrypted: bool) -> Result<Opts, Error> {
        let secrecy = if encrypted { self.secrecy } else { Secrecy::Plain };
        Ok(OptsBuilder::default()
            .ip_or_hostname(self.host.clone())
            .tcp_port(self.port)
            .user(Some(self.user.clone()))
            .pass(self.password.clone())
            .db_name(Some(self.database.clone()))
            .ssl_opts(tls::options(secrecy, self.ca.as_deref())?)
            // The address names a host; nobody asked for a socket beside it.
            .prefer_socket(false)
            .tcp_nodelay(true)
            // A peer that vanished is noticed within minutes, not hours.
            .tcp_keepalive(Some(KEEPALIVE_IDLE))
            .stmt_cache_size(STATEMENTS_MAX)
            .connect_attribute("program_name", "semel")
            .into())
    }
}

fn host_and_port(text: &str) -> Option<(String, u16)> {
    // An IPv6 address stands in brackets.
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(PORT), |port| port.parse().ok())?;
    // A stray @ means that what precedes it belongs to a password.
    let usable = !host.is_empty() && !host.contains('@');
    usable.then(|| (host.to_owned(), port))
}

fn secrecy(mode: &str, has_ca: bool) -> Option<Secrecy> {
    Some(match mode {
        "disable" | "disabled" => Secrecy::Plain,
        "prefer" | "preferred" => Secrecy::Preferred,
        // As libpq: a root certificate that was given is used.
        "require" | "required" if has_ca => Secrecy::Chain,
        "require" | "required" => Secrecy::Encrypted,
        "verify-ca" | "verify_ca" => Secrecy::Chain,
        "verify-full" | "verify_identity" => Secrecy::ChainAndName,
        _ => return None,
    })
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (high, low) = (bytes.next()?, bytes.next()?);
        let digit = |byte: u8| (byte as char).to_digit(16);
        out.push((digit(high)? * 16 + digit(low)?) as u8);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<Address, Error> {
        Address::of(&Options::new(url))
    }

    #[test]
    fn an_address_is_read_with_its_tls_mode() {
        let full =
            address("mysql://u:p%40ss@db.example:6432/shop?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem")
                .unwrap();
        assert_eq!(full.secrecy, Secrecy::ChainAndName);
        assert_eq!(full.ca, Some("/etc/ca.pem".into()));
        assert_eq!(full.place(), "db.example:6432/shop");
        assert_eq!(full.password.as_deref(), Some("p@ss"));
        let plain = address("mariadb://u@localhost/shop").unwrap();
        assert_eq!((plain.secrecy, plain.port), (Secrecy::Preferred, 3306));
        let given = address("mysql://u@[::1]:99/d?ssl-mode=REQUIRED&sslrootcert=ca.pem").unwrap();
        assert_eq!((given.secrecy, given.host.as_str(), given.port), (Secrecy::Chain, "::1", 99));
        assert!(!given.commits_may_be_lost);
        assert!(address("mysql://u@h/d?commits=may-be-lost").unwrap().commits_may_be_lost);
    }

    #[test]
    fn a_malformed_address_is_refused_without_repeating_any_of_it() {
        for url in [
            "postgres://u:hunter2@h/d",
            "host=h password=hunter2",
            "mysql://u:hun?ter2@h/d",
            "mysql://u:hun/ter2@h:x/d",
            "mysql://u:p@hunter2@h/d",
            "mysql://u:hunter2@h/d?sslmode=sometimes",
            "mysql://u:hunter2@h/d?colour=red",
            "mysql://u:hunter2@/d",
            "mysql://u:hunter2@h/",
            "mysql://hunter2:99/d",
        ] {
            let error = address(url).map(|a| a.place()).unwrap_err();
            assert_eq!(error.kind(), Kind::Misconfigured, "{url}");
            for piece in ["hun", "ter2", "colour"] {
                assert!(!format!("{error:?}{error}").contains(piece), "{url}: {error}");
            }
        }
    }
}
