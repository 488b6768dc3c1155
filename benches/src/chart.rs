//! Charts as SVG text: bars with whiskers, waits, and lines over time. No scripts, no fonts to load.

use std::fmt::Write;

use crate::board::{Board, Entry, Latency, Line, short};

const WIDTH: f64 = 820.0;
const LABEL: f64 = 290.0;
const ROW: f64 = 26.0;
/// Room right of a bar for its number.
const NUMBER: f64 = 160.0;

/// Medians as bars, the slowest and fastest window as a whisker.
pub(crate) fn bars(board: &Board) -> String {
    let most = board.entries.iter().map(|entry| entry.range().1).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LABEL - NUMBER) / most;
    rows(&board.entries, |svg, entry, top| {
        let (low, high) = entry.range();
        let class = if board.baseline.as_deref() == Some(&entry.name) { "base" } else { "bar" };
        let middle = top + ROW / 2.0;
        let (width, low, high) = (entry.median() * scale, LABEL + low * scale, LABEL + high * scale);
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{LABEL}" y="{:.1}" width="{width:.1}" height="{:.1}"/>
<path class="whisker" d="M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8"/>
<text x="{:.1}" y="{:.1}">{} {}</text>"#,
            top + 4.0,
            ROW - 8.0,
            middle - 4.0,
            middle - 4.0,
            high + 8.0,
            middle + 4.0,
            short(entry.median()),
            escape(board.unit),
        );
    })
}

/// From p50 to p99 per contestant, on a logarithmic scale: the shorter, the steadier.
pub(crate) fn waits(board: &Board) -> Option<String> {
    let timed: Vec<Latency> = board.entries.iter().filter_map(Entry::latency).collect();
    let least = timed.iter().map(|wait| wait.p50_ms).fold(f64::INFINITY, f64::min) / 2.0;
    let most = timed.iter().map(|wait| wait.p99_ms).fold(0.0, f64::max);
    if timed.is_empty() || least <= 0.0 {
        return None;
    }
    let scale = (WIDTH - LABEL - NUMBER) / (most / least).ln();
    let place = |ms: f64| LABEL + (ms / least).ln() * scale;
    Some(rows(&board.entries, |svg, entry, top| {
        let Some(Latency { p50_ms, p99_ms }) = entry.latency() else { return };
        let (from, to, middle) = (place(p50_ms), place(p99_ms), top + ROW / 2.0);
        let _ = write!(
            svg,
            r#"<path class="wait" d="M{from:.1} {middle:.1}H{to:.1}"/>
<circle class="p50" cx="{from:.1}" cy="{middle:.1}" r="4"/><circle class="p99" cx="{to:.1}" cy="{middle:.1}" r="4"/>
<text x="{:.1}" y="{:.1}">{} / {} ms</text>"#,
            to + 8.0,
            middle + 4.0,
            short(p50_ms),
            short(p99_ms),
        );
    }))
}

/// A quantity over the run, from zero.
pub(crate) fn line(line: &Line) -> String {
    const HEIGHT: f64 = 120.0;
    let most = |pick: fn(&(f64, f64)) -> f64| line.points.iter().map(pick).fold(f64::MIN_POSITIVE, f64::max);
    let (x_most, y_most) = (most(|point| point.0), most(|point| point.1));
    let place = |(x, y): &(f64, f64)| {
        format!("{:.1},{:.1}", x / x_most * (WIDTH - 20.0) + 10.0, HEIGHT - y / y_most * (HEIGHT - 30.0))
    };
    let points = line.points.iter().map(place).collect::<Vec<_>>().join(" ");
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {}" role="img"><polyline class="line" points="{points}"/>
<path class="whisker" d="M10 {HEIGHT}H{}"/><text x="10" y="14">{}, at most {}</text></svg>"#,
        HEIGHT + 6.0,
        WIDTH - 10.0,
        escape(&line.name),
        short(y_most),
    )
}

fn rows(entries: &[Entry], draw: impl Fn(&mut String, &Entry, f64)) -> String {
    let height = ROW * entries.len() as f64 + 4.0;
    let mut svg = format!(r#"<svg viewBox="0 0 {WIDTH} {height}" role="img">"#);
    for (index, entry) in entries.iter().enumerate() {
        let top = ROW * index as f64;
        let (x, y) = (LABEL - 8.0, top + ROW / 2.0 + 4.0);
        let _ = write!(svg, r#"<text class="name" x="{x}" y="{y}">{}</text>"#, escape(&entry.name));
        draw(&mut svg, entry, top);
    }
    svg + "</svg>\n"
}

/// Text that cannot be mistaken for markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
