use std::cell::Cell;
use std::cmp::Ordering;

use super::canonical::Canonical;
use super::json::{Document, Id, Kind};
use super::lent::Lent;
use super::pointer::{Cursor, Pointers, Step};

/// Writes a document's value: members by name, those of one name as written, and nothing of the spelling but
/// numbers.
///
/// Every value starts with its tag, texts carry their length and containers their end, so that two documents
/// give the same bytes only if they are the same value.
///
/// Gives the leaves in the order they were written.
pub(super) fn write(document: &Document<'_>, exclusions: &Pointers, out: &mut Canonical) -> Lent<Leaf> {
    let (order, leaves) = (Lent::from(&ORDER), Lent::from(&LEAVES));
    let mut writer = Writer { document, exclusions, out, order, leaves };
    writer.value(0, exclusions.root());
    writer.leaves
}

/// Writes a number, a string or a word.
#[inline(always)]
pub(super) fn write_scalar(document: &Document<'_>, id: Id, out: &mut Canonical) {
    match document.kind(id) {
        Kind::Null => out.tag(b'n'),
        Kind::True => out.tag(b't'),
        Kind::False => out.tag(b'f'),
        Kind::Number if crate::mutant::on("numbers-as-doubles") => {
            let number: f64 = String::from_utf8_lossy(document.text(id)).parse().unwrap_or(f64::NAN);
            out.text(b'#', number.to_string().as_bytes());
        }
        Kind::Number => out.text(b'#', document.text(id)),
        Kind::String => out.text(b'"', document.text(id)),
        Kind::Array | Kind::Object => {}
    }
}

/// A leaf as it was written: a scalar, or a container with nothing in it.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    pub(super) id: Id,
    // Where it lies in the canonical form.
    pub(super) from: usize,
    pub(super) to: usize,
}

struct Writer<'a> {
    document: &'a Document<'a>,
    exclusions: &'a Pointers,
    out: &'a mut Canonical,
    // The members still to be written of every object around the current place, one stack for all of them.
    order: Lent<Member>,
    leaves: Lent<Leaf>,
}

thread_local! {
    static ORDER: Cell<Vec<Member>> = const { Cell::new(Vec::new()) };
    static LEAVES: Cell<Vec<Leaf>> = const { Cell::new(Vec::new()) };
}

/// A member and the first bytes of its name, which nearly always tell it from its neighbours.
#[derive(Clone, Copy)]
struct Member {
    prefix: u64,
    id: Id,
}

impl Writer<'_> {
    // Inlined, so that only containers cost a call; most values are none.
    #[inline(always)]
    fn value(&mut self, id: Id, cursor: Cursor) {
        let from = self.out.here();
        if matches!(self.document.kind(id), Kind::Array | Kind::Object) {
            return self.container(id, cursor, from);
        }
        write_scalar(self.document, id, self.out);
        self.leaf(id, from);
    }

    #[inline(always)]
    fn leaf(&mut self, id: Id, from: usize) {
        self.leaves.push(Leaf { id, from, to: self.out.here() });
        self.out.leaf(from);
    }

    // Recursion is fine here: the document is no deeper than `json::DEPTH_MAX`.
    #[inline(never)]
    fn container(&mut self, id: Id, cursor: Cursor, from: usize) {
        match self.document.kind(id) {
            Kind::Array => self.array(id, cursor, from),
            _ => self.object(id, cursor, from),
        }
    }

    fn array(&mut self, id: Id, cursor: Cursor, from: usize) {
        self.out.tag(b'[');
        let mut is_leaf = true;
        let document = self.document;
        for (index, element) in document.children(id).enumerate() {
            match self.exclusions.index(cursor, index) {
                // It keeps its place, or the elements behind it would seem to have moved.
                Step::Hit => self.out.tag(b'_'),
                Step::On(cursor) => {
                    is_leaf = false;
                    let mark = self.out.enter_index(index);
                    self.value(element, cursor);
                    self.out.leave(mark);
                }
            }
        }
        self.out.tag(b']');
        if is_leaf {
            self.leaf(id, from);
        }
    }

    fn object(&mut self, id: Id, cursor: Cursor, from: usize) {
        self.out.tag(b'{');
        let mut is_leaf = true;
        let document = self.document;
        let bottom = self.sort_members(id);
        let top = self.order.len();
        for at in bottom..top {
            let member = self.order[at].id;
            let name = document.name(member);
            if let Step::On(cursor) = self.exclusions.member(cursor, name) {
                is_leaf = false;
                self.out.text(b':', name);
                let mark = self.out.enter_member(name);
                self.value(member, cursor);
                self.out.leave(mark);
            }
        }
        self.order.truncate(bottom);
        self.out.tag(b'}');
        if is_leaf {
            self.leaf(id, from);
        }
    }

    /// Puts an object's members on the stack in canonical order; gives where they start.
    fn sort_members(&mut self, id: Id) -> usize {
        let bottom = self.order.len();
        let document = self.document;
        for id in document.children(id) {
            self.order.push(Member { prefix: prefix(document.name(id)), id });
        }
        self.order[bottom..].sort_unstable_by(|a, b| match a.prefix.cmp(&b.prefix) {
            Ordering::Equal => by_name(document, a.id, b.id),
            different => different,
        });
        bottom
    }
}

/// Ids grow as the members are written, so that members of one name keep their order.
// Rarely needed, and inlined it would slow the comparison of the prefixes down.
#[inline(never)]
fn by_name(document: &Document<'_>, a: Id, b: Id) -> Ordering {
    document.name(a).cmp(document.name(b)).then(a.cmp(&b))
}

/// Up to eight bytes as a number that is ordered as they are. A shorter name is filled up with zeros.
fn prefix(name: &[u8]) -> u64 {
    match name.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let number = name.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            number.unbounded_shl(64 - 8 * name.len() as u32)
        }
    }
}
