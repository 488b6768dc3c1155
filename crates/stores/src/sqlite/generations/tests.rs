use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Request;
use semel_core::fingerprint::{Paths, Print};
use semel_core::record::{Moment, Recovery, Terms, Verb};
use semel_core::{Nonce, Operation, Scope, Timestamp};

use super::*;
use crate::sqlite::migrate;
use crate::sqlite::place::Place;

/// A file with generations of 64 tokens.
struct File {
    conn: Connection,
    generations: Generations,
    directory: tempfile::TempDir,
}

impl File {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::at(&directory.path().join("semel.db")).unwrap();
        let mut conn = Connection::open(place.path()).unwrap();
        conn.pragma_update(None, "synchronous", "OFF").unwrap();
        migrate::run(&mut conn, &place, Timestamp::from_micros(0)).unwrap();
        conn.execute("UPDATE semel_meta SET generation_bits = 6", []).unwrap();
        let generations = Generations::new(&reader::describe(&conn).unwrap());
        Self { conn, generations, directory }
    }

    /// With this many claims, `op-1` and so on, each under the token of its number.
    fn with_claims(count: u64) -> Self {
        let file = Self::new();
        file.claims(1..=count);
        file
    }

    fn claims(&self, numbers: std::ops::RangeInclusive<u64>) {
        self.conn.execute_batch("BEGIN").unwrap();
        numbers.for_each(|n| self.claim(&format!("op-{n}")));
        self.conn.execute_batch("COMMIT").unwrap();
    }

    /// A claim under the next token.
    fn claim(&self, key: &str) {
        let mark = reader::mark(&self.conn, self.generations.store_id).unwrap();
        let fresh = Token(mark.token.0 + 1);
        let day = Duration::from_secs(24 * 3600);
        let request = Request {
            operation: Arc::new(operation(key)),
            nonce: Nonce::random(),
            print: Print { version: 1, digest: [7; 32], paths: Paths::default() },
            terms: Terms { recovery: Recovery::Hold, lease: day, run_max: day, ttl: day, retry_window: day },
            subject: None,
        };
        let step = request.decide(None, Moment { now: Timestamp::from_micros(1), fresh });
        row::put(&self.conn, self.generations.span(), None, &step.put.unwrap()).unwrap();
        self.mark(mark.epoch, fresh);
    }

    fn mark(&self, epoch: u64, token: Token) {
        let values = [i64::try_from(epoch).unwrap(), i64::try_from(token.0).unwrap()];
        self.conn.execute(include_str!("../sql/set_mark.sql"), values).unwrap();
    }

    fn learner(&self) -> Learner<'_> {
        let mut learner = Learner::new(&self.generations);
        while learner.learn(&self.conn).unwrap() {}
        learner
    }

    fn look(&self, key: &str) -> Option<Record> {
        self.look_on(&self.conn, key)
    }

    fn look_on(&self, conn: &Connection, key: &str) -> Option<Record> {
        let mark = reader::mark(conn, self.generations.store_id).unwrap();
        self.generations.find(conn, operation(key).id(), mark).unwrap()
    }

    fn has(&self, n: u64) -> bool {
        self.look(&format!("op-{n}")).is_some()
    }

    fn up_to(&self) -> Option<i64> {
        self.generations.known().up_to
    }

    fn known(&self) -> Vec<i64> {
        self.generations.known().generations().collect()
    }

    /// As the sweeper does, but for the token.
    fn fold(&self, generation: i64) {
        self.conn.execute(include_str!("../sql/fold_generation.sql"), [generation, 1000]).unwrap();
    }
}

fn operation(key: &str) -> Operation {
    Operation::new(Scope::shared("shop", "charge").unwrap(), key.parse().unwrap())
}

// G-8
#[test]
fn every_id_is_found_through_the_filter_and_few_are_looked_for_in_vain() {
    let file = File::with_claims(1300);
    file.learner();
    assert_eq!(file.up_to(), Some(20), "1300 tokens in steps of 64, the last one open");
    assert!((1..=1300).all(|n| file.has(n)));
    let suspects = |key: String| file.generations.known().suspects(operation(&key).id()).collect::<Vec<_>>();
    for n in 1..64 {
        assert!(suspects(format!("op-{n}")).contains(&1), "op-{n} is in a closed generation");
    }
    assert!(file.look("another").is_none());
    let vain: usize = (0..1000).map(|n| suspects(format!("none-{n}")).len()).sum();
    assert!(vain < 400, "{vain} of 20,000 looks, where 80 are to be expected");
}

