//! A curl command line, as copied from a browser or a page of documentation.
//!
//! It is read as a shell and curl would read it, as far as the request goes. A flag that would change
//! the request and is not understood is refused by name: a test of another request proves nothing.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Draft, words};

/// What a form leaves as it is.
const FORM: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Flags without a value that say how curl works, not what it sends.
const PLAIN: &[&str] = &[
    "-#",
    "-0",
    "-4",
    "-6",
    "-L",
    "-N",
    "-S",
    "-f",
    "-g",
    "-i",
    "-k",
    "-q",
    "-s",
    "-v",
    "--compressed",
    "--disable",
    "--fail",
    "--fail-with-body",
    "--globoff",
    "--http1.0",
    "--http1.1",
    "--http2",
    "--http2-prior-knowledge",
    "--include",
    "--insecure",
    "--ipv4",
    "--ipv6",
    "--location",
    "--no-buffer",
    "--no-progress-meter",
    "--path-as-is",
    "--progress-bar",
    "--retry-all-errors",
    "--retry-connrefused",
    "--show-error",
    "--silent",
    "--tlsv1.2",
    "--tlsv1.3",
    "--verbose",
];

/// The same, with a value.
const VALUED: &[&str] = &[
    "-D",
    "-c",
    "-m",
    "-o",
    "-w",
    "--connect-timeout",
    "--cookie-jar",
    "--dump-header",
    "--max-time",
    "--output",
    "--retry",
    "--retry-delay",
    "--retry-max-time",
    "--trace",
    "--trace-ascii",
    "--write-out",
];

/// Short flags of curl that take a value, understood or not: the rest of their word is that value.
const SHORT_VALUED: &str = "ADCEFHKPQTUXYbcdehmortuwxyz";

/// The request of a command line. Files named in it are read from `near`.
pub(super) fn read(
    text: &str,
    near: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Draft, String> {
    let mut words = words::split(text, variable)?.into_iter();
    match words.next().as_deref() {
        Some("curl" | "curl.exe") => {}
        Some(other) => return Err(format!("a curl command begins with `curl`, this one with `{other}`")),
        None => return Err("there is no curl command in it".into()),
    }
    let mut command = Command::new(near);
    while let Some(word) = words.next() {
        command.take(&word, &mut words)?;
    }
    command.draft()
}

struct Command<'a> {
    near: &'a Path,
    url: Option<String>,
    method: Option<String>,
    headers: Vec<(String, String)>,
    /// Headers curl sends by itself unless others are given.
    own: Vec<(String, String)>,
    removed: Vec<String>,
    data: Option<Vec<u8>>,
    query: Vec<String>,
    in_query: bool,
    head: bool,
}

impl<'a> Command<'a> {
    fn new(near: &'a Path) -> Self {
        Self {
            near,
            url: None,
            method: None,
            headers: Vec::new(),
            own: Vec::new(),
            removed: Vec::new(),
            data: None,
            query: Vec::new(),
            in_query: false,
            head: false,
        }
    }

    fn take(&mut self, word: &str, rest: &mut dyn Iterator<Item = String>) -> Result<(), String> {
        if word.len() < 2 || !word.starts_with('-') {
            return self.url(word);
        }
        if word.starts_with("--") {
            return self.flag(word, rest);
        }
        // Short flags stand together: -sSLX POST, -XPOST.
        for (at, letter) in word.char_indices().skip(1) {
            let flag = format!("-{letter}");
            if !SHORT_VALUED.contains(letter) {
                self.flag(&flag, rest)?;
                continue;
            }
            let attached = &word[at + letter.len_utf8()..];
            return match attached {
                "" => self.flag(&flag, rest),
                value => self.flag(&flag, &mut std::iter::once(value.to_owned())),
            };
        }
        Ok(())
    }

