//! Keys at the edge of what a key is.

use super::cause;
use super::judge::{fail, is_success};
use super::{Check, Judged, Make, Plan, check, exactly};
use crate::verify::runner::plain;
use crate::verify::scenario::{Scenario, Seen, Step};
use crate::verify::template::Request;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("key-missing", "Key", &["G-3"], "A request without a key gets what is promised.", missing),
        check("key-empty", "Key", &["G-2"], "An empty key is refused.", |make| {
            bad(make, "an empty key", |_| vec![])
        }),
        check("key-longest", "Key", &["G-2"], "The longest key allowed is a key like any other.", longest),
        check("key-too-long", "Key", &["G-2"], "A key beyond the longest is refused.", |make| {
            let length = longest_allowed(make)? + 1;
            bad(make, "a key that is too long", |key| stretched(&key, length))
        }),
        check("key-quoted", "Key", &["G-2"], "A key with quotes around it and without are the same.", quoted),
        check("key-twice", "Key", &["G-2"], "Two keys in one request are refused.", twice),
        check("key-unicode", "Key", &["G-2"], "A key that is not ASCII is refused.", |make| {
            bad(make, "a key that is not ASCII", |key| format!("{key}-é").into_bytes())
        }),
        check("key-control", "Key", &["G-2"], "A key with a control character is refused.", |make| {
            bad(make, "a key with a control character", |key| [key.as_bytes(), b"\x01x"].concat())
        }),
    ]
}

fn longest_allowed(make: &Make<'_>) -> Result<usize, String> {
    let open = "the profile does not say how long a key may be (key_chars_max)";
    make.setup.profile.key_chars_max.ok_or_else(|| open.to_owned())
}

/// As long as this, and still nobody else's.
fn stretched(key: &str, length: usize) -> Vec<u8> {
    key.bytes().cycle().take(length).collect()
}

fn missing(make: &mut Make<'_>) -> Result<Plan, String> {
    let tag = make.tag();
    let request = make.setup.template.tagged(&tag);
    let send = |name: &str| Step::Send(vec![plain(name, request.clone())]);
    let eye = make.eye();
    let steps = vec![send("first"), send("second")];
    let Some(promised) = make.setup.profile.missing_key else {
        let judge = Box::new(move |seen: &Seen| -> Judged {
            for name in ["first", "second"] {
                let reply = eye.heard(seen, name)?;
                if !is_success(reply) {
                    let what = format!("a request without a key was answered {}", reply.status);
                    return Err(fail(cause::WRONG_STATUS, what));
                }
                if eye.is_marked(reply) == Some(true) {
                    let what = "a request without a key was answered with a replay";
                    return Err(fail(cause::KEYS_COLLAPSED, what));
                }
            }
            match eye.effects(seen, 0) {
                Some(effects) if effects != 2 => {
                    let what = format!("two requests without a key had {effects} effects instead of 2");
                    Err(fail(cause::KEYS_COLLAPSED, what))
                }
                _ => Ok(()),
            }
        });
        return Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 2)] }, insist: None, judge });
    };
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let reply = eye.heard(seen, "first")?;
        let what = "a request without a key";
        if is_success(reply) {
            return Err(fail(cause::KEY_NOT_CHECKED, format!("{what} was answered {}", reply.status)));
        }
        eye.at_most(seen, 0, 0, cause::KEY_NOT_CHECKED, what)?;
        eye.status(reply, &[promised], what)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 0)] }, insist: None, judge })
}

/// A key that must be refused before anything runs.
fn bad(make: &mut Make<'_>, what: &'static str, wrong: impl Fn(String) -> Vec<u8>) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let header = &make.setup.profile.key_header;
    let request = make.setup.template.tagged(&tag).with(header, wrong(key));
    refused(make, what, tag, request)
}

fn twice(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, one, two) = (make.tag(), make.key(), make.key());
    let request = make.request(&tag, &one).with(&make.setup.profile.key_header, two);
    refused(make, "a request with two keys", tag, request)
}

fn refused(make: &Make<'_>, what: &'static str, tag: String, request: Request) -> Result<Plan, String> {
    if make.setup.profile.bad_key.is_empty() {
        return Err("the profile does not say what a key that cannot be used gets".into());
    }
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let reply = eye.heard(seen, "first")?;
        if is_success(reply) {
            return Err(fail(cause::KEY_NOT_CHECKED, format!("{what} was answered {}", reply.status)));
        }
        eye.at_most(seen, 0, 0, cause::KEY_NOT_CHECKED, what)?;
        eye.status(reply, &eye.profile.bad_key, what)
    });
    let steps = vec![Step::Send(vec![plain("first", request)])];
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 0)] }, insist: None, judge })
}

fn longest(make: &mut Make<'_>) -> Result<Plan, String> {
    let (tag, key) = (make.tag(), make.key());
    let length = longest_allowed(make)?;
    let key = stretched(&key, length);
    let request = make.setup.template.tagged(&tag).with(&make.setup.profile.key_header, key);
    let send = |name: &str| Step::Send(vec![plain(name, request.clone())]);
    let steps = vec![send("first"), send("retry")];
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.heard(seen, "first")?;
        let what = format!("a key of {length} characters");
        if !is_success(first) {
            return Err(fail(cause::KEY_REFUSED, format!("{what} was answered {}", first.status)));
        }
        eye.once(seen, 0, cause::NOT_IDEMPOTENT, &what)?;
        let retry = eye.heard(seen, "retry")?;
        eye.same(first, retry, "retry")?;
        eye.shown(seen, retry)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: None, judge })
}

fn quoted(make: &mut Make<'_>) -> Result<Plan, String> {
    if !make.setup.profile.quoted_is_bare {
        return Err("the profile leaves open whether quotes belong to a key".into());
    }
    let (tag, key) = (make.tag(), make.key());
    let steps = vec![
        Step::Send(vec![plain("first", make.request(&tag, &key))]),
        Step::Send(vec![plain("quoted", make.request(&tag, &format!("\"{key}\"")))]),
    ];
    let eye = make.eye();
    let judge = Box::new(move |seen: &Seen| -> Judged {
        let first = eye.first(seen, "first")?;
        let reply = eye.heard(seen, "quoted")?;
        eye.once(seen, 0, cause::QUOTES_COUNT, "a key without and with quotes")?;
        if !is_success(reply) {
            return Err(fail(
                cause::QUOTES_COUNT,
                format!("the key with quotes was answered {}", reply.status),
            ));
        }
        if reply.body != first.body || eye.is_marked(reply) == Some(false) {
            return Err(fail(cause::QUOTES_COUNT, "the key with quotes got another answer than without"));
        }
        eye.shown(seen, reply)
    });
    Ok(Plan { scenario: Scenario { steps, counts: vec![exactly(tag, 1)] }, insist: None, judge })
}
