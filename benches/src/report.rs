//! The report: one HTML file that needs nothing beside it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::board::{Board, Check};
use crate::chart::{self, escape};
use crate::machine::Machine;

const STYLE: &str = include_str!("report.css");

pub(crate) fn write(path: &Path, machine: &Machine, boards: &[Board], quick: bool) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    Ok(fs::write(path, page(machine, boards, quick))?)
}

fn page(machine: &Machine, boards: &[Board], quick: bool) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Semel: measurements</title>\n<style>{STYLE}</style>\n<h1>Semel: measurements</h1>\n"
    );
    if quick {
        html += "<p class=\"short\">A quick run: it shows that the runner works and proves nothing about speed.</p>\n";
    }
    html += "<dl>";
    for (name, value) in &machine.facts {
        let _ = write!(html, "<dt>{name}</dt><dd>{}</dd>", escape(value));
    }
    html += "</dl>\n<p>Contestants take turns, five rounds; bars are medians, whiskers the slowest and the fastest \
             round.</p>\n";
    let checks: Vec<&Check> = boards.iter().flat_map(|board| &board.checks).collect();
    if !checks.is_empty() {
        html += "<h2>Targets</h2>\n";
        push_checks(&mut html, checks);
    }
    boards.iter().for_each(|board| push_board(&mut html, board));
    html
}

fn push_checks(html: &mut String, checks: Vec<&Check>) {
    *html += "<table><tr><th>what<th>reached<th>target<th></tr>\n";
    for Check { what, reached, target, passes } in checks {
        let verdict = if *passes { "pass" } else { "short" };
        let [what, reached, target] = [what, reached, target].map(|text| escape(text));
        let _ =
            writeln!(html, "<tr><td>{what}<td>{reached}<td>{target}<td class=\"{verdict}\">{verdict}</tr>");
    }
    *html += "</table>\n";
}

fn push_board(html: &mut String, board: &Board) {
    let _ = writeln!(html, "<h2>{}</h2>", escape(&board.title));
    if !board.entries.is_empty() {
        *html += &chart::bars(board);
        push_table(html, &board.rows());
        if let Some(waits) = chart::waits(board) {
            let _ = write!(html, "<h3>Waits, p50 to p99</h3>\n{waits}");
        }
    }
    board.lines.iter().for_each(|line| *html += &chart::line(line));
    for note in &board.notes {
        let _ = writeln!(html, "<p>{}</p>", escape(note));
    }
}

fn push_table(html: &mut String, rows: &[Vec<String>]) {
    *html += "<table>\n";
    for (index, row) in rows.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let cells = row.iter().map(|cell| format!("<{tag}>{}", escape(cell))).collect::<String>();
        let _ = writeln!(html, "<tr>{cells}</tr>");
    }
    *html += "</table>\n";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Sample;

    #[test]
    fn a_name_cannot_become_markup() {
        let mut board = Board::new("<b>", "req/s").against("<i>");
        board.add("<i>", Sample::from(2.0));
        board.at_least("<u>", 1.0, 2.0, "×");
        let page = page(&Machine { facts: vec![("cores", "<s>".into())] }, &[board], true);
        assert!(["<b>", "<i>", "<u>", "<s>"].iter().all(|tag| !page.contains(tag)), "{page}");
        assert!(page.contains("class=\"short\">short"));
    }
}
