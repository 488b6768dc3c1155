//! The outbox of MySQL on a real MariaDB.

mod crash;
mod desk;
mod locks;
mod restored;

semel_testkit::outbox_conformance!(match desk::maker() {
    Some(maker) => maker,
    None => return,
});
