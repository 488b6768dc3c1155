//! Headers of a message on its way: all values in one text.
//!
//! A message has about ten of them, a few bytes each: one allocation for all values in place of one for each.

use std::borrow::Cow;
use std::fmt;

/// Headers, in the order in which they are written.
#[derive(Clone, Default)]
pub struct Headers {
    values: String,
    lines: Vec<Line>,
}

/// A header, and where its value ends; it begins where the one before ends.
#[derive(Clone)]
struct Line {
    name: Cow<'static, str>,
    end: usize,
}

impl Headers {
    /// None yet, with room for so many, and so many bytes of values.
    pub fn with_capacity(lines: usize, bytes: usize) -> Self {
        Self { values: String::with_capacity(bytes), lines: Vec::with_capacity(lines) }
    }

    /// Adds one.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: &str) {
        self.push_with(name, |text| text.push_str(value));
    }

    /// Adds one whose value is what `write` appends.
    pub(super) fn push_with(&mut self, name: impl Into<Cow<'static, str>>, write: impl FnOnce(&mut String)) {
        write(&mut self.values);
        self.lines.push(Line { name: name.into(), end: self.values.len() });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The value of the first with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&Cow<'static, str>, &str)> {
        self.lines.iter().scan(0, |begin, Line { name, end }| {
            let value = &self.values[*begin..*end];
            *begin = *end;
            Some((name, value))
        })
    }
}

impl<Name: Into<Cow<'static, str>>, Value: AsRef<str>> FromIterator<(Name, Value)> for Headers {
    fn from_iter<Pairs: IntoIterator<Item = (Name, Value)>>(pairs: Pairs) -> Self {
        let mut headers = Self::default();
        pairs.into_iter().for_each(|(name, value)| headers.push(name, value.as_ref()));
        headers
    }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Headers {}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_found_under_its_own_name_in_the_order_of_writing() {
        let mut headers: Headers = [("a", "1"), ("b", ""), ("a", "äö")].into_iter().collect();
        headers.push_with("c".to_owned(), |text| text.push_str("end"));
        let pairs: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, value)).collect();
        assert_eq!(pairs, [("a", "1"), ("b", ""), ("a", "äö"), ("c", "end")]);
        assert_eq!((headers.len(), headers.get("b"), headers.get("d")), (4, Some(""), None));
    }

    #[test]
    fn headers_are_the_same_only_if_each_is() {
        let of = |pairs: [(&'static str, &'static str); 2]| pairs.into_iter().collect::<Headers>();
        assert_eq!(of([("a", "1"), ("b", "2")]), of([("a", "1"), ("b", "2")]));
        // The same text, cut elsewhere.
        assert_ne!(of([("a", "1"), ("b", "23")]), of([("a", "12"), ("b", "3")]));
        assert_ne!(of([("a", "1"), ("b", "2")]), of([("b", "1"), ("a", "2")]));
    }
}
