//! Values for a statement, whichever driver takes them.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// A bound value.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Int2(i16),
    Int4(i32),
    Int8(Option<i64>),
    Bytea(Option<&'a [u8]>),
    Text(Option<&'a str>),
    Int8s(Vec<Option<i64>>),
    Byteas(Vec<&'a [u8]>),
    Texts(Vec<Option<Cow<'a, str>>>),
}

impl Value<'_> {
    pub(super) fn kind(&self) -> Type {
        match self {
            Self::Int2(_) => Type::INT2,
            Self::Int4(_) => Type::INT4,
            Self::Int8(_) => Type::INT8,
            Self::Bytea(_) => Type::BYTEA,
            Self::Text(_) => Type::TEXT,
            Self::Int8s(_) => Type::INT8_ARRAY,
            Self::Byteas(_) => Type::BYTEA_ARRAY,
            Self::Texts(_) => Type::TEXT_ARRAY,
        }
    }

    /// As part of a statement: digits, hexadecimal digits and the names of types, so there is nothing that
    /// could need an escape.
    fn write_literal(&self, out: &mut String) {
        let name = self.kind();
        let written = match self {
            Self::Int2(number) => write!(out, "({number})::{name}"),
            Self::Int4(number) => write!(out, "({number})::{name}"),
            Self::Int8(Some(number)) => write!(out, "({number})::{name}"),
            Self::Bytea(Some(bytes)) => {
                out.push_str("'\\x");
                write_hex(out, bytes);
                write!(out, "'::{name}")
            }
            Self::Text(Some(text)) => {
                out.push_str("convert_from('\\x");
                write_hex(out, text.as_bytes());
                write!(out, "', 'UTF8')")
            }
            Self::Int8s(list) => {
                return write_list(out, "int8[]", list.iter().map(|item| Value::Int8(*item)));
            }
            Self::Byteas(list) => {
                return write_list(out, "bytea[]", list.iter().map(|item| Value::Bytea(Some(item))));
            }
            Self::Texts(list) => {
                return write_list(out, "text[]", list.iter().map(|item| Value::Text(item.as_deref())));
            }
            Self::Int8(None) | Self::Bytea(None) | Self::Text(None) => write!(out, "NULL::{name}"),
        };
        written.expect("a string takes everything");
    }
}

fn write_list<'v>(out: &mut String, name: &str, items: impl Iterator<Item = Value<'v>>) {
    out.push_str("ARRAY[");
    for (at, item) in items.enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        item.write_literal(out);
    }
    out.push_str("]::");
    out.push_str(name);
}

fn write_hex(out: &mut String, bytes: &[u8]) {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    out.reserve(2 * bytes.len());
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

/// A statement with its values written into it, for what can only be sent as text: several statements in one
/// message, and one statement in one round trip where the driver would first ask what its parameters are.
pub(super) fn inline(sql: &str, values: &[Value<'_>]) -> String {
    let mut out = String::with_capacity(sql.len() + 64 * values.len());
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once('$') {
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: usize = after[..digits].parse().expect("our statements name their parameters");
        out.push_str(before);
        values[number - 1].write_literal(&mut out);
        rest = &after[digits..];
    }
    out.push_str(rest);
    out
}

impl ToSql for Value<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Int2(number) => number.to_sql(ty, out),
            Self::Int4(number) => number.to_sql(ty, out),
            Self::Int8(number) => number.to_sql(ty, out),
            Self::Bytea(bytes) => bytes.to_sql(ty, out),
            Self::Text(text) => text.to_sql(ty, out),
            Self::Int8s(list) => list.to_sql(ty, out),
            Self::Byteas(list) => list.to_sql(ty, out),
            Self::Texts(list) => list.to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_value_can_leave_its_place() {
        let values = [Value::Text(Some("'; DROP TABLE x; --$2")), Value::Int8(Some(-7)), Value::Bytea(None)];
        let text = inline("SELECT $1, $2, $3, $1", &values);
        let hex = "convert_from('\\x273b2044524f50205441424c4520783b202d2d2432', 'UTF8')";
        assert_eq!(text, format!("SELECT {hex}, (-7)::int8, NULL::bytea, {hex}"));
        let lists = [
            Value::Texts(vec![Some("a".into()), None]),
            Value::Int8s(vec![Some(1)]),
            Value::Byteas(vec![b"z"]),
        ];
        let text = inline("SELECT $1, $2, $3", &lists);
        let first = "ARRAY[convert_from('\\x61', 'UTF8'), NULL::text]::text[]";
        assert_eq!(text, format!("SELECT {first}, ARRAY[(1)::int8]::int8[], ARRAY['\\x7a'::bytea]::bytea[]"));
    }
}
