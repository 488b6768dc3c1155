//! The scorecard in every form people and machines read.
//!
//! A report shows what was sent and what came back, and both hold what the service says and what the user
//! keeps secret. So each form writes foreign text through the escape of its format, and every header goes
//! through [`shown_header`]. Bodies are shown as they are: they are what is being tested.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::safety::{HIDDEN, is_secret};
use super::scenario::{Answer, Call, How, Region, Scenario, Step};
use super::scorecard::{Finding, Scorecard, Verdict};

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod junit;
mod markup;
mod picture;
pub(crate) mod sarif;
pub(crate) mod text;

#[cfg(test)]
pub(super) mod samples;

/// A scorecard, and where the scripts are that show its failures again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) card: &'a Scorecard,
    /// By the id of the check.
    pub(crate) scripts: &'a BTreeMap<&'static str, PathBuf>,
}

impl Report<'_> {
    fn script(&self, finding: &Finding) -> Option<String> {
        self.scripts.get(finding.about.id).map(|path| path.display().to_string())
    }

    /// Findings by family, in the order in which families first come.
    fn families(&self) -> Vec<(&'static str, Vec<&Finding>)> {
        let mut families: Vec<(&'static str, Vec<&Finding>)> = Vec::new();
        for finding in &self.card.findings {
            match families.iter_mut().find(|(family, _)| *family == finding.about.family) {
                Some((_, members)) => members.push(finding),
                None => families.push((finding.about.family, vec![finding])),
            }
        }
        families
    }
}

/// The value of a header as it may be shown. The idempotency key is no secret: a report is about it.
pub(crate) fn shown_header<'a>(name: &str, value: &'a [u8]) -> Cow<'a, str> {
    if is_secret(name) { Cow::Borrowed(HIDDEN) } else { String::from_utf8_lossy(value) }
}

/// `pass`, `fail` or `not shown`.
fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail { .. } => "fail",
        Verdict::NotShown(_) => "not shown",
    }
}

/// Every call of a scenario in its order, with what became of it.
fn calls(finding: &Finding) -> impl Iterator<Item = (&Call, Option<&Answer>)> {
    let calls = all_calls(&finding.scenario).enumerate();
    calls.map(|(at, call)| (call, finding.seen.answers.get(at)))
}

/// Every call of a scenario in its order.
pub(super) fn all_calls(scenario: &Scenario) -> impl Iterator<Item = &Call> {
    scenario.steps.iter().flat_map(|step| match step {
        Step::Send(calls) | Step::Start(calls) => calls.as_slice(),
        Step::Join | Step::Wait(_) | Step::Hook(_) => &[],
    })
}

/// `effects: 2, allowed 1`, for each tag that has a number to it, and whether it is right.
fn effects(finding: &Finding) -> Vec<(String, bool)> {
    let counts = finding.scenario.counts.iter().enumerate();
    let line = |(at, count): (usize, &super::scenario::Count)| {
        let allowed = allowed(&count.allowed);
        let tag = match finding.scenario.counts.len() {
            1 => String::new(),
            _ => format!(" ({})", count.tag),
        };
        match finding.seen.effects.get(at).copied().flatten() {
            Some(effects) => {
                (format!("effects: {effects}, allowed {allowed}{tag}"), count.allowed.contains(&effects))
            }
            None => (format!("effects: not counted, allowed {allowed}{tag}"), true),
        }
    };
    counts.map(line).collect()
}

/// A range of numbers in words.
pub(super) fn allowed(range: &RangeInclusive<u64>) -> String {
    match (*range.start(), *range.end()) {
        (least, most) if least == most => least.to_string(),
        (least, u64::MAX) => format!("{least} or more"),
        (least, most) if least + 1 == most => format!("{least} or {most}"),
        (least, most) => format!("{least} to {most}"),
    }
}

/// How a call was made, in words; nothing for the usual way.
pub(super) fn how(how: How) -> Option<String> {
    match how {
        How::Plain => None,
        How::Cut(Region::BeforeHead) => Some("answer cut off before its head".to_owned()),
        How::Cut(Region::InHead) => Some("answer cut off in its head".to_owned()),
        How::Cut(Region::InBody) => Some("answer cut off in its body".to_owned()),
        How::Abort(after) => Some(format!("connection dropped after {}", spent(after))),
        How::Slow { pieces, pause } => Some(format!("body in {pieces} pieces, {} apart", spent(pause))),
        How::Pipelined(connection) => Some(format!("pipelined on connection {connection}")),
        How::Http2(connection) => Some(format!("HTTP/2 on connection {connection}")),
    }
}

/// A short time as people say it: `850 µs`, `12 ms`, `1.2 s`, `2m 5s`.
pub(super) fn spent(time: Duration) -> String {
    match time.as_micros() {
        0 => "0 ms".to_owned(),
        micros @ 1..1000 => format!("{micros} µs"),
        micros @ 1000..1_000_000 => format!("{} ms", micros / 1000),
        1_000_000..60_000_000 => {
            let text = format!("{:.1}", time.as_secs_f64());
            format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
        }
        _ => crate::time::span(time),
    }
}

/// `1 check`, `2 checks`.
fn plural(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The start of a text and how much of it there is, if it is longer than that.
fn clipped(text: &str, chars_max: usize) -> (&str, Option<usize>) {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => (&text[..end], Some(text.chars().count())),
        None => (text, None),
    }
}

/// One line without anything a terminal would obey.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\t' => shown.push(' '),
            '\r' => {}
            _ if letter.is_control() || markup::turns_text(letter) => shown.extend(letter.escape_default()),
            _ => shown.push(letter),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proves_who_somebody_is_is_hidden_and_the_key_is_not() {
        for name in ["Authorization", "COOKIE", "Set-Cookie", "X-Api-Key", "x-auth-token", "Client-Secret"] {
            assert_eq!(shown_header(name, b"hunter2"), HIDDEN, "{name}");
        }
        for name in ["Idempotency-Key", "X-Idempotency-Token", "content-type", "x-tenant", "accept"] {
            assert_eq!(shown_header(name, b"k-1"), "k-1", "{name}");
        }
        assert_eq!(shown_header("x-odd", b"a\xff"), "a\u{fffd}");
    }

    #[test]
    fn times_and_ranges_are_said_as_people_say_them() {
        let micros = |micros| spent(Duration::from_micros(micros));
        assert_eq!([micros(0), micros(850), micros(12_900)], ["0 ms", "850 µs", "12 ms"]);
        assert_eq!([micros(1_250_000), micros(3_000_000), micros(125_000_000)], ["1.2 s", "3 s", "2m 5s"]);
        assert_eq!([allowed(&(1..=1)), allowed(&(0..=1)), allowed(&(1..=3))], ["1", "0 or 1", "1 to 3"]);
    }

    #[test]
    fn a_terminal_obeys_nothing_that_is_printable() {
        assert_eq!(printable("a\x1b[31m\nb\u{202e}\u{9b}"), "a\\u{1b}[31m b\\u{202e}\\u{9b}");
    }
}
