//! How one route, or the fallback, treats its requests: settings read, and judged together.

use http::Uri;
use semel::fingerprint::Pointers;

use super::judge::{Judge, Layers, named};
use super::mistake::Place;
use super::policy;
use super::resolved::{
    Encryption, ExpiredKeys, Jwt, JwtKeys, Network, Protection, Recovery, RouteSettings, Secret, Tenant,
};
use super::value::{self, Here};
use crate::gateway::tenant;

/// Secrets for HMAC below this are refused: they can be guessed.
const JWT_SECRET_BYTES_MIN: usize = 16;
/// Below this they are weaker than the hash, which the standard does not allow (RFC 7518, 3.2).
const JWT_SECRET_BYTES_STRONG: usize = 32;

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
        tenant: tenant(layers, judge),
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
        fingerprint_headers: judge.many(layers, "fingerprint_headers", value::end_to_end_header),
        fingerprint_exclude: judge.many(layers, "fingerprint_exclude", pointer),
        replay_header: judge.one(layers, "replay_header", value::end_to_end_header),
        expired_keys: judge.one(layers, "expired_keys", expired_keys),
        auth_check: judge.maybe(layers, "auth_check", value::url),
        subject_header: judge.maybe(layers, "subject_header", value::header),
    };
    if !layers.0.is_empty() {
        contradictions(&settings, layers, own, context, judge);
    }
    settings
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
    let title = own.map_or_else(String::new, |(name, _)| format!("route `{name}`: "));
    let keyring = context.encryption.and_then(|keys| policy::keyring(keys).ok());
    match policy::policy(settings, keyring.as_ref()) {
        Ok(policy) => {
            for warning in policy.warnings() {
                judge.warnings.add(&place_of(&warning, layers, own), format!("{title}{warning}"));
            }
        }
        Err(nonsense) => {
            for sentence in nonsense.0 {
                judge.mistakes.add(&place_of(&sentence, layers, own), format!("{title}{sentence}"));
            }
        }
    }
    let mut mistake = |name: &str, sentence: &str| {
        judge.mistakes.add(&layers.place(name), format!("{title}{}", named(name, sentence)));
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

/// Where to mend it: the most particular place of a setting that the sentence names.
fn place_of(sentence: &str, layers: &Layers<'_>, own: Option<(&str, &Place)>) -> Place {
    let names: Vec<&str> = SPOKEN_OF
        .iter()
        .filter(|(word, _)| sentence.contains(word))
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    let written = layers.0.iter().find_map(|values| names.iter().find_map(|name| values.get(name)));
    match written.map(|entry| &entry.place) {
        Some(Place::Default) | None => own.map_or(Place::Default, |(_, place)| place.clone()),
        Some(place) => place.clone(),
    }
}

const KEY_SETTINGS: [&str; 4] = ["jwt_secret", "jwt_secret_file", "jwks_file", "jwks_url"];

fn tenant(layers: &Layers<'_>, judge: &mut Judge<'_>) -> Tenant {
    let Some(written) = layers.entry("tenant").and_then(|entry| entry.values.first()) else {
        meaningless(layers, judge, "without `tenant`", |_| true);
        return Tenant::Undeclared;
    };
    let (kind, name) = match written.text.split_once(':') {
        Some((kind, name)) => (kind, Some(name)),
        None => (written.text.as_str(), None),
    };
    match (kind, name) {
        ("none" | "credential" | "certificate", None) => {
            meaningless(layers, judge, &format!("with tenant `{kind}`"), |_| true);
            match kind {
                "none" => Tenant::None,
                "credential" => Tenant::Credential,
                _ => Tenant::Certificate,
            }
        }
        ("header", Some(name)) => {
            meaningless(layers, judge, "with tenant `header:…`", |setting| setting != "tenant_peers");
            let header = match value::end_to_end_header(name) {
                Ok(header) => header,
                Err(sentence) => {
                    judge.mistakes.add(&written.place, named("tenant", &sentence));
                    return Tenant::Undeclared;
                }
            };
            let peers = judge.many(layers, "tenant_peers", Network::parse);
            if layers.entry("tenant_peers").is_none() {
                Tenant::Header(header)
            } else {
                peer_header(header, peers, layers, judge)
            }
        }
        ("jwt", Some(claim)) if !claim.is_empty() => {
            meaningless(layers, judge, "with tenant `jwt:…`", |setting| setting == "tenant_peers");
            jwt(claim, layers, judge).map_or(Tenant::Undeclared, Tenant::Jwt)
        }
        _ => {
            let sentence =
                "tenant: it is not one of `none`, `credential`, `header:NAME`, `jwt:CLAIM` and `certificate`";
            judge.mistakes.add(&written.place, sentence);
            Tenant::Undeclared
        }
    }
}

/// An empty list would silently turn a name that peers assert into an API key.
fn peer_header(
    name: http::HeaderName,
    peers: Vec<Network>,
    layers: &Layers<'_>,
    judge: &mut Judge<'_>,
) -> Tenant {
    if layers.entry("tenant_peers").is_some_and(|entry| entry.values.is_empty()) {
        let sentence = "tenant_peers: the list is empty; name the networks that authenticate clients, or remove it if the header holds an API key";
        judge.mistakes.add(&layers.place("tenant_peers"), sentence);
    }
    Tenant::PeerHeader(name, peers)
}

/// Settings that the chosen tenant does not read: whoever wrote them believes in a protection that is not
/// there. Only what stands at least as close as `tenant` counts; a route may turn off what the defaults have.
fn meaningless(layers: &Layers<'_>, judge: &mut Judge<'_>, when: &str, unread: impl Fn(&str) -> bool) {
    let closest = layers.0.iter().position(|values| values.contains_key("tenant")).unwrap_or(layers.0.len());
    for name in KEY_SETTINGS
        .into_iter()
        .chain(["jwt_issuer", "jwt_audience", "tenant_peers"])
        .filter(|name| unread(name))
    {
        let at = layers.0.iter().position(|values| values.contains_key(name));
        if at.is_some_and(|at| at <= closest) {
            judge.mistakes.add(&layers.place(name), format!("{name}: it means nothing {when}; remove it"));
        }
    }
}

fn jwt(claim: &str, layers: &Layers<'_>, judge: &mut Judge<'_>) -> Option<Jwt> {
    let issuer = judge.maybe(layers, "jwt_issuer", value::text);
    let audience = judge.maybe(layers, "jwt_audience", value::text);
    let leeway = judge.one(layers, "jwt_leeway", |text| match value::duration(text)? {
        long if long.as_secs() > 600 => Err("over ten minutes of leeway is a clock to mend".into()),
        leeway => Ok(leeway),
    });
    let keys = keys(layers, judge)?;
    Some(Jwt { claim: claim.to_owned(), keys, issuer, audience, leeway })
}

fn keys(layers: &Layers<'_>, judge: &mut Judge<'_>) -> Option<JwtKeys> {
    // The closest layer that has any decides: a route with its own keys does not inherit others.
    let closest = layers.0.iter().find(|values| KEY_SETTINGS.iter().any(|name| values.contains_key(name)));
    let Some(closest) = closest else {
        let sentence = "tenant: `jwt` needs keys to verify tokens with; set one of `jwks_url`, `jwks_file` and `jwt_secret_file`";
        judge.mistakes.add(&layers.place("tenant"), sentence);
        return None;
    };
    let own = Layers(vec![*closest]);
    let set: Vec<&str> = KEY_SETTINGS.into_iter().filter(|name| own.entry(name).is_some()).collect();
    if let [first, second, ..] = set[..] {
        judge.mistakes.add(
            &own.place(second),
            format!("{second}: `{first}` is set as well; tokens are verified with one of them, keep that"),
        );
        return None;
    }
    let surroundings = judge.surroundings;
    match set[0] {
        "jwks_file" => judge.maybe(&own, "jwks_file", |path| {
            let bytes = surroundings
                .read(path.as_ref())
                .map_err(|error| format!("{path} cannot be read: {error}"))?;
            tenant::parse_set(&bytes).map_err(|error| format!("{path}: {error}"))?;
            Ok(JwtKeys::JwksFile(path.into()))
        }),
        "jwks_url" => judge.maybe(&own, "jwks_url", |text| {
            let uri: Uri = value::url(text)?;
            if uri.scheme_str() != Some("https") && !value::is_loopback(&uri) {
                return Err("whoever can change keys on their way can be any tenant; use `https://`".into());
            }
            Ok(JwtKeys::JwksUrl(uri))
        }),
        name => {
            let secret = judge.secret(&own, "jwt_secret", Some("jwt_secret_file"))?;
            strong(name, secret, &own, judge).map(JwtKeys::Secret)
        }
    }
}

fn strong(name: &str, secret: Secret, own: &Layers<'_>, judge: &mut Judge<'_>) -> Option<Secret> {
    let bytes = secret.0.len();
    if bytes < JWT_SECRET_BYTES_MIN {
        let sentence = format!("{name}: the secret has {bytes} bytes and could be guessed; use 32 or more");
        judge.mistakes.add(&own.place(name), sentence);
        return None;
    }
    if bytes < JWT_SECRET_BYTES_STRONG {
        let sentence =
            format!("{name}: the secret has {bytes} bytes; 32 or more are as strong as the signature");
        judge.warnings.add(&own.place(name), sentence);
    }
    Some(secret)
}
