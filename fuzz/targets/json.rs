//! Any bytes as a JSON body. Another spelling of it keeps the fingerprint, a changed value changes it. G-6
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel::fingerprint::{Comparison, HashKey, Pointers, REDACTED, redact};
use semel::{Fingerprint, Fingerprinter};

/// So many single changes are tried per document.
const CHANGES_MAX: usize = 24;

fuzz_target!(|body: &[u8]| {
    let prints = Fingerprinter::new(vec![HashKey::new(1, [7; 32])]).expect("one key");
    let print = prints.of_json(body);
    assert_eq!(print.compare(print.current()), Comparison::Same);
    redacting(&prints, body);
    // What is not JSON counts as bytes.
    if print == prints.of_bytes(body) {
        return;
    }
    assert_eq!(prints.of_json(&respelt(body)), print, "another spelling is another request");
    let members = [&b"{\"a\":"[..], body, b",\"b\":0}"].concat();
    let swapped = [&b"{\"b\":0,\"a\":"[..], body, b"}"].concat();
    if is_json(&prints, &members) {
        assert_eq!(prints.of_json(&members), prints.of_json(&swapped), "the order of members counts");
    }
    for changed in changes(body) {
        let told = prints.of_json(&changed).compare(print.current());
        assert!(matches!(told, Comparison::Different(_)), "taken for the same: {changed:?}");
    }
});

fn is_json(prints: &Fingerprinter, body: &[u8]) -> bool {
    let print: Fingerprint = prints.of_json(body);
    print != prints.of_bytes(body)
}

fn redacting(prints: &Fingerprinter, body: &[u8]) {
    let pointers = Pointers::parse(&["/a", "/b/0", "/0"]).expect("plain pointers");
    if let Some(redacted) = redact(body, &pointers, REDACTED) {
        assert!(is_json(prints, &redacted), "redaction broke the document");
        assert_eq!(redact(&redacted, &pointers, REDACTED).as_deref(), Some(&redacted[..]));
    }
}

/// What a byte of a valid document is part of.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// A letter or digit of a string that stands for itself.
    Letter,
    Digit,
    Mark,
    Other,
}

fn parts(json: &[u8]) -> Vec<Part> {
    let mut parts = Vec::with_capacity(json.len());
    let mut in_string = false;
    while let Some(&byte) = json.get(parts.len()) {
        let (part, length) = match byte {
            b'"' => {
                in_string = !in_string;
                (Part::Other, 1)
            }
            b'\\' if json.get(parts.len() + 1) == Some(&b'u') => (Part::Other, 6),
            b'\\' => (Part::Other, 2),
            _ if in_string && byte.is_ascii_alphanumeric() => (Part::Letter, 1),
            b'0'..=b'9' if !in_string => (Part::Digit, 1),
            b'{' | b'}' | b'[' | b']' | b',' | b':' if !in_string => (Part::Mark, 1),
            _ => (Part::Other, 1),
        };
        parts.extend(std::iter::repeat_n(part, length));
    }
    parts
}

fn respelt(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(6 * json.len());
    for (&byte, part) in json.iter().zip(parts(json)) {
        match part {
            Part::Letter => out.extend_from_slice(format!("\\u{byte:04X}").as_bytes()),
            Part::Mark => out.extend([b'\t', byte, b'\n']),
            Part::Digit | Part::Other => out.push(byte),
        }
    }
    out
}

/// The document with one letter or digit changed, at places all over it.
fn changes(json: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let parts = parts(json);
    let places: Vec<usize> =
        (0..parts.len()).filter(|at| matches!(parts[*at], Part::Letter | Part::Digit)).collect();
    let apart = places.len() / CHANGES_MAX + 1;
    places.into_iter().step_by(apart).map(move |at| {
        let mut changed = json.to_vec();
        changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
        changed
    })
}
