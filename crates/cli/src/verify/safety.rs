//! What a run must not do: reach a machine that nobody said is theirs, or print a credential.

mod command;

use std::net::IpAddr;
use std::time::Duration;

use http::Uri;

use super::template::TAG;
pub(crate) use command::{command_secrets, command_shown};

/// Stands where a secret was.
pub(crate) const HIDDEN: &str = "(hidden)";
/// How long a name is looked up.
const LOOKUP_MAX: Duration = Duration::from_secs(10);

/// Host and port of a URL that [`super::inputs::target`] accepted.
pub(crate) fn host_and_port(url: &str) -> Option<(String, u16)> {
    let uri: Uri = url.replace(TAG, "t-0").parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    Some((host, port))
}

/// Refuses what is not this machine. A name is looked up, and all its addresses count.
pub(crate) async fn only_this_machine(url: &str) -> Result<(), String> {
    let Some((host, port)) = host_and_port(url) else {
        return Err(format!("{} has no host", url_shown(url)));
    };
    let looked_up = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((host.as_str(), port))).await;
    let addresses: Vec<IpAddr> = match looked_up {
        Ok(Ok(found)) => found.map(|address| address.ip().to_canonical()).collect(),
        Ok(Err(error)) => return Err(format!("`{host}` cannot be found: {error}")),
        Err(_) => return Err(format!("`{host}` was not found within {}s", LOOKUP_MAX.as_secs())),
    };
    match addresses.iter().find(|address| !address.is_loopback()) {
        _ if addresses.is_empty() => Err(format!("`{host}` has no address")),
        None => Ok(()),
        Some(other) => Err(format!(
            "`{host}` is {other}, not this machine. These checks send thousands of requests, race them and \
             break connections; if the target is yours to treat so, say --i-own-this-target"
        )),
    }
}

/// Whether what carries this name proves who somebody is. The idempotency key is no secret: reports are about it.
pub(crate) fn is_secret(name: &str) -> bool {
    /// Anywhere in a name.
    const WORDS: [&str; 14] = [
        "auth",
        "bearer",
        "cookie",
        "credential",
        "hmac",
        "jwt",
        "key",
        "passw",
        "pwd",
        "secret",
        "session",
        "signature",
        "token",
        "userinfo",
    ];
    /// Between its marks only, since longer words hold them: a design is no secret.
    const PARTS: [&str; 6] = ["otp", "pass", "pin", "private", "pw", "sig"];
    let lower = name.to_ascii_lowercase();
    if lower.contains("idempoten") {
        return false;
    }
    WORDS.iter().any(|word| lower.contains(word)) || parts(name).any(|part| PARTS.contains(&part.as_str()))
}

/// `X-Sig`, `x_sig` and `accessSig` all have the part `sig`.
fn parts(name: &str) -> impl Iterator<Item = String> {
    let mut spaced = String::new();
    let mut was_small = false;
    for one in name.chars() {
        if was_small && one.is_ascii_uppercase() {
            spaced.push(' ');
        }
        was_small = one.is_ascii_lowercase() || one.is_ascii_digit();
        spaced.push(if one.is_ascii_alphanumeric() { one.to_ascii_lowercase() } else { ' ' });
    }
    let parts: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    parts.into_iter()
}

/// A URL as it may be shown: without user and password, and without the values of its query.
pub(crate) fn url_shown(url: &str) -> String {
    let (before, query) = match url.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (url, None),
    };
    let (scheme, rest) = before.split_once("://").map_or(("", before), |(scheme, rest)| (scheme, rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let mut shown =
        if scheme.is_empty() { format!("{host}{path}") } else { format!("{scheme}://{host}{path}") };
    if let Some(query) = query {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) if value == TAG => format!("{name}={TAG}"),
            Some((name, _)) => format!("{name}={HIDDEN}"),
            None => HIDDEN.to_owned(),
        });
        shown = format!("{shown}?{}", pairs.collect::<Vec<_>>().join("&"));
    }
    shown
}

