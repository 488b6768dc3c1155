use super::canonical::Canonical;
use super::form::root_name;
use super::media::{Media, Value, is_token};
use super::pointer::{Pointers, Step};
use super::request::content_digest;

/// Bodies with more parts are compared as bytes.
const PARTS_MAX: usize = 1024;

/// So are bodies with a part whose head is longer.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The longest boundary that RFC 2046 allows.
const BOUNDARY_BYTES_MAX: usize = 70;

/// The parts of a `multipart/form-data` body.
///
/// Reading is strict: lines end in CRLF, every part is named, the last boundary is there. What a lenient
/// reader might take one way and another reader another way is not read at all.
pub(super) struct Parts<'a> {
    preamble: &'a [u8],
    // Sorted by root name; parts of one root in the order they were sent.
    parts: Vec<Part<'a>>,
    epilogue: &'a [u8],
}

struct Part<'a> {
    name: &'a [u8],
    disposition: Value<'a>,
    // In lower case and by name, without Content-Disposition.
    headers: Vec<(Vec<u8>, &'a [u8])>,
    content: &'a [u8],
}

impl<'a> Parts<'a> {
    pub(super) fn parse(body: &'a [u8], boundary: &[u8]) -> Option<Self> {
        if boundary.is_empty() || boundary.len() > BOUNDARY_BYTES_MAX {
            return None;
        }
        // The first boundary may stand at the very start, where there is no line end before it.
        let delimiter = [b"\r\n--", boundary].concat();
        let (preamble, mut rest) = match body.strip_prefix(&delimiter[2..]) {
            Some(rest) => (&body[..0], rest),
            None => split_once(body, &delimiter)?,
        };
        let mut parts = Vec::new();
        let epilogue = loop {
            match Delimiter::read(rest)? {
                Delimiter::Last(epilogue) => break epilogue,
                Delimiter::Next(_) if parts.len() == PARTS_MAX => return None,
                Delimiter::Next(after) => {
                    let (part, after) = split_once(after, &delimiter)?;
                    parts.push(Part::parse(part)?);
                    rest = after;
                }
            }
        };
        parts.sort_by(|a, b| root_name(a.name).cmp(root_name(b.name)));
        Some(Self { preamble, parts, epilogue })
    }

    pub(super) fn write(&self, exclusions: &Pointers, out: &mut Canonical) {
        out.text(b'a', self.preamble);
        out.text(b'z', self.epilogue);
        for part in &self.parts {
            if matches!(exclusions.member(exclusions.root(), part.name), Step::Hit) {
                continue;
            }
            let mark = out.enter_member(part.name);
            let from = out.here();
            part.write(out);
            out.leaf(from);
            out.leave(mark);
        }
    }
}

/// What follows the boundary on its line.
enum Delimiter<'a> {
    Next(&'a [u8]),
    Last(&'a [u8]),
}

impl<'a> Delimiter<'a> {
    fn read(rest: &'a [u8]) -> Option<Self> {
        if let Some(after) = rest.strip_prefix(b"--") {
            let after = trim_blanks(after);
            // Most senders end the last line, some do not.
            return if after.is_empty() { Some(after) } else { after.strip_prefix(b"\r\n") }.map(Self::Last);
        }
        trim_blanks(rest).strip_prefix(b"\r\n").map(Self::Next)
    }
}

impl<'a> Part<'a> {
    fn parse(part: &'a [u8]) -> Option<Self> {
        let (mut head, content) = split_once(part, b"\r\n\r\n")?;
        if head.len() > HEAD_BYTES_MAX {
            return None;
        }
        let mut disposition = None;
        let mut headers = Vec::new();
        while !head.is_empty() {
            let (line, rest) = split_once(head, b"\r\n").unwrap_or((head, &[]));
            let (name, value) = header(line)?;
            if name == b"content-disposition" {
                if disposition.is_some() {
                    return None;
                }
                disposition = Some(Value::parse(value)?);
            } else {
                headers.push((name, value));
            }
            head = rest;
        }
        let disposition = disposition.filter(|value| value.essence.eq_ignore_ascii_case(b"form-data"))?;
        headers.sort_by(|(a, _), (b, _)| a.cmp(b));
        Some(Self { name: disposition.only("name")?, disposition, headers, content })
    }

    fn write(&self, out: &mut Canonical) {
        self.disposition.write(|_| true, out);
        for (name, value) in &self.headers {
            out.text(b'h', name);
            if name == b"content-type" {
                Media::parse(Some(value)).write(true, out);
            } else {
                out.text(b'v', value);
            }
        }
        out.text(b'c', &content_digest(self.content));
    }
}

/// One line of a part's head, its name in lower case. A folded line or a stray line end is refused.
fn header(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let readable = !name.is_empty() && name.iter().all(|&byte| is_token(byte));
    let one_line = !line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    (readable && one_line).then(|| (name.to_ascii_lowercase(), value))
}

fn trim_blanks(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(text.len());
    &text[end..]
}

fn split_once<'a>(text: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = find(text, at)?;
    Some((&text[..found], &text[found + at.len()..]))
}

/// Finds a needle that starts with a carriage return, which is rare enough in most content to look for first.
fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        from += text[from..].iter().position(|byte| *byte == needle[0])?;
        if text[from..].starts_with(needle) {
            return Some(from);
        }
        from += 1;
    }
}
