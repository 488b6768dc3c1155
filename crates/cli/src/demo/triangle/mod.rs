//! `semel demo --triangle`: an order is paid, the payment is told to others, and they send a receipt. A key, an
//! outbox and a ledger keep each of these from happening twice or not at all; the demo takes them away one
//! by one and counts what leaks.
//!
//! Service, relay and consumer are the real ones, on a SQLite file. The network, the broker and the crashes are
//! played: answers get lost, a broker's acknowledgement gets lost, deliveries come again, and a service dies
//! between its commit and what it wanted to do next.

use crate::say::say;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rusqlite::Connection;
use rusqlite::TransactionBehavior::Immediate;
use semel::consumer::{Consumer, Options};
use semel::joined::Call;
use semel::relay::{Relay, Settings};
use semel::runtime::Tokio;
use semel::stores::sqlite::inbox::{Joined, failure};
use semel::stores::sqlite::outbox::{SqliteOutbox, enqueue};
use semel::stores::sqlite::tx::{self, Begun};
use semel::{Fingerprinter, Message, Once, Outcome, Policy, Scope, SqliteStore};

use broker::{Broker, Chance};

mod broker;

/// Of a hundred.
const ANSWERS_LOST: u64 = 30;
const CRASHES: u64 = 10;

/// Nothing here takes longer; what has not come by then is lost.
const GIVE_UP: Duration = Duration::from_secs(60);

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    Key,
    Outbox,
    Ledger,
}

/// What one run came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) charges: u64,
    pub(crate) charged_again: u64,
    pub(crate) deliveries: u64,
    pub(crate) receipts: u64,
    pub(crate) receipts_again: u64,
    pub(crate) receipts_missing: u64,
}

impl Tally {
    fn is_right(&self) -> bool {
        self.charged_again == 0 && self.receipts_again == 0 && self.receipts_missing == 0
    }
}

pub(crate) async fn run(orders: u64, seed: u64) -> anyhow::Result<ExitCode> {
    say!(
        "{orders} orders are paid by clients that retry until they hear the answer, which the network loses 3"
    );
    say!(
        "times in 10; the service dies 1 time in 10 right after its commit. Each payment is published, and a"
    );
    say!("consumer sends a receipt; the broker's acknowledgements and the consumer's get lost, too.\n");
    say!(
        "                    charges  CHARGED AGAIN  deliveries  receipts  RECEIPTS AGAIN  RECEIPTS MISSING"
    );
    let mut right = true;
    for (name, without) in [
        ("all three", Without::Nothing),
        ("without the key", Without::Key),
        ("without the outbox", Without::Outbox),
        ("without the ledger", Without::Ledger),
    ] {
        let tally = play(without, orders, seed).await.with_context(|| name)?;
        say!(
            "{name:<18}  {:>7}  {:>13}  {:>10}  {:>8}  {:>14}  {:>16}",
            tally.charges,
            tally.charged_again,
            tally.deliveries,
            tally.receipts,
            tally.receipts_again,
            tally.receipts_missing
        );
        right &= tally.is_right() == (without == Without::Nothing);
    }
    say!("\nCounted in the tables of service and consumer. Take one corner away, and something leaks.");
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn play(without: Without, orders: u64, seed: u64) -> anyhow::Result<Tally> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let path = scratch.path().join("shop.db");
    let store = Arc::new(SqliteStore::open(&path)?);
    let prints = Once::new(store.clone(), Arc::new(Tokio::new())).fingerprinter().await?;
    let db = Connection::open(&path)?;
    db.busy_timeout(Duration::from_secs(10))?;
    db.execute_batch(
        "PRAGMA synchronous = FULL;
         CREATE TABLE charge (order_id INTEGER NOT NULL);
         CREATE TABLE receipt (order_id INTEGER NOT NULL);",
    )?;
    let broker = Broker::new(seed);
    let runtime: Arc<Tokio> = Arc::new(Tokio::new());

    let relay = Relay::new(
        Arc::new(SqliteOutbox::open(&path)?),
        Arc::new(broker.clone()),
        runtime.clone(),
        Settings::default(),
    )?;
    let (stop_relay, relay_stops) = tokio::sync::oneshot::channel::<()>();
    let relaying = tokio::spawn(async move {
        relay.run(async { drop(relay_stops.await) }).await.map_err(anyhow::Error::from)
    });

    let inbox = Arc::new(store.inbox());
    let ledger = without != Without::Ledger;
    let consuming = match ledger {
        true => {
            let apply = Joined::new(
                inbox.clone(),
                |tx: &rusqlite::Transaction<'_>, arrival: &semel::inbox::Arrival| {
                    receipt(tx, &arrival.message.payload).map_err(|error| failure(&error))
                },
            );
            let consumer = Consumer::new(
                broker.clone(),
                Arc::new(apply),
                inbox.clone(),
                runtime.clone(),
                Options::new("receipts"),
            );
            let (stop, stops) = tokio::sync::oneshot::channel::<()>();
            let running = tokio::spawn(async move { consumer.run(async { drop(stops.await) }).await });
            Some((stop, running))
        }
        false => None,
    };

    let service = Service { db, prints, broker: broker.clone(), without };
    let mut chance = Chance::new(seed ^ 0x5eed);
    for order in 0..orders {
        let call = service.call(order)?;
        // A client keeps its key and asks until it hears the answer.
        loop {
            let answered = service.pay(order, &call, &mut chance)?;
            if answered && !chance.comes(ANSWERS_LOST) {
                break;
            }
        }
        tokio::task::yield_now().await;
    }
    // Without the ledger the consumer is a loop that applies what comes.
    let deadline = tokio::time::Instant::now() + GIVE_UP;
    loop {
        if !ledger {
            broker.apply_all(|payload| receipt(&service.db, payload).map_err(anyhow::Error::from))?;
        }
        let waiting =
            "SELECT (SELECT count(*) FROM semel_outbox) + (SELECT count(*) FROM semel_outbox_aside)";
        let waiting: i64 = service.db.query_row(waiting, [], |row| row.get(0))?;
        if waiting == 0 && broker.is_quiet() {
            break;
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "messages are still on their way after {GIVE_UP:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _ = stop_relay.send(());
    relaying.await??;
    if let Some((stop, running)) = consuming {
        let _ = stop.send(());
        running.await??;
    }
    count(&service.db, orders, broker.deliveries())
}

/// Counts in the tables.
fn count(db: &Connection, orders: u64, deliveries: u64) -> anyhow::Result<Tally> {
    let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs);
    let charges = number("SELECT count(*) FROM charge")?;
    let charged = number("SELECT count(DISTINCT order_id) FROM charge")?;
    let receipts = number("SELECT count(*) FROM receipt")?;
    let received = number("SELECT count(DISTINCT order_id) FROM receipt")?;
    anyhow::ensure!(charged == orders, "{} orders were told to be paid and are not", orders - charged);
    Ok(Tally {
        charges,
        charged_again: charges - charged,
        deliveries,
        receipts,
        receipts_again: receipts - received,
        receipts_missing: orders - received,
    })
}