/// All secrets of a run, to take them out of texts that others wrote: output of commands, errors, answers.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    /// Those in headers and URLs.
    pub(crate) fn of<'a>(
        headers: impl Iterator<Item = &'a (String, String)>,
        urls: impl Iterator<Item = &'a str>,
        key_header: &str,
    ) -> Self {
        let is_secret = |name: &str| is_secret(name) && !name.eq_ignore_ascii_case(key_header);
        let mut found = Vec::new();
        for (_, value) in headers.filter(|(name, _)| is_secret(name)) {
            found.push(value.clone());
            // `Bearer x`: the token alone, too. Cookies: each value.
            found.extend(
                value.split([' ', ';']).filter_map(|part| Some(part.trim().split_once('=')?.1.to_owned())),
            );
            found.extend(value.split_once(' ').map(|(_, token)| token.to_owned()));
        }
        for url in urls {
            let query = url.split_once('?').map_or("", |(_, query)| query);
            let values =
                query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value.to_owned());
            found.extend(values.filter(|value| !value.contains(TAG)));
        }
        Self::sorted(found)
    }

    /// These, and those in a command.
    pub(crate) fn and_of_command(&self, command: &str) -> Self {
        let more = command_secrets(command).map(str::to_owned);
        Self::sorted(self.0.iter().cloned().chain(more).collect())
    }

    fn sorted(mut found: Vec<String>) -> Self {
        // Short values are words of their own right; taking them out would make holes everywhere.
        found.retain(|secret| secret.len() >= 6);
        // The longest first, so that no rest of one stays.
        found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(found)
    }

    /// The text without them.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), HIDDEN))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} secrets", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loopback_is_this_machine() {
        for url in [
            "http://127.0.0.1:1/",
            "http://127.9.9.9/x",
            "http://[::1]:8080/",
            "http://localhost:3000/?a=1",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert_eq!(only_this_machine(url).await, Ok(()), "{url}");
        }
        for url in [
            "http://192.0.2.7/",
            "https://[2001:db8::1]/x",
            "http://0.0.0.0:1/",
            "http://10.0.0.1/",
            "http://[::]/",
        ] {
            let said = only_this_machine(url).await.unwrap_err();
            assert!(said.contains("--i-own-this-target"), "{url}: {said}");
        }
        assert!(
            only_this_machine("http://no-such-host.invalid/")
                .await
                .unwrap_err()
                .contains("no-such-host.invalid")
        );
    }

    #[test]
    fn credentials_are_hidden_and_the_key_is_not() {
        for name in [
            "Authorization",
            "Proxy-Authorization",
            "COOKIE",
            "X-Auth-Token",
            "x-api-key",
            "Stripe-Signature",
            "client_secret",
            "X-JWT",
            "bearer",
            "pwd",
            "passwd",
            "sig",
            "X-Hub-Sig",
            "accessSig",
            "x_hmac",
            "apikey",
            "api-key",
            "session",
            "credentials",
            "X-Private",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in
            ["Idempotency-Key", "idempotency-key", "Content-Type", "X-Order", "design", "assigned", "opinion"]
        {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn urls_are_shown_without_users_and_values() {
        for (url, shown) in [
            (
                "http://me:pass@h:1/a/{tag}?token=s3cret&r={tag}&flag#x",
                "http://h:1/a/{tag}?token=(hidden)&r={tag}&(hidden)",
            ),
            ("https://h/plain", "https://h/plain"),
            ("http://h/?q=a@b/c", "http://h/?q=(hidden)"),
        ] {
            assert_eq!(url_shown(url), shown);
        }
    }

    #[test]
    fn secrets_are_taken_out_of_what_others_wrote() {
        let headers = [
            ("Authorization".to_owned(), "Bearer abcdef0123".to_owned()),
            ("Cookie".to_owned(), "session=qwertyuiop; a=b".to_owned()),
            ("X-Order".to_owned(), "stays-here".to_owned()),
        ];
        let secrets = Secrets::of(headers.iter(), ["http://h/?api=zyxwvu987&r={tag}"].into_iter(), "k");
        let text = "stays-here abcdef0123 qwertyuiop zyxwvu987 Bearer abcdef0123 a=b";
        assert_eq!(secrets.hide(text), "stays-here (hidden) (hidden) (hidden) (hidden) a=b");
        assert!(!format!("{secrets:?}").contains("abcdef"));
    }
}
