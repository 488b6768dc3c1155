//! Which request this is, across services: W3C trace context and a correlation id.
//!
//! What a client sends is taken if it is well-formed and made up if it is not; it never gets into a
//! log or to the upstream unchecked. Spans are told apart in logs only: nothing is sent to a collector.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use semel::Nonce;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Sent on to the upstream, and back to the client.
pub(crate) const CORRELATION_ID: HeaderName = HeaderName::from_static("x-correlation-id");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest correlation id taken from a client, in bytes.
const CORRELATION_BYTES_MAX: usize = 128;
/// Longest vendor state passed on, in bytes; twice what the standard asks for at least.
const STATE_BYTES_MAX: usize = 1024;
/// Most entries of it.
const STATE_MEMBERS_MAX: usize = 32;

/// Flags of version 00 that we understand: sampled, and random trace id.
const FLAGS_KNOWN: u8 = 0b11;

/// A `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    trace: u128,
    span: u64,
    flags: u8,
}

impl Parent {
    /// Reads a header's value. Later versions are read as far as this one goes, as the standard says.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(55)?;
        let dashes = [2, 35, 52].iter().all(|at| head[*at] == b'-');
        let version = u8::try_from(hex(&head[..2])?).ok()?;
        let (trace, span) = (hex(&head[3..35])?, u64::try_from(hex(&head[36..52])?).ok()?);
        let flags = u8::try_from(hex(&head[53..])?).ok()? & FLAGS_KNOWN;
        let ends = match version {
            0xff => false,
            0 => rest.is_empty(),
            _ => rest.first().is_none_or(|next| *next == b'-'),
        };
        (dashes && ends && trace != 0 && span != 0).then_some(Self { trace, span, flags })
    }

    /// A trace that begins here. It is not marked as sampled: nobody decided that it is.
    pub(crate) fn begun() -> Self {
        Self { trace: u128::from_be_bytes(random()), span: span(), flags: 0 }
    }

    /// The same trace, one span further.
    pub(crate) fn child(self) -> Self {
        Self { span: span(), ..self }
    }

    /// The id all services of a request share.
    pub(crate) fn trace_id(self) -> String {
        String::from_utf8_lossy(&digits::<32>(self.trace)).into_owned()
    }

    /// As a header has it.
    fn text(self) -> HeaderValue {
        let mut text = *b"00-________________________________-________________-__";
        text[3..35].copy_from_slice(&digits::<32>(self.trace));
        text[36..52].copy_from_slice(&digits::<16>(self.span.into()));
        text[53..].copy_from_slice(&digits::<2>(self.flags.into()));
        header(&text)
    }
}

/// The last `N` hexadecimal digits of a number, without the detour over `format!`: every request has two.
fn digits<const N: usize>(mut value: u128) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
    digits
}

fn header(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("hexadecimal digits and dashes can stand in a header")
}

/// Lower-case digits only, as the standard demands.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value, digit| match digit {
        b'0'..=b'9' => Some(value << 4 | u128::from(digit - b'0')),
        b'a'..=b'f' => Some(value << 4 | u128::from(digit - b'a' + 10)),
        _ => None,
    })
}

/// Never all zeros, which would mean *none*.
fn random() -> [u8; 16] {
    let mut bytes = *Nonce::random().as_bytes();
    bytes[7] |= 1;
    bytes
}

fn span() -> u64 {
    let bytes = random();
    u64::from_be_bytes(std::array::from_fn(|index| bytes[index]))
}

/// What a request is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) parent: Parent,
    pub(crate) correlation: HeaderValue,
}

impl Trace {
    /// Reads the headers of a request, makes up what is missing or malformed, and writes them as the
    /// upstream shall get them: this hop's span as the parent, the vendors' state only beside a valid one.
    pub(crate) fn enter(headers: &mut HeaderMap) -> Self {
        let received = only(headers, &TRACEPARENT).and_then(|value| Parent::parse(value.as_bytes()));
        let state = received.and_then(|_| state(headers));
        let parent = received.map_or_else(Parent::begun, Parent::child);
        let correlation = [&CORRELATION_ID, &REQUEST_ID].into_iter().find_map(|name| accepted(headers, name));
        // A trace that begins here has an id nobody else has: it does for both.
        let made_up = || match received {
            Some(_) => u128::from_be_bytes(random()),
            None => parent.trace,
        };
        let correlation = correlation.unwrap_or_else(|| header(&digits::<32>(made_up())));
        if accepted(headers, &REQUEST_ID).is_none() {
            headers.remove(REQUEST_ID);
        }
        headers.insert(TRACEPARENT, parent.text());
        match state {
            Some(state) => drop(headers.insert(TRACESTATE, state)),
            None => drop(headers.remove(TRACESTATE)),
        }
        headers.insert(CORRELATION_ID, correlation.clone());
        Self { parent, correlation }
    }

