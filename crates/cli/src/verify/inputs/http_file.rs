//! A request in a `.http` file, as editors send them.
//!
//! `###` separates requests, `# @name N` or the words after `###` name them, `@name = value` is a variable
//! and `{{name}}` its use. `{{$guid}}` and `{{$uuid}}` become the tag of an operation: what an editor makes
//! new for every request must be the same in a retry.

use std::collections::BTreeMap;
use std::path::Path;

use super::Draft;
use crate::config::mistake::suggestion;
use crate::verify::template::TAG;

/// How often variables may stand in variables.
const DEPTH_MAX: usize = 8;

/// The request of that name, or the only one.
pub(super) fn read(
    text: &str,
    name: Option<&str>,
    near: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Draft, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (variables, requests) = parts(text);
    let values = Values { variables, variable };
    let request = choose(&requests, name)?;
    request.draft(&values, near)
}

/// One request, as its lines.
#[derive(Default)]
struct Written<'a> {
    names: Vec<String>,
    lines: Vec<&'a str>,
    at: usize,
}

fn parts(text: &str) -> (BTreeMap<String, String>, Vec<Written<'_>>) {
    let mut variables = BTreeMap::new();
    let mut requests = vec![Written::default()];
    for (at, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("###") {
            let title = title.trim_start_matches('#').trim();
            let names = (!title.is_empty()).then(|| title.to_owned()).into_iter().collect();
            requests.push(Written { names, ..Written::default() });
            continue;
        }
        let Some(request) = requests.last_mut() else { continue };
        if request.lines.is_empty() {
            // Before the first line of a request: names, variables, comments, nothing.
            if let Some(name) = named(line) {
                request.names.push(name.to_owned());
            } else if let Some((name, value)) = line.strip_prefix('@').and_then(|rest| rest.split_once('=')) {
                variables.insert(name.trim().to_owned(), value.trim().to_owned());
            }
            if is_comment(line) || line.trim().is_empty() || line.starts_with('@') {
                continue;
            }
            request.at = at + 1;
        }
        request.lines.push(line);
    }
    requests.retain(|request| !request.lines.is_empty());
    (variables, requests)
}

fn is_comment(line: &str) -> bool {
    line.starts_with('#') || line.starts_with("//")
}

fn named(line: &str) -> Option<&str> {
    let said = line.strip_prefix('#').or_else(|| line.strip_prefix("//"))?.trim();
    let name = said.strip_prefix("@name")?.trim_start_matches([' ', '\t', '=']).trim();
    (!name.is_empty()).then_some(name)
}

fn choose<'a, 'i>(requests: &'a [Written<'i>], name: Option<&str>) -> Result<&'a Written<'i>, String> {
    let names = || requests.iter().flat_map(|request| &request.names).map(String::as_str);
    let Some(name) = name else {
        return match requests {
            [one] => Ok(one),
            [] => Err("there is no request in it".into()),
            many => Err(format!(
                "there are {} requests in it; choose one with --name: {}",
                many.len(),
                names().collect::<Vec<_>>().join(", ")
            )),
        };
    };
    let found = requests.iter().find(|request| request.names.iter().any(|there| there == name));
    found.ok_or_else(|| format!("no request in it is called `{name}`{}", suggestion(name, names())))
}

struct Values<'a> {
    variables: BTreeMap<String, String>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Values<'_> {
    fn fill(&self, text: &str) -> Result<String, String> {
        self.fill_at(text, 0)
    }

    fn fill_at(&self, text: &str, depth: usize) -> Result<String, String> {
        if depth > DEPTH_MAX {
            return Err("a variable stands in itself".into());
        }
        let mut filled = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("{{") {
            let Some(length) = rest[start..].find("}}") else { break };
            filled.push_str(&rest[..start]);
            filled.push_str(&self.value(rest[start + 2..start + length].trim(), depth)?);
            rest = &rest[start + length + 2..];
        }
        Ok(filled + rest)
    }

    fn value(&self, name: &str, depth: usize) -> Result<String, String> {
        if let Some(value) = self.variables.get(name) {
            return self.fill_at(value, depth + 1);
        }
        let mut words = name.split_whitespace();
        match (words.next(), words.next()) {
            (Some("$guid" | "$uuid" | "$random.uuid"), None) => Ok(TAG.into()),
            (Some("$processEnv"), Some(wanted)) => {
                let wanted = wanted.trim_start_matches('%');
                (self.variable)(wanted)
                    .ok_or_else(|| format!("it uses ${wanted}, which is not set in the environment"))
            }
            (Some(dynamic), _) if dynamic.starts_with('$') => Err(format!(
                "`{{{{{name}}}}}` would be another value in every request; write one, or {TAG} for one per \
                 operation"
            )),
            _ => {
                let near = suggestion(name, self.variables.keys().map(String::as_str));
                Err(format!("the variable `{name}` is not defined{near}"))
            }
        }
    }
}

