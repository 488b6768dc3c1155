//! A profile in a file: TOML, starting from a built-in.
//!
//!     base = "ietf"
//!     mismatch = [409]
//!     replay_marker = "X-Replayed: yes"
//!
//! All mistakes are found at once.

use std::fmt::Write as _;

use toml::de::{DeTable, DeValue};

use super::{BUILT_IN, Profile};
use crate::config::mistake::suggestion;

/// Largest file read.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Every name that can stand in a file.
const NAMES: [&str; 20] = [
    "base",
    "bad_key",
    "canonical_json",
    "errors_kept",
    "headers_dropped",
    "headers_vary",
    "in_flight",
    "key_chars_max",
    "key_header",
    "mismatch",
    "missing_key",
    "per_route",
    "per_tenant",
    "problems",
    "quoted_is_bare",
    "replay_marker",
    "retry_after",
    "store_away",
    "unknown",
    "note",
];

/// Reads the text of a file of this name. The error has a line for each mistake.
pub(super) fn read(text: &str, name: &str) -> Result<Profile, String> {
    if text.len() > FILE_BYTES_MAX {
        return Err(format!("{name} is over 1 MiB; that is no profile"));
    }
    let mut said = String::new();
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        let message = error.message().trim().replace('\n', "; ");
        let _ = writeln!(said, "{name}:{}: this is not TOML: {message}", line(text, at));
    }
    let table = table.into_inner();
    let base = table.iter().find(|(key, _)| key.get_ref() == "base").map(|(_, value)| value.get_ref());
    let mut profile = match base {
        None => super::ietf(),
        Some(DeValue::String(base)) => super::built_in(base).unwrap_or_else(|| {
            let near = suggestion(base, BUILT_IN.into_iter());
            let _ = writeln!(said, "{name}: no built-in profile is called `{base}`{near}");
            super::ietf()
        }),
        Some(_) => {
            let _ = writeln!(said, "{name}: `base` is the name of a profile: {}", BUILT_IN.join(", "));
            super::ietf()
        }
    };
    profile.name = name.to_owned();
    for (key, value) in &table {
        if let Err(wrong) = set(&mut profile, key.get_ref(), value.get_ref()) {
            let _ = writeln!(said, "{name}:{}: {wrong}", line(text, key.span().start));
        }
    }
    if said.is_empty() { Ok(profile) } else { Err(said.trim_end().to_owned()) }
}

fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

fn set(profile: &mut Profile, key: &str, value: &DeValue<'_>) -> Result<(), String> {
    match key {
        "base" => {}
        // For people.
        "note" => drop(text(value, key)?),
        "key_header" => profile.key_header = header_name(text(value, key)?)?,
        "key_chars_max" => profile.key_chars_max = Some(number(value, key, 1..=65_536)?),
        "missing_key" => {
            profile.missing_key = match value {
                DeValue::String(word) if word == "pass" => None,
                DeValue::Integer(_) => Some(status(value, key)?),
                _ => return Err("`missing_key` is a status, or \"pass\"".into()),
            }
        }
        "bad_key" => profile.bad_key = statuses(value, key)?,
        "mismatch" => profile.mismatch = statuses(value, key)?,
        "in_flight" => profile.in_flight = statuses(value, key)?,
        "unknown" => profile.unknown = statuses(value, key)?,
        "store_away" => profile.store_away = statuses(value, key)?,
        "replay_marker" => profile.replay_marker = marker(text(value, key)?)?,
        "quoted_is_bare" => profile.quoted_is_bare = flag(value, key)?,
        "retry_after" => profile.retry_after = flag(value, key)?,
        "problems" => profile.problems = flag(value, key)?,
        "errors_kept" => profile.errors_kept = flag(value, key)?,
        "canonical_json" => profile.canonical_json = flag(value, key)?,
        "per_tenant" => profile.per_tenant = flag(value, key)?,
        "per_route" => profile.per_route = flag(value, key)?,
        "headers_vary" => profile.headers_vary = header_names(value, key)?,
        "headers_dropped" => profile.headers_dropped = header_names(value, key)?,
        other => {
            return Err(format!(
                "`{other}` is not part of a profile{}",
                suggestion(other, NAMES.into_iter())
            ));
        }
    }
    Ok(())
}

fn text<'a>(value: &'a DeValue<'_>, key: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("`{key}` is a text in quotes"))
}

