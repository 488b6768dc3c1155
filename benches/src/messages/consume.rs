//! A consumer with its ledger beside the same consumer without one: one UPDATE per message, in batches.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use async_nats::jetstream;
use futures_util::future::try_join_all;
use semel_core::MessageId;
use semel_core::error::{Error, Kind};
use semel_core::inbox::{Applied, Apply, Arrival, Batch, Failure, Inbox, Received};
use semel_core::message::Topic;
use semel_core::runtime::Tokio;
use semel_core::store::Pending;
use semel_stores::postgres::PostgresStore;
use semel_stores::postgres::inbox::{At, Handler, Joined, failure};
use semel_workers::consumer::{Consumer, Options, Source, Tally};
use semel_workers::sinks::Parcel;
use semel_workers::sources::nats::{self, Nats};
use tokio::sync::{Mutex, oneshot};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use super::PAYLOAD_BYTES;
use super::broker::{nats_context, write_nats};
use super::shop::connect;
use crate::Effort;
use crate::board::Board;

const STREAM: &str = "deliveries";
/// Rows that are updated.
const ACCOUNTS: u64 = 10_000;
const SETTLED_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(1);
const LEDGER: &str = "with ledger";
const BARE: &str = "without ledger";
const LEDGER_PLAIN: &str = "with ledger, UPDATEs one by one";
const BARE_PLAIN: &str = "without ledger, UPDATEs one by one";
const UPDATE: &str = "UPDATE account SET balance = balance + 1 WHERE id = $1";

/// How a handler sends its statements.
#[derive(Clone, Copy)]
enum Manner {
    /// All of a batch, then it waits for the answers.
    Together,
    /// It waits for each answer.
    OneByOne,
}

struct Accounts(Manner);

impl Handler for Accounts {
    async fn apply(&self, tx: &Transaction<'_>, arrival: &Arrival) -> Result<(), Failure> {
        let account = account(arrival);
        let done = tx.execute_typed(UPDATE, &[(&account, Type::INT8)]).await;
        done.map(drop).map_err(|error| failure(&error))
    }

    async fn apply_all(&self, tx: &Transaction<'_>, arrivals: &[&Arrival]) -> Result<(), At> {
        let told = |error: tokio_postgres::Error| At { index: None, failure: failure(&error) };
        match self.0 {
            Manner::OneByOne => {
                for (index, arrival) in arrivals.iter().enumerate() {
                    let failed = |failure| At { index: Some(index), failure };
                    self.apply(tx, arrival).await.map_err(failed)?;
                }
            }
            Manner::Together => {
                let update = tx.prepare_typed(UPDATE, &[Type::INT8]).await.map_err(told)?;
                let update = &update;
                let each = arrivals.iter().map(|arrival| async move {
                    let account = account(arrival);
                    tx.execute(update, &[&account]).await
                });
                try_join_all(each).await.map_err(told)?;
            }
        }
        Ok(())
    }
}

fn account(arrival: &Arrival) -> i64 {
    let number = arrival.message.payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (number % ACCOUNTS) as i64
}

/// The same handler in a transaction with nothing else.
struct Bare {
    client: Mutex<Client>,
    handler: Accounts,
}

impl Apply for Bare {
    fn apply<'a>(&'a self, batch: &'a Batch) -> Pending<'a, Applied> {
        Box::pin(async move {
            let failed = |error: tokio_postgres::Error| Error::new(Kind::Unreachable, error.to_string());
            let mut client = self.client.lock().await;
            let transaction = client.transaction().await.map_err(failed)?;
            let arrivals: Vec<&Arrival> = batch.arrivals.iter().collect();
            if let Err(At { index, failure }) = self.handler.apply_all(&transaction, &arrivals).await {
                return Ok(Applied::Failed { at: index, failure });
            }
            transaction.commit().await.map_err(failed)?;
            Ok(Applied::Committed(vec![Received::New; arrivals.len()]))
        })
    }
}

