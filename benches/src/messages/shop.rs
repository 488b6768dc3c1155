//! A service's own database: orders, and messages about them in the same transaction.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use mysql_async::prelude::Queryable;
use semel_core::{Message, Outbox};
use semel_stores::mysql::outbox::MysqlOutbox;
use semel_stores::postgres::outbox::PostgresOutbox;
use semel_stores::sqlite::outbox::SqliteOutbox;
use semel_stores::{mysql, postgres, sqlite};
use tokio::task::block_in_place;

use super::PAYLOAD_BYTES;

/// How long a writer of SQLite waits for another.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// A database.
#[derive(Clone)]
pub(super) enum Shop {
    Postgres(String),
    Mariadb(String),
    Sqlite(PathBuf),
}

/// One connection of the service.
pub(super) enum Writer {
    Postgres {
        client: tokio_postgres::Client,
        insert: tokio_postgres::Statement,
        outbox: postgres::outbox::Writer,
    },
    Mariadb(mysql_async::Conn),
    Sqlite(rusqlite::Connection),
}

/// What a transaction does beside its messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// One order is inserted, as large as a message.
    Order,
    Nothing,
}

impl Shop {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "Postgres",
            Self::Mariadb(_) => "MariaDB",
            Self::Sqlite(_) => "SQLite",
        }
    }

    /// Makes the tables.
    pub(super) async fn prepare(&self) -> Result<()> {
        self.outbox().await?;
        match self {
            Self::Postgres(url) => {
                let orders = "CREATE TABLE orders (id bigserial PRIMARY KEY, body bytea NOT NULL)";
                connect(url).await?.batch_execute(orders).await?;
            }
            Self::Mariadb(url) => {
                let mut conn = mysql_async::Conn::from_url(url).await?;
                // As on a server with some memory, so that it is not measured by its checkpoints.
                for setting in ["innodb_buffer_pool_size = 1073741824", "innodb_log_file_size = 1073741824"] {
                    conn.query_drop(format!("SET GLOBAL {setting}")).await?;
                }
                let orders = "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, body BLOB NOT NULL)";
                conn.query_drop(orders).await?;
                conn.disconnect().await?;
            }
            Self::Sqlite(path) => {
                let conn = rusqlite::Connection::open(path)?;
                conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")?;
            }
        }
        Ok(())
    }

    pub(super) async fn outbox(&self) -> Result<Arc<dyn Outbox>> {
        Ok(match self {
            Self::Postgres(url) => Arc::new(PostgresOutbox::connect(url).await?),
            Self::Mariadb(url) => Arc::new(MysqlOutbox::connect(url).await?),
            Self::Sqlite(path) => Arc::new(SqliteOutbox::open(path)?),
        })
    }

    /// As many connections as writers make sense. SQLite has one writer at a time.
    pub(super) async fn writers(&self, wanted: usize) -> Result<Vec<Writer>> {
        let count = if matches!(self, Self::Sqlite(_)) { 1 } else { wanted };
        let mut writers = Vec::with_capacity(count);
        for _ in 0..count {
            writers.push(self.writer().await?);
        }
        Ok(writers)
    }

    async fn writer(&self) -> Result<Writer> {
        Ok(match self {
            Self::Postgres(url) => {
                let client = connect(url).await?;
                let insert = client.prepare("INSERT INTO orders (body) VALUES ($1)").await?;
                let outbox = postgres::outbox::Writer::prepare(&client).await?;
                Writer::Postgres { client, insert, outbox }
            }
            Self::Mariadb(url) => Writer::Mariadb(mysql_async::Conn::from_url(url).await?),
            Self::Sqlite(path) => {
                let conn = rusqlite::Connection::open(path)?;
                conn.busy_timeout(BUSY_MAX)?;
                conn.pragma_update(None, "synchronous", "FULL")?;
                Writer::Sqlite(conn)
            }
        })
    }
}

impl Writer {
    /// One transaction.
    pub(super) async fn transact(&mut self, effect: Effect, messages: &[Message]) -> Result<()> {
        let body = [7_u8; PAYLOAD_BYTES];
        match self {
            Self::Postgres { client, insert, outbox } => {
                let transaction = outbox.begin(client).await?;
                if effect == Effect::Order {
                    transaction.execute(&*insert, &[&&body[..]]).await?;
                }
                match messages {
                    [] => transaction.into_inner().commit().await?,
                    _ => outbox.commit(transaction, messages).await?,
                }
            }
            Self::Mariadb(conn) => {
                let mut transaction = conn.start_transaction(mysql_async::TxOpts::default()).await?;
                if effect == Effect::Order {
                    transaction.exec_drop("INSERT INTO orders (body) VALUES (?)", (&body[..],)).await?;
                }
                mysql::outbox::enqueue(&mut transaction, messages).await?;
                transaction.commit().await?;
            }
            Self::Sqlite(conn) => block_in_place(|| {
                let transaction = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
                if effect == Effect::Order {
                    transaction
                        .prepare_cached("INSERT INTO orders (body) VALUES (?1)")?
                        .execute([&body[..]])?;
                }
                if !messages.is_empty() {
                    sqlite::outbox::enqueue(&transaction, messages)?;
                }
                anyhow::Ok(transaction.commit()?)
            })?,
        }
        Ok(())
    }
}

/// A connection of tokio-postgres, driven by a task.
pub(super) async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.context("no connection to PostgreSQL")?;
    tokio::spawn(connection);
    Ok(client)
}
