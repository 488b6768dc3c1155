//! The outbox of MySQL on a real MariaDB.

mod crash;
mod desk;
mod locks;
mod restored;
mod set_back;

semel_testkit::outbox_conformance!(match desk::maker() {
    Some(maker) => maker,
    None => return,
});
