//! Where requests begin and end on a client's HTTP/1 connection, watched from outside.
//!
//! Hyper takes a request with both `Content-Length` and `Transfer-Encoding` and lets the latter win,
//! without telling. A server behind us might have read it the other way: that is request smuggling, so
//! the gateway refuses such a request. This watches the bytes go by, without keeping them; it decides
//! nothing about requests that are framed in one way.

/// The longest beginning of a line that is kept: enough for the headers that frame a body.
const LINE_BYTES_MAX: usize = 64;

/// What was seen in some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The number of the first request on this connection that must be refused, counted from 0.
    pub(super) refuse_from: Option<u64>,
    /// Whether the bytes ended within a request's head.
    pub(super) in_head: bool,
}

#[derive(Debug)]
enum State {
    /// Before and within a head. `begun`: the request line has passed.
    Head {
        begun: bool,
    },
    Body(u64),
    ChunkSize,
    /// With the line end after it.
    Chunk(u64),
    Trailers,
    /// Not HTTP any more, or not to be understood: hyper has the last word.
    Lost,
}

#[derive(Debug)]
pub(super) struct Framing {
    state: State,
    line: Vec<u8>,
    line_is_cut: bool,
    /// The byte before the end of a line that came in parts.
    last: u8,
    length: Option<u64>,
    chunked: bool,
    /// Requests whose head has been read.
    heads: u64,
    refuse_from: Option<u64>,
}

impl Framing {
    pub(super) fn new() -> Self {
        Self {
            state: State::Head { begun: false },
            line: Vec::with_capacity(LINE_BYTES_MAX),
            line_is_cut: false,
            last: 0,
            length: None,
            chunked: false,
            heads: 0,
            refuse_from: None,
        }
    }

    /// Whether more of a body is to come.
    pub(super) fn is_in_body(&self) -> bool {
        !matches!(self.state, State::Head { .. } | State::Lost)
    }

