//! The crate `idempotent` over its memory store or Redis, around the handler that all layers are measured with.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::post;
use idempotent::memory::MemoryStore;
use idempotent::middleware::IdempotencyLayer;
use idempotent::valkey::ValkeyStore;

pub(crate) fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let answer: &'static str =
            std::fs::read_to_string(std::env::args().nth(1).unwrap_or_default())?.leak();
        let handler = post(move |body: Bytes| async move {
            std::hint::black_box(body.len());
            ([(header::CONTENT_TYPE, "application/json")], answer)
        });
        let app = Router::new().route("/payments", handler);
        let app = match std::env::args().nth(2) {
            None => app.layer(IdempotencyLayer::new(MemoryStore::builder().try_build()?)),
            Some(redis) => app.layer(IdempotencyLayer::new(ValkeyStore::with_url(redis).try_build().await?)),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on {}", listener.local_addr()?);
        axum::serve(listener, app).await?;
        Ok(())
    })
}
