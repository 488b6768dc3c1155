//! What is true and where it comes from, for people and for machines. Secrets are not shown.

use std::fmt::Write as _;

use http::Uri;
use serde_json::{Map, Value, json};

use super::file::Values;
use super::judge::Layers;
use super::mistake::Mistake;
use super::resolved::{Encryption, Route};
use super::routes::WrittenRoute;
use super::settings::{ADDRESSES, Form, Preset, SETTINGS, Section, Setting};

/// A resolved configuration, ready to print.
pub(crate) struct Shown {
    gateway: Vec<Row>,
    defaults: Vec<Row>,
    routes: Vec<ShownRoute>,
    aliases: Vec<(String, String)>,
    encryption: Vec<String>,
}

struct ShownRoute {
    id: String,
    stored: Option<String>,
    methods: Vec<String>,
    path: String,
    /// What it says itself.
    own: Vec<Row>,
    /// What holds for it.
    all: Vec<Row>,
}

struct Row {
    name: &'static str,
    value: Option<String>,
    /// In words, where there is no value.
    absent: &'static str,
    from: String,
}

impl Shown {
    pub(super) fn new(
        given: &Layers<'_>,
        defaults: &Layers<'_>,
        written: &[WrittenRoute<'_>],
        routes: &[Route],
        aliases: &[(String, String)],
        encryption: Option<&Encryption>,
    ) -> Self {
        let empty = Values::new();
        let shown = written.iter().zip(routes).map(|(written, route)| {
            let own = written.settings.unwrap_or(&empty);
            let all = rows(&defaults.under(own), Section::Route);
            ShownRoute {
                id: route.id.clone(),
                stored: route.stored.clone(),
                methods: route.methods().iter().map(|method| method.to_string()).collect(),
                path: route.pattern.clone(),
                own: rows(&Layers(vec![own]), Section::Route)
                    .into_iter()
                    .filter(|row| own.contains_key(row.name))
                    .collect(),
                all,
            }
        });
        Self {
            gateway: rows(given, Section::Gateway),
            defaults: rows(defaults, Section::Route),
            routes: shown.collect(),
            aliases: aliases.to_vec(),
            encryption: encryption
                .into_iter()
                .flat_map(|keys| keys.keys.iter().map(|(id, _)| id.clone()))
                .collect(),
        }
    }

    /// Settings of `[gateway]` that `fresh` has otherwise: a reload does not change them.
    pub(crate) fn needs_restart(&self, fresh: &Self) -> Vec<&'static str> {
        let both = self.gateway.iter().zip(&fresh.gateway);
        both.filter(|(old, new)| old.value != new.value).map(|(old, _)| old.name).collect()
    }

    /// A table for people.
    pub(crate) fn text(&self, warnings: &[Mistake]) -> String {
        let mut out = String::new();
        let mut part = |title: &str, rows: &[Row]| {
            _ = writeln!(out, "{title}");
            let width =
                |of: fn(&Row) -> usize| rows.iter().map(of).filter(|width| *width <= 48).max().unwrap_or(0);
            let (names, values) = (width(|row| row.name.len()), width(|row| row.text().chars().count()));
            for row in rows {
                _ = writeln!(out, "  {:names$}  {:values$}  {}", row.name, row.text(), row.from);
            }
            _ = writeln!(out);
        };
        part("[gateway]", &self.gateway);
        part("[defaults]: every POST and PATCH with a key that matches no route", &self.defaults);
        for route in &self.routes {
            let stored = match &route.stored {
                Some(stored) if *stored == route.id => String::new(),
                Some(stored) => format!(", stored as {stored}"),
                None => ", stored by method and path".into(),
            };
            let title = format!("[[route]] {}: {} {}{stored}", route.id, route.methods.join("|"), route.path);
            part(&title, &route.own);
        }
        for (old, new) in &self.aliases {
            _ = writeln!(out, "alias  {old} -> {new}");
        }
        if !self.encryption.is_empty() {
            _ = writeln!(out, "encryption keys  {} (the first seals)", self.encryption.join(", "));
        }
        for warning in warnings {
            _ = writeln!(out, "warning: {warning}");
        }
        out.truncate(out.trim_end().len());
        out
    }

    /// The same for machines; every route with all that holds for it.
    pub(crate) fn json(&self, warnings: &[Mistake]) -> Value {
        let routes = self.routes.iter().map(|route| {
            json!({
                "id": route.id,
                "stored_id": route.stored,
                "methods": route.methods,
                "path": route.path,
                "settings": object(&route.all),
            })
        });
        json!({
            "gateway": object(&self.gateway),
            "defaults": object(&self.defaults),
            "routes": routes.collect::<Vec<_>>(),
            "aliases": self.aliases.iter().map(|(old, new)| json!({ "old": old, "new": new })).collect::<Vec<_>>(),
            "encryption_keys": self.encryption,
            "warnings": warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}

impl Row {
    fn text(&self) -> String {
        match &self.value {
            Some(value) if value.is_empty() => "(empty)".into(),
            Some(value) => value.clone(),
            None => format!("({})", self.absent),
        }
    }
}

fn object(rows: &[Row]) -> Value {
    let members =
        rows.iter().map(|row| (row.name.to_owned(), json!({ "value": row.value, "from": row.from })));
    Value::Object(members.collect::<Map<_, _>>())
}

fn rows(layers: &Layers<'_>, section: Section) -> Vec<Row> {
    let row = |setting: &'static Setting| {
        let entry = layers.entry(setting.name);
        let value = entry.map(|entry| {
            let texts: Vec<String> =
                entry.values.iter().map(|written| public(setting, &written.text)).collect();
            texts.join(", ")
        });
        let absent = match setting.preset {
            Preset::Absent(words) => words,
            _ => "",
        };
        Row { name: setting.name, value, absent, from: layers.place(setting.name).to_string() }
    };
    SETTINGS.iter().filter(|setting| setting.section == section).map(row).collect()
}

/// What may be shown of a value.
fn public(setting: &Setting, text: &str) -> String {
    let harmless = ["file:", "env:", "sqlite:"].iter().any(|start| text.starts_with(start));
    if setting.form != Form::Secret || harmless {
        return text.to_owned();
    }
    // Of a database's address, host and name tell which one it is; users and passwords stay out.
    match text.parse::<Uri>() {
        // A password with a slash in it ends up in the path.
        Ok(uri) if ADDRESSES.contains(&setting.name) && !uri.path().contains('@') => {
            let place = uri.host().map(|host| format!("{host}{}", uri.path()));
            let scheme = uri.scheme_str().unwrap_or("postgres");
            format!("{scheme}://{} (the rest is secret)", place.unwrap_or_default())
        }
        _ => "(secret)".into(),
    }
}
