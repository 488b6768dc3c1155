//! The manual names every setting, its example is right, and no bytes make reading panic.

use clap::Args as _;
use proptest::prelude::*;

use super::flags::Arguments;
use super::settings::{SETTINGS, Section};
use super::tests::resolved;

/// The table of `docs/configuration.md`.
fn documented() -> String {
    let mut text = String::new();
    for (title, chosen) in [("gateway", Section::Gateway), ("defaults", Section::Route)] {
        text += &format!(
            "\n### `[{title}]`\n\n| in the file | flag | variable | default | meaning |\n|---|---|---|---|---|\n"
        );
        for setting in SETTINGS.iter().filter(|setting| setting.section == chosen) {
            text += &line(setting);
        }
    }
    text += "\n### In forms of their own\n\n| in the file | flag | variable | default | meaning |\n|---|---|---|---|---|\n";
    for setting in SETTINGS.iter().filter(|setting| matches!(setting.section, Section::Own(_))) {
        text += &line(setting);
    }
    text
}

fn line(setting: &super::settings::Setting) -> String {
    let cells = [
        format!("`{}`", setting.in_file()),
        format!("`{}`", setting.flag()),
        format!("`{}`", setting.variable()),
        setting.preset_words(),
        setting.meaning.to_owned(),
    ];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

#[test]
fn every_flag_variable_and_setting_is_documented() {
    let page = include_str!("../../../../docs/configuration.md");
    let table = documented();
    assert!(page.contains(&table), "docs/configuration.md lacks this table as it stands:\n{table}");
    let command = Arguments::augment_args(clap::Command::new("gateway"));
    for argument in command.get_arguments() {
        let flag = format!("`--{}`", argument.get_long().unwrap());
        let variable = format!("`{}`", argument.get_env().and_then(|name| name.to_str()).unwrap());
        assert!(
            page.contains(&flag) && page.contains(&variable),
            "{flag} or {variable} is not in docs/configuration.md"
        );
    }
    assert_eq!(command.get_arguments().count(), SETTINGS.len() + 1, "--config and the table");
}

#[test]
fn the_annotated_example_is_right_and_names_every_setting() {
    let example = include_str!("../../../../docs/semel.toml");
    let resolved = resolved(example);
    assert!(resolved.warnings.is_empty(), "{:#?}", resolved.warnings);
    for setting in SETTINGS.iter().filter(|setting| !matches!(setting.section, Section::Own(_))) {
        let named =
            |line: &str| line.trim_start_matches(['#', ' ']).starts_with(&format!("{} =", setting.name));
        assert!(example.lines().any(named), "docs/semel.toml does not mention {}", setting.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        _ = super::from_bytes(&bytes);
    }

    #[test]
    fn no_damage_to_the_example_makes_reading_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 1..8),
    ) {
        let mut bytes = include_bytes!("../../../../docs/semel.toml").to_vec();
        for (at, what, byte) in edits {
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => bytes.truncate(at.max(1)),
                _ => _ = bytes.drain(at..(at + usize::from(byte)).min(bytes.len() - 1).max(at)),
            }
        }
        _ = super::from_bytes(&bytes);
    }

    #[test]
    fn no_text_that_looks_like_settings_makes_judging_panic(
        lines in prop::collection::vec((0..SETTINGS.len() + 8, "[ -~]{0,12}|\\PC{0,6}", 0..4_u8), 0..12),
    ) {
        let mut text = String::new();
        for (which, value, shape) in lines {
            let name = SETTINGS.get(which).map(|setting| setting.name);
            let name = name.unwrap_or(["[gateway]", "[defaults]", "[[route]]", "[aliases]", "[encryption]", "path", "id", "methods"][which.saturating_sub(SETTINGS.len()).min(7)]);
            let quoted = format!("'{}'", value.replace('\'', ""));
            text += &match (name.starts_with('['), shape) {
                (true, _) => format!("{name}\n"),
                (_, 0) => format!("{name} = {quoted}\n"),
                (_, 1) => format!("{name} = [{quoted}, {quoted}]\n"),
                (_, 2) => format!("{name} = {}\n", value.len()),
                _ => format!("{name} = {value}\n"),
            };
        }
        if let Err(mistakes) = super::from_bytes(text.as_bytes()) {
            prop_assert!(!mistakes.is_empty());
        }
    }
}
