//! `semel check-config` as an operator meets it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the check with these variables and no others of ours.
fn check(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SEMEL_")) {
        command.env_remove(name);
    }
    command.arg("check-config").args(arguments).envs(variables.iter().copied());
    command.output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("semel.toml");
    std::fs::write(&path, text).expect("the file is written");
    let name = path.display().to_string();
    (dir, name)
}

#[test]
fn the_annotated_example_passes_the_check() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/semel.toml");
    let output = check(&[example.to_str().expect("the path is UTF-8")], &[]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        shown.contains("[[route]] refunds: POST|PATCH /charges/{charge}/refunds, stored as credit-notes"),
        "{shown}"
    );
}

#[test]
fn flags_come_before_variables_before_the_file_before_defaults() {
    let (_dir, path) =
        file("[gateway]\nupstream = \"demo\"\ndrain = \"1s\"\nlog = \"json\"\n[defaults]\nwait = \"1s\"\n");
    let variables = [("SEMEL_DRAIN", "2s"), ("SEMEL_WAIT", "2s"), ("SEMEL_LISTEN", "")];
    let output = check(&[&path, "--json", "--wait", "3s"], &variables);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON is printed");
    let value = |section: &str, name: &str| {
        let row = &shown[section][name];
        (
            row["value"].as_str().unwrap_or_default().to_owned(),
            row["from"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let said = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(value("defaults", "wait"), said("3s", "--wait"));
    assert_eq!(value("gateway", "drain"), said("2s", "SEMEL_DRAIN"));
    assert_eq!(value("gateway", "log"), said("json", &format!("{path}:4:1")));
    assert_eq!(value("gateway", "listen"), said("127.0.0.1:8080", "default"), "an empty variable is none");
}

#[test]
fn all_mistakes_come_at_once_with_their_lines_and_code_two() {
    // G-11
    let (_dir, path) = file("[gateway]\nlisten = \"here\"\nstroe = \"sqlite:x\"\n[defaults]\nttl = \"1h\"\n");
    let output = check(&[&path], &[("SEMEL_LEASE", "soon")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let said = text(&output.stderr);
    for expected in [
        format!("{path}:2:10: listen: `here` is not an IP address"),
        format!("{path}:3:1: there is no setting `stroe` here; did you mean `store`?"),
        format!("{path}:5:1: The TTL (3600s) must exceed the retry window"),
        "SEMEL_LEASE: `soon` is not a duration".to_owned(),
        "upstream: there is none".to_owned(),
    ] {
        assert!(said.lines().any(|line| line.starts_with(&expected)), "{expected} is missing in:\n{said}");
    }
    assert_eq!(said.lines().count(), 5, "{said}");
    let output = check(&[&path, "--json"], &[]);
    let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON is printed");
    assert_eq!((output.status.code(), &listed["mistakes"][0]["line"]), (Some(2), &Value::from(2)));
}

#[test]
fn a_file_that_is_not_there_or_not_text_is_a_sentence() {
    let output = check(&["/nonexistent/semel.toml"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("/nonexistent/semel.toml cannot be read"),
        "{}",
        text(&output.stderr)
    );
    let (dir, path) = file("");
    std::fs::write(dir.path().join("semel.toml"), b"[gateway]\nupstream = \"\xff\"")
        .expect("the file is written");
    let output = check(&[&path], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not UTF-8"), "{}", text(&output.stderr));
}

#[test]
fn secrets_are_never_printed() {
    // G-5
    let (dir, path) =
        file("[gateway]\nupstream = \"demo\"\nstore = \"env:DATABASE\"\nadmin = \"0.0.0.0:9\"\n");
    let token = dir.path().join("token");
    std::fs::write(&token, "hunter2\n").expect("the file is written");
    let variables = [
        ("DATABASE", "postgres://app:hunter3@db/pay"),
        ("SEMEL_ADMIN_TOKEN_FILE", token.to_str().expect("UTF-8")),
    ];
    for arguments in
        [vec![path.as_str()], vec![path.as_str(), "--json"], vec![path.as_str(), "--listen", "wrong"]]
    {
        let output = check(&arguments, &variables);
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(!printed.contains("hunter"), "{printed}");
    }
    assert!(check(&[&path], &variables).status.success());
}
