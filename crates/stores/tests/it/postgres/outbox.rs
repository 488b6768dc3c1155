//! The outbox in PostgreSQL: the suite, and what only this database can do to it.

mod commits;
mod crash;
mod desk;
mod locks;
mod restored;
mod reused;
mod ring;
mod together;

/// The suite every outbox passes, straight to the server.
mod direct {
    semel_testkit::outbox_conformance!(match super::desk::direct() {
        Some(maker) => maker,
        None => return,
    });
}

/// The same, through a pooler that gives each transaction another session.
mod pooled {
    semel_testkit::outbox_conformance!(match super::desk::pooled() {
        Some(maker) => maker,
        None => return,
    });
}
