//! What counts as an answer, and what does not.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{StatusCode, Uri};
use semel::runtime::{Boxed, Tokio};
use semel::{Ask, Nonce, Operation, Question, Reply, Scope, Timestamp, Token};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::Reconcile;
use crate::gateway::fetch::{self, Failed, Fetch, Fetched, Http};
use crate::gateway::net::RealNetwork;

/// Says the same to everybody, and remembers what it was asked.
struct Parrot {
    status: StatusCode,
    says: Bytes,
    heard: Arc<Mutex<Vec<Value>>>,
}

impl Fetch for Parrot {
    fn post(&self, _: Uri, body: Bytes) -> Boxed<Result<Fetched, Failed>> {
        self.heard.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
        let fetched =
            Fetched { status: self.status, headers: http::HeaderMap::new(), body: self.says.clone() };
        Box::pin(async { Ok(fetched) })
    }
}

fn question(tenant: Option<&str>) -> Question {
    let scope = match tenant {
        Some(tenant) => Scope::new("shop", tenant, "charge"),
        None => Scope::shared("shop", "charge"),
    };
    Question {
        operation: Arc::new(Operation::new(scope.unwrap(), "k-1".parse().unwrap())),
        token: Token(41),
        nonce: Nonce::from_bytes([0xab; 16]),
        claimed_at: Timestamp::from_micros(0),
    }
}

fn derived(_: semel::OperationId) -> String {
    "semel-d".into()
}

async fn told(status: u16, says: &str) -> (Reply, Value) {
    let heard = Arc::default();
    let status = StatusCode::from_u16(status).unwrap();
    let parrot = Parrot { status, says: says.to_owned().into(), heard: Arc::clone(&heard) };
    let reconcile = Reconcile::new(Uri::from_static("http://service/reconcile"), derived, Arc::new(parrot));
    let reply = reconcile.ask(question(Some("alice"))).await;
    let mut asked = heard.lock().unwrap().clone();
    (reply, asked.remove(0))
}

#[tokio::test]
async fn the_question_names_the_attempt_and_whose_it_is() {
    // G-15
    let (_, asked) = told(200, "{}").await;
    assert_eq!(
        asked,
        json!({
            "key": "k-1",
            "route": "charge",
            "tenant": "alice",
            "derived_key": "semel-d",
            "token": 41,
            "nonce": "abababababababababababababababab",
            "claimed_at": "1970-01-01T00:00:00.000000Z",
        })
    );
    let heard = Arc::default();
    let parrot = Parrot { status: StatusCode::OK, says: Bytes::new(), heard: Arc::clone(&heard) };
    let reconcile = Reconcile::new(Uri::from_static("http://service/"), derived, Arc::new(parrot));
    reconcile.ask(question(None)).await;
    assert!(heard.lock().unwrap()[0].get("tenant").is_none());
}

