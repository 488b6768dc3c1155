//! A route's settings as the policy that runs its operations.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel::fingerprint::Pointers;
use semel::policy::{Nonsense, Outage, Redaction};
use semel::{Keyring, Policy, Recovery as Terms, SubjectKeys};

use super::resolved::{Encryption, Recovery, RouteSettings};

/// The policy, or every contradiction in the settings.
pub(crate) fn policy(
    settings: &RouteSettings,
    keyring: Option<&Keyring>,
    subject_keys: Option<&Arc<dyn SubjectKeys>>,
) -> Result<Policy, Nonsense> {
    let recovery = match settings.recovery {
        Recovery::Hold => Terms::Hold,
        Recovery::Rerun => Terms::Rerun,
        Recovery::Ask(_) => Terms::Ask,
    };
    let body = Pointers::parse(&settings.redact_body).map_err(|error| Nonsense(vec![error.to_string()]))?;
    let redaction = Redaction {
        headers: settings.redact_headers.iter().map(|name| name.as_str().to_owned()).collect(),
        body: (!body.is_empty()).then_some(body),
    };
    let mut builder = Policy::builder()
        .recovery(recovery)
        .lease(settings.lease)
        .run_max(settings.run_max)
        .ttl(settings.ttl)
        .retry_window(settings.retry_window)
        .wait(settings.wait)
        .store_patience(settings.store_patience)
        .outage(if settings.outage_open { Outage::Open } else { Outage::Closed })
        .request_bytes_max(settings.request_bytes_max)
        .outcome_bytes_max(settings.outcome_bytes_max)
        .redact(redaction);
    if settings.natural_effect {
        builder = builder.natural_effect();
    }
    match keyring {
        Some(keyring) if settings.encrypt => {
            builder = builder.encrypt(keyring.clone());
            if let Some(place) = subject_keys {
                builder = builder.subject_keys(place.clone());
            }
            builder.build()
        }
        _ => builder.build(),
    }
}

/// The keys of `[encryption]`: the first seals, the others read.
pub(crate) fn keyring(encryption: &Encryption) -> Result<Keyring, String> {
    let mut ring: Option<Keyring> = None;
    for (id, secret) in &encryption.keys {
        let key = sealing_key(&secret.0)?;
        ring = Some(
            match ring {
                None => Keyring::new(id, &key),
                Some(ring) => ring.with_older(id, &key),
            }
            .map_err(|error| error.to_string())?,
        );
    }
    ring.ok_or_else(|| "the list of keys is empty".into())
}

/// 32 bytes from base64. The text is never repeated.
pub(crate) fn sealing_key(text: &str) -> Result<[u8; 32], String> {
    let bytes = STANDARD
        .decode(text.trim())
        .map_err(|_| "the key is not base64; make one with `openssl rand -base64 32`")?;
    let count = bytes.len();
    bytes.try_into().map_err(|_| format!("the key has {count} bytes; it needs 32: `openssl rand -base64 32`"))
}
