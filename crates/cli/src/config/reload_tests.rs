//! Reloads that keep every record findable, and those that do not.

use proptest::prelude::*;

use super::super::tests::resolved;
use super::*;
use crate::gateway::matching::{Match, Matcher};

fn gateway(rest: &str) -> Gateway {
    resolved(&format!("[gateway]\nupstream = \"demo\"\n{rest}")).gateway
}

fn reasons(old: &str, new: &str) -> Vec<String> {
    orphans(&gateway(old), &gateway(new)).err().unwrap_or_default()
}

const CHARGE: &str = "[[route]]\nid = \"charge\"\npath = \"/charges\"\n";
const PAY: &str = "[[route]]\nid = \"pay\"\npath = \"/charges\"\n";

#[test]
fn renaming_a_route_needs_an_alias_which_is_named() {
    // G-1
    let said = reasons(CHARGE, PAY);
    assert!(said.iter().any(|one| one.contains("add `\"charge\" = \"pay\"` under `[aliases]`")), "{said:#?}");
    let aliased = format!("{PAY}[aliases]\ncharge = \"pay\"\n");
    assert_eq!(reasons(CHARGE, &aliased), [""; 0]);
    assert_eq!(gateway(&aliased).routes[0].stored.as_deref(), Some("charge"), "records stay where they are");
    assert_eq!(gateway(&aliased).routes[0].id, "pay");
    assert!(!reasons(&aliased, PAY).is_empty(), "an alias stays as long as its route");
}

#[test]
fn a_route_renamed_twice_goes_on_using_its_first_id() {
    // G-1
    let twice = gateway("[[route]]\nid = \"c\"\npath = \"/x\"\n[aliases]\na = \"b\"\nb = \"c\"\n");
    assert_eq!(twice.routes[0].stored.as_deref(), Some("a"));
}

#[test]
fn a_route_that_disappears_or_moves_is_refused() {
    // G-1
    assert!(!reasons(CHARGE, "").is_empty());
    let moved = reasons(CHARGE, "[[route]]\nid = \"charge\"\npath = \"/payments\"\n");
    assert!(
        moved.iter().any(|one| one.contains("POST /charges") && one.contains("the defaults")),
        "{moved:#?}"
    );
    let shadowed = format!("[[route]]\nid = \"all\"\npath = \"/charges\"\nmethods = [\"POST\"]\n{CHARGE}");
    assert!(reasons(CHARGE, &shadowed).iter().any(|one| one.contains("\"charge\" = \"all\"")));
    let off = format!("{CHARGE}protection = \"off\"\n");
    assert!(reasons(CHARGE, &off)[0].contains("would not be protected"));
    assert_eq!(reasons(&off, ""), [""; 0], "no records, nothing to lose");
    let put = "[[route]]\nid = \"put\"\npath = \"/x\"\nmethods = [\"PUT\"]\n";
    assert!(reasons(put, "")[0].contains("PUT /x"));
    assert_eq!(reasons("", put), [""; 0]);
}

#[test]
fn the_first_route_for_a_path_needs_an_alias_or_no_id() {
    // G-1
    let post = format!("{CHARGE}methods = [\"POST\"]\n");
    let said = reasons("", &post);
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("`\"POST /charges\" = \"charge\"`"), "{said:#?}");
    assert_eq!(reasons("", &format!("{post}[aliases]\n\"POST /charges\" = \"charge\"\n")), [""; 0]);
    let pattern = reasons("", "[[route]]\nid = \"order\"\npath = \"/orders/{id}\"\n");
    assert!(pattern[0].contains("Remove the id `order`"), "{pattern:#?}");
    assert_eq!(reasons("", "[[route]]\npath = \"/orders/{id}\"\nwait = \"1s\"\n"), [""; 0]);
}

#[test]
fn how_an_operation_runs_may_change_and_so_may_the_order_where_it_does_not_count() {
    // G-1
    assert_eq!(
        reasons(CHARGE, &format!("{CHARGE}wait = \"1s\"\nttl = \"48h\"\nprotection = \"required\"\n")),
        [""; 0]
    );
    let other = "[[route]]\nid = \"refund\"\npath = \"/refunds\"\n";
    assert_eq!(reasons(&format!("{CHARGE}{other}"), &format!("{other}{CHARGE}")), [""; 0]);
}

#[test]
fn what_tells_requests_apart_does_not_change_while_running() {
    // G-6: an unchanged retry would be told that it is another request.
    for (setting, list) in [("fingerprint_exclude", "\"/sent\""), ("fingerprint_headers", "\"X-Currency\"")] {
        let with = format!("{CHARGE}{setting} = [{list}]\n");
        for (old, new) in [(CHARGE, &*with), (&*with, CHARGE)] {
            let said = reasons(old, new);
            assert!(
                !said.is_empty()
                    && said.iter().all(|one| one.contains(&format!("`{setting}` of the route `charge`"))),
                "{said:#?}"
            );
            assert!(said[0].contains("when no client is retrying"), "{said:#?}");
        }
        let defaults = format!("[defaults]\n{setting} = [{list}]\n{CHARGE}");
        let said = reasons(CHARGE, &defaults);
        assert!(said.iter().any(|one| one.contains("the defaults")), "{said:#?}");
        assert_eq!(reasons(&format!("{with}protection = \"off\"\n"), CHARGE), [""; 0], "no records");
        let two = |list: &str| format!("{CHARGE}{setting} = [{list}]\n");
        let (one, other) = match setting {
            "fingerprint_exclude" => ("\"/sent\", \"/at\"", "\"/at\", \"/sent\""),
            _ => ("\"x-a\", \"x-b\"", "\"X-B\", \"X-A\""),
        };
        assert_eq!(reasons(&two(one), &two(other)), [""; 0], "the order counts for nothing");
    }
}

