//! What was written in `semel.toml`, with its places.
//!
//! The file is TOML: `[gateway]`, `[defaults]`, any number of `[[route]]`, `[aliases]` and `[encryption]`.
//! This module knows names and shapes; what a value means is judged in `resolve`. Every syntax error and
//! every unknown name is reported, and reading goes on behind them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::mistake::{Mistakes, Place, Written, suggestion};
use super::settings::{Form, SETTINGS, Section};

/// Largest file read.
pub(crate) const FILE_BYTES_MAX: usize = 1 << 20;

/// Values by the names of their settings.
pub(crate) type Values = BTreeMap<&'static str, Entry>;

/// A setting as it was written: one value, or the elements of a list.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) place: Place,
    pub(crate) values: Vec<Written>,
}

/// The file, read.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) gateway: Values,
    pub(crate) defaults: Values,
    pub(crate) routes: Option<Vec<Route>>,
    pub(crate) aliases: Option<Vec<(Written, Written)>>,
    pub(crate) encryption: Option<Entry>,
}

/// A `[[route]]`.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) place: Place,
    pub(crate) id: Option<Written>,
    pub(crate) methods: Vec<Written>,
    pub(crate) path: Option<Written>,
    pub(crate) settings: Values,
}

/// Reads the text of a file called `name`.
pub(crate) fn read(text: &str, name: &str, mistakes: &mut Mistakes) -> File {
    let mut reader = Reader { text, name: name.into(), mistakes };
    if text.len() > FILE_BYTES_MAX {
        reader.mistake(0..0, "the file is over 1 MiB; that is no configuration");
        return File::default();
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    let file = reader.file(table.get_ref());
    for error in errors {
        let message = error.message().trim().replace('\n', "; ");
        let place = reader.place(error.span().unwrap_or(0..0));
        reader.mistakes.add_syntax(place, format!("this is not TOML: {message}"));
    }
    file
}

type Key<'i> = Spanned<DeString<'i>>;
type Value<'i> = Spanned<DeValue<'i>>;

struct Reader<'a> {
    text: &'a str,
    name: Arc<str>,
    mistakes: &'a mut Mistakes,
}

