//! The request under test.

use bytes::Bytes;

/// Where the tag of an operation goes: in the URL, a header or the body.
pub(crate) const TAG: &str = "{tag}";

/// A request as the user gave it, with [`TAG`] in it somewhere if effects are to be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) method: String,
    /// Absolute: `http://host:port/path?query`.
    pub(crate) url: String,
    /// In order. Neither the key nor what belongs to the connection.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

/// One request as it goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) url: String,
    /// In order, the key among them. Values are bytes: some checks send what is not text.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

impl Template {
    /// The request for one operation, without a key.
    pub(crate) fn tagged(&self, tag: &str) -> Request {
        let put = |text: &str| text.replace(TAG, tag);
        let headers = self.headers.iter().map(|(name, value)| (put(name), put(value).into_bytes())).collect();
        Request { method: self.method.clone(), url: put(&self.url), headers, body: self.tagged_body(tag) }
    }

    fn tagged_body(&self, tag: &str) -> Bytes {
        // A body that is not text has no tag in it.
        match std::str::from_utf8(&self.body) {
            Ok(text) if text.contains(TAG) => text.replace(TAG, tag).into(),
            _ => self.body.clone(),
        }
    }

    /// Whether an effect can be told from others by its tag.
    pub(crate) fn has_tag(&self) -> bool {
        let in_body = std::str::from_utf8(&self.body).is_ok_and(|text| text.contains(TAG));
        in_body || self.url.contains(TAG) || self.headers.iter().any(|(_, value)| value.contains(TAG))
    }
}

impl Request {
    /// The same with one more header.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// The same with this header instead of any of its name.
    pub(crate) fn instead(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.retain(|(there, _)| !there.eq_ignore_ascii_case(name));
        self.with(name, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_goes_wherever_it_is_asked_for() {
        let template = Template {
            method: "POST".into(),
            url: "http://127.0.0.1:1/pay/{tag}?t={tag}".into(),
            headers: vec![("x-order".into(), "order {tag}".into())],
            body: r#"{"reference":"{tag}"}"#.into(),
        };
        assert!(template.has_tag());
        let request = template.tagged("t7");
        assert_eq!(request.url, "http://127.0.0.1:1/pay/t7?t=t7");
        assert_eq!(request.headers, [("x-order".to_owned(), b"order t7".to_vec())]);
        assert_eq!(request.body, r#"{"reference":"t7"}"#);
        let request = request.instead("X-Order", "other");
        assert_eq!(request.headers, [("X-Order".to_owned(), b"other".to_vec())]);
    }

    #[test]
    fn a_body_that_is_not_text_stays_as_it_is() {
        let body = Bytes::from_static(b"\xff{tag}");
        let template = Template { method: "POST".into(), url: "http://h/".into(), headers: vec![], body };
        assert!(!template.has_tag());
        assert_eq!(template.tagged("t7").body, template.body);
    }
}
