//! What somebody wrote, where they wrote it, and what is wrong with it.
//!
//! Every value keeps its place until it is judged, so that a mistake can name it. Mistakes are collected,
//! never thrown: whoever mends a file wants to hear of all of them at once.

use std::fmt;
use std::sync::Arc;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Lines and columns count from one; columns are characters.
    File { name: Arc<str>, line: usize, column: usize },
    /// On the command line.
    Flag(String),
    /// In the environment.
    Variable(String),
    /// Nowhere: it is the default.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::Default => f.write_str("default"),
        }
    }
}

impl Place {
    /// The sentence without the setting's name, where the place has said it already.
    fn without_own_name<'a>(&self, sentence: &'a str) -> &'a str {
        let name = match self {
            Self::Flag(flag) => flag.trim_start_matches("--").replace('-', "_"),
            Self::Variable(variable) => variable.trim_start_matches("SEMEL_").to_ascii_lowercase(),
            Self::File { .. } | Self::Default => return sentence,
        };
        sentence.strip_prefix(&name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(sentence)
    }
}

/// A value as it was written.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// The text may be a secret.
impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Written({})", self.place)
    }
}

/// One thing that is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mistake {
    pub(crate) place: Place,
    pub(crate) sentence: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Default => f.write_str(&self.sentence),
            _ => write!(f, "{}: {}", self.place, self.place.without_own_name(&self.sentence)),
        }
    }
}

/// All that was found so far.
#[derive(Debug, Default)]
pub(crate) struct Mistakes {
    found: Vec<Mistake>,
    /// Lines that could not even be read.
    syntax: Vec<Mistake>,
}

impl Mistakes {
    /// Adds one. What a default got wrong for several routes is said once.
    pub(crate) fn add(&mut self, place: &Place, sentence: impl Into<String>) {
        let mistake = Mistake { place: place.clone(), sentence: sentence.into() };
        if !self.found.contains(&mistake) {
            self.found.push(mistake);
        }
    }

    /// Adds one that leaves open what its line was to mean.
    pub(crate) fn add_syntax(&mut self, place: Place, sentence: String) {
        self.syntax.push(Mistake { place, sentence });
    }

    /// In the order of the file. What else was said about lines that cannot be read, or about something
    /// missing that may have stood there, is left out.
    pub(crate) fn into_sorted(self) -> Vec<Mistake> {
        let Self { mut found, mut syntax } = self;
        let known = |mistake: &Mistake| !syntax.iter().any(|other| line(other) == line(mistake));
        found.retain(|mistake| syntax.is_empty() || mistake.place != Place::Default && known(mistake));
        found.append(&mut syntax);
        found.sort();
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty() && self.syntax.is_empty()
    }
}

fn line(mistake: &Mistake) -> Option<usize> {
    match mistake.place {
        Place::File { line, .. } => Some(line),
        _ => None,
    }
}

/// Ends a sentence about an unknown name with the known one it resembles most.
pub(crate) fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known
        .map(|one| (strsim::damerau_levenshtein(name, one), one))
        .filter(|(distance, one)| *distance <= 1 + one.len() / 5)
        .min();
    near.map(|(_, one)| format!("; did you mean `{one}`?")).unwrap_or_default()
}
