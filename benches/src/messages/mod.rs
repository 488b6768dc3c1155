//! Messages: what they cost the transactions they are written in, how many a relay publishes and how soon, and
//! what a consumer's ledger costs. On private servers, beside the brokers' own producers.

mod broker;
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

use anyhow::{Context, Result};
use mysql_async::prelude::Queryable;

use crate::Effort;
use crate::board::Board;
use crate::servers::Servers;
use broker::Broker;
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

pub(crate) async fn measure(effort: Effort) -> Result<Vec<Board>> {
    let servers =
        Servers::with(&["postgres", "mariadb", "nats", "kafka"], &[("SEMEL_SERVERS_KAFKA", "full")]).await?;
    // As NATS comes, it acknowledges before it syncs, as Kafka does.
    let unsynced = Servers::with(&["nats"], &[("SEMEL_SERVERS_SYNC", "off")]).await?;
    let files = tempfile::tempdir()?;
    let postgres = postgres(&servers).await?;
    let place = Place { servers: &servers, postgres, files: files.path() };

    let mut boards = enqueue::measure(effort, &place.shops("enqueue").await?).await?;

    let shops = place.shops("relay").await?;
    let Shop::Postgres(url) = &shops[0] else { anyhow::bail!("Postgres comes first") };
    let (pins, poller) = (Pins::new(url).await?, Poller::new(url).await?);
    let kafka = Broker::Kafka { address: servers.env("SEMEL_TEST_KAFKA")? };
    let brokers = [Broker::Nats { url: unsynced.env("SEMEL_TEST_NATS")? }, kafka.clone()];
    for broker in &brokers {
        broker.prepare().await?;
        broker.warm(effort).await?;
        boards.push(flow::live(effort, &shops, broker, &pins).await?.print());
        boards.push(flow::backlog(effort, &shops, broker, &poller).await?.print());
        boards.push(latency::measure(effort, &shops, broker, &pins).await?.print());
    }
    boards.push(traces::measure(url).await?.print());

    let consumers = place.database("consume").await?;
    boards.push(consume::measure(effort, &consumers, &unsynced.env("SEMEL_TEST_NATS")?).await?.print());
    boards.push(kafka_to_kafka::measure(effort, &shops[0], &kafka).await?.print());

    // Last, because a disk that others keep busy can take minutes for it: one database shows the pace.
    let synced = Broker::SyncedNats { url: servers.env("SEMEL_TEST_NATS")? };
    synced.prepare().await?;
    match flow::backlog(effort, &shops[..1], &synced, &poller).await {
        Ok(board) => boards.push(board.print()),
        Err(error) => println!("{}: not measured, {error:#}\n", synced.name()),
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
}

impl Place<'_> {
    /// A database of this name on each engine, Postgres first.
    async fn shops(&self, name: &str) -> Result<[Shop; 3]> {
        let mariadb = self.servers.env("SEMEL_TEST_MARIADB")?;
        let mut admin = mysql_async::Conn::from_url(&mariadb).await?;
        admin.query_drop(format!("CREATE DATABASE bench_{name}")).await?;
        admin.disconnect().await?;
        let (base, _) = mariadb.rsplit_once('/').context("the address names a database")?;
        let shops = [
            Shop::Postgres(self.database(name).await?),
            Shop::Mariadb(format!("{base}/bench_{name}")),
            Shop::Sqlite(self.files.join(name).with_extension("db")),
        ];
        for shop in &shops {
            shop.prepare().await.with_context(|| format!("the tables on {}", shop.name()))?;
        }
        Ok(shops)
    }

    /// A new database on Postgres.
    async fn database(&self, name: &str) -> Result<String> {
        connect(&self.postgres).await?.batch_execute(&format!("CREATE DATABASE bench_{name}")).await?;
        let (base, rest) = self.postgres.rsplit_once('/').context("the address names a database")?;
        let settings = rest.split_once('?').map_or("", |(_, settings)| settings);
        Ok(format!("{base}/bench_{name}?{settings}"))
    }
}
