//! An answer as an operator writes it down, for an operation that happened.

use std::path::Path;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel::Outcome;
use semel::outcome::{Body, Line};
use semel::policy::DEFAULTS;
use serde_json::{Value, json};

/// Headers that belong to one connection or to Semel, not to an answer.
const FOREIGN: &[&str] = &[
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Status, headers and body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Written {
    pub(super) fn new(
        status: u16,
        headers: Vec<(String, String)>,
        body_file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let body = body_file.map_or(Ok(Vec::new()), |path| {
            std::fs::read(path).with_context(|| format!("the body cannot be read from {}", path.display()))
        })?;
        if body.len() > DEFAULTS.outcome_bytes_max {
            bail!(
                "the body has {} bytes; the most that is kept is {}",
                body.len(),
                DEFAULTS.outcome_bytes_max
            );
        }
        Ok(Self { status, headers, body })
    }

    pub(super) fn outcome(&self) -> Outcome {
        let line =
            |(name, value): &(String, String)| Line { name: name.clone(), value: value.clone().into() };
        Outcome {
            status: self.status,
            headers: self.headers.iter().map(line).collect(),
            body: Body::Kept(self.body.clone().into()),
            ..Outcome::default()
        }
    }

    /// As the admin API takes it.
    pub(super) fn json(&self) -> Value {
        let mut json = json!({ "status": self.status, "headers": self.headers });
        match std::str::from_utf8(&self.body) {
            Ok(text) => json["body"] = text.into(),
            Err(_) => json["body_base64"] = STANDARD.encode(&self.body).into(),
        }
        json
    }
}

/// Reads `name: value`.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written `name: value`")?;
    let (name, value) = (name.to_ascii_lowercase(), value.trim());
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("{name:?} is not the name of a header"));
    }
    if value.bytes().any(|byte| byte != b'\t' && (byte < b' ' || byte == 0x7f)) {
        return Err(format!("the value of {name} has a control character"));
    }
    if FOREIGN.contains(&name.as_str()) || name.starts_with("semel-") {
        return Err(format!(
            "{name} belongs to a connection or to Semel, not to a stored answer; leave it out"
        ));
    }
    Ok((name, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_name_and_a_value_that_http_can_carry() {
        assert_eq!(header("Location: /charges/7"), Ok(("location".into(), "/charges/7".into())));
        assert_eq!(header("x-empty:"), Ok(("x-empty".into(), String::new())));
        for bad in ["no colon", ": x", "a b: c", "a: b\r\nc: d", "Content-Length: 9", "Semel-Hint: decided"] {
            assert!(header(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_body_that_is_no_text_travels_as_base64() {
        let written = Written { status: 200, headers: Vec::new(), body: vec![0xff, 0] };
        assert_eq!(written.json()["body_base64"], "/wA=");
        let text = Written { body: b"{}".to_vec(), ..written };
        assert_eq!((text.json()["body"].as_str(), text.json().get("body_base64")), (Some("{}"), None));
        assert_eq!(text.outcome().body_bytes().map(|body| body.as_ref()), Some(&b"{}"[..]));
    }
}
