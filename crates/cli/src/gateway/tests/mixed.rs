//! Many clients at once, on several threads: everybody gets the answer to their own question.

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;

use super::rig::*;

const CLIENTS: usize = 24;
const REQUESTS: usize = 20;

/// Answers with the question, in one of several manners of services; the path names the manner.
async fn manners(request: Request<Incoming>) -> Reply {
    let manner = request.uri().path().to_owned();
    if manner == "/early" {
        // Before it has read the question, and it never will.
        let mut reply = reply("early");
        *reply.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return reply;
    }
    let Ok(question) = request.into_body().collect().await else { return reply("") };
    let question = question.to_bytes();
    match manner.as_str() {
        "/close" => {
            let mut reply = reply(question);
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            reply
        }
        "/parts" => {
            let parts = futures_util::stream::unfold(0, move |at| {
                let question = question.clone();
                async move {
                    tokio::task::yield_now().await;
                    let end = (at + 500).min(question.len());
                    (at < end).then(|| (Ok(Frame::data(question.slice(at..end))), end))
                }
            });
            Reply::new(StreamBody::new(parts).boxed_unsync())
        }
        _ => reply(question),
    }
}

async fn converse(proxy: &Proxy, number: usize) {
    let mut client = proxy.client().await;
    for step in 0..REQUESTS {
        let question = format!("client {number} step {step} {}", "x".repeat(number * step * 7 % 5000));
        let protected = if step % 3 == 0 { "X-Protected: 1\r\n" } else { "" };
        let manner = ["/plain", "/parts", "/close", "/early", "/leave"][(number + step) % 5];
        let framed = match step % 2 {
            0 => format!("Content-Length: {}\r\n\r\n{question}", question.len()),
            _ => format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{question}\r\n0\r\n\r\n", question.len()),
        };
        let text = format!("POST {manner} HTTP/1.1\r\nHost: a\r\n{protected}{framed}");
        match manner {
            "/leave" => {
                // Half a request, or a whole one whose answer nobody reads.
                client.say(&text.as_bytes()[..text.len() - number % 2 * 3]).await;
                client = proxy.client().await;
            }
            "/early" => {
                client.say(&text).await;
                // The service may hang up while the question is on its way: then nobody knows.
                let answer = client.answer().await;
                assert!([413, 502].contains(&answer.status), "{answer:?}");
                client = proxy.client().await;
            }
            _ => {
                client.say(&text).await;
                let answer = client.answer().await;
                assert_eq!((answer.status, answer.text()), (200, &*question), "{manner}");
            }
        }
    }
}

async fn everybody(plan: Plan) {
    let mut proxy = plan.start().await;
    soon(futures_util::future::join_all((0..CLIENTS).map(|number| converse(&proxy, number)))).await;
    proxy.stop();
    assert_eq!(proxy.ended().await, super::super::serve::Drained::Fully);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_gets_another_ones_answer() {
    let (address, _) = service(false, manners).await;
    everybody(Plan::to(&[address])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nor_over_http2_and_two_targets() {
    let (first, _) = service(true, manners).await;
    let (second, _) = service(true, manners).await;
    let mut plan = Plan::to(&[first, second]);
    plan.upstream.http2 = true;
    everybody(plan).await;
}

#[tokio::test]
async fn a_service_on_http2_can_be_asked_with_large_bodies() {
    let (address, _) = echo(true).await;
    let mut plan = Plan::to(&[address]);
    plan.upstream.http2 = true;
    let proxy = plan.start().await;
    let body = Bytes::from(vec![b'x'; 3_000_000]);
    let mut client = proxy.client().await;
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    client.say(head).await;
    // It is echoed while it is sent: whoever only writes would wait for ever.
    let (mut reading, mut writing) = client.split();
    let written = async {
        tokio::io::AsyncWriteExt::write_all(&mut writing, &body).await.unwrap();
    };
    let heard = async {
        let (mut count, mut part) = (0, vec![0; 65536]);
        while count < body.len() {
            let read = tokio::io::AsyncReadExt::read(&mut reading, &mut part).await.unwrap();
            assert!(read > 0, "it ended after {count}");
            count += part[..read].iter().filter(|byte| **byte == b'x').count();
        }
        count
    };
    let ((), count) = soon(futures_util::future::join(written, heard)).await;
    assert_eq!(count, body.len());
}
