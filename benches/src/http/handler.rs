//! The handler that all layers stand around, and ours around it.
//!
//! Also a part of the program `layered`, which has another allocator; so it uses nothing of this one.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::{get, post};
use semel_core::runtime::Tokio;
use semel_core::{MemoryStore, Once};
use semel_http::{Route, SemelLayer};

/// A document of about a kilobyte.
pub(crate) fn json_of_1_kb() -> String {
    let mut json = String::from(r#"{"amount":100,"currency":"EUR","lines":["#);
    for line in 0.. {
        let comma = if line == 0 { "" } else { "," };
        let _ = write!(
            json,
            r#"{comma}{{"sku":"item-{line:04}","count":{},"price":"{}.99"}}"#,
            line % 7 + 1,
            line * 3
        );
        if json.len() > 960 {
            break;
        }
    }
    json + "]}"
}

pub(crate) fn app() -> Router {
    let answer: &'static str = json_of_1_kb().leak();
    let json = [(header::CONTENT_TYPE, "application/json")];
    Router::new().route(
        "/payments",
        get(move || async move { (json.clone(), "{\"charges\":1}") }).merge(post(
            move |body: Bytes| async move {
                std::hint::black_box(body.len());
                ([(header::CONTENT_TYPE, "application/json")], answer)
            },
        )),
    )
}

pub(crate) fn with_semel(app: Router) -> Result<Router> {
    let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
    Ok(app.layer(SemelLayer::new(once, Route::builder("payments").build()?)))
}

/// Serves on a free port until the process is ended, and says where.
pub(crate) async fn serve(app: Router) -> Result<()> {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
