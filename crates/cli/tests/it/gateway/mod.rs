//! The gateway as a process, seen from its clients and from the service behind it.

mod asked;
mod disks;
mod identity;
mod killed;
mod life;
mod operators;
mod outage;
mod promises;
mod raw;
mod rig;
mod severed;
mod subjects;
