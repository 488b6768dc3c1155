//! Taking the content coding off a body, so that its fingerprint does not depend on a compressor.
//!
//! Only the fingerprint sees the result; handlers and upstreams get the body as it was sent. What
//! cannot be decoded, or grows beyond the bound, is compared as the bytes it is.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// More codings on top of each other are not taken off.
const CODINGS_MAX: usize = 2;

/// What compressors use unless told otherwise: four megabytes.
const BROTLI_WINDOW_BITS_MAX: u8 = 22;

/// The body without its content codings, if they are known and it stays within `bytes_max`.
pub(crate) fn decoded<'a>(headers: &HeaderMap, body: &'a [u8], bytes_max: usize) -> Cow<'a, [u8]> {
    if !headers.contains_key(CONTENT_ENCODING) {
        return Cow::Borrowed(body);
    }
    try_decode(headers, body, bytes_max).unwrap_or(Cow::Borrowed(body))
}

fn try_decode<'a>(headers: &HeaderMap, body: &'a [u8], bytes_max: usize) -> Option<Cow<'a, [u8]>> {
    let mut codings = Vec::with_capacity(CODINGS_MAX);
    for line in headers.get_all(CONTENT_ENCODING) {
        let names = line.to_str().ok()?.split(',').map(str::trim).filter(|name| !name.is_empty());
        codings.extend(names.filter(|name| !name.eq_ignore_ascii_case("identity")));
    }
    if codings.len() > CODINGS_MAX {
        return None;
    }
    let mut plain = Cow::Borrowed(body);
    // The last coding named is the outermost.
    for coding in codings.into_iter().rev() {
        plain = Cow::Owned(take_off(coding, &plain, bytes_max)?);
    }
    Some(plain)
}

fn take_off(coding: &str, body: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    match coding.to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => within(MultiGzDecoder::new(body), bytes_max),
        // Some senders leave the zlib wrapper out.
        "deflate" => {
            within(ZlibDecoder::new(body), bytes_max).or_else(|| within(DeflateDecoder::new(body), bytes_max))
        }
        "br" if brotli_window_bits(body)? <= BROTLI_WINDOW_BITS_MAX => {
            within(brotli_decompressor::Decompressor::new(body, 4096), bytes_max)
        }
        _ => None,
    }
}

/// The window a brotli stream asks for. The decoder fills all of it before the first byte comes out,
/// whatever bound is set on those. `None` for the large windows that no content coding may use.
fn brotli_window_bits(body: &[u8]) -> Option<u8> {
    let first = *body.first()?;
    match (first & 1, (first >> 1) & 7, (first >> 4) & 7) {
        (0, ..) => Some(16),
        (_, 0, 0) => Some(17),
        (_, 0, 1) => None,
        (_, 0, small) => Some(8 + small),
        (_, large, _) => Some(17 + large),
    }
}

fn within(decoder: impl Read, bytes_max: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let read = decoder.take(bytes_max as u64 + 1).read_to_end(&mut plain).ok()?;
    (read <= bytes_max).then_some(plain)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn named(coding: &str) -> HeaderMap {
        [(CONTENT_ENCODING, coding.parse().unwrap())].into_iter().collect()
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn known_codings_are_taken_off_one_by_one() {
        // G-6
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(b"{\"a\":1}").unwrap();
        let zlib = zlib.finish().unwrap();
        assert_eq!(&*decoded(&named("deflate"), &zlib, 100), b"{\"a\":1}");
        assert_eq!(&*decoded(&named("gzip"), &gzip(b"{\"a\":1}"), 100), b"{\"a\":1}");
        assert_eq!(&*decoded(&named("deflate, GZIP"), &gzip(&zlib), 100), b"{\"a\":1}");
        assert_eq!(&*decoded(&named("identity"), b"plain", 100), b"plain");
        // What brotli makes of "hello" at its lowest quality.
        assert_eq!(&*decoded(&named("br"), b"\x0b\x02\x80hello\x03", 100), b"hello");
    }

    #[test]
    fn bombs_and_unknown_or_broken_codings_stay_bytes() {
        // G-6
        let bomb = gzip(&vec![0; 1 << 20]);
        assert_eq!(&*decoded(&named("gzip"), &bomb, 1 << 19), &bomb[..]);
        // The second begins a window of 2^30, the third one of 2^24.
        let brotli = [&b""[..], b"\x11\x1e\x80hello\x03", b"\x0f\x02\x80hello\x03"];
        for body in brotli {
            assert_eq!(&*decoded(&named("br"), body, 100), body);
        }
        for (coding, body) in [("zstd", &b"x"[..]), ("gzip", b"not gzip"), ("gzip, gzip, gzip", b"x")] {
            assert_eq!(&*decoded(&named(coding), body, 100), body, "{coding}");
        }
    }
}
