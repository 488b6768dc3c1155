use super::*;

// G-6
#[test]
fn member_order_spacing_and_escapes_do_not_count() {
    same_json(r#"{"a":1,"b":[true,null]}"#, " {\r\n\t\"b\" : [ true , null ] , \"a\" : 1 } ");
    same_json(r#"{"A":"é/"}"#, r#"{"\u0041":"\u00e9\/"}"#);
    same_json(r#""😀""#, r#""\ud83d\uDE00""#);
    same_json("\"\\n\\t\\r\\b\\f\\\"\\\\\"", r#""\u000a\u0009\u000D\u0008\u000c\u0022\u005c""#);
    same_json(r#"{"x":{"b":{"d":1,"c":2},"a":3}}"#, r#"{"x":{"a":3,"b":{"c":2,"d":1}}}"#);
    same_json("\"abcdefgh\\u0069jklmnopqrstu\"", "\"abcdefghijklmnopqrs\\u0074u\"");
    same_json(r#"{"a":1,"\u0062":2,"c":3}"#, r#"{"c":3,"b":2,"a":1}"#);
}

// G-6
#[test]
fn numbers_count_as_they_are_written() {
    different_json("9007199254740993", "9007199254740992");
    different_json("1.0", "1");
    different_json("0.1", "0.10000000000000000001");
    different_json("-0", "0");
    different_json("1e2", "100");
    different_json("1e2", "1E2");
    different_json("1e999", "1e998");
    different_json("[1,2]", "[12]");
    different_json("1", "\"1\"");
}

// G-6
#[test]
fn duplicate_members_stay_and_keep_their_order() {
    different_json(r#"{"a":1,"a":2}"#, r#"{"a":2}"#);
    different_json(r#"{"a":1,"a":2}"#, r#"{"a":1}"#);
    different_json(r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#);
    different_json(r#"{"a":1,"a":1}"#, r#"{"a":1}"#);
    same_json(r#"{"a":1,"b":0,"a":2}"#, r#"{"b":0,"a":1,"\u0061":2}"#);
}

// G-6
#[test]
fn many_duplicate_members_keep_their_order_too() {
    let members = |name: &'static str| (0..40).map(move |n| format!("\"{name}\":{n}"));
    let apart: Vec<_> = members("a").chain(members("b")).collect();
    let mixed: Vec<_> = members("b").zip(members("a")).flat_map(|(b, a)| [b, a]).collect();
    same_json(&format!("{{{}}}", apart.join(",")), &format!("{{{}}}", mixed.join(",")));
}

// G-6
#[test]
fn values_that_look_alike_stay_different() {
    different_json(r#"{"a":null}"#, "{}");
    different_json("null", "\"null\"");
    different_json("true", "\"true\"");
    different_json("[]", "{}");
    different_json("[[]]", "[]");
    different_json("[[1],2]", "[[1,2]]");
    different_json("[1,2]", "[2,1]");
    different_json(r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#);
    different_json(r#"{"0":1}"#, "[1]");
    different_json(r#"["a","b"]"#, r#"["a\",\"b"]"#);
    different_json("\"é\"", "\"e\u{301}\"");
    different_json(r#"{"a":1}"#, r#"{"A":1}"#);
}

// G-6
#[test]
fn a_lone_surrogate_equals_nothing_but_itself() {
    same_json(r#""\ud800""#, r#""\uD800""#);
    different_json(r#""\ud800""#, r#""\ud801""#);
    different_json(r#""\ud800""#, r#""\udc00""#);
    different_json(r#""\ud800""#, "\"\u{fffd}\"");
    different_json(r#""\ud800x\udc00""#, r#""\ud800\udc00x""#);
    different_json(r#""\ud800\ud83d\ude00""#, r#""\ud83d\ude00\ud800""#);
    different_json(r#""\ud800""#, r#""\\ud800""#);
}

#[test]
fn what_is_not_json_counts_as_bytes() {
    let broken: &[&[u8]] = &[
        b"",
        b"{",
        b"{\"a\":1,}",
        b"[1,]",
        b"[,1]",
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"1e",
        b"-",
        b"nul",
        b"\"\x01\"",
        b"\"abc\x1fdefghijk\"",
        b"\"\\x\"",
        b"\"\\u12g4\"",
        b"\"\\u+123\"",
        b"'a'",
        b"{a:1}",
        b"{\"a\" 1}",
        b"[1 2]",
        b"1 1",
        b"[1]]",
        b"\xef\xbb\xbf1",
        b"\"\xff\"",
        b"\"\xed\xa0\x80\"",
        b"\x0b1",
    ];
    for body in broken {
        assert_same_as(JSON, body, body);
        assert_different_as(JSON, body, &[body, b" ".as_slice()].concat());
        assert_eq!(fingerprinter().of_json(body), fingerprinter().of_bytes(body));
    }
}

#[test]
fn nesting_beyond_the_limit_counts_as_bytes_and_harms_nobody() {
    let nested = |depth: usize, inner: &str| "[".repeat(depth) + inner + &"]".repeat(depth);
    same_json(&nested(128, ""), &nested(128, " "));
    different_json(&nested(129, ""), &nested(129, " "));
    let deep = "[".repeat(100_000);
    same_json(&deep, &deep);
    let objects = "{\"a\":".repeat(100_000);
    same_json(&objects, &objects);
}

#[test]
fn a_document_with_too_many_values_counts_as_bytes() {
    let many = |values: usize| format!("[{}1]", "1,".repeat(values - 2));
    same_json(&many(1 << 20), &(many(1 << 20) + " "));
    different_json(&many((1 << 20) + 1), &(many((1 << 20) + 1) + " "));
}

#[test]
fn only_json_media_types_in_utf8_are_read_as_json() {
    let (a, b) = (b"{\"a\":1}".as_slice(), b"{ \"a\": 1 }".as_slice());
    for media in [
        "application/json",
        "Application/JSON",
        "application/problem+json",
        "application/json; charset=\"UTF-8\"",
    ] {
        assert_same_as(media.as_bytes(), a, b);
    }
    for media in [
        "text/plain",
        "application/jsonp",
        "json",
        "application/json; charset=utf-16",
        "application/json; =",
        "",
    ] {
        assert_different_as(media.as_bytes(), a, b);
    }
    let (a, b) = (Request::new("POST", "/").body(a), Request::new("POST", "/").body(b));
    assert_ne!(compare(&a, &b), Comparison::Same);
}
