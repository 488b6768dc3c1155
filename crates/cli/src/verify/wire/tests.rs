use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsAcceptor;

use super::*;

type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// A server that says these bytes on every connection once it has heard a whole head, and keeps what it heard.
async fn saying(answer: &'static [u8]) -> (String, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pay?x=1", listener.local_addr().unwrap());
    let heard = Heard::default();
    let keep = heard.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, answer, keep.clone()));
        }
    });
    (url, heard)
}

async fn talk(mut stream: TcpStream, answer: &'static [u8], keep: Heard) {
    let mut heard = Vec::new();
    while !heard.ends_with(b"end") {
        if stream.read_buf(&mut heard).await.unwrap_or(0) == 0 {
            break;
        }
    }
    keep.lock().await.push(heard);
    let _ = stream.write_all(answer).await;
    let _ = stream.shutdown().await;
    // Stays until the client has gone, so that nothing is reset under its hands.
    let _ = stream.read(&mut [0; 64]).await;
}

fn call(url: &str, how: How) -> Call {
    let headers = vec![("X-Odd".to_owned(), b"a\x01\xff".to_vec())];
    let request = Request { method: "POST".into(), url: url.into(), headers, body: "the end".into() };
    Call { name: "first".into(), request, how }
}

async fn one(url: &str, how: How) -> Result<Reply, String> {
    let wire = Wire::new(Duration::from_secs(5));
    let mut ended = all(&wire, &[call(url, how)]).await;
    ended.remove(0).reply
}

async fn all(wire: &Wire, calls: &[Call]) -> Vec<Ended> {
    let lines = wire.open(calls).await;
    let ended = join_all(lines.into_iter().map(Line::go)).await;
    ended.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_request_goes_out_byte_for_byte() {
    let (url, heard) = saying(b"HTTP/1.1 201 Created\r\nA: 1\r\na: 2\r\nContent-Length: 2\r\n\r\nok").await;
    let reply = one(&url, How::Plain).await.unwrap();
    assert_eq!((reply.status, &reply.body[..]), (201, &b"ok"[..]));
    let shown: Vec<_> = reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
    assert_eq!(shown, [("A", &b"1"[..]), ("a", b"2"), ("Content-Length", b"2")]);
    let host = url.trim_start_matches("http://").trim_end_matches("/pay?x=1");
    let mut expected = format!("POST /pay?x=1 HTTP/1.1\r\nHost: {host}\r\nX-Odd: ").into_bytes();
    expected.extend_from_slice(b"a\x01\xff\r\nContent-Length: 7\r\n\r\nthe end");
    assert_eq!(heard.lock().await[0], expected);
}

#[tokio::test]
async fn chunks_interim_answers_and_bodies_to_the_end_are_read() {
    let chunked =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n";
    let reply = one(&saying(chunked).await.0, How::Plain).await.unwrap();
    assert_eq!((reply.status, &reply.body[..]), (200, &b"ab0123456789"[..]));
    let reply = one(&saying(b"HTTP/1.0 200 OK\r\n\r\nall of it").await.0, How::Plain).await.unwrap();
    assert_eq!(&reply.body[..], b"all of it");
    let reply = one(&saying(b"HTTP/1.1 204 No Content\r\n\r\n").await.0, How::Plain).await.unwrap();
    assert!(reply.status == 204 && reply.body.is_empty());
}

#[tokio::test]
async fn what_is_no_whole_answer_is_said_in_words() {
    for (answer, words) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"[..], "broke off"),
        (b"", "closed without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "Content-Length is many"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "a chunk of the size"),
    ] {
        let why = one(&saying(answer).await.0, How::Plain).await.unwrap_err();
        assert!(why.contains(words), "{why}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let why = one(&format!("http://{closed}/"), How::Plain).await.unwrap_err();
    assert!(why.starts_with("no connection: "), "{why}");
}

#[tokio::test]
async fn an_answer_is_cut_where_it_was_asked_for() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall of it";
    for (how, words) in [
        (How::Cut(Region::BeforeHead), "cut by us before the head"),
        (How::Cut(Region::InHead), "cut by us in the head"),
        (How::Cut(Region::InBody), "cut by us in the body"),
        (How::Abort(Duration::from_millis(1)), "cut by us 1ms after the request went out"),
    ] {
        let (url, heard) = saying(answer).await;
        assert_eq!(one(&url, how).await.unwrap_err(), words);
        if matches!(how, How::Cut(_)) {
            assert_eq!(heard.lock().await.len(), 1, "the request had gone out: {words}");
        }
    }
    let (url, _) = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(one(&url, How::Cut(Region::InBody)).await.unwrap_err(), "the answer has no body to cut");
}

#[tokio::test]
async fn a_slow_body_arrives_whole() {
    let (url, heard) = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let how = How::Slow { pieces: 3, pause: Duration::from_millis(1) };
    assert_eq!(one(&url, how).await.unwrap().status, 200);
    assert!(heard.lock().await[0].ends_with(b"the end"));
}

#[tokio::test]
async fn pipelined_calls_share_a_connection_and_missing_answers_are_said_to_be() {
    let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 201 OK\r\nContent-Length: 1\r\n\r\n2";
    let (url, heard) = saying(ok).await;
    let wire = Wire::new(Duration::from_secs(5));
    let calls = vec![call(&url, How::Pipelined(7)); 3];
    let ended = all(&wire, &calls).await;
    assert_eq!(heard.lock().await.len(), 1, "one connection");
    let replies: Vec<_> = ended.iter().map(|ended| ended.reply.as_ref().map(|reply| reply.status)).collect();
    assert_eq!((replies[0], replies[1]), (Ok(200), Ok(201)));
    assert!(replies[2].unwrap_err().contains("after 2 of 3 pipelined answers"), "{replies:?}");
}

#[tokio::test]
async fn a_server_without_http2_is_said_to_have_none() {
    let (url, _) = saying(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs_up = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    for url in [hangs_up, url] {
        let mut wire = Wire::new(Duration::from_millis(500));
        wire.begin();
        let mut call = call(&url, How::Http2(1));
        // HTTP/2 could not carry them.
        call.request.headers.clear();
        for ended in all(&wire, &vec![call; 2]).await {
            let why = ended.reply.unwrap_err();
            assert!(why.contains("does not speak HTTP/2"), "{why}");
        }
    }
}

/// Says which protocol it heard, over TLS if it has an acceptor, else in HTTP/2 at once.
async fn hyper_server(tls: Option<TlsAcceptor>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let Some(tls) = tls else { return heard_as(stream, true).await };
                let Ok(stream) = tls.accept(stream).await else { return };
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                heard_as(stream, is_http2).await;
            });
        }
    });
    address
}

