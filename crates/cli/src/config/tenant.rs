//! Who clients are, as declared (G-5): one choice, and the keys or peers it needs.

use http::Uri;

use super::judge::{Judge, Layers, named};
use super::resolved::{Jwt, JwtKeys, Network, Secret, Tenant};
use super::value;
use crate::gateway::tenant::parse_set;

/// Secrets for HMAC below this are refused: they can be guessed.
const JWT_SECRET_BYTES_MIN: usize = 16;
/// Below this they are weaker than the hash, which the standard does not allow (RFC 7518, 3.2).
const JWT_SECRET_BYTES_STRONG: usize = 32;

const KEY_SETTINGS: [&str; 4] = ["jwt_secret", "jwt_secret_file", "jwks_file", "jwks_url"];

/// The tenant that `tenant` and the settings around it declare.
pub(super) fn declared(layers: &Layers<'_>, judge: &mut Judge<'_>) -> Tenant {
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
            parse_set(&bytes).map_err(|error| format!("{path}: {error}"))?;
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
