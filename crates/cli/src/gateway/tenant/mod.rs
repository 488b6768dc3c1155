//! Who a client is: the authenticated principal that a route's operations belong to (G-5).
//!
//! A replay shows a stored answer, so nobody is believed without proof: a claim counts when its token's
//! signature, `exp` and `nbf` hold now, also for a replay; a header counts when a listed peer sent it. Where
//! the operator has not said who clients are, a request with a credential is refused rather than guessed.
//!
//! [`Check::decide`] is pure: it reads headers, the peer's address and a time that it is given. It hashes
//! nothing, since hash keys live in the store: what must be hashed is handed on as [`Decision::Credential`].
//! Raw credentials and tokens are in no error, and no `Debug` shows them.

mod check;
mod jwk;
mod jwks;
mod jwt;

pub(crate) use check::{Check, Decision, Refused, strip};
pub(crate) use jwk::parse_set;
pub(crate) use jwks::{Fetch, Sources};
