mod exclusions;
mod forms;
mod json;
mod keys;
mod multipart;
mod naming;
mod redaction;
mod request_parts;
mod shapes;
mod stored_paths;
mod templates;

use super::*;

const JSON: &[u8] = b"application/json";
const FORM: &[u8] = b"application/x-www-form-urlencoded";

fn fingerprinter() -> Fingerprinter {
    Fingerprinter::new(vec![HashKey::new(1, [7; 32])]).unwrap()
}

fn request<'a>(content_type: &'a [u8], body: &'a [u8]) -> Request<'a> {
    Request::new("POST", "/payments").content_type(Some(content_type)).body(body)
}

fn compare(new: &Request<'_>, stored: &Request<'_>) -> Comparison {
    let fingerprinter = fingerprinter();
    fingerprinter.print(new).compare(fingerprinter.print(stored).current())
}

fn changes(new: &Request<'_>, stored: &Request<'_>) -> Changes {
    match compare(new, stored) {
        Comparison::Different(changes) => changes,
        other => panic!("expected a difference, got {other:?}"),
    }
}

fn assert_same_as(content_type: &[u8], a: &[u8], b: &[u8]) {
    let (a, b) = (request(content_type, a), request(content_type, b));
    assert_eq!(compare(&a, &b), Comparison::Same, "{:?} and {:?}", show(&a), show(&b));
}

fn assert_different_as(content_type: &[u8], a: &[u8], b: &[u8]) {
    let (a, b) = (request(content_type, a), request(content_type, b));
    assert_ne!(compare(&a, &b), Comparison::Same, "{:?} and {:?}", show(&a), show(&b));
}

fn show(request: &Request<'_>) -> String {
    format!("{request:?}")
}

fn same_json(a: &str, b: &str) {
    assert_same_as(JSON, a.as_bytes(), b.as_bytes());
}

fn different_json(a: &str, b: &str) {
    assert_different_as(JSON, a.as_bytes(), b.as_bytes());
}
