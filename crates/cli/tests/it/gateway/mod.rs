//! The gateway as a process, seen from its clients and from the service behind it.

mod life;
mod promises;
mod rig;
