//! How a run goes on, for whoever waits for it: a bar on a terminal, and a line per check elsewhere.
//!
//! It writes to standard error, so that standard output is the report and nothing else.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};

use super::report::text::Colours;
use super::report::{printable, spent};
use super::scorecard::{About, Finding, Verdict};
use super::setup::Watch;

/// Characters of what is said about one check.
const SAID_MAX: usize = 200;

/// Shows each check as it begins and ends.
pub(crate) struct Progress {
    shown: Shown,
    colours: Colours,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
}

struct Lines {
    output: Box<dyn Write + Send>,
    ended: usize,
    of: usize,
}

impl Progress {
    /// On standard error, in the way that suits it.
    pub(crate) fn on_stderr() -> Self {
        let output = std::io::stderr();
        let colours = Colours::of(&output);
        if !output.is_terminal() {
            return Self::lines(Box::new(output));
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{pos:>3}/{len} {bar:24} {wide_msg}") {
            bar.set_style(style);
        }
        Self { shown: Shown::Bar(bar), colours }
    }

    fn lines(output: Box<dyn Write + Send>) -> Self {
        let lines = Lines { output, ended: 0, of: 0 };
        Self { shown: Shown::Lines(Mutex::new(lines)), colours: Colours::Off }
    }

    fn said(&self, finding: &Finding) -> String {
        let (id, took) = (finding.about.id, spent(finding.took));
        let sign = self.colours.sign(&finding.verdict);
        let clip = |text: &str| printable(text).chars().take(SAID_MAX).collect::<String>();
        match &finding.verdict {
            Verdict::Pass => format!("{sign} {id} ({took})"),
            Verdict::Fail { what, .. } => format!("{sign} {id} ({took}): {}", clip(what)),
            Verdict::NotShown(reason) => format!("{sign} {id}: not shown: {}", clip(reason)),
        }
    }
}

impl Watch for Progress {
    fn began(&self, about: &About, _at: usize, of: usize) {
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_length(of as u64);
                bar.set_message(format!("{}: {}", about.id, about.must));
            }
            Shown::Lines(lines) => {
                if let Ok(mut lines) = lines.lock() {
                    lines.of = of;
                }
            }
        }
    }

    fn ended(&self, finding: &Finding) {
        let said = self.said(finding);
        match &self.shown {
            Shown::Bar(bar) => {
                bar.inc(1);
                // What went well is in the report; a failure should not have to wait for it.
                if matches!(finding.verdict, Verdict::Fail { .. }) {
                    bar.println(said);
                }
            }
            Shown::Lines(lines) => {
                let Ok(mut lines) = lines.lock() else { return };
                lines.ended += 1;
                let (ended, of) = (lines.ended, lines.of);
                // Nobody listens any more: that must not end the run.
                let _ = writeln!(lines.output, "{ended:>3}/{of} {said}");
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::verify::report::samples;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn where_there_is_no_terminal_each_check_is_one_line() {
        let (kept, sample) = (Kept::default(), samples::hostile());
        let progress = Progress::lines(Box::new(kept.clone()));
        for (at, finding) in sample.card.findings.iter().enumerate() {
            progress.began(&finding.about, at, 3);
            progress.ended(finding);
        }
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], "  1/3 ✓ replay (1.2 s)");
        assert!(lines[1].starts_with("  2/3 ✗ race (1.2 s): "), "{text}");
        assert!(lines[2].starts_with("  3/3 · expiry: not shown: "), "{text}");
        assert!(!text.contains('\x1b'));
    }
}
