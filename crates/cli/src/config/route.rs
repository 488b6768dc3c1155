//! How one route, or the fallback, treats its requests: settings read, and judged together.

use http::HeaderName;
use semel::fingerprint::Pointers;
use semel::http::header::{IDEMPOTENCY_KEY, is_secret};
use semel::http::tenant::is_credential;
use semel::http::{ExpiredKeys, Protection};

use super::judge::{Judge, Layers, named};
use super::mistake::Place;
use super::resolved::{Encryption, Recovery, RouteSettings, Tenant};
use super::value::{self, Here};
use super::{policy, tenant};

/// What a route's settings are judged with.
pub(super) struct Context<'a> {
    pub(super) encryption: Option<&'a Encryption>,
    /// Clients are asked for certificates.
    pub(super) client_ca: bool,
}

/// The settings that hold when nothing is written.
pub(super) fn preset() -> RouteSettings {
    let (mut mistakes, mut warnings) = Default::default();
    let mut judge = Judge { mistakes: &mut mistakes, warnings: &mut warnings, surroundings: &Here };
    settings(&Layers(Vec::new()), None, &Context { encryption: None, client_ca: false }, &mut judge)
}

/// Reads and judges. `own` are the route's name and place; the fallback has none.
pub(super) fn settings(
    layers: &Layers<'_>,
    own: Option<(&str, &Place)>,
    context: &Context<'_>,
    judge: &mut Judge<'_>,
) -> RouteSettings {
    let settings = RouteSettings {
        protection: judge.one(layers, "protection", |text| match text {
            "required" => Ok(Protection::Required),
            "optional" => Ok(Protection::Optional),
            "off" => Ok(Protection::Off),
            _ => Err(format!("`{text}` is not one of `required`, `optional` and `off`")),
        }),
        tenant: tenant::declared(layers, judge),
        recovery: judge.one(layers, "recovery", recovery),
        ttl: judge.one(layers, "ttl", value::duration),
        retry_window: judge.one(layers, "retry_window", value::duration),
        lease: judge.one(layers, "lease", value::duration),
        run_max: judge.one(layers, "run_max", value::duration),
        wait: judge.one(layers, "wait", value::duration),
        store_patience: judge.one(layers, "store_patience", value::duration),
        outage_open: judge.one(layers, "outage", |text| match text {
            "closed" => Ok(false),
            "open" => Ok(true),
            _ => Err(format!("`{text}` is neither `closed` nor `open`")),
        }),
        natural_effect: judge.one(layers, "natural_effect", value::switch),
        request_bytes_max: judge.one(layers, "request_bytes_max", value::size),
        outcome_bytes_max: judge.one(layers, "outcome_bytes_max", value::size),
        releasing: judge.many(layers, "releasing", value::releasing),
        store_headers: judge.many(layers, "store_headers", value::end_to_end_header),
        redact_headers: judge.many(layers, "redact_headers", value::header),
        redact_body: judge.many(layers, "redact_body", pointer),
        encrypt: judge.one(layers, "encrypt", value::switch),
        fingerprint_headers: judge.many(layers, "fingerprint_headers", counted_header),
        fingerprint_exclude: judge.many(layers, "fingerprint_exclude", pointer),
        replay_header: judge.one(layers, "replay_header", marking_header),
        expired_keys: judge.one(layers, "expired_keys", expired_keys),
        auth_check: judge.maybe(layers, "auth_check", value::url),
        subject_header: judge.maybe(layers, "subject_header", naming_header),
    };
    if !layers.0.is_empty() {
        contradictions(&settings, layers, own, context, judge);
    }
    settings
}

/// The key names an intent; it says nothing about what is asked.
fn counted_header(text: &str) -> Result<HeaderName, String> {
    match value::end_to_end_header(text)? {
        key if key == IDEMPOTENCY_KEY => {
            Err(format!("`{key}` is the key itself and cannot count; remove it"))
        }
        name => Ok(name),
    }
}

fn marking_header(text: &str) -> Result<HeaderName, String> {
    match value::end_to_end_header(text)? {
        name if name.as_str().starts_with("content-") => {
            Err(format!("`{name}` speaks of the body and cannot mark a replay; choose a name of your own"))
        }
        name => Ok(name),
    }
}

/// A subject is stored, so it must be no credential.
fn naming_header(text: &str) -> Result<HeaderName, String> {
    match value::header(text)? {
        name if is_credential(&name) || is_secret(&name) => {
            Err(format!("`{name}` holds a credential, and a subject is stored; name another"))
        }
        name => Ok(name),
    }
}

