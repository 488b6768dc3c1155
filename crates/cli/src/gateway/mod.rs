//! The gateway: Semel in front of a service written in any language.

pub(crate) mod matching;
pub(crate) mod requests;
pub(crate) mod tenant;
