use super::*;

#[test]
fn paths_survive_the_store() {
    let big = format!("[{}1]", "1,".repeat(100));
    for body in ["1", "[]", r#"{"a":{"b":1},"c":[1,2]}"#, &big] {
        let paths = fingerprinter().of_json(body.as_bytes()).current().paths.clone();
        assert_eq!(Paths::decode(paths.encode()).unwrap(), paths);
    }
    assert_eq!(Paths::decode(Paths::unknown().encode()).unwrap(), Paths::default());
}

#[test]
fn broken_bytes_are_refused() {
    let good = fingerprinter().of_json(b"[1,2]").current().paths.encode().to_vec();
    for cut in 0..good.len() {
        let whole_entries = cut >= 2 && (cut - 2) % 8 == 0;
        assert_eq!(Paths::decode(&good[..cut]).is_ok(), whole_entries, "{cut}");
    }
    assert!(Paths::decode(&[0, 0]).is_err());
    assert!(Paths::decode(&[1, 2]).is_err());
    assert!(Paths::decode(&[1; 2 + 8 * PATHS_MAX]).is_ok());
    assert!(Paths::decode(&[1; 2 + 8 * (PATHS_MAX + 1)]).is_err());
}