async fn heard_as(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, is_http2: bool) {
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
        let version = format!("{:?}", request.version());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(
            [version.as_bytes(), b" ", &body].concat(),
        ))))
    });
    let io = TokioIo::new(stream);
    let _ = match is_http2 {
        true => {
            hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await
        }
        false => hyper::server::conn::http1::Builder::new().serve_connection(io, service).await,
    };
}

async fn said(wire: &Wire, url: &str, how: How) -> Vec<String> {
    let mut call = call(url, how);
    call.request.headers.clear();
    let ended = all(wire, &vec![call; 3]).await;
    let text = |ended: Ended| String::from_utf8(ended.reply.unwrap().body.to_vec()).unwrap();
    ended.into_iter().map(text).collect()
}

#[tokio::test]
async fn an_answer_over_http2_has_a_limit_too() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let service = service_fn(|_: http::Request<hyper::body::Incoming>| async move {
            let body = Bytes::from(vec![b'x'; super::http1::ANSWER_BYTES_MAX + 1]);
            Ok::<_, Infallible>(http::Response::new(Full::new(body)))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    });
    let wire = Wire::new(Duration::from_secs(60));
    let mut call = call(&url, How::Http2(1));
    call.request.headers.clear();
    let said = all(&wire, &[call]).await.remove(0).reply.unwrap_err();
    assert!(said.contains("more than"), "{said}");
}

#[tokio::test]
async fn duplicates_share_an_http2_connection_without_tls() {
    let address = hyper_server(None).await;
    let wire = Wire::new(Duration::from_secs(5));
    assert_eq!(said(&wire, &format!("http://{address}/"), How::Http2(1)).await, ["HTTP/2.0 the end"; 3]);
}

#[tokio::test]
async fn https_speaks_what_was_agreed_on() {
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let secret = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.der().clone()], secret)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let port = hyper_server(Some(TlsAcceptor::from(Arc::new(server)))).await.port();
    let url = format!("https://localhost:{port}/");
    let mut wire = Wire::new(Duration::from_secs(5));
    let call = call(&url, How::Plain);
    let stranger = all(&wire, &[call]).await.remove(0).reply.unwrap_err();
    assert!(stranger.contains("certificate"), "{stranger}");

    let mut roots = RootCertStore::empty();
    roots.add(own.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    wire.tls = Some(Arc::new(client));
    assert_eq!(said(&wire, &url, How::Plain).await, ["HTTP/1.1 the end"; 3]);
    assert_eq!(said(&wire, &url, How::Pipelined(1)).await, ["HTTP/1.1 the end"; 3]);
    assert_eq!(said(&wire, &url, How::Http2(1)).await, ["HTTP/2.0 the end"; 3]);
}

#[tokio::test]
async fn a_race_begins_when_all_are_connected_and_sends_every_byte() {
    let (url, heard) = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let wire = Wire::new(Duration::from_secs(5));
    let calls = vec![call(&url, How::Plain); 20];
    let lines = wire.open(&calls).await;
    assert!(heard.lock().await.is_empty(), "nobody has sent all of it yet");
    let ended: Vec<Ended> = join_all(lines.into_iter().map(Line::go)).await.into_iter().flatten().collect();
    assert!(ended.iter().all(|ended| ended.reply.is_ok()));
    assert!(heard.lock().await.iter().all(|request| request.ends_with(b"the end")));
    let sent = ended.iter().map(|ended| ended.sent);
    assert!(sent.clone().max().unwrap() - sent.min().unwrap() < Duration::from_millis(200));
}
