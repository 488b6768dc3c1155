//! TLS to the server, as far as the address asks for it. The driver shakes hands; this says whom to trust.

use std::path::Path;

use mysql_async::SslOpts;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use semel_core::error::{Error, Kind};

use super::options::Secrecy;

pub(super) fn options(secrecy: Secrecy, ca: Option<&Path>) -> Result<Option<SslOpts>, Error> {
    if secrecy == Secrecy::Plain {
        return Ok(None);
    }
    // The driver takes the provider of the process. Whoever chose one keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = match secrecy {
        Secrecy::Chain | Secrecy::ChainAndName => SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(roots(ca)?.into_iter().map(|root| root.to_vec().into()).collect()),
        _ => SslOpts::default().with_danger_accept_invalid_certs(true),
    };
    Ok(Some(options.with_danger_skip_domain_validation(secrecy != Secrecy::ChainAndName)))
}

/// The certificates in the file, or those the operating system trusts.
fn roots(file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, Error> {
    let Some(file) = file else {
        let native = rustls_native_certs::load_native_certs().certs;
        return match native.is_empty() {
            true => Err(Error::new(
                Kind::Misconfigured,
                "the operating system has no root certificates; name a file with sslrootcert=",
            )),
            false => Ok(native),
        };
    };
    let unreadable = |cause: String| {
        let place = file.display();
        Error::new(Kind::Misconfigured, format!("the certificates in {place} cannot be read")).because(cause)
    };
    let found = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))?;
    let roots: Result<Vec<_>, _> = found.collect();
    let roots = roots.map_err(|error| unreadable(error.to_string()))?;
    if roots.is_empty() { Err(unreadable("no certificate in it".into())) } else { Ok(roots) }
}
