//! Who the client is, and how it speaks: tokens, TLS on both sides, HTTP/2.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ring::hmac;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::rig::{Caller, Gateway, ORDER, PATIENCE, Upstream};

const SECRET: &str = "a secret of thirty-two bytes, or more";

/// A token of somebody, good for so many seconds from now.
fn token(secret: &str, who: &str, seconds: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed =
        format!("{}.{}", part(json!({ "alg": "HS256" })), part(json!({ "sub": who, "exp": now + seconds })));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    format!("Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

#[tokio::test]
async fn a_verified_token_names_the_tenant_and_no_other_does() {
    // G-5
    let home = tempfile::tempdir().expect("a temporary directory");
    let secret = home.path().join("secret");
    std::fs::write(&secret, SECRET).expect("it is written");
    let upstream = Upstream::start().await;
    let secret = secret.display().to_string();
    let settings = ["--tenant", "jwt:sub", "--jwt-secret-file", &secret];
    let gateway = Gateway::start(home.path(), &upstream.url(), &settings).await;
    let caller = Caller::of(&gateway.address);
    let ask = async |token: String| {
        let headers = [("idempotency-key", "identity-jwt-00001"), ("authorization", token.as_str())];
        caller.send("POST", "/pay", &headers, ORDER).await.expect("an answer")
    };
    let alice = ask(token(SECRET, "alice", 600)).await;
    let bob = ask(token(SECRET, "bob", 600)).await;
    assert_eq!((alice.status, bob.status), (201, 201));
    assert!(!bob.is_replay() && alice.body != bob.body, "tenants do not hear each other");
    let again = ask(token(SECRET, "alice", 700)).await;
    assert!(again.is_replay() && again.body == alice.body, "another token of the same client: {again:?}");
    for unverified in [token(SECRET, "alice", -600), token("another secret, of some length", "alice", 600)] {
        let refused = ask(unverified).await;
        assert_eq!((refused.status, refused.problem().as_str()), (401, "tenant-unverified"));
    }
    let nobody = caller.post("/pay", "identity-jwt-00001", ORDER).await;
    assert_eq!((nobody.status, nobody.problem().as_str()), (401, "tenant-missing"));
    assert_eq!(upstream.count("/pay"), 2);
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Certificate and key, as PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.signed_by(&key, &self.0).expect("a certificate").pem(), key.serialize_pem())
    }

    /// A service behind TLS; how often it was asked.
    async fn service(&self) -> (String, Arc<AtomicU64>) {
        let (certificate, key) = self.issue("localhost");
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("they belong together");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (acceptor, asked) = (TlsAcceptor::from(Arc::new(config)), Arc::new(AtomicU64::new(0)));
        let counted = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), counted.clone());
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await.expect("TLS is spoken");
                    let answer = hyper::service::service_fn(move |_| {
                        let text = format!("charge {}", counted.fetch_add(1, Ordering::SeqCst) + 1);
                        async { Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(text)))) }
                    });
                    let serving = hyper::server::conn::http1::Builder::new();
                    let _ = serving.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        (format!("https://localhost:{port}"), asked)
    }

    fn client(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a certificate");
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }
}

fn written(home: &Path, name: &str, text: &str) -> String {
    let path = home.join(name);
    std::fs::write(&path, text).expect("it is written");
    path.display().to_string()
}

fn order(uri: &str, key: &str) -> Request<Full<Bytes>> {
    let request = Request::post(uri).header("host", "gateway.example").header("idempotency-key", key);
    let request = request.header("content-type", "application/json");
    request.body(Full::new(Bytes::from_static(ORDER.as_bytes()))).expect("a request")
}

/// Its body, and whether it was a replay.
async fn read(response: Response<hyper::body::Incoming>) -> (Bytes, bool) {
    let is_replay = response.headers().contains_key("idempotent-replayed");
    assert!(response.status().is_success(), "{}", response.status());
    (response.into_body().collect().await.expect("a body").to_bytes(), is_replay)
}

#[tokio::test]
async fn tls_on_both_sides_changes_nothing_about_a_key() {
    // G-14
    let home = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new();
    let (upstream, asked) = authority.service().await;
    let (certificate, key) = authority.issue("gateway.example");
    let ca = written(home.path(), "ca.pem", &authority.0.pem());
    let certificate = written(home.path(), "gateway.pem", &certificate);
    let key = written(home.path(), "gateway.key", &key);
    let settings = ["--tls-certificate", &certificate, "--tls-key", &key, "--upstream-ca", &ca];
    let gateway = Gateway::start(home.path(), &upstream, &settings).await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        let stream = TcpStream::connect(&gateway.address).await.expect("it listens");
        let name = ServerName::try_from("gateway.example").expect("a name");
        let stream = authority.client().connect(name, stream).await.expect("its certificate is believed");
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.expect("a connection");
        tokio::spawn(connection);
        let sending = sender.send_request(order("/pay", "identity-tls-00001"));
        let answer = tokio::time::timeout(PATIENCE, sending).await.expect("in time").expect("an answer");
        answers.push(read(answer).await);
    }
    let charge = Bytes::from_static(b"charge 1");
    assert_eq!(answers, [(charge.clone(), false), (charge, true)]);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_key_over_http2_is_the_same_key() {
    // G-2, G-14
    let home = tempfile::tempdir().expect("a temporary directory");
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(home.path(), &upstream.url(), &[]).await;
    let stream = TcpStream::connect(&gateway.address).await.expect("it listens");
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.expect("a connection");
    tokio::spawn(connection);
    let uri = format!("http://{}/pay", gateway.address);
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut request = order(&uri, "identity-http2-001");
        request.headers_mut().remove("host");
        let sending = sender.send_request(request);
        let answer = tokio::time::timeout(PATIENCE, sending).await.expect("in time").expect("an answer");
        answers.push(read(answer).await);
    }
    assert!(!answers[0].1 && answers[1].1 && answers[0].0 == answers[1].0, "{answers:?}");
    let older = Caller::of(&gateway.address).post("/pay", "identity-http2-001", ORDER).await;
    assert!(older.is_replay() && older.body == answers[0].0, "and over HTTP/1.1: {older:?}");
    assert_eq!(upstream.count("/pay"), 1);
}
