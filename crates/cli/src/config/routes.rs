//! The list of routes: each on its own, then all together. Ids are unique, every route can be reached, and an
//! alias keeps the records of a renamed route findable (G-1).
//!
//! # Aliases
//!
//! A record is found by the id under which it was written. `"charge" = "payments"` says that the route
//! `payments` was called `charge`: its operations go on being stored under `charge`, old and new ones alike,
//! so that a retry from before the change finds its record. In logs, metrics and documents the new name is
//! used. The alias stays for as long as the route; removing it would be a second renaming.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;

use super::file::{File, Values};
use super::flags::Arguments;
use super::judge::{Judge, Layers};
use super::mistake::{Place, Written, suggestion};
use super::resolved::{Route, RouteSettings};
use super::{route, value};
use crate::gateway::matching::Pattern;
use crate::gateway::requests;

/// Most routes.
pub(crate) const ROUTES_MAX: usize = 1000;
/// Longest route id.
const ID_BYTES_MAX: usize = 128;

/// A route as it was written, with what could be read of it.
pub(super) struct WrittenRoute<'a> {
    pub(super) place: Place,
    pub(super) id: Option<Written>,
    pub(super) methods: Vec<Method>,
    pub(super) path: String,
    pattern: Option<Pattern>,
    pub(super) settings: Option<&'a Values>,
}

impl WrittenRoute<'_> {
    /// What people call it: its id, or methods and pattern.
    pub(super) fn name(&self) -> String {
        match &self.id {
            Some(id) => id.text.clone(),
            None if self.methods.is_empty() => self.path.clone(),
            None => {
                let methods: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
                format!("{} {}", methods.join("|"), self.path)
            }
        }
    }
}

/// The routes of the flags, or else of the file.
pub(super) fn written<'a>(
    arguments: &'a Arguments,
    file: &'a File,
    judge: &mut Judge<'_>,
) -> Vec<WrittenRoute<'a>> {
    let mut routes = Vec::new();
    if let Some(entry) = arguments.given.get("route") {
        routes.extend(entry.values.iter().filter_map(|written| from_flag(written, judge)));
    } else {
        for route in file.routes.iter().flatten() {
            let place = route.path.as_ref().map_or(&route.place, |path| &path.place);
            let methods = methods(route.methods.iter().map(|one| (one.text.as_str(), &one.place)), judge);
            let path = route.path.as_ref().map(|path| path.text.clone());
            if path.is_none() {
                judge
                    .mistakes
                    .add(&route.place, "the route has no `path`; add one such as `path = \"/payments\"`");
            }
            let pattern = path.as_ref().and_then(|path| pattern(path, place, judge));
            let id = route.id.clone().filter(|id| is_id(id, judge));
            let (place, path) = (route.place.clone(), path.unwrap_or_default());
            routes.push(WrittenRoute { place, id, methods, path, pattern, settings: Some(&route.settings) });
        }
    }
    if routes.len() > ROUTES_MAX {
        let place = routes[ROUTES_MAX].place.clone();
        judge
            .mistakes
            .add(&place, format!("there are {} routes; the most accepted is {ROUTES_MAX}", routes.len()));
        routes.truncate(ROUTES_MAX);
    }
    unique(&routes, judge);
    reachable(&routes, judge);
    routes
}

/// `ID POST|PUT /path`, or `POST /path`.
fn from_flag(written: &Written, judge: &mut Judge<'_>) -> Option<WrittenRoute<'static>> {
    let words: Vec<&str> = written.text.split_whitespace().collect();
    let (id, named, path) = match words[..] {
        [id, methods, path] => (Some(id), methods, path),
        [methods, path] => (None, methods, path),
        _ => {
            let sentence = "a route is written `ID METHODS PATH` or `METHODS PATH`, such as `payments POST|PATCH /payments/{id}`";
            judge.mistakes.add(&written.place, format!("route: {sentence}"));
            return None;
        }
    };
    let place = written.place.clone();
    let id = id.map(|id| Written { text: id.to_owned(), place: place.clone() }).filter(|id| is_id(id, judge));
    let methods = methods(named.split('|').map(|one| (one, &place)), judge);
    let pattern = pattern(path, &place, judge);
    Some(WrittenRoute { place, id, methods, path: path.to_owned(), pattern, settings: None })
}

fn methods<'w>(written: impl Iterator<Item = (&'w str, &'w Place)>, judge: &mut Judge<'_>) -> Vec<Method> {
    let mut methods = Vec::new();
    for (text, place) in written {
        match value::method(text) {
            Ok(method) if methods.contains(&method) => {
                judge.mistakes.add(place, format!("methods: {method} stands there twice; remove one"));
            }
            Ok(method) => methods.push(method),
            Err(sentence) => judge.mistakes.add(place, format!("methods: {sentence}")),
        }
    }
    methods
}

