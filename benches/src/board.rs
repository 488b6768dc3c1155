//! The score of one measurement: samples per contestant, what they mean, and whether they suffice.

use std::fmt;

/// What one contestant did in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// In the board's unit.
    pub(crate) value: f64,
    /// Where single waits were timed.
    pub(crate) latency: Option<Latency>,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Self { value, latency: None }
    }
}

/// Times of single durable waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// All windows of one contestant.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) samples: Vec<Sample>,
}

impl Entry {
    pub(crate) fn median(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.value))
    }

    pub(crate) fn range(&self) -> (f64, f64) {
        let values = || self.samples.iter().map(|sample| sample.value);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    }

    /// The median of each percentile over the windows.
    pub(crate) fn latency(&self) -> Option<Latency> {
        let all: Vec<Latency> = self.samples.iter().filter_map(|sample| sample.latency).collect();
        (!all.is_empty()).then(|| Latency {
            p50_ms: median(all.iter().map(|latency| latency.p50_ms)),
            p99_ms: median(all.iter().map(|latency| latency.p99_ms)),
        })
    }
}

/// A quantity over the course of a run.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A target and what was reached.
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) reached: String,
    pub(crate) target: String,
    pub(crate) passes: bool,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passes { "pass " } else { "SHORT" };
        write!(f, "{verdict}  {}: {} (target {})", self.what, self.reached, self.target)
    }
}

/// The score of one measurement.
pub(crate) struct Board {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    /// The contestant the others are compared with.
    pub(crate) baseline: Option<String>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) lines: Vec<Line>,
    pub(crate) notes: Vec<String>,
    pub(crate) checks: Vec<Check>,
}

impl Board {
    pub(crate) fn new(title: impl Into<String>, unit: &'static str) -> Self {
        let (entries, lines, notes, checks) = Default::default();
        Self { title: title.into(), unit, baseline: None, entries, lines, notes, checks }
    }

    pub(crate) fn against(mut self, baseline: &str) -> Self {
        self.baseline = Some(baseline.to_owned());
        self
    }

    /// Takes one window's result. Contestants appear in the order of their first window.
    pub(crate) fn add(&mut self, name: &str, sample: impl Into<Sample>) {
        let sample = sample.into();
        match self.entries.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => entry.samples.push(sample),
            None => self.entries.push(Entry { name: name.to_owned(), samples: vec![sample] }),
        }
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn median(&self, name: &str) -> f64 {
        self.entry(name).median()
    }

    pub(crate) fn latency(&self, name: &str) -> Latency {
        self.entry(name).latency().expect("this contestant's waits were timed")
    }

    fn entry(&self, name: &str) -> &Entry {
        self.entries.iter().find(|entry| entry.name == name).expect("this contestant took part")
    }

    /// The ratio of an entry's median to the baseline's.
    pub(crate) fn ratio(&self, entry: &Entry) -> Option<f64> {
        self.baseline.as_deref().map(|baseline| entry.median() / self.median(baseline))
    }

    pub(crate) fn at_least(&mut self, what: impl Into<String>, reached: f64, target: f64, unit: &str) {
        self.check(what, reached, format!("≥ {}{unit}", short(target)), unit, reached >= target);
    }

    pub(crate) fn at_most(&mut self, what: impl Into<String>, reached: f64, target: f64, unit: &str) {
        self.check(what, reached, format!("≤ {}{unit}", short(target)), unit, reached <= target);
    }

    pub(crate) fn within(&mut self, what: impl Into<String>, reached: f64, target: f64, unit: &str) {
        self.check(what, reached, format!("±{}{unit}", short(target)), unit, reached.abs() <= target);
    }

    fn check(&mut self, what: impl Into<String>, reached: f64, target: String, unit: &str, passes: bool) {
        let reached = format!("{}{unit}", short(reached));
        self.checks.push(Check { what: what.into(), reached, target, passes });
    }

    /// The table as rows of cells, the head first.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let timed = self.entries.iter().any(|entry| entry.latency().is_some());
        let mut head = vec!["contestant".to_owned(), format!("median {}", self.unit), "min–max".to_owned()];
        head.extend(self.baseline.as_ref().map(|baseline| format!("vs {baseline}")));
        if timed {
            head.extend(["p50 ms", "p99 ms"].map(str::to_owned));
        }
        let mut rows = vec![head];
        for entry in &self.entries {
            let (low, high) = entry.range();
            let range = format!("{}–{}", short(low), short(high));
            let mut row = vec![entry.name.clone(), short(entry.median()), range];
            row.extend(self.ratio(entry).map(|ratio| format!("{ratio:.3}×")));
            if timed {
                row.extend(match entry.latency() {
                    Some(Latency { p50_ms, p99_ms }) => [short(p50_ms), short(p99_ms)],
                    None => ["", ""].map(str::to_owned),
                });
            }
            rows.push(row);
        }
        rows
    }

    /// Prints the board as text and hands it on.
    pub(crate) fn print(self) -> Self {
        println!("{}", self.title);
        if !self.entries.is_empty() {
            print_rows(&self.rows());
        }
        for line in &self.lines {
            let points = line.points.iter().map(|(_, y)| short(*y)).collect::<Vec<_>>();
            println!("  {}: {}", line.name, points.join(" "));
        }
        for note in &self.notes {
            println!("  {note}");
        }
        for check in &self.checks {
            println!("  {check}");
        }
        println!();
        self
    }
}

fn print_rows(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        println!("  {}", cells.collect::<Vec<_>>().join("   ").trim_end());
    }
}

/// The middle value; of an even number, the lower of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Three significant digits, thousands in full.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_a_value_that_was_measured() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.0);
    }

    #[test]
    fn ratios_are_between_medians() {
        let mut board = Board::new("t", "req/s").against("a");
        for value in [1.0, 100.0, 2.0] {
            board.add("a", value);
            board.add("b", value * 3.0);
        }
        assert_eq!(board.ratio(board.entry("b")), Some(3.0));
    }
}
