//! Messages: what they cost the transactions they are written in, how many a relay publishes and how soon, and
//! what a consumer's ledger costs. On private servers, beside the brokers' own producers.

mod broker;
mod budget;
mod choice;
mod consume;
mod enqueue;
mod flow;
mod kafka_to_kafka;
mod latency;
mod pins;
mod poller;
mod session;
mod shop;
mod traces;
mod watermill;

use anyhow::{Context, Result};
use mysql_async::prelude::Queryable;

use crate::Effort;
use crate::board::Board;
use crate::servers::Servers;
use broker::Broker;
pub(crate) use choice::{Choice, Word};
use pins::Pins;
use poller::Poller;
use shop::{Shop, connect};

/// Size of a message's payload, and of an order.
const PAYLOAD_BYTES: usize = 500;
/// Ordering keys that messages are spread over.
const KEYS: u64 = 10_000;
/// As on a server with some gigabytes, so that nobody is measured by checkpoints.
const SETTINGS: [&str; 3] =
    ["shared_buffers = '1GB'", "max_wal_size = '8GB'", "checkpoint_timeout = '30min'"];

pub(crate) async fn measure(effort: Effort, choice: &Choice) -> Result<Vec<Board>> {
    let servers = Servers::with(&choice.engines(), &[("SEMEL_SERVERS_KAFKA", "full")]).await?;
    // As NATS comes, it acknowledges before it syncs, as Kafka does.
    let unsynced = match choice.jetstream() {
        true => Some(Servers::with(&["nats"], &[("SEMEL_SERVERS_SYNC", "off")]).await?),
        false => None,
    };
    let jetstream = unsynced.as_ref().map(|servers| servers.env("SEMEL_TEST_NATS")).transpose()?;
    let files = tempfile::tempdir()?;
    let postgres = postgres(&servers).await?;
    let place = Place { servers: &servers, postgres, files: files.path(), choice };

    let mut boards = Vec::new();
    if choice.wants(Word::Enqueue) {
        boards.extend(enqueue::measure(effort, &place.shops("enqueue").await?).await?);
    }

    let shops = place.shops("relay").await?;
    let Shop::Postgres(url) = &shops[0] else { anyhow::bail!("Postgres comes first") };
    let (pins, poller) = (Pins::new(url).await?, Poller::new(url).await?);
    for broker in place.brokers(jetstream.as_deref())? {
        broker.prepare().await?;
        broker.warm(effort).await?;
        if choice.wants(Word::Live) {
            boards.push(flow::live(effort, &shops, &broker, &pins).await?.print());
        }
        if choice.wants(Word::Backlog) && !matches!(broker, Broker::Nowhere) {
            boards.push(flow::backlog(effort, &shops, &broker, &poller).await?.print());
        }
        if choice.wants(Word::Latency) {
            boards.push(latency::measure(effort, &shops, &broker, &pins).await?.print());
        }
    }
    if choice.wants(Word::Traces) {
        boards.push(traces::measure(url).await?.print());
    }
    if let Some(jetstream) = jetstream.filter(|_| choice.wants(Word::Consumer)) {
        let database = place.database("consume").await?;
        boards.push(consume::measure(effort, &database, &jetstream).await?.print());
    }
    if choice.wants(Word::KafkaToKafka) {
        let kafka = Broker::Kafka { address: servers.env("SEMEL_TEST_KAFKA")? };
        if !(choice.relays() && choice.wants(Word::Kafka)) {
            kafka.prepare().await?;
        }
        boards.push(kafka_to_kafka::measure(effort, &shops[0], &kafka).await?.print());
    }
    // Last, because a disk that others keep busy can take minutes for it: one database shows the pace.
    if choice.wants(Word::Synced) {
        let synced = Broker::SyncedNats { url: servers.env("SEMEL_TEST_NATS")? };
        synced.prepare().await?;
        match flow::backlog(effort, &shops[..1], &synced, &poller).await {
            Ok(board) => boards.push(board.print()),
            Err(error) => println!("{}: not measured, {error:#}\n", synced.name()),
        }
    }
    Ok(boards)
}

/// The superuser's address of a private server with the settings of the measurement.
async fn postgres(servers: &Servers) -> Result<String> {
    let url = format!("{}?sslmode=disable", servers.env("SEMEL_TEST_POSTGRES")?);
    let admin = connect(&url).await?;
    for setting in SETTINGS {
        admin.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    servers.restart_postgres()?;
    Ok(url)
}

/// Where databases are made.
struct Place<'a> {
    servers: &'a Servers,
    postgres: String,
    files: &'a std::path::Path,
    choice: &'a Choice,
}

impl Place<'_> {
    /// A database of this name on each engine, Postgres first.
    async fn shops(&self, name: &str) -> Result<Vec<Shop>> {
        let mut shops = vec![Shop::Postgres(self.database(name).await?)];
        if self.choice.engines().contains(&"mariadb") {
            let mariadb = self.servers.env("SEMEL_TEST_MARIADB")?;
            let mut admin = mysql_async::Conn::from_url(&mariadb).await?;
            admin.query_drop(format!("CREATE DATABASE bench_{name}")).await?;
            admin.disconnect().await?;
            let (base, _) = mariadb.rsplit_once('/').context("the address names a database")?;
            shops.push(Shop::Mariadb(format!("{base}/bench_{name}")));
        }
        if self.choice.wants(Word::Sqlite) {
            shops.push(Shop::Sqlite(self.files.join(name).with_extension("db")));
        }
        for shop in &shops {
            shop.prepare().await.with_context(|| format!("the tables on {}", shop.name()))?;
        }
        Ok(shops)
    }

    /// The brokers a relay is measured with.
    fn brokers(&self, jetstream: Option<&str>) -> Result<Vec<Broker>> {
        let mut brokers = Vec::new();
        if !self.choice.relays() {
            return Ok(brokers);
        }
        if self.choice.wants(Word::Nowhere) {
            brokers.push(Broker::Nowhere);
        }
        if let Some(url) = jetstream.filter(|_| self.choice.wants(Word::Jetstream)) {
            brokers.push(Broker::Nats { url: url.to_owned() });
        }
        if self.choice.wants(Word::Kafka) {
            brokers.push(Broker::Kafka { address: self.servers.env("SEMEL_TEST_KAFKA")? });
        }
        Ok(brokers)
    }

    /// A new database on Postgres.
    async fn database(&self, name: &str) -> Result<String> {
        connect(&self.postgres).await?.batch_execute(&format!("CREATE DATABASE bench_{name}")).await?;
        let (base, rest) = self.postgres.rsplit_once('/').context("the address names a database")?;
        let settings = rest.split_once('?').map_or("", |(_, settings)| settings);
        Ok(format!("{base}/bench_{name}?{settings}"))
    }
}
