use std::fmt;
use std::rc::Rc;
use std::str;

use super::canonical::Canonical;
use super::json::Document;
use super::media::Media;
use super::pointer::Pointers;
use super::template::{self, Template};
use super::{form, multipart};
use crate::digest::sha256;

// The number is the version of the canonical form. Another form needs another domain, and then every stored
// print differs from every new one; so it may only change together with the key versions in use.
const HTTP: &[u8] = b"semel request 1\0";
const VALUE: &[u8] = b"semel value 1\0";

/// What of an HTTP request goes into its fingerprint.
///
/// `Debug` shows method, path and sizes only.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    content_type: Option<&'a [u8]>,
    headers: &'a [(&'a str, &'a [u8])],
    body: &'a [u8],
    exclusions: &'a Pointers,
}

impl<'a> Request<'a> {
    /// A request without query, content type, headers and body. The path counts as written; the method in
    /// upper case.
    pub fn new(method: &'a str, path: &'a str) -> Self {
        static NONE: Pointers = Pointers::none();
        Self { method, path, query: None, content_type: None, headers: &[], body: &[], exclusions: &NONE }
    }

    /// The query as written, without `?`. An empty one is not the same as none.
    pub fn query(self, query: Option<&'a str>) -> Self {
        Self { query, ..self }
    }

    /// The value of `Content-Type`. It decides how the body is read; without it the body is opaque.
    pub fn content_type(self, content_type: Option<&'a [u8]>) -> Self {
        Self { content_type, ..self }
    }

    /// The headers that the route wants to count, as far as the request has them. The order of different
    /// names does not matter, nor does their case.
    pub fn headers(self, headers: &'a [(&'a str, &'a [u8])]) -> Self {
        Self { headers, ..self }
    }

    /// The body after content decoding.
    pub fn body(self, body: &'a [u8]) -> Self {
        Self { body, ..self }
    }

    /// What to leave out of the body.
    pub fn exclusions(self, exclusions: &'a Pointers) -> Self {
        Self { exclusions, ..self }
    }

    pub(super) fn canonical(&self) -> Canonical {
        let media = Media::parse(self.content_type);
        let body = Body::read(&media, self.body, self.exclusions);
        let mut out = Canonical::new(HTTP, self.path.len() + self.body.len().min(1 << 16) + 256);
        out.named("method", |out| out.upper(b'M', self.method.as_bytes()));
        out.named("path", |out| out.text(b'P', self.path.as_bytes()));
        if let Some(query) = self.query {
            out.named("query", |out| out.text(b'Q', query.as_bytes()));
        }
        if self.content_type.is_some() {
            // Only when the parts were found does the boundary cease to matter.
            let boundary_counts = !matches!(body, Body::Multipart(_));
            out.named("content-type", |out| media.write(boundary_counts, out));
        }
        self.write_headers(&mut out);
        body.write(self.exclusions, &mut out);
        out
    }

    fn write_headers(&self, out: &mut Canonical) {
        if self.headers.is_empty() {
            return;
        }
        let mut headers = self.headers.to_vec();
        headers.sort_by_cached_key(|(name, _)| name.to_ascii_lowercase());
        for (name, value) in headers {
            out.named_of("header:", name.as_bytes(), |out| {
                out.lower(b'H', name.as_bytes());
                out.text(b'V', value);
            });
        }
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

pub(super) fn canonical_bytes(bytes: &[u8]) -> Canonical {
    let mut out = Canonical::new(VALUE, 64);
    Body::Opaque(bytes).write(&Pointers::none(), &mut out);
    out
}

pub(super) fn canonical_json(json: &[u8]) -> Canonical {
    let mut out = Canonical::new(VALUE, json.len().min(1 << 16) + 64);
    let exclusions = Pointers::none();
    Body::json(json, &exclusions).unwrap_or(Body::Opaque(json)).write(&exclusions, &mut out);
    out
}

/// A body, read as far as it could be.
enum Body<'a> {
    Json(&'a str, Document<'a>),
    /// Json of which only the scalars were read.
    Known(&'a str, Document<'a>, Rc<Template>),
    Form(form::Fields<'a>),
    Multipart(multipart::Parts<'a>),
    Opaque(&'a [u8]),
}

impl<'a> Body<'a> {
    fn read(media: &Media<'_>, body: &'a [u8], exclusions: &Pointers) -> Self {
        let read = if media.is_json() {
            Self::json(body, exclusions)
        } else if media.is("application/x-www-form-urlencoded") && media.is_utf8() {
            form::Fields::parse(body).map(Self::Form)
        } else if media.is("multipart/form-data") {
            media.boundary().and_then(|boundary| multipart::Parts::parse(body, boundary)).map(Self::Multipart)
        } else {
            None
        };
        read.unwrap_or(Self::Opaque(body))
    }

    fn json(body: &'a [u8], exclusions: &Pointers) -> Option<Self> {
        let source = str::from_utf8(body).ok()?;
        if let Some((document, template)) = template::read(source, exclusions) {
            return Some(Self::Known(source, document, template));
        }
        Document::of_text(source).map(|document| Self::Json(source, document))
    }

    fn write(&self, exclusions: &Pointers, out: &mut Canonical) {
        match self {
            Self::Json(source, document) => {
                out.tag(b'J');
                template::write(source, document, exclusions, out);
            }
            Self::Known(source, scalars, template) => {
                out.tag(b'J');
                if !template.write(scalars, out) {
                    let document = Document::of_text(source).expect("what a template reads is a document");
                    template::write(source, &document, exclusions, out);
                }
            }
            Self::Form(fields) => {
                out.tag(b'F');
                fields.write(exclusions, out);
            }
            Self::Multipart(parts) => {
                out.tag(b'X');
                parts.write(exclusions, out);
            }
            Self::Opaque(body) => {
                let from = out.here();
                out.text(b'O', &content_digest(body));
                out.leaf(from);
            }
        }
    }
}

/// Stands for content that may be large: it is read once, however many key versions there are, and never
/// copied.
pub(super) fn content_digest(content: &[u8]) -> [u8; 32] {
    sha256(content)
}
