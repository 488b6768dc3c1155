//! Versions as entity tags: changes that need no key.
//!
//! A client reads a resource with its `ETag` and sends that tag as `If-Match` with its change. The statement that
//! makes the change names the version, so that whoever saw an older one, or sends the same change again, changes
//! nothing:
//!
//! ```sql
//! UPDATE orders SET note = $2, version = version + 1 WHERE id = $1 AND version = ANY($3)
//! ```
//!
//! ```
//! # use semel_http::etag::{self, IfMatch, Unmet};
//! # use semel_core::fence::Guarded;
//! # fn change(_: &[u64]) -> u64 { 1 }
//! # fn handle(headers: &http::HeaderMap) -> Result<(), Unmet> {
//! let seen = IfMatch::read(headers)?;
//! let rows_changed = change(seen.versions()?);
//! match Guarded::of_rows(rows_changed) {
//!     Ok(Guarded::Made) => Ok(()), // 200, with `etag::of(version)`
//!     _ => Err(Unmet::Changed),    // 412; roll back
//! }
//! # }
//! # let mut headers = http::HeaderMap::new();
//! # assert_eq!(handle(&headers), Err(Unmet::Unsaid));
//! # headers.insert("if-match", etag::of(7));
//! # assert_eq!(handle(&headers), Ok(()));
//! ```
//!
//! Asking for the version first and changing the row then would be two steps, with room for another between them.
//! A client whose answer was lost and who is told `412` cannot tell whether its own change was the one: it reads
//! the resource again, or sends a key.

use http::header::{HeaderValue, IF_MATCH};
use http::{HeaderMap, StatusCode};
use semel_core::mutant;

/// Most versions one request may name.
pub const VERSIONS_MAX: usize = 64;

/// The tag of a version, for the header `ETag`: `"7"`.
pub fn of(version: u64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{version}\"")).expect("digits and quotes are visible")
}

/// What a client says of the version it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// Nothing.
    Unsaid,
    /// `*`: any version, as long as there is one.
    Any,
    /// One of these. None, if all its tags are weak or somebody else's: they match nothing.
    OneOf(Vec<u64>),
}

/// Why a change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// The change must name a version, and does not.
    #[error("read the resource, and send its ETag as If-Match")]
    Unsaid,
    /// If-Match cannot be read.
    #[error("If-Match is `*`, or at most {VERSIONS_MAX} tags in quotes with commas between them")]
    Malformed,
    /// The resource has another version, or is not there.
    #[error("the resource has changed; read it again")]
    Changed,
}

impl Unmet {
    /// 428, 400 or 412.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Unsaid => StatusCode::PRECONDITION_REQUIRED,
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Changed => StatusCode::PRECONDITION_FAILED,
        }
    }
}

impl IfMatch {
    /// From the headers of a request.
    pub fn read(headers: &HeaderMap) -> Result<Self, Unmet> {
        let mut said = None;
        for line in headers.get_all(IF_MATCH) {
            let line = line.to_str().map_err(|_| Unmet::Malformed)?.trim_matches(BLANK);
            said = match (said, line) {
                (None, "*") => Some(Self::Any),
                (None, list) => Some(Self::OneOf(tags(list)?)),
                (Some(Self::OneOf(mut versions)), list) if list != "*" => {
                    versions.extend(tags(list)?);
                    Some(Self::OneOf(versions))
                }
                _ => return Err(Unmet::Malformed),
            };
        }
        match said {
            Some(Self::OneOf(versions)) if versions.len() > VERSIONS_MAX => Err(Unmet::Malformed),
            said => Ok(said.unwrap_or(Self::Unsaid)),
        }
    }

    /// The versions a statement has to name. Neither nothing nor `*` will do: they would overwrite what the client has
    /// not seen.
    pub fn versions(&self) -> Result<&[u64], Unmet> {
        match self {
            Self::OneOf(versions) => Ok(versions),
            Self::Unsaid | Self::Any => Err(Unmet::Unsaid),
        }
    }
}

const BLANK: [char; 2] = [' ', '\t'];

/// Tags of a list; weak and foreign ones are read and left out.
fn tags(list: &str) -> Result<Vec<u64>, Unmet> {
    let mut versions = Vec::new();
    let mut rest = list;
    loop {
        // A list may have empty places.
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return Ok(versions);
        }
        let (weak, quoted) = match rest.strip_prefix("W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        let inner = quoted.strip_prefix('"').ok_or(Unmet::Malformed)?;
        let (tag, after) = inner.split_once('"').ok_or(Unmet::Malformed)?;
        rest = after.trim_start_matches(BLANK);
        if !rest.is_empty() && !rest.starts_with(',') {
            return Err(Unmet::Malformed);
        }
        if !weak || mutant::on("weak-tag-matches") {
            versions.extend(version(tag));
        }
    }
}

/// Only as we write them: `07` and `+7` are other tags.
fn version(tag: &str) -> Option<u64> {
    tag.parse().ok().filter(|version: &u64| version.to_string() == tag)
}

#[cfg(feature = "axum")]
mod extract {
    use axum_core::extract::FromRequestParts;
    use axum_core::response::{IntoResponse, Response};
    use http::request::Parts;

    use super::{IfMatch, Unmet};

    impl IntoResponse for Unmet {
        fn into_response(self) -> Response {
            (self.status(), self.to_string()).into_response()
        }
    }

    impl<S: Sync> FromRequestParts<S> for IfMatch {
        type Rejection = Unmet;

        async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Unmet> {
            Self::read(&parts.headers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Result<IfMatch, Unmet> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(IF_MATCH, line.parse().unwrap());
        }
        IfMatch::read(&headers)
    }

    #[test]
    fn a_tag_comes_back_as_its_version() {
        // G-71
        for version in [0, 7, u64::MAX] {
            let line = of(version);
            assert_eq!(read(&[line.to_str().unwrap()]), Ok(IfMatch::OneOf(vec![version])));
        }
        let several = [r#" "1" ,"2",, "x,y", "3""#, r#""4""#];
        assert_eq!(read(&several), Ok(IfMatch::OneOf(vec![1, 2, 3, 4])));
    }

    #[test]
    fn weak_and_foreign_tags_match_nothing() {
        // G-71
        for line in [r#"W/"7""#, r#""07""#, r#""+7""#, r#""abc""#, r#""""#, r#""18446744073709551616""#] {
            assert_eq!(read(&[line]), Ok(IfMatch::OneOf(vec![])), "{line}");
        }
    }

    #[test]
    fn a_change_must_say_which_version_it_saw() {
        // G-71
        assert_eq!(read(&[]).unwrap().versions(), Err(Unmet::Unsaid));
        assert_eq!(read(&["*"]).unwrap().versions(), Err(Unmet::Unsaid));
        assert_eq!(read(&["\"7\""]).unwrap().versions(), Ok(&[7][..]));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let many = vec!["\"1\""; VERSIONS_MAX + 1].join(",");
        for lines in
            [&["7"][..], &["\"7"], &["\"7\"8"], &["\"7\" \"8\""], &["*, \"7\""], &["*", "*"], &["*", "\"7\""]]
                .into_iter()
                .chain([&[many.as_str()][..], &["\"7\"", "*"]])
        {
            assert_eq!(read(lines), Err(Unmet::Malformed), "{lines:?}");
        }
    }
}