// G-8
#[test]
fn the_second_newest_is_looked_into_until_it_is_learned() {
    let file = File::with_claims(100);
    file.learner();
    assert_eq!(file.up_to(), Some(1));
    file.claims(101..=130);
    assert!((1..=130).all(|n| file.has(n)), "in the third, with the second not learned");
    file.claims(131..=200);
    assert!((1..=200).all(|n| file.has(n)), "in the fourth, with neither second nor third learned");
    assert_eq!(file.up_to(), Some(1));
}

// G-8, G-13
#[test]
fn a_filter_is_not_asked_about_another_epoch_or_an_earlier_state() {
    let file = File::with_claims(200);
    file.learner();
    // Restored to an earlier state, and accepted by a process that had not seen the last tokens.
    file.conn.execute("DELETE FROM semel_operation WHERE token > 70", []).unwrap();
    file.mark(1, Token(70));
    file.claim("after-the-restore");
    file.mark(1, Token(130));
    assert!(file.look("after-the-restore").is_some(), "at an earlier token");
    file.mark(2, Token(100));
    file.claim("in-the-new-epoch");
    file.mark(2, Token(300));
    assert!(file.look("in-the-new-epoch").is_some(), "above all tokens seen before");
    file.learner();
    assert!(file.look("in-the-new-epoch").is_some() && file.look("after-the-restore").is_some());
    assert!(file.has(1));
}

// G-8, G-13
#[test]
fn rows_beyond_the_mark_are_found_and_nothing_is_learned_of_them() {
    let file = File::with_claims(300);
    file.mark(1, Token(70));
    let told = Learner::new(&file.generations).learn(&file.conn);
    assert!(told.is_err_and(|fault| fault.to_string().contains("higher tokens")));
    assert!((1..=300).all(|n| file.has(n)));
}

// G-8
#[test]
fn what_was_there_before_there_were_generations_is_found() {
    let file = File::with_claims(1);
    file.conn.execute("UPDATE semel_operation SET generation = 0", []).unwrap();
    assert!(file.has(1), "before anything is learned");
    file.mark(1, Token(500));
    file.learner();
    assert!(file.has(1), "and after it");
}

// G-8
#[test]
fn what_is_left_of_a_generation_is_found_before_and_after_it_is_put_elsewhere() {
    let file = File::with_claims(200);
    let mut learner = file.learner();
    file.conn.execute("DELETE FROM semel_operation WHERE token < 64 AND token <> 5", []).unwrap();
    (0..3).for_each(|_| learner.look_around(&file.conn).unwrap());
    assert_eq!(file.generations.sparse(), Some(1));
    assert!(file.has(5), "while it is sparse");
    file.fold(1);
    assert!(file.has(5), "when it was put elsewhere");
    (0..3).for_each(|_| learner.look_around(&file.conn).unwrap());
    assert!(!file.known().contains(&1));
    assert!(file.has(5), "when its generation was forgotten");
}

// G-8, G-13: who still sees the record where it was looks everywhere, for the fold took a token.
#[test]
fn an_empty_generation_is_not_believed_empty_by_who_sees_an_earlier_state() {
    let file = File::with_claims(200);
    let mut learner = file.learner();
    file.conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
    file.conn.execute("DELETE FROM semel_operation WHERE token < 64 AND token <> 5", []).unwrap();
    let other = Connection::open(file.directory.path().join("semel.db")).unwrap();
    let earlier = other.unchecked_transaction().unwrap();
    assert_eq!(reader::mark(&earlier, file.generations.store_id).unwrap().token, Token(200));
    file.fold(1);
    file.mark(1, Token(201));
    (0..3).for_each(|_| learner.look_around(&file.conn).unwrap());
    assert!(!file.known().contains(&1));
    assert!(file.look_on(&earlier, "op-5").is_some());
}

#[test]
fn a_generation_that_is_empty_is_forgotten_and_its_place_used_again() {
    let file = File::with_claims(600);
    let mut learner = file.learner();
    file.conn.execute("DELETE FROM semel_operation WHERE token < 550", []).unwrap();
    (0..9).for_each(|_| learner.look_around(&file.conn).unwrap());
    assert_eq!(file.known(), [9]);
    file.claims(601..=800);
    while learner.learn(&file.conn).unwrap() {}
    assert_eq!(file.generations.known().blocks.len(), 2);
    assert!((550..=800).all(|n| file.has(n)));
}

#[test]
fn an_id_of_another_length_keeps_nothing_from_being_learned() {
    let file = File::with_claims(300);
    file.conn.execute("UPDATE semel_operation SET id = x'01' WHERE token = 100", []).unwrap();
    file.learner();
    assert_eq!(file.up_to(), Some(4));
    assert!((1..=300).all(|n| file.has(n) == (n != 100)));
}
