//! The first look at a request: does it pass, is it refused, or is it an operation?
//!
//! Everything here is decided from the head alone, and the store is not asked: a key that cannot be read
//! never gets near it.

use std::sync::Arc;

use http::Method;
use http::request::Parts;
use semel_core::{Key, mutant};

use crate::problem::{Kind, Problem};
use crate::route::Protection;
use crate::{Route, Routes, header};

/// What to do with a request.
pub(crate) enum Entry {
    /// Pass it on untouched.
    Pass(Option<Arc<Route>>),
    /// Answer with this.
    Refuse(Arc<Route>, Box<Problem>),
    /// Run it once.
    Keyed(Arc<Route>, Key),
}

pub(crate) fn sort(request: &mut Parts, routes: &dyn Routes) -> Entry {
    header::strip(&mut request.headers);
    let route = match routes.find(request) {
        Some(route) if route.takes(&request.method) => route,
        other => return untaken(request, other, routes),
    };
    let refuse = |problem| Box::new(problem);
    if request.headers.contains_key(header::KEY_ALIKE) && !mutant::on("key-alike-passes") {
        return Entry::Refuse(route, refuse(alike(request)));
    }
    let mut lines = request.headers.get_all(header::IDEMPOTENCY_KEY).iter();
    let Some(line) = lines.next() else {
        return match route.protection() {
            Protection::Required if !mutant::on("missing-key-passes") => {
                Entry::Refuse(route, refuse(Problem::new(Kind::KeyMissing)))
            }
            _ => Entry::Pass(Some(route)),
        };
    };
    if lines.next().is_some() && !mutant::on("second-key-ignored") {
        return Entry::Refuse(route, refuse(Problem::new(Kind::KeyRepeated)));
    }
    let key = match Key::parse(line.as_bytes()) {
        Ok(key) => key,
        Err(invalid) => {
            let problem = Problem::new(Kind::KeyMalformed).detail(sentence(&invalid.to_string()));
            return Entry::Refuse(route, refuse(problem));
        }
    };
    if header::overriding(&request.method, &request.headers).is_some() && !mutant::on("override-ignored") {
        return Entry::Refuse(route, refuse(Problem::new(Kind::MethodOverrideRefused)));
    }
    Entry::Keyed(route, key)
}

/// Which key is meant cannot be told where there are both. Where there is only the other one, it would pass
/// without protection, to a service that may well see a key; and its client believes to be protected.
fn alike(request: &Parts) -> Problem {
    if request.headers.contains_key(header::IDEMPOTENCY_KEY) {
        return Problem::new(Kind::KeyRepeated)
            .detail("Idempotency_Key is there beside Idempotency-Key. Send the one with a hyphen, once. Nothing was run.");
    }
    Problem::new(Kind::KeyMalformed).detail(
        "The key came in Idempotency_Key. Its header is Idempotency-Key, with a hyphen. Nothing was run.",
    )
}

/// The method takes no key, and the request passes; unless it has one and asks to be taken for a method
/// that does. A service that listens to that would run it again and again.
fn untaken(request: &mut Parts, found: Option<Arc<Route>>, routes: &dyn Routes) -> Entry {
    let is_keyed =
        [header::IDEMPOTENCY_KEY, header::KEY_ALIKE].iter().any(|name| request.headers.contains_key(name));
    if !is_keyed || mutant::on("override-ignored") {
        return Entry::Pass(found);
    }
    let asked = header::overriding(&request.method, &request.headers)
        .and_then(|method| Method::from_bytes(&method.to_ascii_uppercase()).ok());
    if let Some(asked) = asked {
        let method = std::mem::replace(&mut request.method, asked.clone());
        let other = routes.find(request);
        request.method = method;
        if let Some(route) = other.filter(|route| route.takes(&asked)) {
            return Entry::Refuse(route, Box::new(Problem::new(Kind::MethodOverrideRefused)));
        }
    }
    Entry::Pass(found)
}

/// With a capital and a full stop.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}
