//! May a running gateway go on with other settings? Only if every record stays findable (G-1), and true.
//!
//! A retry finds its record by namespace, tenant, stored route id and key. If a reload changed one of the
//! first three for any request, the retry of an operation from before would run a second time. So all kinds
//! of requests are compared under the old and the new routes, and a difference is refused with the line that
//! mends it.
//!
//! A record that is found must also mean what it meant. What tells requests apart stays, or an unchanged retry
//! would be taken for another request; and where keys are judged by their age, the TTL does not grow, or a key
//! whose record has expired would be taken for a young one (G-10). Other settings that change how an operation
//! runs (a shorter TTL, a time-out) change nothing here.
//!
//! This compares two configurations; it does not look whether there are live records. A restart compares
//! nothing: there, the new settings count as they are.

use std::collections::BTreeSet;

use http::Method;
use semel::http::{ExpiredKeys, Protection};

use super::resolved::{Gateway, Route, RouteSettings, Tenant, raw_id};
use super::value::duration_text;
use crate::gateway::matching::Pattern;
use crate::gateway::requests;

/// Sentences, one for each reason why the new settings must not replace the old ones.
pub(crate) fn orphans(old: &Gateway, new: &Gateway) -> Result<(), Vec<String>> {
    let mut reasons = BTreeSet::new();
    if old.store != new.store {
        reasons.insert("The store changes: what the old one remembers would be forgotten. Restart the gateway to change it.".to_owned());
    }
    if old.subject_keys != new.subject_keys {
        reasons.insert("The place of subjects' keys changes: what the old keys sealed could not be read. Restart the gateway to change it.".to_owned());
    }
    if old.namespace != new.namespace {
        reasons.insert(format!(
            "The namespace changes from `{}` to `{}`: no earlier operation would be found. Restart the gateway to change it.",
            old.namespace, new.namespace
        ));
    }
    let patterns = old.routes.iter().chain(&new.routes).map(|route| Pattern::parse(&route.pattern));
    let patterns: Vec<Pattern> =
        patterns.collect::<Result<_, _>>().expect("resolved routes have good patterns");
    let methods = methods(old, new);
    let walked = requests::every_kind(&patterns, &mut |path, taken| {
        for method in &methods {
            let before = Owner::of(old, method, path, taken.iter().copied());
            let after =
                Owner::of(new, method, path, taken.iter().filter_map(|at| at.checked_sub(old.routes.len())));
            reasons.extend(before.and_then(|before| lost(&before, after.as_ref(), method, path)));
        }
    });
    if walked.is_err() {
        reasons.insert(
            "The routes are too many and too much alike to be compared. Restart the gateway to change them."
                .to_owned(),
        );
    }
    if reasons.is_empty() || semel::mutant::on("reload-orphans-records") {
        Ok(())
    } else {
        Err(reasons.into_iter().collect())
    }
}

fn methods(old: &Gateway, new: &Gateway) -> Vec<Method> {
    let mut methods = Route::PROTECTED_METHODS.to_vec();
    for method in old.routes.iter().chain(&new.routes).flat_map(|route| route.methods()) {
        if !methods.contains(method) {
            methods.push(method.clone());
        }
    }
    methods
}

/// Whose records a request's are.
struct Owner<'a> {
    /// None: the defaults.
    route: Option<&'a Route>,
    settings: &'a RouteSettings,
    stored: String,
}

impl<'a> Owner<'a> {
    /// None if such a request is not protected, and so leaves no record.
    fn of(
        gateway: &'a Gateway,
        method: &Method,
        path: &str,
        mut taken: impl Iterator<Item = usize>,
    ) -> Option<Self> {
        let takes = |at: usize| gateway.routes.get(at).filter(|route| route.methods().contains(method));
        let owner = match taken.find_map(takes) {
            Some(route) => {
                Self { route: Some(route), settings: &route.settings, stored: route.stored_id(method, path) }
            }
            None if Route::PROTECTED_METHODS.contains(method) => {
                Self { route: None, settings: &gateway.fallback, stored: raw_id(method, path) }
            }
            None => return None,
        };
        (owner.settings.protection != Protection::Off).then_some(owner)
    }

    fn name(&self) -> String {
        match self.route {
            Some(route) => format!("the route `{}`", route.id),
            None => "the defaults".into(),
        }
    }
}

fn lost(before: &Owner<'_>, after: Option<&Owner<'_>>, method: &Method, path: &str) -> Option<String> {
    let name = before.name();
    let Some(after) = after else {
        return Some(format!(
            "A request such as {method} {path} belongs to {name} and would not be protected any more: a retry would run again. \
             Keep it protected until its records have expired, or restart the gateway."
        ));
    };
    if before.stored != after.stored {
        return Some(renamed(before, after, method, path));
    }
    if !same_names(&before.settings.tenant, &after.settings.tenant) {
        return Some(format!(
            "The tenant of {name} changes from {} to {}: clients would not find their operations and would run them again. \
             Restart the gateway to change it.",
            kind(&before.settings.tenant),
            kind(&after.settings.tenant)
        ));
    }
    misread(&name, before.settings, after.settings)
}