    fn flag(&mut self, flag: &str, rest: &mut dyn Iterator<Item = String>) -> Result<(), String> {
        if PLAIN.contains(&flag) {
            return Ok(());
        }
        let mut value =
            || rest.next().ok_or_else(|| format!("curl's {flag} needs a value, and the command ends"));
        match flag {
            "-X" | "--request" => self.method = Some(value()?),
            "-H" | "--header" => self.header(&value()?)?,
            "-d" | "--data" | "--data-ascii" => {
                let data = self.file_or(value()?, Lines::Joined)?;
                self.form(data);
            }
            "--data-raw" => self.form(value()?.into_bytes()),
            "--data-binary" => {
                let data = self.file_or(value()?, Lines::Kept)?;
                self.form(data);
            }
            "--data-urlencode" => {
                let data = self.encoded(&value()?)?;
                self.form(data.into_bytes());
            }
            "--json" => {
                let data = self.file_or(value()?, Lines::Kept)?;
                self.data.get_or_insert_default().extend(data);
                self.own = vec![
                    ("Content-Type".into(), "application/json".into()),
                    ("Accept".into(), "application/json".into()),
                ];
            }
            "-u" | "--user" => {
                let credentials = format!("Basic {}", STANDARD.encode(value()?));
                self.headers.push(("Authorization".into(), credentials));
            }
            "--oauth2-bearer" => self.headers.push(("Authorization".into(), format!("Bearer {}", value()?))),
            "-b" | "--cookie" => self.cookie(value()?)?,
            "-A" | "--user-agent" => self.headers.push(("User-Agent".into(), value()?)),
            "-e" | "--referer" => self.headers.push(("Referer".into(), value()?)),
            "--url" => {
                let url = value()?;
                self.url(&url)?;
            }
            "--url-query" => self.query.push(value()?),
            "-G" | "--get" => self.in_query = true,
            "-I" | "--head" => self.head = true,
            valued if VALUED.contains(&valued) => drop(value()?),
            _ => {
                return Err(format!(
                    "curl's {flag} is not understood here, and it could change the request; leave it out if it \
                     does not, or give the request with -X, -H and -d"
                ));
            }
        }
        Ok(())
    }

    fn url(&mut self, url: &str) -> Result<(), String> {
        match self.url.replace(url.to_owned()) {
            Some(_) => Err("the curl command has two URLs; one request is tested at a time".into()),
            None => Ok(()),
        }
    }

    fn header(&mut self, text: &str) -> Result<(), String> {
        if text.starts_with('@') {
            return Err("curl's -H @FILE is not understood here; write the headers out".into());
        }
        // `Name;` is curl's way to send an empty header, `Name:` to leave one of its own out.
        if let Some(name) = text.strip_suffix(';').filter(|name| !name.contains(':')) {
            self.headers.push((name.to_owned(), String::new()));
            return Ok(());
        }
        let (name, value) =
            text.split_once(':').ok_or("curl's -H is written 'Name: value', and here one has no colon")?;
        match value.trim() {
            "" => self.removed.push(name.trim().to_owned()),
            value => self.headers.push((name.trim().to_owned(), value.to_owned())),
        }
        Ok(())
    }

    fn cookie(&mut self, value: String) -> Result<(), String> {
        if !value.contains('=') {
            return Err("curl's -b FILE reads cookies from a file, which is not understood here; \
                 write -b 'name=value'"
                .into());
        }
        self.headers.push(("Cookie".into(), value));
        Ok(())
    }

    /// More data of a form: curl joins pieces with `&`.
    fn form(&mut self, more: Vec<u8>) {
        if let Some(data) = &mut self.data {
            data.push(b'&');
            data.extend(more);
        } else {
            self.data = Some(more);
        }
        if self.own.is_empty() {
            self.own = vec![("Content-Type".into(), "application/x-www-form-urlencoded".into())];
        }
    }

    fn file_or(&self, value: String, lines: Lines) -> Result<Vec<u8>, String> {
        let Some(file) = value.strip_prefix('@') else { return Ok(value.into_bytes()) };
        let mut data = super::read_bytes(&self.near.join(file))?;
        if lines == Lines::Joined {
            data.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
        }
        Ok(data)
    }

    /// `content`, `=content`, `name=content`, `@file`, `name@file`.
    fn encoded(&self, value: &str) -> Result<String, String> {
        let encode = |text: &str| utf8_percent_encode(text, FORM).to_string();
        let Some(at) = value.find(['=', '@']) else { return Ok(encode(value)) };
        let (name, content) = (&value[..at], &value[at + 1..]);
        let content = match value.as_bytes()[at] {
            b'@' => super::read_text(&self.near.join(content))?,
            _ => content.to_owned(),
        };
        // The tag is put in later, and is plain.
        let content = encode(&content).replace("%7Btag%7D", "{tag}");
        Ok(if name.is_empty() { content } else { format!("{name}={content}") })
    }

    fn draft(mut self) -> Result<Draft, String> {
        let mut url = self.url.ok_or("the curl command has no URL")?;
        let mut query = self.query;
        if self.in_query
            && let Some(data) = self.data.take()
        {
            query.push(
                String::from_utf8(data).map_err(|_| "curl's -G puts data in the URL, and it is no text")?,
            );
            self.own.clear();
        }
        for more in query {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&more);
        }
        let method = match self.method {
            Some(method) => method,
            None if self.head => "HEAD".into(),
            None if self.data.is_some() => "POST".into(),
            None => "GET".into(),
        };
        let given = |name: &str| self.headers.iter().any(|(there, _)| there.eq_ignore_ascii_case(name));
        let removed = |name: &str| self.removed.iter().any(|there| there.eq_ignore_ascii_case(name));
        let own: Vec<_> =
            self.own.iter().filter(|(name, _)| !given(name) && !removed(name)).cloned().collect();
        let headers = self.headers.into_iter().chain(own).collect();
        Ok(Draft { method: Some(method), url, headers, body: self.data.unwrap_or_default() })
    }
}

