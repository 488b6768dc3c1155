//! Every setting, in one table: its name, where it stands, its default, and what it means.
//!
//! Flags, variables, the file's keys, `--help`, `check-config` and `docs/configuration.md` are all made from
//! this table, so that none of them can miss one. The rule for names: the setting `pool_idle` is `pool_idle`
//! in the file, `--pool-idle` on the command line and `SEMEL_POOL_IDLE` in the environment.

use std::time::Duration;

use semel::policy::DEFAULTS;

use super::value::{duration_text, size_text};

/// Where a setting stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// `[gateway]`.
    Gateway,
    /// `[defaults]`, and each `[[route]]` for itself.
    Route,
    /// In a form of its own, given here.
    Own(&'static str),
}

/// How many values it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    One,
    /// `true` or `false`; a flag alone means `true`.
    Switch,
    /// An array in the file; flags repeat, and both flags and variables split at the character.
    List(char),
    /// One value that must not be shown.
    Secret,
}

/// What holds if nobody says anything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preset {
    /// Nothing; in these words.
    Absent(&'static str),
    Text(&'static str),
    Time(Duration),
    Bytes(usize),
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) section: Section,
    pub(crate) form: Form,
    pub(crate) preset: Preset,
    pub(crate) meaning: &'static str,
}

impl Setting {
    /// `--pool-idle`.
    pub(crate) fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    /// `SEMEL_POOL_IDLE`.
    pub(crate) fn variable(&self) -> String {
        format!("SEMEL_{}", self.name.to_ascii_uppercase())
    }

    /// How it is written in the file.
    #[cfg(test)]
    pub(crate) fn in_file(&self) -> String {
        match self.section {
            Section::Gateway | Section::Route => self.name.to_owned(),
            Section::Own(form) => form.to_owned(),
        }
    }

    /// The default as text, if there is one.
    pub(crate) fn preset_text(&self) -> Option<String> {
        match self.preset {
            Preset::Absent(_) => None,
            Preset::Text(text) => Some(text.to_owned()),
            Preset::Time(time) => Some(duration_text(time)),
            Preset::Bytes(bytes) => Some(size_text(bytes)),
        }
    }

    /// The default for people to read, also where it is that there is none.
    pub(crate) fn preset_words(&self) -> String {
        match self.preset {
            Preset::Absent(words) => words.to_owned(),
            _ => self.preset_text().map(|text| format!("`{text}`")).unwrap_or_default(),
        }
    }
}

/// The setting of that name.
pub(crate) fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

use Form::{List, One, Secret, Switch};
use Preset::{Absent, Bytes, Text, Time};
use Section::{Gateway, Own, Route};

const COMMAS: Form = List(',');

/// Secrets that are the address of a database: host and name may be shown, and typed as flags.
pub(crate) const ADDRESSES: [&str; 2] = ["store", "subject_keys"];

const fn row(
    name: &'static str,
    section: Section,
    form: Form,
    preset: Preset,
    meaning: &'static str,
) -> Setting {
    Setting { name, section, form, preset, meaning }
}

