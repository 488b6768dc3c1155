//! What clients need to know about routes: as a page, and for machines.

use std::fmt::Write;

use semel_core::key::KEY_CHARS_MAX;
use semel_core::policy::DEFAULTS;
use serde_json::{Value, json};

use crate::age::ExpiredKeys;
use crate::problem::{self, TYPE_PREFIX};
use crate::route::Protection;
use crate::{Route, header};

/// Problems that only a gateway has, about requests without keys.
const NOT_ABOUT_KEYS: [problem::Kind; 5] = [
    problem::Kind::UpstreamUnreachable,
    problem::Kind::UpstreamTimeout,
    problem::Kind::RequestMalformed,
    problem::Kind::MethodRefused,
    problem::Kind::TooManyConnections,
];

/// Describes routes to their clients: an HTML page, and a JSON document that says the same.
pub fn describe<'a>(routes: impl IntoIterator<Item = &'a Route>) -> (String, String) {
    let routes: Vec<&Route> =
        routes.into_iter().filter(|route| route.protection() != Protection::Off).collect();
    (page(&routes), document(&routes).to_string())
}

fn document(routes: &[&Route]) -> Value {
    json!({
        "header": header::IDEMPOTENCY_KEY.as_str(),
        "key": {
            "chars_max": KEY_CHARS_MAX,
            "characters": "visible ASCII",
            "forms": ["\"quoted\"", "bare"],
        },
        "retry": {
            "same_key": true,
            "retry_after_seconds": [DEFAULTS.retry_after_min.as_secs(), DEFAULTS.retry_after_max.as_secs()],
        },
        "routes": routes.iter().map(|route| one(route)).collect::<Vec<_>>(),
        "problems": problems().map(|kind| json!({
            "type": format!("{TYPE_PREFIX}{}", kind.slug()),
            "status": kind.status().as_u16(),
            "title": kind.title(),
            "client": kind.advice(),
        })).collect::<Vec<_>>(),
    })
}

fn one(route: &Route) -> Value {
    let terms = route.policy().terms();
    json!({
        "id": route.label(),
        "methods": route.methods().iter().map(|method| method.as_str()).collect::<Vec<_>>(),
        "key_required": route.protection() == Protection::Required,
        "key_format": key_format(route),
        "ttl_seconds": terms.ttl.as_secs(),
        "retry_window_seconds": terms.retry_window.as_secs(),
        "waits_for_running_seconds": route.policy().wait().as_secs(),
        "request_bytes_max": route.policy().request_bytes_max(),
        "releasing_statuses": route.releasing().iter().map(|status| status.as_u16()).collect::<Vec<_>>(),
        "replay_header": route.replay_header().as_str(),
    })
}

fn key_format(route: &Route) -> String {
    match route.expired_keys() {
        ExpiredKeys::NotChecked => format!("1 to {KEY_CHARS_MAX} visible ASCII characters"),
        ExpiredKeys::Uuid7 => "a UUID of version 7".into(),
        ExpiredKeys::FirstSent(name) => {
            format!(
                "1 to {KEY_CHARS_MAX} visible ASCII characters, with {name} saying when it was first sent"
            )
        }
    }
}

fn problems() -> impl Iterator<Item = problem::Kind> {
    problem::Kind::ALL.iter().copied().filter(|kind| !NOT_ABOUT_KEYS.contains(kind))
}

fn page(routes: &[&Route]) -> String {
    let mut html = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Idempotency</title><style>body{font:16px/1.5 \
         system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;width:100%}th,td\
         {text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ccc;vertical-align:top}</style>\
         <h1>Retrying requests safely</h1>\
         <p>Send <code>Idempotency-Key</code> with a value that is new for each intent, and repeat the request \
         unchanged, with the same key, until it is answered. It takes effect once; every retry gets the first \
         answer.</p><h2>Routes</h2><table><tr><th>Route<th>Methods<th>Key<th>Remembered for<th>Retry for up to\
         <th>Largest request",
    );
    for route in routes {
        let terms = route.policy().terms();
        let methods: Vec<&str> = route.methods().iter().map(|method| method.as_str()).collect();
        let required = if route.protection() == Protection::Required { "required" } else { "optional" };
        // Writing to a string cannot fail.
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td>{required}: {}<td>{}<td>{}<td>{} bytes",
            escaped(route.label()),
            escaped(&methods.join(", ")),
            escaped(&key_format(route)),
            human(terms.ttl.as_secs()),
            human(terms.retry_window.as_secs()),
            route.policy().request_bytes_max(),
        );
    }
    html.push_str("</table><h2>Errors</h2><table><tr><th>Status<th>Type<th>Meaning<th>What to do");
    for kind in problems() {
        let (status, slug) = (kind.status().as_u16(), kind.slug());
        let _ = write!(
            html,
            "<tr id=\"{slug}\"><td>{status}<td><code>{TYPE_PREFIX}{slug}</code><td>{}<td>{}",
            escaped(kind.title()),
            escaped(kind.advice())
        );
    }
    html.push_str("</table>");
    html
}

fn human(seconds: u64) -> String {
    let (unit, word) = match seconds {
        s if s >= 86_400 && s.is_multiple_of(86_400) => (86_400, "d"),
        s if s >= 3600 && s.is_multiple_of(3600) => (3600, "h"),
        s if s >= 60 && s.is_multiple_of(60) => (60, "min"),
        _ => (1, "s"),
    };
    format!("{} {word}", seconds / unit)
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut safe, char| {
        match char {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            _ => safe.push(char),
        }
        safe
    })
}

#[cfg(test)]
mod tests {
    use semel_core::Policy;

    use super::*;

    #[test]
    fn page_and_document_name_every_route_with_its_terms_and_every_problem() {
        // G-22
        let ttl = std::time::Duration::from_secs(3 * 86_400);
        let policy = Policy::builder().ttl(ttl).build().unwrap();
        let charge = Route::builder("<charge>").required().policy(policy).build().unwrap();
        let off = Route::builder("secret-route").protection(Protection::Off).build().unwrap();
        let (html, json) = describe([&charge, &off]);
        let document: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(document["routes"][0]["id"], "<charge>");
        assert_eq!(document["routes"][0]["ttl_seconds"], 259_200);
        assert_eq!(document["routes"][0]["key_required"], true);
        assert_eq!(document["routes"].as_array().unwrap().len(), 1);
        assert!(html.contains("&lt;charge&gt;") && !html.contains("<charge>") && html.contains("3 d"));
        assert!(!html.contains("secret-route"));
        for kind in problems() {
            assert!(html.contains(&format!("{TYPE_PREFIX}{}<", kind.slug())), "{kind:?}");
        }
    }
}
