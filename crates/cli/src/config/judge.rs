//! Reading one setting after the other, and noting what is wrong with it.

use std::path::{Path, PathBuf};

use super::file::{Entry, Values};
use super::mistake::{Mistakes, Place};
use super::resolved::Secret;
use super::settings::{ADDRESSES, setting};
use super::value::{self, Surroundings};

/// Values to look through, the most particular first.
pub(super) struct Layers<'a>(pub(super) Vec<&'a Values>);

impl<'a> Layers<'a> {
    pub(super) fn entry(&self, name: &str) -> Option<&'a Entry> {
        debug_assert!(setting(name).is_some(), "{name} is in the table");
        self.0.iter().find_map(|values| values.get(name))
    }

    /// Where it was written; `Default` if it was not.
    pub(super) fn place(&self, name: &str) -> Place {
        self.entry(name).map_or(Place::Default, |entry| entry.place.clone())
    }

    /// Whether somebody wrote it.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.place(name) != Place::Default
    }

    /// The same with a more particular layer in front.
    pub(super) fn under(&self, own: &'a Values) -> Layers<'a> {
        Layers(std::iter::once(own).chain(self.0.iter().copied()).collect())
    }
}

/// Collects what is wrong while values are read.
pub(super) struct Judge<'a> {
    pub(super) mistakes: &'a mut Mistakes,
    pub(super) warnings: &'a mut Mistakes,
    pub(super) surroundings: &'a dyn Surroundings,
}

impl Judge<'_> {
    /// A setting that may be absent.
    pub(super) fn maybe<T>(
        &mut self,
        layers: &Layers<'_>,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let written = layers.entry(name)?.values.first()?;
        parse(&written.text)
            .map_err(|sentence| self.mistakes.add(&written.place, named(name, &sentence)))
            .ok()
    }

    /// A setting with a default, which takes the place of a value that is wrong.
    pub(super) fn one<T>(
        &mut self,
        layers: &Layers<'_>,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        self.maybe(layers, name, &parse).unwrap_or_else(|| {
            let preset =
                setting(name).and_then(|setting| setting.preset_text()).expect("the setting has a default");
            parse(&preset).expect("defaults can be read")
        })
    }

    /// A list.
    pub(super) fn many<T: PartialEq>(
        &mut self,
        layers: &Layers<'_>,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for written in layers.entry(name).map(|entry| entry.values.as_slice()).unwrap_or_default() {
            match parse(&written.text) {
                Ok(value) if values.contains(&value) => {
                    self.mistakes
                        .add(&written.place, named(name, "this value stands there twice; remove one"));
                }
                Ok(value) => values.push(value),
                Err(sentence) => self.mistakes.add(&written.place, named(name, &sentence)),
            }
        }
        values
    }

    /// A secret, from the setting itself or from the file that `NAME_file` names.
    pub(super) fn secret(
        &mut self,
        layers: &Layers<'_>,
        name: &str,
        in_file: Option<&str>,
    ) -> Option<Secret> {
        let by_path = in_file.filter(|in_file| layers.entry(in_file).is_some());
        if let (Some(in_file), Some(entry)) = (by_path, layers.entry(name)) {
            self.mistakes.add(&entry.place, format!("`{name}` and `{in_file}` are both set; keep one"));
            return None;
        }
        let surroundings = self.surroundings;
        if let Some(in_file) = by_path {
            return self.maybe(layers, in_file, |path| value::secret(&format!("file:{path}"), surroundings));
        }
        let place = layers.place(name);
        self.maybe(layers, name, |text| {
            let refers = text.starts_with("file:") || text.starts_with("env:");
            // An address is often no secret, and is what people type first.
            if matches!(place, Place::Flag(_)) && !refers && !ADDRESSES.contains(&name) {
                return Err(
                    "others on this machine can see command lines; write `file:PATH` or `env:NAME`".into()
                );
            }
            value::secret(text, surroundings)
        })
    }

    /// A file that must be there and hold PEM.
    pub(super) fn pem(&mut self, layers: &Layers<'_>, name: &str) -> Option<PathBuf> {
        let surroundings = self.surroundings;
        self.maybe(layers, name, |text| {
            let bytes = surroundings
                .read(Path::new(text))
                .map_err(|error| format!("{text} cannot be read: {error}"))?;
            if !bytes.windows(11).any(|window| window == b"-----BEGIN ") {
                return Err(format!("{text} is not a PEM file: it has no line `-----BEGIN …`"));
            }
            value::path(text)
        })
    }
}

pub(super) fn named(name: &str, sentence: &str) -> String {
    format!("{name}: {sentence}")
}
