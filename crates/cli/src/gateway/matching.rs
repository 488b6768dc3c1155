//! Which route takes a request: the first in the order of the configuration whose methods and path match.
//!
//! Patterns are made of whole segments. `{name}` stands for one segment that is not empty; `{*rest}` at the
//! end stands for everything after its slash, also for nothing. `/files/{*rest}` therefore takes `/files/`
//! and `/files/a/b`, not `/files`.
//!
//! The path is compared as it was sent, byte for byte. Nothing is decoded and nothing is tidied up: `/a%2Fb`
//! has one segment, `/%61` is not `/a`, and `//`, `/./` and a slash at the end count. A proxy that decoded
//! would have to guess how the service behind it does; a request that matches no route because it was
//! written unusually still gets the defaults. The query does not take part.
//!
//! Looking up allocates nothing.

use http::Method;

use crate::config::resolved::Route;

/// Most segments of a pattern.
pub(crate) const SEGMENTS_MAX: usize = 64;

/// What a request is to Semel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The route at this index.
    Route(usize),
    /// No route, and a method that the defaults protect: POST or PATCH.
    Fallback,
    /// No route, and a method that is protected only where configured.
    Untouched,
}

/// A path pattern, ready to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    segments: Box<[Segment]>,
}

/// What one segment of a path must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(Box<str>),
    /// `{name}`: any but an empty one.
    Any,
    /// `{*rest}`: this one and all that follow.
    Rest,
}

impl Pattern {
    /// Reads a pattern, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("the path `{text}` does not begin with a slash"));
        };
        if let Some(odd) = text.chars().find(|c| !c.is_ascii_graphic() || "?#".contains(*c)) {
            return Err(format!(
                "the path `{text}` has {odd:?} in it; paths are compared as they are sent, so write it \
                 percent-encoded, and leave out the query"
            ));
        }
        let parts: Vec<&str> = rest.split('/').collect();
        if parts.len() > SEGMENTS_MAX {
            return Err(format!(
                "the path has {} segments; the most accepted is {SEGMENTS_MAX}",
                parts.len()
            ));
        }
        let mut names = Vec::new();
        let mut segments = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
                if part.contains(['{', '}']) {
                    return Err(format!(
                        "in the path `{text}`, `{part}` is not one whole parameter; a parameter takes a whole segment: `/{{name}}/`"
                    ));
                }
                segments.push(Segment::Literal((*part).into()));
                continue;
            };
            let (name, segment) = match name.strip_prefix('*') {
                Some(name) if at + 1 == parts.len() => (name, Segment::Rest),
                Some(_) => {
                    return Err(format!(
                        "in the path `{text}`, `{part}` is not at the end; nothing could follow it"
                    ));
                }
                None => (name, Segment::Any),
            };
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                return Err(format!(
                    "in the path `{text}`, `{part}` needs a name of letters, digits and `_`"
                ));
            }
            if names.contains(&name) {
                return Err(format!("in the path `{text}`, the name `{name}` stands twice"));
            }
            names.push(name);
            segments.push(segment);
        }
        Ok(Self { segments: segments.into() })
    }

    /// Whether it takes this path.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else { return false };
        let mut parts = path.split('/');
        for segment in &self.segments {
            let Some(part) = parts.next() else { return false };
            match segment {
                Segment::Literal(text) if **text == *part => {}
                Segment::Any if !part.is_empty() => {}
                Segment::Rest => return true,
                Segment::Literal(_) | Segment::Any => return false,
            }
        }
        parts.next().is_none()
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

/// All routes in their order.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    routes: Vec<(Vec<Method>, Pattern)>,
}

impl Matcher {
    /// Takes the patterns of resolved routes, which have been judged.
    pub(crate) fn new(routes: &[Route]) -> Self {
        let routes = routes.iter().map(|route| {
            let pattern = Pattern::parse(&route.pattern).expect("resolved routes have good patterns");
            (route.methods().to_vec(), pattern)
        });
        Self { routes: routes.collect() }
    }

