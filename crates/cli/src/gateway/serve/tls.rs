//! TLS from clients: certificates that can change while connections live.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use semel::Runtime;
use semel::http::tenant::ClientCertificate;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::super::net::Stream;
use super::san;
use crate::config::resolved::ServerTls;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The gateway's certificate, and whose certificates clients may show. New connections get what was
/// loaded last; open ones keep what they began with.
pub(crate) struct Certificates {
    files: ServerTls,
    current: RwLock<Arc<ServerConfig>>,
}

impl Certificates {
    pub(crate) fn load(files: ServerTls) -> anyhow::Result<Arc<Self>> {
        let current = RwLock::new(Arc::new(read(&files)?));
        Ok(Arc::new(Self { files, current }))
    }

    /// Reads the files again. If they cannot be used, what was loaded before stays.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let config = Arc::new(read(&self.files)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Reloads whenever a file has changed, until the certificates are dropped.
    pub(crate) fn watch(self: &Arc<Self>, runtime: &Arc<dyn Runtime>) {
        let (weak, clockwork) = (Arc::downgrade(self), runtime.clone());
        let mut seen = self.stamps();
        runtime.spawn(Box::pin(async move {
            loop {
                clockwork.sleep(LOOK_EVERY).await;
                let Some(certificates) = weak.upgrade() else { return };
                certificates.look(&mut seen);
            }
        }));
    }

    /// Reloads if a file is not as it was seen last. Whether one had changed.
    pub(crate) fn look(&self, seen: &mut Stamps) -> bool {
        let stamps = self.stamps();
        if stamps == *seen {
            return false;
        }
        // Not tried again until the files change once more: a half-written pair changes again.
        *seen = stamps;
        match self.reload() {
            Ok(()) => tracing::info!("TLS certificates were reloaded"),
            Err(error) => {
                tracing::error!("TLS certificates changed and cannot be used, the old ones stay: {error:#}");
            }
        }
        true
    }

    pub(crate) fn stamps(&self) -> Stamps {
        let stamp = |file: &Path| {
            let data = std::fs::metadata(file).ok()?;
            Some((data.modified().ok()?, data.len()))
        };
        let client_ca = self.files.client_ca.as_deref();
        [stamp(&self.files.certificate), stamp(&self.files.key), client_ca.and_then(stamp)]
    }

    /// The handshake. The caller bounds the time.
    pub(super) async fn accept(&self, stream: Stream) -> std::io::Result<TlsStream<Stream>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        TlsAcceptor::from(current).accept(stream).await
    }
}

/// When each file was last written, and how long it is.
pub(crate) type Stamps = [Option<(SystemTime, u64)>; 3];

/// The certificate that a client has shown and proved to own.
pub(super) fn certificate(stream: &TlsStream<Stream>) -> Option<ClientCertificate> {
    let shown = stream.get_ref().1.peer_certificates()?.first()?;
    Some(ClientCertificate { names: san::names(shown).unwrap_or_default() })
}

pub(super) fn speaks_http2(stream: &TlsStream<Stream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

fn read(files: &ServerTls) -> anyhow::Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("no private key can be read from {}", files.key.display()))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(file)? {
                roots
                    .add(root)
                    .with_context(|| format!("a certificate in {} is unusable", file.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .with_context(|| format!("the certificates in {} cannot be used", file.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .with_context(|| format!("{} and its key do not fit", files.certificate.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let place = || format!("no certificates can be read from {}", file.display());
    let chain = CertificateDer::pem_file_iter(file).with_context(place)?.collect::<Result<Vec<_>, _>>();
    let chain = chain.with_context(place)?;
    anyhow::ensure!(!chain.is_empty(), "{}: there is none in it", place());
    Ok(chain)
}
