//! The crate `idempotent` with its Valkey store and the defaults of its layer.

#[path = "../../payments/payments.rs"]
mod payments;

use idempotent::middleware::IdempotencyLayer;
use idempotent::valkey::ValkeyStore;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, port, effects] = &arguments[..] else { anyhow::bail!("usage: PORT EFFECTS") };
    let (paid, count) = payments::routers(effects.into());
    let store = ValkeyStore::with_url(std::env::var("REDIS_URL")?).prefix("peer").try_build().await?;
    let paid = paid.layer(IdempotencyLayer::new(store));
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    axum::serve(listener, paid.merge(count)).await?;
    Ok(())
}
