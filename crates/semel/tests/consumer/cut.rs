//! Connections to NATS that break while messages are on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::sources::nats::{self, Nats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::nats::{Running, Stream, options};
use crate::world::{World, until};

crate::on_every_database!(messages_lost_on_their_way_come_again_before_later_ones_of_their_key);

const DAY: Duration = Duration::from_secs(86_400);
const MESSAGES: usize = 60;
/// Large enough that the wire is cut between two of them.
const PAYLOAD_BYTES: usize = 2000;

/// A way to the server that breaks once, in the middle of messages.
struct Wire {
    url: String,
    breaks: Arc<AtomicBool>,
}

impl Wire {
    async fn to(server: &str) -> Self {
        let server = server.trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let breaks = Arc::new(AtomicBool::new(false));
        let broken = breaks.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(pass(client, server, broken.clone()));
            }
        });
        Self { url, breaks }
    }
}

/// Passes everything on, until it is told to break: then half of what comes next, and no more.
async fn pass(client: TcpStream, server: TcpStream, breaks: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let (mut buffer, mut passed) = (vec![0; 1 << 16], 0);
    while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
        let breaking = breaks.load(Ordering::SeqCst);
        passed += if breaking { count } else { 0 };
        // Several messages are through, and several are not.
        if passed > 20 * PAYLOAD_BYTES {
            breaks.store(false, Ordering::SeqCst);
            let _ = to_client.write_all(&buffer[..count / 2]).await;
            break;
        }
        if to_client.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    up.abort();
}

async fn messages_lost_on_their_way_come_again_before_later_ones_of_their_key(world: World) {
    // G-45
    let Some(stream) = Stream::new(DAY).await else { return };
    let wire = Wire::to(&stream.url).await;
    let client = async_nats::connect(&wire.url).await.unwrap();
    // Longer than it takes to notice: what was lost is not there again when reading goes on.
    let ack_wait = Duration::from_secs(8);
    let from = nats::Options { ack_wait, ..nats::Options::new(&stream.name, "durable") };
    let source = Nats::open(client, from).await.unwrap();
    let filler = "x".repeat(PAYLOAD_BYTES);
    for n in 0..MESSAGES {
        stream.publish(Some(&format!("{n:03}")), Some("k"), &filler).await;
    }
    wire.breaks.store(true, Ordering::SeqCst);
    let consumer = Running::with(source, &world, world.apply.clone(), options());
    until("the wire broke", async || !wire.breaks.load(Ordering::SeqCst)).await;
    for n in MESSAGES..2 * MESSAGES {
        stream.publish(Some(&format!("{n:03}")), Some("k"), &filler).await;
    }
    until("all effects are there", async || world.effects().await.len() >= 2 * MESSAGES).await;
    consumer.stop().await;
    let expected: Vec<String> = (0..2 * MESSAGES).map(|n| format!("{n:03}")).collect();
    assert_eq!(world.effects_of("k").await, expected, "each once, and in order");
    stream.delete().await;
}