pub(super) async fn measure(effort: Effort, database: &str, server: &str) -> Result<Board> {
    let count = effort.pick(30_000, 2_000);
    let mut board =
        Board::new("Consumer on Postgres: NATS, one UPDATE per message, batches of 500", "messages/s")
            .against(BARE);
    let store = PostgresStore::connect(database).await?;
    let inbox = Arc::new(store.inbox());
    let client = connect(database).await?;
    client
        .batch_execute(
            "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 70)",
        )
        .await?;
    let rows = "INSERT INTO account SELECT n, 0 FROM generate_series(0, $1::bigint) AS n";
    client.execute(rows, &[&(ACCOUNTS as i64 - 1)]).await?;
    publish(server, count).await?;
    let mut applied = 0;
    for round in 0..effort.rounds {
        for (name, manner, ledger) in [
            (BARE, Manner::Together, false),
            (LEDGER, Manner::Together, true),
            (BARE_PLAIN, Manner::OneByOne, false),
            (LEDGER_PLAIN, Manner::OneByOne, true),
        ] {
            let apply: Arc<dyn Apply> = match ledger {
                true => Arc::new(Joined::new(inbox.clone(), Accounts(manner))),
                false => {
                    let client = Mutex::new(connect(database).await?);
                    Arc::new(Bare { client, handler: Accounts(manner) })
                }
            };
            // A group and a durable consumer of its own: each reads everything.
            let group = format!("{}-{round}", name.replace([' ', ','], "-"));
            let client = nats::connect(server).await?;
            let source = Nats::open(client, nats::Options::new(STREAM, &group)).await?;
            board.add(name, window(source, apply, inbox.clone(), &group, count).await?);
            applied += count;
        }
    }
    let sum: i64 = client.query_one("SELECT sum(balance)::bigint FROM account", &[]).await?.get(0);
    ensure!(sum == applied as i64, "{applied} messages had {sum} effects");
    store.close().await;
    let reached = board.median(LEDGER);
    board.at_least("Consumer with ledger", reached, 10_000.0, "/s");
    let share = 100.0 * reached / board.median(BARE);
    board.at_least("Consumer with ledger: share of the one without", share, 60.0, " %");
    board.note("Counted from the first tenth to the last message. Every effect was counted in the database.");
    Ok(board)
}

async fn publish(server: &str, count: u64) -> Result<()> {
    let context = nats_context(async_nats::connect(server).await?);
    let config = jetstream::stream::Config {
        name: STREAM.into(),
        subjects: vec![format!("{STREAM}.>")],
        max_age: Duration::from_secs(86_400),
        ..Default::default()
    };
    context.create_stream(config).await?;
    let topic = Topic::parse("payments")?;
    let parcel = |number: u64| {
        let mut payload = vec![b'x'; PAYLOAD_BYTES];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        let id = MessageId::new();
        let key = format!("customer-{}", number % ACCOUNTS);
        let headers = [("semel-id", id.to_string()), ("semel-key", key.clone())].into_iter().collect();
        let (topic, content_type) = (topic.clone(), "application/octet-stream".into());
        Parcel { id, topic, key: Some(key), headers, content_type, body: payload.into() }
    };
    let parcels: Vec<Parcel> = (0..count).map(parcel).collect();
    write_nats(&context, STREAM, &parcels).await
}

/// Consumes so many messages.
pub(super) async fn window(
    source: impl Source + 'static,
    apply: Arc<dyn Apply>,
    inbox: Arc<dyn Inbox>,
    group: &str,
    count: u64,
) -> Result<f64> {
    let consumer = Consumer::new(source, apply, inbox, Arc::new(Tokio::new()), Options::new(group));
    let (tally, (stop, stopped)) = (consumer.tally(), oneshot::channel::<()>());
    let task = tokio::spawn(async move { consumer.run(async { drop(stopped.await) }).await });
    let (settled, began) = until(&tally, count / 10).await?;
    let (_, ended) = until(&tally, count).await?;
    let _ = stop.send(());
    task.await??;
    let applied = tally.applied.load(Ordering::Relaxed);
    ensure!(applied == count, "{applied} of {count} were applied");
    Ok((count - settled) as f64 / (ended - began).as_secs_f64())
}

/// Waits until so many are settled; says how many are, and since when.
async fn until(tally: &Tally, count: u64) -> Result<(u64, Instant)> {
    let began = Instant::now();
    loop {
        let settled = tally.settled();
        if settled >= count {
            return Ok((settled, Instant::now()));
        }
        ensure!(began.elapsed() < SETTLED_MAX, "{settled} of {count} were settled");
        tokio::time::sleep(LOOK).await;
    }
}
