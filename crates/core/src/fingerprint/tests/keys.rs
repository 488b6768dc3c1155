use super::*;

// G-6
#[test]
fn a_stored_print_is_compared_under_its_own_version() {
    let (old, new) = (HashKey::new(1, [1; 32]), HashKey::new(2, [2; 32]));
    let before = Fingerprinter::new(vec![old.clone()]).unwrap();
    let rotated = Fingerprinter::new(vec![new.clone(), old]).unwrap();
    let after = Fingerprinter::new(vec![new]).unwrap();
    let stored = before.of_json(br#"{"a":1}"#).current().clone();

    assert_eq!(rotated.version(), 2);
    assert_eq!(rotated.of_json(br#"{ "a": 1 }"#).compare(&stored), Comparison::Same);
    assert_eq!(rotated.of_json(br#"{"a":1}"#).current().version, 2);
    let Comparison::Different(told) = rotated.of_json(br#"{"a":2}"#).compare(&stored) else {
        panic!("another value is another request");
    };
    assert_eq!(told.changed, ["/a"]);
    assert_eq!(after.of_json(br#"{"a":1}"#).compare(&stored), Comparison::Incomparable { version: 1 });
}

#[test]
fn another_secret_gives_other_digests_throughout() {
    let print = |secret| {
        let fingerprinter = Fingerprinter::new(vec![HashKey::new(1, secret)]).unwrap();
        fingerprinter.of_json(b"1").current().clone()
    };
    assert_ne!(print([1; 32]).digest, print([2; 32]).digest);
    assert_ne!(print([1; 32]).paths, print([2; 32]).paths);
}

#[test]
fn key_lists_are_checked() {
    let key = |version| HashKey::new(version, [0; 32]);
    assert!(matches!(Fingerprinter::new(vec![]), Err(Error::NoKeys)));
    let doubled = Fingerprinter::new(vec![key(3), key(1), key(3)]);
    assert!(matches!(doubled, Err(Error::DuplicateVersion { version: 3 })));
    let many = Fingerprinter::new((0..9).map(key).collect());
    assert!(matches!(many, Err(Error::TooManyKeys { count: 9 })));
    let (a, b) = (HashKey::generate(1).unwrap(), HashKey::generate(1).unwrap());
    assert_ne!(a.secret(), b.secret());
}

// Stored prints outlive releases: these bytes may only change together with the domain of the canonical form.
#[test]
fn the_fingerprint_of_a_known_request_never_changes() {
    let body = br#"{"b":[1.0,{"c":null}],"a":"x\u00e9","e":{}}"#;
    let request =
        request(b"application/json; charset=utf-8", body).query(Some("q=1")).headers(&[("X-A", b"1")]);
    let print = fingerprinter().print(&request).current().clone();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&print.digest), "93158c7408e278c03a7dbd40736f64c67311a5b90b0cb393a5efd78e9bbb9a6a");
    assert_eq!(
        hex(print.paths.encode()),
        "0100ebcbe101410d4cffb7372917fba1a6073914af1005bd9f5d14fa553d73b9054dc40439931e8227020432f2d9969f3f12e0fced4925cc8144b744b42bc9a2b51f18310473cf74c713"
    );
}
