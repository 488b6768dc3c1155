//! A request made from an OpenAPI 3 description: its own examples first, then what its schemas allow.
//!
//! Only what is required is sent, and examples as they are. References are followed within the file.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::{Draft, yaml};
use crate::config::mistake::suggestion;
use crate::verify::template::TAG;

/// How deep schemas are followed: one that holds itself ends here.
const DEPTH_MAX: usize = 24;
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
/// What stays as it is in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The request of an operation, named by its `operationId` or as `POST /path`.
pub(super) fn read(text: &str, operation: &str, server: Option<&str>) -> Result<Draft, String> {
    let root = match serde_json::from_str(text) {
        Ok(root) => root,
        Err(error) if text.trim_start().starts_with('{') => return Err(format!("this is not JSON: {error}")),
        Err(_) => yaml::read(text)?,
    };
    let api = Api { root: &root };
    api.check_version()?;
    let found = api.operation(operation)?;
    api.draft(&found, server)
}

struct Api<'a> {
    root: &'a Value,
}

struct Operation<'a> {
    method: &'a str,
    path: &'a str,
    item: &'a Value,
    itself: &'a Value,
}

impl<'a> Api<'a> {
    fn check_version(&self) -> Result<(), String> {
        match (self.root["openapi"].as_str(), self.root.get("swagger")) {
            (Some(version), _) if version.starts_with("3.") => Ok(()),
            (None, Some(_)) => Err("this is Swagger 2; convert it to OpenAPI 3 first".into()),
            (Some(version), _) => Err(format!("this is OpenAPI {version}; version 3 is read here")),
            (None, None) => Err("this is no OpenAPI description: it has no `openapi: 3…`".into()),
        }
    }

