//! Several statements in one message, with their values written into them.
//!
//! A bound statement is prepared first, which is a round trip of its own, and takes another message than its
//! neighbours. Values are written as digits, so there is nothing in them that could need an escape.

use std::fmt::Write as _;

use mysql_async::prelude::Queryable;
use mysql_async::{Row, Value};

use super::fault::Fault;

/// What came of the statements of one message.
pub(super) struct Said {
    /// The rows of each statement, in their order.
    pub(super) sets: Vec<Vec<Row>>,
    /// Rows that the last one changed.
    pub(super) changed: u64,
    /// The number that the last one made, or said it had made.
    pub(super) number: Option<u64>,
}

impl Said {
    /// The first row of a statement.
    pub(super) fn row(&self, statement: usize) -> Option<&Row> {
        self.sets.get(statement)?.first()
    }
}

/// Sends one message. After a statement that fails, those behind it are not run.
pub(super) async fn say(client: &mut impl Queryable, text: &str) -> Result<Said, Fault> {
    let saying = async {
        let mut answer = client.query_iter(text).await?;
        let mut sets = Vec::new();
        loop {
            sets.push(answer.collect::<Row>().await?);
            if answer.is_empty() {
                let said = Said { sets, changed: answer.affected_rows(), number: answer.last_insert_id() };
                // An error of the next statement shows only here.
                answer.drop_result().await?;
                return Ok(said);
            }
        }
    };
    saying.await.map_err(|error| Fault::of(&error))
}

/// A statement with its values written into it.
pub(super) async fn tell(client: &mut impl Queryable, sql: &str, values: &[Value]) -> Result<Said, Fault> {
    say(client, &inline(sql, values)).await
}

/// One statement with bound values, for those that may be large.
pub(super) async fn bind(client: &mut impl Queryable, sql: &str, values: Vec<Value>) -> Result<Said, Fault> {
    let asking = async {
        let mut answer = client.exec_iter(sql, values).await?;
        let rows = answer.collect::<Row>().await?;
        let (changed, number) = (answer.affected_rows(), answer.last_insert_id());
        answer.drop_result().await?;
        Ok(Said { sets: vec![rows], changed, number })
    };
    asking.await.map_err(|error| Fault::of(&error))
}

/// A text with its values in the places of its question marks.
pub(super) fn inline(sql: &str, values: &[Value]) -> String {
    let bytes: usize = values.iter().map(|value| 2 * size(value) + 24).sum();
    let mut out = String::with_capacity(sql.len() + bytes);
    let mut pieces = sql.split('?');
    out.push_str(pieces.next().unwrap_or_default());
    let mut values = values.iter();
    for piece in pieces {
        write_literal(&mut out, values.next().expect("our statements have a value for each place"));
        out.push_str(piece);
    }
    out
}

fn size(value: &Value) -> usize {
    if let Value::Bytes(bytes) = value { bytes.len() } else { 0 }
}

fn write_literal(out: &mut String, value: &Value) {
    let written = match value {
        Value::Bytes(bytes) => {
            out.push_str("x'");
            write_hex(out, bytes);
            out.write_char('\'')
        }
        Value::Int(number) => write!(out, "({number})"),
        Value::UInt(number) => write!(out, "{number}"),
        Value::NULL => out.write_str("NULL"),
        other => unreachable!("our values are numbers and bytes, not {other:?}"),
    };
    written.expect("a string takes everything");
}

/// Texts as a list for `JSON_TABLE`, each in hexadecimal digits: nothing in them needs an escape.
pub(super) fn json<'a>(texts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut out = String::from("'[");
    for (at, text) in texts.enumerate() {
        out.push_str(if at == 0 { "\"" } else { ",\"" });
        write_hex(&mut out, text);
        out.push('"');
    }
    out.push_str("]'");
    out
}

fn write_hex(out: &mut String, bytes: &[u8]) {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_value_can_leave_its_place() {
        let values: [Value; 4] = ["'; DROP ?".into(), (-7).into(), Value::NULL, 7u64.into()];
        let text = inline("SELECT ?, ?, ?, ?", &values);
        assert_eq!(text, "SELECT x'273b2044524f50203f', (-7), NULL, 7");
        assert_eq!(json([&b"'"[..], b"a\0"].into_iter()), "'[\"27\",\"6100\"]'");
    }
}
