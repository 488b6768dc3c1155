use super::shapes::alone;
use super::*;

/// Made by this thread after it learnt how `like` is spelt.
fn after(fingerprinter: &Fingerprinter, like: &str, body: &str) -> Fingerprint {
    for _ in 0..3 {
        fingerprinter.of_json(like.as_bytes());
    }
    fingerprinter.of_json(body.as_bytes())
}

const DOCUMENT: &str = r#"{"b": 1, "a": [true, {}, []], "c": {"x": "y", "x": null}, "d" : -0.5e1 }"#;

#[test]
fn a_document_spelt_as_the_one_before_has_the_fingerprint_it_has_alone() {
    // G-6
    let with = |from: &str, to: &str| DOCUMENT.replacen(from, to, 1);
    let bodies = [
        DOCUMENT.to_owned(),
        with("1", "2"),
        with("1", "null"),
        with("1", r#""1""#),
        with("1", r#""\u0031\"é\ud800""#),
        with("true", "12"),
        with("-0.5e1", "0"),
        with(r#""y""#, r#""""#),
        // The other of two members of one name.
        with("null", "7"),
        // Not quite as the one before.
        with("{}", "[]"),
        with("1", "{}"),
        with("true", "[1]"),
        with(r#""b""#, r#""e""#),
        with(": 1", ":1"),
        with("1,", "1 ,"),
        with(" }", "}"),
        with("true, ", ""),
        // Not JSON.
        with("1", "01"),
        with("1", "1."),
        with("1", "1 2"),
        with("1", "tru"),
        with("1", ""),
        with(" }", ""),
        with(" }", " } "),
        with(" }", " }}"),
        with(r#""y""#, "\"\n\""),
        with(r#""y""#, r#""y"#),
    ];
    let fingerprinter = fingerprinter();
    for body in &bodies {
        assert!(after(&fingerprinter, DOCUMENT, body) == alone(&fingerprinter, body), "{body}");
    }
}

#[test]
fn a_document_that_is_no_more_than_a_scalar_is_read_by_what_stands_around_it() {
    // G-6
    let fingerprinter = fingerprinter();
    for body in ["1", "2", " 1", "1 ", "12", "1.", "\"a\"", "{}", "[]", ""] {
        assert!(after(&fingerprinter, "1", body) == alone(&fingerprinter, body), "{body}");
    }
}

#[test]
fn more_leaves_than_are_named_still_count_in_a_document_that_is_spelt_alike() {
    // G-6
    let many = |last: &str| format!("[{}{last}]", "1,".repeat(2 * PATHS_MAX));
    let fingerprinter = fingerprinter();
    let (one, other) = (many("3"), many("4"));
    let print = after(&fingerprinter, &one, &other);
    assert!(print == alone(&fingerprinter, &other));
    assert!(matches!(
        print.compare(fingerprinter.of_json(one.as_bytes()).current()),
        Comparison::Different(_)
    ));
}

#[test]
fn what_is_excluded_stays_out_of_a_document_that_is_spelt_alike() {
    // G-6
    let fingerprinter = fingerprinter();
    let (all, none) = (Pointers::none(), Pointers::parse(&["/a", "/l/1", "/o"]).unwrap());
    let body = |a: &str, l: &str, o: &str, z: &str| format!(r#"{{"z":{z},"a":{a},"l":[1,{l},3],"o":{o}}}"#);
    let (one, other) = (body("1", "2", r#"{"x":1}"#, "4"), body("5", "6", r#"{"x":7}"#, "4"));
    let changed = body("1", "2", r#"{"x":1}"#, "5");
    let print =
        |body: &str, exclusions| fingerprinter.print(&request(JSON, body.as_bytes()).exclusions(exclusions));
    for _ in 0..3 {
        for body in [&one, &other] {
            assert!(print(body, &none) == print(&one, &none));
            assert!(print(&changed, &none) != print(body, &none));
        }
        assert!(print(&one, &all) != print(&other, &all));
    }
}

#[test]
fn a_body_that_is_spelt_alike_goes_with_other_parts_of_a_request() {
    // G-6
    let fingerprinter = fingerprinter();
    let headers = [("x-one", &b"1"[..])];
    let plain = Request::new("POST", "/a").content_type(Some(JSON)).body(br#"{"a":1,"b":[2]}"#);
    let requests =
        [plain, plain.query(Some("q")), plain.headers(&headers), plain.body(br#"{"a":3,"b":[2]}"#)];
    let expected = requests.map(|request| {
        let print = || fingerprinter.print(&request);
        std::thread::scope(|scope| scope.spawn(print).join().unwrap())
    });
    for first in &requests {
        for _ in 0..3 {
            fingerprinter.print(first);
        }
        for (request, expected) in requests.iter().zip(&expected) {
            assert!(fingerprinter.print(request) == *expected, "{request:?} after {first:?}");
        }
    }
}

#[test]
fn another_spelling_that_stays_is_learnt_in_the_end() {
    // G-6
    let fingerprinter = fingerprinter();
    let (one, other) = (r#"{"a":1,"b":2}"#, r#"{"b":2, "a":1}"#);
    let expected = after(&fingerprinter, one, one);
    for _ in 0..100 {
        assert!(fingerprinter.of_json(other.as_bytes()) == expected);
    }
    let changed = r#"{"b":2, "a":3}"#;
    assert!(fingerprinter.of_json(changed.as_bytes()) == alone(&fingerprinter, changed));
}
