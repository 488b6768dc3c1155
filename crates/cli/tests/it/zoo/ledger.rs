//! The effects that happened, a line each, in a file that survives whoever wrote it.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::service::Answer;

pub(super) struct Ledger(PathBuf);

#[derive(Serialize, Deserialize)]
struct Line {
    tag: String,
    operation: String,
    answer: Answer,
}

impl Ledger {
    pub(super) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The effect itself: from here on it has happened.
    pub(super) fn enter(&self, tag: &str, operation: &str, answer: &Answer) {
        let line = Line { tag: tag.into(), operation: operation.into(), answer: answer.clone() };
        append(&self.0, &line);
    }

    pub(super) fn count(&self, tag: &str) -> usize {
        self.lines().filter(|line| line.tag == tag).count()
    }

    pub(super) fn answer_of(&self, operation: &str) -> Option<Answer> {
        self.lines().find(|line| line.operation == operation).map(|line| line.answer)
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        read(&self.0).into_iter()
    }
}

/// One line, one write, on disk when it returns.
pub(super) fn append(path: &Path, line: &impl Serialize) {
    let text = serde_json::to_string(line).expect("a line is plain data") + "\n";
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("the file opens");
    file.write_all(text.as_bytes()).expect("the file takes a line");
    file.sync_data().expect("the file is on disk");
}

/// All lines but one that a crash cut short.
pub(super) fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
