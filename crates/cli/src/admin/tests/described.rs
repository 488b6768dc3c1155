//! The OpenAPI document and the manual describe what there is.

use std::collections::BTreeSet;

use http::StatusCode;
use serde_json::Value;

use super::rig::{Rig, operation};
use crate::admin::problem::Slug;
use crate::admin::{OPENAPI, routes};

fn described() -> BTreeSet<(String, String)> {
    let document: Value = serde_json::from_str(OPENAPI).expect("the document is JSON");
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("the document has paths");
    let methods = |(path, item): (&String, &Value)| -> Vec<(String, String)> {
        item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone())).collect()
    };
    paths.iter().flat_map(methods).collect()
}

#[test]
fn every_path_of_the_listener_is_described_and_no_other() {
    // G-81
    let built: BTreeSet<_> =
        routes().into_iter().map(|(method, path, _)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(described(), built);
}

#[tokio::test]
async fn every_described_path_answers() {
    // G-81
    let rig = Rig::new().await;
    let charge = operation(None, "charge", "k-1");
    let holder = rig.claim(&charge).await;
    rig.complete(holder, "charge", "ok").await;
    for (method, path) in described() {
        let filled = path.replace("{id}", &charge.id().to_string()).replace("{subject}", "somebody");
        let body = if method == "post" { "{}" } else { "" };
        let headers = [("content-type", "application/json")];
        let answer = rig.call(&method.to_uppercase(), &filled, &headers, body).await;
        // An empty body makes no sense to a changing call; that it says so shows that it is there.
        let expected = if method == "post" { StatusCode::BAD_REQUEST } else { StatusCode::OK };
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.text);
        if method == "post" {
            assert_eq!(answer.problem(), "admin-bad-request", "{path}");
        }
        let wrong = if method == "post" { "GET" } else { "POST" };
        if !described().contains(&(wrong.to_lowercase(), path.clone())) {
            assert_eq!(
                rig.call(wrong, &filled, &headers, "").await.problem(),
                "admin-method-not-allowed",
                "{path}"
            );
        }
    }
}

#[test]
fn references_in_the_document_lead_somewhere() {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut seen = 0;
    let mut todo = vec![&document];
    while let Some(value) = todo.pop() {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    let pointer = reference.strip_prefix('#').expect("references stay inside");
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                    seen += 1;
                }
                todo.extend(members.values());
            }
            Value::Array(items) => todo.extend(items),
            _ => {}
        }
    }
    assert!(seen > 20, "only {seen} references: this test would check little");
}

#[test]
fn the_manual_lists_every_problem_of_the_api() {
    let manual = include_str!("../../../../../docs/operating.md");
    for slug in Slug::ALL {
        let (name, status, _) = slug.told();
        assert!(manual.contains(&format!("| `{name}` | {} |", status.as_u16())), "{name}");
    }
}
