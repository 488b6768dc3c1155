//! Whatever a client sends: a clear answer, no second reading of it, never a panic.

use std::time::Duration;

use super::rig::*;

/// What one client gets for some bytes, and that the proxy still works afterwards.
async fn sent(bytes: &[u8]) -> String {
    let (address, counts) = mirror().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say(bytes).await;
    let heard = String::from_utf8_lossy(&client.rest().await).into_owned();
    assert_eq!(counts.requests(), 0, "{:?} went through", String::from_utf8_lossy(bytes));
    assert_eq!(proxy.get("/").await.status, 200);
    heard
}

fn status(heard: &str) -> &str {
    heard.split(' ').nth(1).unwrap_or("nothing")
}

#[tokio::test]
async fn two_framings_in_one_request_are_refused() {
    let both: [&str; 3] = [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    for request in both {
        let heard = sent(request.as_bytes()).await;
        assert_eq!(status(&heard), "400", "{heard}");
        assert!(heard.contains("urn:semel:problem:request-malformed"), "{heard}");
        assert_eq!(heard.matches("HTTP/1.1").count(), 1, "nothing after it is read: {heard}");
    }
}

#[tokio::test]
async fn trailers_that_end_in_two_ways_hide_no_request() {
    // To hyper the trailers end at the only empty line with a carriage return, to many others at the first.
    let (address, counts) = mirror().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client
        .say(
            "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\
             x: y\n\nGET / HTTP/1.1\nhost: a\n\n\r\n\r\n",
        )
        .await;
    assert_eq!(client.answer().await.status, 200);
    client
        .say(
            "POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
             0\r\n\r\n",
        )
        .await;
    assert_eq!(client.answer().await.status, 400);
    assert_eq!(counts.requests(), 1);
}

#[tokio::test]
async fn the_refused_request_may_come_later_and_in_pieces() {
    let (address, counts) = mirror().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    client.say("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").await;
    assert_eq!(client.answer().await.status, 200);
    for piece in [
        "POST /2 HTTP/1.1\r\nHost: a\r\nContent-Le",
        "ngth: 1\r\nTransfer-Enc",
        "oding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        client.say(piece).await;
    }
    assert_eq!(client.answer().await.status, 400);
    assert_eq!(counts.requests(), 1);
}

#[tokio::test]
async fn other_smuggling_shapes_are_refused() {
    let shapes: [&[u8]; 10] = [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nX: 1\r\n Content-Length: 5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ];
    for shape in shapes {
        let heard = sent(shape).await;
        assert_eq!(status(&heard), "400", "{}: {heard}", String::from_utf8_lossy(shape));
    }
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let shapes: [&[u8]; 11] = [
        b"complete nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a b/c\r\n\r\n",
        b"GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ];
    for shape in shapes {
        let heard = sent(shape).await;
        assert_eq!(status(&heard), "400", "{:?}: {heard}", String::from_utf8_lossy(shape));
    }
}

#[tokio::test]
async fn heads_that_are_too_big_are_refused() {
    let long = "x".repeat(20 * 1024);
    let heard = sent(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n").as_bytes()).await;
    assert_eq!(status(&heard), "431", "{heard}");
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    let heard = sent(format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").as_bytes()).await;
    assert_eq!(status(&heard), "431", "{heard}");
    let endless = "x".repeat(300 * 1024);
    let (address, _) = mirror().await;
    let proxy = proxy_to(address).await;
    let mut client = proxy.client().await;
    // It may be refused while it is still being sent.
    let _ = tokio::io::AsyncWriteExt::write_all(client.stream(), format!("GET /{endless}").as_bytes()).await;
    let heard = String::from_utf8_lossy(&client.rest().await).into_owned();
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 4"), "{heard}");
    assert_eq!(proxy.get("/").await.status, 200);
}

#[tokio::test]
async fn connect_is_not_for_a_gateway() {
    let heard = sent(b"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n").await;
    assert_eq!(status(&heard), "405", "{heard}");
    assert!(heard.contains("allow: "), "{heard}");
}

#[tokio::test]
async fn a_head_that_drips_is_cut_off() {
    let (address, counts) = mirror().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.header_timeout = Duration::from_millis(100);
    let time = ByHand::new();
    plan.runtime = time.clone();
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\n").await;
    // A byte at a time: none of them wins more time for the others.
    for _ in 0..20 {
        let _ = tokio::io::AsyncWriteExt::write_all(client.stream(), b"x").await;
        time.pass(Duration::from_millis(20)).await;
    }
    let heard = String::from_utf8_lossy(&client.rest().await).into_owned();
    assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 408 "), "{heard}");
    assert_eq!(counts.requests(), 0);
}

#[tokio::test]
async fn a_head_that_stops_is_told_why() {
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.header_timeout = Duration::from_millis(50);
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\nX-Half").await;
    let heard = String::from_utf8_lossy(&client.rest().await).into_owned();
    assert!(heard.starts_with("HTTP/1.1 408 ") && heard.contains("problem:request-slow"), "{heard}");
}

#[tokio::test]
async fn half_a_head_does_not_cut_the_answer_before_it() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.header_timeout = Duration::from_millis(100);
    let time = ByHand::new();
    plan.runtime = time.clone();
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHo").await;
    let mut service = stage.next().await;
    service.head().await;
    time.pass(Duration::from_secs(1)).await;
    time.pass(Duration::from_secs(1)).await;
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(client.answer().await.text(), "ok");
    time.pass(Duration::from_millis(20)).await;
    client.say("st: a\r\n\r\n").await;
    assert!(service.head().await.starts_with("GET /2 "), "its time began when it was its turn");
}

#[tokio::test]
async fn a_body_that_stops_is_told_why() {
    let (address, _) = echo(false).await;
    let mut plan = Plan::to(&[address]);
    plan.limits.body_timeout = Duration::from_millis(50);
    let proxy = plan.start().await;
    for body in ["", "abc"] {
        let mut client = proxy.client().await;
        client.say(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{body}")).await;
        let heard = String::from_utf8_lossy(&client.rest().await).into_owned();
        // An echo has begun to answer where there was something to echo; that answer is cut.
        let told = heard.starts_with("HTTP/1.1 408 ") && heard.contains("problem:request-slow");
        let cut = heard.starts_with("HTTP/1.1 200 ") && !heard.ends_with("0\r\n\r\n");
        assert!(told || cut, "{heard}");
    }
}

#[tokio::test]
async fn a_body_that_stops_before_the_service_answers_is_a_408() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.body_timeout = Duration::from_millis(50);
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc").await;
    let mut service = stage.next().await;
    service.until("abc").await;
    let heard = String::from_utf8_lossy(&client.rest().await).into_owned();
    assert!(heard.starts_with("HTTP/1.1 408 ") && heard.contains("problem:request-slow"), "{heard}");
    assert!(service.is_closed().await, "the service is not left with half a request");
}

#[tokio::test]
async fn a_connection_without_requests_is_let_go() {
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.idle_timeout = Duration::from_millis(50);
    let proxy = plan.start().await;
    let mut silent = proxy.client().await;
    assert!(silent.is_closed().await, "before its first request");
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    client.answer().await;
    assert!(client.is_closed().await, "and after its last one");
}

#[tokio::test]
async fn a_long_answer_is_not_idleness() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.idle_timeout = Duration::from_millis(50);
    let time = ByHand::new();
    plan.runtime = time.clone();
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    time.pass(Duration::from_secs(1)).await;
    service.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nda").await;
    client.until("da").await;
    time.pass(Duration::from_secs(1)).await;
    service.say("ta").await;
    client.until("ta").await;
    time.pass(Duration::from_secs(1)).await;
    time.pass(Duration::from_secs(1)).await;
    assert!(client.is_closed().await, "but silence after it is");
}

/// Always the same numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

#[tokio::test]
async fn damaged_requests_never_make_it_panic() {
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[address]);
    let runtime = std::sync::Arc::new(Watchful::default());
    plan.runtime = runtime.clone();
    let proxy = plan.start().await;
    let whole: [&[u8]; 4] = [
        b"GET /a?b=c HTTP/1.1\r\nHost: a\r\nConnection: x-y, upgrade\r\nUpgrade: websocket\r\nX-Y: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTE: trailers\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nt: 1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x05\x01\x05\0\0\0\x01\x82\x86\x84\x41\0",
    ];
    let mut dice = Dice(7);
    for _ in 0..400 {
        let mut bytes = whole[dice.roll(whole.len())].to_vec();
        for _ in 0..=dice.roll(3) {
            let at = dice.roll(bytes.len());
            match dice.roll(4) {
                0 => bytes[at] = dice.roll(256) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"\r\n\0 :;,\xff\t"[dice.roll(9)]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let mut client = proxy.client().await;
        client.say(&bytes).await;
        tokio::io::AsyncWriteExt::shutdown(client.stream()).await.unwrap();
        client.rest().await;
    }
    assert_eq!(runtime.panics(), 0);
    assert_eq!(proxy.get("/").await.status, 200);
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go() {
    let (stage, address) = Stage::open().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.idle_timeout = Duration::from_millis(100);
    let proxy = plan.start().await;
    let mut client = proxy.client().await;
    client.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut service = stage.next().await;
    service.head().await;
    service.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    // The client never reads, so in the end the service cannot write.
    let part = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let filling = async {
        while tokio::io::AsyncWriteExt::write_all(service.stream(), part.as_bytes()).await.is_ok() {}
    };
    soon(filling).await;
}

#[tokio::test]
async fn one_connection_too_many_is_turned_away() {
    let (address, _) = mirror().await;
    let mut plan = Plan::to(&[address]);
    plan.limits.connections_max = 1;
    let proxy = plan.start().await;
    let mut first = proxy.client().await;
    first.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    first.answer().await;
    let mut second = proxy.client().await;
    let heard = String::from_utf8_lossy(&second.rest().await).into_owned();
    assert!(heard.starts_with("HTTP/1.1 503 ") && heard.contains("too-many-connections"), "{heard}");
    first.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(first.answer().await.status, 200, "those inside are not disturbed");
}
