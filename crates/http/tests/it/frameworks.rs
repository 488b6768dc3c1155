//! The layer in axum, and under hyper over a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use semel_core::runtime::Tokio;
use semel_core::{MemoryStore, Once};
use semel_http::{Op, Route, SemelLayer, tenant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

fn layer() -> SemelLayer {
    crate::log::listen();
    let once = Once::new(Arc::new(MemoryStore::new()), Arc::new(Tokio::new()));
    SemelLayer::new(once, Route::builder("charge").tenant(tenant::Nobody).build().unwrap())
}

fn app(calls: Arc<AtomicU32>) -> Router {
    let charge = move |op: Op, Json(body): Json<serde_json::Value>| {
        let n = calls.fetch_add(1, Ordering::SeqCst) + 1;
        async move { (StatusCode::CREATED, format!("{} charged {} ({n})", op.key().as_str(), body["amount"])) }
    };
    let looked_up = |op: Option<Op>| async move { if op.is_some() { "keyed" } else { "unkeyed" } };
    Router::new()
        .route("/charges", post(charge))
        .route("/maybe", post(looked_up))
        .route("/", get(async || "hello"))
}

fn request(path: &str, key: Option<&str>) -> Request<Body> {
    let mut request = Request::post(path).header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from("{\"amount\":7}")).unwrap()
}

async fn text(app: &Router, request: Request<Body>) -> (StatusCode, bool, String) {
    let response = app.clone().oneshot(request).await.unwrap();
    let (status, replayed) = (response.status(), response.headers().contains_key("idempotent-replayed"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, replayed, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn an_axum_handler_runs_once_under_layer_and_under_route_layer() {
    // G-8, G-14
    for build in [|app: Router| app.layer(layer()), |app: Router| app.route_layer(layer())] {
        let calls = Arc::new(AtomicU32::new(0));
        let app = build(app(calls.clone()));
        for replayed in [false, true] {
            let got = text(&app, request("/charges", Some("order-1"))).await;
            assert_eq!(got, (StatusCode::CREATED, replayed, "order-1 charged 7 (1)".into()));
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let hello = text(&app, Request::get("/").body(Body::empty()).unwrap()).await;
        assert_eq!(hello, (StatusCode::OK, false, "hello".into()));
    }
}

#[tokio::test]
async fn the_extractor_tells_a_missing_key_from_a_missing_layer() {
    // G-22
    let app = app(Arc::default());
    let bare = app.clone();
    let protected = app.layer(layer());
    let (status, _, body) = text(&protected, request("/charges", None)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body.contains("urn:semel:problem:key-missing"));
    assert_eq!(text(&bare, request("/charges", Some("k"))).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(text(&protected, request("/maybe", None)).await.2, "unkeyed");
    assert_eq!(text(&protected, request("/maybe", Some("k"))).await.2, "keyed");
}

#[tokio::test]
async fn an_answer_of_axum_itself_is_stored_like_any_other() {
    // G-16
    let app = app(Arc::default()).layer(layer());
    let broken = || {
        Request::post("/charges")
            .header("content-type", "application/json")
            .header("idempotency-key", "k")
            .body(Body::from("{"))
            .unwrap()
    };
    for replayed in [false, true] {
        let (status, again, _) = text(&app, broken()).await;
        assert_eq!((status, again), (StatusCode::BAD_REQUEST, replayed));
    }
}

/// Serves one service on a loopback socket, each connection in a task.
async fn serve() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = tower::service_fn(|request: Request<_>| async move {
        let body: Bytes =
            BodyExt::collect(request.into_body()).await.map_err(|error: hyper::Error| error)?.to_bytes();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-checksum", "abc".parse().unwrap());
        let body = Full::new(body).with_trailers(std::future::ready(Some(Ok(trailers))));
        let mut response = http::Response::new(body);
        response.headers_mut().insert("trailer", "x-checksum".parse().unwrap());
        Ok::<_, hyper::Error>(response)
    });
    let service = tower::Layer::layer(&layer(), service);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            tokio::spawn(async move {
                let _ = connection.await;
            });
        }
    });
    address
}

async fn exchange(address: std::net::SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn over_a_socket_chunks_and_trailers_come_back_and_a_short_body_runs_nothing() {
    // G-14
    let address = serve().await;
    let head =
        "POST /echo HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: close\r\nidempotency-key: k1\r\n";
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    for replayed in [false, true] {
        let answer = exchange(address, &chunked).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("abcde") && answer.contains("x-checksum: abc"), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed: true"), replayed, "{answer}");
    }
    let head = head.replace("k1", "k2");
    let short = exchange(address, &format!("{head}content-length: 10\r\n\r\nabc")).await;
    assert!(short.is_empty() || short.starts_with("HTTP/1.1 400"), "{short}");
    let whole = exchange(address, &format!("{head}content-length: 3\r\n\r\nabc")).await;
    assert!(whole.starts_with("HTTP/1.1 200") && !whole.contains("idempotent-replayed"), "{whole}");
    let lying = format!("{}content-length: 99999999\r\n\r\nabc", head.replace("k2", "k3"));
    assert!(exchange(address, &lying).await.starts_with("HTTP/1.1 413"));
}
