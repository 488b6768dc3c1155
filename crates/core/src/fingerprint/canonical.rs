use std::cell::Cell;

use super::lent::Lent;
use super::paths::PATHS_MAX;

/// Longer paths are cut for naming and for their digests. Names shown are shorter still.
const PATH_BYTES_MAX: usize = 512;

// What stands before each step of a path. No UTF-8 text contains these bytes, so names need no escapes before
// they are shown, and `[1]` and `{"0":1}` have two paths though both are shown as `/0`.
const MEMBER: u8 = 0xfe;
const INDEX: u8 = 0xff;

/// Texts up to this size are copied as if they had it: that takes two instructions instead of a call.
pub(super) const RUN_BYTES: usize = 16;

/// The canonical request in the making: one run of self-delimiting bytes, and where its leaves lie in it.
///
/// Whoever writes takes care that the bytes are injective: every field starts with a tag and texts carry
/// their length.
///
/// Paths are not written out. Each step down is kept once, with the step above it: a document has many leaves
/// under few names.
pub(super) struct Canonical {
    bytes: Lent<u8>,
    // What the steps are called, one after another.
    names: Lent<u8>,
    // The first is the root, which is above all and no leaf itself.
    steps: Lent<Step>,
    leaves: Lent<Leaf>,
    here: Mark,
    truncated: bool,
}

thread_local! {
    static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static NAMES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static STEPS: Cell<Vec<Step>> = const { Cell::new(Vec::new()) };
    static LEAVES: Cell<Vec<Leaf>> = const { Cell::new(Vec::new()) };
}

/// A step on the way to leaves. Its name begins where that of the step before it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Step {
    above: u32,
    name_end: u32,
    is_leaf: bool,
}

/// The step a leaf is at, and where its value lies.
#[derive(Clone, Copy)]
struct Leaf {
    step: u32,
    from: usize,
    to: usize,
}

/// A place to return to: a step, and how long the path to it is.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    step: u32,
    path_bytes: u32,
}

/// A text, and the bytes from its beginning on where at least [`RUN_BYTES`] of them are there.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) text: &'a [u8],
    pub(super) after: Option<&'a [u8; RUN_BYTES]>,
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Run<'a> {
    fn from(text: &'a T) -> Self {
        Self { text: text.as_ref(), after: None }
    }
}

