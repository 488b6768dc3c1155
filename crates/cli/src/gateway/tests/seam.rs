//! The whole network side without a network and without a clock of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::runtime::Boxed;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};

use super::super::net::{Accepting, Listener, Network, Stream};
use super::super::serve;
use super::super::upstream::Upstream;
use super::rig::*;

const PIPE_BYTES: usize = 256;

/// Clients are handed in by the test, and so are the connections to the service.
struct Memory {
    dialled: mpsc::UnboundedSender<(String, DuplexStream)>,
    clients: Mutex<Option<mpsc::UnboundedReceiver<DuplexStream>>>,
}

impl Network for Memory {
    fn connect(&self, host: &str, port: u16) -> Boxed<io::Result<Stream>> {
        let (near, far) = duplex(PIPE_BYTES);
        let sent = self.dialled.send((format!("{host}:{port}"), far));
        Box::pin(async move {
            sent.map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(Stream::Other(Box::new(near)))
        })
    }

    fn bind(&self, address: SocketAddr) -> Boxed<io::Result<Box<dyn Listener>>> {
        let clients = self.clients.lock().unwrap().take();
        Box::pin(async move {
            let clients = clients.ok_or(io::ErrorKind::AddrInUse)?;
            Ok(Box::new(Door { address, clients }) as Box<dyn Listener>)
        })
    }
}

struct Door {
    address: SocketAddr,
    clients: mpsc::UnboundedReceiver<DuplexStream>,
}

impl Listener for Door {
    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn accept(&mut self) -> Accepting<'_> {
        Box::pin(async move {
            match self.clients.recv().await {
                Some(client) => Ok((Stream::Other(Box::new(client)), "127.0.0.9:1".parse().unwrap())),
                None => std::future::pending().await,
            }
        })
    }
}

async fn until(stream: &mut DuplexStream, mark: &str) -> String {
    let mut heard = Vec::new();
    while !heard.ends_with(mark.as_bytes()) {
        heard.push(soon(stream.read_u8()).await.unwrap());
    }
    String::from_utf8(heard).unwrap()
}

#[tokio::test]
async fn it_runs_on_any_network_and_clock() {
    let (dialled, mut dials) = mpsc::unbounded_channel();
    let (arrive, clients) = mpsc::unbounded_channel();
    let network = Arc::new(Memory { dialled, clients: Mutex::new(Some(clients)) });
    let time = ByHand::new();
    let mut settings = upstream_to(&["10.0.0.1:80".parse().unwrap()]);
    settings.response_timeout = Duration::from_secs(10);
    let upstream = Upstream::new(&settings, network.clone(), time.clone()).unwrap();
    let listener = network.bind("10.0.0.2:80".parse().unwrap()).await.unwrap();
    assert_eq!(listener.address().unwrap(), "10.0.0.2:80".parse().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let front = serve::Settings {
        limits: limits(),
        trusted_proxies: Vec::new(),
        tls: None,
        drain: Duration::from_secs(5),
        runtime: time.clone(),
        crew: None,
    };
    let service = forward(upstream, time.clone());
    let ended = tokio::spawn(async move {
        serve::run(listener, front, service, async move { drop(stopped.await) }).await
    });

    let (mut client, far) = duplex(PIPE_BYTES);
    arrive.send(far).unwrap();
    client.write_all(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
    let (place, mut upstream) = soon(dials.recv()).await.unwrap();
    assert_eq!(place, "10.0.0.1:80");
    let asked = until(&mut upstream, "\r\n\r\nhi").await;
    assert!(asked.contains("x-forwarded-for: 127.0.0.9\r\n"), "{asked}");
    upstream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    until(&mut client, "\r\n\r\nok").await;

    // The second answer never comes, and ten seconds pass at once.
    client.write_all(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    until(&mut upstream, "\r\n\r\n").await;
    time.pass(Duration::from_secs(11)).await;
    time.pass(Duration::from_secs(1)).await;
    let answer = until(&mut client, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");

    drop(client);
    drop(stop);
    assert_eq!(soon(ended).await.unwrap(), serve::Drained::Fully);
}
