//! From what was written to what is true: flags before variables before the file before the defaults.
//!
//! Whatever is wrong is noted with its place, a default takes its part for the moment, and judging goes on:
//! the caller gets all mistakes, or a gateway that has none.

use std::fmt;
use std::path::Path;

use super::file::{self, Entry, File, Values};
use super::flags::Arguments;
use super::judge::{Judge, Layers};
use super::mistake::{Mistake, Mistakes, Place, Written, suggestion};
use super::policy;
use super::resolved::{
    Admin, ClientLimits, Encryption, Gateway, Health, Log, Network, RouteSettings, Secret, ServerTls, Target,
    Upstream,
};
use super::settings::SETTINGS;
use super::show::Shown;
use super::value::{self, Surroundings};
use super::{route, routes};

/// Shorter admin tokens are warned of.
const ADMIN_TOKEN_BYTES_STRONG: usize = 16;

/// A gateway's settings, and what deserves a second look.
pub(crate) struct Resolved {
    pub(crate) gateway: Gateway,
    pub(crate) warnings: Vec<Mistake>,
    pub(crate) shown: Shown,
}

/// Reads the file that the arguments name, and resolves.
pub(crate) fn resolve(
    arguments: &Arguments,
    surroundings: &dyn Surroundings,
) -> Result<Resolved, Vec<Mistake>> {
    let Some(path) = &arguments.config else { return with_file(arguments, None, surroundings) };
    let unreadable = |why: String| {
        vec![Mistake { place: Place::Default, sentence: format!("{path} cannot be read: {why}") }]
    };
    let bytes = surroundings.read(Path::new(path)).map_err(|error| unreadable(error.to_string()))?;
    with_file(arguments, Some((path, &bytes)), surroundings)
}

/// Resolves the bytes of a file, touching nothing else.
#[cfg(any(test, fuzzing))]
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Resolved, Vec<Mistake>> {
    with_file(&Arguments::default(), Some(("semel.toml", bytes)), &Nowhere)
}

/// No files and no variables.
#[cfg(any(test, fuzzing))]
struct Nowhere;

#[cfg(any(test, fuzzing))]
impl Surroundings for Nowhere {
    fn read(&self, _: &Path) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn variables(&self) -> Vec<String> {
        Vec::new()
    }
}

fn with_file(
    arguments: &Arguments,
    file: Option<(&str, &[u8])>,
    surroundings: &dyn Surroundings,
) -> Result<Resolved, Vec<Mistake>> {
    let mut mistakes = Mistakes::default();
    let mut warnings = Mistakes::default();
    let file = match file.map(|(name, bytes)| (name, std::str::from_utf8(bytes))) {
        None => File::default(),
        Some((name, Ok(text))) => file::read(text, name, &mut mistakes),
        Some((name, Err(error))) => {
            let sentence = format!("the file is not UTF-8: byte {} is wrong", error.valid_up_to());
            mistakes.add(&Place::File { name: name.into(), line: 1, column: 1 }, sentence);
            File::default()
        }
    };
    let presets = presets();
    let keys = encryption(arguments, &file, surroundings, &mut mistakes);
    let judge = &mut Judge { mistakes: &mut mistakes, warnings: &mut warnings, surroundings };
    let given = Layers(vec![&arguments.given, &file.gateway, &presets]);
    let general = general(&given, judge);
    let subject_keys = subject_keys(&given, &general.store, keys.is_some(), judge);
    let defaults = Layers(vec![&arguments.given, &file.defaults, &presets]);
    let context = route::Context { encryption: keys.as_ref(), client_ca: given.is_set("tls_client_ca") };
    let fallback = route::settings(&defaults, None, &context, judge);
    let written = routes::written(arguments, &file, judge);
    let listed = routes::routes(&written, &defaults, &context, judge);
    let aliases = routes::aliases(arguments, &file, &written, judge);
    let routes = routes::with_stored_ids(listed, &aliases);
    misspelt(judge);
    let seals = |settings: &RouteSettings| settings.encrypt && settings.subject_header.is_some();
    if subject_keys.is_some() && !routes.iter().map(|route| &route.settings).chain([&fallback]).any(seals) {
        let sentence =
            "subject_keys: no route has both `encrypt` and `subject_header`, so this changes nothing";
        judge.warnings.add(&given.place("subject_keys"), sentence);
    }
    let shown = Shown::new(&given, &defaults, &written, &routes, &aliases, keys.as_ref());
    if !mistakes.is_empty() {
        return Err(mistakes.into_sorted());
    }
    let gateway = Gateway { routes, fallback, encryption: keys, subject_keys, ..general };
    Ok(Resolved { gateway, warnings: warnings.into_sorted(), shown })
}