    fn operations(&self) -> Vec<Operation<'a>> {
        let paths = self.root["paths"].as_object().into_iter().flatten();
        let mut found = Vec::new();
        for (path, item) in paths {
            let item = self.resolved(item);
            for method in METHODS {
                if let Some(itself) = item.get(method) {
                    found.push(Operation { method, path, item, itself });
                }
            }
        }
        found
    }

    fn operation(&self, wanted: &str) -> Result<Operation<'a>, String> {
        let id = |operation: &Operation<'a>| operation.itself["operationId"].as_str();
        let spoken =
            |operation: &Operation<'_>| format!("{} {}", operation.method.to_uppercase(), operation.path);
        let operations = self.operations();
        let names: Vec<String> =
            operations.iter().map(|one| id(one).map_or_else(|| spoken(one), str::to_owned)).collect();
        let found = operations.into_iter().find(|one| id(one) == Some(wanted) || spoken(one) == wanted);
        found.ok_or_else(|| {
            let near = suggestion(wanted, names.iter().map(String::as_str));
            let shown: Vec<&str> = names.iter().take(20).map(String::as_str).collect();
            format!("it has no operation `{wanted}`{near}; it has {}", shown.join(", "))
        })
    }

    fn draft(&self, operation: &Operation<'a>, server: Option<&str>) -> Result<Draft, String> {
        let mut url = self.server(operation, server)?.trim_end_matches('/').to_owned();
        let mut path = operation.path.to_owned();
        let mut query = Vec::new();
        let mut headers = Vec::new();
        let mut cookies = Vec::new();
        for parameter in self.parameters(operation) {
            let name = parameter["name"].as_str().unwrap_or_default();
            let is_required = parameter["required"] == true;
            let place = parameter["in"].as_str().unwrap_or_default();
            if place != "path" && !is_required {
                continue;
            }
            let value = self.value_of(parameter).map_err(|said| format!("the parameter `{name}`: {said}"))?;
            let text = plain(&value);
            match place {
                "path" => path = path.replace(&format!("{{{name}}}"), &encoded(&text)),
                "query" => query.push(format!("{}={}", encoded(name), encoded(&text))),
                "header" => headers.push((name.to_owned(), text)),
                "cookie" => cookies.push(format!("{name}={text}")),
                _ => {}
            }
        }
        let left = path.replace(TAG, "");
        if let (Some(from), Some(to)) = (left.find('{'), left.find('}')) {
            return Err(format!("the path's {} is not described as a parameter", &left[from..=to.max(from)]));
        }
        url.push_str(&path);
        if !query.is_empty() {
            url = format!("{url}?{}", query.join("&"));
        }
        if !cookies.is_empty() {
            headers.push(("Cookie".into(), cookies.join("; ")));
        }
        let body = match operation.itself.get("requestBody") {
            Some(described) => self.body(self.resolved(described), &mut headers)?,
            None => Vec::new(),
        };
        Ok(Draft { method: Some(operation.method.to_uppercase()), url, headers, body })
    }

    fn server(&self, operation: &Operation<'_>, given: Option<&str>) -> Result<String, String> {
        if let Some(given) = given {
            return Ok(given.into());
        }
        let described =
            [operation.itself, operation.item, self.root].into_iter().find_map(|one| one["servers"].get(0));
        let Some(server) = described else {
            return Err("it names no server; give one with --server".into());
        };
        let mut url = server["url"].as_str().unwrap_or_default().to_owned();
        for (name, variable) in server["variables"].as_object().into_iter().flatten() {
            url = url.replace(&format!("{{{name}}}"), &plain(&variable["default"]));
        }
        if !url.contains("://") {
            return Err(format!("its server `{url}` is no whole URL; give one with --server"));
        }
        Ok(url)
    }

    /// Those of the path, and those of the operation, which come first.
    fn parameters(&self, operation: &Operation<'a>) -> Vec<&'a Value> {
        let list =
            |of: &'a Value| of["parameters"].as_array().into_iter().flatten().map(|one| self.resolved(one));
        let mut parameters: Vec<&Value> = list(operation.itself).collect();
        for inherited in list(operation.item) {
            let same = |one: &&Value| one["name"] == inherited["name"] && one["in"] == inherited["in"];
            if !parameters.iter().any(same) {
                parameters.push(inherited);
            }
        }
        parameters
    }

    fn body(&self, described: &'a Value, headers: &mut Vec<(String, String)>) -> Result<Vec<u8>, String> {
        let Some(content) = described["content"].as_object() else { return Ok(Vec::new()) };
        let is_json = |kind: &str| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind == "application/json" || kind.ends_with("+json") || kind == "*/*" || kind == "application/*"
        };
        let is_form = |kind: &str| kind.starts_with("application/x-www-form-urlencoded");
        let find = |is: &dyn Fn(&str) -> bool| content.iter().find(|(kind, _)| is(kind));
        let Some((kind, media)) = find(&is_json).or_else(|| find(&is_form)).or_else(|| content.iter().next())
        else {
            return Ok(Vec::new());
        };
        let value = self.value_of(media).map_err(|said| format!("the body: {said}"))?;
        let (kind, body) = match (kind.as_str(), value) {
            (kind, Value::Object(members)) if is_form(kind) => (kind, form(&members)),
            (kind, value) if is_json(kind) && kind.contains('*') => ("application/json", value.to_string()),
            (kind, value) if is_json(kind) => (kind, value.to_string()),
            (kind, Value::String(text)) => (kind, text),
            (kind, _) => {
                return Err(format!(
                    "the body is {kind}, which cannot be made here; give the request with -X, -H and -d"
                ));
            }
        };
        headers.push(("Content-Type".into(), kind.to_owned()));
        Ok(body.into_bytes())
    }

    /// Of a parameter or a media type: its example, or what its schema allows.
    fn value_of(&self, described: &'a Value) -> Result<Value, String> {
        if let Some(example) = described.get("example") {
            return Ok(example.clone());
        }
        let examples = described["examples"].as_object().into_iter().flatten();
        if let Some(value) = examples.map(|(_, one)| self.resolved(one)).find_map(|one| one.get("value")) {
            return Ok(value.clone());
        }
        if let Some(media) = described["content"].as_object().and_then(|content| content.values().next()) {
            return self.value_of(media);
        }
        match described.get("schema") {
            Some(schema) => self.made(schema, 0),
            None => Err("it has neither an example nor a schema".into()),
        }
    }

    /// A value that the schema allows.
    fn made(&self, schema: &'a Value, depth: usize) -> Result<Value, String> {
        if depth > DEPTH_MAX {
            return Err("its schema holds itself; add an example to the description".into());
        }
        let schema = self.resolved(schema);
        let examples = schema["examples"].get(0);
        let given = [schema.get("example"), examples, schema.get("const"), schema.get("default")];
        if let Some(value) = given.into_iter().flatten().next().or_else(|| schema["enum"].get(0)) {
            return Ok(value.clone());
        }
        if let Some(parts) = schema["allOf"].as_array() {
            return self.all_of(schema, parts, depth);
        }
        for choice in ["oneOf", "anyOf"] {
            if let Some(first) = schema[choice].as_array().and_then(|choices| choices.first()) {
                let mut value = self.made(first, depth + 1)?;
                if let (Value::Object(members), Ok(Value::Object(more))) =
                    (&mut value, self.object(schema, depth))
                {
                    members.extend(more);
                }
                return Ok(value);
            }
        }
        match kind(schema) {
            "object" => self.object(schema, depth),
            "array" => {
                let least = schema["minItems"].as_u64().unwrap_or(1).clamp(1, 100);
                let item =
                    schema.get("items").map_or(Ok(json!("text")), |items| self.made(items, depth + 1))?;
                Ok(Value::Array(vec![item; usize::try_from(least).unwrap_or(1)]))
            }
            "integer" => Ok(json!(least(schema).ceil() as i64)),
            "number" => Ok(json!(least(schema))),
            "boolean" => Ok(json!(true)),
            "null" => Ok(Value::Null),
            _ => Ok(json!(text(schema))),
        }
    }

    fn object(&self, schema: &'a Value, depth: usize) -> Result<Value, String> {
        let mut members = Map::new();
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let Some(property) = schema["properties"].get(name) else { continue };
            if self.resolved(property)["readOnly"] == true {
                continue;
            }
            members.insert(
                name.into(),
                self.made(property, depth + 1).map_err(|said| format!("`{name}`: {said}"))?,
            );
        }
        // Examples of what is not required show what a sensible request has.
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let property = self.resolved(property);
            if let Some(example) = property.get("example")
                && property["readOnly"] != true
            {
                members.entry(name.clone()).or_insert_with(|| example.clone());
            }
        }
        Ok(Value::Object(members))
    }

    fn all_of(&self, schema: &'a Value, parts: &'a [Value], depth: usize) -> Result<Value, String> {
        let mut members = Map::new();
        for part in parts {
            match self.made(part, depth + 1)? {
                Value::Object(more) => members.extend(more),
                // Most often one part that is no object, with words added to it.
                value if kind(self.resolved(part)) != "object" && parts.len() == 1 => return Ok(value),
                _ => {}
            }
        }
        if let Value::Object(more) = self.object(schema, depth)? {
            members.extend(more);
        }
        // What one part requires can be described in another.
        let parts = || parts.iter().map(|part| self.resolved(part)).chain([schema]);
        let required = parts().flat_map(|part| part["required"].as_array().into_iter().flatten());
        for name in required.filter_map(Value::as_str) {
            if !members.contains_key(name)
                && let Some(property) = parts().find_map(|part| part["properties"].get(name))
                && self.resolved(property)["readOnly"] != true
            {
                members.insert(name.into(), self.made(property, depth + 1)?);
            }
        }
        Ok(Value::Object(members))
    }

    /// Follows references within the file.
    fn resolved(&self, mut value: &'a Value) -> &'a Value {
        for _ in 0..DEPTH_MAX {
            let Some(reference) = value.get("$ref").and_then(Value::as_str) else { break };
            let Some(found) = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer))
            else {
                break;
            };
            value = found;
        }
        value
    }
}

