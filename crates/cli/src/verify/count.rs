//! Counts effects by asking: a URL or a command of the user's.

use std::time::Duration;

use http::{Request, Uri};
use semel::runtime::Boxed;
use serde_json::Value;

use super::safety::{self, Secrets};
use super::setup::Effects;
use super::shell;
use super::template::TAG;
use crate::gateway::fetch::{Failed, Http};

/// How long one count may take.
const COUNT_MAX: Duration = Duration::from_secs(20);

/// A URL that answers with a number, or with JSON that holds one.
#[derive(Clone)]
pub(super) struct CountUrl {
    http: Http,
    url: String,
    /// Where the number is in a JSON answer; a list there counts as its length.
    pointer: Option<String>,
    headers: Vec<(String, String)>,
    secrets: Secrets,
}

impl CountUrl {
    pub(super) fn new(
        http: Http,
        url: &str,
        pointer: Option<String>,
        mut headers: Vec<(String, String)>,
    ) -> Result<Self, String> {
        if !url.contains(TAG) {
            return Err(format!("--count-url needs {TAG} in it: effects are counted by operation"));
        }
        if let Some(pointer) = &pointer
            && !pointer.is_empty()
            && !pointer.starts_with('/')
        {
            return Err(format!("--count-pointer is a JSON pointer such as /a/b, not `{pointer}`"));
        }
        let (url, credentials) = super::inputs::target(url)?;
        headers.extend(credentials);
        let secrets = Secrets::of(headers.iter(), [url.as_str()].into_iter(), "");
        Ok(Self { http, url, pointer, headers, secrets })
    }

    async fn ask(&self, tag: &str) -> Result<u64, String> {
        let shown = safety::url_shown(&self.url);
        let failed = |said: String| format!("effects cannot be counted at {shown}: {said}");
        let url: Uri = self.url.replace(TAG, tag).parse().map_err(|_| failed("it is no URL".into()))?;
        let mut request = Request::get(url);
        for (name, value) in &self.headers {
            request = request.header(name, value.replace(TAG, tag));
        }
        let request = request.body(bytes::Bytes::new()).map_err(|error| failed(error.to_string()))?;
        let answer = self.http.send(request, COUNT_MAX).await.map_err(|error| match error {
            // It would show the URL.
            Failed::Address(_) => failed("it is no URL".into()),
            other => failed(other.to_string()),
        })?;
        if !answer.status.is_success() {
            return Err(failed(format!("it answers {}", answer.status.as_u16())));
        }
        let text = std::str::from_utf8(&answer.body).map_err(|_| failed("its answer is not text".into()))?;
        number(text, self.pointer.as_deref()).map_err(|said| failed(self.secrets.hide(&said)))
    }
}

impl Effects for CountUrl {
    fn count(&self, tag: &str) -> Boxed<Result<u64, String>> {
        let (this, tag) = (self.clone(), tag.to_owned());
        Box::pin(async move { this.ask(&tag).await })
    }

    fn shell(&self) -> Option<String> {
        let mut command = String::from("curl -sS");
        for (name, value) in &self.headers {
            let value = if safety::is_secret(name) {
                format!("${{{}:?}}", variable(name))
            } else {
                in_double_quotes(value).replace(TAG, "$tag")
            };
            command += &format!(" -H \"{}: {value}\"", in_double_quotes(name));
        }
        command += &format!(" \"{}\"", shell_url(&self.url));
        if let Some(pointer) = &self.pointer {
            let path: String = pointer.split('/').skip(1).map(jq_step).collect();
            let filter = format!(".{path} | if type == \"array\" then length else tonumber end");
            command += &format!(" | jq {}", shell::quoted(&filter));
        }
        Some(command)
    }
}

