//! Any bytes as what a store gives back: an outcome, sealed or not, a history, the paths of a print. G-20
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use semel::fingerprint::Paths;
use semel::history::History;
use semel::{Keyring, Operation, Outcome, Scope, seal};

fuzz_target!(|stored: &[u8]| {
    let bytes = Bytes::copy_from_slice(stored);
    if let Ok(outcome) = Outcome::decode(&bytes) {
        assert_eq!(Outcome::decode(&outcome.encode().into()), Ok(outcome));
    }
    if let Ok(history) = History::decode(Some(stored)) {
        let again = history.encode();
        assert_eq!(History::decode(again.as_deref()), Ok(history));
    }
    if let Ok(paths) = Paths::decode(stored) {
        assert_eq!(paths.encode(), stored);
    }
    let scope = Scope::shared("fuzz", "stored").expect("plain words");
    let id = Operation::new(scope, "key".parse().expect("a plain key")).id();
    let keys = Keyring::new("k", &[7; 32]).expect("a short id");
    for keys in [None, Some(&keys)] {
        if let Ok(outcome) = seal::open(&bytes, id, keys) {
            assert_eq!(seal::open(&seal::close(&outcome, id, keys), id, keys), Ok(outcome));
        }
    }
});
