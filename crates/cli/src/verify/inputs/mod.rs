//! The request under test, however it was given: on the command line, as a curl command, in a `.http` file,
//! or as an operation of an OpenAPI description.

mod curl;
mod http_file;
mod openapi;
mod words;
mod yaml;

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Uri};
use percent_encoding::percent_decode_str;

use super::template::{TAG, Template};

/// Largest file read: a description of a large API.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// What belongs to a connection, or is made anew for each request.
const OF_CONNECTION: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Where the request is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Method, URL and data; data may be `@FILE`.
    Flags {
        method: Option<String>,
        url: String,
        data: Option<String>,
    },
    Curl(PathBuf),
    Http {
        file: PathBuf,
        name: Option<String>,
    },
    OpenApi {
        file: PathBuf,
        operation: String,
        server: Option<String>,
    },
}

/// A request as it was written, before it is looked at closely.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Draft {
    method: Option<String>,
    url: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// Reads the request. `more` headers come instead of those of their names. The error is a sentence.
pub(super) fn read(
    source: &Source,
    more: &[(String, String)],
    key_header: &str,
    tag_at: Option<&str>,
) -> Result<Template, String> {
    let mut draft = draft(source)?;
    let replaced = |name: &str| more.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    draft.headers.retain(|(name, _)| !replaced(name));
    draft.headers.extend(more.iter().cloned());
    if let Some(pointer) = tag_at {
        draft.body = with_tag(&draft.body, pointer)?;
    }
    template(draft, key_header)
}

/// Data as `-d` takes it: itself, or `@FILE`.
pub(super) fn data(text: &str) -> Result<Bytes, String> {
    match text.strip_prefix('@') {
        Some(file) => read_bytes(Path::new(file)).map(Bytes::from),
        None => Ok(Bytes::copy_from_slice(text.as_bytes())),
    }
}

/// An absolute URL as requests are sent to, and the credentials that stood in it.
pub(super) fn target(url: &str) -> Result<(String, Option<(String, String)>), String> {
    let url = url.trim();
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    // A fragment stays with the client.
    let url = url.split('#').next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let scheme = scheme.to_ascii_lowercase();
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(basic(user)), host),
        None => (None, authority),
    };
    if host.contains(TAG) {
        return Err(format!("`{host}` would be another host for every tag; put {TAG} behind the host"));
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    let path: String = path.chars().map(sendable).collect();
    let url = format!("{scheme}://{host}{slash}{path}");
    // Never with what stood before the host: it can be a password.
    let wrong = || format!("`{scheme}://{host}` is not where a request can go; write http://HOST:PORT/PATH");
    let uri: Uri = url.replace(TAG, "t-0").parse().map_err(|_| wrong())?;
    // A port that is no number is part of an authority, too.
    let is_port_wrong =
        uri.port_u16().is_none() && uri.host() != uri.authority().map(|authority| authority.as_str());
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_http || is_port_wrong || uri.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    Ok((url, credentials))
}

fn basic(user: &str) -> (String, String) {
    let plain = percent_decode_str(user).collect::<Vec<u8>>();
    let plain = if plain.contains(&b':') { plain } else { [plain, b":".to_vec()].concat() };
    ("Authorization".into(), format!("Basic {}", STANDARD.encode(plain)))
}

fn sendable(one: char) -> String {
    match one {
        '!'..='~' => one.to_string(),
        other => other.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect(),
    }
}

fn draft(source: &Source) -> Result<Draft, String> {
    let variable = |name: &str| std::env::var(name).ok();
    let of = |file: &Path, said: String| format!("{}: {said}", file.display());
    match source {
        Source::Flags { method, url, data: given } => {
            let body = given.as_deref().map(data).transpose()?.unwrap_or_default().to_vec();
            Ok(Draft { method: method.clone(), url: url.clone(), headers: Vec::new(), body })
        }
        Source::Curl(file) => {
            let text = read_text(file)?;
            curl::read(&text, beside(file), &variable).map_err(|said| of(file, said))
        }
        Source::Http { file, name } => {
            let text = read_text(file)?;
            http_file::read(&text, name.as_deref(), beside(file), &variable).map_err(|said| of(file, said))
        }
        Source::OpenApi { file, operation, server } => {
            let text = read_text(file)?;
            openapi::read(&text, operation, server.as_deref()).map_err(|said| of(file, said))
        }
    }
}

/// Files named in a file stand beside it.
fn beside(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("."))
}

