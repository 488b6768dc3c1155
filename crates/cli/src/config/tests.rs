//! Wrong configurations and what is said about them; right ones and what they mean.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use semel::http::{ExpiredKeys, Protection};

use super::flags::Arguments;
use super::mistake::Mistake;
use super::resolve::{Resolved, resolve};
use super::resolved::{JwtKeys, Recovery, Target, Tenant};
use super::value::Surroundings;

/// Files and variables that exist only here.
#[derive(Default)]
pub(super) struct Imagined {
    files: BTreeMap<&'static str, String>,
    variables: BTreeMap<&'static str, &'static str>,
}

impl Surroundings for Imagined {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let text = path.to_str().and_then(|path| self.files.get(path));
        text.map(|text| text.clone().into_bytes()).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).map(|value| (*value).to_owned())
    }

    fn variables(&self) -> Vec<String> {
        self.variables.keys().map(|name| (*name).to_owned()).collect()
    }
}

fn imagined(config: &str) -> Imagined {
    let files = [
        ("semel.toml", config),
        ("cert.pem", "-----BEGIN CERTIFICATE-----"),
        ("key.pem", "-----BEGIN PRIVATE KEY-----"),
        ("not.pem", "hello"),
        ("token", "s3cret-token\n"),
        ("short", "12345"),
        ("long", "0123456789012345678901234567890123456789"),
        (
            "keys.json",
            r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#,
        ),
        ("no-keys.json", r#"{"keys":[]}"#),
    ];
    Imagined {
        files: files.into_iter().map(|(path, text)| (path, text.to_owned())).collect(),
        variables: [("SEAL", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")].into(),
    }
}

fn arguments(words: &[&str]) -> Arguments {
    let command = Arguments::augment_args(clap::Command::new("gateway"));
    let matches = command.try_get_matches_from(std::iter::once(&"gateway").chain(words)).unwrap();
    Arguments::from_arg_matches(&matches).unwrap()
}

fn with_flags(config: &str, words: &[&str]) -> Result<Resolved, Vec<Mistake>> {
    resolve(&Arguments { config: Some("semel.toml".into()), ..arguments(words) }, &imagined(config))
}

pub(super) fn resolved(config: &str) -> Resolved {
    with_flags(config, &[]).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

pub(super) fn mistakes(config: &str) -> Vec<String> {
    match with_flags(config, &[]) {
        Ok(_) => panic!("nothing is wrong with:\n{config}"),
        Err(mistakes) => mistakes.iter().map(ToString::to_string).collect(),
    }
}

const GATEWAY: &str = "[gateway]\nupstream = \"http://127.0.0.1:3000\"\n";

/// What stands below two lines of a good gateway, and the beginnings of what is said, in order.
const WRONG: &[(&str, &[&str])] = &[
    // Shape.
    ("listen = ", &["semel.toml:3:10: this is not TOML"]),
    (
        "listen = 127.0.0.1\ndrain = \"x\"",
        &["semel.toml:3:15: this is not TOML", "semel.toml:4:9: drain: `x`"],
    ),
    (
        "lisen = \"127.0.0.1:1\"",
        &["semel.toml:3:1: there is no setting `lisen` here; did you mean `listen`?"],
    ),
    ("xyzzy = 1", &["semel.toml:3:1: there is no setting `xyzzy` here"]),
    (
        "ttl = \"1h\"",
        &["semel.toml:3:1: there is no setting `ttl` here; it belongs under `[defaults]` or a `[[route]]`"],
    ),
    (
        "[defaults]\nlisten = \"1\"",
        &["semel.toml:4:1: there is no setting `listen` here; it belongs under `[gateway]`"],
    ),
    (
        "[deflauts]\nttl = \"1h\"",
        &["semel.toml:3:2: `deflauts` means nothing at the top of the file; did you mean `defaults`?"],
    ),
    ("[route]\npath = \"/\"", &["semel.toml:3:1: routes are written `[[route]]`"]),
    ("listen = [\"127.0.0.1:1\"]", &["semel.toml:3:10: `listen` takes one value"]),
    ("listen = 1.5", &["semel.toml:3:10: `listen` takes text, a whole number, or true or false"]),
    (
        "[[route]]\npth = \"/\"",
        &[
            "semel.toml:3:1: the route has no `path`",
            "semel.toml:4:1: there is no setting `pth` here; did you mean `path`?",
        ],
    ),
    // Values.
    ("listen = \"localhost\"", &["semel.toml:3:10: listen: `localhost` is not an IP address with a port"]),
    ("drain = 30", &["semel.toml:3:9: drain: `30` is not a duration"]),
    ("replay_memory = \"2h\"", &["semel.toml:3:17: replay_memory: it must be at most 1m"]),
    (
        "drain = \"soon\"\nlog = \"xml\"",
        &["semel.toml:3:9: drain: `soon`", "semel.toml:4:7: log: `xml` is neither"],
    ),
    ("header_timeout = \"0s\"", &["semel.toml:3:18: header_timeout: it must be longer than nothing"]),
    (
        "header_bytes_max = \"1KiB\"",
        &["semel.toml:3:20: header_bytes_max: it must be between 8KiB and 16MiB"],
    ),
    ("operations_max = 0", &["semel.toml:3:18: operations_max: `0` is not a number of 1 or more"]),
    ("connections_max = 0", &["semel.toml:3:19: connections_max: `0` is not a number of 1 or more"]),
    (
        "trusted_proxies = [\"10.0.0.0/8\", \"10.0.0.1/8\"]",
        &["semel.toml:3:34: trusted_proxies: `10.0.0.1/8` has bits set"],
    ),
    ("store = \"mongodb://x\"", &["semel.toml:3:1: store: this is neither"]),
    (
        "subject_keys = \"sqlite:./semel.db\"",
        &[
            "semel.toml:3:1: subject_keys: there is no key to wrap them with",
            "semel.toml:3:1: subject_keys: this is where `store` is",
        ],
    ),
    (
        "store = \"postgres://a:x@db/semel?sslmode=require\"\nsubject_keys = \"postgresql://b:y@DB:5432/semel\"\n[encryption]\nkeys = [\"k=env:SEAL\"]",
        &["semel.toml:4:1: subject_keys: this is where `store` is"],
    ),
    (
        "subject_keys = \"mysql://u@h/d\"\n[encryption]\nkeys = [\"k=env:SEAL\"]",
        &["semel.toml:3:1: subject_keys: this is neither `sqlite:PATH` nor `postgres://"],
    ),
    ("store = \"env:NOWHERE\"", &["semel.toml:3:9: store: the variable NOWHERE is not set"]),
    ("namespace = \"\"", &["semel.toml:3:13: namespace: the namespace of a scope is empty"]),
    ("health_path = \"healthz\"", &["semel.toml:3:15: health_path: `healthz` is not a path"]),
    ("[defaults]\nprotection = \"on\"", &["semel.toml:4:14: protection: `on` is not one of"]),
    (
        "[defaults]\nreleasing = [200]",
        &["semel.toml:4:14: releasing: 200 does not say that nothing happened"],
    ),
    ("[defaults]\nredact_body = [\"card\"]", &["semel.toml:4:16: redact_body: "]),
    (
        "[defaults]\nstore_headers = [\"connection\"]",
        &["semel.toml:4:18: store_headers: `connection` belongs to one connection"],
    ),
    // What the layer refuses must not get as far as a gateway that starts.
    (
        "[defaults]\nreplay_header = \"Content-Type\"",
        &["semel.toml:4:17: replay_header: `content-type` speaks of the body"],
    ),
    (
        "[defaults]\nfingerprint_headers = [\"Idempotency-Key\"]",
        &["semel.toml:4:24: fingerprint_headers: `idempotency-key` is the key itself"],
    ),
    (
        "[defaults]\nsubject_header = \"Authorization\"",
        &["semel.toml:4:18: subject_header: `authorization` holds a credential"],
    ),
    (
        "[defaults]\nreplay_header = \"Semel-Replayed\"",
        &["semel.toml:4:17: replay_header: `semel-replayed` is in the namespace"],
    ),
    ("[defaults]\nexpired_keys = \"yes\"", &["semel.toml:4:16: expired_keys: `yes` is not one of"]),
    ("[defaults]\nauth_check = \"/auth\"", &["semel.toml:4:14: auth_check: it is not a URL"]),
    // Listeners.
    (
        "admin = \"0.0.0.0:8081\"",
        &["semel.toml:3:1: admin: 0.0.0.0:8081 can be reached from other machines; set `admin_token_file`"],
    ),
    ("admin = \"127.0.0.1:8080\"", &["semel.toml:3:1: admin: this is the address of `listen`"]),
    ("admin_token_file = \"token\"", &["semel.toml:3:1: admin_token_file: there is no admin listener"]),
    (
        "admin = \"0.0.0.0:1\"\nadmin_token_file = \"gone\"",
        &["semel.toml:4:20: admin_token_file: the secret in gone cannot be read"],
    ),
    (
        "admin = \"0.0.0.0:1\"\nadmin_token = \"a\"\nadmin_token_file = \"token\"",
        &["semel.toml:4:1: `admin_token` and `admin_token_file` are both set"],
    ),
    ("tls_certificate = \"cert.pem\"", &["semel.toml:3:1: tls_certificate: `tls_key` is missing"]),
    (
        "tls_certificate = \"cert.pem\"\ntls_key = \"gone.pem\"",
        &["semel.toml:4:11: tls_key: gone.pem cannot be read"],
    ),
    (
        "tls_certificate = \"cert.pem\"\ntls_key = \"not.pem\"",
        &["semel.toml:4:11: tls_key: not.pem is not a PEM file"],
    ),
    ("tls_client_ca = \"cert.pem\"", &["semel.toml:3:1: tls_client_ca: without `tls_certificate`"]),
    // Policies: G-11, G-15, G-18.
    ("[defaults]\nttl = \"1h\"", &["semel.toml:4:1: The TTL (3600s) must exceed the retry window (28800s)"]),
    (
        "[[route]]\nid = \"a\"\npath = \"/a\"\nretry_window = \"48h\"",
        &["semel.toml:6:1: route `a`: The TTL (86400s) must exceed the retry window"],
    ),
    ("[defaults]\nlease = \"1ms\"", &["semel.toml:4:1: The lease is 1ms"]),
    ("[defaults]\noutage = \"open\"", &["semel.toml:4:1: Running open during a store outage needs"]),
    ("[defaults]\nrecovery = \"ask\"", &["semel.toml:4:12: recovery: `ask` needs to know where"]),
    ("[defaults]\nrecovery = \"guess\"", &["semel.toml:4:12: recovery: `guess` is not one of"]),
    ("[defaults]\nencrypt = true", &["semel.toml:4:1: encrypt: there are no keys; add `[encryption]`"]),
    (
        "[defaults]\nstore_headers = [\"set-cookie\"]\nredact_headers = [\"Set-Cookie\"]",
        &["semel.toml:5:1: redact_headers: `set-cookie` also stands in `store_headers`"],
    ),
    ("[encryption]\nkeys = [\"k\"]", &["semel.toml:4:9: encryption: a key is written `ID=KEY`"]),
    (
        "[encryption]\nkeys = [\"k=aGVsbG8=\"]",
        &["semel.toml:4:9: encryption: the key has 5 bytes; it needs 32"],
    ),
    (
        "[encryption]\nkeys = [\"a=env:SEAL\", \"a=env:SEAL\"]",
        &["semel.toml:4:23: encryption: there are two keys with the id `a`"],
    ),
    // Tenants: G-5.
    ("[defaults]\ntenant = \"alice\"", &["semel.toml:4:10: tenant: it is not one of `none`"]),
    ("[defaults]\ntenant = \"jwt:sub\"", &["semel.toml:4:1: tenant: `jwt` needs keys to verify tokens with"]),
    ("[defaults]\ntenant = \"jwt:\"", &["semel.toml:4:10: tenant: it is not one of"]),
    (
        "[defaults]\ntenant = \"jwt:sub\"\njwt_secret_file = \"short\"",
        &["semel.toml:5:1: jwt_secret_file: the secret has 5 bytes"],
    ),
    (
        "[defaults]\ntenant = \"jwt:sub\"\njwks_file = \"no-keys.json\"",
        &["semel.toml:5:13: jwks_file: no-keys.json: the key set has no"],
    ),
    (
        "[defaults]\ntenant = \"jwt:sub\"\njwks_url = \"http://id.example/keys\"",
        &["semel.toml:5:12: jwks_url: whoever can change keys"],
    ),
    (
        "[defaults]\ntenant = \"jwt:sub\"\njwks_file = \"keys.json\"\njwt_secret_file = \"long\"",
        &["semel.toml:5:1: jwks_file: `jwt_secret_file` is set as well"],
    ),
    (
        "[defaults]\njwks_file = \"keys.json\"",
        &["semel.toml:4:1: jwks_file: it means nothing without `tenant`"],
    ),
    (
        "[defaults]\ntenant = \"none\"\ntenant_peers = [\"::1\"]",
        &["semel.toml:5:1: tenant_peers: it means nothing with tenant `none`"],
    ),
    (
        "[defaults]\ntenant = \"header:x-account\"\ntenant_peers = []",
        &["semel.toml:5:1: tenant_peers: the list is empty"],
    ),
    (
        "[defaults]\ntenant = \"certificate\"",
        &["semel.toml:4:1: tenant: clients are not asked for certificates"],
    ),
    // Routes: G-1, G-4.
    (
        "[[route]]\npath = \"orders\"",
        &["semel.toml:4:8: path: the path `orders` does not begin with a slash"],
    ),
    (
        "[[route]]\npath = \"/{id}x\"",
        &["semel.toml:4:8: path: in the path `/{id}x`, `{id}x` is not one whole parameter"],
    ),
    ("[[route]]\npath = \"/a\"\nmethods = [\"GET\"]", &["semel.toml:5:12: methods: GET never takes a key"]),
    ("[[route]]\npath = \"/a\"\nmethods = []", &["semel.toml:5:11: `methods` is empty"]),
    ("[[route]]\nid = \"a b\"\npath = \"/a\"", &["semel.toml:4:6: id: a route id has 1 to 128"]),
    (
        "[[route]]\nid = \"a\"\npath = \"/a\"\n[[route]]\nid = \"a\"\npath = \"/b\"",
        &["semel.toml:7:6: id: another route is called `a` already (semel.toml:4:6)"],
    ),
    (
        "[[route]]\nid = \"all\"\npath = \"/{*rest}\"\n[[route]]\nid = \"pay\"\npath = \"/pay\"",
        &["semel.toml:6:1: the route `pay` can never be reached: `all` before it takes all its requests"],
    ),
    (
        "[[route]]\nid = \"a\"\npath = \"/p\"\nmethods = [\"POST\"]\n[[route]]\nid = \"b\"\npath = \"/{x}\"\nmethods = [\"PATCH\"]\n[[route]]\nid = \"c\"\npath = \"/p\"",
        &["semel.toml:11:1: the route `c` can never be reached: `a`, `b` before it take all its requests"],
    ),
    ("[aliases]\nold = \"new\"", &["semel.toml:4:1: alias: there is no route with the id `new`"]),
    (
        "[aliases]\na = \"b\"\n[[route]]\nid = \"a\"\npath = \"/a\"\n[[route]]\nid = \"b\"\npath = \"/b\"",
        &["semel.toml:4:1: alias: `a` is still the id of a route"],
    ),
    (
        "[aliases]\nx = \"b\"\ny = \"b\"\n[[route]]\nid = \"b\"\npath = \"/b\"",
        &["semel.toml:5:1: alias: `b` is already the new id of `x`"],
    ),
    ("[aliases]\nx = \"y\"\ny = \"x\"", &["semel.toml:4:1: alias: following `x` leads back to it"]),
    (
        "[aliases]\n\"POST /other\" = \"b\"\n[[route]]\nid = \"b\"\npath = \"/b\"",
        &["semel.toml:4:1: alias: `POST /other` is what POST requests to /other are stored under"],
    ),
];

#[test]
fn every_mistake_has_its_place_and_says_what_to_do() {
    // G-1, G-4, G-5, G-11, G-15, G-18
    let mut unexpected = Vec::new();
    for (config, expected) in WRONG {
        let said = mistakes(&format!("{GATEWAY}{config}"));
        let fits = said.len() == expected.len()
            && said.iter().zip(*expected).all(|(said, begins)| said.starts_with(begins));
        if !fits {
            unexpected.push(format!("for\n{config}\nexpected {expected:#?}\nbut said {said:#?}"));
        }
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n\n"));
}

#[test]
fn a_ttl_below_the_retry_window_is_refused_at_its_line() {
    // G-11
    let said = mistakes(&format!("{GATEWAY}[[route]]\nid = \"pay\"\npath = \"/pay\"\nttl = \"1h\""));
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(
        said[0].starts_with("semel.toml:6:1: route `pay`: The TTL (3600s) must exceed the retry window"),
        "{said:#?}"
    );
}

#[test]
fn what_routes_inherit_is_said_once() {
    let routes =
        "[[route]]\npath = \"/a\"\n[[route]]\npath = \"/b\"\n[[route]]\npath = \"/c\"\nttl = \"2h\"\n";
    let said = mistakes(&format!("{GATEWAY}[defaults]\nttl = \"1h\"\nencrypt = true\n{routes}"));
    let places: Vec<&str> = said.iter().map(|one| one.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["semel.toml:4:1", "semel.toml:5:1", "semel.toml:12:1"], "{said:#?}");
}

#[test]
fn running_open_is_refused_without_a_natural_effect() {
    // G-18
    let said = mistakes(&format!("{GATEWAY}[[route]]\npath = \"/a\"\noutage = \"open\""));
    assert!(said[0].contains("needs an effect declared natural"), "{said:#?}");
    let natural =
        resolved(&format!("{GATEWAY}[[route]]\npath = \"/a\"\noutage = \"open\"\nnatural_effect = true"));
    assert!(natural.gateway.routes[0].settings.outage_open);
    assert!(!natural.gateway.fallback.outage_open);
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_file() {
    let said = mistakes(
        "[gateway]\nlisten = \"x\"\ndrain = \"y\"\n[defaults]\nttl = \"z\"\n[[route]]\npath = \"a\"\nmethods = \"get\"\n",
    );
    let lines: Vec<&str> = said.iter().filter_map(|one| one.split(':').nth(1)).collect();
    assert_eq!(lines, ["2", "3", "5", "7", "8", " there is none; set `upstream = \"http"], "{said:#?}");
}

#[test]
fn nothing_written_means_the_documented_defaults() {
    let gateway = resolved(GATEWAY).gateway;
    assert_eq!(gateway.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(gateway.store.0, "sqlite:semel.db");
    assert!(gateway.routes.is_empty() && gateway.admin.is_none() && gateway.tls.is_none());
    let fallback = gateway.fallback;
    assert_eq!(
        (fallback.protection, fallback.recovery, fallback.tenant),
        (Protection::Optional, Recovery::Hold, Tenant::Undeclared)
    );
    let defaults = semel::policy::DEFAULTS;
    assert_eq!(
        (fallback.ttl, fallback.lease, fallback.run_max),
        (defaults.ttl, defaults.lease, defaults.run_max)
    );
    assert_eq!((fallback.retry_window, fallback.wait), (defaults.retry_window, defaults.wait));
    assert_eq!(fallback.releasing, [http::StatusCode::TOO_MANY_REQUESTS]);
    assert_eq!(fallback.expired_keys, ExpiredKeys::NotChecked);
}

#[test]
fn no_file_is_needed() {
    let only_flags = |words: &[&str]| resolve(&arguments(words), &Imagined::default());
    let gateway =
        only_flags(&["--upstream", "demo"]).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).gateway;
    assert_eq!(gateway.upstream.targets, [Target::Demo]);
    let words = [
        "--upstream",
        "http://127.0.0.1:1,http://127.0.0.1:2",
        "--upstream",
        "http://127.0.0.1:3",
        "--upstream-http2",
    ];
    let gateway = only_flags(&words).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).gateway;
    assert_eq!((gateway.upstream.targets.len(), gateway.upstream.http2), (3, true));
    let nothing: Vec<String> = only_flags(&[]).err().unwrap().iter().map(ToString::to_string).collect();
    assert!(nothing.len() == 1 && nothing[0].contains("--upstream"), "{nothing:?}");
}

#[test]
fn flags_come_before_the_file_and_a_route_before_both() {
    let config = format!(
        "{GATEWAY}drain = \"1s\"\n[defaults]\nwait = \"2s\"\nlease = \"40s\"\n[[route]]\nid = \"a\"\npath = \"/a\"\nwait = \"3s\"\n"
    );
    let gateway = with_flags(&config, &["--wait", "4s", "--drain", "5s"])
        .unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
        .gateway;
    let seconds = Duration::from_secs;
    assert_eq!(
        (gateway.drain, gateway.fallback.wait, gateway.fallback.lease),
        (seconds(5), seconds(4), seconds(40))
    );
    assert_eq!(
        (gateway.routes[0].settings.wait, gateway.routes[0].settings.lease),
        (seconds(3), seconds(40))
    );
}

#[test]
fn mistakes_in_flags_name_the_flag() {
    let said = with_flags(GATEWAY, &["--ttl", "soon", "--route", "x"]).err().unwrap();
    let said: Vec<String> = said.iter().map(ToString::to_string).collect();
    assert!(said[0].starts_with("--route: a route is written"), "{said:#?}");
    assert!(said[1].starts_with("--ttl: `soon` is not a duration"), "{said:#?}");
}

#[test]
fn secrets_on_the_command_line_must_be_references() {
    // G-5
    let said = with_flags(
        GATEWAY,
        &["--tenant", "jwt:sub", "--jwt-secret", "a secret of thirty-two bytes, or more"],
    )
    .err()
    .unwrap();
    assert!(said[0].to_string().contains("file:PATH"), "{said:#?}");
    assert!(!format!("{said:?}").contains("thirty-two"), "{said:#?}");
    let words = ["--tenant", "jwt:org.id", "--jwt-secret-file", "long", "--jwt-audience", "pay"];
    let gateway = with_flags(GATEWAY, &words).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).gateway;
    let Tenant::Jwt(jwt) = gateway.fallback.tenant else { panic!("not a token") };
    assert_eq!((jwt.claim.as_str(), jwt.audience.as_deref()), ("org.id", Some("pay")));
    assert!(matches!(jwt.keys, JwtKeys::Secret(secret) if secret.0.len() == 40));
}

#[test]
fn a_header_is_an_api_key_unless_peers_are_listed() {
    // G-5
    let tenant = |words: &[&str]| {
        with_flags(GATEWAY, words).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).gateway.fallback.tenant
    };
    assert!(matches!(tenant(&["--tenant", "header:X-Api-Key"]), Tenant::Header(name) if name == "x-api-key"));
    let peers = tenant(&["--tenant", "header:X-Account", "--tenant-peers", "10.0.0.0/8, ::1"]);
    assert!(matches!(peers, Tenant::PeerHeader(name, peers) if name == "x-account" && peers.len() == 2));
}

#[test]
fn a_route_may_turn_off_what_the_defaults_declare() {
    // G-5
    let config = format!(
        "{GATEWAY}[defaults]\ntenant = \"jwt:sub\"\njwks_file = \"keys.json\"\n[[route]]\npath = \"/open\"\ntenant = \"none\"\n[[route]]\npath = \"/own\"\njwt_secret_file = \"long\"\n"
    );
    let gateway = resolved(&config).gateway;
    assert_eq!(gateway.routes[0].settings.tenant, Tenant::None);
    assert!(
        matches!(&gateway.routes[1].settings.tenant, Tenant::Jwt(jwt) if matches!(jwt.keys, JwtKeys::Secret(_)))
    );
    assert!(matches!(&gateway.fallback.tenant, Tenant::Jwt(jwt) if matches!(jwt.keys, JwtKeys::JwksFile(_))));
}

#[test]
fn encryption_keys_are_references_or_base64_newest_first() {
    // G-20
    let config = format!(
        "{GATEWAY}[defaults]\nencrypt = true\n[encryption]\nkeys = [\"new=env:SEAL\", \"old=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]\n"
    );
    let resolved = resolved(&config);
    let keys = resolved.gateway.encryption.unwrap();
    assert_eq!(keys.keys.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["new", "old"]);
    let ring = format!("{:?}", super::policy::keyring(&keys).unwrap());
    assert!(ring.contains("active: \"new\""), "{ring}");
    let shown = resolved.shown.text(&[]);
    assert!(shown.contains("new, old") && !shown.contains("AAAA"), "{shown}");
}

#[test]
fn keys_of_subjects_need_a_place_of_their_own_and_somebody_who_uses_them() {
    // G-20
    let config = |route: &str| {
        format!(
            "{GATEWAY}subject_keys = \"postgres://u:hush@keys/semel_keys\"\n[defaults]\nencrypt = true\n{route}[encryption]\nkeys = [\"k=env:SEAL\"]\n"
        )
    };
    let used = resolved(&config("subject_header = \"x-customer\"\n"));
    assert!(used.warnings.is_empty(), "{:?}", used.warnings);
    assert!(used.gateway.subject_keys.is_some());
    let shown = used.shown.text(&[]);
    assert!(shown.contains("postgres://keys/semel_keys") && !shown.contains("hush"), "{shown}");
    let unused = resolved(&config("")).warnings;
    assert!(unused[0].to_string().contains("so this changes nothing"), "{unused:?}");
}

#[test]
fn a_tight_ttl_and_a_bare_rerun_are_warned_of() {
    // G-11
    let warnings = resolved(&format!("{GATEWAY}[defaults]\nttl = \"9h\"\nrecovery = \"rerun\"")).warnings;
    let said: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert!(
        said[0].starts_with("semel.toml:4:1: The TTL (32400s) is below twice the retry window"),
        "{said:#?}"
    );
    assert!(said[1].starts_with("semel.toml:5:1: Recovery is `rerun`"), "{said:#?}");
}

#[test]
fn a_misspelt_variable_and_a_short_token_are_warned_of() {
    let mut surroundings = imagined(&format!("{GATEWAY}admin = \"127.0.0.1:9\"\nadmin_token = \"short\""));
    surroundings.variables.extend([
        ("SEMEL_TENNANT", "none"),
        ("SEMEL_MUTANT", ""),
        ("SEMEL_TEST_LEDGER", ""),
        ("PATH", ""),
    ]);
    let arguments = Arguments { config: Some("semel.toml".into()), ..Arguments::default() };
    let warnings =
        resolve(&arguments, &surroundings).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).warnings;
    let said: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert!(said[0].starts_with("semel.toml:3:1: admin: the token is short"), "{said:#?}");
    assert_eq!(said[1..], ["SEMEL_TENNANT: there is no such variable; did you mean `SEMEL_TENANT`?"]);
}

#[test]
fn two_routes_cannot_have_the_same_past() {
    // G-1
    let routes =
        format!("{GATEWAY}[[route]]\nid = \"b\"\npath = \"/b\"\n[[route]]\nid = \"c\"\npath = \"/c\"\n");
    let said = with_flags(&routes, &["--alias", "a=b,a=c"]).err().unwrap();
    assert!(said[0].to_string().contains("stands there more than once"), "{said:#?}");
}

#[test]
fn routes_by_flag_replace_the_files() {
    // G-1
    let config = format!("{GATEWAY}[[route]]\nid = \"a\"\npath = \"/a\"\n");
    let words = ["--route", "pay POST|PUT /pay/{id}; PATCH /x", "--alias", "charge=pay"];
    let gateway = with_flags(&config, &words).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).gateway;
    let routes: Vec<_> = gateway
        .routes
        .iter()
        .map(|one| (one.id.as_str(), one.stored.as_deref(), one.methods.len()))
        .collect();
    assert_eq!(routes, [("pay", Some("charge"), 2), ("PATCH /x", None, 1)]);
}

#[test]
fn what_is_shown_holds_no_secret_and_says_where_each_value_comes_from() {
    // G-5
    let config = "[gateway]\nupstream = \"demo\"\nstore = \"postgres://app:hunter2@db.internal/pay?password=hunter3\"\nadmin = \"127.0.0.1:9\"\nadmin_token = \"hunter4\"\n[defaults]\ntenant = \"jwt:sub\"\njwt_secret = \"hunter5-hunter5-hunter5-hunter5-hunter5\"\n";
    let resolved = with_flags(config, &["--drain", "1s"]).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
    let (text, json) = (resolved.shown.text(&[]), resolved.shown.json(&[]).to_string());
    for shown in [&text, &json, &format!("{:?}", resolved.gateway)] {
        assert!(!shown.contains("hunter"), "{shown}");
    }
    assert!(text.contains("postgres://db.internal/pay"), "{text}");
    let line = |name: &str| {
        text.lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
    };
    assert_eq!(line("drain "), ["drain", "1s", "--drain"]);
    assert_eq!(line("admin "), ["admin", "127.0.0.1:9", "semel.toml:4:1"]);
    assert_eq!(line("lease "), ["lease", "30s", "default"]);
}

#[test]
fn what_a_reload_cannot_change_is_named() {
    let before = resolved("[gateway]\nupstream = \"demo\"\n[defaults]\nttl = \"2d\"\n").shown;
    let after =
        resolved("[gateway]\nupstream = \"http://a\"\ndrain = \"1s\"\n[defaults]\nttl = \"3d\"\n").shown;
    assert_eq!(before.needs_restart(&after), ["upstream", "drain"]);
    assert_eq!(before.needs_restart(&before), [""; 0]);
}
