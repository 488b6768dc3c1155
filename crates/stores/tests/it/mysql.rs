//! The MySQL store on a real MariaDB.

mod batches;
mod crash;
mod fences;
mod inbox;
mod joined;
mod lost_commit;
mod outbox;
mod proxy;
mod reach;
mod restored;
mod rig;
mod schema;
mod server;
mod sweeping;
mod two;

semel_testkit::conformance!(match rig::maker() {
    Some(maker) => maker,
    None => return,
});

semel_testkit::execution!(match rig::maker() {
    Some(maker) => maker,
    None => return,
});

#[test]
fn interleavings() {
    if let Some(maker) = rig::maker() {
        semel_testkit::interleavings(maker, 24);
    }
}