/// The first type that is not null; said or seen from what else it has.
fn kind(schema: &Value) -> &str {
    let said = match &schema["type"] {
        Value::String(one) => Some(one.as_str()),
        Value::Array(several) => several.iter().filter_map(Value::as_str).find(|one| *one != "null"),
        _ => None,
    };
    said.unwrap_or(match schema {
        _ if schema.get("properties").is_some() || schema.get("additionalProperties").is_some() => "object",
        _ if schema.get("items").is_some() => "array",
        _ => "string",
    })
}

fn least(schema: &Value) -> f64 {
    let step = schema["multipleOf"].as_f64().filter(|step| *step > 0.0);
    let number = match (&schema["minimum"], &schema["exclusiveMinimum"]) {
        (_, Value::Number(above)) => above.as_f64().unwrap_or(0.0) + step.unwrap_or(1.0),
        (Value::Number(least), Value::Bool(true)) => least.as_f64().unwrap_or(0.0) + step.unwrap_or(1.0),
        (Value::Number(least), _) => least.as_f64().unwrap_or(0.0),
        _ => schema["maximum"].as_f64().map_or(1.0, |most| most.min(1.0)),
    };
    step.map_or(number, |step| (number / step).ceil() * step)
}

fn text(schema: &Value) -> String {
    let text = match schema["format"].as_str() {
        Some("date") => "2026-01-31",
        Some("date-time") => "2026-01-31T12:00:00Z",
        Some("time") => "12:00:00Z",
        Some("duration") => "PT1H",
        Some("uuid") => "7d0a4a4e-5a2c-4f7e-9a55-3a3c8f7f3b10",
        Some("email") => "somebody@example.com",
        Some("hostname") => "example.com",
        Some("uri" | "url" | "iri") => "https://example.com/",
        Some("ipv4") => "192.0.2.1",
        Some("ipv6") => "2001:db8::1",
        Some("byte") => return STANDARD.encode("text"),
        _ => "text",
    };
    let least = schema["minLength"].as_u64().and_then(|least| usize::try_from(least).ok()).unwrap_or(0);
    let most = schema["maxLength"].as_u64().and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let filled: String =
        text.chars().chain(std::iter::repeat_n('x', least.min(10_000).saturating_sub(text.len()))).collect();
    filled.chars().take(most).collect()
}

