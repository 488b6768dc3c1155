//! TLS to the upstream: the system's roots, and the operator's beside them.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use anyhow::Context as _;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::super::net::one_of;
use super::line::Gated;

/// One connector per protocol: what is offered is what will be spoken.
#[derive(Clone)]
pub(super) struct Connectors {
    pub(super) http1: TlsConnector,
    pub(super) http2: TlsConnector,
}

/// Read once: a start asks for them more than once, and a simulation starts gateways by the thousand.
static SYSTEM: LazyLock<Vec<CertificateDer<'static>>> =
    LazyLock::new(|| rustls_native_certs::load_native_certs().certs);

/// Whom to believe: the system's roots and those of a file.
pub(crate) fn client_config(extra: Option<&Path>) -> anyhow::Result<ClientConfig> {
    with_roots(roots(extra)?)
}

fn roots(extra: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(SYSTEM.iter().cloned());
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

one_of!(Transport: Plain, Tls);