/// The table.
#[rustfmt::skip]
pub(crate) static SETTINGS: &[Setting] = &[
    row("listen", Gateway, One, Text("127.0.0.1:8080"), "Address and port for clients."),
    row("upstream", Gateway, COMMAS, Absent("none; one is needed"), "The service behind: `http://…` or `https://…`, perhaps with a path prefix; or `demo`, a built-in payments service. Several share the load."),
    row("store", Gateway, Secret, Text("sqlite:semel.db"), "Where operations are remembered: `sqlite:PATH`, `postgres://…`, `mysql://…`, or `file:PATH` / `env:NAME` to find one of them."),
    row("subject_keys", Gateway, Secret, Absent("subjects have no keys of their own"), "Where the keys of subjects are kept: `sqlite:PATH`, `postgres://…`, or `file:PATH` / `env:NAME`; never where the store is. What is sealed for a subject (`encrypt`, `subject_header`) is then sealed with a key of its own, and forgetting that key makes it unreadable for good."),
    row("namespace", Gateway, One, Text("default"), "Part of every operation's identity. Deployments that share a store and must not meet need different ones."),
    row("tls_certificate", Gateway, One, Absent("plain text"), "PEM file with the certificate chain shown to clients. Needs `tls_key`."),
    row("tls_key", Gateway, One, Absent("none"), "PEM file with the key of `tls_certificate`."),
    row("tls_client_ca", Gateway, One, Absent("clients are not asked"), "PEM file with the authorities whose client certificates are believed. Needed for `tenant = \"certificate\"`."),
    row("admin", Gateway, One, Absent("no admin listener"), "Address and port of the admin listener. Off loopback it needs a token."),
    row("admin_token", Gateway, Secret, Absent("none"), "Token of the admin listener, or `file:PATH` / `env:NAME`. As a flag only the last two: others can see command lines."),
    row("admin_token_file", Gateway, One, Absent("none"), "File with the token of the admin listener."),
    row("upstream_http2", Gateway, Switch, Text("false"), "Speak HTTP/2 to the upstream: by prior knowledge over plain text, by ALPN over TLS."),
    row("upstream_ca", Gateway, One, Absent("the system's"), "PEM file with authorities to believe beside the system's, for `https://` upstreams."),
    row("health_path", Gateway, One, Absent("no checks"), "Path asked on every upstream to see whether it is well."),
    row("health_every", Gateway, One, Time(Duration::from_secs(5)), "Time between health checks."),
    row("health_timeout", Gateway, One, Time(Duration::from_secs(2)), "The longest a health check may take."),
    row("connect_timeout", Gateway, One, Time(Duration::from_secs(3)), "The longest a connection to the upstream may take."),
    row("response_timeout", Gateway, One, Time(Duration::from_secs(300)), "From the last byte sent to the upstream to the first byte of its answer. A protected request is bound by `run_max` instead."),
    row("pool_idle", Gateway, One, Time(Duration::from_secs(30)), "How long an unused upstream connection is kept."),
    row("pool_idle_protected", Gateway, One, Time(Duration::from_secs(1)), "A protected request takes a pooled connection only if it was idle for less than this."),
    row("pool_idle_connections_max", Gateway, One, Text("256"), "Most unused connections kept per upstream."),
    row("header_timeout", Gateway, One, Time(Duration::from_secs(10)), "The longest a client may take to send its headers."),
    row("body_timeout", Gateway, One, Time(Duration::from_secs(30)), "The longest silence within a request body."),
    row("idle_timeout", Gateway, One, Time(Duration::from_secs(75)), "How long a client's unused connection is kept, and how long a client may take nothing, not a byte, of its answer: then its connection ends, or over HTTP/2 its stream."),
    row("header_bytes_max", Gateway, One, Bytes(64 << 10), "Largest head of a request."),
    row("connections_max", Gateway, One, Text("16384"), "Most client connections at a time."),
    row("operations_max", Gateway, One, Text("4096"), "Most requests with a key under way at a time, also those whose clients have left. Beyond it a new one is answered 503 before anything is claimed; what runs goes on, and what has completed is replayed."),
    row("trusted_proxies", Gateway, COMMAS, Absent("nobody"), "Networks whose `X-Forwarded-*` headers are believed and extended; all others' are replaced."),
    row("replay_memory", Gateway, One, Time(Duration::from_secs(1)), "How long a replayed outcome is answered from memory before the store is asked again; `0s` always asks. What another process purges is replayed for at most this long."),
    row("drain", Gateway, One, Time(Duration::from_secs(30)), "How long a shutdown waits for requests on their way."),
    row("log", Gateway, One, Text("text"), "`text` or `json`."),
    row("log_filter", Gateway, One, Text("info"), "Which events are logged, as `info` or `semel=debug,info`."),
    row("protection", Route, One, Text("optional"), "`required`: a request without a key is refused. `optional`: it passes untouched. `off`: keys mean nothing."),
    row("tenant", Route, One, Absent("undeclared: keyed requests with a credential are refused"), "Who the client is: `none`, `credential`, `header:NAME`, `jwt:CLAIM` or `certificate`."),
    row("tenant_peers", Route, COMMAS, Absent("none"), "Networks that have authenticated the client and say who it is in the header of `header:NAME`. It is stripped from all others."),
    row("jwt_secret", Route, Secret, Absent("none"), "Secret of HS256, HS384 and HS512 tokens, or `file:PATH` / `env:NAME`. As a flag only the last two."),
    row("jwt_secret_file", Route, One, Absent("none"), "File with that secret."),
    row("jwks_file", Route, One, Absent("none"), "File with the public keys of tokens, as a JSON Web Key Set; read again when it changes."),
    row("jwks_url", Route, One, Absent("none"), "URL of such a set; fetched again every five minutes, and when a token names an unknown key."),
    row("jwt_issuer", Route, One, Absent("any"), "The `iss` a token must have."),
    row("jwt_audience", Route, One, Absent("tokens with an `aud` are refused"), "The `aud` a token must have."),
    row("jwt_leeway", Route, One, Time(Duration::from_secs(30)), "How far clocks may differ when `exp` and `nbf` are judged."),
    row("recovery", Route, One, Text("hold"), "What becomes of an attempt that ended without an outcome: `hold` until somebody settles it, `rerun`, or `ask:URL`."),
    row("ttl", Route, One, Time(DEFAULTS.ttl), "How long an operation is remembered from its creation."),
    row("retry_window", Route, One, Time(DEFAULTS.retry_window), "How long clients may go on retrying. The TTL must exceed it."),
    row("lease", Route, One, Time(DEFAULTS.lease), "How long the right to run lasts unless renewed; it is renewed every third of it."),
    row("run_max", Route, One, Time(DEFAULTS.run_max), "The longest the upstream may take; after it the outcome is unknown."),
    row("wait", Route, One, Time(DEFAULTS.wait), "How long a duplicate waits for the running attempt before it is told to come back."),
    row("store_patience", Route, One, Time(DEFAULTS.store_patience), "How long a request keeps trying a store that does not answer."),
    row("outage", Route, One, Text("closed"), "While the store is away: `closed` runs nothing, `open` runs unprotected. `open` needs `natural_effect`."),
    row("natural_effect", Route, Switch, Text("false"), "Declares that running twice does no harm."),
    row("request_bytes_max", Route, One, Bytes(DEFAULTS.request_bytes_max), "Largest body of a protected request."),
    row("outcome_bytes_max", Route, One, Bytes(DEFAULTS.outcome_bytes_max), "Largest response body kept for replay."),
    row("releasing", Route, COMMAS, Text("429"), "Upstream statuses that mean: nothing happened, the next attempt may run."),
    row("store_headers", Route, COMMAS, Absent("none"), "Response headers to keep although they usually are not, such as `set-cookie`."),
    row("redact_headers", Route, COMMAS, Absent("none"), "Response headers never kept."),
    row("redact_body", Route, COMMAS, Absent("none"), "JSON pointers to what is taken out of a response body before it is kept."),
    row("encrypt", Route, Switch, Text("false"), "Seal what is kept. Needs `[encryption]` keys."),
    row("fingerprint_headers", Route, COMMAS, Absent("none"), "Request headers that tell requests apart, beside method, path, query, content type and body."),
    row("fingerprint_exclude", Route, COMMAS, Absent("none"), "JSON pointers to what may differ between retries, such as a client's timestamp."),
    row("replay_header", Route, One, Text("idempotent-replayed"), "Header that marks a replay."),
    row("expired_keys", Route, One, Text("off"), "Refuse keys older than the TTL: `uuid7` reads the age from the key, `first-sent:HEADER` from a header."),
    row("auth_check", Route, One, Absent("none"), "URL asked with the client's credentials before the store is; its 401 and 403 are passed on."),
    row("subject_header", Route, One, Absent("none"), "Request header that names the subject, for purging by subject, and for sealing with the subject's own key where there are `subject_keys`."),
    row("encryption_key", Own("[encryption] keys"), List(','), Absent("none"), "Keys that seal outcomes, newest first, each `ID=KEY`: 32 bytes in base64, or `file:PATH` / `env:NAME`."),
    row("alias", Own("[aliases] \"OLD\" = \"NEW\""), List(','), Absent("none"), "Ids that routes had before: `OLD=NEW`. The route goes on using the old id in the store."),
    row("route", Own("[[route]] id, methods, path"), List(';'), Absent("none"), "A route, as `ID METHODS PATH` or `METHODS PATH`, with methods as `POST|PUT`. Given here, the file's routes do not count."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_said_once() {
        let mut seen = std::collections::BTreeSet::new();
        for setting in SETTINGS {
            assert!(seen.insert(setting.name), "{} stands there twice", setting.name);
            assert!(
                setting
                    .name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            );
            assert!(setting.meaning.ends_with('.'), "{}", setting.name);
        }
    }
}
