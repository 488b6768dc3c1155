//! What passes from one side to the other, and what does not.

use http::{HeaderValue, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;

use super::rig::*;
use crate::config::resolved;

#[tokio::test]
async fn host_is_kept_and_the_client_is_named() {
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    let answer = proxy
        .ask(
            "GET /a%20b/ä?q=1&r HTTP/1.1\r\nHost: shop.example:8080\r\nX-Forwarded-For: 6.6.6.6\r\n\
             X-Forwarded-Proto: https\r\nX-Forwarded-Port: 1\r\nForwarded: for=6.6.6.6\r\nAccept: */*\r\n\r\n",
        )
        .await;
    let seen = answer.text();
    assert!(seen.starts_with("GET /a%20b/ä?q=1&r\n"), "{seen}");
    assert!(seen.contains("\nhost: shop.example:8080\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-for: 127.0.0.1\n"), "an untrusted claim is replaced: {seen}");
    assert!(seen.contains("\nx-forwarded-proto: http\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-host: shop.example:8080\n"), "{seen}");
    assert!(!seen.contains("6.6.6.6") && !seen.contains("x-forwarded-port"), "{seen}");
    assert!(seen.contains("\naccept: */*\n"), "{seen}");
}

#[tokio::test]
async fn a_trusted_proxy_is_believed_and_extended() {
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[address]);
    plan.trusted = vec![resolved::Network { address: "127.0.0.0".parse().unwrap(), bits: 8 }];
    let proxy = plan.start().await;
    let answer = proxy
        .ask(
            "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 8.8.8.8\r\n\
             X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example\r\n\r\n",
        )
        .await;
    let seen = answer.text();
    assert!(seen.contains("\nx-forwarded-for: 9.9.9.9, 8.8.8.8, 127.0.0.1\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-proto: https\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-host: shop.example\n"), "{seen}");
}

#[tokio::test]
async fn what_belongs_to_one_hop_stays_there() {
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    let answer = proxy
        .ask(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\nKeep-Alive: timeout=5\r\n\
             X-Mine: 1\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c\r\nX-Other: 2\r\n\r\n",
        )
        .await;
    let seen = answer.text();
    for gone in ["keep-alive", "x-mine", "proxy-connection", "te:", "upgrade", "connection"] {
        assert!(!seen.contains(gone), "{gone} in {seen}");
    }
    assert!(seen.contains("\nx-other: 2\n"), "{seen}");
}

#[tokio::test]
async fn a_client_cannot_have_the_gateways_headers_dropped() {
    // G-21
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    let answer = proxy
        .ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close, x-layer, x-forwarded-for, host\r\n\r\n")
        .await;
    let seen = answer.text();
    for kept in ["x-layer: 1", "x-forwarded-for: 127.0.0.1", "host: a"] {
        assert!(seen.contains(&format!("\n{kept}\n")), "{kept} is missing in {seen}");
    }
}

#[tokio::test]
async fn an_answer_with_two_framings_leaves_with_one() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service
        .say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        .await;
    let answer = client.answer().await;
    assert_eq!((answer.header("content-length"), answer.text()), (None, "hello"));
}

#[tokio::test]
async fn nobody_tunnels_http_past_the_gateway() {
    // G-21: requests inside such a tunnel would reach the service unseen.
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    for protocol in ["h2c", "websocket, h2c", "HTTP/2.0", "TLS/1.2"] {
        let answer = proxy
            .ask(&format!(
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: x\r\nUpgrade: {protocol}\r\n\r\n"
            ))
            .await;
        let seen = answer.text().to_ascii_lowercase();
        assert!(!seen.contains("upgrade") && !seen.contains("http2-settings"), "{seen}");
    }
}

#[tokio::test]
async fn nobody_outside_sends_our_headers_and_nobody_outside_gets_them() {
    // G-21
    let (address, _) = service(false, async |request: Request<Incoming>| {
        let ours = request.headers().keys().filter(|name| name.as_str().starts_with("semel-")).count();
        let mut reply = reply(ours.to_string());
        reply.headers_mut().insert("semel-hint", HeaderValue::from_static("nothing-happened"));
        reply
    })
    .await;
    let proxy = proxy_to(address).await;
    let answer = proxy
        .ask("GET / HTTP/1.1\r\nHost: a\r\nSemel-Nonce: x\r\nsemel-token: 9\r\nSEMEL-anything: 1\r\n\r\n")
        .await;
    assert_eq!(answer.text(), "0");
    assert_eq!(answer.header("semel-hint"), None);
}

