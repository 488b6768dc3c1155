//! The scorecard as SARIF 2.1.0, for code scanning.
//!
//! Checks are its rules; what failed is an error, and what could not be shown is a note. What passed is left
//! out: readers make an alert of every result. They also refuse a result without a file, so each names
//! the script that shows it, or else the path of the request.

use serde_json::{Value, json};

use super::{Report, effects, printable};
use crate::verify::scorecard::{Finding, Verdict};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// The whole document.
pub(crate) fn write(report: &Report<'_>) -> String {
    let card = report.card;
    let rules: Vec<Value> = card.findings.iter().map(rule).collect();
    let found = card.findings.iter().enumerate();
    let results: Vec<Value> = found.filter_map(|(at, finding)| result(report, at, finding)).collect();
    let began = super::json::started(card.started);
    let document = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "semel verify",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "invocations": [{"executionSuccessful": true, "startTimeUtc": began}],
            "columnKind": "unicodeCodePoints",
            "properties": {
                "target": card.target,
                "profile": card.profile,
                "seed": card.seed.to_string(),
                "requests": card.requests,
            },
            "results": results,
        }],
    });
    format!("{document:#}\n")
}

fn rule(finding: &Finding) -> Value {
    let about = finding.about;
    let help = match &finding.verdict {
        Verdict::Fail { advice, .. } => format!("{} {advice}", about.must),
        Verdict::Pass | Verdict::NotShown(_) => about.must.to_owned(),
    };
    json!({
        "id": about.id,
        "name": name(about.id),
        "shortDescription": {"text": about.must},
        "fullDescription": {"text": format!("{} Rules: {}.", about.must, about.rules.join(", "))},
        "help": {"text": help},
        "defaultConfiguration": {"level": "error"},
        "properties": {"family": about.family, "tags": about.rules},
    })
}

/// `cut-in-head` as rules are named: `CutInHead`.
fn name(id: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map_or(String::new(), |first| first.to_uppercase().collect::<String>() + letters.as_str())
    };
    id.split(['-', '_', ' ']).map(capital).collect()
}

fn result(report: &Report<'_>, at: usize, finding: &Finding) -> Option<Value> {
    let (level, message, cause) = match &finding.verdict {
        Verdict::Pass => return None,
        Verdict::Fail { cause, what, advice } => {
            let mut lines = vec![printable(what)];
            lines.extend(effects(finding).into_iter().map(|(line, _)| line));
            lines.push((*advice).to_owned());
            ("error", lines.join("\n"), *cause)
        }
        Verdict::NotShown(reason) => ("note", format!("Not shown: {}", printable(reason)), "not-shown"),
    };
    let id = finding.about.id;
    let script = report.script(finding);
    Some(json!({
        "ruleId": id,
        "ruleIndex": at,
        "level": level,
        "message": {"text": message},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": place(report, script.as_deref())},
                "region": {"startLine": 1},
            },
            "logicalLocations": [{"fullyQualifiedName": report.card.target, "kind": "resource"}],
        }],
        // Tells readers that it is the same flaw as in an earlier run, whatever the sentence says.
        "partialFingerprints": {"semelVerify/v1": format!("{}:{id}:{cause}", report.card.target)},
        "properties": {"cause": cause, "script": script},
    }))
}

/// A relative reference, as readers want it; a script outside of the working directory by its full path.
fn place(report: &Report<'_>, script: Option<&str>) -> String {
    let of_target = || {
        let url = report.card.target.split_once(' ').map_or("", |(_, url)| url);
        let path =
            url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
        if path.is_empty() { "service".to_owned() } else { path.to_owned() }
    };
    let path = script.map_or_else(of_target, str::to_owned);
    let path = path.strip_prefix("./").unwrap_or(&path);
    let escaped = percent_encoding::utf8_percent_encode(path, ODD).to_string();
    if escaped.starts_with('/') { format!("file://{escaped}") } else { escaped }
}

/// What cannot stand in the path of a reference.
const ODD: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::report::samples;

    #[test]
    fn it_has_the_shape_that_readers_of_sarif_ask_for() {
        let sample = samples::hostile();
        let text = write(&sample.report());
        assert!(!text.contains(samples::SECRET));
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["version"], "2.1.0");
        let run = &document["runs"][0];
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        for rule in rules {
            assert!(rule["id"].is_string() && rule["shortDescription"]["text"].is_string());
            assert!(rule["help"]["text"].is_string() && rule["fullDescription"]["text"].is_string());
        }
        let results = run["results"].as_array().unwrap();
        let levels: Vec<_> = results.iter().map(|result| result["level"].as_str().unwrap()).collect();
        assert_eq!(levels, ["error", "note"], "what passed is no alert");
        for result in results {
            let rule = &rules[result["ruleIndex"].as_u64().unwrap() as usize];
            assert_eq!(rule["id"], result["ruleId"]);
            assert!(!result["message"]["text"].as_str().unwrap().is_empty());
            let place = &result["locations"][0]["physicalLocation"];
            let uri = place["artifactLocation"]["uri"].as_str().unwrap();
            assert!(!uri.contains("://") && !uri.contains(' ') && !uri.starts_with('/'), "{uri}");
            assert!(place["region"]["startLine"].as_u64().unwrap() >= 1);
            assert!(result["partialFingerprints"]["semelVerify/v1"].is_string());
        }
        assert_eq!(
            results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            "repro/race.sh"
        );
        assert_eq!(results[1]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"], "payments");
        assert_eq!(name("cut-in-head"), "CutInHead");
    }
}
