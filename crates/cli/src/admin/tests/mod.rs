//! The admin API over real HTTP, on a memory store whose clock the tests move.

mod bad_input;
mod described;
mod operators;
mod probing;
mod rig;
