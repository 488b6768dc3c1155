//! A connection that is held while the service is killed: whether it lives on tells whether anything was killed.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::{CONNECT_MAX, Place, Wire};
use crate::verify::runner::AWAY;
use crate::verify::template::Request;

/// How long the end of the connection is waited for once the command has ended.
const ENDS_MAX: Duration = Duration::from_millis(500);

/// Idle, to the target itself, from before the kill.
pub(in crate::verify) struct Held {
    link: TcpStream,
    url: String,
}

impl Wire {
    /// Nothing is held if the service takes no connection now.
    pub(in crate::verify) async fn hold(&self, url: &str) -> Option<Held> {
        let link = connected(url).await.ok()?;
        Some(Held { link, url: url.to_owned() })
    }

    /// Whether the service is gone, or was: a new connection is refused, the one held was ended by the other side,
    /// or whoever stands in front of it says that it is away. The last is asked with `OPTIONS`, which has no effect.
    pub(in crate::verify) async fn has_ended(&self, held: Held) -> bool {
        let Held { mut link, url } = held;
        if connected(&url).await.is_err() {
            return true;
        }
        let until = Instant::now() + ENDS_MAX;
        let mut bytes = [0; 1024];
        loop {
            match timeout_at(until, link.read(&mut bytes)).await {
                Ok(Ok(0) | Err(_)) => return true,
                // A word of farewell, such as 408.
                Ok(Ok(_)) => {}
                Err(_) => break,
            }
        }
        // Whoever serves one connection at a time is free now.
        let _ = link.shutdown().await;
        drop(link);
        self.is_away(&url).await
    }

    async fn is_away(&self, url: &str) -> bool {
        let Ok(place) = Place::of(url) else { return false };
        let headers = vec![("Connection".to_owned(), b"close".to_vec())];
        let asked =
            Request { method: "OPTIONS".into(), url: url.to_owned(), headers, body: Default::default() };
        let asking = async {
            let mut link = self.connect(&place, b"http/1.1").await?;
            super::http1::send(&mut link, &super::http1::written(&asked)?).await?;
            super::http1::read(&mut link, &asked).await
        };
        match tokio::time::timeout(self.answer_max.min(CONNECT_MAX), asking).await {
            Ok(Ok(reply)) => AWAY.contains(&reply.status),
            // Somebody took the connection: who does not answer this may answer others.
            Ok(Err(_)) | Err(_) => false,
        }
    }
}

async fn connected(url: &str) -> io::Result<TcpStream> {
    let place = Place::of(url).map_err(io::Error::other)?;
    let connecting = TcpStream::connect((place.host.as_str(), place.port));
    match tokio::time::timeout(CONNECT_MAX, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const WAIT: Duration = Duration::from_secs(3);

    async fn listening() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pay", listener.local_addr().unwrap());
        (listener, url)
    }

    #[tokio::test]
    async fn who_closes_its_port_or_its_connections_has_ended() {
        let (listener, url) = listening().await;
        let wire = Wire::new(WAIT);
        let held = wire.hold(&url).await.unwrap();
        drop(listener.accept().await.unwrap());
        assert!(wire.has_ended(held).await, "started again at once: the port is open, the connection is not");
        let held = wire.hold(&url).await.unwrap();
        drop(listener);
        assert!(wire.has_ended(held).await);
        assert!(wire.hold(&url).await.is_none());
    }

    #[tokio::test]
    async fn who_still_serves_has_not_unless_it_says_that_it_is_away() {
        for (status, ended) in
            [("204 No Content", false), ("404 Not Found", false), ("502 Bad Gateway", true)]
        {
            let (listener, url) = listening().await;
            let serving = tokio::spawn(async move {
                let mut idle = Vec::new();
                loop {
                    let (mut link, _) = listener.accept().await.unwrap();
                    let mut bytes = [0; 512];
                    let reading =
                        tokio::time::timeout(Duration::from_millis(100), link.read(&mut bytes)).await;
                    if matches!(reading, Ok(Ok(1..))) {
                        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                        link.write_all(answer.as_bytes()).await.unwrap();
                    }
                    idle.push(link);
                }
            });
            let wire = Wire::new(WAIT);
            let held = wire.hold(&url).await.unwrap();
            assert_eq!(wire.has_ended(held).await, ended, "{status}");
            serving.abort();
        }
    }
}
