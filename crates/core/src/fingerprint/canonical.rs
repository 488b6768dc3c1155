use std::cell::Cell;
use std::sync::Arc;

use super::lent::Lent;
use super::paths::PATHS_MAX;

/// Longer paths are cut for naming and for their digests. Names shown are shorter still.
const PATH_BYTES_MAX: usize = 512;

// What stands before each step of a path. No UTF-8 text contains these bytes, so names need no escapes before
// they are shown, and `[1]` and `{"0":1}` have two paths though both are shown as `/0`.
const MEMBER: u8 = 0xfe;
const INDEX: u8 = 0xff;

/// The canonical request in the making: one run of self-delimiting bytes, and where its leaves lie in it.
///
/// Whoever writes takes care that the bytes are injective: every field starts with a tag and texts carry
/// their length.
pub(super) struct Canonical {
    bytes: Lent<u8>,
    path: Lent<u8>,
    // The paths of the leaves kept, one after another, and where each of them ends.
    names: Lent<u8>,
    leaves: Lent<Leaf>,
    truncated: bool,
    // The paths, if an earlier request had the same: then the list above may hold only the first of them.
    known: Option<Arc<Names>>,
}

thread_local! {
    static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static PATH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static NAMES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static LEAVES: Cell<Vec<Leaf>> = const { Cell::new(Vec::new()) };
}

/// Where the name of a leaf ends among the names, and where its value lies.
#[derive(Clone, Copy)]
struct Leaf {
    name_end: u32,
    from: usize,
    to: usize,
}

/// A place in the path to return to.
pub(super) struct Mark(usize);

impl Canonical {
    pub(super) fn new(domain: &[u8], bytes_hint: usize) -> Self {
        let mut bytes = Lent::from(&BYTES);
        bytes.reserve(domain.len() + bytes_hint);
        bytes.extend_from_slice(domain);
        let (path, names, leaves) = (Lent::from(&PATH), Lent::from(&NAMES), Lent::from(&LEAVES));
        Self { bytes, path, names, leaves, truncated: false, known: None }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// What was written since `from`.
    pub(super) fn since(&self, from: usize) -> &[u8] {
        &self.bytes[from..]
    }

    /// The canonical value of every leaf that is kept.
    pub(super) fn values(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.leaves.iter().map(|leaf| &self.bytes[leaf.from..leaf.to])
    }

    /// How many leaves are kept so far.
    pub(super) fn leaves(&self) -> usize {
        self.leaves.len()
    }

    pub(super) fn names(&self) -> Arc<Names> {
        self.known.clone().unwrap_or_else(|| {
            let ends = self.leaves.iter().map(|leaf| leaf.name_end).collect();
            Arc::new(Names { text: self.names[..].into(), ends })
        })
    }

    /// Whether the leaves have just these paths.
    pub(super) fn has_names(&self, names: &Arc<Names>) -> bool {
        match &self.known {
            Some(known) => Arc::ptr_eq(known, names),
            None => {
                self.leaves.len() == names.ends.len()
                    && self.begins(names)
                    && self.names.len() == names.text.len()
            }
        }
    }

    /// Whether the leaves so far have the first of these paths.
    pub(super) fn begins(&self, names: &Names) -> bool {
        let ends = self.leaves.iter().map(|leaf| &leaf.name_end);
        names.text.starts_with(&self.names)
            && names.ends.get(..self.leaves.len()).is_some_and(|known| ends.eq(known))
    }

    /// Takes paths that an earlier request had, and this one has too.
    pub(super) fn know(&mut self, names: Arc<Names>) {
        self.known = Some(names);
    }

    /// Where the next byte will be written.
    pub(super) fn here(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn tag(&mut self, tag: u8) {
        self.bytes.push(tag);
    }

    /// What was canonical in an earlier request, as it was.
    pub(super) fn copy(&mut self, canonical: &[u8]) {
        self.bytes.extend_from_slice(canonical);
    }

    /// A tag, a length and a text.
    pub(super) fn text(&mut self, tag: u8, text: &[u8]) {
        match u8::try_from(text.len()) {
            Ok(len @ ..0x80) => self.bytes.extend_from_slice(&[tag, len]),
            _ => {
                self.tag(tag);
                self.number(text.len());
            }
        }
        self.bytes.extend_from_slice(text);
    }

    /// As [`text`](Self::text), with ASCII letters in lower case.
    pub(super) fn lower(&mut self, tag: u8, text: &[u8]) {
        let from = self.cased(tag, text);
        self.bytes[from..].make_ascii_lowercase();
    }

    /// As [`text`](Self::text), with ASCII letters in upper case.
    pub(super) fn upper(&mut self, tag: u8, text: &[u8]) {
        let from = self.cased(tag, text);
        self.bytes[from..].make_ascii_uppercase();
    }

    fn cased(&mut self, tag: u8, text: &[u8]) -> usize {
        self.text(tag, text);
        self.here() - text.len()
    }

    /// A number in base 128, low digits first; the high bit says that more follow.
    pub(super) fn number(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.bytes.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Goes down to an object member, a field or a part.
    pub(super) fn enter_member(&mut self, name: &[u8]) -> Mark {
        let mark = Mark(self.path.len());
        if self.wants_path() {
            self.path.push(MEMBER);
            self.path.extend_from_slice(&name[..name.len().min(PATH_BYTES_MAX)]);
        }
        mark
    }

    /// Goes down to an array element.
    pub(super) fn enter_index(&mut self, index: usize) -> Mark {
        let mark = Mark(self.path.len());
        if self.wants_path() {
            self.path.push(INDEX);
            let mut digits = [0; 20];
            self.path.extend_from_slice(decimal(index, &mut digits));
        }
        mark
    }

    /// Goes to a part of the request beside its body.
    pub(super) fn enter_named(&mut self, name: &str, of: &[u8]) -> Mark {
        let mark = Mark(self.path.len());
        if self.wants_path() {
            self.path.extend_from_slice(name.as_bytes());
            self.path.extend_from_slice(&of[..of.len().min(PATH_BYTES_MAX)]);
            self.path[mark.0..].make_ascii_lowercase();
        }
        mark
    }

    pub(super) fn leave(&mut self, mark: Mark) {
        self.path.truncate(mark.0);
    }

    /// Records what was written since `from` as the value of the leaf at the current path.
    pub(super) fn leaf(&mut self, from: usize) {
        if self.leaves.len() == PATHS_MAX {
            self.truncated = true;
            return;
        }
        self.names.extend_from_slice(&self.path[..self.path.len().min(PATH_BYTES_MAX)]);
        self.leaves.push(Leaf { name_end: self.names.len() as u32, from, to: self.bytes.len() });
    }

    /// As [`leaf`](Self::leaf), where the path is [known](Self::know).
    pub(super) fn leaf_of_known_path(&mut self, from: usize) {
        if self.leaves.len() == PATHS_MAX {
            self.truncated = true;
            return;
        }
        self.leaves.push(Leaf { name_end: 0, from, to: self.bytes.len() });
    }

    /// A field outside the body: tag, text, and a leaf of its own.
    pub(super) fn named(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        self.named_of(name, b"", write);
    }

    /// As [`named`](Self::named), with a second half to the name.
    pub(super) fn named_of(&mut self, name: &str, of: &[u8], write: impl FnOnce(&mut Self)) {
        let mark = self.enter_named(name, of);
        let from = self.here();
        write(self);
        self.leaf(from);
        self.leave(mark);
    }

    // Past the last leaf that is kept nobody will read the path; past its limit nobody will read its end.
    fn wants_path(&self) -> bool {
        !self.truncated && self.path.len() < PATH_BYTES_MAX
    }
}

/// The paths of a request's leaves in one buffer, in canonical order. They stay with the request; no store
/// sees them. At most [`PATHS_MAX`] times [`PATH_BYTES_MAX`] bytes, so that a request in flight need not hold
/// its body for the sake of naming.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Names {
    text: Box<[u8]>,
    ends: Box<[u32]>,
}

impl Names {
    /// What they take in memory.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.ends.len() * size_of::<u32>()
    }

    /// The paths in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|at| self.get(at))
    }

