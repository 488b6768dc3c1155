//! What can be said on the command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use http::Uri;
use semel::consumer;
use semel::inbox::{Ids, Retention};
use semel::sources::nats;

use super::call::Target;
use crate::config::value::duration;

pub(crate) const HELP: &str = "\
Examples:
  semel consume --from nats://127.0.0.1:4222/ORDERS --to http://127.0.0.1:3000/orders --group shop
  semel consume --from nats://127.0.0.1:4222/ORDERS?subject=orders.paid --to http://127.0.0.1:3000/paid \\
      --group mailer --store postgres://semel@db/shop

Each message is a POST with Idempotency-Key = its id. 2xx is done; 4xx but 408, 409, 425 and 429 is a dead
letter, and later messages of its key wait behind it; anything else is tried again. A crash between call
and result calls again with the same key. `semel inbox` shows and judges dead letters.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// `nats://HOST:PORT/STREAM[?subject=S&durable=D]` or `kafka://HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]`
    #[arg(long, value_name = "URL", env = "SEMEL_FROM", hide_env_values = true)]
    from: String,
    /// The service to call
    // Parsed later: an error of the command line would repeat it, password and all.
    #[arg(long, value_name = "URL")]
    to: String,
    /// Where the ledger is: `sqlite:PATH`, `postgres://…` or `mysql://…`
    #[arg(long, env = "SEMEL_STORE", default_value = "sqlite:semel.db", hide_env_values = true)]
    pub(super) store: String,
    /// Who consumes: each group gets every message once
    #[arg(long, value_name = "NAME")]
    pub(super) group: String,
    /// The header that holds a message's id, instead of semel-id, Nats-Msg-Id or ce-id
    #[arg(long, value_name = "NAME")]
    id_header: Option<String>,
    /// Most messages written down together
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    batch: usize,
    /// Most calls at once; those of one key are made one after the other
    #[arg(long, default_value_t = 8, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// How long one call may take
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration)]
    timeout: Duration,
    /// How often a message is tried before it is a dead letter
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    tries: u32,
    /// The longest pause between two tries
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = duration)]
    pause_max: Duration,
    /// How long the ledger remembers a message
    #[arg(long, default_value = "15d", value_name = "TIME", value_parser = duration)]
    ledger_kept: Duration,
    /// How long dead letters of producers are kept, and may be published again
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = duration)]
    dead_letters_kept: Duration,
    /// How long after its first delivery a message may come again, if the broker does not say
    #[arg(long, value_name = "TIME", value_parser = duration)]
    redelivery: Option<Duration>,
    /// A CA certificate to trust, too
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    #[command(flatten)]
    pub(super) metrics: crate::metrics::Metrics,
    /// What is logged, as in `info,semel=debug`
    #[arg(long, default_value = "info", env = "SEMEL_LOG")]
    pub(super) log: String,
    /// Log JSON
    #[arg(long)]
    pub(super) log_json: bool,
}

/// Where messages come from.
pub(super) enum Origin {
    Nats {
        server: String,
        options: nats::Options,
    },
    #[cfg(feature = "kafka")]
    Kafka {
        options: semel::sources::kafka::Options,
    },
}

impl Arguments {
    pub(super) fn from(&self) -> anyhow::Result<Origin> {
        let (scheme, rest) =
            self.from.split_once("://").context("--from needs a scheme: nats:// or kafka://")?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, name) = place.split_once('/').context("--from needs a stream or topic after the host")?;
        if name.is_empty() || hosts.is_empty() {
            bail!("--from needs a host and, after a `/`, a stream or topic");
        }
        match scheme {
            "nats" | "tls" => {
                let options = self.nats(name, query)?;
                Ok(Origin::Nats { server: format!("{scheme}://{hosts}"), options })
            }
            #[cfg(feature = "kafka")]
            "kafka" => {
                let topics = name.split(',').map(str::to_owned).collect();
                let options = semel::sources::kafka::Options::new(hosts, topics, &self.group);
                Ok(Origin::Kafka { options })
            }
            #[cfg(not(feature = "kafka"))]
            "kafka" => bail!("this build has no Kafka: build it with the feature `kafka`"),
            _ => bail!("the scheme of --from is not known; it is nats:// or kafka://"),
        }
    }

    fn nats(&self, stream: &str, query: &str) -> anyhow::Result<nats::Options> {
        let mut options = nats::Options::new(stream, &self.group);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').with_context(|| format!("`{pair}` in --from has no value"))?;
            match name {
                "subject" => options.subjects.push(value.to_owned()),
                "durable" => options.durable = value.to_owned(),
                "ack_wait" => {
                    options.ack_wait = duration(value).map_err(|why| anyhow::anyhow!("ack_wait: {why}"))?;
                }
                _ => bail!("`{name}` in --from is not known; there are subject, durable and ack_wait"),
            }
        }
        options.double_ack = true;
        Ok(options)
    }

    /// Without user and password.
    pub(super) fn shown_from(&self) -> String {
        match (self.from.split_once("://"), self.from.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
            _ => self.from.clone(),
        }
    }

    /// Never repeats the address, which may hold a password.
    pub(super) fn target(&self) -> anyhow::Result<Target> {
        let url = self.to.parse::<Uri>().ok();
        let is_web = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some();
        let Some(url) = url.filter(is_web) else {
            bail!("--to is no address: it needs http:// or https://, and a host");
        };
        Ok(Target { url, timeout: self.timeout, concurrency: self.concurrency.into() })
    }

    pub(super) fn options(&self) -> consumer::Options {
        consumer::Options {
            batch_max: self.batch,
            ids: Ids { header: self.id_header.as_ref().map(|name| name.to_ascii_lowercase()) },
            retention: Retention {
                ledger: self.ledger_kept,
                dead_letters: self.dead_letters_kept,
                redelivery: self.redelivery,
            },
            tries_max: self.tries,
            pause_max: self.pause_max,
            ..consumer::Options::new(&self.group)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(to: &str) -> Arguments {
        let from = "nats://u:hunter2@h:4222/S";
        Line::try_parse_from(["consume", "--from", from, "--to", to, "--group", "g"]).unwrap().arguments
    }

    #[test]
    fn an_address_that_is_none_is_refused_and_not_repeated() {
        for to in ["http://u:hunter2 @h/", "ftp://u:hunter2@h/", "hunter2"] {
            let refused = arguments(to).target().err().unwrap();
            assert!(!format!("{refused:?}").contains("hunter2"), "{refused:?}");
        }
    }

    #[test]
    fn addresses_are_shown_without_credentials() {
        let arguments = arguments("https://u:hunter2@shop:8443/orders?token=hunter2");
        assert_eq!(arguments.shown_from(), "nats://h:4222/S");
        assert_eq!(arguments.target().unwrap().shown(), "https://shop:8443/orders");
    }
}
