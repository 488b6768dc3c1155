//! Transactions that stand still and hold the server's horizon back, as a forgotten session or a backup does.

use anyhow::Result;
use semel_core::Nonce;

use super::shop::connect;

/// Where such transactions are held.
pub(super) struct Pins {
    url: String,
    elsewhere: String,
}

/// Two of them, until they are released.
pub(super) struct Held([tokio_postgres::Client; 2]);

impl Pins {
    /// Makes another database on the same server.
    pub(super) async fn new(url: &str) -> Result<Self> {
        let name = format!("elsewhere_{}", Nonce::random());
        connect(url).await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        let (base, rest) = url.rsplit_once('/').unwrap_or((url, ""));
        let settings = rest.split_once('?').map_or("", |(_, settings)| settings);
        Ok(Self { url: url.to_owned(), elsewhere: format!("{base}/{name}?{settings}") })
    }

    /// An idle transaction with an id in the other database, and a snapshot in this one.
    pub(super) async fn hold(&self) -> Result<Held> {
        let (other, this) = (connect(&self.elsewhere).await?, connect(&self.url).await?);
        other.batch_execute("BEGIN; SELECT pg_current_xact_id()").await?;
        this.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await?;
        Ok(Held([other, this]))
    }
}

impl Held {
    pub(super) async fn release(self) -> Result<()> {
        for client in self.0 {
            client.batch_execute("ROLLBACK").await?;
        }
        Ok(())
    }
}
