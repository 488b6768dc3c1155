//! TLS on either side, certificates that change, clients that show theirs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::crew::Crew;
use super::super::serve::Certificates;
use super::rig::*;
use crate::config::resolved::{ServerTls, Target};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key, as PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn files(folder: &TempDir, authority: &Authority, name: &str) -> ServerTls {
    let (certificate, key) = authority.issue(name);
    ServerTls {
        certificate: write(folder, "server.pem", &certificate),
        key: write(folder, "server.key", &key),
        client_ca: None,
    }
}

fn client_config(authority: &Authority, own: Option<(String, String)>, alpn: &[u8]) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authority.roots());
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

async fn dial(proxy: &Proxy, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(proxy.address).await?;
    let name = ServerName::try_from("gateway.example").unwrap();
    soon(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

async fn get(stream: TlsStream<TcpStream>) -> String {
    let request = Request::builder()
        .uri("https://gateway.example/secure")
        .header("host", "gateway.example")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    let answer = if http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        soon(sender.send_request(request)).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        soon(sender.send_request(request)).await.unwrap()
    };
    String::from_utf8(soon(answer.into_body().collect()).await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn clients_come_over_tls_with_either_protocol() {
    let (folder, authority) = (TempDir::new().unwrap(), Authority::new());
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[address]);
    plan.tls = Some(Certificates::load(files(&folder, &authority, "gateway.example")).unwrap());
    let proxy = plan.start().await;
    for alpn in [&b"http/1.1"[..], b"h2"] {
        let stream = dial(&proxy, client_config(&authority, None, alpn)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(alpn));
        let seen = get(stream).await;
        assert!(seen.contains("\nx-forwarded-proto: https\n"), "{seen}");
        assert!(!seen.contains("x-test-san"), "nobody showed a certificate: {seen}");
    }
}

#[tokio::test]
async fn a_crew_takes_over_a_client_after_its_handshake() {
    let (folder, authority) = (TempDir::new().unwrap(), Authority::new());
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[address]);
    plan.tls = Some(Certificates::load(files(&folder, &authority, "gateway.example")).unwrap());
    plan.crew = Some(Arc::new(Crew::gather().unwrap()));
    let proxy = plan.start().await;
    for alpn in [&b"http/1.1"[..], b"h2", b"http/1.1"] {
        let stream = dial(&proxy, client_config(&authority, None, alpn)).await.unwrap();
        let seen = get(stream).await;
        assert!(seen.contains("\nx-forwarded-proto: https\n"), "{seen}");
    }
}

#[tokio::test]
async fn a_verified_certificate_names_the_client() {
    // G-5
    let (folder, authority, clients) = (TempDir::new().unwrap(), Authority::new(), Authority::new());
    let (address, _) = mirror().await;
    let mut tls = files(&folder, &authority, "gateway.example");
    tls.client_ca = Some(write(&folder, "clients.pem", &clients.0.pem()));
    let mut plan = Plan::to(&[address]);
    plan.tls = Some(Certificates::load(tls).unwrap());
    let proxy = plan.start().await;
    let own = clients.issue("billing.example");
    let stream = dial(&proxy, client_config(&authority, Some(own), b"http/1.1")).await.unwrap();
    assert!(get(stream).await.contains("\nx-test-san: billing.example\n"));
    let stream = dial(&proxy, client_config(&authority, None, b"http/1.1")).await.unwrap();
    assert!(!get(stream).await.contains("x-test-san"), "without one a client is nobody");
    // A certificate of somebody else's making does not get in.
    let forged = Authority::new().issue("billing.example");
    let mut stream = match dial(&proxy, client_config(&authority, Some(forged), b"http/1.1")).await {
        Ok(stream) => stream,
        Err(_) => return,
    };
    // In TLS 1.3 the client learns it with its first read.
    let mut byte = [0];
    assert!(soon(tokio::io::AsyncReadExt::read(&mut stream, &mut byte)).await.is_err());
}

async fn served_by(proxy: &Proxy, authority: &Authority) -> Result<Vec<u8>, std::io::Error> {
    let stream = dial(proxy, client_config(authority, None, b"http/1.1")).await?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}

#[tokio::test]
async fn certificates_are_reloaded_and_bad_ones_are_not() {
    let (folder, authority) = (TempDir::new().unwrap(), Authority::new());
    let (address, _) = mirror().await;
    let certificates = Certificates::load(files(&folder, &authority, "gateway.example")).unwrap();
    let mut plan = Plan::to(&[address]);
    plan.tls = Some(certificates.clone());
    let proxy = plan.start().await;
    let first = served_by(&proxy, &authority).await.unwrap();
    let open = dial(&proxy, client_config(&authority, None, b"http/1.1")).await.unwrap();

    files(&folder, &authority, "gateway.example");
    certificates.reload().unwrap();
    let second = served_by(&proxy, &authority).await.unwrap();
    assert_ne!(first, second, "new connections get the new certificate");
    assert!(get(open).await.starts_with("GET "), "open connections go on");

    write(&folder, "server.pem", "no certificate");
    let error = format!("{:#}", certificates.reload().unwrap_err());
    assert!(error.contains("server.pem"), "{error}");
    assert_eq!(served_by(&proxy, &authority).await.unwrap(), second, "the old one stays");
    let (certificate, _) = authority.issue("gateway.example");
    write(&folder, "server.pem", &certificate);
    assert!(certificates.reload().is_err(), "a certificate that does not fit its key is not used");
    assert_eq!(served_by(&proxy, &authority).await.unwrap(), second);
}

#[test]
fn a_changed_file_is_noticed() {
    let (folder, authority) = (TempDir::new().unwrap(), Authority::new());
    let certificates = Certificates::load(files(&folder, &authority, "gateway.example")).unwrap();
    let mut seen = certificates.stamps();
    assert!(!certificates.look(&mut seen));
    files(&folder, &authority, "a-longer-name.gateway.example");
    assert!(certificates.look(&mut seen));
    assert!(!certificates.look(&mut seen));
}

#[test]
fn missing_files_are_named() {
    let nowhere = |name: &str| Path::new("/nowhere").join(name);
    let tls = ServerTls { certificate: nowhere("c.pem"), key: nowhere("k.pem"), client_ca: None };
    let error = format!("{:#}", Certificates::load(tls).err().unwrap());
    assert!(error.contains("/nowhere/c.pem"), "{error}");
}

/// A service behind TLS that answers `hello` once per connection.
async fn secure_service(authority: &Authority, name: &str, http2: bool) -> std::net::SocketAddr {
    let (certificate, key) = authority.issue(name);
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let hello =
                    hyper::service::service_fn(async |_| Ok::<_, std::convert::Infallible>(reply("hello")));
                let io = TokioIo::new(stream);
                if http2 {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    drop(builder.serve_connection(io, hello).await);
                } else {
                    let mut builder = hyper::server::conn::http1::Builder::new();
                    drop(builder.header_read_timeout(None).serve_connection(io, hello).await);
                }
            });
        }
    });
    address
}