    pub(super) fn see(&mut self, mut bytes: &[u8]) -> Seen {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Lost => break,
                State::Body(left) | State::Chunk(left) => {
                    let step = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= step as u64;
                    bytes = &bytes[step..];
                    if *left == 0 {
                        self.state = match self.state {
                            State::Chunk(_) => State::ChunkSize,
                            _ => State::Head { begun: false },
                        };
                    }
                }
                State::Head { .. } | State::ChunkSize | State::Trailers => {
                    let Some(end) = memchr::memchr(b'\n', bytes) else {
                        self.keep(bytes);
                        break;
                    };
                    // Most lines come whole: they need not be copied to be looked at.
                    if self.line.is_empty() {
                        let whole = &bytes[..end];
                        let line = whole.strip_suffix(b"\r").unwrap_or(whole);
                        let cut = line.len() > LINE_BYTES_MAX;
                        self.finish_line(
                            &line[..line.len().min(LINE_BYTES_MAX)],
                            cut,
                            line.len() < whole.len(),
                        );
                    } else {
                        self.keep(&bytes[..end]);
                        let is_crlf = self.last == b'\r';
                        let mut line = std::mem::take(&mut self.line);
                        if line.last() == Some(&b'\r') {
                            line.pop();
                        }
                        self.finish_line(&line, self.line_is_cut, is_crlf);
                        line.clear();
                        self.line = line;
                        self.line_is_cut = false;
                    }
                    bytes = &bytes[end + 1..];
                }
            }
        }
        let in_head = match self.state {
            State::Head { begun } => begun || !self.line.is_empty(),
            _ => false,
        };
        Seen { refuse_from: self.refuse_from, in_head }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.line_is_cut |= bytes.len() > room;
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    fn finish_line(&mut self, line: &[u8], is_cut: bool, is_crlf: bool) {
        match self.state {
            // In a head hyper takes a bare line feed for the end of a line, between and after chunks it does not.
            State::ChunkSize | State::Trailers
                if !is_crlf && !semel::mutant::on("bare-line-feed-ends-body") =>
            {
                self.lose_track(self.heads);
            }
            // Empty lines before a request are allowed.
            State::Head { begun: false } if line.is_empty() => {}
            State::Head { begun: false } => {
                (self.length, self.chunked) = (None, false);
                self.state = State::Head { begun: true };
            }
            State::Head { begun: true } if line.is_empty() => self.finish_head(),
            State::Head { begun: true } => self.header(line, is_cut),
            State::ChunkSize => self.chunk_size(line, is_cut),
            State::Trailers if line.is_empty() => self.state = State::Head { begun: false },
            _ => {}
        }
    }

    fn header(&mut self, line: &[u8], is_cut: bool) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            // Hyper takes any list that ends with `chunked`; what the other codings did to the body would be
            // forgotten with the header.
            let odd = self.chunked || is_cut || !value.eq_ignore_ascii_case(b"chunked");
            if odd && !semel::mutant::on("codings-forgotten") {
                self.lose_track(self.heads);
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
            match length.filter(|_| !is_cut) {
                Some(length) => self.length = Some(length),
                // Whatever hyper makes of it, where the next request begins is not certain.
                None => self.lose_track(self.heads),
            }
        }
    }

    fn finish_head(&mut self) {
        let number = self.heads;
        self.heads += 1;
        if self.chunked && self.length.is_some() && !semel::mutant::on("two-framings-accepted") {
            self.lose_track(number);
            return;
        }
        self.state = match (self.chunked, self.length) {
            (true, _) => State::ChunkSize,
            (false, Some(length @ 1..)) => State::Body(length),
            (false, _) => State::Head { begun: false },
        };
    }

    fn chunk_size(&mut self, line: &[u8], is_cut: bool) {
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        // An extension may be cut, a size may not: it would need more digits than a size can have.
        let size = match is_cut && digits.len() == line.len() {
            true => None,
            false => std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok()),
        };
        match size {
            Some(0) => self.state = State::Trailers,
            Some(size) => self.state = State::Chunk(size.saturating_add(2)),
            None => self.lose_track(self.heads),
        }
    }

    /// From here on nobody can say where requests begin: refuse all from `request` on.
    fn lose_track(&mut self, request: u64) {
        self.refuse_from = Some(self.refuse_from.map_or(request, |before| before.min(request)));
        self.state = State::Lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fed whole and byte by byte, the verdict is the same.
    fn refused(text: &str) -> Option<u64> {
        let whole = Framing::new().see(text.as_bytes());
        let mut framing = Framing::new();
        let bytewise = text.bytes().map(|byte| framing.see(&[byte])).last().unwrap_or_default();
        assert_eq!(whole, bytewise, "{text:?}");
        whole.refuse_from
    }

    #[test]
    fn two_framings_in_one_request_are_found_in_any_order_and_spelling() {
        let refuse = |headers: &str| refused(&format!("POST / HTTP/1.1\r\nhost: a\r\n{headers}\r\n"));
        assert_eq!(refuse("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), Some(0));
        assert_eq!(refuse("TRANSFER-ENCODING:chunked\r\ncontent-length:5\r\n"), Some(0));
        assert_eq!(refuse("transfer-encoding: chunked\ncontent-length: 0\n"), Some(0));
        assert_eq!(refuse("content-length: 5\r\n"), None);
        assert_eq!(refuse("transfer-encoding: chunked\r\n"), None);
        assert_eq!(refuse("Transfer-Encoding: Chunked\r\n"), None);
    }

    #[test]
    fn a_coding_beside_chunked_is_refused() {
        let refuse = |value: &str| refused(&format!("POST / HTTP/1.1\r\ntransfer-encoding: {value}\r\n\r\n"));
        for value in
            ["gzip", "gzip, chunked", "chunked, chunked", "chunked\r\ntransfer-encoding: chunked", ""]
        {
            assert_eq!(refuse(value), Some(0), "{value}");
        }
    }

    #[test]
    fn the_request_that_is_refused_is_the_right_one() {
        let first = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n\r\n\r\n";
        let second = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: 1\r\n\r\n";
        let get = "GET / HTTP/1.1\r\n\r\n";
        let bad = "POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(refused(&format!("{first}{second}{get}{get}")), None);
        assert_eq!(refused(&format!("{first}{second}{get}{bad}")), Some(3));
        // What looks like headers in a body is a body.
        let tricky = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{bad}", bad.len());
        assert_eq!(refused(&tricky), None);
    }

    #[test]
    fn after_a_chunk_that_does_not_end_its_line_properly_nothing_is_certain() {
        let head = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        let get = "GET / HTTP/1.1\r\n\r\n";
        let long = "x".repeat(2 * LINE_BYTES_MAX);
        for line in ["x: y\n\n", "\n", "x: y\r\nz: y\n\r\n", &format!("{long}: y\n\r\n")] {
            assert_eq!(refused(&format!("{head}0\r\n{line}{get}")), Some(1), "{line:?}");
        }
        assert_eq!(refused(&format!("{head}1;{long}\nx\r\n0\r\n\r\n{get}")), Some(1));
        assert_eq!(refused(&format!("{head}1;{long}\r\nx\r\n0\r\n{long}: y\r\n\r\n{get}")), None);
    }

    #[test]
    fn a_length_that_is_no_number_is_refused() {
        let refuse = |value: &str| refused(&format!("POST / HTTP/1.1\r\ncontent-length: {value}\r\n\r\n"));
        assert_eq!(refuse("abc"), Some(0));
        assert_eq!(refuse("5, 5"), Some(0));
        assert_eq!(refuse(&"0".repeat(80)), Some(0));
        assert_eq!(refuse("18446744073709551616"), Some(0));
    }

    #[test]
    fn a_head_is_open_until_its_empty_line() {
        let mut framing = Framing::new();
        assert!(!framing.see(b"\r\n").in_head, "an empty line before it is no beginning");
        assert!(framing.see(b"G").in_head);
        assert!(framing.see(b"ET / HTTP/1.1\r\nhost: a\r\n").in_head);
        assert!(!framing.see(b"\r\n").in_head);
    }
}
