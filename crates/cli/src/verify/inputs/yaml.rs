//! YAML into JSON, as far as API descriptions use it.
//!
//! One document, the core schema, text keys. Repeating by aliases is bounded: a page of text can unfold
//! to more than fits into memory.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

/// Most values in a document, aliases unfolded.
const VALUES_MAX: usize = 1_000_000;
/// Deepest nesting.
const DEPTH_MAX: usize = 200;

pub(super) fn read(text: &str) -> Result<Value, String> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| format!("this is not YAML: {error}"))?;
        builder.take(event).map_err(|said| format!("line {}: {said}", span.start.line()))?;
    }
    builder.document.ok_or_else(|| "there is no document in it".into())
}

#[derive(Default)]
struct Builder {
    document: Option<Value>,
    open: Vec<Open>,
    anchors: HashMap<usize, (Value, usize)>,
    values: usize,
}

/// A list or a mapping that has not ended.
struct Open {
    anchor: usize,
    /// How many values there were when it began.
    before: usize,
    holds: Holds,
}

enum Holds {
    List(Vec<Value>),
    Map { map: Map<String, Value>, key: Option<String> },
}

impl Builder {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref());
                self.put(value, anchor, 1)
            }
            Event::SequenceStart(anchor, _) => self.begin(anchor, Holds::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.begin(anchor, Holds::Map { map: Map::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let (value, size) =
                    self.anchors.get(&anchor).cloned().ok_or("an alias stands in what it names")?;
                self.put(value, 0, size)
            }
            Event::DocumentStart(_) if self.document.is_some() => Err("a second document begins".into()),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, anchor: usize, holds: Holds) -> Result<(), String> {
        if self.open.len() >= DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        self.open.push(Open { anchor, before: self.values, holds });
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let value = match open.holds {
            Holds::List(list) => Value::Array(list),
            Holds::Map { map, .. } => Value::Object(map),
        };
        if open.anchor > 0 {
            self.anchors.insert(open.anchor, (value.clone(), 1 + self.values - open.before));
        }
        self.put(value, 0, 1)
    }

    fn put(&mut self, value: Value, anchor: usize, size: usize) -> Result<(), String> {
        self.values += size;
        if self.values > VALUES_MAX {
            return Err(format!("more than {VALUES_MAX} values, aliases unfolded"));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, (value.clone(), size));
        }
        match self.open.last_mut().map(|open| &mut open.holds) {
            None => self.document = Some(value),
            Some(Holds::List(list)) => list.push(value),
            Some(Holds::Map { map, key }) => match key.take() {
                None => *key = Some(name(value)?),
                Some(key) if key == "<<" => merge(map, value),
                Some(key) => drop(map.insert(key, value)),
            },
        }
        Ok(())
    }
}

/// Keys such as `200:` are numbers in YAML and names in an API description.
fn name(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Null => Ok("null".into()),
        Value::Array(_) | Value::Object(_) => Err("a name in a mapping must be a text".into()),
    }
}

/// `<<: *other`. What is written out comes first.
fn merge(map: &mut Map<String, Value>, value: Value) {
    match value {
        Value::Object(other) => other.into_iter().for_each(|(name, value)| {
            map.entry(name).or_insert(value);
        }),
        Value::Array(list) => list.into_iter().for_each(|one| merge(map, one)),
        _ => {}
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.suffix == "str");
    if style != ScalarStyle::Plain || is_text {
        return Value::String(text.into());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::String(text.into()), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().map(Number::from);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok().map(Number::from);
    }
    // Rust reads `inf`, `nan` and words of that kind as numbers; YAML does not.
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first))
        || text.contains(|one: char| one.is_ascii_alphabetic() && !"eE".contains(one))
    {
        return None;
    }
    let whole = text.strip_prefix('+').unwrap_or(text);
    if let Ok(number) = whole.parse::<u64>() {
        return Some(number.into());
    }
    whole.parse::<i64>().ok().map(Number::from).or_else(|| Number::from_f64(whole.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_words_are_values_of_the_core_schema() {
        let read = read(
            "a: 1\nb: -2\nc: 1.5\nd: yes\ne: 'true'\nf: true\ng:\nh: 2024-01-02\n\
             i: !!str 7\nj: inf\nk: 0x1f\n200: ok\nl: +3\nm: 1e3\nn: '+1'\n",
        );
        let expected = json!({"a":1,"b":-2,"c":1.5,"d":"yes","e":"true","f":true,"g":null,"h":"2024-01-02",
            "i":"7","j":"inf","k":31,"200":"ok","l":3,"m":1000.0,"n":"+1"});
        assert_eq!(read, Ok(expected));
    }

    #[test]
    fn aliases_and_merges_are_unfolded() {
        let text =
            "base: &b {x: 1, y: [1, 2]}\nalso: *b\nmerged:\n  <<: *b\n  x: 9\nblock: |\n  one\n  two\n";
        let expected = json!({"base":{"x":1,"y":[1,2]},"also":{"x":1,"y":[1,2]},"merged":{"x":9,"y":[1,2]},"block":"one\ntwo\n"});
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn what_would_unfold_without_end_is_refused() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for at in 1..12 {
            let before = vec![format!("*a{}", at - 1); 10].join(",");
            text += &format!("a{at}: &a{at} [{before}]\n");
        }
        assert!(read(&text).unwrap_err().contains("aliases unfolded"));
        assert!(read("a: &a [*a]").is_err());
        assert!(read(&"[".repeat(1000)).is_err());
        assert!(read("a: 1\n---\nb: 2\n").unwrap_err().contains("second document"));
        assert!(read("a: [1\nb: 2").unwrap_err().contains("not YAML"));
        assert!(read("").is_err());
    }
}
