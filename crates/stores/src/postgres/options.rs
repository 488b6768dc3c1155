//! How to reach a store, as written and as understood.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use semel_core::error::{Error, Kind};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

const APPLICATION_NAME: &str = "semel";
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Whether a store may change the schema when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrate {
    /// Apply what is missing.
    Apply,
    /// Refuse to work on a schema that lacks something.
    Check,
}

/// How to reach a PostgreSQL store and how long to wait for it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// `postgres://user:password@host:port/database?sslmode=…&sslrootcert=…`. Modes are `disable`,
    /// `prefer` (unless said: encrypted if the server can, nobody's identity checked), `require`,
    /// `verify-ca` and `verify-full`.
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
    /// Most claims and completions in one batch.
    pub batch_max: usize,
    /// How long one attempt at connecting may take.
    pub connect_timeout: Duration,
    /// How long a call waits for a connection before it fails as unreachable.
    pub connect_wait: Duration,
    /// How long a call waits for an answer once it was sent.
    pub call_timeout: Duration,
    /// How long a statement waits for a lock.
    pub lock_timeout: Duration,
    /// Whether the schema is brought up to date.
    pub migrate: Migrate,
    /// A file, on a disk the database does not share, that remembers how far the store has come. With
    /// it a restored database is noticed even if this process was restarted too.
    pub witness: Option<PathBuf>,
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
            batch_max: 256,
            connect_timeout: Duration::from_secs(5),
            connect_wait: Duration::from_secs(1),
            call_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            migrate: Migrate::Apply,
            witness: None,
            clock: None,
        }
    }

    /// The server may cancel only after this side has stopped waiting: a COMMIT cancelled while it
    /// waits for a standby would pass for a durable one.
    pub(super) fn statement_timeout(&self) -> Duration {
        self.call_timeout + Duration::from_secs(1)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::new(Kind::Misconfigured, format!("PostgreSQL store: {what}")));
        if self.lanes == 0 || self.connections == 0 || self.queue_max == 0 || self.batch_max == 0 {
            return wrong("lanes, connections, queue_max and batch_max must each be at least 1");
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

/// How far a server's certificate is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verify {
    Nothing,
    Chain,
    ChainAndName,
}

/// An address as understood.
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) verify: Verify,
    pub(super) ca: Option<PathBuf>,
    /// Host, port and database, for sentences.
    pub(super) place: String,
}

impl Address {
    pub(super) fn of(options: &Options) -> Result<Self, Error> {
        // No part of a malformed address is repeated: it may be a piece of the password.
        let malformed = || {
            Error::new(
                Kind::Misconfigured,
                "the address of the PostgreSQL store cannot be read; write \
                 postgres://user:password@host:port/database?sslmode=verify-full, with special characters \
                 of the password percent-encoded",
            )
        };
        let (base, query) = options.url.split_once('?').unwrap_or((&options.url, ""));
        let (mut mode, mut ca, mut rest) = ("prefer".to_owned(), options.tls_ca.clone(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(malformed)?;
            match name {
                "sslmode" => mode = value.to_owned(),
                "sslrootcert" => ca = Some(percent_decoded(value).ok_or_else(malformed)?.into()),
                _ => rest.push(pair),
            }
        }
        if !base.starts_with("postgres://") && !base.starts_with("postgresql://") {
            return Err(malformed());
        }
        let url = format!("{base}?{}", rest.join("&"));
        let mut config = Config::from_str(&url).map_err(|_| malformed())?;
        let place = place(&config).ok_or_else(malformed)?;
        let verify = tls(&mode, ca.is_some(), &mut config)?;
        soften(&mut config, &rest, options);
        Ok(Self { config, verify, ca, place })
    }
}

/// Settings of the connection that the address does not make itself.
fn soften(config: &mut Config, written: &[&str], options: &Options) {
    let is_written = |name: &str| written.iter().any(|pair| pair.starts_with(name));
    if !is_written("application_name") {
        config.application_name(APPLICATION_NAME);
    }
    if !is_written("connect_timeout") {
        config.connect_timeout(options.connect_timeout);
    }
    if !is_written("keepalives") {
        // A peer that vanished is noticed within half a minute, not two hours.
        config.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_INTERVAL);
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
}

fn tls(mode: &str, has_ca: bool, config: &mut Config) -> Result<Verify, Error> {
    let (mode, verify) = match mode {
        "disable" => (SslMode::Disable, Verify::Nothing),
        "prefer" => (SslMode::Prefer, Verify::Nothing),
        // As libpq: a root certificate that was given is used.
        "require" if has_ca => (SslMode::Require, Verify::Chain),
        "require" => (SslMode::Require, Verify::Nothing),
        "verify-ca" => (SslMode::Require, Verify::Chain),
        "verify-full" => (SslMode::Require, Verify::ChainAndName),
        _ => {
            return Err(Error::new(
                Kind::Misconfigured,
                "the sslmode of the PostgreSQL store must be one of disable, prefer, require, verify-ca, \
                 verify-full",
            ));
        }
    };
    config.ssl_mode(mode);
    Ok(verify)
}

fn place(config: &Config) -> Option<String> {
    let mut hosts = Vec::new();
    for (at, host) in config.get_hosts().iter().enumerate() {
        let port = config.get_ports().get(at).or(config.get_ports().first()).copied().unwrap_or(5432);
        hosts.push(match host {
            // A stray @ means that what precedes it belongs to a password.
            Host::Tcp(name) if name.contains('@') || name.is_empty() => return None,
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{port}", path.display()),
        });
    }
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    if hosts.is_empty() { None } else { Some(format!("{}/{database}", hosts.join(","))) }
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
            address("postgres://u:p@db.example:6432/shop?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem")
                .unwrap();
        assert_eq!(full.verify, Verify::ChainAndName);
        assert_eq!(full.ca, Some("/etc/ca.pem".into()));
        assert_eq!(full.place, "db.example:6432/shop");
        let plain = address("postgresql://u@localhost/shop").unwrap();
        assert_eq!((plain.verify, plain.place.as_str()), (Verify::Nothing, "localhost:5432/shop"));
        let given = address("postgres://u@h/d?sslmode=require&sslrootcert=ca.pem").unwrap();
        assert_eq!(given.verify, Verify::Chain);
    }

    #[test]
    fn a_malformed_address_is_refused_without_repeating_any_of_it() {
        for url in [
            "mysql://u:hunter2@h/d",
            "host=h password=hunter2",
            "postgres://u:hun?ter2@h/d",
            "postgres://u:hun/ter2@h:x/d",
            "postgres://u:p@hunter2@h/d",
            "postgres://u:hunter2@h/d?sslmode=sometimes",
            "postgres://u:hunter2@h/d?colour=red",
            "postgres://u:hunter2@/d",
        ] {
            let error = address(url).map(|a| a.place).unwrap_err();
            assert_eq!(error.kind(), Kind::Misconfigured, "{url}");
            for piece in ["hun", "ter2", "colour"] {
                assert!(!format!("{error:?}{error}").contains(piece), "{url}: {error}");
            }
        }
    }
}