impl Written<'_> {
    fn draft(&self, values: &Values<'_>, near: &Path) -> Result<Draft, String> {
        let mut lines = self.lines.iter().copied();
        let mut target = lines.next().unwrap_or_default().trim().to_owned();
        let mut headers = Vec::new();
        let mut body_lines = Vec::new();
        let mut at = self.at;
        while let Some(line) = lines.next() {
            at += 1;
            if line.trim().is_empty() {
                body_lines = lines.by_ref().collect();
                break;
            }
            if headers.is_empty() && line.starts_with([' ', '\t']) && line.trim().starts_with(['?', '&', '/'])
            {
                // A long query goes on in the next lines, before a version if there is one.
                target = format!("{target}{}", line.trim());
            } else if !is_comment(line) {
                let (name, value) = line
                    .split_once(':')
                    .ok_or_else(|| format!("line {at} should be a header, `Name: value`"))?;
                headers.push((name.trim().to_owned(), values.fill(value.trim())?));
            }
        }
        let (method, url) = method_and_url(&target);
        let mut url = values.fill(url)?;
        if url.starts_with('/')
            && let Some((_, host)) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            url = format!("http://{host}{url}");
        }
        let body = body(&body_lines, values, near)?;
        Ok(Draft { method: Some(method.into()), url, headers, body })
    }
}

fn method_and_url(line: &str) -> (&str, &str) {
    let line = match line.rsplit_once(' ') {
        Some((before, version)) if version.starts_with("HTTP/") => before.trim_end(),
        _ => line,
    };
    match line.split_once(char::is_whitespace) {
        Some((method, url)) if method.chars().all(|one| one.is_ascii_alphabetic() || one == '-') => {
            (method, url.trim())
        }
        _ => ("GET", line),
    }
}

fn body(lines: &[&str], values: &Values<'_>, near: &Path) -> Result<Vec<u8>, String> {
    let mut kept: Vec<&str> = Vec::new();
    let mut in_script = false;
    for line in lines {
        // What an editor does with the answer: `> {% … %}`, `> file.js`, `<> old-answer.json`.
        if in_script || line.starts_with("> ") || line.starts_with("<> ") {
            in_script = (in_script || line.contains("{%")) && !line.contains("%}");
            continue;
        }
        kept.push(line);
    }
    while kept.last().is_some_and(|line| line.trim().is_empty()) {
        kept.pop();
    }
    if let [line] = kept[..]
        && let Some(file) = line.strip_prefix('<')
    {
        let filled = file.strip_prefix('@');
        let path = near.join(filled.unwrap_or(file).trim());
        return match filled {
            Some(_) => values.fill(&super::read_text(&path)?).map(String::into_bytes),
            None => super::read_bytes(&path),
        };
    }
    values.fill(&kept.join("\n")).map(String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
@host = 127.0.0.1:3000
@base = http://{{host}}/v1

### pay
# A comment, and a name
// @name payment
POST {{base}}/payments?x={{x}}
    &y=2 HTTP/1.1
Content-Type: application/json
# X-Left-Out: yes
Authorization: Bearer {{$processEnv TOKEN}}
Idempotency-Key: {{$guid}}

{
  \"reference\": \"{{$uuid}}\",

  \"amount\": 1
}

> {%
  client.log('{{undefined}}')
%}

###
http://127.0.0.1:3000/list
";

    fn environment(name: &str) -> Option<String> {
        (name == "TOKEN").then(|| "s3cret".into())
    }

    fn named(name: &str) -> Result<Draft, String> {
        read(FILE, Some(name), Path::new("."), &environment)
    }

    #[test]
    fn a_request_is_found_by_its_name_and_its_variables_are_filled_in() {
        let file = FILE.replace("### pay", "@x = one\n### pay");
        let draft = read(&file, Some("payment"), Path::new("."), &environment).unwrap();
        assert_eq!(draft.method.as_deref(), Some("POST"));
        assert_eq!(draft.url, "http://127.0.0.1:3000/v1/payments?x=one&y=2");
        assert_eq!(draft.headers[1], ("Authorization".into(), "Bearer s3cret".into()));
        assert_eq!(draft.headers.len(), 3);
        let body = String::from_utf8(draft.body).unwrap();
        assert_eq!(body, "{\n  \"reference\": \"{tag}\",\n\n  \"amount\": 1\n}");
        assert_eq!(read(&file, Some("pay"), Path::new("."), &environment).unwrap().url, draft.url);
    }

    #[test]
    fn what_cannot_be_found_is_named_with_what_is_near() {
        assert!(named("paiment").unwrap_err().contains("`payment`"));
        let many = read(FILE, None, Path::new("."), &environment).unwrap_err();
        assert!(many.contains("2 requests") && many.contains("payment"), "{many}");
        assert!(named("pay").unwrap_err().contains("`x`"));
        let one = |text: &str| read(text, None, Path::new("."), &environment).unwrap_err();
        assert!(one("@bass = 1\nGET {{base}}/").contains("`bass`"));
        assert!(one("@a = {{b}}\n@b = {{a}}\nGET {{a}}").contains("itself"));
        assert!(one("POST http://h/\n\n{{$timestamp}}").contains("$timestamp"));
        assert!(one("POST http://h/\nno header\n").contains("line 2"));
        assert!(one("# nothing\n\n###\n").contains("no request"));
    }

    #[test]
    fn a_body_can_be_a_file_beside_the_request() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("b.json"), "{{a}}").unwrap();
        let body = |text: &str| read(text, None, place.path(), &environment).unwrap().body;
        assert_eq!(body("@a=1\r\nPOST http://h/\r\n\r\n< ./b.json\r\n"), b"{{a}}");
        assert_eq!(body("@a=1\nPOST http://h/\n\n<@ b.json"), b"1");
    }

    #[test]
    fn a_bare_url_is_a_get_and_a_path_goes_to_its_host() {
        let draft = |text: &str| read(text, None, Path::new("."), &environment).unwrap();
        assert_eq!(draft("http://h/x").method.as_deref(), Some("GET"));
        assert_eq!(draft("PUT /x HTTP/1.1\nHost: h:1\n").url, "http://h:1/x");
    }
}
