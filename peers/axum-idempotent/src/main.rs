//! The crate `axum-idempotent` in key mode, as its README shows it.

#[path = "../../payments/payments.rs"]
mod payments;

use std::sync::Arc;

use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, SessionLayer};
use tower_cookies::CookieManagerLayer;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, port, effects] = &arguments[..] else { anyhow::bail!("usage: PORT EFFECTS") };
    let (paid, count) = payments::routers(effects.into());
    let options = IdempotentOptions::default().use_idempotency_key_header(Some("Idempotency-Key"), true);
    let sessions = SessionLayer::new(Arc::new(MokaStore::builder().build()))
        .with_cookie_options(CookieOptions::build().name("session"));
    let paid = paid
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(sessions)
        .layer(CookieManagerLayer::new());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    axum::serve(listener, paid.merge(count)).await?;
    Ok(())
}
