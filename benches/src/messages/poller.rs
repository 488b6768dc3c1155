//! What everybody writes first: a table, SELECT … FOR UPDATE SKIP LOCKED, publish, DELETE.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use semel_workers::sinks::Parcel;

use super::PAYLOAD_BYTES;
use super::broker::Producer;
use super::shop::connect;

/// Rows read, published and deleted together.
const BATCH: i64 = 1000;
const SELECT: &str = "SELECT id, payload FROM plain_outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED";
const TABLE: &str = "CREATE TABLE plain_outbox (id bigserial PRIMARY KEY, key text, payload bytea NOT NULL)";
const FILL: &str = "INSERT INTO plain_outbox (key, payload) SELECT 'customer-' || n, $2::bytea FROM generate_series(1, $1::bigint) AS n";

pub(super) struct Poller {
    url: String,
}

impl Poller {
    pub(super) async fn new(url: &str) -> Result<Self> {
        connect(url).await?.batch_execute(TABLE).await?;
        Ok(Self { url: url.to_owned() })
    }

    pub(super) async fn fill(&self, count: u64) -> Result<()> {
        let payload = [b'x'; PAYLOAD_BYTES];
        connect(&self.url).await?.execute(FILL, &[&i64::try_from(count)?, &&payload[..]]).await?;
        Ok(())
    }

    /// Publishes all of it with the broker's own producer. `parcels` are what is sent, row by row.
    pub(super) async fn drain(&self, producer: &Producer, parcels: &[Parcel], count: u64) -> Result<f64> {
        let mut client = connect(&self.url).await?;
        let select = client.prepare(SELECT).await?;
        let delete = client.prepare("DELETE FROM plain_outbox WHERE id = ANY ($1)").await?;
        let (mut done, began) = (0_usize, Instant::now());
        while (done as u64) < count {
            let transaction = client.transaction().await?;
            let rows = transaction.query(&select, &[&BATCH]).await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            // The same bytes as everybody else's: headers and all.
            let some: Vec<Parcel> = parcels.iter().skip(done).take(rows.len()).cloned().collect();
            let some = some.into_iter().zip(&rows).map(|(parcel, row)| {
                let payload: &[u8] = row.get(1);
                Parcel { body: bytes::Bytes::copy_from_slice(payload), ..parcel }
            });
            let some: Arc<[Parcel]> = some.collect();
            producer.write(fresh(some)).await.context("the poller could not publish")?;
            transaction.execute(&delete, &[&ids]).await?;
            transaction.commit().await?;
            done += ids.len();
        }
        Ok(count as f64 / began.elapsed().as_secs_f64())
    }
}

/// Under ids of their own: what the broker has seen before it would drop, which is faster.
fn fresh(parcels: Arc<[Parcel]>) -> Arc<[Parcel]> {
    let again = parcels.iter().cloned();
    again.map(|parcel| Parcel { id: semel_core::MessageId::new(), ..parcel }).collect()
}
