//! The idempotent consumer on real databases and a real broker. Effects are counted in the database.

// A test that cannot go on says so where it stands.
#![allow(clippy::unwrap_used)]

mod crash;
mod cut;
mod fence;
#[cfg(feature = "kafka")]
mod kafka;
mod ledger;
mod nats;
mod order;
#[cfg(feature = "kafka")]
mod restored;
mod world;

/// One test per database: the body gets a fresh one.
macro_rules! on_every_database {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[test] fn $name() { crate::world::on_sqlite(super::$name); })*
        }
        mod on_postgres {
            $(#[test] fn $name() { crate::world::on_postgres(super::$name); })*
        }
        mod on_mariadb {
            $(#[test] fn $name() { crate::world::on_mariadb(super::$name); })*
        }
    };
}
pub(crate) use on_every_database;