async fn ask_over_tls(server: &Authority, believed: &Authority, name: &str, http2: bool) -> Answer {
    let folder = TempDir::new().unwrap();
    let address = secure_service(server, name, http2).await;
    let mut plan = Plan::to(&[]);
    let url = format!("https://localhost:{}", address.port());
    plan.upstream.targets = vec![Target::Url(url.parse().unwrap())];
    plan.upstream.ca = Some(write(&folder, "ca.pem", &believed.0.pem()));
    plan.upstream.http2 = http2;
    let proxy = plan.start().await;
    proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nX-Protected: 1\r\nContent-Length: 2\r\n\r\nhi").await
}

#[tokio::test]
async fn services_are_reached_over_tls_with_either_protocol() {
    let authority = Authority::new();
    for http2 in [false, true] {
        assert_eq!(ask_over_tls(&authority, &authority, "localhost", http2).await.text(), "hello");
    }
}

#[tokio::test]
async fn a_service_that_cannot_prove_its_name_gets_nothing() {
    // G-16
    let (authority, other) = (Authority::new(), Authority::new());
    let stranger = ask_over_tls(&other, &authority, "localhost", false).await;
    let misnamed = ask_over_tls(&authority, &authority, "elsewhere.example", false).await;
    for answer in [stranger, misnamed] {
        assert_eq!((answer.status, answer.header("x-fate")), (502, Some("nothing-happened")));
    }
}
