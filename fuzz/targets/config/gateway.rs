//! What settings are judged by, of the gateway.

#[path = "../../../crates/cli/src/gateway/tenant/jwk.rs"]
mod jwk;
#[path = "../../../crates/cli/src/gateway/matching.rs"]
pub(crate) mod matching;
#[path = "../../../crates/cli/src/gateway/requests.rs"]
pub(crate) mod requests;

pub(crate) mod tenant {
    pub(crate) use super::jwk::parse_set;
}