/// Why a record that is still found would be taken for something else.
fn misread(name: &str, before: &RouteSettings, after: &RouteSettings) -> Option<String> {
    if let Some(setting) = print_change(before, after)
        && !semel::mutant::on("reload-changes-prints")
    {
        return Some(format!(
            "`{setting}` of {name} changes, by which requests are told apart: a retry of an operation from before would be \
             refused as another request (`key-reused`). Restart the gateway to change it, when no client is retrying."
        ));
    }
    if after.ttl > before.ttl
        && after.expired_keys != ExpiredKeys::NotChecked
        && !semel::mutant::on("reload-raises-ttl")
    {
        let (old, new) = (duration_text(before.ttl), duration_text(after.ttl));
        return Some(format!(
            "The ttl of {name} grows from {old} to {new}, and `expired_keys` judges keys by it: a retry of an operation \
             from before, later than {old} after it, would pass for a young one and run again. Keep the ttl; or restart \
             the gateway, if no client retries that late."
        ));
    }
    if before.expired_keys != ExpiredKeys::NotChecked
        && after.expired_keys == ExpiredKeys::NotChecked
        && !semel::mutant::on("reload-forgets-ages")
    {
        let old = duration_text(before.ttl);
        return Some(format!(
            "`expired_keys` of {name} goes: a retry later than {old} after its operation was refused, and would run again. \
             Keep it; or restart the gateway, if no client retries that late."
        ));
    }
    None
}

/// The setting that makes other fingerprints of the same requests. The order in a list makes none.
fn print_change(before: &RouteSettings, after: &RouteSettings) -> Option<&'static str> {
    fn sorted(list: &[impl AsRef<str>]) -> Vec<&str> {
        let mut list: Vec<&str> = list.iter().map(AsRef::as_ref).collect();
        list.sort_unstable();
        list
    }
    if sorted(&before.fingerprint_exclude) != sorted(&after.fingerprint_exclude) {
        Some("fingerprint_exclude")
    } else if sorted(&before.fingerprint_headers) != sorted(&after.fingerprint_headers) {
        Some("fingerprint_headers")
    } else {
        None
    }
}

fn renamed(before: &Owner<'_>, after: &Owner<'_>, method: &Method, path: &str) -> String {
    let example = format!(
        "A request such as {method} {path} belongs to {} and would belong to {}",
        before.name(),
        after.name()
    );
    // An alias can carry one id over; method and raw path are as many ids as there are paths.
    let one_path = after.route.is_none_or(|route| !route.pattern.contains('{') && route.methods().len() == 1);
    match (
        before.route.and_then(|route| route.stored.as_ref()),
        after.route.map(|route| (&route.id, &route.stored)),
    ) {
        (Some(old), Some((new, Some(_)))) => {
            format!(
                "{example}: its record would not be found. If that is a new name, add `\"{old}\" = \"{new}\"` under `[aliases]`."
            )
        }
        (None, Some((new, Some(_)))) if one_path => format!(
            "{example}: its record would not be found. Add `\"{}\" = \"{new}\"` under `[aliases]`.",
            before.stored
        ),
        (None, Some((new, Some(_)))) => format!(
            "{example}: its record, stored by method and path, would not be found. Remove the id `{new}`: a route without one goes on storing by method and path."
        ),
        (Some(_), _) => format!(
            "{example}: its record would not be found. Keep the route and its id until its records have expired, or restart the gateway."
        ),
        (None, _) => format!("{example}: its record would not be found. Restart the gateway to change it."),
    }
}

/// Whether a client keeps the name it had. Without a declaration only clients without credentials were
/// served, so a rule that asks for one refuses them; it does not run anything twice.
fn same_names(before: &Tenant, after: &Tenant) -> bool {
    match (before, after) {
        (Tenant::Undeclared, Tenant::Header(name)) => semel::http::tenant::is_credential(name),
        (Tenant::Undeclared, Tenant::PeerHeader(..)) => false,
        (Tenant::Undeclared, _) => true,
        (Tenant::None, Tenant::Undeclared) => true,
        (Tenant::Header(old), Tenant::Header(new))
        | (Tenant::PeerHeader(old, _), Tenant::PeerHeader(new, _)) => old == new,
        (Tenant::Jwt(old), Tenant::Jwt(new)) => old.claim == new.claim,
        (before, after) => before == after,
    }
}

fn kind(tenant: &Tenant) -> String {
    match tenant {
        Tenant::Undeclared => "undeclared".into(),
        Tenant::None => "`none`".into(),
        Tenant::Credential => "`credential`".into(),
        Tenant::Header(name) => format!("`header:{name}`"),
        Tenant::PeerHeader(name, _) => format!("`header:{name}` of listed peers"),
        Tenant::Jwt(jwt) => format!("`jwt:{}`", jwt.claim),
        Tenant::Certificate => "`certificate`".into(),
    }
}

#[cfg(test)]
#[path = "reload_tests.rs"]
mod tests;
