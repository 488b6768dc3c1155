//! Tokens that hold, and all the ways in which they do not.
//!
//! The keys are made afresh, but for RSA: those tokens were signed once, and only the public key is here.

use std::sync::Mutex;

use http::{HeaderMap, HeaderValue, Uri};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use semel::runtime::{Runtime, Tokio};
use serde_json::json;
use tokio::sync::watch;

use super::super::jwks::{Fetch, REFRESH_MIN};
use super::super::{Check, Decision, Refused};
use super::*;
use crate::config::resolved::{Secret, Tenant};

const SECRET: &str = "a secret of thirty-two bytes, or more";
const RSA_N: &str = "mrYF21TzyoyXJ62H9Zw1I16I3uYEGOT-E0LEg24JT_qgyarEOKdLR2CGeMQq_RWYCys5xs7S0ac6Z2vHlJNdkeFLwFwCAyARXy-nniSGjW99yBHcWG_fZoGsZKLTW8WR0ZP5tEaxbj9xcuFRlsqdDv8Tb3i1Pl30bqA4kSYJSuperqWcWafv6-9g_1cUrfhfl2DJycCtVJL4SbJG5NKQYali5Yt0qM7825JpAqc3TkegdSh9HC9u7Aqum8ZOxly5VdWt1b03Iz0yzQ5Wih0b9YdML3mDTC_2VbzC1lvewXIJF0v-MWhgSkwUQxiA3rba4kyHlHa-uQ0FmtJ64gbBYQ";
/// {"sub":"alice","exp":2000} under RS256.
const RS256: &str = "eyJhbGciOiAiUlMyNTYiLCAia2lkIjogInJzYS0xIn0.eyJzdWIiOiAiYWxpY2UiLCAiZXhwIjogMjAwMH0.mBEtj2yEPyKZ6G2njrQsnDzKCWBEzux-Nx1fRUYlIrUzi_Nxh4UVzoRfSbTCQoxgo10ikBqWtIU43SoioMcmKmytmhsFs9XcxX4gL_uFbZYwUWcn4gUSCL6vEjFLxFyqcteZq2xOvNyyYg4Yibanw4Ut8lYDK1ad_miw6gmAfHG5-34ZhTJPNQQ6c4o4cm2Xgwof-HER37V7OmoHekTie7YlZSIYg7GuWqs9yeRWFhyV6Ois2UQV1D4q9SEqcZVbkDcDhS_hZEoEGTaHY9u97E5sJD_XHRXt7DBKYFgPG1GjbgyF2Kd98V4D8nkelXaTBgMw_jJSVj_y5VXgujOD1g";
/// The same under PS256.
const PS256: &str = "eyJhbGciOiAiUFMyNTYiLCAia2lkIjogInJzYS0xIn0.eyJzdWIiOiAiYWxpY2UiLCAiZXhwIjogMjAwMH0.Vf5pws3SBAWRbsP_KWC2R8hdZthwSIXHKnPDSUvgV3-biKVJ-tHtU4YCGALVPe-bYkFNncYnOWEy9kvR9Zf7xKiUWK05J46HolJeloVH8C-S9M9smsLg3cxGZVy-NpgaomY11KcmBdknOvkaHBD_PPheedu67ggcmVvy9yAtjimNTNMyQjnX4C5JtMC6F_audt12ozpoSXPKVih_ytyBPos8n6-uCX3Wgq2nvehxjLKZL9d0-B5i-VfWTyoilOlnsSwNI7sgW-tMp4ODzr0K7EnSRHzFR_aDgMnY4bUKr0bhMiu97KqfiEwL8q9tMTlhnfGPJn4ZA9qz9WtrH6Wy7Q";

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn signed(head: Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", encode(head.to_string()), encode(claims.to_string()));
    let signature = encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn hs256(secret: &str, claims: Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    signed(json!({ "alg": "HS256" }), &claims, |message| hmac::sign(&key, message).as_ref().to_vec())
}

fn jwt(keys: JwtKeys) -> Jwt {
    Jwt { claim: "sub".into(), keys, issuer: None, audience: None, leeway: Duration::from_secs(30) }
}

fn by_secret() -> Jwt {
    jwt(JwtKeys::Secret(Secret(SECRET.into())))
}

fn verifier(jwt: &Jwt) -> Verifier {
    Verifier::new(jwt, &mut Sources::default())
}

/// A verifier with this key set, from a file.
fn by_set(set: &Value) -> Verifier {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jwks.json");
    std::fs::write(&path, set.to_string()).unwrap();
    verifier(&jwt(JwtKeys::JwksFile(path)))
}

fn rsa() -> Value {
    json!({ "kty": "RSA", "kid": "rsa-1", "use": "sig", "n": RSA_N, "e": "AQAB" })
}

fn ed25519(id: &str) -> (Ed25519KeyPair, Value) {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": encode(pair.public_key()) });
    (pair, jwk)
}

fn ed_token(pair: &Ed25519KeyPair, id: &str) -> String {
    let claims = json!({ "sub": "alice", "exp": 2000 });
    signed(json!({ "alg": "EdDSA", "kid": id }), &claims, |message| pair.sign(message).as_ref().to_vec())
}

#[test]
fn a_token_holds_until_it_expires_and_not_a_second_longer() {
    // G-5
    let verifier = verifier(&by_secret());
    let token = hs256(SECRET, json!({ "sub": "alice", "exp": 2000, "nbf": 1000 }));
    assert_eq!(verifier.subject(&token, 1500), Ok("alice".into()));
    assert_eq!(verifier.subject(&token, 2029), Ok("alice".into()), "within the leeway");
    assert_eq!(verifier.subject(&token, 2030), Err(Reason::Expired));
    assert_eq!(verifier.subject(&token, u64::MAX), Err(Reason::Expired));
}

#[test]
fn a_token_does_not_hold_before_its_time() {
    // G-5
    let verifier = verifier(&by_secret());
    let token = hs256(SECRET, json!({ "sub": "alice", "exp": 2000, "nbf": 1000 }));
    assert_eq!(verifier.subject(&token, 970), Ok("alice".into()), "within the leeway");
    assert_eq!(verifier.subject(&token, 969), Err(Reason::NotYet));
}

#[test]
fn times_that_cannot_be_read_are_refused_not_skipped() {
    // G-5
    let verifier = verifier(&by_secret());
    for claims in [
        json!({ "sub": "alice" }),
        json!({ "sub": "alice", "exp": "2000" }),
        json!({ "sub": "alice", "exp": null }),
        json!({ "sub": "alice", "exp": 2000, "nbf": "99999999" }),
        json!({ "sub": "alice", "exp": 2000, "nbf": [1] }),
    ] {
        assert_eq!(verifier.subject(&hs256(SECRET, claims.clone()), 1500), Err(Reason::Times), "{claims}");
    }
}

#[test]
fn a_changed_token_or_another_secret_does_not_hold() {
    // G-5
    let verifier = verifier(&by_secret());
    let token = hs256(SECRET, json!({ "sub": "alice", "exp": 2000 }));
    assert_eq!(
        verifier
            .subject(&hs256("another secret, also rather long", json!({ "sub": "alice", "exp": 2000 })), 1),
        Err(Reason::Signature)
    );
    let parts: Vec<&str> = token.split('.').collect();
    let forged = format!("{}.{}.{}", parts[0], encode(r#"{"sub":"bob","exp":2000}"#), parts[2]);
    assert_eq!(verifier.subject(&forged, 1), Err(Reason::Signature));
    let unsigned = format!("{}.{}.", parts[0], parts[1]);
    assert_eq!(verifier.subject(&unsigned, 1), Err(Reason::Signature));
}

#[test]
fn no_bytes_of_a_token_can_be_changed() {
    // G-5
    let verifier = verifier(&by_secret());
    let token = hs256(SECRET, json!({ "sub": "alice", "exp": 2000 }));
    for at in 0..token.len() {
        let mut changed = token.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        assert!(verifier.subject(&changed, 1).is_err(), "byte {at}");
    }
}

#[test]
fn the_key_chooses_the_algorithm_never_the_token() {
    // G-5
    let set = by_set(&json!({ "keys": [rsa()] }));
    assert_eq!(set.subject(RS256, 1500), Ok("alice".into()));
    assert_eq!(set.subject(PS256, 1500), Ok("alice".into()));
    // The public modulus taken for a shared secret: the classic confusion.
    let modulus = URL_SAFE_NO_PAD.decode(RSA_N).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &modulus);
    let claims = json!({ "sub": "mallory", "exp": 2000 });
    let confused = signed(json!({ "alg": "HS256", "kid": "rsa-1" }), &claims, |message| {
        hmac::sign(&key, message).as_ref().to_vec()
    });
    assert_eq!(set.subject(&confused, 1500), Err(Reason::Algorithm));
    let secret = verifier(&by_secret());
    assert_eq!(secret.subject(RS256, 1500), Err(Reason::Algorithm));
    for none in ["none", "None", "NONE", "", "HS1"] {
        let token = signed(json!({ "alg": none }), &claims, |_| Vec::new());
        assert_eq!(secret.subject(&token, 1500), Err(Reason::Algorithm), "{none}");
        assert_eq!(set.subject(&token, 1500), Err(Reason::Algorithm), "{none}");
    }
    let only_ps = by_set(
        &json!({ "keys": [{ "kty": "RSA", "kid": "rsa-1", "alg": "PS256", "n": RSA_N, "e": "AQAB" }] }),
    );
    assert_eq!(only_ps.subject(RS256, 1500), Err(Reason::Algorithm));
    assert_eq!(only_ps.subject(PS256, 1500), Ok("alice".into()));
}

#[test]
fn elliptic_curves_verify_too() {
    // G-5
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref();
    let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": "ec-1", "x": encode(&point[1..33]), "y": encode(&point[33..]) });
    let claims = json!({ "sub": "alice", "exp": 2000 });
    let token = signed(json!({ "alg": "ES256", "kid": "ec-1" }), &claims, |message| {
        pair.sign(&random, message).unwrap().as_ref().to_vec()
    });
    let (ed, ed_jwk) = ed25519("ed-1");
    let set = by_set(&json!({ "keys": [jwk, ed_jwk, rsa()] }));
    assert_eq!(set.subject(&token, 1500), Ok("alice".into()));
    assert_eq!(set.subject(&ed_token(&ed, "ed-1"), 1500), Ok("alice".into()));
    let without_id = signed(json!({ "alg": "EdDSA" }), &claims, |message| ed.sign(message).as_ref().to_vec());
    assert_eq!(set.subject(&without_id, 1500), Ok("alice".into()), "every key that fits is tried");
    assert_eq!(set.subject(&ed_token(&ed, "ec-1"), 1500), Err(Reason::Algorithm));
    assert_eq!(set.subject(&ed_token(&ed25519("ed-1").0, "ed-1"), 1500), Err(Reason::Signature));
    assert_eq!(set.subject(&ed_token(&ed, "gone"), 1500), Err(Reason::UnknownKey));
}

#[test]
fn issuer_and_audience_must_be_ours() {
    // G-5
    let token = |claims: Value| {
        let mut all = json!({ "sub": "alice", "exp": 2000 });
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        hs256(SECRET, all)
    };
    let ours =
        verifier(&Jwt { issuer: Some("https://id".into()), audience: Some("pay".into()), ..by_secret() });
    for aud in [json!("pay"), json!(["other", "pay"])] {
        assert_eq!(ours.subject(&token(json!({ "iss": "https://id", "aud": aud })), 1), Ok("alice".into()));
    }
    assert_eq!(ours.subject(&token(json!({ "iss": "https://evil", "aud": "pay" })), 1), Err(Reason::Issuer));
    assert_eq!(ours.subject(&token(json!({ "aud": "pay" })), 1), Err(Reason::Issuer));
    for aud in [json!("other"), json!([]), json!(["other"]), json!(7), Value::Null] {
        assert_eq!(
            ours.subject(&token(json!({ "iss": "https://id", "aud": aud })), 1),
            Err(Reason::Audience)
        );
    }
    assert_eq!(ours.subject(&token(json!({ "iss": "https://id" })), 1), Err(Reason::Audience));
    let nameless = verifier(&by_secret());
    assert_eq!(nameless.subject(&token(json!({ "aud": "somebody" })), 1), Err(Reason::Audience));
    assert_eq!(nameless.subject(&token(json!({ "iss": "anybody" })), 1), Ok("alice".into()));
}

#[test]
fn the_claim_is_text_or_a_whole_number_also_a_nested_one() {
    // G-5
    let subject = |claim: &str, claims: Value| {
        let verifier = verifier(&Jwt { claim: claim.into(), ..by_secret() });
        let mut all = json!({ "exp": 2000 });
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        verifier.subject(&hs256(SECRET, all), 1)
    };
    assert_eq!(subject("org.id", json!({ "org": { "id": "acme" } })), Ok("acme".into()));
    assert_eq!(subject("org.id", json!({ "org": { "id": 42 } })), Ok("42".into()));
    assert_eq!(
        subject("https://x.example/org", json!({ "https://x.example/org": "acme" })),
        Ok("acme".into())
    );
    for wrong in [json!(true), json!(1.5), Value::Null, json!(["a"]), json!({ "a": "b" })] {
        assert_eq!(subject("sub", json!({ "sub": wrong })), Err(Reason::Claim), "{wrong}");
    }
    assert_eq!(subject("org.id", json!({ "org": "acme" })), Err(Reason::Claim));
    assert_eq!(subject("sub", json!({ "name": "alice" })), Err(Reason::Claim));
}

#[test]
fn what_is_no_token_is_malformed_and_never_a_panic() {
    let verifier = verifier(&by_secret());
    let critical = signed(json!({ "alg": "HS256", "crit": ["x"] }), &json!({}), |_| Vec::new());
    assert_eq!(verifier.subject(&critical, 1), Err(Reason::Algorithm));
    let long = "a".repeat(TOKEN_BYTES_MAX + 1);
    for wrong in
        ["", ".", "..", "a.b.c", "e30.e30.e30.e30", "W10.e30.AAAA", "ey J.e30.e30", "😀.😀.😀", &long]
    {
        let reason = verifier.subject(wrong, 1).unwrap_err();
        assert!(matches!(reason, Reason::Malformed | Reason::Algorithm), "{wrong}: {reason:?}");
    }
}

#[test]
fn secrets_in_a_published_set_are_not_used() {
    // G-5
    let oct = json!({ "kty": "oct", "kid": "s", "k": encode(SECRET) });
    assert!(super::super::parse_set(json!({ "keys": [oct] }).to_string().as_bytes()).is_err());
    for set in ["", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[]}"#, r#"{"keys":[1,"a",{"kty":"RSA"}]}"#] {
        assert!(super::super::parse_set(set.as_bytes()).is_err(), "{set}");
    }
    let for_encryption = json!({ "keys": [{ "kty": "RSA", "use": "enc", "n": RSA_N, "e": "AQAB" }] });
    assert!(super::super::parse_set(for_encryption.to_string().as_bytes()).is_err());
}

#[test]
fn nothing_shows_a_secret_or_a_token() {
    // G-5
    let jwt = by_secret();
    let check = Check::new(&Tenant::Jwt(jwt.clone()), &mut Sources::default());
    for shown in [format!("{jwt:?}"), format!("{check:?}"), format!("{:?}", verifier(&jwt))] {
        assert!(!shown.contains("thirty-two"), "{shown}");
    }
}

/// Serves key sets one after the other, the last for ever; counts.
struct Served(Mutex<(usize, Vec<Result<Value, String>>)>);

impl Fetch for Served {
    fn fetch(&self, _: &Uri) -> Boxed<Result<Vec<u8>, String>> {
        let mut served = self.0.lock().unwrap();
        let (count, answers) = &mut *served;
        let answer = answers[(*count).min(answers.len() - 1)].clone();
        *count += 1;
        Box::pin(async move { answer.map(|set| set.to_string().into_bytes()) })
    }
}

struct Rig {
    check: Check,
    sources: Sources,
    served: Arc<Served>,
    runtime: Arc<dyn Runtime>,
    stop: watch::Sender<bool>,
}

impl Rig {
    fn new(answers: Vec<Result<Value, String>>) -> Self {
        let mut sources = Sources::default();
        let jwt = jwt(JwtKeys::JwksUrl("https://id.example/keys".parse().unwrap()));
        let check = Check::new(&Tenant::Jwt(jwt), &mut sources);
        let served = Arc::new(Served(Mutex::new((0, answers))));
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::new());
        let (stop, stopped) = watch::channel(false);
        let fetch: Arc<dyn Fetch> = served.clone();
        sources.keep_fresh(&runtime, &fetch, &stopped);
        Self { check, sources, served, runtime, stop }
    }

    async fn decide(&self, token: &str) -> Result<String, Refused> {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&format!("bearer {token}")).unwrap());
        let decide = || self.check.decide(&headers, None, None, 1500);
        let first = decide();
        if let Some(learning) =
            first.as_ref().err().and_then(|refused| self.check.refresh(refused, &*self.runtime))
        {
            learning.await;
        }
        match decide()? {
            Decision::Named(name) => Ok(name.into_owned()),
            other => panic!("{other:?}"),
        }
    }

    fn fetches(&self) -> usize {
        self.served.0.lock().unwrap().0
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_fetched_once_however_many_ask() {
    // G-5
    let ((first, first_jwk), (second, second_jwk)) = (ed25519("k-1"), ed25519("k-2"));
    let rig =
        Rig::new(vec![Ok(json!({ "keys": [first_jwk] })), Ok(json!({ "keys": [first_jwk, second_jwk] }))]);
    rig.runtime.sleep(Duration::from_millis(1)).await;
    assert_eq!(rig.decide(&ed_token(&first, "k-1")).await, Ok("alice".into()));
    let refused = Refused::Unverified(Reason::UnknownKey);
    assert_eq!(rig.decide(&ed_token(&second, "k-2")).await, Err(refused.clone()), "fetched a moment ago");
    rig.runtime.sleep(2 * REFRESH_MIN).await;
    assert_eq!(rig.decide(&ed_token(&second, "k-2")).await, Ok("alice".into()), "the issuer has rotated");
    assert_eq!(rig.fetches(), 2);
    rig.runtime.sleep(2 * REFRESH_MIN).await;
    let forged = ed_token(&ed25519("k-3").0, "k-3");
    let storm = futures_util::future::join_all((0..100).map(|_| rig.decide(&forged))).await;
    assert!(storm.iter().all(|answer| *answer == Err(refused.clone())));
    assert_eq!(rig.fetches(), 3);
    drop(rig.stop);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_had_leaves_the_one_before() {
    // G-5
    let (pair, jwk) = ed25519("k-1");
    let rig = Rig::new(vec![
        Ok(json!({ "keys": [jwk] })),
        Err("connection refused".into()),
        Ok(json!({ "keys": [] })),
    ]);
    let token = ed_token(&pair, "k-1");
    rig.runtime.sleep(Duration::from_millis(1)).await;
    for hour in 0..3 {
        assert_eq!(rig.decide(&token).await, Ok("alice".into()), "hour {hour}");
        rig.runtime.sleep(Duration::from_secs(3600)).await;
    }
    assert!(rig.fetches() > 3, "it goes on trying");
    let fetches = rig.fetches();
    drop(rig.stop);
    rig.runtime.sleep(Duration::from_secs(3600)).await;
    assert_eq!(rig.served.0.lock().unwrap().0, fetches, "stopped with its gateway");
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_the_keys_that_are_known() {
    // G-5
    let (pair, jwk) = ed25519("k-1");
    let rig = Rig::new(vec![Ok(json!({ "keys": [jwk] }))]);
    rig.runtime.sleep(Duration::from_millis(1)).await;
    let same = jwt(JwtKeys::JwksUrl("https://id.example/keys".parse().unwrap()));
    let other = jwt(JwtKeys::JwksUrl("https://other.example/keys".parse().unwrap()));
    let mut sources = Sources::after(&rig.sources);
    let (same, other) = (Verifier::new(&same, &mut sources), Verifier::new(&other, &mut sources));
    assert_eq!(same.subject(&ed_token(&pair, "k-1"), 1500), Ok("alice".into()));
    assert_eq!(other.subject(&ed_token(&pair, "k-1"), 1500), Err(Reason::NoKeys), "another issuer's keys");
    drop(rig.stop);
}

#[tokio::test(start_paused = true)]
async fn before_the_first_fetch_nobody_is_believed() {
    // G-5
    let (pair, _) = ed25519("k-1");
    let rig = Rig::new(vec![Err("down".into())]);
    let token = ed_token(&pair, "k-1");
    assert_eq!(rig.decide(&token).await, Err(Refused::Unverified(Reason::NoKeys)));
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_read_again() {
    // G-5
    let ((first, first_jwk), (second, second_jwk)) = (ed25519("k-1"), ed25519("k-2"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jwks.json");
    std::fs::write(&path, json!({ "keys": [first_jwk] }).to_string()).unwrap();
    let mut sources = Sources::default();
    let verifier = Verifier::new(&jwt(JwtKeys::JwksFile(path.clone())), &mut sources);
    assert_eq!(verifier.subject(&ed_token(&first, "k-1"), 1500), Ok("alice".into()), "read at once");
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::new());
    let (_stop, stopped) = watch::channel(false);
    let fetch: Arc<dyn Fetch> = Arc::new(Served(Mutex::new((0, vec![Err("no network here".into())]))));
    sources.keep_fresh(&runtime, &fetch, &stopped);
    std::fs::write(&path, json!({ "keys": [second_jwk] }).to_string()).unwrap();
    runtime.sleep(Duration::from_secs(11)).await;
    assert_eq!(verifier.subject(&ed_token(&second, "k-2"), 1500), Ok("alice".into()));
    assert_eq!(
        verifier.subject(&ed_token(&first, "k-1"), 1500),
        Err(Reason::UnknownKey),
        "the old key is gone"
    );
    std::fs::write(&path, "half a fi").unwrap();
    runtime.sleep(Duration::from_secs(11)).await;
    assert_eq!(
        verifier.subject(&ed_token(&second, "k-2"), 1500),
        Ok("alice".into()),
        "a broken file changes nothing"
    );
}
