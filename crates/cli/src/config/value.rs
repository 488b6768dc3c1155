//! Texts into values: durations, sizes, addresses, headers, URLs, secrets.
//!
//! The same functions read files, variables and flags. An error is the end of a sentence that begins with
//! the place; it says what would be right, and never repeats a text that could be a secret.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, Method, StatusCode, Uri};

use super::resolved::Secret;

/// What resolving settings touches outside of them: files named by settings, variables they refer to.
pub(crate) trait Surroundings {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>>;
    fn variable(&self, name: &str) -> Option<String>;
    /// The names of all variables.
    fn variables(&self) -> Vec<String>;
}

/// This machine.
pub(crate) struct Here;

impl Surroundings for Here {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn variables(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

/// Longest duration accepted: a hundred years, which no sum of moments overflows.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// `1500ms`, `30s`, `5m`, `24h`, `7d`, and sums such as `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "`{text}` is not a duration; write a number with a unit, such as \"1500ms\", \"30s\", \"5m\", \"24h\" or \"7d\""
        )
    };
    let mut rest = text.trim();
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = leading_number(rest).ok_or_else(wrong)?;
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let factor = match unit.trim() {
            "ms" => 1,
            "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        millis = number.checked_mul(factor).and_then(|more| millis.checked_add(more)).ok_or_else(wrong)?;
        rest = after;
    }
    match Duration::from_millis(millis) {
        _ if text.trim().is_empty() => Err(wrong()),
        long if long > DURATION_MAX => Err(format!("`{text}` is over a hundred years")),
        duration => Ok(duration),
    }
}

/// The shortest form that [`duration`] reads back.
pub(crate) fn duration_text(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units: [(u128, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let whole = units.iter().find(|(unit, _)| millis != 0 && millis.is_multiple_of(*unit));
    match whole {
        Some((unit, name)) => format!("{}{name}", millis / unit),
        None if millis == 0 => "0s".into(),
        None => format!("{millis}ms"),
    }
}

/// `4096`, `64KiB`, `1MiB`, `10MB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let wrong = || {
        format!("`{text}` is not a size; write bytes, or a number with a unit such as \"64KiB\" or \"1MiB\"")
    };
    let (number, unit) = leading_number(text.trim()).ok_or_else(wrong)?;
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KB" | "kB" => 1000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(wrong)
}

/// The shortest form that [`size`] reads back.
pub(crate) fn size_text(bytes: usize) -> String {
    match [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .iter()
        .find(|(unit, _)| bytes != 0 && bytes.is_multiple_of(*unit))
    {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

fn leading_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

pub(crate) fn count(text: &str) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("`{text}` is not a number of 1 or more"))
}

pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("`{text}` is neither `true` nor `false`")),
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| {
        format!("`{text}` is not an IP address with a port; write `127.0.0.1:8080`, or `0.0.0.0:8080` for all interfaces")
    })
}

pub(crate) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("the path is empty".into()) } else { Ok(text.into()) }
}

pub(crate) fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

pub(crate) fn header(text: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(text.trim().as_bytes()).map_err(|_| format!("`{text}` is not a header name"))
}

/// Headers that belong to one connection; they are never stored, compared or added.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A header that can be kept or compared.
pub(crate) fn end_to_end_header(text: &str) -> Result<HeaderName, String> {
    let name = header(text)?;
    if HOP_BY_HOP.contains(&name.as_str()) {
        return Err(format!("`{name}` belongs to one connection and is never passed on; remove it"));
    }
    if semel::http::header::is_ours(&name) {
        return Err(format!(
            "`{name}` is in the namespace `semel-`, which is stripped on both sides; remove it"
        ));
    }
    Ok(name)
}

pub(crate) fn method(text: &str) -> Result<Method, String> {
    let upper = text.trim().to_ascii_uppercase();
    if upper != text.trim() {
        return Err(format!("methods are written in capitals: `{upper}`"));
    }
    // G-4
    match upper.as_str() {
        "GET" | "HEAD" | "OPTIONS" | "TRACE" | "CONNECT" => {
            Err(format!("{upper} never takes a key, so a route cannot protect it; remove it"))
        }
        _ => Method::from_bytes(upper.as_bytes()).map_err(|_| format!("`{text}` is not a method")),
    }
}

