//! A sink from one line of configuration.

use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::{Sink, Trouble};

const FORMS: &str = "a sink is `stdout:`, `http://HOST/PATH`, `https://HOST/PATH`, `nats://HOST:PORT[/PREFIX]` or \
                     `kafka://HOST:PORT[,HOST:PORT]`";

/// Where to publish, in parts. It may hold a password, so it does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// `stdout`, `http`, `https`, `nats`, `tls` or `kafka`.
    pub scheme: String,
    /// User and password, decoded.
    pub user: Option<(String, Option<String>)>,
    /// One host, or several separated by commas.
    pub hosts: String,
    /// What follows the hosts, with its slash.
    pub path: String,
    /// What follows the question mark, decoded.
    pub query: Vec<(String, String)>,
    /// All of it, as written.
    whole: String,
}

impl Address {
    /// Takes an address apart. No error repeats it.
    pub fn parse(text: &str) -> Result<Self, Trouble> {
        let unknown = |why: &str| Trouble::Unusable(format!("{why}; {FORMS}"));
        let decoded = |text: &str| -> Result<String, Trouble> {
            let decoded = percent_decode_str(text).decode_utf8();
            Ok(decoded.map_err(|_| unknown("the address of the sink is not UTF-8"))?.into_owned())
        };
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(unknown("the address of the sink has no scheme"));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            hosts: String::new(),
            path: String::new(),
            query: Vec::new(),
            whole: text.to_owned(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            address.query.push((decoded(name)?, decoded(value)?));
        }
        match address.scheme.as_str() {
            "stdout" if rest.is_empty() => return Ok(address),
            "stdout" => return Err(unknown("`stdout:` takes nothing after the colon")),
            "http" | "https" | "nats" | "tls" | "kafka" => {}
            _ => return Err(unknown("the scheme of the sink's address is not known")),
        }
        let rest = rest.strip_prefix("//").ok_or_else(|| unknown("`//` is missing after the scheme"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        if hosts.is_empty() || hosts.split(',').any(str::is_empty) {
            return Err(unknown("the sink's address names no host"));
        }
        if let Some(user) = user {
            let (name, password) = match user.split_once(':') {
                Some((name, password)) => (name, Some(decoded(password)?)),
                None => (user, None),
            };
            address.user = Some((decoded(name)?, password));
        }
        (address.hosts, address.path) = (hosts.to_owned(), path.to_owned());
        Ok(address)
    }

    /// All of it, as written.
    #[cfg(feature = "http")]
    pub(super) fn whole(&self) -> &str {
        &self.whole
    }

    /// Refuses settings nobody reads: a typing error must not pass for a setting.
    #[cfg_attr(not(feature = "nats"), allow(dead_code))]
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Trouble> {
        match self.query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let text = format!("`{}:` takes {}, not `{name}`", self.scheme, known.join(", "));
                Err(Trouble::Unusable(text))
            }
        }
    }

    /// The last value of a setting.
    #[cfg_attr(not(any(feature = "nats", feature = "kafka")), allow(dead_code))]
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.query.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.hosts, self.path)
    }
}

/// Opens the sink an address names.
pub async fn open(address: &Address) -> Result<Arc<dyn Sink>, Trouble> {
    match address.scheme.as_str() {
        "stdout" => Ok(Arc::new(super::StdoutSink::new())),
        #[cfg(feature = "http")]
        "http" | "https" => Ok(Arc::new(super::HttpSink::new(address)?)),
        #[cfg(feature = "nats")]
        "nats" | "tls" => Ok(Arc::new(super::NatsSink::connect(address).await?)),
        #[cfg(feature = "kafka")]
        "kafka" => Ok(Arc::new(super::KafkaSink::connect(address).await?)),
        scheme => Err(Trouble::Unusable(format!("this build publishes to no `{scheme}:`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let address = Address::parse("nats://me:p%40ss@a:4222,b:4222/shop?fence=stream&x=%20").unwrap();
        assert_eq!(address.hosts, "a:4222,b:4222");
        assert_eq!(address.path, "/shop");
        assert_eq!(address.user, Some(("me".into(), Some("p@ss".into()))));
        assert_eq!(address.setting("fence"), Some("stream"));
        assert_eq!(address.setting("x"), Some(" "));
        assert!(address.only(&["fence", "x"]).is_ok());
        assert!(address.only(&["x"]).unwrap_err().to_string().contains("not `fence`"));
        assert!(Address::parse("stdout:").is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_repeating_it() {
        for text in ["", "nats", "nats:a", "nats://", "kafka://a:1,,b:2", "amqp://u:hunter2@h", "stdout:x"] {
            let refused = Address::parse(text).unwrap_err().to_string();
            assert!(refused.contains("a sink is") && !refused.contains("hunter2"), "{text}: {refused}");
        }
        let shown = format!("{:?}", Address::parse("nats://u:hunter2@h:4222").unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
