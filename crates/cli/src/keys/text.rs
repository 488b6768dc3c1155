//! Operations as people read them: a table of many, all there is to say of one.
//!
//! Names, notes and bodies come from outside, so control characters are shown, never sent to the
//! terminal.

use std::fmt::Write as _;

use semel::{Timestamp, mutant};

use crate::shown::{Answer, Happening, Operation, State};
use crate::time;

/// Widest a key or a route gets in a table; the id names the operation.
const COLUMN_CHARS_MAX: usize = 40;
/// Most of a body that is shown to people; `--json` has all of it.
const BODY_CHARS_MAX: usize = 4000;
/// Where values begin under their names.
const INDENT: usize = 12;

/// A table, one line per operation.
pub(super) fn table(operations: &[Operation], now: Timestamp) -> String {
    let several = operations.iter().any(|each| each.namespace != operations[0].namespace);
    let mut titles = vec!["ID", "KEY", "ROUTE", "TENANT", "STATE", "AGE", "ATTEMPTS", "NOTE"];
    if several {
        titles.insert(2, "NAMESPACE");
    }
    let mut rows: Vec<Vec<String>> = vec![titles.into_iter().map(str::to_owned).collect()];
    for operation in operations {
        let mut row = vec![
            operation.id.clone(),
            cut(&operation.key),
            cut(&operation.route),
            operation.tenant.as_deref().map_or("-".into(), cut),
            operation.state.name().to_owned(),
            age(&operation.created_at, now),
            operation.attempts.to_string(),
            remark(operation, now),
        ];
        if several {
            row.insert(2, cut(&operation.namespace));
        }
        rows.push(row);
    }
    let columns = rows[0].len();
    let widths: Vec<usize> =
        (0..columns).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let mut table = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(table, "{}", line.trim_end());
    }
    table
}

fn remark(operation: &Operation, now: Timestamp) -> String {
    if operation.possible_double_effect && !mutant::on("keys-hide-double-effect") {
        "POSSIBLE DOUBLE EFFECT".into()
    } else if operation.is_lapsed(now) {
        "lease lapsed".into()
    } else if operation.expires_at.as_deref().and_then(time::read).is_some_and(|at| now >= at) {
        "expired".into()
    } else {
        String::new()
    }
}

/// Everything about one operation.
pub(super) fn whole(operation: &Operation, now: Timestamp) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:INDENT$}{value}");
    };
    line("operation", operation.id.clone());
    line("key", plain(&operation.key));
    line("namespace", plain(&operation.namespace));
    line("tenant", operation.tenant.as_deref().map_or("none".into(), plain));
    line("route", plain(&operation.route));
    line("state", state(operation, now));
    line("created", moment(&operation.created_at, now));
    let attempt = format!(
        "{}, the newest with token {} and nonce {}",
        operation.attempts, operation.token, operation.nonce
    );
    line("attempts", attempt);
    line("claimed", moment(&operation.attempt_at, now));
    line("lease", format!("until {}", time::short(&operation.lease_until)));
    line("recovery", plain(&operation.recovery));
    if let Some(subject) = &operation.subject {
        line("subject", plain(subject));
    }
    line("expires", operation.expires_at.as_deref().map_or("not before it has ended".into(), time::short));
    if operation.possible_double_effect {
        line(
            "WARNING",
            "possible double effect: an attempt that no longer counted brought an outcome too".into(),
        );
    }
    if let Some(rest) = &operation.rest {
        if let Some(outcome) = &rest.outcome {
            line("outcome", answer(outcome, INDENT));
        }
        for (at, happening) in rest.history.iter().enumerate() {
            line(if at == 0 { "history" } else { "" }, entry(happening));
        }
        if rest.history_dropped > 0 {
            line("", format!("({} older entries were dropped)", rest.history_dropped));
        }
    }
    if operation.state == State::Unknown {
        let id = &operation.id;
        line("next", format!("it happened:  semel keys settle {id} --done --status 201 --body-file FILE"));
        line("", format!("it did not:   semel keys free {id}"));
        if let Some(until) = operation.may_run_until(now) {
            line(
                "",
                format!("(its request may be on its way until {until}: before that, be sure that it is not)"),
            );
        }
    }
    text
}

fn state(operation: &Operation, now: Timestamp) -> String {
    // A purge keeps the moment at which the operation ended.
    let word = if operation.state == State::Tombstone { "; ended" } else { " since" };
    let since = operation.settled_at.as_deref().map(|at| format!("{word} {}", moment(at, now)));
    let meaning = match operation.state {
        State::InProgress if operation.is_lapsed(now) => "its lease lapsed with no outcome",
        State::InProgress => "an attempt is running",
        State::Completed => "it happened; the outcome is stored",
        State::Released => "it did not happen; the next attempt may run",
        State::Unknown => "it may or may not have happened; nothing runs until it is settled",
        State::Tombstone => "it ended and its answer was purged; the key stays used until it expires",
    };
    format!("{}{}: {meaning}", operation.state.name(), since.unwrap_or_default())
}

fn entry(happening: &Happening) -> String {
    let Happening { at, what, token, note, evidence, .. } = happening;
    let mut text = format!("{}  {:16}  token {token}", time::short(at), what.replace('_', " "));
    if !note.is_empty() {
        let _ = write!(text, "  {}", plain(note.trim_end_matches(": ")));
    }
    if let Some(evidence) = evidence {
        let indent = INDENT + 2;
        let _ = write!(text, "\n{:indent$}evidence: {}", "", answer(evidence, indent + 10));
    }
    text
}

