//! Duplicates as streams of one HTTP/2 connection.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::ResponseFuture;

use super::http1::ANSWER_BYTES_MAX;
use super::{Link, Place};
use crate::verify::scenario::Reply;
use crate::verify::template::Request;

/// Sends all, then reads all. Without TLS it relies on prior knowledge.
pub(super) async fn exchange(
    link: Link,
    requests: &[&Request],
    begun: Instant,
) -> Result<Vec<(Duration, Result<Reply, String>)>, String> {
    let no = |error: h2::Error| format!("it does not speak HTTP/2 here: {error}");
    let (sender, connection) = h2::client::handshake(link).await.map_err(no)?;
    let connection = tokio::spawn(connection);
    // A server that does not speak it says so in its own words, or hangs up: both end the connection.
    let mut sender = sender.ready().await.map_err(no)?;
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        sender = sender.ready().await.map_err(no)?;
        let (answer, mut body) = sender.send_request(head(request)?, request.body.is_empty()).map_err(no)?;
        if !request.body.is_empty() {
            body.send_data(request.body.clone(), true).map_err(no)?;
        }
        answers.push(answer);
    }
    let replies = join_all(answers.into_iter().map(async |answer| {
        let reply = whole(answer).await;
        (begun.elapsed(), reply)
    }));
    let replies = replies.await;
    connection.abort();
    Ok(replies)
}

/// What the other side ended in HTTP/2 is told apart from what is no HTTP/2 at all.
fn no_answer(error: &h2::Error) -> String {
    match error.is_remote() {
        true => format!("the stream was ended: {error}"),
        false => format!("it does not speak HTTP/2 here: {error}"),
    }
}

fn head(request: &Request) -> Result<http::Request<()>, String> {
    let place = Place::of(&request.url)?;
    let scheme = if place.secure { "https" } else { "http" };
    let mut head = http::Request::builder()
        .version(http::Version::HTTP_2)
        .method(request.method.as_str())
        .uri(format!("{scheme}://{}{}", place.authority, place.target));
    for (name, value) in &request.headers {
        head = head.header(name.to_ascii_lowercase(), value.as_slice());
    }
    if !request.body.is_empty() {
        head = head.header(http::header::CONTENT_LENGTH, request.body.len());
    }
    head.body(()).map_err(|error| format!("HTTP/2 cannot carry this request: {error}"))
}

async fn whole(answer: ResponseFuture) -> Result<Reply, String> {
    let (head, mut stream) = answer.await.map_err(|error| no_answer(&error))?.into_parts();
    let mut body = Vec::new();
    while let Some(bytes) = stream.data().await {
        let bytes: Bytes = bytes.map_err(|error| no_answer(&error))?;
        if body.len() + bytes.len() > ANSWER_BYTES_MAX {
            return Err(format!("the answer has more than {ANSWER_BYTES_MAX} bytes"));
        }
        let _ = stream.flow_control().release_capacity(bytes.len());
        body.extend_from_slice(&bytes);
    }
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    Ok(Reply { status: head.status.as_u16(), headers: headers.collect(), body: body.into() })
}
