use std::borrow::Cow;

use super::canonical::Canonical;
use super::pointer::{Pointers, Step};

/// Forms with more fields are compared as bytes.
const FIELDS_MAX: usize = 1 << 16;

/// The fields of an `application/x-www-form-urlencoded` body, decoded.
///
/// A pair of ampersands with nothing in between is no field. `a` and `a=` are two things, since some
/// frameworks read them as two.
pub(super) struct Fields<'a> {
    // Sorted by root name; fields of one root in the order they were sent.
    fields: Vec<Field<'a>>,
}

struct Field<'a> {
    name: Cow<'a, [u8]>,
    value: Option<Cow<'a, [u8]>>,
}

impl<'a> Fields<'a> {
    /// `None` if a percent sign is not followed by two hexadecimal digits, or there are too many fields.
    pub(super) fn parse(body: &'a [u8]) -> Option<Self> {
        let mut fields = Vec::new();
        for pair in body.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()) {
            if fields.len() == FIELDS_MAX {
                return None;
            }
            fields.push(Field::parse(pair)?);
        }
        fields.sort_by(|a, b| root_name(&a.name).cmp(root_name(&b.name)));
        Some(Self { fields })
    }

    pub(super) fn write(&self, exclusions: &Pointers, out: &mut Canonical) {
        for Field { name, value } in &self.fields {
            if matches!(exclusions.member(exclusions.root(), name), Step::Hit) {
                continue;
            }
            let mark = out.enter_member(name);
            let from = out.here();
            out.text(b'k', name);
            if let Some(value) = value {
                out.text(b'v', value);
            }
            out.leaf(from);
            out.leave(mark);
        }
    }
}

impl<'a> Field<'a> {
    fn parse(pair: &'a [u8]) -> Option<Self> {
        let mut halves = pair.splitn(2, |&byte| byte == b'=');
        let name = decode(halves.next()?)?;
        let value = match halves.next() {
            Some(value) => Some(decode(value)?),
            None => None,
        };
        Some(Self { name, value })
    }
}

/// The name up to its first bracket. Frameworks build lists and records from `items[][id]` and
/// `items[][price]`, and there the order of two different names says what belongs together.
pub(super) fn root_name(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|&byte| byte == b'[').unwrap_or(name.len());
    &name[..end]
}

fn decode(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match byte {
            b'+' => b' ',
            b'%' => hex(*bytes.next()?)? << 4 | hex(*bytes.next()?)?,
            byte => byte,
        });
    }
    Some(Cow::Owned(plain))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}
