//! The PostgreSQL store on a real server, directly and through a pooler.

mod batches;
mod crash;
mod fences;
mod joined;
mod ledger;
mod lost_commit;
mod outbox;
mod proxy;
mod reach;
mod restored;
mod rig;
mod schema;
mod sqlx_joined;
mod standby;
mod subject_keys;
mod sweeping;

/// The suites every store passes, straight to the server.
mod direct {
    semel_testkit::conformance!(match super::rig::direct() {
        Some(maker) => maker,
        None => return,
    });

    semel_testkit::execution!(match super::rig::direct() {
        Some(maker) => maker,
        None => return,
    });

    #[test]
    fn interleavings() {
        if let Some(maker) = super::rig::direct() {
            semel_testkit::interleavings(maker, 24);
        }
    }
}

/// The same, through a pooler that gives each transaction another session.
mod pooled {
    semel_testkit::conformance!(match super::rig::pooled() {
        Some(maker) => maker,
        None => return,
    });

    semel_testkit::execution!(match super::rig::pooled() {
        Some(maker) => maker,
        None => return,
    });

    #[test]
    fn interleavings() {
        if let Some(maker) = super::rig::pooled() {
            semel_testkit::interleavings(maker, 12);
        }
    }
}
