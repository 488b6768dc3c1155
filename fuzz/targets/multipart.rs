//! Any bytes as a multipart body, and parts made of any bytes. Boundary and order do not count, contents do. G-6
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel::fingerprint::{Comparison, HashKey, Request};
use semel::{Fingerprint, Fingerprinter};

/// Parts that one body is made of.
const PARTS_MAX: usize = 8;

const BOUNDARIES: [&str; 2] = ["first-boundary", "2nd"];

fuzz_target!(|data: &[u8]| {
    for media in ["multipart/form-data; boundary=x", "multipart/form-data; boundary=\"x\"; charset=utf-8"] {
        let print = print(media.as_bytes(), data);
        assert_eq!(print.compare(print.current()), Comparison::Same);
    }
    // The head of a content type comes over the network, too.
    let (media, body) = data.split_at(data.len().min(64));
    print(media, body);
    made_of_parts(data);
});

fn print(media: &[u8], body: &[u8]) -> Fingerprint {
    let prints = Fingerprinter::new(vec![HashKey::new(1, [7; 32])]).expect("one key");
    prints.print(&Request::new("POST", "/").content_type(Some(media)).body(body))
}

fn made_of_parts(data: &[u8]) {
    // A sender chooses a boundary that is not in what it sends.
    if BOUNDARIES.iter().any(|one| data.windows(one.len()).any(|part| part == one.as_bytes())) {
        return;
    }
    let contents: Vec<&[u8]> = data.split(|byte| *byte == b'\n').take(PARTS_MAX).collect();
    // Named apart, so that their order does not count.
    let parts: Vec<(usize, Vec<u8>)> =
        contents.iter().enumerate().map(|(name, content)| (name, content.to_vec())).collect();
    let reversed: Vec<(usize, Vec<u8>)> = parts.iter().rev().cloned().collect();
    let first = written(&parts, BOUNDARIES[0], "Content-Disposition");
    assert_eq!(
        first,
        written(&reversed, BOUNDARIES[1], "content-disposition"),
        "another spelling is another request"
    );
    for at in 0..parts.len() {
        let mut changed = parts.clone();
        changed[at].1.push(b'x');
        assert_ne!(first, written(&changed, BOUNDARIES[0], "Content-Disposition"), "a longer part");
        changed.remove(at);
        assert_ne!(first, written(&changed, BOUNDARIES[0], "Content-Disposition"), "a part less");
    }
}

fn written(parts: &[(usize, Vec<u8>)], boundary: &str, disposition: &str) -> Fingerprint {
    let mut body = Vec::new();
    for (name, content) in parts {
        let head = format!("--{boundary}\r\n{disposition}: form-data; name=\"part-{name}\"\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    print(format!("multipart/form-data; boundary={boundary}").as_bytes(), &body)
}
