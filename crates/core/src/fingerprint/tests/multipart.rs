use super::*;

const FIELD: &str = "Content-Disposition: form-data; name=\"amount\"\r\n\r\n100";
const FILE: &str = "Content-Disposition: form-data; name=\"doc\"; filename=\"a.pdf\"\r\n\
                    Content-Type: application/pdf\r\n\r\n%PDF\r\n-";

fn body(boundary: &str, parts: &[&str]) -> Vec<u8> {
    let mut body = String::new();
    for part in parts {
        body += &format!("--{boundary}\r\n{part}\r\n");
    }
    (body + &format!("--{boundary}--\r\n")).into_bytes()
}

fn print(boundary: &str, body: &[u8]) -> Fingerprint {
    let media = format!("multipart/form-data; boundary={boundary}");
    fingerprinter().print(&request(media.as_bytes(), body))
}

fn of(boundary: &str, parts: &[&str]) -> Print {
    print(boundary, &body(boundary, parts)).current().clone()
}

// G-6
#[test]
fn boundary_part_order_and_header_spelling_do_not_count() {
    let base = of("x", &[FIELD, FILE]);
    assert_eq!(of("------WebKitFormBoundary7MA4", &[FIELD, FILE]), base);
    assert_eq!(of("y", &[FILE, FIELD]), base);
    let respelt = "content-type:application/PDF\r\n\
                   CONTENT-DISPOSITION:  Form-Data;filename=\"a.pdf\"; name=doc\r\n\r\n%PDF\r\n-";
    assert_eq!(of("x", &[FIELD, respelt]), base);
    let padded = body("x", &[FIELD, FILE]);
    let padded = String::from_utf8(padded).unwrap().replace("--x\r\n", "--x \t\r\n");
    assert_eq!(*print("x", padded.trim_end().as_bytes()).current(), base);
}

// G-6
#[test]
fn everything_in_a_part_counts() {
    let base = of("x", &[FIELD, FILE]);
    for (from, to) in [
        ("%PDF", "%PDG"),
        ("a.pdf", "b.pdf"),
        ("application/pdf", "text/plain"),
        ("\"doc\"", "\"dox\""),
        ("Content-Type", "Content-Transfer-Encoding: binary\r\nContent-Type"),
        ("\r\n\r\n", "\r\nX-Extra: 1\r\n\r\n"),
        ("filename", "filename*"),
    ] {
        assert!(FILE.contains(from));
        assert_ne!(of("x", &[FIELD, &FILE.replacen(from, to, 1)]), base, "{from}");
    }
    assert_ne!(of("x", &[FIELD]), base);
    assert_ne!(of("x", &[FIELD, FILE, FILE]), base);
    let preamble = [b"hello\r\n".as_slice(), &body("x", &[FIELD, FILE])].concat();
    assert_ne!(print("x", &preamble).current().digest, base.digest);
    let epilogue = [&body("x", &[FIELD, FILE]), b"bye".as_slice()].concat();
    assert_ne!(print("x", &epilogue).current().digest, base.digest);
}

// G-6
#[test]
fn parts_of_one_name_keep_their_order() {
    let second = FIELD.replace("100", "200");
    assert_ne!(of("x", &[FIELD, &second]), of("x", &[&second, FIELD]));
    assert_eq!(of("x", &[FIELD, FILE, &second]), of("x", &[FILE, FIELD, &second]));
}

#[test]
fn a_preamble_does_not_make_the_boundary_count() {
    let with = |boundary: &str| {
        let body = [b"hello\r\n".as_slice(), &body(boundary, &[FIELD])].concat();
        print(boundary, &body).current().clone()
    };
    assert_eq!(with("x"), with("y"));
}

#[test]
fn malformed_bodies_count_as_bytes() {
    let whole = body("x", &[FIELD, FILE]);
    let text = String::from_utf8(whole.clone()).unwrap();
    let broken = [
        text.replace("\r\n", "\n"),
        text.replace("--x--", "--x"),
        text.replace("--x--", "--x--y"),
        text.replacen("--x\r\n", "--xy\r\n", 1),
        text.replace("name=\"amount\"", "named=\"amount\""),
        text.replace("name=\"amount\"", "name=\"amount\"; name=\"b\""),
        text.replace("name=\"amount\"", "name=\"amount"),
        text.replace("form-data; name=\"amount\"", "attachment; name=\"amount\""),
        text.replace("Content-Type", " folded\r\nContent-Type"),
        text.replace("Content-Type:", "Content-Type :"),
        text.replace("application/pdf", "application/pdf\r"),
        text.replacen("\r\n\r\n100", "\r\n", 1),
        String::new(),
        "--x".to_owned(),
    ];
    for body in broken {
        assert_ne!(body.as_bytes(), whole);
        let print = print("x", body.as_bytes());
        assert_eq!(print.current().paths.len(), 4, "method, path, content type, body of {body:?}");
    }
    let nameless = fingerprinter().print(&request(b"multipart/form-data", &whole));
    assert_eq!(nameless.current().paths.len(), 4);
}

#[test]
fn the_boundary_counts_when_it_was_not_found() {
    assert_ne!(print("x", b"no parts").current().digest, print("y", b"no parts").current().digest);
}

#[test]
fn a_backslash_hides_a_quote_in_a_name() {
    let named = |name: &str| of("x", &[&FIELD.replace("amount", name)]);
    let quoted = named("a\\\"; filename=\\\"b");
    assert_eq!(quoted.paths.len(), 4);
    assert_ne!(quoted.digest, named("a\"; filename=\"b").digest);
    let new = print("x", &body("x", &[&FIELD.replace("amount", "a\\\"b")]));
    let Comparison::Different(told) = new.compare(&of("x", &[])) else { panic!("a part was added") };
    assert_eq!(told.added, ["/a\\\"b"]);
}

#[test]
fn a_body_without_parts_and_one_with_too_many_are_no_trouble() {
    assert_eq!(of("x", &[]).paths.len(), 3);
    assert_eq!(of("x", &[FIELD; 1024]).paths.len(), PATHS_MAX);
    assert_eq!(of("x", &[FIELD; 1025]).paths.len(), 4);
}

#[test]
fn changed_parts_are_named() {
    let stored = of("x", &[FIELD, FILE]);
    let new = print("y", &body("y", &[FIELD, &FILE.replace("a.pdf", "b.pdf")]));
    let Comparison::Different(changes) = new.compare(&stored) else { panic!("the file name changed") };
    assert_eq!(changes, Changes { changed: vec!["/doc".into()], complete: true, ..Changes::default() });
}
