//! TLS to the upstream: the system's roots, and the operator's beside them.

use std::io::{self, IoSlice};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Context as _;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::line::Gated;

/// One connector per protocol: what is offered is what will be spoken.
#[derive(Clone)]
pub(super) struct Connectors {
    pub(super) http1: TlsConnector,
    pub(super) http2: TlsConnector,
}

/// Whom to believe: the system's roots and those of a file.
pub(crate) fn client_config(extra: Option<&Path>) -> anyhow::Result<ClientConfig> {
    with_roots(roots(extra)?)
}

fn roots(extra: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = extra {
        let place = || format!("the upstream's certificates in {}", file.display());
        for certificate in CertificateDer::pem_file_iter(file).with_context(place)? {
            roots.add(certificate.with_context(place)?).with_context(place)?;
        }
    }
    Ok(roots)
}

fn with_roots(roots: RootCertStore) -> anyhow::Result<ClientConfig> {
    Ok(ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

impl Connectors {
    pub(super) fn new(extra: Option<&Path>) -> anyhow::Result<Self> {
        let roots = roots(extra)?;
        anyhow::ensure!(
            !roots.is_empty(),
            "an https upstream needs root certificates, and the system has none: name a file with `upstream_ca`"
        );
        let config = with_roots(roots)?;
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            TlsConnector::from(Arc::new(config))
        };
        Ok(Self { http1: speaking(b"http/1.1"), http2: speaking(b"h2") })
    }
}

/// A connection to the upstream, ready for HTTP.
pub(super) enum Transport {
    Plain(Gated),
    Tls(Box<TlsStream<Gated>>),
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(io) => Pin::new(io).poll_read(cx, buffer),
            Transport::Tls(io) => Pin::new(io).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Transport::Tls(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Plain(io) => Pin::new(io).poll_write_vectored(cx, slices),
            Transport::Tls(io) => Pin::new(io).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Transport::Plain(io) => io.is_write_vectored(),
            Transport::Tls(io) => io.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(io) => Pin::new(io).poll_flush(cx),
            Transport::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Transport::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
