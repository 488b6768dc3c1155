use super::*;

fn same(pointers: &[&str], content_type: &[u8], a: &str, b: &str) -> bool {
    let pointers = Pointers::parse(pointers).unwrap();
    let a = request(content_type, a.as_bytes()).exclusions(&pointers);
    let b = request(content_type, b.as_bytes()).exclusions(&pointers);
    compare(&a, &b) == Comparison::Same
}

// G-6
#[test]
fn an_excluded_member_is_ignored_present_or_absent() {
    let at = &["/meta/sent_at"];
    assert!(same(at, JSON, r#"{"a":1,"meta":{"sent_at":1}}"#, r#"{"a":1,"meta":{"sent_at":2}}"#));
    assert!(same(at, JSON, r#"{"a":1,"meta":{"sent_at":[1,{}]}}"#, r#"{"a":1,"meta":{}}"#));
    assert!(same(at, JSON, r#"{"meta":{"sent\u005fat":1,"sent_at":2}}"#, r#"{"meta":{}}"#));
    assert!(!same(at, JSON, r#"{"a":1,"meta":{"sent_at":1}}"#, r#"{"a":2,"meta":{"sent_at":1}}"#));
    assert!(!same(at, JSON, r#"{"meta":{"sent_at":1}}"#, "{}"));
    assert!(!same(at, JSON, r#"{"sent_at":1}"#, r#"{"sent_at":2}"#));
    assert!(same(&["/a", "/a/b"], JSON, r#"{"a":{"b":1,"c":2}}"#, "{}"));
}

#[test]
fn an_excluded_element_keeps_its_place() {
    assert!(same(&["/0"], JSON, "[1,2]", "[9,2]"));
    assert!(!same(&["/0"], JSON, "[1,2]", "[2]"));
    assert!(!same(&["/0"], JSON, "[1]", "[]"));
    assert!(same(&["/items/1/t"], JSON, r#"{"items":[1,{"t":1}]}"#, r#"{"items":[1,{"t":2}]}"#));
    assert!(!same(&["/00", "/-", "/+0"], JSON, "[1]", "[2]"));
    assert!(same(&["/-"], JSON, r#"{"-":1}"#, "{}"));
}

#[test]
fn excluded_fields_and_parts_are_ignored() {
    assert!(same(&["/ts"], FORM, "a=1&ts=5&t%73=6", "a=1"));
    assert!(!same(&["/ts/x"], FORM, "ts=1", "ts=2"));
    assert!(same(&["/m[ts]"], FORM, "m[ts]=1&m[a]=2", "m[a]=2&m[ts]=3"));
    let media = b"multipart/form-data; boundary=x";
    let part =
        |value| format!("--x\r\nContent-Disposition: form-data; name=\"ts\"\r\n\r\n{value}\r\n--x--\r\n");
    assert!(same(&["/ts"], media, &part(1), &part(2)));
    assert!(!same(&["/t"], media, &part(1), &part(2)));
}

#[test]
fn what_is_excluded_is_not_named_either() {
    let pointers = Pointers::parse(&["/ts"]).unwrap();
    let new = request(JSON, br#"{"a":1,"ts":1}"#).exclusions(&pointers);
    let stored = request(JSON, br#"{"a":2,"ts":2}"#).exclusions(&pointers);
    assert_eq!(changes(&new, &stored).changed, ["/a"]);
}

#[test]
fn pointers_are_checked() {
    for bad in ["", "a", "a/b", "/~", "/~2", "/a~"] {
        assert!(matches!(Pointers::parse(&[bad]), Err(Error::Pointer { .. })), "{bad}");
    }
    assert!(Pointers::parse(&["/", "/a~1b", "/~0", "/é"]).is_ok());
    assert!(same(&["/", "/a~1b", "/~01"], JSON, r#"{"":1,"a/b":2,"~1":3}"#, "{}"));
    let many = vec!["/a"; POINTERS_MAX + 1];
    assert!(matches!(Pointers::parse(&many), Err(Error::TooManyPointers { .. })));
}