/// A value as it stands in a path, a query or a header.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string().replace("%7Btag%7D", TAG)
}

fn form(members: &Map<String, Value>) -> String {
    let pairs = members.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(&plain(value))));
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const API: &str = r##"
openapi: 3.0.3
servers:
  - url: http://{host}:8080/v1/
    variables: {host: {default: localhost}}
paths:
  /accounts/{account}/payments:
    parameters:
      - {name: account, in: path, required: true, schema: {type: string, example: "a/7"}}
      - {name: X-Kind, in: header, required: true, schema: {type: string, enum: [card, cash]}}
    post:
      operationId: createPayment
      parameters:
        - $ref: '#/components/parameters/Dry'
        - {name: page, in: query, schema: {type: integer}}
      requestBody:
        $ref: '#/components/requestBodies/Payment'
      responses:
        200: {description: ok}
    get:
      responses: {}
  /forms:
    put:
      operationId: putForm
      requestBody:
        content:
          application/x-www-form-urlencoded:
            schema:
              type: object
              required: [reference, amount]
              properties:
                reference: {type: string, default: 'r {tag}'}
                amount: {type: integer, minimum: 5}
  /loops:
    post:
      operationId: loop
      requestBody:
        content:
          application/json:
            schema: {$ref: '#/components/schemas/Loop'}
  /examples:
    post:
      operationId: exampled
      requestBody:
        content:
          application/json; charset=utf-8:
            examples: {one: {value: {a: [1, "{tag}"]}}}
            schema: {type: object}