    fn get(&self, at: usize) -> &[u8] {
        let from = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.text[from..self.ends[at] as usize]
    }

    /// The path of one leaf for people: a JSON pointer, the name of a part of the request, or `body` for the
    /// whole.
    pub(super) fn show(&self, at: usize, chars_max: usize) -> String {
        let path = self.get(at);
        if path.is_empty() {
            return "body".to_owned();
        }
        printable(&String::from_utf8_lossy(&pointer(path)), chars_max)
    }
}

/// Writes a path as RFC 6901 has it. What stands beside the body has no steps and stays as it is.
fn pointer(path: &[u8]) -> Vec<u8> {
    let is_pointer = matches!(path.first(), Some(&(MEMBER | INDEX)));
    let mut pointer = Vec::with_capacity(path.len() + 8);
    for &byte in path {
        match byte {
            MEMBER | INDEX => pointer.push(b'/'),
            b'~' if is_pointer => pointer.extend_from_slice(b"~0"),
            b'/' if is_pointer => pointer.extend_from_slice(b"~1"),
            _ => pointer.push(byte),
        }
    }
    pointer
}

/// Escapes what a terminal or a log would act on, and cuts to `chars_max`.
fn printable(text: &str, chars_max: usize) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut left = chars_max;
    for char in text.chars() {
        let escaped = char.escape_debug();
        let plain = matches!(char, '"' | '\'' | '\\');
        let width = if plain { 1 } else { escaped.len() };
        // One place is kept for the mark that says something was cut.
        if width >= left {
            shown.push('…');
            break;
        }
        left -= width;
        if plain {
            shown.push(char);
        } else {
            shown.extend(escaped);
        }
    }
    shown
}

pub(super) fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}
