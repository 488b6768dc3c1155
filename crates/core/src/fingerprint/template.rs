use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::canonical::{Canonical, Names};
use super::json::{Document, Id};
use super::json_value::{self, Leaf};
use super::pointer::Pointers;
use super::shape::Shape;

/// Longer documents are read from scratch each time.
const SOURCE_BYTES_MAX: usize = 1 << 14;

/// So are those with more scalars.
const SCALARS_MAX: usize = 1 << 10;

/// Most templates a thread keeps.
const TEMPLATES_MAX: usize = 4;

/// After so many documents of the same paths in another spelling, that one is kept instead.
const MISSES_MAX: u8 = 16;

/// How documents of one spelling become canonical: everything in them but the scalars, and where the scalars go.
///
/// A client sends documents that differ in nothing but scalars again and again. Of such a one only the scalars need
/// to be read: they go into the canonical form of the one before, in place of its own. No scalar is kept here, and
/// what comes out is what reading from scratch gives, byte for byte.
pub(super) struct Template {
    exclusions: Pointers,
    /// The paths of the whole request, and how many of them stand beside the body.
    names: Arc<Names>,
    named: usize,
    /// The source without its scalars, and where each of them was.
    source: (Box<[u8]>, Box<[usize]>),
    /// The canonical form without them, and where its leaves were.
    canonical: (Box<[u8]>, Box<[Place]>),
}

/// Where a leaf goes.
struct Place {
    from: usize,
    leaf: What,
}

enum What {
    /// The scalar of this number in the source.
    Scalar(usize),
    /// A container with nothing in it, up to here.
    Empty { to: usize },
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { templates: Vec::new(), misses: 0 }) };
}

/// What a thread keeps, the latest first.
struct Kept {
    templates: Vec<Rc<Template>>,
    misses: u8,
}

/// The scalars of a document, and the template for the rest, if there is one for it.
pub(super) fn read<'a>(source: &'a str, exclusions: &Pointers) -> Option<(Document<'a>, Rc<Template>)> {
    KEPT.with_borrow_mut(|Kept { templates, .. }| {
        let read = |template: &Rc<Template>| template.read(source, exclusions);
        let (at, document) = templates.iter().enumerate().find_map(|(at, known)| Some((at, read(known)?)))?;
        templates[..=at].rotate_right(1);
        Some((document, templates[0].clone()))
    })
}

/// Writes a document that was read from scratch, and keeps how it is spelt if its paths came before.
pub(super) fn write(source: &str, document: &Document<'_>, exclusions: &Pointers, out: &mut Canonical) {
    let (start, named) = (out.here(), out.leaves());
    let leaves = json_value::write(document, exclusions, out);
    if source.len() > SOURCE_BYTES_MAX || document.scalars().nth(SCALARS_MAX).is_some() {
        return;
    }
    let Some(names) = Shape::names_like(out) else { return };
    out.know(names.clone());
    KEPT.with_borrow_mut(|kept| {
        let same = kept.templates.iter().position(|template| Arc::ptr_eq(&template.names, &names));
        if let Some(at) = same {
            kept.misses += 1;
            if kept.misses < MISSES_MAX {
                return;
            }
            kept.templates.remove(at);
        }
        kept.misses = 0;
        kept.templates.truncate(TEMPLATES_MAX - 1);
        let (source, canonical) = (of_source(source, document), of_canonical(document, &leaves, start, out));
        let template = Template { exclusions: exclusions.clone(), names, named, source, canonical };
        kept.templates.insert(0, Rc::new(template));
    });
}

impl Template {
    fn read<'a>(&self, source: &'a str, exclusions: &Pointers) -> Option<Document<'a>> {
        if self.exclusions != *exclusions {
            return None;
        }
        let (text, places) = &self.source;
        let mut from = 0;
        let before = places.iter().map(|&to| &text[std::mem::replace(&mut from, to)..to]);
        let behind = places.last().map_or(0, |&last| last);
        Document::between(source, before, &text[behind..])
    }

    /// Writes what [`read`] gave with this template. False, and nothing is written, if what stands beside the body
    /// has other paths.
    pub(super) fn write(&self, document: &Document<'_>, out: &mut Canonical) -> bool {
        if out.leaves() != self.named || !out.begins(&self.names) {
            return false;
        }
        let (text, places) = &self.canonical;
        let mut at = 0;
        for Place { from, leaf } in places {
            out.copy(&text[at..*from]);
            at = *from;
            let start = out.here();
            match *leaf {
                What::Scalar(number) => json_value::write_scalar(document, number, out),
                What::Empty { to } => out.copy(&text[std::mem::replace(&mut at, to)..to]),
            }
            out.leaf_of_known_path(start);
        }
        out.copy(&text[at..]);
        out.know(self.names.clone());
        true
    }
}

fn of_source(source: &str, document: &Document<'_>) -> (Box<[u8]>, Box<[usize]>) {
    let (mut text, mut places, mut behind) = (Vec::new(), Vec::new(), 0);
    for (from, to) in document.scalars().map(|id| document.span(id)) {
        text.extend_from_slice(&source.as_bytes()[behind..from]);
        places.push(text.len());
        behind = to;
    }
    text.extend_from_slice(&source.as_bytes()[behind..]);
    (text.into(), places.into())
}

fn of_canonical(
    document: &Document<'_>,
    leaves: &[Leaf],
    start: usize,
    out: &Canonical,
) -> (Box<[u8]>, Box<[Place]>) {
    let numbers: HashMap<Id, usize> =
        document.scalars().enumerate().map(|(number, id)| (id, number)).collect();
    let canonical = out.since(start);
    let (mut text, mut behind) = (Vec::new(), 0);
    let places = leaves.iter().map(|leaf| {
        text.extend_from_slice(&canonical[behind..leaf.from - start]);
        let from = text.len();
        let written = &canonical[leaf.from - start..leaf.to - start];
        behind = leaf.to - start;
        let leaf = match numbers.get(&leaf.id) {
            Some(&number) => What::Scalar(number),
            None => {
                text.extend_from_slice(written);
                What::Empty { to: text.len() }
            }
        };
        Place { from, leaf }
    });
    let places = places.collect();
    text.extend_from_slice(&canonical[behind..]);
    (text.into(), places)
}