    /// Who takes the request. `path` is the raw path, without the query.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Match {
        let takes =
            |(methods, pattern): &(Vec<Method>, Pattern)| methods.contains(method) && pattern.matches(path);
        let found = if semel::mutant::on("last-route-wins") {
            self.routes.iter().rposition(takes)
        } else {
            self.routes.iter().position(takes)
        };
        match found {
            Some(index) => Match::Route(index),
            None if Route::PROTECTED_METHODS.contains(method) => Match::Fallback,
            None => Match::Untouched,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn takes(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(path)
    }

    fn matcher(routes: &[(&[Method], &str)]) -> Matcher {
        let ready =
            routes.iter().map(|(methods, pattern)| (methods.to_vec(), Pattern::parse(pattern).unwrap()));
        Matcher { routes: ready.collect() }
    }

    #[test]
    fn parameters_take_whole_segments() {
        assert!(takes("/orders/{id}", "/orders/7") && !takes("/orders/{id}", "/orders/7/items"));
        assert!(!takes("/orders/{id}", "/orders/") && !takes("/orders/{id}", "/orders"));
        assert!(takes("/files/{*rest}", "/files/a/b/") && takes("/files/{*rest}", "/files/"));
        assert!(!takes("/files/{*rest}", "/files") && takes("/{*all}", "/"));
        assert!(takes("/", "/") && !takes("/", "") && !takes("/", "*"));
    }

    #[test]
    fn the_path_is_compared_as_it_was_sent() {
        // G-1
        assert!(
            !takes("/a", "/%61")
                && !takes("/a", "/a/")
                && !takes("/a/b", "/a//b")
                && !takes("/a/b", "/a/./b")
        );
        assert!(takes("/{x}", "/a%2Fb") && takes("/%61", "/%61"));
    }

    #[test]
    fn the_first_route_wins() {
        // G-1
        let post = [Method::POST];
        let routes = matcher(&[(&post, "/a/{x}"), (&post, "/a/b"), (&[Method::PUT], "/a/b")]);
        assert_eq!(routes.find(&Method::POST, "/a/b"), Match::Route(0));
        assert_eq!(routes.find(&Method::PUT, "/a/b"), Match::Route(2));
        assert_eq!(routes.find(&Method::PATCH, "/a/b"), Match::Fallback);
        assert_eq!(routes.find(&Method::DELETE, "/a/b"), Match::Untouched);
        assert_eq!(routes.find(&Method::GET, "/a/b"), Match::Untouched);
    }

    #[test]
    fn bad_patterns_are_refused_with_the_reason() {
        for (pattern, reason) in [
            ("orders", "slash"),
            ("/a?b", "query"),
            ("/ä", "percent-encoded"),
            ("/a b", "percent-encoded"),
            ("/{id}.json", "whole segment"),
            ("/{id", "whole segment"),
            ("/{*rest}/x", "at the end"),
            ("/{}", "name"),
            ("/{*}", "name"),
            ("/{a}/{a}", "twice"),
        ] {
            let said = Pattern::parse(pattern).unwrap_err();
            assert!(said.contains(reason), "{pattern}: {said}");
        }
        assert!(Pattern::parse(&"/a".repeat(65)).is_err());
    }

    /// The definition, written as slowly as possible: lists of segments, compared from the front.
    fn naive(pattern: &str, path: &str) -> bool {
        let split = |text: &str| -> Vec<String> { text.split('/').skip(1).map(str::to_owned).collect() };
        fn go(pattern: &[String], path: &[String]) -> bool {
            match (pattern, path) {
                ([], []) => true,
                ([one], [_, ..]) if one.starts_with("{*") => true,
                ([one, pattern @ ..], [part, path @ ..]) => {
                    (one == part || one.starts_with('{') && !part.is_empty()) && go(pattern, path)
                }
                _ => false,
            }
        }
        path.starts_with('/') && go(&split(pattern), &split(path))
    }

    fn pattern() -> impl Strategy<Value = String> {
        let segment = prop_oneof![Just("a"), Just("b"), Just("%61"), Just(""), Just("{}")];
        (prop::collection::vec(segment, 0..4), any::<bool>()).prop_map(|(segments, rest)| {
            let mut text = String::new();
            for (at, segment) in segments.iter().enumerate() {
                text += "/";
                text += &segment.replace("{}", &format!("{{p{at}}}"));
            }
            if rest || text.is_empty() { text + "/{*rest}" } else { text }
        })
    }

    fn path() -> impl Strategy<Value = String> {
        let segment = prop_oneof![Just("a"), Just("b"), Just("%61"), Just(""), Just("c"), Just(".")];
        prop::collection::vec(segment, 1..5).prop_map(|segments| format!("/{}", segments.join("/")))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn finding_agrees_with_the_definition(patterns in prop::collection::vec(pattern(), 0..6), path in path()) {
            // G-1
            let post = [Method::POST];
            let routes: Vec<(&[Method], &str)> = patterns.iter().map(|one| (&post[..], one.as_str())).collect();
            let expected = patterns.iter().position(|one| naive(one, &path));
            let found = matcher(&routes).find(&Method::POST, &path);
            prop_assert_eq!(found, expected.map_or(Match::Fallback, Match::Route));
        }

        #[test]
        fn no_pattern_and_no_path_panics(pattern in ".{0,40}", path in ".{0,40}") {
            if let Ok(pattern) = Pattern::parse(&pattern) {
                pattern.matches(&path);
            }
        }
    }
}
