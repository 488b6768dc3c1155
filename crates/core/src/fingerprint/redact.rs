use super::json::{Document, Id, Kind};
use super::pointer::{Cursor, Pointers, Step};

/// What usually stands in place of a redacted value.
pub const REDACTED: &str = "[redacted]";

/// Replaces the values at these pointers by a string; all other bytes stay as they are.
///
/// `None` if the text could not be read as JSON, because it is none or beyond the limits (see the module).
/// Then nothing was found and nothing replaced, so what to do with such a body is for the caller to decide:
/// it must not be taken for a redacted one.
pub fn redact(json: &[u8], pointers: &Pointers, replacement: &str) -> Option<Vec<u8>> {
    let document = Document::parse(json)?;
    let mut spans = Vec::new();
    find(&document, 0, pointers, pointers.root(), &mut spans);
    let replacement = quote(replacement);
    let mut redacted = Vec::with_capacity(json.len() + spans.len() * replacement.len());
    let mut kept = 0;
    for (from, to) in spans {
        redacted.extend_from_slice(&json[kept..from]);
        redacted.extend_from_slice(replacement.as_bytes());
        kept = to;
    }
    redacted.extend_from_slice(&json[kept..]);
    Some(redacted)
}

/// Collects the spans of the values meant, as they are written. Nothing is looked for inside a value that
/// goes anyway. The recursion is bounded by the depth of a document.
fn find(
    document: &Document<'_>,
    id: Id,
    pointers: &Pointers,
    cursor: Cursor,
    spans: &mut Vec<(usize, usize)>,
) {
    if cursor.is_none() {
        return;
    }
    let kind = document.kind(id);
    for (index, child) in document.children(id).enumerate() {
        let step = match kind {
            Kind::Object => pointers.member(cursor, document.name(child)),
            _ => pointers.index(cursor, index),
        };
        match step {
            Step::Hit => spans.push(document.span(child)),
            Step::On(cursor) => find(document, child, pointers, cursor, spans),
        }
    }
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            '\0'..='\x1f' => quoted.push_str(&format!("\\u{:04x}", u32::from(char))),
            _ => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}
