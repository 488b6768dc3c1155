//! A response as it is stored, and back.
//!
//! The lines of connections are dropped, Semel's own too; secrets are dropped unless the route stores
//! them, and then the outcome says that something is missing. What is left comes back in its order, with
//! repeats, byte for byte.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use semel_core::mutant;
use semel_core::outcome::{Body, Line, Outcome};

use crate::{ReplyBody, Route, header};

/// What is stored of a response.
pub(crate) fn outcome(
    status: StatusCode,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    body: Body,
    route: &Route,
) -> Outcome {
    let mut redacted = false;
    let has_nominees = headers.contains_key(http::header::CONNECTION);
    let mut lines = |of: &HeaderMap| {
        let mut kept = Vec::with_capacity(of.len());
        for (name, value) in of {
            if header::is_hop_by_hop(name) && !mutant::on("hop-by-hop-stored")
                || header::is_ours(name)
                || has_nominees && header::is_nominated(headers, name)
            {
                continue;
            }
            if !route.stores(name) {
                redacted = true;
                continue;
            }
            kept.push(Line { name: Line::name_of(name.as_str()), value: Line::value_of(value.as_bytes()) });
        }
        kept
    };
    let headers = lines(headers);
    let trailers = trailers.map_or_else(Vec::new, &mut lines);
    Outcome { status: status.as_u16(), headers, trailers, body, redacted }
}

/// A stored line or status that is not HTTP.
pub(crate) struct NotHttp;

/// A stored outcome as a response, with the marks of a replay.
pub(crate) fn replay<R>(outcome: Outcome, route: &Route) -> Result<Response<ReplyBody<R>>, NotHttp> {
    let mut headers = header_map(&outcome.headers, 2)?;
    let truth = HeaderValue::from_static("true");
    if !mutant::on("replay-unmarked") {
        headers.insert(route.replay_header().clone(), truth.clone());
    }
    if outcome.redacted {
        headers.insert(header::REPLAY_REDACTED, truth);
    }
    let trailers = match &outcome.trailers[..] {
        [] => None,
        lines => Some(Box::new(header_map(lines, 0)?)),
    };
    // What was redacted may have another length than was announced when it was whole.
    let length = outcome.body_bytes().map_or(0, Bytes::len);
    if headers.get(CONTENT_LENGTH).is_some_and(|announced| *announced != HeaderValue::from(length)) {
        for name in [CONTENT_LENGTH.as_str(), "content-digest", "content-md5", "digest", "repr-digest"] {
            headers.remove(name);
        }
    }
    // An operator may have settled it with plain text, which has no status.
    let status = if outcome.status == 0 { 200 } else { outcome.status };
    let body = outcome.body_bytes().cloned().unwrap_or_default();
    let mut response = Response::new(ReplyBody::whole(body, trailers));
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| NotHttp)?;
    *response.headers_mut() = headers;
    Ok(response)
}

fn header_map(lines: &[Line], more: usize) -> Result<HeaderMap, NotHttp> {
    let mut headers = HeaderMap::with_capacity(lines.len() + more);
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| NotHttp)?;
        let value = HeaderValue::from_maybe_shared(line.value.clone()).map_err(|_| NotHttp)?;
        headers.append(name, value);
    }
    Ok(headers)
}
