//! What was written on the command line and in the environment.
//!
//! The flags are made from the table of settings, so that every setting has one. They stay texts here:
//! files, variables and flags are judged by the same code.

use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::file::{Entry, Values};
use super::mistake::{Place, Written};
use super::settings::{Form, SETTINGS, Section, Setting};

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
            .value_name("FILE")
            .value_parser(NonEmptyStringValueParser::new())
            .help("Settings in a file, such as semel.toml. Flags come before variables, variables before the file");
        SETTINGS.iter().map(argument).fold(command.arg(config), Command::arg)
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
        .value_name("VALUE");
    match setting.form {
        Form::One | Form::Secret => argument.action(ArgAction::Set),
        Form::List(_) => argument.action(ArgAction::Append),
        Form::Switch => {
            argument.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true")
        }
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