#[tokio::test]
async fn a_path_prefix_of_the_target_is_put_before() {
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[]);
    plan.upstream.targets = vec![resolved::Target::Url(format!("http://{address}/api/v1/").parse().unwrap())];
    let proxy = plan.start().await;
    assert!(proxy.get("/orders?x=1").await.text().starts_with("GET /api/v1/orders?x=1\n"));
    assert!(proxy.get("/").await.text().starts_with("GET /api/v1/\n"));
}

#[tokio::test]
async fn an_absolute_address_names_the_host() {
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    let seen = proxy.ask("GET http://real.example/x HTTP/1.1\r\nHost: other.example\r\n\r\n").await;
    assert!(seen.text().starts_with("GET /x\n"), "{}", seen.text());
    assert!(seen.text().contains("\nhost: real.example\n"), "{}", seen.text());
}

#[tokio::test]
async fn the_service_as_a_whole_can_be_asked() {
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    assert!(proxy.ask("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").await.text().starts_with("OPTIONS *\n"));
}

#[tokio::test]
async fn http_1_0_clients_are_served_and_let_go() {
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET /old HTTP/1.0\r\n\r\n").await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains(&format!("\nhost: {address}\n")), "{}", answer.text());
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn answers_without_a_body_keep_their_headers() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("HEAD /file HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\nETag: \"x\"\r\n\r\n").await;
    let head = client.head().await;
    assert!(head.contains("content-length: 12345\r\n") && head.contains("etag: \"x\"\r\n"), "{head}");
    client.say("GET /file HTTP/1.1\r\nHost: a\r\n\r\n").await;
    service.head().await;
    service.say("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n").await;
    assert!(client.head().await.starts_with("HTTP/1.1 304 "));
    client.say("DELETE /file HTTP/1.1\r\nHost: a\r\n\r\n").await;
    service.head().await;
    service.say("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert!(client.head().await.starts_with("HTTP/1.1 204 "));
    client.say("GET /last HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(service.head().await.starts_with("GET /last "), "and both connections are still in step");
}

#[tokio::test]
async fn repeated_headers_and_encoded_bodies_pass_byte_for_byte() {
    let (stage, address) = Stage::open().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n").await;
    let mut service = stage.next().await;
    assert!(service.head().await.contains("accept-encoding: gzip\r\n"));
    let body = [0x1f, 0x8b, 0x08, 0, 0xff, 0xfe, 0];
    service
        .say("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 7\r\n\r\n")
        .await;
    service.say(body).await;
    let answer = client.answer().await;
    assert_eq!(answer.body, body);
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert!(answer.head.contains("set-cookie: a=1\r\nset-cookie: b=2\r\n"), "{}", answer.head);
}

#[tokio::test]
async fn bodies_pass_in_both_framings_and_for_any_method() {
    let (address, _) = echo(false).await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    for method in ["POST", "PUT", "PATCH", "DELETE", "GET", "PURGE"] {
        client.say(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")).await;
        assert_eq!(client.answer().await.text(), "hello", "{method} with a length");
        let chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n";
        client.say(format!("{method} / HTTP/1.1\r\nHost: a\r\n{chunked}")).await;
        assert_eq!(client.answer().await.text(), "hello", "{method} in chunks");
    }
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let (address, _) = service(false, async |request: Request<Incoming>| {
        let trailers = request.into_body().collect().await.unwrap().trailers().unwrap().clone();
        let mut reply = reply("");
        reply.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
        // Of no known length, or hyper would send it with one, and then without trailers.
        let parts = [Ok(Frame::data("data".into())), Ok(Frame::trailers(trailers))];
        *reply.body_mut() = StreamBody::new(futures_util::stream::iter(parts)).boxed_unsync();
        reply
    })
    .await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client
        .say("POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    client.say("3\r\nabc\r\n0\r\nx-sum: 42\r\n\r\n").await;
    client.head().await;
    let body = client.until("0\r\nx-sum: 42\r\n\r\n").await;
    assert!(body.contains("data"), "{body}");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client
        .say("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /3 HTTP/1.1\r\nHost: a\r\n\r\n")
        .await;
    for expected in ["GET /1\n", "POST /2\n", "GET /3\n"] {
        assert!(client.answer().await.text().starts_with(expected));
    }
}
