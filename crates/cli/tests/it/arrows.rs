//! The walls between the crates, checked against what cargo resolves.
//!
//! A wall that only a document describes is gone after the first hurried change, so these tests read
//! `cargo metadata` and `cargo tree` and name the edge that should not be there.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Which workspace crates a crate may depend on. A crate missing here may not depend on any.
const ARROWS: &[(&str, &[&str])] = &[
    ("semel-stores", &["semel-core"]),
    ("semel-workers", &["semel-core"]),
    ("semel-testkit", &["semel-core"]),
    ("semel-http", &["semel-core"]),
    ("semel-client", &["semel-core"]),
    ("semel", &["semel-core", "semel-stores", "semel-workers", "semel-http", "semel-client"]),
    ("semel-cli", &["semel", "semel-testkit"]),
];

/// What users of the semantics must not be made to build.
const FOREIGN_TO_CORE: &[&str] = &[
    "async-nats",
    "axum",
    "http",
    "hyper",
    "lapin",
    "rdkafka",
    "redis",
    "reqwest",
    "rusqlite",
    "scylla",
    "sqlx",
    "tokio-postgres",
    "tower",
];

/// What only a feature outside the default set may bring: system libraries and long builds.
const HEAVY: &[&str] = &[
    "aws-sdk-dynamodb",
    "aws-sdk-sqs",
    "mysql_async",
    "native-tls",
    "openssl",
    "openssl-sys",
    "rdkafka",
    "rdkafka-sys",
    "scylla",
    "semel-testkit",
];

#[test]
fn crates_depend_only_along_the_arrows() {
    let packages = workspace_packages();
    let members: BTreeSet<&str> = packages.iter().map(name).collect();
    assert!(
        members.contains("semel-core"),
        "cargo metadata lists {members:?}: this test would check nothing"
    );

    let arrows: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut forbidden = Vec::new();
    for package in &packages {
        let allowed = arrows.get(name(package)).copied().unwrap_or_default();
        for dependency in dependencies(package) {
            let to = name(dependency);
            // Itself, too: that is how a crate's own tests get all its features.
            let for_tests = dependency["kind"] == "dev" && (to == "semel-testkit" || to == name(package));
            if members.contains(to) && !allowed.contains(&to) && !for_tests {
                forbidden.push(format!("{} -> {to} ({})", name(package), kind(dependency)));
            }
        }
    }
    assert!(forbidden.is_empty(), "edges against the arrows: {forbidden:#?}");
}

#[test]
fn core_names_no_driver_no_runtime_no_http() {
    let packages = workspace_packages();
    let core = packages.iter().find(|package| name(package) == "semel-core").expect("semel-core is a member");
    let normal: Vec<&Value> = dependencies(core)
        .filter(|dependency| kind(dependency) == "normal" && dependency["optional"] == false)
        .collect();
    assert!(!normal.is_empty(), "semel-core has no normal dependency: this test would check nothing");

    let foreign: Vec<&str> =
        normal.iter().map(|one| name(one)).filter(|one| FOREIGN_TO_CORE.contains(one)).collect();
    assert!(foreign.is_empty(), "semel-core depends on {foreign:?}");

    // Locks and channels work on any executor; the rest of tokio is behind the feature `tokio`.
    for tokio in normal.iter().filter(|dependency| name(dependency) == "tokio") {
        assert_eq!(tokio["uses_default_features"], false, "semel-core takes tokio's default features");
        assert_eq!(
            tokio["features"],
            serde_json::json!(["sync"]),
            "semel-core takes more of tokio than `sync`"
        );
    }
    let by_default = core["features"].get("default").cloned().unwrap_or_else(|| serde_json::json!([]));
    assert_eq!(by_default, serde_json::json!([]), "semel-core has default features");
}

#[test]
fn the_layer_names_no_runtime_and_no_server() {
    let packages = workspace_packages();
    let layer =
        packages.iter().find(|package| name(package) == "semel-http").expect("semel-http is a member");
    let normal: Vec<&str> =
        dependencies(layer).filter(|dependency| kind(dependency) == "normal").map(name).collect();
    assert!(normal.contains(&"http"), "semel-http depends on {normal:?}: this test would check nothing");
    let foreign: Vec<&&str> = normal
        .iter()
        .filter(|one| ["axum", "hyper", "hyper-util", "reqwest", "tokio"].contains(one))
        .collect();
    assert!(foreign.is_empty(), "semel-http depends on {foreign:?}");
}

#[test]
fn facade_stays_light_by_default() {
    let tree =
        cargo(&["tree", "--offline", "-p", "semel", "-e", "normal", "--prefix", "none", "--format", "{p}"]);
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(crates.contains("semel-core"), "cargo tree lists {crates:?}: this test would check nothing");

    let heavy: Vec<&&str> = HEAVY.iter().filter(|one| crates.contains(**one)).collect();
    assert!(heavy.is_empty(), "the default features of semel bring {heavy:?}");
}

fn workspace_packages() -> Vec<Value> {
    let metadata = cargo(&["metadata", "--offline", "--format-version", "1", "--no-deps"]);
    let mut metadata: Value = serde_json::from_str(&metadata).expect("cargo metadata prints JSON");
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("cargo metadata has no list of packages but {other}"),
    }
}

fn dependencies(package: &Value) -> impl Iterator<Item = &Value> {
    package["dependencies"].as_array().expect("a package lists its dependencies").iter()
}

fn name(value: &Value) -> &str {
    value["name"].as_str().expect("cargo names it")
}

/// Cargo writes null for the kind nobody spelt out.
fn kind(dependency: &Value) -> &str {
    dependency["kind"].as_str().unwrap_or("normal")
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs: it built this test");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}