    /// The span under which everything about the request is logged.
    pub(crate) fn span(&self) -> tracing::Span {
        let correlation = self.correlation.to_str().unwrap_or_default();
        tracing::info_span!(
            "request",
            trace_id = %self.parent.trace_id(),
            correlation_id = correlation,
        )
    }
}

/// The header's value, if there is one line of it and no more.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    lines.next().filter(|_| lines.next().is_none())
}

/// A client's id: short, and nothing that could disturb a log.
fn accepted(headers: &HeaderMap, name: &HeaderName) -> Option<HeaderValue> {
    let is_fit = |value: &&HeaderValue| {
        (1..=CORRELATION_BYTES_MAX).contains(&value.len())
            && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    only(headers, name).filter(is_fit).cloned()
}

/// All lines of `tracestate` as one, or nothing if it is not what it should be.
fn state(headers: &HeaderMap) -> Option<HeaderValue> {
    let lines: Vec<&[u8]> = headers.get_all(TRACESTATE).iter().map(HeaderValue::as_bytes).collect();
    let joined = lines.join(b",".as_slice());
    let is_fit = joined.len() <= STATE_BYTES_MAX
        && joined.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && joined.split(|byte| *byte == b',').count() <= STATE_MEMBERS_MAX
        && joined.contains(&b'=');
    HeaderValue::from_bytes(&joined).ok().filter(|_| is_fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn a_trace_goes_on_under_a_new_span() {
        let mut request = headers(&[("traceparent", GIVEN), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let trace = Trace::enter(&mut request);
        let sent = Parent::parse(request["traceparent"].as_bytes()).unwrap();
        assert_eq!(sent, trace.parent);
        assert_eq!(sent.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(sent.flags, 1, "the caller's sampling is kept");
        assert_ne!(sent.span, 0x00f0_67aa_0ba9_02b7);
        let states: Vec<_> = request.get_all("tracestate").iter().collect();
        assert_eq!(states, ["a=1,b=2"]);
    }

    #[test]
    fn a_malformed_parent_begins_a_new_trace_without_the_old_state() {
        let zeros = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let no_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let upper = GIVEN.to_uppercase();
        let version_ff = GIVEN.replacen("00", "ff", 1);
        let longer = format!("{GIVEN}-more");
        for bad in
            ["", "00", zeros, no_span, &upper, &version_ff, &longer, &GIVEN[..54], &GIVEN.replace('-', "_")]
        {
            assert_eq!(Parent::parse(bad.as_bytes()), None, "{bad}");
            let mut request = headers(&[("traceparent", bad), ("tracestate", "a=1")]);
            let begun = Trace::enter(&mut request).parent;
            assert!(begun.trace != 0 && begun.span != 0 && begun.flags == 0);
            assert_ne!(begun.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
            assert!(!request.contains_key("tracestate"), "{bad}");
        }
        let mut twice = headers(&[("traceparent", GIVEN), ("traceparent", GIVEN)]);
        assert_ne!(Trace::enter(&mut twice).parent.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(twice.get_all("traceparent").iter().count(), 1);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_ours_goes() {
        let later = GIVEN.replacen("00", "cc", 1);
        let read = Parent::parse(format!("{later}-what-the-future-brings").as_bytes()).unwrap();
        assert_eq!(read.text(), GIVEN);
        assert_eq!(Parent::parse(format!("{later}.x").as_bytes()), None);
    }

    #[test]
    fn a_correlation_id_is_accepted_or_made() {
        let long = "x".repeat(CORRELATION_BYTES_MAX + 1);
        for (lines, expected) in [
            (vec![("x-correlation-id", "abc-1")], Some("abc-1")),
            (vec![("x-request-id", "req-7")], Some("req-7")),
            (vec![("x-correlation-id", "abc-1"), ("x-request-id", "req-7")], Some("abc-1")),
            (vec![("x-correlation-id", "two words"), ("x-request-id", "req-7")], Some("req-7")),
            (vec![("x-correlation-id", "a"), ("x-correlation-id", "b")], None),
            (vec![("x-correlation-id", long.as_str())], None),
            (vec![("x-request-id", "caf\u{e9}")], None),
            (vec![], None),
        ] {
            let mut request = headers(&lines);
            let trace = Trace::enter(&mut request);
            let sent: Vec<_> = request.get_all("x-correlation-id").iter().collect();
            assert_eq!(sent, [&trace.correlation], "{lines:?}");
            match expected {
                Some(expected) => assert_eq!(trace.correlation, expected, "{lines:?}"),
                None => assert_eq!(trace.correlation.len(), 32, "{lines:?}"),
            }
        }
    }

    #[test]
    fn an_unfit_state_is_left_out() {
        for unfit in ["no members", &"a=1,".repeat(40), &format!("a={}", "x".repeat(2000))] {
            let mut request = headers(&[("traceparent", GIVEN), ("tracestate", unfit)]);
            Trace::enter(&mut request);
            assert!(!request.contains_key("tracestate"), "{unfit}");
        }
    }
}