#[test]
fn the_ttl_does_not_grow_where_keys_are_judged_by_it() {
    // G-10: the record of a key of two days is gone, if it was kept for one.
    let route = |ttl: &str, keys: &str| format!("{CHARGE}ttl = \"{ttl}\"\n{keys}");
    let (off, uuid) = ("", "expired_keys = \"uuid7\"\n");
    let sent = "expired_keys = \"first-sent:Repeatability-First-Sent\"\n";
    for (before, after) in [(uuid, uuid), (sent, sent), (off, uuid)] {
        let said = reasons(&route("24h", before), &route("72h", after));
        assert!(
            !said.is_empty() && said.iter().all(|one| one.contains("The ttl of the route `charge` grows")),
            "{said:#?}"
        );
        assert_eq!(reasons(&route("72h", before), &route("24h", after)), [""; 0], "shorter is safe");
        assert_eq!(reasons(&route("24h", before), &route("24h", after)), [""; 0]);
    }
    assert_eq!(reasons(&route("24h", off), &route("72h", off)), [""; 0]);
}

#[test]
fn keys_are_judged_by_age_as_long_as_it_runs() {
    // G-10: a late retry was refused, and would find no record.
    let (uuid, sent) =
        ("expired_keys = \"uuid7\"\n", "expired_keys = \"first-sent:Repeatability-First-Sent\"\n");
    for judged in [uuid, sent].map(|keys| format!("{CHARGE}{keys}")) {
        let said = reasons(&judged, CHARGE);
        assert!(
            !said.is_empty()
                && said.iter().all(|one| one.contains("`expired_keys` of the route `charge` goes")),
            "{said:#?}"
        );
        assert_eq!(reasons(CHARGE, &judged), [""; 0], "what is refused does not run");
    }
    assert_eq!(reasons(&format!("{CHARGE}{uuid}"), &format!("{CHARGE}{sent}")), [""; 0]);
}

#[test]
fn store_namespace_and_tenants_do_not_change_while_running() {
    // G-1, G-5
    assert!(reasons("", "namespace = \"other\"\n")[0].contains("namespace"));
    assert!(reasons("", "store = \"sqlite:other.db\"\n")[0].contains("store"));
    let tenant = |kind: &str| format!("[defaults]\ntenant = \"{kind}\"\n");
    assert!(reasons(&tenant("none"), &tenant("credential"))[0].contains("from `none` to `credential`"));
    assert!(!reasons(&tenant("header:x-api-key"), &tenant("header:x-other-key")).is_empty());
    for safe in ["none", "credential", "header:x-api-key"] {
        assert_eq!(reasons("", &tenant(safe)), [""; 0], "{safe} asks for what was refused before");
    }
    assert!(
        !reasons("", &tenant("header:x-account")).is_empty(),
        "clients may have sent that header all along"
    );
}

fn config() -> impl Strategy<Value = String> {
    let segment = prop_oneof![Just("/a"), Just("/b"), Just("/{}"), Just("/{*r}")];
    let route = (prop::collection::vec(segment, 1..3), prop::option::of(0..3_u8), 0..3_usize);
    prop::collection::vec(route, 0..4).prop_map(|routes| {
        let mut text = String::new();
        for (segments, id, methods) in routes {
            let last = segments.len() - 1;
            let path: String = segments
                .iter()
                .enumerate()
                .map(|(at, one)| match *one {
                    "/{*r}" if at < last => "/a".to_owned(),
                    one => one.replace("{}", &format!("{{p{at}}}")),
                })
                .collect();
            text += &format!("[[route]]\npath = \"{path}\"\n");
            if let Some(id) = id {
                text += &format!("id = \"r{id}\"\n");
            }
            text += ["", "methods = [\"PUT\", \"POST\"]\n", "protection = \"off\"\n"][methods];
        }
        text
    })
}

/// What the records of a request are stored under, found the way requests are.
fn stored(gateway: &Gateway, method: &Method, path: &str) -> Option<String> {
    let (settings, id) = match Matcher::new(&gateway.routes).find(method, path) {
        Match::Route(at) => (&gateway.routes[at].settings, gateway.routes[at].stored_id(method, path)),
        Match::Fallback => (&gateway.fallback, raw_id(method, path)),
        Match::Untouched => return None,
    };
    (settings.protection != Protection::Off).then_some(id)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_accepted_reload_changes_no_request_and_a_refused_one_does(old in config(), new in config()) {
        // G-1
        let read = |text: &str| crate::config::from_bytes(format!("[gateway]\nupstream = \"demo\"\n{text}").as_bytes());
        let (Ok(old), Ok(new)) = (read(&old), read(&new)) else { return Ok(()) };
        let (old, new) = (old.gateway, new.gateway);
        // The patterns have two segments at most; one segment more shows what lies below them.
        let parts = ["/a", "/b", "/c", "/"];
        let longer = |paths: &[String]| -> Vec<String> {
            paths.iter().flat_map(|path| parts.iter().map(move |part| format!("{path}{part}"))).collect()
        };
        let one = longer(&[String::new()]);
        let two = longer(&one);
        let three = longer(&two);
        let mut lost = false;
        for path in [one, two, three].concat() {
            for method in [Method::POST, Method::PATCH, Method::PUT] {
                let before = stored(&old, &method, &path);
                lost |= before.is_some() && before != stored(&new, &method, &path);
            }
        }
        prop_assert_eq!(orphans(&old, &new).is_err(), lost);
    }
}
