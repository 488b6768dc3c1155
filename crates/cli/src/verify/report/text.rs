//! The scorecard for people at a terminal, in a hundred columns.

use std::fmt::Write as _;
use std::io::IsTerminal;

use super::{Report, calls, clipped, effects, how, plural, printable, spent};
use crate::verify::scenario::Answer;
use crate::verify::scorecard::{Finding, Verdict};

/// Columns of a line.
const WIDTH: usize = 100;
/// Characters of a sentence about what was seen.
const SENTENCE_MAX: usize = 600;
/// Lines about the answers of one check.
const ANSWERS_MAX: usize = 12;
/// Characters of what is said about one call.
const NAME_MAX: usize = 40;

/// Whether words are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    On,
    Off,
}

impl Colours {
    /// On for a terminal, unless its user said `NO_COLOR`.
    pub(crate) fn of(output: &impl IsTerminal) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if output.is_terminal() && !set("NO_COLOR") && !dumb { Self::On } else { Self::Off }
    }

    fn paint(self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Green => "32",
            Paint::Red => "31",
            Paint::Dim => "2",
            Paint::Bold => "1",
        };
        if self == Self::On { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A verdict as one sign.
    pub(crate) fn sign(self, verdict: &Verdict) -> String {
        match verdict {
            Verdict::Pass => self.paint(Paint::Green, "✓"),
            Verdict::Fail { .. } => self.paint(Paint::Red, "✗"),
            Verdict::NotShown(_) => self.paint(Paint::Dim, "·"),
        }
    }
}

#[derive(Clone, Copy)]
enum Paint {
    Green,
    Red,
    Dim,
    Bold,
}

/// The whole scorecard.
pub(crate) fn write(report: &Report<'_>, colours: Colours) -> String {
    let card = report.card;
    let mut page = String::new();
    line(&mut page, &colours.paint(Paint::Bold, &printable(&card.target)));
    let run = format!(
        "profile {} · seed {} · {} requests in {}",
        printable(&card.profile),
        card.seed,
        card.requests,
        spent(card.took)
    );
    line(&mut page, &colours.paint(Paint::Dim, &run));
    let id = card.findings.iter().map(|finding| finding.about.id.chars().count()).max().unwrap_or(0);
    let rules = card.findings.iter().map(|finding| rules(finding).chars().count()).max().unwrap_or(0);
    for (family, findings) in report.families() {
        line(&mut page, "");
        line(&mut page, &colours.paint(Paint::Bold, family));
        for finding in findings {
            row(&mut page, finding, colours, id, rules);
        }
    }
    let failed = card.findings.iter().filter(|found| matches!(found.verdict, Verdict::Fail { .. }));
    for finding in failed {
        failure(&mut page, report, finding, colours);
    }
    line(&mut page, "");
    let (pass, fail, not_shown) = card.totals();
    let part = |count: usize, word: &str, paint| match count {
        0 => format!("0 {word}"),
        _ => colours.paint(paint, &format!("{count} {word}")),
    };
    let parts = [
        part(pass, "passed", Paint::Green),
        part(fail, "failed", Paint::Red),
        part(not_shown, "not shown", Paint::Dim),
    ];
    line(&mut page, &format!("{}: {}", plural(card.findings.len(), "check"), parts.join(", ")));
    page
}

/// `  ✓ race    G-8, G-14  However many requests …`
fn row(page: &mut String, finding: &Finding, colours: Colours, id: usize, rules_width: usize) {
    let (about, verdict) = (finding.about, &finding.verdict);
    let indent = 4 + id + 2 + rules_width + 2;
    let said = match verdict {
        Verdict::NotShown(reason) => {
            format!("{} Not shown: {}", about.must, clipped(&printable(reason), SENTENCE_MAX).0)
        }
        Verdict::Pass | Verdict::Fail { .. } => about.must.to_owned(),
    };
    let mut lines = wrapped(&said, WIDTH.saturating_sub(indent).max(30)).into_iter();
    let first = lines.next().unwrap_or_default();
    line(
        page,
        &format!("  {} {:<id$}  {:<rules_width$}  {first}", colours.sign(verdict), about.id, rules(finding)),
    );
    for next in lines {
        line(page, &format!("{:indent$}{next}", ""));
    }
}

