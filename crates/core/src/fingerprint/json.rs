use std::cell::Cell;
use std::str;

use super::lent::Lent;

/// Deeper documents are compared as bytes.
pub(super) const DEPTH_MAX: usize = 128;

/// So are longer ones: offsets are 32 bits wide, for decoded text too.
const BYTES_MAX: usize = 1 << 30;

/// And those with more values, since every value takes a node in memory.
const NODES_MAX: usize = 1 << 20;

/// A JSON document (RFC 8259) as a flat list of values in the order they are written.
///
/// Every value knows where it lies in the source, and containers know where they end in the list. Numbers are
/// not read: their text is their value. Strings are decoded to UTF-8; a lone surrogate, which the grammar
/// allows and UTF-8 has no place for, becomes the three bytes it would have (WTF-8) and so equals nothing
/// else.
pub(super) struct Document<'a> {
    source: &'a [u8],
    // Strings and names that had escapes, one after another.
    decoded: Lent<u8>,
    nodes: Lent<Node>,
}

thread_local! {
    static NODES: Cell<Vec<Node>> = const { Cell::new(Vec::new()) };
    static DECODED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static OPEN: Cell<Vec<Open>> = const { Cell::new(Vec::new()) };
}

/// A value: its place in the list.
pub(super) type Id = usize;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    True,
    False,
    Number,
    String,
    Array,
    Object,
}

struct Node {
    kind: Kind,
    // Where it lies in the source.
    from: u32,
    to: u32,
    // The member name if its parent is an object.
    name: Text,
    // The text of a number or string.
    text: Text,
    // Of a container: the place after its last descendant. Of a scalar: the next place.
    next: u32,
}

/// Text in the source or, past its end, in the decoded text.
#[derive(Clone, Copy, Default)]
struct Text {
    from: u32,
    len: u32,
}

impl<'a> Document<'a> {
    /// `None` for what is not strictly JSON in UTF-8 without a byte order mark, or beyond the limits.
    pub(super) fn parse(source: &'a [u8]) -> Option<Self> {
        Self::of_text(str::from_utf8(source).ok()?)
    }

    /// The same, of what is known to be UTF-8.
    pub(super) fn of_text(source: &'a str) -> Option<Self> {
        let mut reader = Reader::of(source)?;
        reader.document()?;
        Some(reader.end())
    }

    /// Reads a text that is a scalar behind each of these pieces and one more piece at its end. Only the scalars
    /// are values of the document then. `None` if it is another text.
    ///
    /// A text with the pieces of one that [`of_text`](Self::of_text) read is read by it too, to the same
    /// containers and names: whoever reads comes to each scalar by the same bytes.
    pub(super) fn between<'b>(
        source: &'a str,
        before: impl Iterator<Item = &'b [u8]>,
        behind: &[u8],
    ) -> Option<Self> {
        let mut reader = Reader::of(source)?;
        for piece in before {
            reader.skip_piece(piece)?;
            reader.scalar()?;
        }
        reader.skip_piece(behind)?;
        (reader.at == source.len()).then(|| reader.end())
    }

    /// The scalars, as written.
    pub(super) fn scalars(&self) -> impl Iterator<Item = Id> {
        let is_scalar = |id: &Id| !matches!(self.kind(*id), Kind::Array | Kind::Object);
        (0..self.nodes.len()).filter(is_scalar)
    }

    pub(super) fn kind(&self, id: Id) -> Kind {
        self.nodes[id].kind
    }

    /// Where the value lies in the source.
    pub(super) fn span(&self, id: Id) -> (usize, usize) {
        (self.nodes[id].from as usize, self.nodes[id].to as usize)
    }

    /// The name of an object member, decoded.
    pub(super) fn name(&self, id: Id) -> &[u8] {
        self.resolve(self.nodes[id].name)
    }

    /// A number as written or a string decoded.
    pub(super) fn text(&self, id: Id) -> &[u8] {
        self.resolve(self.nodes[id].text)
    }

    /// The elements or members of a container, as written.
    pub(super) fn children(&self, id: Id) -> impl Iterator<Item = Id> + '_ {
        let end = self.nodes[id].next as usize;
        let mut at = id + 1;
        std::iter::from_fn(move || {
            let child = at;
            (child < end).then(|| {
                at = self.nodes[child].next as usize;
                child
            })
        })
    }

    fn resolve(&self, text: Text) -> &[u8] {
        let (from, len) = (text.from as usize, text.len as usize);
        match from.checked_sub(self.source.len()) {
            None => &self.source[from..from + len],
            Some(from) => &self.decoded[from..from + len],
        }
    }
}

