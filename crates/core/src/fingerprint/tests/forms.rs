use super::*;

// G-6
#[test]
fn encoding_and_order_of_unrelated_fields_do_not_count() {
    assert_same_as(FORM, b"a=%7e&b=x+y", b"b=x%20y&a=~");
    assert_same_as(FORM, b"n%61me=\xc3\xa9", b"name=%c3%A9");
    assert_same_as(FORM, b"a=1&&b=2&", b"a=1&b=2");
    assert_same_as(FORM, b"a=1&b=2&a=3", b"a=1&a=3&b=2");
    assert_same_as(FORM, b"a=b=c", b"a=b%3Dc");
}

// G-6
#[test]
fn values_and_the_order_of_one_name_count() {
    assert_different_as(FORM, b"a=1&a=2", b"a=2&a=1");
    assert_different_as(FORM, b"a=1", b"a=1&a=1");
    assert_different_as(FORM, b"a", b"a=");
    assert_different_as(FORM, b"a=1%26b=2", b"a=1&b=2");
    assert_different_as(FORM, b"a=%2B", b"a=+");
    assert_different_as(FORM, b"a=%FF", b"a=%EF%BF%BD");
    assert_different_as(FORM, b"a=1.0", b"a=1");
}

#[test]
fn fields_of_one_root_keep_their_order() {
    assert_different_as(
        FORM,
        b"i[][id]=1&i[][n]=2&i[][id]=3&i[][n]=4",
        b"i[][id]=1&i[][id]=3&i[][n]=2&i[][n]=4",
    );
    assert_same_as(FORM, b"i[]=1&x=0&i[]=2", b"x=0&i[]=1&i[]=2");
}

#[test]
fn a_malformed_percent_makes_the_form_opaque() {
    for body in [b"a=1&b=%".as_slice(), b"a=1&b=%4", b"a=1&b=%zz", b"a=1&b=%+1"] {
        assert_same_as(FORM, body, body);
        let reordered = [&body[4..], b"&a=1"].concat();
        assert_different_as(FORM, body, &reordered);
    }
    assert_different_as(b"application/x-www-form-urlencoded; charset=utf-16", b"a=1&b=2", b"b=2&a=1");
}