fn template(draft: Draft, key_header: &str) -> Result<Template, String> {
    let method = draft.method.unwrap_or_else(|| "POST".into());
    if Method::from_bytes(method.as_bytes()).is_err() {
        return Err(format!("`{method}` is not a method"));
    }
    let (url, credentials) = target(&draft.url)?;
    let mut headers = Vec::new();
    for (name, value) in draft.headers {
        check_header(&name, &value)?;
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        // Another host than the URL's is how one of several on a machine is reached.
        let is_own_host = is("host") && url.split('/').nth(2) == Some(value.as_str());
        if !is(key_header) && !is_own_host && !OF_CONNECTION.iter().any(|of| is(of)) {
            headers.push((name, value));
        }
    }
    let has = |headers: &[(String, String)], name: &str| {
        headers.iter().any(|(there, _)| there.eq_ignore_ascii_case(name))
    };
    if let Some(credentials) = credentials
        && !has(&headers, "authorization")
    {
        headers.push(credentials);
    }
    let body = Bytes::from(draft.body);
    if !body.is_empty() && !has(&headers, "content-type") {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
        if is_json {
            headers.push(("Content-Type".into(), "application/json".into()));
        }
    }
    Ok(Template { method, url, headers, body })
}

/// Whether HTTP can carry it. A value is not repeated: it can be a secret.
fn check_header(name: &str, value: &str) -> Result<(), String> {
    let plain = name.replace(TAG, "t-0");
    HeaderName::from_bytes(plain.as_bytes()).map_err(|_| format!("{name:?} is not the name of a header"))?;
    HeaderValue::from_str(value).map_err(|_| format!("the value of {name} has a control character"))?;
    Ok(())
}

/// Reads the headers of a flag.
pub(super) fn headers(flag: &str, texts: &[String]) -> Result<Vec<(String, String)>, String> {
    texts.iter().map(|text| header(text).map_err(|said| format!("{flag}: {said}"))).collect()
}

/// Reads `Name: value`. The text is not repeated: it can be a secret.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written 'Name: value'")?;
    let (name, value) = (name.trim(), value.trim());
    check_header(name, value)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The JSON body with the tag at a pointer.
fn with_tag(body: &[u8], pointer: &str) -> Result<Vec<u8>, String> {
    let mut value: serde_json::Value =
        serde_json::from_slice(body).map_err(|_| "--tag-at needs a body of JSON, and this is none")?;
    let (parent, last) = pointer
        .strip_prefix('/')
        .and_then(|_| pointer.rsplit_once('/'))
        .ok_or_else(|| format!("--tag-at is a JSON pointer such as /reference, not `{pointer}`"))?;
    let nowhere = || format!("the body has no place `{pointer}` for the tag");
    match value.pointer_mut(parent).ok_or_else(nowhere)? {
        serde_json::Value::Object(members) => {
            members.insert(last.replace("~1", "/").replace("~0", "~"), TAG.into());
        }
        serde_json::Value::Array(list) => {
            let at: usize = last.parse().map_err(|_| nowhere())?;
            *list.get_mut(at).ok_or_else(nowhere)? = TAG.into();
        }
        _ => return Err(nowhere()),
    }
    Ok(value.to_string().into_bytes())
}

/// A file, or what is piped in as `-`.
fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut bytes = Vec::new();
    let mut from: Box<dyn Read> = match path.file_name() {
        Some(name) if name == "-" => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    from.by_ref().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{} is over {} MiB", path.display(), FILE_BYTES_MAX >> 20));
    }
    Ok(bytes)
}