fn pointer(text: &str) -> Result<String, String> {
    Pointers::parse(&[text]).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn recovery(text: &str) -> Result<Recovery, String> {
    match text.split_once(':') {
        None if text == "hold" => Ok(Recovery::Hold),
        None if text == "rerun" => Ok(Recovery::Rerun),
        None if text == "ask" => {
            Err("`ask` needs to know where: write `ask:http://127.0.0.1:3000/reconcile`".into())
        }
        Some(("ask", to)) => value::url(to).map(Recovery::Ask),
        _ => Err(format!("`{text}` is not one of `hold`, `rerun` and `ask:URL`")),
    }
}

fn expired_keys(text: &str) -> Result<ExpiredKeys, String> {
    match text.split_once(':') {
        None if text == "off" => Ok(ExpiredKeys::NotChecked),
        None if text == "uuid7" => Ok(ExpiredKeys::Uuid7),
        Some(("first-sent", name)) => value::header(name).map(ExpiredKeys::FirstSent),
        _ => Err(format!("`{text}` is not one of `off`, `uuid7` and `first-sent:HEADER`")),
    }
}

/// What each setting may be on its own and not together.
fn contradictions(
    settings: &RouteSettings,
    layers: &Layers<'_>,
    own: Option<(&str, &Place)>,
    context: &Context<'_>,
    judge: &mut Judge<'_>,
) {
    let keyring = context.encryption.and_then(|keys| policy::keyring(keys).ok());
    match policy::policy(settings, keyring.as_ref(), None) {
        Ok(policy) => {
            for warning in policy.warnings() {
                let (place, title) = origin(&spoken_of(&warning), layers, own);
                judge.warnings.add(&place, format!("{title}{warning}"));
            }
        }
        Err(nonsense) => {
            for sentence in nonsense.0 {
                let (place, title) = origin(&spoken_of(&sentence), layers, own);
                judge.mistakes.add(&place, format!("{title}{sentence}"));
            }
        }
    }
    let mut mistake = |name: &str, sentence: &str| {
        let (place, title) = origin(&[name], layers, own);
        judge.mistakes.add(&place, format!("{title}{}", named(name, sentence)));
    };
    if settings.encrypt && context.encryption.is_none() {
        mistake("encrypt", "there are no keys; add `[encryption]` with `keys = [\"ID=file:PATH\"]`");
    }
    if let Some(both) = settings.store_headers.iter().find(|name| settings.redact_headers.contains(name)) {
        mistake(
            "redact_headers",
            &format!("`{both}` also stands in `store_headers`; keep it in one of them"),
        );
    }
    if settings.request_bytes_max == 0 {
        mistake("request_bytes_max", "no request has a body of zero bytes at most; set 1 or more");
    }
    if settings.run_max.is_zero() {
        mistake("run_max", "the upstream needs some time; set 1s or more");
    }
    if settings.replay_header == "idempotency-key" {
        mistake("replay_header", "this is the header of the key itself; choose another name");
    }
    if settings.tenant == Tenant::Certificate && !context.client_ca {
        mistake(
            "tenant",
            "clients are not asked for certificates; set `tls_client_ca` with `tls_certificate` and `tls_key`",
        );
    }
}

/// The settings that sentences of the policy speak of.
const SPOKEN_OF: &[(&str, &[&str])] = &[
    ("TTL", &["ttl"]),
    ("lease", &["lease"]),
    ("retry window", &["retry_window"]),
    ("longest run", &["run_max"]),
    ("Waiting", &["wait"]),
    ("store patience", &["store_patience"]),
    ("store outage", &["outage", "natural_effect"]),
    ("`rerun`", &["recovery"]),
    ("outcome of", &["outcome_bytes_max"]),
];

fn spoken_of(sentence: &str) -> Vec<&'static str> {
    let said = SPOKEN_OF.iter().filter(|(word, _)| sentence.contains(word));
    said.flat_map(|(_, names)| *names).copied().collect()
}

/// Where to mend it: the most particular place of the settings named. The route is named with it if it
/// wrote that itself; what it inherits is said once for all.
fn origin(names: &[&str], layers: &Layers<'_>, own: Option<(&str, &Place)>) -> (Place, String) {
    let written = layers.0.iter().enumerate().find_map(|(depth, values)| {
        let entry = names.iter().find_map(|name| values.get(name))?;
        Some((depth, entry.place.clone()))
    });
    let title = |name: &str| format!("route `{name}`: ");
    match (written, own) {
        (Some((0, place)), Some((name, _))) => (place, title(name)),
        (Some((_, place)), _) if place != Place::Default => (place, String::new()),
        (_, Some((name, place))) => (place.clone(), title(name)),
        (_, None) => (Place::Default, String::new()),
    }
}
