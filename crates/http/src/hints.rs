//! What a service says about its effect beside its answer.
//!
//! A service in this process says it through [`Op`](crate::Op) or puts [`Hints`] or [`Fate`] into the
//! extensions of its response; nobody can forge those over a network. One behind a gateway says it in
//! the header `Semel-Hint`, and is believed only if the response also carries the nonce of the attempt:
//! a copied or cached header speaks of another attempt.

use std::time::Duration;

use http::HeaderMap;
use semel_core::{Nonce, mutant};

use crate::header;

/// The hints of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The effect certainly did not happen: the key is free again.
    pub nothing_happened: bool,
    /// The service decided: this answer is the outcome, whatever its status.
    pub decided: bool,
    /// Remember that it happened, not what was answered.
    pub do_not_keep: bool,
    /// Remember it at least so long from its creation, if that is longer than the route does.
    pub keep_longer: Option<Duration>,
}

/// What became of a request that got no proper answer. The inner service of a gateway puts it into the
/// extensions of the response it makes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// No byte of it was sent, or the other side refused it unread.
    NothingHappened,
    /// It may or may not have arrived. The text says why.
    Unknown(String),
}

impl Hints {
    /// Reads the header lines, if they echo the nonce of this attempt.
    pub fn in_headers(headers: &HeaderMap, nonce: Nonce) -> Self {
        let mut hints = Self::default();
        if !headers.contains_key(header::HINT) || !echoes(headers, nonce) {
            return hints;
        }
        for line in headers.get_all(header::HINT) {
            let words = line.to_str().unwrap_or_default().split(',');
            words.for_each(|word| hints.hear(word.trim()));
        }
        hints
    }

    /// Words that mean nothing here are ignored: a newer service may say more.
    fn hear(&mut self, word: &str) {
        match word.split_once('=').map_or((word, ""), |(name, value)| (name.trim(), value.trim())) {
            ("nothing-happened", "") => self.nothing_happened = true,
            ("decided", "") => self.decided = true,
            ("do-not-keep", "") => self.do_not_keep = true,
            ("keep-longer", seconds) => {
                if let Ok(seconds) = seconds.parse::<u32>() {
                    self.keep_longer = self.keep_longer.max(Some(Duration::from_secs(seconds.into())));
                }
            }
            _ => {}
        }
    }

    /// Everything either of the two says.
    pub fn and(self, other: Self) -> Self {
        Self {
            nothing_happened: self.nothing_happened || other.nothing_happened,
            decided: self.decided || other.decided,
            do_not_keep: self.do_not_keep || other.do_not_keep,
            keep_longer: self.keep_longer.max(other.keep_longer),
        }
    }
}

fn echoes(headers: &HeaderMap, nonce: Nonce) -> bool {
    if mutant::on("hint-without-nonce") {
        return true;
    }
    let mut lines = headers.get_all(header::NONCE).iter();
    let echo = lines.next().and_then(|line| line.to_str().ok());
    lines.next().is_none() && echo.is_some_and(|echo| echo.eq_ignore_ascii_case(&nonce.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str], echo: &[String], nonce: Nonce) -> Hints {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::HINT, line.parse().unwrap());
        }
        for line in echo {
            headers.append(header::NONCE, line.parse().unwrap());
        }
        Hints::in_headers(&headers, nonce)
    }

    #[test]
    fn hints_count_only_beside_the_nonce_of_the_attempt() {
        // G-21
        let (mine, other) = (Nonce::random(), Nonce::random());
        let said = |echo: &[String]| heard(&["nothing-happened"], echo, mine).nothing_happened;
        assert!(said(&[mine.to_string()]));
        assert!(said(&[mine.to_string().to_uppercase()]));
        assert!(!said(&[]));
        assert!(!said(&[other.to_string()]));
        assert!(!said(&[mine.to_string(), other.to_string()]), "two nonces are none");
        assert!(!said(&[String::new()]));
    }

    #[test]
    fn words_are_read_from_all_lines_and_unknown_ones_ignored() {
        // G-21
        let nonce = Nonce::random();
        let hints = heard(
            &["decided , keep-longer = 60", "do-not-keep,keep-longer=30,shiny", "keep-longer=soon"],
            &[nonce.to_string()],
            nonce,
        );
        let expected = Hints {
            decided: true,
            do_not_keep: true,
            keep_longer: Some(Duration::from_secs(60)),
            nothing_happened: false,
        };
        assert_eq!(hints, expected);
        assert_eq!(heard(&["nothing-happened=no"], &[nonce.to_string()], nonce), Hints::default());
    }
}