struct Reader<'a> {
    source: &'a [u8],
    at: usize,
    decoded: Lent<u8>,
    nodes: Lent<Node>,
    // The containers around the current place. A list instead of recursion: the depth is the sender's choice.
    open: Lent<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    id: Id,
    close: u8,
    is_empty: bool,
}

impl<'a> Reader<'a> {
    fn of(source: &'a str) -> Option<Self> {
        let (nodes, decoded, open) = (Lent::from(&NODES), Lent::from(&DECODED), Lent::from(&OPEN));
        (source.len() <= BYTES_MAX).then_some(Self { source: source.as_bytes(), at: 0, decoded, nodes, open })
    }

    fn end(self) -> Document<'a> {
        Document { source: self.source, decoded: self.decoded, nodes: self.nodes }
    }

    fn skip_piece(&mut self, piece: &[u8]) -> Option<()> {
        let differs =
            !self.source[self.at..].starts_with(piece) && !crate::mutant::on("spelling-taken-for-known");
        self.at += piece.len();
        (!differs && self.at <= self.source.len()).then_some(())
    }

    fn scalar(&mut self) -> Option<()> {
        match self.peek()? {
            b'{' | b'[' => None,
            _ => self.value(Text::default()),
        }
    }

    fn document(&mut self) -> Option<()> {
        self.skip_space();
        self.value(Text::default())?;
        while let Some(container) = self.open.last_mut() {
            let is_first = std::mem::take(&mut container.is_empty);
            let container = *container;
            self.item(container, is_first)?;
        }
        self.skip_space();
        (self.at == self.source.len()).then_some(())
    }

    /// Reads one element or member with its comma, or the end of the container.
    fn item(&mut self, container: Open, is_first: bool) -> Option<()> {
        self.skip_space();
        match self.peek()? {
            byte if byte == container.close => {
                self.close(container);
                return Some(());
            }
            b',' if !is_first => {
                self.at += 1;
                self.skip_space();
            }
            _ if is_first => {}
            _ => return None,
        }
        let mut name = Text::default();
        if container.close == b'}' {
            self.expect(b'"')?;
            name = self.string()?;
            self.skip_space();
            self.expect(b':')?;
            self.skip_space();
        }
        self.value(name)
    }

    fn close(&mut self, container: Open) {
        self.at += 1;
        self.open.pop();
        let next = self.nodes.len() as u32;
        let node = &mut self.nodes[container.id];
        node.to = self.at as u32;
        node.next = next;
    }

    /// Reads a scalar, or opens a container.
    fn value(&mut self, name: Text) -> Option<()> {
        let from = self.at;
        let (kind, text) = match self.peek()? {
            b'"' => {
                self.at += 1;
                (Kind::String, self.string()?)
            }
            b'-' | b'0'..=b'9' => (Kind::Number, self.number()?),
            b'{' => (Kind::Object, self.open(b'}')?),
            b'[' => (Kind::Array, self.open(b']')?),
            b't' => (Kind::True, self.word(b"true")?),
            b'f' => (Kind::False, self.word(b"false")?),
            b'n' => (Kind::Null, self.word(b"null")?),
            _ => return None,
        };
        if self.nodes.len() == NODES_MAX {
            return None;
        }
        let next = self.nodes.len() as u32 + 1;
        self.nodes.push(Node { kind, from: from as u32, to: self.at as u32, name, text, next });
        Some(())
    }

    fn open(&mut self, close: u8) -> Option<Text> {
        if self.open.len() == DEPTH_MAX {
            return None;
        }
        self.at += 1;
        self.open.push(Open { id: self.nodes.len(), close, is_empty: true });
        Some(Text::default())
    }

    fn word(&mut self, word: &[u8]) -> Option<Text> {
        self.source[self.at..].starts_with(word).then(|| {
            self.at += word.len();
            Text::default()
        })
    }

    fn number(&mut self) -> Option<Text> {
        let from = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Some(self.text_from(from))
    }

    /// At least one digit.
    fn digits(&mut self) -> Option<()> {
        let rest = &self.source[self.at..];
        let digits = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += digits;
        (digits > 0).then_some(())
    }

    /// Reads on from behind the opening quote. Text without escapes stays where it is.
    fn string(&mut self) -> Option<Text> {
        let from = self.at;
        self.skip_plain();
        match self.peek()? {
            b'"' => {
                let text = self.text_from(from);
                self.at += 1;
                Some(text)
            }
            b'\\' => self.escaped_string(from),
            _ => None,
        }
    }

    fn escaped_string(&mut self, mut from: usize) -> Option<Text> {
        let start = self.decoded.len();
        loop {
            self.decoded.extend_from_slice(&self.source[from..self.at]);
            match self.peek()? {
                b'"' => break,
                b'\\' => self.escape()?,
                _ => return None,
            }
            from = self.at;
            self.skip_plain();
        }
        self.at += 1;
        let len = self.decoded.len() - start;
        Some(Text { from: (self.source.len() + start) as u32, len: len as u32 })
    }

    fn escape(&mut self) -> Option<()> {
        let escaped = *self.source.get(self.at + 1)?;
        self.at += 2;
        self.decoded.push(match escaped {
            b'"' | b'\\' | b'/' => escaped,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode_escape(),
            _ => return None,
        });
        Some(())
    }

    fn unicode_escape(&mut self) -> Option<()> {
        let mut code = self.hex4()?;
        if (0xd800..0xdc00).contains(&code) {
            code = self.low_surrogate().map_or(code, |low| 0x10000 + ((code - 0xd800) << 10 | low));
        }
        match char::from_u32(code) {
            Some(char) => self.decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            // A lone surrogate: three bytes as for any code of its size, though no valid text has them.
            None => self.decoded.extend([
                0xe0 | (code >> 12) as u8,
                0x80 | (code >> 6 & 0x3f) as u8,
                0x80 | (code & 0x3f) as u8,
            ]),
        }
        Some(())
    }

    /// The lower ten bits of a low surrogate, if one is escaped right here. If not, nothing is read.
    fn low_surrogate(&mut self) -> Option<u32> {
        let before = self.at;
        if self.source[self.at..].starts_with(b"\\u") {
            self.at += 2;
            if let Some(low) =
                self.hex4().and_then(|code| code.checked_sub(0xdc00)).filter(|&low| low < 0x400)
            {
                return Some(low);
            }
        }
        self.at = before;
        None
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.source.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |code, &digit| Some(code << 4 | char::from(digit).to_digit(16)?))
    }

    fn text_from(&self, from: usize) -> Text {
        Text { from: from as u32, len: (self.at - from) as u32 }
    }

    fn skip_plain(&mut self) {
        let mut at = self.at;
        while let Some(word) = self.source[at..].first_chunk() {
            let ends = plain_ends(u64::from_le_bytes(*word));
            if ends != 0 {
                self.at = at + ends.trailing_zeros() as usize / 8;
                return;
            }
            at += word.len();
        }
        let tail = &self.source[at..];
        let plain = tail.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
        self.at = at + plain.unwrap_or(tail.len());
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek() == Some(byte)).then(|| self.at += 1)
    }

    fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }
}

/// Marks in eight bytes those that end a plain run: control characters, quotes and backslashes. Only the lowest
/// mark is exact, for a byte that is below a bound may borrow from the one above it.
fn plain_ends(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound);
    let control = below(word, 0x20);
    let quote = below(word ^ (ONES * u64::from(b'"')), 1);
    let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
    // A byte of a longer character has its high bit set before anything is taken from it.
    (control | quote | backslash) & !word & HIGHS
}