fn read_text(path: &Path) -> Result<String, String> {
    String::from_utf8(read_bytes(path)?).map_err(|_| format!("{} is not text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(url: &str, data: &str) -> Source {
        Source::Flags { method: None, url: url.into(), data: Some(data.into()) }
    }

    fn read_plain(source: &Source, more: &[(&str, &str)]) -> Result<Template, String> {
        let more: Vec<_> = more.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        read(source, &more, "Idempotency-Key", None)
    }

    #[test]
    fn a_request_of_flags_posts_and_says_what_its_body_is() {
        let template = read_plain(&flags("127.0.0.1:3000/pay?x=ü y#z", r#"{"r":"{tag}"}"#), &[]).unwrap();
        assert_eq!(template.method, "POST");
        assert_eq!(template.url, "http://127.0.0.1:3000/pay?x=%C3%BC%20y");
        assert_eq!(template.headers, [("Content-Type".to_owned(), "application/json".to_owned())]);
        assert!(template.has_tag());
        let form = read_plain(&flags("http://h?a={tag}", "a=1"), &[]).unwrap();
        assert_eq!((form.url.as_str(), form.headers.len()), ("http://h/?a={tag}", 0));
    }

    #[test]
    fn the_host_is_the_same_for_every_tag() {
        let said = read_plain(&flags("http://{tag}.example.org/pay", "a=1"), &[]).unwrap_err();
        assert!(said.contains("another host for every tag"), "{said}");
    }

    #[test]
    fn the_key_and_what_belongs_to_the_connection_are_left_to_the_checks() {
        let more = [("idempotency-key", "7"), ("Content-Length", "9"), ("Host", "h"), ("X-A", "1")];
        let template = read_plain(&flags("http://h/", "a=1"), &more).unwrap();
        assert_eq!(template.headers, [("X-A".to_owned(), "1".to_owned())]);
        let other = read_plain(&flags("http://h/", "a=1"), &[("Host", "other")]).unwrap();
        assert_eq!(other.headers, [("Host".to_owned(), "other".to_owned())]);
    }

    #[test]
    fn credentials_in_a_url_become_a_header() {
        let template = read_plain(&flags("http://me:p%40ss@127.0.0.1:1/x", "a"), &[]).unwrap();
        assert_eq!(template.url, "http://127.0.0.1:1/x");
        assert_eq!(template.headers, [("Authorization".to_owned(), "Basic bWU6cEBzcw==".to_owned())]);
        let own = read_plain(&flags("http://me:pass@h/", "a"), &[("authorization", "Bearer t")]).unwrap();
        assert_eq!(own.headers, [("authorization".to_owned(), "Bearer t".to_owned())]);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_without_repeating_a_secret() {
        for url in ["ftp://h/", "http://", "http:///x", "http://me:s3cret@h:x/", "http://h:99999999/"] {
            let said = read_plain(&flags(url, ""), &[]).unwrap_err();
            assert!(
                said.contains("write http://HOST:PORT/PATH") && !said.contains("s3cret"),
                "{url}: {said}"
            );
        }
        let said = read_plain(&flags("http://h/", ""), &[("X-Token", "s3cret\r\nX: y")]).unwrap_err();
        assert!(said.contains("X-Token") && !said.contains("s3cret"), "{said}");
        assert!(header("no colon").is_err() && header("a b: c").is_err());
        let bad = Source::Flags { method: Some("PO ST".into()), url: "http://h/".into(), data: None };
        assert!(read_plain(&bad, &[]).unwrap_err().contains("PO ST"));
    }

    #[test]
    fn a_tag_can_be_put_into_a_json_body() {
        let tagged = |body: &str, at: &str| read(&flags("http://h/", body), &[], "k", Some(at));
        assert_eq!(tagged(r#"{"a":{"b":1}}"#, "/a/b").unwrap().body, r#"{"a":{"b":"{tag}"}}"#);
        assert_eq!(tagged(r#"{"a":[1]}"#, "/a/0").unwrap().body, r#"{"a":["{tag}"]}"#);
        assert_eq!(tagged("{}", "/x~1y").unwrap().body, r#"{"x/y":"{tag}"}"#);
        for (body, at) in [("a=1", "/a"), ("{}", "a"), ("{}", "/a/b"), ("[]", "/0"), ("1", "/a")] {
            assert!(tagged(body, at).is_err(), "{body} {at}");
        }
    }

    #[test]
    fn each_kind_of_file_is_read_and_a_mistake_names_it() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        write("body.json", r#"{"from":"file"}"#);
        let curl = Source::Curl(write("request.sh", "curl http://h/ --json @body.json"));
        assert_eq!(read_plain(&curl, &[]).unwrap().body, r#"{"from":"file"}"#);
        let http = Source::Http { file: write("r.http", "PUT http://h/\n\n< body.json"), name: None };
        assert_eq!(read_plain(&http, &[]).unwrap().method, "PUT");
        let api = write("api.json", r#"{"openapi":"3.1.0","paths":{"/x":{"post":{"operationId":"x"}}}}"#);
        let server = Some("http://127.0.0.1:9".into());
        let api = Source::OpenApi { file: api, operation: "x".into(), server };
        assert_eq!(read_plain(&api, &[]).unwrap().url, "http://127.0.0.1:9/x");
        let bad = Source::Curl(write("bad.sh", "curl -F a=b http://h/"));
        let said = read_plain(&bad, &[]).unwrap_err();
        assert!(said.contains("bad.sh") && said.contains("-F"), "{said}");
        let missing = Source::Curl(place.path().join("none.sh"));
        assert!(read_plain(&missing, &[]).unwrap_err().contains("none.sh"));
        assert!(data("@/none/such").unwrap_err().contains("/none/such"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_brings_a_reader_down(text in "[\\PC\\n\"'\\\\$#{}<>@:|&? -]{0,80}") {
            let none = |_: &str| None;
            let here = Path::new(".");
            let _ = curl::read(&format!("curl {text}"), here, &none);
            let _ = http_file::read(&text, None, here, &none);
            let _ = http_file::read(&format!("@a={text}\nPOST http://h/{{{{a}}}}\nx:{text}\n\n{text}"), None, here, &none);
            let _ = openapi::read(&text, "x", None);
            let _ = yaml::read(&text);
            let _ = header(&text);
            let _ = with_tag(br#"{"a":[1]}"#, &text);
            if let Ok((url, _)) = target(&text) {
                proptest::prop_assert!(super::super::safety::host_and_port(&url).is_some(), "{url}");
            }
            let _ = super::super::safety::url_shown(&text);
        }
    }
}