impl Reader<'_> {
    fn file(&mut self, table: &DeTable<'_>) -> File {
        const PARTS: [&str; 5] = ["gateway", "defaults", "route", "aliases", "encryption"];
        let mut file = File::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "gateway" => file.gateway = self.section(value, Section::Gateway),
                "defaults" => file.defaults = self.section(value, Section::Route),
                "route" => file.routes = Some(self.routes(value)),
                "aliases" => file.aliases = Some(self.aliases(value)),
                "encryption" => file.encryption = self.encryption(value),
                other => {
                    let elsewhere = SETTINGS.iter().find(|setting| setting.name == other).map(home);
                    let hint = match elsewhere {
                        Some(home) => format!("; it belongs under {home}"),
                        None => suggestion(other, PARTS.into_iter()),
                    };
                    self.mistake(key.span(), format!("`{other}` means nothing at the top of the file{hint}"));
                }
            }
        }
        file
    }

    fn section(&mut self, value: &Value<'_>, section: Section) -> Values {
        let mut values = Values::new();
        let Some(table) = self.table(value) else { return values };
        for (key, value) in table {
            self.setting(key, value, section, &[], &mut values);
        }
        values
    }

    fn setting(
        &mut self,
        key: &Key<'_>,
        value: &Value<'_>,
        section: Section,
        beside: &[&str],
        into: &mut Values,
    ) {
        let name = key.get_ref().as_ref();
        let Some(setting) =
            SETTINGS.iter().find(|setting| setting.name == name && setting.section == section)
        else {
            let elsewhere = SETTINGS.iter().find(|setting| setting.name == name).map(home);
            let hint = elsewhere.map(|home| format!("; it belongs under {home}")).unwrap_or_else(|| {
                let here =
                    SETTINGS.iter().filter(|setting| setting.section == section).map(|setting| setting.name);
                suggestion(name, here.chain(beside.iter().copied()))
            });
            return self.mistake(key.span(), format!("there is no setting `{name}` here{hint}"));
        };
        let values = match (value.get_ref(), setting.form) {
            (DeValue::Array(elements), Form::List(_)) => {
                elements.iter().filter_map(|element| self.scalar(name, element)).collect()
            }
            (DeValue::Array(_), _) => {
                return self.mistake(value.span(), format!("`{name}` takes one value, not a list"));
            }
            _ => match self.scalar(name, value) {
                Some(written) => vec![written],
                None => return,
            },
        };
        into.insert(setting.name, Entry { place: self.place(key.span()), values });
    }

    fn routes(&mut self, value: &Value<'_>) -> Vec<Route> {
        let DeValue::Array(elements) = value.get_ref() else {
            self.mistake(value.span(), "routes are written `[[route]]`, with two brackets on each side");
            return Vec::new();
        };
        elements.iter().filter_map(|element| self.route(element)).collect()
    }

    fn route(&mut self, value: &Value<'_>) -> Option<Route> {
        const OWN: [&str; 3] = ["id", "methods", "path"];
        let place = self.place(value.span());
        let mut route = Route { place, id: None, methods: Vec::new(), path: None, settings: Values::new() };
        for (key, value) in self.table(value)? {
            match key.get_ref().as_ref() {
                "id" => route.id = self.scalar("id", value),
                "path" => route.path = self.scalar("path", value),
                "methods" => match value.get_ref() {
                    DeValue::Array(elements) => {
                        route.methods =
                            elements.iter().filter_map(|one| self.scalar("methods", one)).collect();
                        if elements.is_empty() {
                            self.mistake(value.span(), "`methods` is empty, so the route would take nothing; leave it out for POST and PATCH");
                        }
                    }
                    _ => route.methods = self.scalar("methods", value).into_iter().collect(),
                },
                _ => self.setting(key, value, Section::Route, &OWN, &mut route.settings),
            }
        }
        Some(route)
    }

    fn aliases(&mut self, value: &Value<'_>) -> Vec<(Written, Written)> {
        let mut aliases = Vec::new();
        let Some(table) = self.table(value) else { return aliases };
        for (key, value) in table {
            let old = Written { text: key.get_ref().to_string(), place: self.place(key.span()) };
            if let Some(new) = self.scalar(&old.text, value) {
                aliases.push((old, new));
            }
        }
        aliases
    }

    fn encryption(&mut self, value: &Value<'_>) -> Option<Entry> {
        let mut entry = None;
        for (key, value) in self.table(value)? {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("keys", DeValue::Array(elements)) => {
                    let values = elements.iter().filter_map(|one| self.scalar("keys", one)).collect();
                    entry = Some(Entry { place: self.place(key.span()), values });
                }
                ("keys", _) => self.mistake(
                    value.span(),
                    "`keys` is a list, newest first: `keys = [\"2026-11=env:SEAL_KEY\"]`",
                ),
                (other, _) => {
                    let hint = suggestion(other, ["keys"].into_iter());
                    self.mistake(key.span(), format!("there is no setting `{other}` here{hint}"));
                }
            }
        }
        entry
    }

    fn table<'v, 'i>(&mut self, value: &'v Value<'i>) -> Option<&'v DeTable<'i>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => {
                self.mistake(
                    value.span(),
                    "this should be a table with settings below it, such as `[gateway]`",
                );
                None
            }
        }
    }

    /// Numbers and booleans become the text that a flag would have.
    fn scalar(&mut self, name: &str, value: &Value<'_>) -> Option<Written> {
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => number.to_string(),
                Err(_) => {
                    self.mistake(value.span(), format!("the number for `{name}` is too large"));
                    return None;
                }
            },
            DeValue::Boolean(truth) => truth.to_string(),
            _ => {
                self.mistake(value.span(), format!("`{name}` takes text, a whole number, or true or false"));
                return None;
            }
        };
        Some(Written { text, place: self.place(value.span()) })
    }

    fn mistake(&mut self, span: Range<usize>, sentence: impl Into<String>) {
        let place = self.place(span);
        self.mistakes.add(&place, sentence);
    }

    fn place(&self, span: Range<usize>) -> Place {
        let mut start = span.start.min(self.text.len());
        while !self.text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Place::File {
            name: self.name.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

fn home(setting: &super::settings::Setting) -> &'static str {
    match setting.section {
        Section::Gateway => "`[gateway]`",
        Section::Route => "`[defaults]` or a `[[route]]`",
        Section::Own(form) => form,
    }
}
