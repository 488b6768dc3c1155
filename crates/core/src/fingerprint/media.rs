use super::canonical::Canonical;

/// A media type with parameters, or what stands in its place.
pub(super) enum Media<'a> {
    Absent,
    /// Not readable as a media type; counts as it is written.
    Raw(&'a [u8]),
    Parsed(Value<'a>),
}

/// `value; name=value; name="value"`, as in `Content-Type` and `Content-Disposition`.
pub(super) struct Value<'a> {
    pub(super) essence: &'a [u8],
    pub(super) parameters: Vec<Parameter<'a>>,
}

/// Quoted values are without their quotes but not unescaped: senders disagree about backslashes, so all of
/// their readings stay apart.
pub(super) struct Parameter<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Media<'a> {
    pub(super) fn parse(header: Option<&'a [u8]>) -> Self {
        match header {
            None => Self::Absent,
            Some(header) => Value::parse(header).map_or(Self::Raw(header), Self::Parsed),
        }
    }

    pub(super) fn is(&self, essence: &str) -> bool {
        matches!(self, Self::Parsed(value) if value.essence.eq_ignore_ascii_case(essence.as_bytes()))
    }

    /// JSON, and in a charset in which bytes mean what the JSON reader takes them for.
    pub(super) fn is_json(&self) -> bool {
        let Self::Parsed(value) = self else { return false };
        let suffix = value.essence.len().checked_sub(5).map(|at| &value.essence[at..]);
        let json =
            self.is("application/json") || suffix.is_some_and(|end| end.eq_ignore_ascii_case(b"+json"));
        json && self.is_utf8()
    }

    pub(super) fn is_utf8(&self) -> bool {
        let Self::Parsed(value) = self else { return false };
        value.all("charset").all(|charset| {
            charset.eq_ignore_ascii_case(b"utf-8") || charset.eq_ignore_ascii_case(b"us-ascii")
        })
    }

    pub(super) fn boundary(&self) -> Option<&'a [u8]> {
        let Self::Parsed(value) = self else { return None };
        value.only("boundary")
    }

    pub(super) fn write(&self, boundary_counts: bool, out: &mut Canonical) {
        match self {
            Self::Absent => {}
            Self::Raw(header) => out.text(b'R', header),
            Self::Parsed(value) => {
                value.write(|name| boundary_counts || !name.eq_ignore_ascii_case(b"boundary"), out);
            }
        }
    }
}

impl<'a> Value<'a> {
    pub(super) fn parse(header: &'a [u8]) -> Option<Self> {
        let end = header.iter().position(|&byte| byte == b';').unwrap_or(header.len());
        let essence = header[..end].trim_ascii();
        if essence.is_empty() || !essence.iter().all(|&byte| is_token(byte) || byte == b'/') {
            return None;
        }
        let mut parameters = Vec::new();
        let mut rest = header[end..].trim_ascii();
        while let Some(after) = rest.strip_prefix(b";") {
            rest = after.trim_ascii_start();
            // A semicolon with nothing behind it is common and says nothing.
            if rest.is_empty() || rest[0] == b';' {
                continue;
            }
            let (parameter, after) = Parameter::parse(rest)?;
            parameters.push(parameter);
            rest = after.trim_ascii_start();
        }
        rest.is_empty().then_some(Self { essence, parameters })
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.parameters.iter().filter(move |p| p.name.eq_ignore_ascii_case(name.as_bytes())).map(|p| p.value)
    }

    /// The value of a parameter that occurs exactly once.
    pub(super) fn only(&self, name: &str) -> Option<&'a [u8]> {
        let mut values = self.all(name);
        let value = values.next()?;
        values.next().is_none().then_some(value)
    }

    /// Essence and parameters by name; names in lower case, values as written but for charset.
    pub(super) fn write(&self, counts: impl Fn(&[u8]) -> bool, out: &mut Canonical) {
        out.lower(b'T', self.essence);
        let mut parameters: Vec<_> = self.parameters.iter().filter(|p| counts(p.name)).collect();
        parameters.sort_by_cached_key(|p| p.name.to_ascii_lowercase());
        for Parameter { name, value } in parameters {
            out.lower(b'p', name);
            if name.eq_ignore_ascii_case(b"charset") {
                out.lower(b'v', value);
            } else {
                out.text(b'v', value);
            }
        }
    }
}

impl<'a> Parameter<'a> {
    fn parse(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (name, rest) = token(text)?;
        let rest = rest.strip_prefix(b"=")?;
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => quoted_string(quoted)?,
            None => token(rest)?,
        };
        Some((Self { name, value }, rest))
    }
}

fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| !is_token(byte)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Reads to the closing quote. A backslash hides the quote behind it; whether it means more is not decided
/// here.
fn quoted_string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some((&text[..at], &text[at + 1..])),
            b'\\' => at += 2,
            byte if byte.is_ascii_control() && *byte != b'\t' => return None,
            _ => at += 1,
        }
    }
}

pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
