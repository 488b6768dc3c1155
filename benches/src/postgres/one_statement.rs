//! The pattern most services write: one statement per claim, one per completion, on a pool.
//!
//! Written as well as it can be: prepared statements, one round trip each, the same table with the
//! same indexes and the same room on its pages, the same 300 bytes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use semel_core::{Nonce, Operation, Scope};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPool;

use crate::load::{BODY_BYTES, Contestant};

const CLAIM: &str = include_str!("claim.sql");
const COMPLETE: &str = include_str!("complete.sql");

pub(super) struct OneStatement {
    pool: PgPool,
    scope: Scope,
    digest: [u8; 32],
    paths: Vec<u8>,
    outcome: Vec<u8>,
}

/// A table like the store's.
pub(super) async fn make_table(watch: &PgPool) -> Result<()> {
    let options: Option<String> = sqlx::query_scalar(
        "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE relname = 'semel_operation'",
    )
    .fetch_one(watch)
    .await?;
    let options = options.map(|options| format!("WITH ({options})")).unwrap_or_default();
    let create = format!("CREATE TABLE bench_operation (LIKE semel_operation INCLUDING ALL) {options}");
    sqlx::raw_sql(AssertSqlSafe(create)).execute(watch).await?;
    Ok(())
}

impl OneStatement {
    pub(super) fn new(pool: PgPool) -> Self {
        let scope = Scope::new("bench", "customer-42", "POST /charges").expect("usable parts");
        // As large as the store's for the same request: a head and two leaves.
        Self { pool, scope, digest: [7; 32], paths: vec![1; 18], outcome: vec![b'x'; BODY_BYTES] }
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }

    async fn claim(&self, operation: &Operation, nonce: Nonce) -> Result<i64> {
        let token = sqlx::query_scalar(CLAIM)
            .bind(operation.id().as_bytes().as_slice())
            .bind(self.scope.namespace())
            .bind(self.scope.tenant())
            .bind(self.scope.route())
            .bind(operation.key().as_str())
            .bind(nonce.as_bytes().as_slice())
            .bind(self.digest.as_slice())
            .bind(self.paths.as_slice())
            .fetch_optional(&self.pool)
            .await?;
        token.context("a claim of a new key inserted nothing")
    }

    async fn complete(&self, operation: &Operation, nonce: Nonce, token: i64) -> Result<()> {
        let done = sqlx::query(COMPLETE)
            .bind(operation.id().as_bytes().as_slice())
            .bind(token)
            .bind(nonce.as_bytes().as_slice())
            .bind(self.outcome.as_slice())
            .execute(&self.pool)
            .await?;
        ensure!(done.rows_affected() == 1, "a completion found nothing to complete");
        Ok(())
    }
}

impl Contestant for OneStatement {
    async fn request(&self) -> Result<[Duration; 2]> {
        let start = Instant::now();
        let nonce = Nonce::random();
        let operation = Operation::new(self.scope.clone(), nonce.to_string().parse()?);
        let token = self.claim(&operation, nonce).await?;
        let claimed = start.elapsed();
        self.complete(&operation, nonce, token).await?;
        Ok([claimed, start.elapsed() - claimed])
    }
}
