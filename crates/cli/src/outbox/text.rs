//! An outbox as people read it. What comes from outside is shown, never sent to the terminal.

use std::fmt::Write as _;
use std::time::Duration;

use super::shown::{Shown, Status};
use crate::keys::plain;
use crate::time;

/// Widest a key, a topic or a reason gets in a table.
const COLUMN_CHARS_MAX: usize = 60;
/// Most of a payload that is shown to people; `--json` has all of it.
const PAYLOAD_CHARS_MAX: usize = 4000;

pub(super) fn status(status: &Status) -> String {
    let mut text = String::new();
    let least = if status.more { "at least " } else { "" };
    let _ = writeln!(text, "engine    {}", status.engine);
    let _ = writeln!(text, "store id  {}", status.store_id);
    let _ = writeln!(text, "waiting   {least}{}", status.waiting);
    let _ = writeln!(text, "aside     {least}{}", status.aside);
    let _ = writeln!(text, "dead      {least}{}", status.dead);
    let _ = writeln!(text, "delayed   {least}{}", status.delayed);
    if let Some(why) = &status.stopped {
        let _ = writeln!(text, "STOPPED   {}", plain(why));
        let _ = writeln!(text, "          nothing is published; see `semel outbox rebase --help`");
    }
    let mut rows = vec![["LANE", "EPOCH", "HOLDER", "LEASE UNTIL"].map(str::to_owned).to_vec()];
    for lane in &status.lanes {
        let until = lane.lease_until.as_deref().map_or("-".into(), time::short);
        let holder = lane.holder.as_deref().map_or("-", |holder| &holder[..holder.len().min(8)]).to_owned();
        rows.push(vec![lane.lane.to_string(), lane.epoch.to_string(), holder, until]);
    }
    text += &columns(&rows);
    if !status.backlog.is_empty() {
        let mut rows = vec![["TOPIC", "LANE", "WAITING", "LAG", "ASIDE", "DEAD"].map(str::to_owned).to_vec()];
        for one in &status.backlog {
            let lag =
                one.lag_seconds.map_or("-".into(), |lag| time::span(Duration::from_secs_f64(lag.max(0.0))));
            let (waiting, aside, dead) = (one.waiting, one.aside, one.dead);
            rows.push(vec![
                cut(&one.topic),
                one.lane.to_string(),
                waiting.to_string(),
                lag,
                aside.to_string(),
                dead.to_string(),
            ]);
        }
        text += &columns(&rows);
    }
    text
}

pub(super) fn table(messages: &[Shown]) -> String {
    let titles = ["SEQUENCE", "ID", "TOPIC", "KEY", "LANE", "STATE", "TRIES", "REASON"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for message in messages {
        rows.push(vec![
            message.sequence.map_or("-".into(), |sequence| sequence.to_string()),
            message.id.clone(),
            cut(&message.topic),
            message.key.as_deref().map_or("-".into(), cut),
            message.lane.map_or("-".into(), |lane| lane.to_string()),
            message.state.to_owned(),
            message.tries.to_string(),
            message.reason.as_deref().map_or(String::new(), cut),
        ]);
    }
    columns(&rows)
}

pub(super) fn whole(message: &Shown) -> String {
    let mut text = String::new();
    let mut say = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:14}{}", plain(value));
    };
    say("id", &message.id);
    say("state", message.state);
    let numbers = [("lane", message.lane.map(u64::from)), ("sequence", message.sequence)];
    for (name, value) in numbers {
        value.iter().for_each(|value| say(name, &value.to_string()));
    }
    say("topic", &message.topic);
    say("tries", &message.tries.to_string());
    let optional = [
        ("key", &message.key),
        ("reason", &message.reason),
        ("since", &message.since),
        ("again at", &message.again_at),
        ("deliver after", &message.deliver_after),
        ("correlation", &message.correlation),
        ("causation", &message.causation),
        ("traceparent", &message.trace_parent),
    ];
    for (name, value) in optional {
        value.iter().for_each(|value| say(name, value));
    }
    for (name, value) in &message.headers {
        say("header", &format!("{name}: {value}"));
    }
    say("payload", &format!("{} bytes of {}", message.payload_bytes, message.content_type));
    for payload in [&message.payload, &message.payload_base64].into_iter().flatten() {
        say("", &payload.chars().take(PAYLOAD_CHARS_MAX).collect::<String>());
    }
    text
}

fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut table = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(table, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    table
}

fn cut(text: &str) -> String {
    let shown = plain(text);
    match shown.chars().count() > COLUMN_CHARS_MAX {
        true => shown.chars().take(COLUMN_CHARS_MAX - 1).chain(['…']).collect(),
        false => shown,
    }
}

#[cfg(test)]
mod tests {
    use semel::outbox::{Aside, Entry, Lane, Letter};
    use semel::{Message, Timestamp};

    use super::*;

    #[test]
    fn a_dead_letter_is_shown_with_its_reason_and_nothing_reaches_the_terminal_as_a_command() {
        // G-44
        let message = Message::new("orders".parse().expect("a topic"), "{}").key("order\u{202e}7");
        let entry = Entry { sequence: 7, message: message.into(), tries: 4, behind: false };
        let letter = Letter {
            lane: Lane(2),
            entry,
            aside: Aside::Dead,
            reason: "too \u{1b}[2Jlarge".into(),
            since: Timestamp::from_micros(0),
            again_at: None,
        };
        let shown = Shown::letter(&letter);
        for text in [table(std::slice::from_ref(&shown)), whole(&shown)] {
            assert!(text.contains("dead") && text.contains("large"), "{text}");
            assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        }
    }
}
