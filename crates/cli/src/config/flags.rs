//! What was written on the command line and in the environment.
//!
//! The flags are made from the table of settings, so that every setting has one. They stay texts here:
//! files, variables and flags are judged by the same code.

use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::file::{Entry, Values};
use super::mistake::{Place, Written};
use super::settings::{self, Form, Preset, SETTINGS, Section, Setting};

/// What most people need, in the order in which they need it. `-h` shows these, `--help` all.
const NEEDED_FIRST: [&str; 6] = ["upstream", "listen", "tenant", "store", "admin", "recovery"];

/// All settings of a gateway that were given as flags or variables. Flatten it into a subcommand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) config: Option<String>,
    pub(crate) given: Values,
}

impl clap::Args for Arguments {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .env("SEMEL_CONFIG")
            .hide_env_values(true)
            .value_name("FILE")
            .value_parser(NonEmptyStringValueParser::new())
            .help_heading("Needed first")
            .help("Settings in a file, such as semel.toml. Flags come before variables, variables before the file");
        let first = NEEDED_FIRST.iter().filter_map(|name| settings::setting(name));
        let rest = SETTINGS.iter().filter(|setting| !NEEDED_FIRST.contains(&setting.name));
        let command =
            first.map(argument).map(|flag| flag.help_heading("Needed first")).fold(command, Command::arg);
        rest.map(argument).map(|flag| flag.hide_short_help(true)).fold(command.arg(config), Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &'static Setting) -> Arg {
    let heading = match setting.section {
        Section::Gateway => "Gateway",
        Section::Route => "Routes (the defaults of all)",
        Section::Own(_) => "Routes, aliases, keys",
    };
    let argument = Arg::new(setting.name)
        .long(setting.flag().trim_start_matches("--").to_owned())
        .env(setting.variable())
        .hide_env_values(true)
        .help(format!("{} [default: {}]", setting.meaning.trim_end_matches('.'), setting.preset_words()))
        .help_heading(heading)
        .value_name(value_name(setting));
    match setting.form {
        Form::One | Form::Secret => argument.action(ArgAction::Set),
        Form::List(_) => argument.action(ArgAction::Append),
        Form::Switch => {
            argument.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true")
        }
    }
}

fn value_name(setting: &Setting) -> &'static str {
    match setting.preset {
        Preset::Time(_) => "DURATION",
        Preset::Bytes(_) => "SIZE",
        _ if setting.form == Form::Switch => "BOOL",
        _ => match setting.name {
            "listen" | "admin" => "ADDRESS:PORT",
            "upstream" | "store" | "auth_check" | "jwks_url" => "URL",
            "tls_certificate" | "tls_key" | "tls_client_ca" | "upstream_ca" => "FILE",
            file if file.ends_with("_file") => "FILE",
            _ => "VALUE",
        },
    }
}

impl FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let config = matches.get_one::<String>("config").cloned();
        let given = SETTINGS.iter().filter_map(|setting| Some((setting.name, entry(setting, matches)?)));
        Ok(Self { config, given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn entry(setting: &'static Setting, matches: &ArgMatches) -> Option<Entry> {
    let place = match matches.value_source(setting.name)? {
        ValueSource::EnvVariable => Place::Variable(setting.variable()),
        _ => Place::Flag(setting.flag()),
    };
    let texts: Vec<&String> = matches.get_many::<String>(setting.name)?.collect();
    // Whoever starts containers often cannot unset a variable, only empty it.
    if matches!(place, Place::Variable(_)) && texts.iter().all(|text| text.is_empty()) {
        return None;
    }
    Some(parse(setting, place, &texts))
}

fn parse(setting: &Setting, place: Place, texts: &[&String]) -> Entry {
    let written = |text: &str| Written { text: text.to_owned(), place: place.clone() };
    let values = match setting.form {
        Form::List(separator) => {
            let parts = texts.iter().flat_map(|text| text.split(separator)).map(str::trim);
            parts.filter(|part| !part.is_empty()).map(written).collect()
        }
        Form::One | Form::Switch | Form::Secret => texts.iter().map(|text| written(text)).collect(),
    };
    Entry { place, values }
}