/// Variables that are nearly ours: a misspelt one would be passed over in silence.
fn misspelt(judge: &mut Judge<'_>) {
    // The last is a switch of test builds.
    let others = ["SEMEL_CONFIG".to_owned(), "SEMEL_MUTANT".to_owned()];
    let known: Vec<String> = SETTINGS.iter().map(|setting| setting.variable()).chain(others).collect();
    for name in judge.surroundings.variables() {
        if !name.starts_with("SEMEL_") || known.contains(&name) {
            continue;
        }
        let hint = suggestion(&name, known.iter().map(String::as_str));
        if !hint.is_empty() {
            judge.warnings.add(&Place::Variable(name), format!("there is no such variable{hint}"));
        }
    }
}

/// Every default as if somebody had written it.
fn presets() -> Values {
    let preset = |text: String| {
        let place = Place::Default;
        Entry { place: place.clone(), values: vec![Written { text, place }] }
    };
    SETTINGS.iter().filter_map(|setting| Some((setting.name, preset(setting.preset_text()?)))).collect()
}

/// Everything but routes, aliases and keys.
fn general(given: &Layers<'_>, judge: &mut Judge<'_>) -> Gateway {
    let listen = judge.one(given, "listen", value::address);
    Gateway {
        listen,
        tls: tls(given, judge),
        admin: admin(given, listen, judge),
        store: store(given, judge),
        subject_keys: None,
        namespace: namespace(given, judge),
        upstream: upstream(given, judge),
        client: ClientLimits {
            header_timeout: positive(given, "header_timeout", judge),
            body_timeout: positive(given, "body_timeout", judge),
            idle_timeout: positive(given, "idle_timeout", judge),
            header_bytes_max: header_bytes_max(given, judge),
            connections_max: judge.one(given, "connections_max", value::count),
        },
        operations_max: judge.one(given, "operations_max", value::count),
        trusted_proxies: judge.many(given, "trusted_proxies", Network::parse),
        replay_memory: judge.one(given, "replay_memory", |text| match value::duration(text)? {
            moment if moment <= REPLAY_MEMORY_MAX => Ok(moment),
            _ => Err("it must be at most 1m: what others purge is replayed for so long".into()),
        }),
        drain: judge.one(given, "drain", value::duration),
        log: Log {
            json: judge.one(given, "log", |text| match text {
                "text" => Ok(false),
                "json" => Ok(true),
                _ => Err(format!("`{text}` is neither `text` nor `json`")),
            }),
            filter: judge.one(given, "log_filter", value::text),
        },
        routes: Vec::new(),
        fallback: route::preset(),
        encryption: None,
    }
}

/// Longer, and a purge would mean little.
const REPLAY_MEMORY_MAX: std::time::Duration = std::time::Duration::from_secs(60);

fn positive(given: &Layers<'_>, name: &str, judge: &mut Judge<'_>) -> std::time::Duration {
    judge.one(given, name, |text| match value::duration(text)? {
        none if none.is_zero() => Err("it must be longer than nothing".into()),
        some => Ok(some),
    })
}

