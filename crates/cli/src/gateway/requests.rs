//! All requests that a set of path patterns can tell apart, one example of each.
//!
//! Two questions about a configuration are questions about every possible request: can this route ever be
//! reached, and does any request belong to another route after a reload? There are only finitely many kinds
//! of paths to patterns made of whole segments, so both are answered exactly, by walking through all of them.
//! The walk is bounded; beyond [`STEPS_MAX`] it gives up and says so, rather than guess.

use std::collections::{BTreeSet, HashSet};

use super::matching::{Pattern, Segment};

/// Most comparisons of a segment with a pattern.
pub(crate) const STEPS_MAX: usize = 20_000_000;

/// The patterns are too many and too much alike to be compared in full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Calls `visit` with an example of every kind of path, and the indices of the patterns that take it.
pub(crate) fn every_kind(patterns: &[Pattern], visit: &mut dyn FnMut(&str, &[usize])) -> Result<(), TooMany> {
    let literals =
        patterns.iter().flat_map(|pattern| pattern.segments()).filter_map(|segment| match segment {
            Segment::Literal(text) => Some(&**text),
            Segment::Any | Segment::Rest => None,
        });
    let literals: BTreeSet<&str> = literals.collect();
    let fresh = fresh(&literals);
    let mut walk = Walk { patterns, fresh: &fresh, seen: HashSet::new(), steps: 0, visit };
    walk.from(&mut String::new(), 0, (0..patterns.len()).collect(), Vec::new())
}

/// A segment that no pattern names.
fn fresh(literals: &BTreeSet<&str>) -> String {
    let mut fresh = String::from("x");
    while literals.contains(fresh.as_str()) {
        fresh.push('x');
    }
    fresh
}

struct Walk<'a> {
    patterns: &'a [Pattern],
    fresh: &'a str,
    /// Depth, patterns that go on, patterns that have taken all: from here on nothing new can happen.
    seen: HashSet<(usize, Vec<usize>, Vec<usize>)>,
    steps: usize,
    visit: &'a mut dyn FnMut(&str, &[usize]),
}

impl Walk<'_> {
    /// `alive` match the path so far and want more segments; `done` take whatever follows.
    fn from(
        &mut self,
        path: &mut String,
        depth: usize,
        alive: Vec<usize>,
        done: Vec<usize>,
    ) -> Result<(), TooMany> {
        if !self.seen.insert((depth, alive.clone(), done.clone())) {
            return Ok(());
        }
        let named = alive.iter().filter_map(|one| match self.patterns[*one].segments().get(depth) {
            Some(Segment::Literal(text)) => Some(&**text),
            _ => None,
        });
        // An empty segment is a kind of its own: no parameter takes it.
        let parts: BTreeSet<&str> = named.chain([self.fresh, ""]).collect();
        for part in parts {
            self.steps += 1 + alive.len();
            if self.steps > STEPS_MAX {
                return Err(TooMany);
            }
            let (mut further, mut taken, mut all) = (Vec::new(), done.clone(), done.clone());
            for &one in &alive {
                let segments = self.patterns[one].segments();
                match &segments[depth] {
                    Segment::Rest => {
                        taken.push(one);
                        all.push(one);
                    }
                    Segment::Literal(text) if **text != *part => {}
                    Segment::Any if part.is_empty() => {}
                    Segment::Literal(_) | Segment::Any if segments.len() == depth + 1 => taken.push(one),
                    Segment::Literal(_) | Segment::Any => further.push(one),
                }
            }
            let length = path.len();
            path.push('/');
            path.push_str(part);
            taken.sort_unstable();
            all.sort_unstable();
            (self.visit)(path, &taken);
            // Also when no pattern goes on: a longer path is taken by fewer than this one.
            if !further.is_empty() || taken.len() > all.len() {
                self.from(path, depth + 1, further, all)?;
            }
            path.truncate(length);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(patterns: &[&str]) -> Vec<Pattern> {
        patterns.iter().map(|one| Pattern::parse(one).unwrap()).collect()
    }

    fn kinds(patterns: &[Pattern]) -> BTreeSet<Vec<usize>> {
        let mut kinds = BTreeSet::new();
        every_kind(patterns, &mut |_, taken| {
            kinds.insert(taken.to_vec());
        })
        .unwrap();
        kinds
    }

    #[test]
    fn every_combination_of_patterns_is_found() {
        let found = kinds(&parse(&["/a/{x}", "/{y}/b", "/a/{*rest}"]));
        let expected = [vec![], vec![0, 1, 2], vec![0, 2], vec![1], vec![2]];
        assert_eq!(found, expected.into_iter().collect());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn examples_are_true_and_none_is_missing(
            chosen in prop::collection::vec(prop::collection::vec(0..5_usize, 1..4), 1..5),
            path in prop::collection::vec(0..4_usize, 1..5),
        ) {
            let patterns: Vec<Pattern> = chosen.iter().map(|segments| {
                let last = segments.len() - 1;
                let text: String = segments.iter().enumerate().map(|(at, one)| match one {
                    0 => "/a".to_owned(),
                    1 => "/b".to_owned(),
                    2 => "/".to_owned(),
                    4 if at == last => "/{*r}".to_owned(),
                    _ => format!("/{{p{at}}}"),
                }).collect();
                Pattern::parse(&text).unwrap()
            }).collect();
            let by_matching = |path: &str| -> Vec<usize> {
                (0..patterns.len()).filter(|at| patterns[*at].matches(path)).collect()
            };
            let mut wrong = None;
            every_kind(&patterns, &mut |path, taken| {
                if by_matching(path) != taken {
                    wrong = Some(path.to_owned());
                }
            }).unwrap();
            prop_assert_eq!(wrong, None);
            let path: String = path.iter().map(|one| ["/a", "/b", "/", "/other"][*one]).collect();
            prop_assert!(kinds(&patterns).contains(&by_matching(&path)), "{} is missing", path);
        }
    }
}
