//! Any bytes as a form. Encoded and ordered otherwise it keeps its fingerprint, a changed field changes it. G-6
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use semel::fingerprint::{Comparison, HashKey, Request};
use semel::{Fingerprint, Fingerprinter};

const FIELDS_MAX: usize = 64;

type Field = (Vec<u8>, Option<Vec<u8>>);

fuzz_target!(|body: &[u8]| {
    let print = print(body);
    assert_eq!(print.compare(print.current()), Comparison::Same);
    let pairs = body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    let Some(mut fields) = pairs.map(field).collect::<Option<Vec<Field>>>() else { return };
    order(&mut fields);
    assert!(same(&print, &fields), "another encoding is another request");
    for at in 0..fields.len().min(FIELDS_MAX) {
        for changed in changes(&fields, at) {
            assert!(!same(&print, &changed), "taken for the same: {changed:?}");
        }
    }
});

fn print(body: &[u8]) -> Fingerprint {
    let prints = Fingerprinter::new(vec![HashKey::new(1, [7; 32])]).expect("one key");
    prints
        .print(&Request::new("POST", "/").content_type(Some(b"application/x-www-form-urlencoded")).body(body))
}

fn same(print: &Fingerprint, fields: &[Field]) -> bool {
    self::print(encoded(fields).as_bytes()).compare(print.current()) == Comparison::Same
}

/// Fields of different roots may come in any order; those of one root keep theirs.
fn order(fields: &mut [Field]) {
    fields.sort_by_key(|(name, _)| {
        let root = name.split(|byte| *byte == b'[').next().unwrap_or_default().to_vec();
        std::cmp::Reverse(root)
    });
}

fn changes(fields: &[Field], at: usize) -> [Vec<Field>; 4] {
    let with = |change: &dyn Fn(&mut Vec<Field>)| {
        let mut changed = fields.to_vec();
        change(&mut changed);
        changed
    };
    [
        with(&|fields| fields[at].0.push(b'x')),
        with(&|fields| fields[at].1.get_or_insert_default().push(b'x')),
        with(&|fields| fields[at].1 = if fields[at].1.is_none() { Some(Vec::new()) } else { None }),
        with(&|fields| drop(fields.remove(at))),
    ]
}

fn field(pair: &[u8]) -> Option<Field> {
    let mut halves = pair.splitn(2, |byte| *byte == b'=');
    let name = decoded(halves.next()?)?;
    Some((name, halves.next().map(decoded).map_or(Some(None), |value| value.map(Some))?))
}

/// None: not a form.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        plain.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                let digits = std::str::from_utf8(digits).ok()?;
                let hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                u8::from_str_radix(digits, 16).ok().filter(|_| hex)?
            }
            byte => *byte,
        });
    }
    Some(plain)
}

fn encoded(fields: &[Field]) -> String {
    let mut out = String::new();
    let percent = |text: &[u8], out: &mut String| {
        text.iter().for_each(|byte| write!(out, "%{byte:02x}").expect("a String takes everything"));
    };
    for (name, value) in fields {
        percent(name, &mut out);
        if let Some(value) = value {
            out.push('=');
            percent(value, &mut out);
        }
        out.push('&');
    }
    out
}
