//! Payment services that are broken on purpose, one flaw each, and one that is not.
//!
//! They are what a tester of idempotency is tested on: it has to find the flaw of every animal, and
//! nothing in the control. All share one sound skeleton ([`service`]); an animal replaces one of its
//! [`habits`] by a function of [`flaws`]. Each runs as a process of its own ([`cage`]), so that
//! `kill -9` is what it says. [`signs`] looks at each flaw directly, without any tester.

mod cage;
mod canonical;
mod client;
mod flaws;
mod habits;
mod ledger;
mod list;
mod proofs;
mod service;
mod signs;
mod store;

pub(crate) use cage::Cage;
pub(crate) use list::{ANIMALS, Animal, CONTROL, Family, TROUBLED};

/// The animal's side. In an ordinary run of the tests there is nothing to do.
#[test]
fn animal() {
    if let Some(order) = cage::Order::given() {
        cage::live(order);
    }
}