/// The URL for a script: no values of its query but the tag's.
fn shell_url(url: &str) -> String {
    let (before, query) = url.split_once('?').unwrap_or((url, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| match pair.split_once('=') {
        Some((name, value)) if !value.contains(TAG) => {
            format!("{}=${{{}:?}}", in_double_quotes(name), variable(name))
        }
        _ => in_double_quotes(pair),
    });
    let pairs: Vec<String> = pairs.collect();
    let before = in_double_quotes(before);
    let whole = if pairs.is_empty() { before } else { format!("{before}?{}", pairs.join("&")) };
    whole.replace(TAG, "$tag")
}

fn in_double_quotes(text: &str) -> String {
    text.chars().fold(String::new(), |mut quoted, one| {
        if matches!(one, '"' | '\\' | '$' | '`') {
            quoted.push('\\');
        }
        quoted.push(one);
        quoted
    })
}

fn variable(name: &str) -> String {
    let plain =
        name.chars().map(|one| if one.is_ascii_alphanumeric() { one.to_ascii_uppercase() } else { '_' });
    format!("COUNT_{}", plain.collect::<String>())
}

fn jq_step(step: &str) -> String {
    match step.parse::<usize>() {
        Ok(at) => format!("[{at}]"),
        Err(_) => format!("[{}]", Value::from(step.replace("~1", "/").replace("~0", "~"))),
    }
}

/// A number, a text that is one, or a list by its length.
fn number(text: &str, pointer: Option<&str>) -> Result<u64, String> {
    let Some(pointer) = pointer else {
        return text.trim().parse().map_err(|_| {
            format!(
                "{} is not a number; if it is JSON, say where the number is with --count-pointer",
                start(text)
            )
        });
    };
    let json: Value = serde_json::from_str(text).map_err(|_| format!("{} is not JSON", start(text)))?;
    let found =
        json.pointer(pointer).ok_or_else(|| format!("there is nothing at {pointer} in {}", start(text)))?;
    let number = match found {
        Value::Array(list) => Some(list.len() as u64),
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    number.ok_or_else(|| format!("what is at {pointer} in {} is no number and no list", start(text)))
}

fn start(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("`{}…`", &text[..at]),
        None => format!("`{text}`"),
    }
}

/// A command that prints a number. The tag is in `$SEMEL_TAG`.
#[derive(Clone, Debug)]
pub(super) struct CountCommand {
    pub(super) command: String,
    pub(super) secrets: Secrets,
}

impl Effects for CountCommand {
    fn count(&self, tag: &str) -> Boxed<Result<u64, String>> {
        let (this, tag) = (self.clone(), tag.to_owned());
        Box::pin(async move {
            let secrets = this.secrets.and_of_command(&this.command);
            let ran = shell::run(&this.command, &[("SEMEL_TAG", &tag)], COUNT_MAX).await;
            let counted = ran.and_then(|text| {
                let shown = safety::command_shown(&this.command);
                let wrong = || format!("`{shown}` printed {}, which is no number", start(&text));
                text.trim().parse().map_err(|_| wrong())
            });
            counted.map_err(|said| format!("effects cannot be counted: {}", secrets.hide(&said)))
        })
    }

    fn shell(&self) -> Option<String> {
        if safety::command_shown(&self.command) != self.command {
            // It holds a password, which is for its owner to give again.
            return Some("SEMEL_TAG=\"$tag\" sh -c \"${COUNT_COMMAND:?}\"".into());
        }
        Some(format!("SEMEL_TAG=\"$tag\" sh -c {}", shell::quoted(&self.command)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::client;
    use axum::Router;
    use axum::extract::Path;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::get;

    async fn service() -> String {
        let router = Router::new()
            .route("/plain/{tag}", get(|Path(tag): Path<String>| async move { format!(" {}\n", tag.len()) }))
            .route("/json/{tag}", get(|| async { r#"{"a":{"n":7,"list":[1,2,3],"text":"5","no":true}}"# }))
            .route(
                "/closed/{tag}",
                get(|headers: HeaderMap| async move {
                    match headers.get("authorization") {
                        Some(value) if value == "Bearer abcdef" => Ok("1"),
                        _ => Err(StatusCode::UNAUTHORIZED),
                    }
                }),
            );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        base
    }

    fn counter(url: &str, pointer: Option<&str>, headers: &[(&str, &str)]) -> CountUrl {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        CountUrl::new(client().unwrap(), url, pointer.map(Into::into), headers).unwrap()
    }

    #[tokio::test]
    async fn a_number_is_read_from_a_page_or_from_json() {
        let base = service().await;
        assert_eq!(counter(&format!("{base}/plain/{{tag}}"), None, &[]).count("t-abc").await, Ok(5));
        for (pointer, expected) in [("/a/n", 7), ("/a/list", 3), ("/a/text", 5), ("/a/list/1", 2)] {
            let counter = counter(&format!("{base}/json/{{tag}}"), Some(pointer), &[]);
            assert_eq!(counter.count("t-1").await, Ok(expected), "{pointer}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_no_count_is_told_with_what_to_do() {
        let base = service().await;
        for (path, pointer, named) in [
            ("json", None, "--count-pointer"),
            ("json", Some("/a/no"), "/a/no"),
            ("json", Some("/b"), "nothing at /b"),
            ("plain", Some("/b"), "nothing at /b"),
            ("closed", None, "401"),
            ("none", None, "404"),
        ] {
            let url = format!("{base}/{path}/{{tag}}?token=s3cret-s3cret");
            let said = counter(&url, pointer, &[]).count("t-1").await.unwrap_err();
            assert!(said.contains(named) && !said.contains("s3cret"), "{path}: {said}");
        }
        let nobody = counter("http://127.0.0.1:1/{tag}", None, &[]).count("t-1").await.unwrap_err();
        assert!(nobody.contains("no connection"), "{nobody}");
        assert!(CountUrl::new(client().unwrap(), "http://h/", None, vec![]).is_err());
        assert!(CountUrl::new(client().unwrap(), "http://h/{tag}", Some("a".into()), vec![]).is_err());
    }

    #[tokio::test]
    async fn headers_are_sent_and_scripts_do_not_show_them() {
        let base = service().await;
        let url = format!("{base}/closed/{{tag}}?id=s3cret&r=x-{{tag}}");
        let counter = counter(&url, Some("/a~1b/0"), &[("Authorization", "Bearer abcdef"), ("X-A", "$1")]);
        let plain = CountUrl { pointer: None, ..counter.clone() };
        assert_eq!(plain.count("t-1").await, Ok(1));
        let shell = counter.shell().unwrap();
        let expected = format!(
            "curl -sS -H \"Authorization: ${{COUNT_AUTHORIZATION:?}}\" -H \"X-A: \\$1\" \"{base}/closed/$tag?id=${{COUNT_ID:?}}&r=x-$tag\" | jq '.[\"a/b\"][0] | if type == \"array\" then length else tonumber end'"
        );
        assert_eq!(shell, expected);
    }

    #[tokio::test]
    async fn names_and_passwords_do_not_become_part_of_a_script() {
        let counter = counter("http://h/{tag}?$(id)`id`=1", None, &[("X`id`", "1")]);
        let shell = counter.shell().unwrap();
        assert!(shell.contains(r#""X\`id\`: 1""#) && shell.contains(r"?\$(id)\`id\`=${COUNT_"), "{shell}");
        let command = "DB_PASSWORD=hunter2hunter2; echo many $DB_PASSWORD";
        let count = CountCommand { command: command.into(), secrets: Secrets::default() };
        let said = count.count("t-1").await.unwrap_err();
        assert!(said.contains("`many (hidden)") && !said.contains("hunter2"), "{said}");
        assert!(!count.shell().unwrap().contains("hunter2"));
    }

    #[tokio::test]
    async fn a_command_counts_with_the_tag_in_its_variable() {
        let count = |command: &str| CountCommand { command: command.into(), secrets: Secrets::default() };
        assert_eq!(count("printf %s \"$SEMEL_TAG\" | wc -c").count("t-abc").await, Ok(5));
        let said = count("echo many").count("t-1").await.unwrap_err();
        assert!(said.contains("`many`"), "{said}");
        let said = count("echo gone >&2; exit 4").count("t-1").await.unwrap_err();
        assert!(said.contains("gone"), "{said}");
        // The same command in a script counts the same.
        let script = count("echo '7' | sed s/7/${#SEMEL_TAG}/").shell().unwrap();
        let printed = shell::run(&format!("tag=t-abcd; {script}"), &[], COUNT_MAX).await;
        assert_eq!(printed.unwrap(), "6\n");
    }
}