impl Canonical {
    pub(super) fn new(domain: &[u8], bytes_hint: usize) -> Self {
        let mut bytes = Lent::from(&BYTES);
        bytes.reserve(domain.len() + bytes_hint);
        bytes.extend_from_slice(domain);
        let (names, leaves) = (Lent::from(&NAMES), Lent::from(&LEAVES));
        let mut steps = Lent::from(&STEPS);
        steps.push(Step { above: 0, name_end: 0, is_leaf: false });
        Self { bytes, names, steps, leaves, here: Mark { step: 0, path_bytes: 0 }, truncated: false }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Every step but the root, each behind the one above it: which one that is, and what this one is called.
    pub(super) fn steps(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        let mut start = 0;
        self.steps[1..].iter().map(move |step| {
            let from = std::mem::replace(&mut start, step.name_end as usize);
            (step.above as usize, &self.names[from..step.name_end as usize])
        })
    }

    /// The step and the canonical value of every leaf that is kept. The root is 0, the first of
    /// [`steps`](Self::steps) is 1.
    pub(super) fn leaves(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        self.leaves.iter().map(|leaf| (leaf.step as usize, &self.bytes[leaf.from..leaf.to]))
    }

    pub(super) fn names(&self) -> Names {
        Names { text: self.names[..].into(), steps: self.steps[..].into() }
    }

    /// Where the next byte will be written.
    pub(super) fn here(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn tag(&mut self, tag: u8) {
        self.bytes.push(tag);
    }

    /// A tag, a length and a text.
    pub(super) fn text<'a>(&mut self, tag: u8, text: impl Into<Run<'a>>) {
        let Run { text, after } = text.into();
        match (u8::try_from(text.len()), after) {
            (Ok(len @ ..=16), Some(after)) => {
                let mut run = [0; RUN_BYTES + 2];
                (run[0], run[1]) = (tag, len);
                run[2..].copy_from_slice(after);
                extend_short(&mut self.bytes, &run, 2 + text.len());
                return;
            }
            (Ok(len @ ..0x80), _) => self.bytes.extend_from_slice(&[tag, len]),
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
    pub(super) fn enter_member<'a>(&mut self, name: impl Into<Run<'a>>) -> Mark {
        let name = name.into();
        self.enter(|names| match name {
            Run { text, after: Some(after) } if text.len() <= RUN_BYTES => {
                let mut run = [MEMBER; RUN_BYTES + 1];
                run[1..].copy_from_slice(after);
                extend_short(names, &run, 1 + text.len());
            }
            Run { text, .. } => {
                names.push(MEMBER);
                names.extend_from_slice(&text[..text.len().min(PATH_BYTES_MAX)]);
            }
        })
    }

    /// Goes down to an array element.
    pub(super) fn enter_index(&mut self, index: usize) -> Mark {
        self.enter(|names| {
            names.push(INDEX);
            names.extend_from_slice(decimal(index, &mut [0; 20]));
        })
    }

    /// Goes to a part of the request; its body has no name.
    pub(super) fn enter_named(&mut self, name: &str, of: &[u8]) -> Mark {
        self.enter(|names| {
            let from = names.len();
            names.extend_from_slice(name.as_bytes());
            names.extend_from_slice(&of[..of.len().min(PATH_BYTES_MAX)]);
            names[from..].make_ascii_lowercase();
        })
    }

    fn enter(&mut self, name: impl FnOnce(&mut Vec<u8>)) -> Mark {
        let before = self.here;
        // Past the last leaf that is kept nobody will ask for a step.
        if self.truncated {
            return before;
        }
        let from = self.names.len();
        // Past the limit of a path nobody will read its end.
        if (before.path_bytes as usize) < PATH_BYTES_MAX {
            name(&mut self.names);
        }
        let named = (self.names.len() - from) as u32;
        self.here = Mark { step: self.steps.len() as u32, path_bytes: before.path_bytes + named };
        let name_end = self.names.len() as u32;
        self.steps.push(Step { above: before.step, name_end, is_leaf: false });
        before
    }

    pub(super) fn leave(&mut self, mark: Mark) {
        self.here = mark;
    }

    /// Records what was written since `from` as the value of the leaf at the current path.
    pub(super) fn leaf(&mut self, from: usize) {
        if self.leaves.len() == PATHS_MAX {
            self.truncated = true;
            return;
        }
        let step = self.here.step;
        self.steps[step as usize].is_leaf = true;
        self.leaves.push(Leaf { step, from, to: self.bytes.len() });
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
}

/// Appends the first `len` bytes of a run. All of it is copied, since a copy of a size known beforehand takes
/// fewer instructions than to look at the size.
fn extend_short<const BYTES: usize>(list: &mut Vec<u8>, run: &[u8; BYTES], len: usize) {
    let before = list.len();
    list.extend_from_slice(run);
    list.truncate(before + len);
}

/// The steps to a request's leaves, in canonical order. They stay with the request; no store sees them. At most
/// [`PATHS_MAX`] times twice [`PATH_BYTES_MAX`] bytes of text, so that a request in flight need not hold its
/// body for the sake of naming.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Names {
    text: Box<[u8]>,
    steps: Box<[Step]>,
}

impl Names {
    /// What they take in memory.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.steps.len() * size_of::<Step>()
    }

    /// The path of the leaf that is the `at`-th.
    fn path(&self, at: usize) -> Vec<u8> {
        let leaf = self.steps.iter().enumerate().filter(|(_, step)| step.is_leaf).nth(at);
        let mut step = leaf.map_or(0, |(step, _)| step);
        let mut names = Vec::new();
        while step > 0 {
            let from = self.steps[step - 1].name_end as usize;
            names.push(&self.text[from..self.steps[step].name_end as usize]);
            step = self.steps[step].above as usize;
        }
        names.reverse();
        names.concat()
    }

    /// The path of one leaf for people: a JSON pointer, the name of a part of the request, or `body` for the
    /// whole.
    pub(super) fn show(&self, at: usize, chars_max: usize) -> String {
        let path = self.path(at);
        if path.is_empty() {
            return "body".to_owned();
        }
        printable(&String::from_utf8_lossy(&pointer(&path)), chars_max)
    }
}

/// Writes a path as RFC 6901 has it. What stands beside the body stays as it is.
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
