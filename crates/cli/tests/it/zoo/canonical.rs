//! JSON whose spelling does not matter and whose values are not touched.

/// The same text for the same document: members sorted, spaces gone, strings in one spelling. Numbers
/// stay as they were written, and members that come twice stay twice. Nothing if it is not JSON.
pub(super) fn canonical(text: &str) -> Option<String> {
    // What the parser takes is well-formed, so the walk below need not check.
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let mut rest = text.trim();
    value(&mut rest)
}

fn value(rest: &mut &str) -> Option<String> {
    skip(rest);
    match rest.chars().next()? {
        '{' => {
            let mut members = items(rest, '}', |rest| {
                let name = string(rest)?;
                skip(rest);
                *rest = rest.strip_prefix(':')?;
                Some((name, value(rest)?))
            })?;
            members.sort_by(|one, other| one.0.cmp(&other.0));
            let members: Vec<String> =
                members.into_iter().map(|(name, value)| format!("{name}:{value}")).collect();
            Some(format!("{{{}}}", members.join(",")))
        }
        '[' => Some(format!("[{}]", items(rest, ']', value)?.join(","))),
        '"' => string(rest),
        _ => {
            let end = rest
                .find(|c: char| c == ',' || c == '}' || c == ']' || c.is_whitespace())
                .unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            *rest = after;
            Some(word.into())
        }
    }
}

/// What stands between a bracket and its `close`, separated by commas.
fn items<T>(rest: &mut &str, close: char, item: impl Fn(&mut &str) -> Option<T>) -> Option<Vec<T>> {
    *rest = &rest[1..];
    let mut found = Vec::new();
    loop {
        skip(rest);
        if let Some(after) = rest.strip_prefix(close) {
            *rest = after;
            return Some(found);
        }
        *rest = rest.strip_prefix(',').unwrap_or(rest);
        skip(rest);
        found.push(item(rest)?);
    }
}

fn string(rest: &mut &str) -> Option<String> {
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    })?;
    let (word, after) = rest.split_at(end.0 + 1);
    *rest = after;
    let plain: String = serde_json::from_str(word).ok()?;
    serde_json::to_string(&plain).ok()
}

fn skip(rest: &mut &str) {
    *rest = rest.trim_start();
}

#[test]
fn spelling_does_not_matter_and_values_do() {
    let same = [
        (r#"{"b":[1,{"y":2,"x":null}],"a":"é"}"#, r#" {"a" : "\u00e9", "b":[ 1 ,{"x":null,"y":2} ]} "#),
        (r#"{"a":"\"},{"}"#, r#"{ "a":"\u0022},{" }"#),
        ("{}", " { } "),
        ("[]", "[ ]"),
    ];
    for (one, other) in same {
        assert!(canonical(one).is_some(), "{one}");
        assert_eq!(canonical(one), canonical(other));
    }
    let different = [
        ("9007199254740993", "9007199254740992"),
        ("1.0", "1"),
        ("0.1", "0.10000000000000000001"),
        (r#"{"a":1}"#, r#"{"a":1,"a":1}"#),
        ("[1,2]", "[2,1]"),
        (r#""a""#, r#""A""#),
    ];
    for (one, other) in different {
        assert!(canonical(one).is_some() && canonical(other).is_some(), "{one}");
        assert_ne!(canonical(one), canonical(other));
    }
    assert_eq!(canonical("{"), None);
}
