use super::*;

// G-6
#[test]
fn every_part_of_the_request_counts_and_is_named() {
    let base = request(JSON, b"{}").headers(&[("X-Tenant", b"a")]);
    let named = |changed: Request<'_>| changes(&changed, &base).changed;
    let retargeted = |method, path| {
        Request::new(method, path).content_type(Some(JSON)).headers(&[("X-Tenant", b"a")]).body(b"{}")
    };
    assert_eq!(named(retargeted("PUT", "/payments")), ["method"]);
    assert_eq!(named(retargeted("POST", "/payments/")), ["path"]);
    assert_eq!(named(base.content_type(Some(b"application/json; v=2"))), ["content-type"]);
    assert_eq!(named(base.headers(&[("x-tenant", b"b")])), ["header:x-tenant"]);
    assert_eq!(changes(&base.query(Some("a=1")), &base).added, ["query"]);
    assert_eq!(changes(&base, &base.query(Some(""))).removed, 1);
    assert_eq!(compare(&retargeted("post", "/payments"), &base), Comparison::Same);
}

#[test]
fn header_order_and_case_do_not_count_but_the_order_of_one_name_does() {
    let base = request(JSON, b"{}");
    let with = |headers| fingerprinter().print(&base.headers(headers)).current().clone();
    assert_eq!(with(&[("A", b"1"), ("b", b"2")]), with(&[("B", b"2"), ("a", b"1")]));
    assert_ne!(with(&[("a", b"1"), ("a", b"2")]), with(&[("a", b"2"), ("a", b"1")]));
    assert_ne!(with(&[("a", b"1b")]), with(&[("a1", b"b")]));
}

#[test]
fn spelling_of_the_content_type_does_not_count_but_its_parameters_do() {
    let of = |media: &[u8]| fingerprinter().print(&request(media, b"1")).current().digest;
    assert_eq!(of(b"application/json; charset=utf-8"), of(b"Application/Json ;Charset=\"UTF-8\";"));
    assert_eq!(of(b"application/json; a=1; b=2"), of(b"application/json;b=2;a=1"));
    assert_ne!(of(b"application/json; charset=utf-8"), of(b"application/json"));
    assert_ne!(of(b"application/json; a=x"), of(b"application/json; a=X"));
    assert_ne!(of(b"text/plain"), of(b"text/html"));
}

#[test]
fn bytes_never_pass_from_one_part_to_the_next() {
    let of = |path, query| fingerprinter().print(&Request::new("POST", path).query(query)).current().digest;
    assert_ne!(of("/a", Some("b")), of("/ab", Some("")));
    assert_ne!(of("/a", Some("")), of("/a", None));
}