/// A status that says: nothing happened. Only errors can.
pub(crate) fn releasing(text: &str) -> Result<StatusCode, String> {
    let status = text.trim().parse::<u16>().ok().and_then(|code| StatusCode::from_u16(code).ok());
    match status {
        Some(status) if status.is_client_error() || status.is_server_error() => Ok(status),
        Some(status) => Err(format!(
            "{} does not say that nothing happened; only 4xx and 5xx can release",
            status.as_u16()
        )),
        None => Err(format!("`{text}` is not a status such as 429")),
    }
}

/// `http` or `https`, a host, no user, no fragment.
pub(crate) fn url(text: &str) -> Result<Uri, String> {
    let wrong = || "it is not a URL such as `http://127.0.0.1:3000`".to_owned();
    let uri: Uri = text.trim().parse().map_err(|_| wrong())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(wrong()) };
    if scheme != "http" && scheme != "https" {
        return Err(format!("`{scheme}://` is not spoken here; write `http://` or `https://`"));
    }
    if authority.as_str().contains('@') {
        return Err("a URL with a user or password in it would end up in logs; remove that part".into());
    }
    if authority.host().is_empty() || text.contains('#') {
        return Err(wrong());
    }
    Ok(uri)
}

/// Whether a URL's host is this machine.
pub(crate) fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Text that may be written `file:PATH` or `env:NAME` instead, so that it need not stand in the file.
pub(crate) fn secret(text: &str, surroundings: &dyn Surroundings) -> Result<Secret, String> {
    let value = if let Some(path) = text.strip_prefix("file:") {
        let bytes = surroundings
            .read(Path::new(path))
            .map_err(|error| format!("the secret in {path} cannot be read: {error}"))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("the secret in {path} is not text"))?;
        // Editors end a file with a newline that nobody meant.
        let text = text.strip_suffix('\n').unwrap_or(&text);
        text.strip_suffix('\r').unwrap_or(text).to_owned()
    } else if let Some(name) = text.strip_prefix("env:") {
        surroundings.variable(name).ok_or_else(|| format!("the variable {name} is not set"))?
    } else {
        text.to_owned()
    };
    if value.is_empty() { Err("the secret is empty".into()) } else { Ok(Secret(value)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_come_back_as_written() {
        for (text, millis) in [
            ("1500ms", 1500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(
                duration(&duration_text(Duration::from_millis(millis))),
                Ok(Duration::from_millis(millis))
            );
        }
        for wrong in
            ["", "30", "s", "-1s", "1.5s", "30 seconds", "1s1", "99999999999999999999s", "200000d", "1h-3m"]
        {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_bytes_unless_a_unit_says_otherwise() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("10MB"), Ok(10_000_000));
        assert_eq!(size_text(1 << 20), "1MiB");
        assert_eq!(size_text(1000), "1000");
        for wrong in ["", "MiB", "1mb", "-1", "1.5MiB", "99999999999GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn statuses_of_success_cannot_release() {
        // G-16
        assert!(releasing("200").unwrap_err().contains("only 4xx and 5xx"));
        assert!(releasing("429").is_ok() && releasing("503").is_ok());
        assert!(releasing("99").is_err() && releasing("teapot").is_err());
    }

    #[test]
    fn methods_that_never_take_a_key_cannot_be_listed() {
        // G-4
        for never in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert!(method(never).unwrap_err().contains("never takes a key"), "{never}");
        }
        assert!(method("post").unwrap_err().contains("POST"));
        assert!(method("PUT").is_ok() && method("A B").is_err());
    }

    #[test]
    fn urls_with_passwords_are_refused_without_repeating_them() {
        let refused = url("http://user:hunter2@host/").unwrap_err();
        assert!(!refused.contains("hunter2"), "{refused}");
        for wrong in ["host:80", "/path", "ftp://host", "http://", "", "http://h/#x"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }
}
