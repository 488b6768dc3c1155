use super::*;

fn named(new: &str, stored: &str) -> Changes {
    changes(&request(JSON, new.as_bytes()), &request(JSON, stored.as_bytes()))
}

// G-6
#[test]
fn changed_added_and_removed_paths_are_told() {
    let stored = r#"{"amount":100,"to":{"iban":"DE1"},"items":[{"n":1}],"gone":1,"lost":[2,3]}"#;
    let new = r#"{"items":[{"n":2},{"n":1}],"to":{"iban":"DE1","bic":"X"},"amount":101}"#;
    let told = named(new, stored);
    assert_eq!(told.changed, ["/amount", "/items/0/n"]);
    assert_eq!(told.added, ["/items/1/n", "/to/bic"]);
    assert_eq!((told.removed, told.complete), (3, true));
    let form = changes(&request(FORM, b"a=1&b=2"), &request(FORM, b"b=1"));
    assert_eq!((form.changed, form.added), (vec!["/b".to_owned()], vec!["/a".to_owned()]));
}

// G-6
#[test]
fn no_value_is_told_stored_or_shown() {
    let stored = request(JSON, br#"{"card":"4242424242424242","n":1}"#);
    let new =
        request(JSON, br#"{"card":"5555555555554444","n":2,"pin":"9876543"}"#).query(Some("token=s3cr3t"));
    let (new_print, stored_print) = (fingerprinter().print(&new), fingerprinter().print(&stored));
    let compared = new_print.compare(stored_print.current());
    let key = HashKey::new(1, *b"an-extremely-secret-fingerprint-");
    let keyed = Fingerprinter::new(vec![key.clone()]).unwrap();
    let shown = format!("{new:?} {new_print:?} {stored_print:?} {compared:?} {key:?} {keyed:?}");
    for secret in ["4242", "5555", "9876543", "s3cr3t", "secret", "97, 110, 45"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
    let kept = new_print.current().paths.encode();
    for secret in [b"5555".as_slice(), b"9876", b"card", b"pin"] {
        assert!(!kept.windows(secret.len()).any(|window| window == secret));
    }
}

#[test]
fn equal_values_in_two_places_have_two_digests() {
    let paths = fingerprinter().of_json(br#"{"a":"x","b":"x"}"#).current().paths.clone();
    let values: Vec<_> = paths.entries().map(|(_, value)| value).collect();
    assert_eq!(values.len(), 2);
    assert_ne!(values[0], values[1]);
}

#[test]
fn names_are_pointers_with_escapes_bounded_and_printable() {
    assert_eq!(named(r#"{"a/b~c":1}"#, r#"{"a/b~c":2}"#).changed, ["/a~1b~0c"]);
    assert_eq!(named(r#"{"a\u001b[31m\n\u202e":1}"#, "{}").added, ["/a\\u{1b}[31m\\n\\u{202e}"]);
    assert_eq!(named("1", "2").changed, ["body"]);
    let long = format!("{{\"{}\":1}}", "\u{1f600}".repeat(5000));
    let name = &named(&long, "{}").added[0];
    assert_eq!(name.chars().count(), NAME_CHARS_MAX);
    assert!(name.ends_with('…'));
    assert_eq!(named(r#"{"\ud800":1}"#, "{}").added.len(), 1);
}

#[test]
fn a_list_and_a_record_of_numbers_are_told_apart() {
    let told = named(r#"{"0":1}"#, "[1]");
    assert_eq!((told.added, told.removed), (vec!["/0".to_owned()], 1));
}

#[test]
fn duplicate_members_are_held_against_each_other_in_order() {
    let told = named(r#"{"a":1,"a":3}"#, r#"{"a":1,"a":2}"#);
    assert_eq!((told.changed, told.complete), (vec!["/a".to_owned()], true));
}

#[test]
fn too_many_names_are_cut_and_said_to_be() {
    let object = |value: u32| {
        let members: Vec<_> = (10..40).map(|name| format!("\"m{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let told = named(&object(1), &object(2));
    assert_eq!(told.changed.len(), NAMES_MAX);
    assert!(!told.complete);
}

#[test]
fn a_change_beyond_the_kept_leaves_is_in_the_body() {
    let array = |last: u32| format!("[{}{last}]", "1,".repeat(200));
    let told = named(&array(1), &array(2));
    assert_eq!(told, Changes { changed: vec!["body".into()], ..Changes::default() });
    let told = named(&array(1).replacen('1', "7", 1), &array(2));
    assert_eq!((told.changed, told.complete), (vec!["/0".to_owned()], false));
    let told = named(&array(1), r#"{"a":1}"#);
    assert_eq!((told.added.len(), told.removed, told.complete), (NAMES_MAX, 0, false));
    let told = named(r#"{"a":1}"#, &array(1));
    assert_eq!((told.added.len(), told.removed, told.complete), (0, PATHS_MAX - 3, false));
}

#[test]
fn nothing_is_named_when_the_stored_paths_are_unknown() {
    let mut stored = fingerprinter().of_json(b"1").current().clone();
    stored.paths = Paths::unknown();
    let compared = fingerprinter().of_json(b"2").compare(&stored);
    assert_eq!(compared, Comparison::Different(Changes::default()));
}

#[test]
fn a_huge_name_is_not_copied_for_every_leaf_below_it() {
    let body = format!("{{\"{}\":[{}1]}}", "n".repeat(1 << 20), "1,".repeat(63));
    let print = fingerprinter().of_json(body.as_bytes());
    assert_eq!(print.current().paths.len(), PATHS_MAX);
    assert!(!print.current().paths.is_truncated());
}