#[tokio::test]
async fn each_of_the_three_answers_is_understood() {
    // G-15
    let done = r#"{"answer":"done","response":{"status":201,"headers":[["etag","x"]],"body_base64":"/wA="}}"#;
    let (Reply::Done(outcome), _) = told(200, done).await else { panic!("done is done") };
    assert_eq!((outcome.status, outcome.body_bytes().unwrap().as_ref()), (201, [0xff, 0].as_slice()));
    let (reply, _) = told(200, r#"{"answer":"never","refused_through":41}"#).await;
    assert_eq!(reply, Reply::Never { refused_through: Token(41) });
    let (reply, _) = told(200, r#"{"answer":"cannot-tell","reason":"bank\nclosed"}"#).await;
    assert_eq!(reply, Reply::CannotTell("bankclosed".into()));
}

#[tokio::test]
async fn anything_else_leaves_it_unknown() {
    // G-15
    let never = r#"{"answer":"never","refused_through":41}"#;
    for (status, says, why) in [
        (500, never, "status 500"),
        (404, never, "status 404"),
        (302, never, "status 302"),
        (201, never, "status 201"),
        (200, "", "not an answer"),
        (200, "<html>", "not an answer"),
        (200, r#"{"answer":"never"}"#, "refused_through"),
        (200, r#"{"answer":"never","refused_through":"41"}"#, "not an answer"),
        (200, r#"{"answer":"never","refused_through":-1}"#, "not an answer"),
        (200, r#"{"answer":"probably"}"#, "probably"),
        (200, r#"{"answer":"done"}"#, "response"),
        (
            200,
            r#"{"answer":"done","response":{"status":200,"body":"a"},"refused_through":1}"#,
            "refused_through",
        ),
        (200, r#"{"answer":"done","response":{"status":1000}}"#, "1000"),
        (200, r#"{"answer":"done","response":{"status":200,"headers":{"a b":"c"}}}"#, "a b"),
        (200, r#"{"answer":"never","refused_through":41} trailing"#, "not an answer"),
    ] {
        let (reply, _) = told(status, says).await;
        let Reply::CannotTell(reason) = reply else { panic!("{status} {says} was taken for {reply:?}") };
        assert!(reason.contains(why), "{says}: {reason}");
    }
}

fn http() -> Http {
    Http::new(fetch::over(Arc::new(RealNetwork)), no_trust(), Arc::new(Tokio::new()))
}

/// TLS that believes nobody.
fn no_trust() -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(rustls::RootCertStore::empty());
    Arc::new(config.with_no_client_auth())
}

/// Answers one connection with these bytes, whatever it is sent, and gives back the request's head.
async fn serve_once(answer: Vec<u8>) -> (Uri, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/reconcile?a=b", listener.local_addr().unwrap()).parse().unwrap();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"{}") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "the request ended early");
        }
        // A client that has heard enough may hang up first.
        let _ = stream.write_all(&answer).await;
        String::from_utf8(read).unwrap()
    });
    (url, served)
}

#[tokio::test]
async fn an_exchange_over_the_network_posts_json_and_reads_the_answer() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
    let (url, served) = serve_once(answer.to_vec()).await;
    let host = url.authority().unwrap().to_string();
    let fetched = http().post(url, "{}".into()).await.unwrap();
    assert_eq!((fetched.status, fetched.body), (StatusCode::OK, "ok".into()));
    let request = served.await.unwrap();
    assert!(request.starts_with("POST /reconcile?a=b HTTP/1.1\r\n"), "{request}");
    assert!(
        request.contains(&format!("host: {host}\r\n"))
            && request.contains("content-type: application/json\r\n")
    );
}

#[tokio::test]
async fn broken_cut_and_oversized_answers_are_failures() {
    let huge = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".as_slice(), &vec![b'x'; 9 << 20]].concat();
    for answer in [
        b"nonsense\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut".to_vec(),
        Vec::new(),
        huge,
    ] {
        let (url, served) = serve_once(answer).await;
        let failed = http().post(url, "{}".into()).await;
        assert!(matches!(failed, Err(Failed::Broken(_) | Failed::Body(_))), "{failed:?}");
        served.await.unwrap();
    }
}

#[tokio::test]
async fn a_certificate_counts_only_if_somebody_we_trust_signed_it() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server =
        rustls::ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let server =
        server.unwrap().with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Uri = format!("https://{}/", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust us hangs up here.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut read = Vec::new();
            while !read.ends_with(b"{}") && stream.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {}
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
            stream.write_all(answer).await.unwrap();
            let _ = stream.shutdown().await;
        }
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let trusting =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let trusting = Arc::new(trusting.unwrap().with_root_certificates(roots).with_no_client_auth());
    let fetched = Http::new(fetch::over(Arc::new(RealNetwork)), trusting, Arc::new(Tokio::new()))
        .post(url.clone(), "{}".into())
        .await;
    assert_eq!(fetched.unwrap().body, "ok");
    let failed = http().post(url, "{}".into()).await;
    assert!(matches!(failed, Err(Failed::Unreachable(_))), "{failed:?}");
}

#[tokio::test]
async fn an_absent_service_and_a_bad_address_are_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let failed = http().post(format!("http://{address}/").parse().unwrap(), "{}".into()).await;
    assert!(matches!(failed, Err(Failed::Unreachable(_))), "{failed:?}");
    for address in ["/reconcile", "ftp://127.0.0.1/"] {
        let failed = http().post(address.parse().unwrap(), "{}".into()).await;
        assert!(matches!(failed, Err(Failed::Address(_))), "{address}: {failed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_never_answers_is_given_up() {
    let silent: fetch::Dial = Arc::new(|_, _| {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        Box::pin(async move {
            // The other end stays open and says nothing.
            tokio::spawn(async move {
                let _theirs = theirs;
                std::future::pending::<()>().await
            });
            Ok(Box::new(ours) as Box<dyn fetch::Stream>)
        })
    });
    let http = Http::new(silent, no_trust(), Arc::new(Tokio::new()));
    let failed = http.post(Uri::from_static("http://service/"), "{}".into()).await;
    assert!(matches!(failed, Err(Failed::TimedOut(_))), "{failed:?}");
}