fn failure(page: &mut String, report: &Report<'_>, finding: &Finding, colours: Colours) {
    let Verdict::Fail { cause, what, advice } = &finding.verdict else { return };
    line(page, "");
    let title = format!("✗ {}: {cause}", finding.about.id);
    line(page, &colours.paint(Paint::Red, &title));
    let what = printable(what);
    let (sentence, more) = clipped(&what, SENTENCE_MAX);
    paragraph(page, "seen", &format!("{sentence}{}", if more.is_some() { " …" } else { "" }));
    for (effects, _) in effects(finding) {
        paragraph(page, "", &printable(&effects));
    }
    let all: Vec<_> = calls(finding).filter_map(|(call, answer)| Some((call, answer?))).collect();
    for (call, answer) in all.iter().take(ANSWERS_MAX) {
        let how = how(call.how).map_or(String::new(), |how| format!(", {how}"));
        let name = printable(&call.name);
        let name = clipped(&name, NAME_MAX).0;
        paragraph(page, "", &format!("{name}{how}: {}", became(answer)));
    }
    if all.len() > ANSWERS_MAX {
        paragraph(page, "", &format!("and {} more answers", all.len() - ANSWERS_MAX));
    }
    paragraph(page, "do", advice);
    match report.script(finding) {
        Some(script) => paragraph(page, "again", &printable(&format!("bash {script}"))),
        None => paragraph(page, "again", &format!("--only {} --seed {}", finding.about.id, report.card.seed)),
    }
}

/// `201 after 12 ms`.
fn became(answer: &Answer) -> String {
    let after = spent(answer.ended.saturating_sub(answer.sent));
    match &answer.reply {
        Ok(reply) => format!("{} after {after}", reply.status),
        Err(why) => format!("{} after {after}", clipped(&printable(why), NAME_MAX).0),
    }
}

/// A text under a word at its left.
fn paragraph(page: &mut String, word: &str, text: &str) {
    for (at, part) in wrapped(text, WIDTH - 10).into_iter().enumerate() {
        line(page, &format!("  {:<6}  {part}", if at == 0 { word } else { "" }));
    }
}

fn rules(finding: &Finding) -> String {
    finding.about.rules.join(", ")
}

fn line(page: &mut String, text: &str) {
    writeln!(page, "{}", text.trim_end()).expect("text takes all text");
}

/// Lines no longer than that, broken at spaces where there are some.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut now = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if used > 0 && used + 1 + word.len() > width {
            lines.push(std::mem::take(&mut now));
            used = 0;
        }
        while word.len() > width {
            lines.push(word.drain(..width).collect());
        }
        if used > 0 {
            now.push(' ');
            used += 1;
        }
        used += word.len();
        now.extend(word);
    }
    lines.push(now);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::report::samples;

    #[test]
    fn it_fits_a_hundred_columns_and_obeys_nobody() {
        let sample = samples::hostile();
        let text = write(&sample.report(), Colours::Off);
        assert!(!text.contains(samples::SECRET) && !text.contains('\x1b'), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn it_says_what_failed_how_and_what_to_do() {
        let mut sample = samples::hostile();
        if let Verdict::Fail { what, .. } = &mut sample.card.findings[1].verdict {
            *what = "two of 3 simultaneous requests took effect".into();
        }
        sample.card.findings[2].verdict = Verdict::NotShown("give --expiry to wait for it".into());
        let text = write(&sample.report(), Colours::Off);
        for part in [
            "  ✓ replay  G-14       A retry gets the first answer back.",
            "  ✗ race    G-8, G-14  However many requests with one key come at once, one takes effect.",
            "  · expiry  G-10       A key is forgotten after its time. Not shown: give --expiry to wait for it",
            "✗ race: not-atomic",
            "  seen    two of 3 simultaneous requests took effect",
            "          effects: 2, allowed 1",
            "          racer 2, answer cut off in its head: 500 after 19 ms",
            "  do      Claim the key in one atomic step",
            "  again   bash repro/race.sh",
            "3 checks: 1 passed, 1 failed, 1 not shown",
        ] {
            assert!(text.contains(part), "{part:?} is missing:\n{text}");
        }
        sample.scripts.clear();
        let text = write(&sample.report(), Colours::Off);
        assert!(text.contains(&format!("--only race --seed {}", u64::MAX)), "{text}");
    }

    #[test]
    fn colours_are_added_only_where_they_are_wanted() {
        let text = write(&samples::hostile().report(), Colours::On);
        assert!(text.contains("\x1b[31m✗\x1b[0m") && text.contains("\x1b[32m✓\x1b[0m"));
        assert!(!text.contains("\u{1b}[31m\0"));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Colours::of(&file), Colours::Off);
    }

    #[test]
    fn long_words_are_broken_and_short_ones_are_not() {
        assert_eq!(wrapped("ab cd efghijk l", 5), ["ab cd", "efghi", "jk l"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}
