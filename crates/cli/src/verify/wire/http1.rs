//! HTTP/1.1 by hand: requests byte for byte, answers as they came.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{BY_US, Link, Place, where_cut};
use crate::verify::scenario::{Region, Reply};
use crate::verify::template::Request;

/// Largest answer read.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Largest head read.
const HEAD_BYTES_MAX: usize = 256 << 10;

/// A request as it goes out. Nothing in it is checked: some checks send what must be refused.
pub(super) fn written(request: &Request) -> Result<Vec<u8>, String> {
    let place = Place::of(&request.url)?;
    let has = |name: &str| request.headers.iter().any(|(there, _)| there.eq_ignore_ascii_case(name));
    let mut out = format!("{} {} HTTP/1.1\r\n", request.method, place.target).into_bytes();
    if !has("host") {
        out.extend_from_slice(format!("Host: {}\r\n", place.authority).as_bytes());
    }
    for (name, value) in &request.headers {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    let takes_body = !matches!(request.method.as_str(), "GET" | "HEAD" | "DELETE" | "OPTIONS" | "TRACE");
    if (takes_body || !request.body.is_empty()) && !has("content-length") && !has("transfer-encoding") {
        out.extend_from_slice(format!("Content-Length: {}\r\n", request.body.len()).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&request.body);
    Ok(out)
}

pub(super) async fn send(link: &mut Link, bytes: &[u8]) -> Result<(), String> {
    let sending = async {
        link.write_all(bytes).await?;
        link.flush().await
    };
    sending.await.map_err(|error| format!("the request could not be sent: {error}"))
}

/// The head at once, the body in pieces.
pub(super) async fn send_slowly(
    link: &mut Link,
    request: &Request,
    pieces: usize,
    pause: Duration,
) -> Result<(), String> {
    let bytes = written(request)?;
    let (head, body) = bytes.split_at(bytes.len() - request.body.len());
    send(link, head).await?;
    for piece in body.chunks(body.len().div_ceil(pieces.max(1)).max(1)) {
        tokio::time::sleep(pause).await;
        send(link, piece).await?;
    }
    Ok(())
}

/// One after the other without waiting, then the answers in their order. What came before a failure was
/// handed over by then.
pub(super) async fn pipelined(
    mut link: Link,
    requests: &[&Request],
    mut hand_over: impl FnMut(Reply),
) -> Result<(), String> {
    let mut bytes = Vec::new();
    for request in requests {
        bytes.extend(written(request)?);
    }
    send(&mut link, &bytes).await?;
    let mut reader = Reader::new(&mut link);
    for request in requests {
        hand_over(reader.answer(request).await?);
    }
    Ok(())
}

/// The whole answer.
pub(super) async fn read(link: &mut Link, request: &Request) -> Result<Reply, String> {
    Reader::new(link).answer(request).await
}

/// Reads so far and no further. Gives the words for it; an answer that ended sooner is an error.
pub(super) async fn read_until(link: &mut Link, request: &Request, region: Region) -> Result<String, String> {
    let mut reader = Reader::new(link);
    match region {
        // One byte proves that there is an answer; the client keeps nothing of it.
        Region::BeforeHead => reader.at_least(1).await?,
        // `HTTP/1.1 201` is the least a client could make sense of.
        Region::InHead => reader.at_least(12).await?,
        Region::InBody => {
            let (status, headers) = reader.head().await?;
            match framing(request, status, &headers)? {
                Framing::Length(0) => return Err("the answer has no body to cut".into()),
                Framing::Length(length) => reader.at_least(length / 2).await?,
                Framing::Chunked | Framing::ToEnd => reader.at_least(1).await?,
            }
        }
    }
    Ok(format!("{BY_US} {}", where_cut(region)))
}

type Headers = Vec<(String, Vec<u8>)>;

enum Framing {
    Length(usize),
    Chunked,
    ToEnd,
}

fn framing(request: &Request, status: u16, headers: &Headers) -> Result<Framing, String> {
    if request.method == "HEAD" || matches!(status, 101 | 204 | 304) {
        return Ok(Framing::Length(0));
    }
    let value = |name: &str| {
        let found = headers.iter().rev().find(|(there, _)| there.eq_ignore_ascii_case(name));
        found.map(|(_, value)| String::from_utf8_lossy(value).trim().to_ascii_lowercase())
    };
    if value("transfer-encoding").is_some_and(|coding| coding.ends_with("chunked")) {
        return Ok(Framing::Chunked);
    }
    match value("content-length") {
        None => Ok(Framing::ToEnd),
        Some(length) => match length.parse() {
            Ok(length) if length <= ANSWER_BYTES_MAX => Ok(Framing::Length(length)),
            _ => Err(format!("the answer's Content-Length is {length}: not a length read here")),
        },
    }
}

/// Reads answers off a connection; what was read too far stays for the next.
struct Reader<'a> {
    link: &'a mut Link,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn new(link: &'a mut Link) -> Self {
        Self { link, buffer: Vec::new() }
    }

    /// `false` at the end.
    async fn more(&mut self) -> Result<bool, String> {
        if self.buffer.len() > ANSWER_BYTES_MAX {
            return Err(format!("the answer has more than {ANSWER_BYTES_MAX} bytes"));
        }
        let read = self.link.read_buf(&mut self.buffer).await;
        read.map(|count| count > 0).map_err(|error| format!("the connection broke: {error}"))
    }

    async fn at_least(&mut self, bytes: usize) -> Result<(), String> {
        while self.buffer.len() < bytes {
            if !self.more().await? {
                return Err(match self.buffer.is_empty() {
                    true => "the connection was closed without an answer".into(),
                    false => "the answer broke off".into(),
                });
            }
        }
        Ok(())
    }

    async fn take(&mut self, bytes: usize) -> Result<Vec<u8>, String> {
        self.at_least(bytes).await?;
        let rest = self.buffer.split_off(bytes);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Up to and with the next line feed, without it and its carriage return.
    async fn line(&mut self, limit: usize) -> Result<Vec<u8>, String> {
        let mut seen = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[seen..]) {
                let mut line = self.take(seen + end + 1).await?;
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(line);
            }
            seen = self.buffer.len();
            if seen > limit {
                return Err("the answer's head is too long to be one".into());
            }
            self.at_least(seen + 1).await?;
        }
    }

    /// Status and headers of the next answer that is not an interim one.
    async fn head(&mut self) -> Result<(u16, Headers), String> {
        loop {
            let line = self.line(HEAD_BYTES_MAX).await?;
            let text = String::from_utf8_lossy(&line).into_owned();
            let mut words = text.split(' ');
            let version = words.next().unwrap_or_default();
            let status = words.next().and_then(|word| word.parse::<u16>().ok());
            let Some(status) = status.filter(|_| version.starts_with("HTTP/1.")) else {
                return Err(format!("the answer is not HTTP/1: it begins with {text:.40?}"));
            };
            let headers = self.headers().await?;
            if status == 101 || status >= 200 {
                return Ok((status, headers));
            }
        }
    }

    async fn headers(&mut self) -> Result<Headers, String> {
        let mut headers = Headers::new();
        let mut total = 0;
        loop {
            let line = self.line(HEAD_BYTES_MAX).await?;
            if line.is_empty() {
                return Ok(headers);
            }
            total += line.len();
            if total > HEAD_BYTES_MAX {
                return Err("the answer's head is too long to be one".into());
            }
            let Some(colon) = memchr::memchr(b':', &line) else {
                return Err(format!(
                    "the answer has a header line without a colon: {:?}",
                    line.escape_ascii()
                ));
            };
            let name = String::from_utf8_lossy(&line[..colon]).into_owned();
            headers.push((name, line[colon + 1..].trim_ascii().to_vec()));
        }
    }

    async fn answer(&mut self, request: &Request) -> Result<Reply, String> {
        let (status, headers) = self.head().await?;
        let body = match framing(request, status, &headers)? {
            Framing::Length(length) => self.take(length).await?,
            Framing::Chunked => self.chunks().await?,
            Framing::ToEnd => {
                while self.more().await? {}
                std::mem::take(&mut self.buffer)
            }
        };
        Ok(Reply { status, headers, body: Bytes::from(body) })
    }

    async fn chunks(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            let line = self.line(HEAD_BYTES_MAX).await?;
            let size = String::from_utf8_lossy(&line).into_owned();
            let size = size.split(';').next().unwrap_or_default().trim().to_owned();
            let size = usize::from_str_radix(&size, 16)
                .map_err(|_| format!("the answer has a chunk of the size {size:.20?}"))?;
            if size == 0 {
                // Trailers are not looked at.
                self.headers().await?;
                return Ok(body);
            }
            if body.len().saturating_add(size) > ANSWER_BYTES_MAX {
                return Err(format!("the answer has more than {ANSWER_BYTES_MAX} bytes"));
            }
            body.extend(self.take(size).await?);
            self.line(2).await?;
        }
    }
}