/// A stored answer, its further lines under the first.
fn answer(answer: &Answer, indent: usize) -> String {
    if answer.sealed {
        let key = answer.seal_key.as_deref().map(plain).unwrap_or_default();
        return format!("sealed with key {key:?}, {} bytes", answer.stored_bytes.unwrap_or(0));
    }
    if let Some(why) = &answer.unreadable {
        return format!("unreadable: {}", plain(why));
    }
    let mut text = match answer.status {
        Some(status @ 1..) => format!("status {status}"),
        _ => "no status".to_owned(),
    };
    if answer.redacted == Some(true) {
        text += ", redacted";
    }
    match (&answer.body_not_kept, answer.body_bytes) {
        (Some(not_kept), _) => {
            let bytes = not_kept.bytes.map(|bytes| format!(" of {bytes} bytes")).unwrap_or_default();
            let _ = write!(text, ", a body{bytes} that was not kept");
        }
        (None, Some(bytes)) => {
            let hidden = bytes > 0 && answer.body.is_none() && answer.body_base64.is_none();
            let _ =
                write!(text, ", a body of {bytes} bytes{}", if hidden { " (--bodies shows it)" } else { "" });
        }
        (None, None) => {}
    }
    for (name, value) in answer.headers.iter().chain(&answer.trailers) {
        let _ = write!(text, "\n{:indent$}{}: {}", "", plain(name), plain(value));
    }
    if let Some(body) = &answer.body {
        let shown: String = body.chars().take(BODY_CHARS_MAX).collect();
        for line in shown.lines() {
            let _ = write!(text, "\n{:indent$}{}", "", plain(line));
        }
        if shown.len() < body.len() {
            let _ = write!(text, "\n{:indent$}(cut; --json has all of it)", "");
        }
    }
    if answer.body_base64.is_some() {
        let _ = write!(text, "\n{:indent$}(not text; --json has it as base64)", "");
    }
    text
}

fn moment(at: &str, now: Timestamp) -> String {
    format!("{} ({} ago)", time::short(at), age(at, now))
}

fn age(at: &str, now: Timestamp) -> String {
    time::read(at).map_or("?".into(), |at| time::span(now.since(at)))
}

fn cut(text: &str) -> String {
    let text = plain(text);
    if text.chars().count() <= COLUMN_CHARS_MAX {
        return text;
    }
    text.chars().take(COLUMN_CHARS_MAX - 1).chain(['…']).collect()
}

/// Without anything a terminal would act on or read backwards.
pub(crate) fn plain(text: &str) -> String {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(key: &str) -> Operation {
        let text = serde_json::json!({
            "id": "ab".repeat(32), "namespace": "shop", "tenant": null, "route": "charge", "key": key,
            "state": "unknown", "token": 7, "nonce": "00", "attempts": 2, "recovery": "hold", "subject": null,
            "created_at": "2026-11-16T04:00:00.000000Z", "attempt_at": "2026-11-16T04:00:00.000000Z",
            "lease_until": "2026-11-16T04:00:30.000000Z", "may_run_until": "2026-11-16T04:05:00.000000Z", "settled_at": "2026-11-16T04:01:00.000000Z",
            "expires_at": null, "possible_double_effect": true,
        });
        serde_json::from_value(text).expect("the shape is right")
    }

    #[test]
    fn a_table_is_aligned_and_warns() {
        // G-81
        let now = time::read("2026-11-16T05:02:00.000000Z").expect("a time");
        let mut other = operation("short");
        other.namespace = "other".into();
        other.possible_double_effect = false;
        let table = table(&[operation(&"k".repeat(60)), other], now);
        let lines: Vec<&str> = table.lines().collect();
        let at = |line: &str, word: &str| {
            line.find(word)
                .map(|byte| line[..byte].chars().count())
                .unwrap_or_else(|| panic!("{word}: {table}"))
        };
        for (title, word) in
            [("NAMESPACE", "shop"), ("STATE", "unknown"), ("AGE", "1h 2m"), ("NOTE", "POSSIBLE")]
        {
            assert_eq!(at(lines[0], title), at(lines[1], word), "{table}");
        }
        assert!(lines[1].contains(&format!("{}…", "k".repeat(39))), "{table}");
        assert!(lines[2].contains("other") && !lines[2].contains("POSSIBLE"), "{table}");
    }

    #[test]
    fn while_a_request_may_be_on_its_way_its_unknown_says_so() {
        // G-81
        let mut seen = operation("order");
        seen.may_run_until = "2026-11-16T05:02:00.000000Z".into();
        let shown = |now: &str| whole(&seen, time::read(now).expect("a time"));
        assert!(shown("2026-11-16T05:01:59.999999Z").contains("on its way until 2026-11-16T05:02:00Z"));
        assert!(!shown("2026-11-16T05:02:00.000000Z").contains("on its way"));
    }

    #[test]
    fn nothing_from_outside_reaches_the_terminal_as_a_command() {
        let mut seen = operation("harmless");
        seen.route = "charge\u{1b}[2J\r\u{202e}".into();
        let now = time::read("2026-11-16T05:02:00.000000Z").expect("a time");
        for text in [table(std::slice::from_ref(&seen), now), whole(&seen, now)] {
            assert!(!text.contains(['\u{1b}', '\r', '\u{202e}']), "{text:?}");
            assert!(text.contains("\\u{1b}[2J"), "{text}");
        }
    }
}