components:
  parameters:
    Dry: {name: dry, in: query, required: true, schema: {type: boolean}}
  requestBodies:
    Payment:
      content:
        text/plain: {schema: {type: string}}
        application/json:
          schema:
            allOf:
              - $ref: '#/components/schemas/Base'
              - type: object
                required: [lines, due, to]
                properties:
                  lines: {type: array, minItems: 2, items: {$ref: '#/components/schemas/Line'}}
                  due: {type: [string, 'null'], format: date}
                  note: {type: string}
                  to: {oneOf: [{type: object, required: [iban], properties: {iban: {type: string, maxLength: 3}}}, {type: string}]}
  schemas:
    Base:
      type: object
      required: [id, amount]
      properties:
        id: {type: string, readOnly: true}
        amount: {type: number, exclusiveMinimum: 0, multipleOf: 0.5}
        hint: {type: string, example: soon}
    Line: {type: object, required: [count], properties: {count: {type: integer}, text: {type: string}}}
    Loop: {type: object, required: [next], properties: {next: {$ref: '#/components/schemas/Loop'}}}
"##;

    fn body(draft: &Draft) -> Value {
        serde_json::from_slice(&draft.body).unwrap()
    }

    #[test]
    fn a_request_is_made_of_what_is_required_and_of_examples() {
        let draft = read(API, "createPayment", None).unwrap();
        assert_eq!(draft.method.as_deref(), Some("POST"));
        assert_eq!(draft.url, "http://localhost:8080/v1/accounts/a%2F7/payments?dry=true");
        let expected = json!({"amount":0.5,"hint":"soon","lines":[{"count":1},{"count":1}],"due":"2026-01-31","to":{"iban":"tex"}});
        assert_eq!(body(&draft), expected);
        let headers = [("X-Kind", "card"), ("Content-Type", "application/json")];
        assert_eq!(draft.headers, headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn the_same_description_can_be_json() {
        let json = yaml::read(API).unwrap().to_string();
        assert_eq!(body(&read(&json, "createPayment", None).unwrap())["amount"], 0.5);
    }

    #[test]
    fn forms_and_examples_keep_the_tag() {
        let draft = read(API, "putForm", Some("http://127.0.0.1:1/")).unwrap();
        assert_eq!(
            (draft.url.as_str(), draft.body.as_slice()),
            ("http://127.0.0.1:1/forms", b"amount=5&reference=r%20{tag}".as_slice())
        );
        let draft = read(API, "POST /examples", None).unwrap();
        assert_eq!(draft.body, br#"{"a":[1,"{tag}"]}"#);
        assert_eq!(draft.headers[0].1, "application/json; charset=utf-8");
    }

    #[test]
    fn what_cannot_be_made_is_said() {
        let said = |operation: &str| read(API, operation, None).unwrap_err();
        assert!(said("createPayments").contains("did you mean `createPayment`?"));
        assert!(said("nothing").contains("GET /accounts/{account}/payments"));
        assert!(said("loop").contains("holds itself"));
        for (text, named) in [
            ("{\"swagger\":\"2.0\"}", "Swagger 2"),
            ("{\"openapi\":\"4.0.0\"}", "4.0.0"),
            ("{\"openapi\":", "not JSON"),
            ("a: 1", "no `openapi: 3…`"),
            ("{\"openapi\":\"3.1.0\",\"paths\":{\"/x\":{\"post\":{}}}}", "--server"),
            (
                "{\"openapi\":\"3.1.0\",\"servers\":[{\"url\":\"/v1\"}],\"paths\":{\"/x\":{\"post\":{}}}}",
                "--server",
            ),
            (
                "{\"openapi\":\"3.1.0\",\"servers\":[{\"url\":\"http://h\"}],\"paths\":{\"/x\":{\"post\":{}},\"/{y}\":{}}}",
                "",
            ),
        ] {
            let read = read(text, "POST /x", None);
            match named {
                "" => assert_eq!(read.unwrap().url, "http://h/x"),
                named => assert!(read.as_ref().is_err_and(|said| said.contains(named)), "{text}: {read:?}"),
            }
        }
    }
}