fn receipt(db: &Connection, payload: &[u8]) -> rusqlite::Result<()> {
    let order = std::str::from_utf8(payload).ok().and_then(|text| text.parse::<i64>().ok());
    db.execute("INSERT INTO receipt (order_id) VALUES (?)", [order]).map(drop)
}

/// The service that takes payments.
struct Service {
    db: Connection,
    prints: Fingerprinter,
    broker: Broker,
    without: Without,
}

impl Service {
    fn call(&self, order: u64) -> anyhow::Result<Call> {
        let scope = Scope::shared("shop", "pay")?;
        let key = format!("order-{order}-payment").parse()?;
        let print = self.prints.of_bytes(order.to_string().as_bytes());
        Ok(Call::new(scope, key, print, &Policy::default()))
    }

    /// One attempt at a payment. False if the service died before it could answer.
    fn pay(&self, order: u64, call: &Call, chance: &mut Chance) -> anyhow::Result<bool> {
        let transaction = rusqlite::Transaction::new_unchecked(&self.db, Immediate)?;
        let call = call.again();
        let running = match self.without {
            Without::Key => None,
            _ => match tx::begin(&transaction, &call)? {
                Begun::Run(running) => Some(running),
                Begun::Replay(_) => return Ok(true),
                Begun::Refused(why) => return Err(why.into()),
            },
        };
        transaction.execute("INSERT INTO charge (order_id) VALUES (?)", [order as i64])?;
        let paid = Message::new("orders.paid".parse()?, order.to_string())
            .key(format!("order-{order}"))
            .content_type("text/plain");
        let messages = match self.without {
            Without::Outbox => vec![],
            _ => vec![paid.clone()],
        };
        match running {
            Some(running) => {
                let finished = tx::finish(&transaction, running, &Outcome::text("paid"), &messages)?;
                let _committed = tx::commit(transaction, finished)?;
            }
            None => {
                enqueue(&transaction, &messages)?;
                transaction.commit()?;
            }
        }
        if chance.comes(CRASHES) {
            return Ok(false);
        }
        if self.without == Without::Outbox {
            // Two systems, and nothing that makes them one.
            self.broker.take(paid.id.to_string(), paid.payload);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn each_corner_of_the_triangle_keeps_something_from_leaking() {
        // G-30 G-40 G-45
        let orders = 60;
        let all = play(Without::Nothing, orders, 7).await.unwrap();
        assert!(all.is_right(), "{all:?}");
        assert_eq!((all.charges, all.receipts), (orders, orders));
        assert!(all.deliveries > orders, "nothing came twice, so nothing was shown: {all:?}");

        let no_key = play(Without::Key, orders, 7).await.unwrap();
        assert!(no_key.charged_again > 0, "{no_key:?}");

        let no_outbox = play(Without::Outbox, orders, 7).await.unwrap();
        assert!(no_outbox.receipts_missing > 0 && no_outbox.charged_again == 0, "{no_outbox:?}");

        let no_ledger = play(Without::Ledger, orders, 7).await.unwrap();
        assert!(no_ledger.receipts_again > 0 && no_ledger.receipts_missing == 0, "{no_ledger:?}");
    }
}
