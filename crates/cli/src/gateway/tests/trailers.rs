//! Trailers are headers that come late: what may not stand in a head may not come after the body.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::rig::*;

/// What the service may hear of, whoever says it.
const PLAIN: &str = "x-sum";
/// What a head may not hold, or what was judged by what the head held.
const BARRED: [&str; 20] = [
    "semel-token",
    "semel_nonce",
    "x-forwarded-for",
    "x_forwarded_host",
    "forwarded",
    "connection",
    "keep-alive",
    "proxy-authorization",
    "te",
    "upgrade",
    "idempotency-key",
    "idempotency_key",
    "authorization",
    "x-api-key",
    "x_http_method_override",
    "content-length",
    "content_length",
    "transfer_encoding",
    "content_type",
    "x_api_token",
];

fn late(names: &[&'static str]) -> HeaderMap {
    let value = HeaderValue::from_static("late");
    names.iter().map(|name| (HeaderName::from_static(name), value.clone())).collect()
}

/// Answers with the names of the request's trailers.
async fn listener(http2: bool) -> std::net::SocketAddr {
    let (address, _) = service(http2, async |request: Request<Incoming>| {
        let whole = request.into_body().collect().await.unwrap();
        let mut names: Vec<&str> =
            whole.trailers().map(|map| map.keys().map(HeaderName::as_str).collect()).unwrap_or_default();
        names.sort_unstable();
        reply(names.join(" "))
    })
    .await;
    address
}

/// A request whose trailers are these, as hyper's clients send it over HTTP/2.
async fn heard(address: std::net::SocketAddr, head: &[(&str, &str)], names: &[&'static str]) -> String {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (executor, io) = (hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream));
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let trailers = late(names);
    let body = Full::new(Bytes::from_static(b"{}")).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut request = Request::post("http://shop.example/pay");
    for (name, value) in head {
        request = request.header(*name, *value);
    }
    let answer = soon(sender.send_request(request.body(body).unwrap())).await.unwrap();
    let body = soon(answer.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn what_a_head_may_not_hold_does_not_come_after_the_body() {
    // G-5, G-21
    let mut plan = Plan::to(&[listener(true).await]);
    plan.upstream.http2 = true;
    let proxy = plan.start().await;
    for name in BARRED.iter().filter(|name| !["connection", "keep-alive", "te", "upgrade"].contains(name)) {
        assert_eq!(heard(proxy.address, &[], &[PLAIN, name]).await, PLAIN, "{name}");
    }
    // Over HTTP/2 these make a request malformed; over HTTP/1.1 a client can say anything.
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n").await;
    for name in BARRED {
        client.say(format!("{name}: late\r\n")).await;
    }
    client.say("x-sum: 42\r\n\r\n").await;
    assert_eq!(client.answer().await.text(), PLAIN);
}

#[tokio::test]
async fn a_tenant_is_not_named_after_the_body() {
    // G-5: with a key and without, also where another route believes the header of this very peer.
    let address = listener(true).await;
    let routes = "[defaults]\ntenant = \"none\"\n[[route]]\nid = \"orders\"\npath = \"/orders\"\n\
                  tenant = \"header:X-Account\"\ntenant_peers = [\"127.0.0.0/8\"]\n\
                  [[route]]\nid = \"keys\"\npath = \"/keys\"\ntenant = \"header:X-Customer\"\n";
    let gateway = gateway_to(address, "upstream_http2 = true", routes).await;
    for head in [&[][..], &[("idempotency-key", "order-1042-payment")]] {
        let names = ["x-account", "x_account", "x-customer", "x_customer", "semel-token", PLAIN];
        assert_eq!(heard(gateway.address, head, &names).await, PLAIN, "{head:?}");
    }
}

#[tokio::test]
async fn what_a_request_is_judged_by_does_not_come_after_the_body() {
    // G-6, G-10
    let address = listener(true).await;
    let routes = "[defaults]\ntenant = \"none\"\n[[route]]\nid = \"orders\"\npath = \"/orders\"\n\
                  subject_header = \"X-Subject\"\nfingerprint_headers = [\"X-Currency\"]\n\
                  expired_keys = \"first-sent:Repeatability-First-Sent\"\n";
    let gateway = gateway_to(address, "upstream_http2 = true", routes).await;
    for name in [
        "x-subject",
        "x_subject",
        "x-currency",
        "x_currency",
        "repeatability-first-sent",
        "repeatability_first_sent",
    ] {
        assert_eq!(heard(gateway.address, &[], &[name, PLAIN]).await, PLAIN, "{name}");
    }
}

#[tokio::test]
async fn an_answers_trailers_keep_to_their_hop() {
    // G-21
    for key in [None, Some("order-1042-payment")] {
        let (stage, address) = Stage::open().await;
        let gateway = gateway_to(address, "", "").await;
        let mut client = Raw::connect(gateway.address).await;
        let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
        client
            .say(format!("POST /pay HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nContent-Length: 0\r\n{key}\r\n"))
            .await;
        let mut service = stage.next().await;
        service.head().await;
        service
            .say(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum, semel-hint, keep-alive, \
                 upgrade\r\n\r\n2\r\nok\r\n0\r\nx-sum: 42\r\nsemel-hint: decided\r\n\
                 keep-alive: timeout=9\r\nupgrade: h2c\r\n\r\n",
            )
            .await;
        client.head().await;
        let body = client.until("\r\n0\r\n").await;
        assert!(body.contains("ok"), "{body}");
        assert_eq!(client.until("\r\n\r\n").await, "x-sum: 42\r\n\r\n", "{key}");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_after_trailers() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET /1 HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n").await;
    let mut service = stage.next().await;
    for (number, trailers) in ["upgrade: h2c", "x-sum: 42", "x-sum: 42\r\nupgrade: h2c"].iter().enumerate() {
        assert!(
            soon(service.head()).await.starts_with(&format!("GET /{} ", number + 1)),
            "on one connection"
        );
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum, upgrade\r\n\r\n";
        service.say(format!("{head}2\r\nok\r\n0\r\n{trailers}\r\n\r\n")).await;
        client.until("\r\n0\r\n").await;
        let sum = if number == 0 { "\r\n" } else { "x-sum: 42\r\n\r\n" };
        assert_eq!(client.until(if number == 0 { "\r\n" } else { "\r\n\r\n" }).await, sum);
        client.say(format!("GET /{} HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n", number + 2)).await;
    }
    assert!(soon(service.head()).await.starts_with("GET /4 "));
}
