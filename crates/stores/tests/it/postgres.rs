//! The PostgreSQL store on a real server, directly and through a pooler.

mod rig;

mod direct {
    semel_testkit::conformance!(match super::rig::direct() {
        Some(maker) => maker,
        None => return,
    });
}

mod pooled {
    semel_testkit::conformance!(match super::rig::pooled() {
        Some(maker) => maker,
        None => return,
    });
}
