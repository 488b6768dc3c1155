//! Calls that tests of every server make.

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Request;
use semel_core::error::Error;
use semel_core::fingerprint::{Paths, Print};
use semel_core::record::{Recovery, Terms};
use semel_core::verbs::Complete;
use semel_core::{Claim, Lease, Nonce, Operation, Scope};

/// A first claim of a key, under the default terms of these tests.
pub(crate) fn request(key: &str) -> Request {
    let scope = Scope::new("it", "tenant", "charge").unwrap();
    Request {
        operation: Arc::new(Operation::new(scope, key.parse().unwrap())),
        nonce: Nonce::random(),
        print: Print { version: 1, digest: [7; 32], paths: Paths::default() },
        terms: Terms {
            recovery: Recovery::Hold,
            lease: Duration::from_secs(60),
            run_max: Duration::from_secs(60),
            ttl: Duration::from_secs(3600),
            retry_window: Duration::from_secs(600),
        },
        subject: None,
    }
}

/// The lease, or a panic.
pub(crate) fn granted(claim: Claim) -> Lease {
    match claim {
        Claim::Granted(lease) => lease,
        other => panic!("granted, not {other:?}"),
    }
}

/// A plain completion.
pub(crate) fn complete(lease: &Lease, outcome: impl Into<bytes::Bytes>) -> Complete {
    Complete { holder: lease.holder, outcome: outcome.into(), ttl_min: None }
}

/// Calls until the store is back. What fails meanwhile must be worth repeating.
pub(crate) async fn persist<T>(mut call: impl AsyncFnMut() -> Result<T, Error>) -> T {
    let mut failures = 0;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                failures += 1;
                assert!(error.is_retryable() && failures < 50, "{error:?}");
            }
        }
    }
}
