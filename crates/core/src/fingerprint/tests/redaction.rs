use super::*;

fn redacted(json: &str, pointers: &[&str]) -> Option<String> {
    let pointers = Pointers::parse(pointers).unwrap();
    redact(json.as_bytes(), &pointers, REDACTED).map(|bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn values_are_replaced_and_all_other_bytes_kept() {
    let json = "{ \"card\" : {\"pan\": \"4242\", \"n\":1.0} ,\"l\":[1, [2] ,3],\n\"p\\u0061n\":null }";
    let expected = "{ \"card\" : {\"pan\": \"[redacted]\", \"n\":1.0} ,\"l\":[1, \"[redacted]\" ,3],\n\"p\\u0061n\":\"[redacted]\" }";
    assert_eq!(redacted(json, &["/card/pan", "/l/1", "/pan", "/nothing/here"]).unwrap(), expected);
    assert_eq!(redacted(json, &[]).unwrap(), json);
    assert_eq!(
        redacted(r#"{"a":1,"a":{"b":2}}"#, &["/a", "/a/b"]).unwrap(),
        r#"{"a":"[redacted]","a":"[redacted]"}"#
    );
}

#[test]
fn what_is_not_json_is_not_called_redacted() {
    assert_eq!(redacted("{\"pan\":4242", &["/pan"]), None);
    assert_eq!(redacted("", &["/pan"]), None);
}

#[test]
fn the_replacement_is_always_a_json_string() {
    let pointers = Pointers::parse(&["/a"]).unwrap();
    let bytes = redact(b"{\"a\":1}", &pointers, "\"\\\n").unwrap();
    assert_eq!(bytes, br#"{"a":"\"\\\u000a"}"#);
}