fn pattern(path: &str, place: &Place, judge: &mut Judge<'_>) -> Option<Pattern> {
    Pattern::parse(path).map_err(|sentence| judge.mistakes.add(place, format!("path: {sentence}"))).ok()
}

fn is_id(id: &Written, judge: &mut Judge<'_>) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    let fits = !id.text.is_empty() && id.text.len() <= ID_BYTES_MAX && id.text.bytes().all(good);
    if !fits {
        let sentence =
            format!("id: a route id has 1 to {ID_BYTES_MAX} letters, digits, `-`, `_`, `.`, `:` and `/`");
        judge.mistakes.add(&id.place, sentence);
    }
    fits
}

fn unique(routes: &[WrittenRoute<'_>], judge: &mut Judge<'_>) {
    let mut first: BTreeMap<&str, &Written> = BTreeMap::new();
    for id in routes.iter().filter_map(|route| route.id.as_ref()) {
        match first.get(id.text.as_str()) {
            Some(before) => {
                let sentence = format!(
                    "id: another route is called `{}` already ({}); with one id they would share keys, so choose another",
                    id.text, before.place
                );
                judge.mistakes.add(&id.place, sentence);
            }
            None => _ = first.insert(&id.text, id),
        }
    }
}

/// Finds routes that earlier ones leave nothing to.
fn reachable(routes: &[WrittenRoute<'_>], judge: &mut Judge<'_>) {
    let good: Vec<&WrittenRoute<'_>> = routes.iter().filter(|route| route.pattern.is_some()).collect();
    let patterns: Vec<Pattern> = good.iter().filter_map(|route| route.pattern.clone()).collect();
    let mut reached = BTreeSet::new();
    let mut takers: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let walked = requests::every_kind(&patterns, &mut |_, taken| {
        for &one in taken {
            for method in taking(good[one]) {
                let first = taken.iter().copied().find(|other| taking(good[*other]).contains(method));
                match first {
                    Some(first) if first != one => _ = takers.entry(one).or_default().insert(first),
                    _ => _ = reached.insert(one),
                }
            }
        }
    });
    if walked.is_err() {
        let sentence = "the routes are too many and too much alike to find out whether each can be reached; use fewer parameters";
        judge.mistakes.add(&good[0].place, sentence);
        return;
    }
    for (index, route) in good.iter().enumerate().filter(|(index, _)| !reached.contains(index)) {
        let before: Vec<String> =
            takers.get(&index).into_iter().flatten().map(|one| format!("`{}`", good[*one].name())).collect();
        let sentence = format!(
            "the route `{}` can never be reached: {} before it {} all its requests; move it up or remove it",
            route.name(),
            before.join(", "),
            if before.len() == 1 { "takes" } else { "take" },
        );
        judge.mistakes.add(&route.place, sentence);
    }
}

fn taking<'r>(route: &'r WrittenRoute<'_>) -> &'r [Method] {
    if route.methods.is_empty() { &Route::PROTECTED_METHODS } else { &route.methods }
}

/// The routes with their settings; stored ids are given afterwards.
pub(super) fn routes(
    written: &[WrittenRoute<'_>],
    defaults: &Layers<'_>,
    context: &route::Context<'_>,
    judge: &mut Judge<'_>,
) -> Vec<Route> {
    let empty = Values::new();
    let resolved = written.iter().map(|one| {
        let name = one.name();
        let layers = defaults.under(one.settings.unwrap_or(&empty));
        let settings: RouteSettings = route::settings(&layers, Some((&name, &one.place)), context, judge);
        let stored = one.id.as_ref().map(|id| id.text.clone());
        Route { id: name, stored, methods: one.methods.clone(), pattern: one.path.clone(), settings }
    });
    resolved.collect()
}

/// Pairs of old and new ids that make sense together.
pub(super) fn aliases(
    arguments: &Arguments,
    file: &File,
    written: &[WrittenRoute<'_>],
    judge: &mut Judge<'_>,
) -> Vec<(String, String)> {
    let pairs: Vec<(Written, Written)> = match arguments.given.get("alias") {
        Some(entry) => entry.values.iter().filter_map(|one| pair(one, judge)).collect(),
        None => file.aliases.clone().unwrap_or_default(),
    };
    let ids: Vec<&str> = written.iter().filter_map(|route| Some(route.id.as_ref()?.text.as_str())).collect();
    let olds: Vec<&str> = pairs.iter().map(|(old, _)| old.text.as_str()).collect();
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (old, new) in &pairs {
        let (from, to) = (old.text.as_str(), new.text.as_str());
        let mut wrong = |sentence: String| judge.mistakes.add(&old.place, format!("alias: {sentence}"));
        if olds.iter().filter(|other| **other == from).count() > 1 {
            wrong(format!("`{from}` stands there more than once; its records belong to one route"));
        }
        if from.is_empty() {
            wrong("the old id is empty".into());
        }
        if ids.contains(&from) {
            wrong(format!(
                "`{from}` is still the id of a route; two routes would share its records. Rename that route, or remove the alias"
            ));
        }
        // A route that was renamed twice has a chain of them.
        if !ids.contains(&to) && !olds.contains(&to) {
            let hint = suggestion(to, ids.iter().copied());
            wrong(format!("there is no route with the id `{to}`{hint}"));
        }
        if let Some(other) = seen.insert(to, from) {
            wrong(format!(
                "`{to}` is already the new id of `{other}`; a record is looked for under one id, so records of one of them would be lost. Keep two routes"
            ));
        }
    }
    if let Some((place, from)) =
        pairs.iter().find(|(old, _)| circular(&old.text, &seen)).map(|(old, _)| (&old.place, &old.text))
    {
        judge
            .mistakes
            .add(place, format!("alias: following `{from}` leads back to it; remove one of the lines"));
    }
    raw_ids_belong(&pairs, written, &seen, judge);
    pairs.into_iter().map(|(old, new)| (old.text, new.text)).collect()
}

fn pair(written: &Written, judge: &mut Judge<'_>) -> Option<(Written, Written)> {
    // At the last: new ids have no `=`, and a raw path may.
    let Some((old, new)) = written.text.rsplit_once('=') else {
        judge.mistakes.add(&written.place, "alias: an alias is written `OLD=NEW`");
        return None;
    };
    let part = |text: &str| Written { text: text.trim().to_owned(), place: written.place.clone() };
    Some((part(old), part(new)))
}

fn circular(start: &str, by_new: &BTreeMap<&str, &str>) -> bool {
    let mut at = start;
    for _ in 0..=by_new.len() {
        match by_new.get(at) {
            Some(&before) if before == start => return true,
            Some(&before) => at = before,
            None => return false,
        }
    }
    true
}

/// An old id such as `POST /charges` is what requests on no route have. The route that takes it over must
/// take those requests too, or they and the route would share records.
fn raw_ids_belong(
    pairs: &[(Written, Written)],
    written: &[WrittenRoute<'_>],
    by_new: &BTreeMap<&str, &str>,
    judge: &mut Judge<'_>,
) {
    for (old, _) in pairs {
        let Some((method, path)) = old.text.split_once(' ') else { continue };
        let Ok(method) = value::method(method) else { continue };
        let taker = written.iter().find(|route| {
            taking(route).contains(&method)
                && route.pattern.as_ref().is_some_and(|pattern| pattern.matches(path))
        });
        let first = |route: &WrittenRoute<'_>| {
            route.id.as_ref().is_some_and(|id| oldest(&id.text, by_new) == old.text)
        };
        if !taker.is_some_and(first) {
            judge.mistakes.add(&old.place, format!("alias: `{}` is what {method} requests to {path} are stored under, and the new route does not take those", old.text));
        }
    }
}

/// The id a route had first.
fn oldest<'a>(id: &'a str, by_new: &BTreeMap<&'a str, &'a str>) -> &'a str {
    let mut at = id;
    // Bounded, since circles are found elsewhere.
    for _ in 0..by_new.len() {
        match by_new.get(at) {
            Some(&before) => at = before,
            None => break,
        }
    }
    at
}

/// Gives each route the id that its operations are stored under: the oldest of its aliases.
pub(super) fn with_stored_ids(mut routes: Vec<Route>, aliases: &[(String, String)]) -> Vec<Route> {
    let by_new: BTreeMap<&str, &str> =
        aliases.iter().map(|(old, new)| (new.as_str(), old.as_str())).collect();
    for route in &mut routes {
        if !semel::mutant::on("alias-ignored") {
            route.stored = route.stored.as_deref().map(|id| oldest(id, &by_new).to_owned());
        }
    }
    routes
}
