//! What stands around the HTTP layer when Semel runs as a gateway.

pub(crate) mod ask;
pub(crate) mod fetch;
pub(crate) mod observe;
pub(crate) mod trace;
pub(crate) mod unknowns;