/// hyper's own least is 8 KiB.
fn header_bytes_max(given: &Layers<'_>, judge: &mut Judge<'_>) -> usize {
    judge.one(given, "header_bytes_max", |text| match value::size(text)? {
        bytes if (8 << 10..=16 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("it must be between 8KiB and 16MiB".into()),
    })
}

fn tls(given: &Layers<'_>, judge: &mut Judge<'_>) -> Option<ServerTls> {
    let client_ca = judge.pem(given, "tls_client_ca");
    let (certificate, key) = (judge.pem(given, "tls_certificate"), judge.pem(given, "tls_key"));
    match (given.is_set("tls_certificate"), given.is_set("tls_key")) {
        (true, false) => judge.mistakes.add(
            &given.place("tls_certificate"),
            "tls_certificate: `tls_key` is missing; a certificate needs its key",
        ),
        (false, true) => judge.mistakes.add(
            &given.place("tls_key"),
            "tls_key: `tls_certificate` is missing; a key needs its certificate",
        ),
        (false, false) if given.is_set("tls_client_ca") => {
            judge.mistakes.add(
                &given.place("tls_client_ca"),
                "tls_client_ca: without `tls_certificate` and `tls_key` no client can show a certificate",
            );
        }
        _ => {}
    }
    Some(ServerTls { certificate: certificate?, key: key?, client_ca })
}

fn admin(given: &Layers<'_>, listen: std::net::SocketAddr, judge: &mut Judge<'_>) -> Option<Admin> {
    let token = judge.secret(given, "admin_token", Some("admin_token_file"));
    let declared = given.is_set("admin_token") || given.is_set("admin_token_file");
    let place = given.place("admin");
    let Some(address) = judge.maybe(given, "admin", value::address) else {
        for name in ["admin_token", "admin_token_file"] {
            if given.is_set(name) && !given.is_set("admin") {
                judge.mistakes.add(
                    &given.place(name),
                    format!("{name}: there is no admin listener; set `admin`, or remove this"),
                );
            }
        }
        return None;
    };
    if address == listen && address.port() != 0 {
        judge.mistakes.add(&place, "admin: this is the address of `listen`; choose another port");
    }
    if !address.ip().to_canonical().is_loopback() && !declared {
        judge.mistakes.add(
            &place,
            format!("admin: {address} can be reached from other machines; set `admin_token_file`, or listen on 127.0.0.1"),
        );
    }
    if token.as_ref().is_some_and(|token| token.0.len() < ADMIN_TOKEN_BYTES_STRONG) {
        let sentence =
            "admin: the token is short and could be guessed; make one with `openssl rand -base64 32`";
        judge.warnings.add(&place, sentence);
    }
    Some(Admin { listen: address, token })
}

fn store(given: &Layers<'_>, judge: &mut Judge<'_>) -> Secret {
    let store = judge.secret(given, "store", None).unwrap_or_else(|| Secret("sqlite:semel.db".into()));
    let schemes = ["sqlite:", "postgres:", "postgresql:", "mysql:", "mariadb:"];
    if !schemes.iter().any(|scheme| store.0.starts_with(scheme)) {
        let sentence = "store: this is neither `sqlite:PATH` nor `postgres://…` nor `mysql://…`";
        judge.mistakes.add(&given.place("store"), sentence);
    }
    store
}

/// Keys beside what they seal would be in every backup of it, and forgetting one would mean nothing.
fn subject_keys(given: &Layers<'_>, store: &Secret, can_wrap: bool, judge: &mut Judge<'_>) -> Option<Secret> {
    let keys = judge.secret(given, "subject_keys", None)?;
    let place = given.place("subject_keys");
    let mut wrong = |sentence: &str| judge.mistakes.add(&place, format!("subject_keys: {sentence}"));
    let schemes = ["sqlite:", "postgres:", "postgresql:"];
    if !schemes.iter().any(|scheme| keys.0.starts_with(scheme)) {
        wrong("this is neither `sqlite:PATH` nor `postgres://…`");
    } else if same_place(&keys.0, &store.0) {
        wrong(
            "this is where `store` is; a backup of it would hold both the keys and what they seal: name another \
             file or database",
        );
    }
    if !can_wrap {
        wrong("there is no key to wrap them with; add `[encryption]` with `keys = [\"ID=file:PATH\"]`");
    }
    Some(keys)
}

/// Whether two addresses name one database, as far as they tell. Opening it finds the rest.
fn same_place(one: &str, other: &str) -> bool {
    let file = |address: &str| {
        let path = address.strip_prefix("sqlite:")?;
        std::path::absolute(path.strip_prefix("//").unwrap_or(path)).ok()
    };
    let database = |address: &str| {
        let uri: http::Uri = address.split('?').next()?.parse().ok()?;
        let path = uri.path().trim_end_matches('/').to_owned();
        Some((uri.host()?.to_ascii_lowercase(), uri.port_u16().unwrap_or(5432), path))
    };
    match (file(one), file(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => database(one).is_some_and(|place| database(other) == Some(place)),
        _ => false,
    }
}

fn namespace(given: &Layers<'_>, judge: &mut Judge<'_>) -> String {
    judge.one(given, "namespace", |text| match semel::Scope::shared(text, "route") {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    })
}

fn upstream(given: &Layers<'_>, judge: &mut Judge<'_>) -> Upstream {
    let targets = judge.many(given, "upstream", |text| {
        if text == "demo" {
            return Ok(Target::Demo);
        }
        let uri = value::url(text)?;
        if uri.query().is_some() {
            return Err("an upstream has no query; remove what follows the `?`".into());
        }
        Ok(Target::Url(uri))
    });
    let place = given.place("upstream");
    if targets.is_empty() && given.entry("upstream").is_none_or(|entry| entry.values.is_empty()) {
        judge.mistakes.add(&place, "upstream: there is none; set `upstream = \"http://127.0.0.1:3000\"` under `[gateway]`, or --upstream");
    }
    if targets.len() > 1 && targets.contains(&Target::Demo) {
        judge.mistakes.add(&place, "upstream: `demo` cannot share the load with others; remove it or them");
    }
    let health = judge.maybe(given, "health_path", |text| match text.parse::<http::uri::PathAndQuery>() {
        Ok(path) if text.starts_with('/') => Ok(path.to_string()),
        _ => Err(format!("`{text}` is not a path such as `/healthz`")),
    });
    let (every, timeout) = (positive(given, "health_every", judge), positive(given, "health_timeout", judge));
    let pool_idle = judge.one(given, "pool_idle", value::duration);
    let pool_idle_protected = judge.one(given, "pool_idle_protected", value::duration);
    if pool_idle_protected > pool_idle {
        let sentence = "pool_idle_protected: it is longer than `pool_idle`, so it changes nothing";
        judge.warnings.add(&given.place("pool_idle_protected"), sentence);
    }
    Upstream {
        targets,
        http2: judge.one(given, "upstream_http2", value::switch),
        ca: judge.pem(given, "upstream_ca"),
        health: health.map(|path| Health { path, every, timeout }),
        connect_timeout: positive(given, "connect_timeout", judge),
        response_timeout: positive(given, "response_timeout", judge),
        pool_idle,
        pool_idle_protected,
        pool_idle_connections_max: judge.one(given, "pool_idle_connections_max", value::count),
    }
}

fn encryption(
    arguments: &Arguments,
    file: &File,
    surroundings: &dyn Surroundings,
    mistakes: &mut Mistakes,
) -> Option<Encryption> {
    let entry = arguments.given.get("encryption_key").or(file.encryption.as_ref())?;
    let mut keys: Vec<(String, Secret)> = Vec::new();
    for written in &entry.values {
        let mut wrong =
            |sentence: &dyn fmt::Display| mistakes.add(&written.place, format!("encryption: {sentence}"));
        let Some((id, key)) = written.text.split_once('=') else {
            wrong(&"a key is written `ID=KEY`, with the key in base64 or as `file:PATH` or `env:NAME`");
            continue;
        };
        let (id, key) = (id.trim(), key.trim());
        if id.is_empty() || id.len() > semel::seal::KEY_ID_BYTES_MAX {
            wrong(&format!("the id before `=` must have 1 to {} bytes", semel::seal::KEY_ID_BYTES_MAX));
        } else if keys.iter().any(|(known, _)| known == id) {
            wrong(&format!("there are two keys with the id `{id}`; ids are stored beside what a key sealed"));
        }
        let refers = key.starts_with("file:") || key.starts_with("env:");
        if matches!(written.place, Place::Flag(_)) && !refers {
            wrong(&"others on this machine can see command lines; write `ID=file:PATH` or `ID=env:NAME`");
            continue;
        }
        match value::secret(key, surroundings).and_then(|key| policy::sealing_key(&key.0).map(|_| key)) {
            Ok(key) => keys.push((id.to_owned(), key)),
            Err(sentence) => wrong(&sentence),
        }
    }
    if entry.values.is_empty() {
        mistakes.add(&entry.place, "encryption: the list of keys is empty; add one or remove it");
    }
    Some(Encryption { keys })
}
