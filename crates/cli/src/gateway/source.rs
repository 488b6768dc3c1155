//! Who a client is, as the HTTP layer asks it.

use std::sync::Arc;

use http::request::Parts;
use semel::http::tenant::{self as door, Answer, Hasher};
use semel::runtime::Boxed;
use semel::{Clock, Runtime, SystemClock};

use super::serve::Peer;
use super::tenant::{Check, Decision, Refused};

/// A route's rule.
pub(crate) struct Source {
    pub(crate) check: Check,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) clock: SystemClock,
}

impl Source {
    fn decide<'a>(&self, request: &'a Parts) -> Result<Decision<'a>, Refused> {
        let peer = request.extensions.get::<Peer>().map(|Peer(address)| address.ip());
        let certificate = request.extensions.get::<door::ClientCertificate>();
        let now = u64::try_from(self.clock.now().as_micros() / 1_000_000).unwrap_or_default();
        self.check.decide(&request.headers, peer, certificate, now)
    }
}

impl door::Source for Source {
    fn tenant(&self, request: &Parts, hasher: &Hasher) -> Answer {
        match self.decide(request) {
            Ok(Decision::Shared) => Answer::Shared,
            Ok(Decision::Named(name)) => Answer::Is(name.into_owned()),
            Ok(Decision::Credential(credential)) => Answer::Is(hasher.hash("credential", credential.bytes())),
            Err(Refused::Undeclared) => Answer::Undeclared,
            Err(refused @ Refused::Missing { .. }) => Answer::Missing(sentence(&refused.to_string())),
            Err(refused @ Refused::Unverified(_)) => Answer::Unverified(sentence(&refused.to_string())),
        }
    }

    fn learn(&self, request: &Parts, answer: &Answer) -> Option<Boxed<()>> {
        match answer {
            Answer::Unverified(_) => self.check.refresh(&self.decide(request).err()?, &*self.runtime),
            _ => None,
        }
    }
}

/// The client reads it as a sentence of its own.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}