fn flag(value: &DeValue<'_>, key: &str) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("`{key}` is true or false"))
}

fn number(value: &DeValue<'_>, key: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let read = match value {
        DeValue::Integer(number) => number.as_str().parse().ok(),
        _ => None,
    };
    let wrong = || format!("`{key}` is a number from {} to {}", range.start(), range.end());
    read.filter(|number| range.contains(number)).ok_or_else(wrong)
}

fn status(value: &DeValue<'_>, key: &str) -> Result<u16, String> {
    let wrong = || format!("`{key}` has statuses, from 400 to 599");
    u16::try_from(number(value, key, 400..=599).map_err(|_| wrong())?).map_err(|_| wrong())
}

/// One status or a list of them.
fn statuses(value: &DeValue<'_>, key: &str) -> Result<Vec<u16>, String> {
    match value {
        DeValue::Array(list) => list.iter().map(|one| status(one.get_ref(), key)).collect(),
        one => Ok(vec![status(one, key)?]),
    }
}

fn header_name(name: &str) -> Result<String, String> {
    http::HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{name}` is not the name of a header"))?;
    Ok(name.to_owned())
}

fn header_names(value: &DeValue<'_>, key: &str) -> Result<Vec<String>, String> {
    let DeValue::Array(list) = value else { return Err(format!("`{key}` is a list of headers")) };
    list.iter().map(|one| Ok(header_name(text(one.get_ref(), key)?)?.to_ascii_lowercase())).collect()
}

fn marker(written: &str) -> Result<Option<(String, String)>, String> {
    if written == "none" {
        return Ok(None);
    }
    let (name, value) =
        written.split_once(':').ok_or("`replay_marker` is written \"Name: value\", or \"none\"")?;
    Ok(Some((header_name(name.trim())?, value.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_starts_from_a_built_in_and_overrides() {
        let written = "\
base = \"stripe\"
key_header = \"X-Key\"
mismatch = 409
in_flight = [409, 425]
missing_key = 400
replay_marker = \"X-Again: yes\"
headers_vary = [\"Date\"]
per_route = true
key_chars_max = 64
";
        let read = read(written, "mine.toml").unwrap();
        let expected = Profile {
            name: "mine.toml".into(),
            key_header: "X-Key".into(),
            mismatch: vec![409],
            in_flight: vec![409, 425],
            missing_key: Some(400),
            replay_marker: Some(("X-Again".into(), "yes".into())),
            headers_vary: vec!["date".into()],
            per_route: true,
            key_chars_max: Some(64),
            ..super::super::built_in("stripe").unwrap()
        };
        assert_eq!(read, expected);
        let bare = super::read("missing_key = \"pass\"\nreplay_marker = \"none\"", "x").unwrap();
        assert_eq!((bare.missing_key, bare.replay_marker), (None, None));
        assert_eq!(bare.mismatch, super::super::ietf().mismatch);
    }

    #[test]
    fn every_mistake_is_found_with_its_line_and_what_was_meant() {
        let written = "\
base = \"ieft\"
mismach = [409]
in_flight = [200]
retry_after = \"yes\"
key_header = \"a b\"
headers_vary = \"date\"
replay_marker = \"x\"
key_chars_max = 0
missing_key = false
";
        let said = read(written, "p.toml").unwrap_err();
        for expected in [
            "`ieft`; did you mean `ietf`?",
            "p.toml:2: `mismach` is not part of a profile; did you mean `mismatch`?",
            "p.toml:3: `in_flight` has statuses",
            "p.toml:4: `retry_after` is true or false",
            "p.toml:5: `a b`",
            "p.toml:6: `headers_vary` is a list",
            "p.toml:7: `replay_marker`",
            "p.toml:8: `key_chars_max`",
            "p.toml:9: `missing_key`",
        ] {
            assert!(said.contains(expected), "{expected}\nnot in\n{said}");
        }
        assert_eq!(said.lines().count(), 9, "{said}");
        assert!(read("a = \n", "p.toml").unwrap_err().contains("p.toml:1: this is not TOML"));
    }

    #[test]
    fn every_member_of_a_profile_has_a_name_in_files() {
        for name in NAMES {
            let said =
                set(&mut super::super::ietf(), name, &DeValue::Boolean(true)).err().unwrap_or_default();
            assert!(!said.contains("not part of a profile"), "{name}: {said}");
        }
    }
}
