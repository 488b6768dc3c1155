//! JSON as it is written, to change one thing in it and nothing else.
//!
//! Numbers and strings stay the text they were: a reader that turns them into values could not send
//! 9007199254740993, and would repair what a check wants broken.

/// A value with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Json {
    /// A number, a string with its quotes, `true`, `false` or `null`.
    Plain(String),
    List(Vec<Json>),
    /// Names with their quotes, in order, repeats among them.
    Members(Vec<(String, Json)>),
}

/// Deeper than this is not looked at.
const DEPTH_MAX: usize = 64;

impl Json {
    /// `None` if it is not JSON.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        // What is not JSON at all is sorted out by the reader everybody trusts; the walk below then only
        // has to find where values begin and end.
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).ok()?;
        let text = std::str::from_utf8(bytes).ok()?;
        let mut walk = Walk { text, at: 0 };
        walk.value(0)
    }

    /// Without spaces, in its own order.
    pub(crate) fn write(&self) -> String {
        let joined = |parts: Vec<String>| parts.join(",");
        match self {
            Self::Plain(text) => text.clone(),
            Self::List(items) => format!("[{}]", joined(items.iter().map(Self::write).collect())),
            Self::Members(members) => {
                let members = members.iter().map(|(name, value)| format!("{name}:{}", value.write()));
                format!("{{{}}}", joined(members.collect()))
            }
        }
    }

    /// The same to everybody who reads JSON, and other bytes: members backwards, spaces everywhere.
    pub(crate) fn rearranged(&self) -> String {
        let joined = |parts: Vec<String>| parts.join(" ,\n ");
        match self {
            Self::Plain(text) => text.clone(),
            Self::List(items) => format!("[ {} ]", joined(items.iter().map(Self::rearranged).collect())),
            Self::Members(members) => {
                let members = members.iter().rev();
                let members = members.map(|(name, value)| format!("{name} : {}", value.rearranged()));
                format!("{{ {} }}", joined(members.collect()))
            }
        }
    }

    /// With this text for the first number in it; `None` without one.
    pub(crate) fn with_number(&self, number: &str) -> Option<String> {
        self.with_first(is_number, |_| number.to_owned())
    }

    /// With another value for the first number, or else for the first string that `spare` does not keep.
    pub(crate) fn changed(&self, spare: &str) -> Option<String> {
        let other_number = |text: &str| if text == "1" { "2".to_owned() } else { "1".to_owned() };
        let is_string = |text: &str| text.starts_with('"') && !text.contains(spare);
        let other_string = |text: &str| format!("{}x\"", text.strip_suffix('"').unwrap_or(text));
        self.with_first(is_number, other_number).or_else(|| self.with_first(is_string, other_string))
    }

    /// With the first member written twice, the same both times.
    pub(crate) fn doubled(&self) -> Option<String> {
        let Self::Members(members) = self else { return None };
        let first = members.first()?.clone();
        let twice = std::iter::once(first).chain(members.iter().cloned()).collect();
        Some(Self::Members(twice).write())
    }

    /// With one more member; `None` if it has none.
    pub(crate) fn with_member(&self, name: &str, value: &str) -> Option<String> {
        let Self::Members(members) = self else { return None };
        let more = (format!("\"{name}\""), Self::Plain(format!("\"{value}\"")));
        Some(Self::Members(members.iter().cloned().chain([more]).collect()).write())
    }

    fn with_first(&self, is: impl Fn(&str) -> bool, other: impl Fn(&str) -> String) -> Option<String> {
        let mut copy = self.clone();
        let found = copy.find(&is)?;
        *found = other(found);
        Some(copy.write())
    }

    fn find(&mut self, is: &dyn Fn(&str) -> bool) -> Option<&mut String> {
        match self {
            Self::Plain(text) => is(text).then_some(text),
            Self::List(items) => items.iter_mut().find_map(|item| item.find(is)),
            Self::Members(members) => members.iter_mut().find_map(|(_, value)| value.find(is)),
        }
    }
}

fn is_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl Walk<'_> {
    fn next(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.next()? {
            b'{' => self.items(b'}', depth, |walk, depth| {
                walk.next()?;
                let name = walk.string()?;
                walk.next()?;
                walk.at += 1;
                Some((name, walk.value(depth)?))
            }),
            b'[' => return self.items(b']', depth, Self::value).map(Json::List),
            b'"' => return self.string().map(Json::Plain),
            _ => {
                let rest = &self.text[self.at..];
                let end = rest.find(|c: char| c == ',' || c == ']' || c == '}' || c.is_ascii_whitespace());
                let plain = &rest[..end.unwrap_or(rest.len())];
                self.at += plain.len();
                return Some(Json::Plain(plain.to_owned()));
            }
        }
        .map(Json::Members)
    }

    /// What stands between brackets.
    fn items<T>(
        &mut self,
        end: u8,
        depth: usize,
        one: impl Fn(&mut Self, usize) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.at += 1;
        let mut found = Vec::new();
        loop {
            match self.next()? {
                byte if byte == end => {
                    self.at += 1;
                    return Some(found);
                }
                b',' => self.at += 1,
                _ => found.push(one(self, depth + 1)?),
            }
        }
    }

    /// A string with its quotes.
    fn string(&mut self) -> Option<String> {
        let begin = self.at;
        let bytes = self.text.as_bytes();
        self.at += 1;
        while *bytes.get(self.at)? != b'"' {
            self.at += if bytes[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        self.text.get(begin..self.at).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Json {
        Json::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in ["{}", "[]", "7", r#""a\"b\\""#, r#"{"a":[1.0,-2e9,{"b":null}],"a":"é,}]","c":true}"#] {
            assert_eq!(read(text).write(), text);
        }
        assert_eq!(Json::read(b"{\"a\":1,}"), None);
        assert_eq!(Json::read(b"amount=1"), None);
    }

    #[test]
    fn rearranging_changes_order_and_spaces_only() {
        let text = r#"{"a":1.0,"b":[1,2],"c":"x y"}"#;
        let other = read(text).rearranged();
        assert_ne!(other, text);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&other), value(text));
        assert!(other.find("\"c\"") < other.find("\"a\""), "{other}");
    }

    #[test]
    fn one_value_is_changed_and_the_tag_is_not() {
        let order = read(r#"{"id":"t-1","amount":2000,"to":"bob"}"#);
        assert_eq!(order.changed("t-1").unwrap(), r#"{"id":"t-1","amount":1,"to":"bob"}"#);
        let number = order.with_number("9007199254740993").unwrap();
        assert_eq!(number, r#"{"id":"t-1","amount":9007199254740993,"to":"bob"}"#);
        assert_eq!(order.doubled().unwrap(), r#"{"id":"t-1","id":"t-1","amount":2000,"to":"bob"}"#);
        assert_eq!(
            order.with_member("note", "x").unwrap(),
            r#"{"id":"t-1","amount":2000,"to":"bob","note":"x"}"#
        );
        assert_eq!(read(r#"{"id":"t-1","to":"bob"}"#).changed("t-1").unwrap(), r#"{"id":"t-1","to":"bobx"}"#);
        assert_eq!(read(r#"{"id":"t-1"}"#).changed("t-1"), None);
    }
}