/// What becomes of line ends in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    Joined,
    Kept,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    fn draft(text: &str) -> Draft {
        read(text, Path::new("."), &none).unwrap()
    }

    fn refused(text: &str) -> String {
        read(text, Path::new("."), &none).unwrap_err()
    }

    fn header<'a>(draft: &'a Draft, name: &str) -> Vec<&'a str> {
        let of = draft.headers.iter().filter(|(there, _)| there.eq_ignore_ascii_case(name));
        of.map(|(_, value)| value.as_str()).collect()
    }

    #[test]
    fn a_request_copied_from_a_browser_is_read_whole() {
        let copied = r#"curl 'http://127.0.0.1:3000/pay?x=1&y=2' \
  -H 'accept: */*' \
  -H 'content-type: application/json' \
  -b 'session=a; theme=dark' \
  --data-raw $'{"note":"it\'s \u0021 caf\xc3\xa9\n","reference":"{tag}"}' \
  --compressed --insecure
"#;
        let draft = draft(copied);
        assert_eq!(draft.method.as_deref(), Some("POST"));
        assert_eq!(draft.url, "http://127.0.0.1:3000/pay?x=1&y=2");
        assert_eq!(header(&draft, "content-type"), ["application/json"]);
        assert_eq!(header(&draft, "cookie"), ["session=a; theme=dark"]);
        assert_eq!(draft.body, "{\"note\":\"it's ! café\n\",\"reference\":\"{tag}\"}".as_bytes());
    }

    #[test]
    fn short_flags_stand_together_and_hold_their_values() {
        let draft = draft(r#"curl -sSLXPUT -H"X-A: 1" -uname:pass -d'a=1' -d b=2 --url http://h/ | jq ."#);
        assert_eq!(draft.method.as_deref(), Some("PUT"));
        assert_eq!(header(&draft, "x-a"), ["1"]);
        assert_eq!(header(&draft, "authorization"), ["Basic bmFtZTpwYXNz"]);
        assert_eq!(header(&draft, "content-type"), ["application/x-www-form-urlencoded"]);
        assert_eq!(draft.body, b"a=1&b=2");
    }

    #[test]
    fn json_brings_its_headers_unless_others_are_given() {
        let plain = draft(r#"curl --json '{"a":' --json '1}' http://h/"#);
        assert_eq!(plain.body, br#"{"a":1}"#);
        assert_eq!(header(&plain, "accept"), ["application/json"]);
        let own = draft(r#"curl --json '{}' -H 'Content-Type: application/x+json' -H 'Accept:' http://h/"#);
        assert_eq!(header(&own, "content-type"), ["application/x+json"]);
        assert!(header(&own, "accept").is_empty());
    }

    #[test]
    fn data_can_come_from_files_and_go_into_the_query() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("body"), "a=1\r\nb\n").unwrap();
        let near = |text: &str| read(text, place.path(), &none).unwrap();
        assert_eq!(near("curl -d @body http://h/").body, b"a=1b");
        assert_eq!(near("curl --data-binary @body http://h/").body, b"a=1\r\nb\n");
        let get = near("curl -G -d a=1 --data-urlencode 'q=x y&{tag}' http://h/?z=0");
        assert_eq!(get.url, "http://h/?z=0&a=1&q=x%20y%26{tag}");
        assert_eq!((get.method.as_deref(), get.body.len()), (Some("GET"), 0));
        assert!(header(&get, "content-type").is_empty());
        assert!(read("curl -d @none http://h/", place.path(), &none).unwrap_err().contains("none"));
    }

    #[test]
    fn a_flag_that_could_change_the_request_is_named() {
        for (text, named) in [
            ("curl -F a=b http://h/", "-F"),
            ("curl --form a=b http://h/", "--form"),
            ("curl -sT up http://h/", "-T"),
            ("curl --aws-sigv4 x http://h/", "--aws-sigv4"),
            ("curl http://h/ --next http://i/", "--next"),
            ("curl -b jar.txt http://h/", "-b FILE"),
            ("curl http://h/ http://i/", "two URLs"),
            ("curl -d", "-d"),
            ("curl -d x", "no URL"),
            ("wget http://h/", "wget"),
            ("", "no curl command"),
        ] {
            let said = refused(text);
            assert!(said.contains(named), "{text}: {said}");
        }
    }

    #[test]
    fn a_command_without_data_is_a_get_and_an_empty_header_is_sent() {
        let draft = draft("curl -H 'X-Empty;' http://h/");
        assert_eq!(draft.method.as_deref(), Some("GET"));
        assert_eq!(header(&draft, "x-empty"), [""]);
    }
}
