//! What a crash leaves behind, at each place where it hurts. The process that dies is this test binary,
//! started again for the purpose.

/// The cases, for a module with a `rig` beside it. The engine names the module, the prefix its points of crash.
macro_rules! crashes {
    ($engine:literal, $prefix:literal) => {
        use std::process::{Command, Stdio};

        use semel_core::store::EffectStore;
        use semel_core::verbs::{Change, Completion, Release};
        use semel_core::{Claim, Nonce, State};

        use super::rig::{Database, complete, connect, granted, request, with_database};

        const CHILD: &str = concat!($engine, "::crash::the_process_that_crashes");

        /// Runs the child until it dies, with the nonce its claim uses.
        fn crash_at(database: &Database, point: &str, verb: &str, nonce: Nonce) {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", CHILD, "--nocapture"])
                .env("SEMEL_CRASH_AT", point)
                .env("SEMEL_CRASH_URL", database.url())
                .env("SEMEL_CRASH_VERB", verb)
                .env("SEMEL_CRASH_NONCE", nonce.to_string())
                .env_remove("SEMEL_TEST_LEDGER")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert!(!status.success(), "the child must die at {point}");
            assert_ne!(status.code(), Some(101), "a panic is not the crash that was ordered at {point}");
        }

        fn nonce(hex: &str) -> Nonce {
            let mut bytes = [0; 16];
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
            }
            Nonce::from_bytes(bytes)
        }

        /// Does nothing unless a test below started it.
        #[test]
        fn the_process_that_crashes() {
            let Ok(url) = std::env::var("SEMEL_CRASH_URL") else { return };
            let verb = std::env::var("SEMEL_CRASH_VERB").unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let store = connect(&url).await;
                let mut claim = request(&verb);
                claim.nonce = nonce(&std::env::var("SEMEL_CRASH_NONCE").unwrap());
                let lease = granted(store.claim(&claim).await.unwrap());
                match verb.as_str() {
                    "complete" => drop(store.complete(&complete(&lease, "paid")).await.unwrap()),
                    "release" => drop(store.release(&Release { holder: lease.holder }).await.unwrap()),
                    _ => {}
                }
            });
        }

        // G-8, G-9: before the commit nothing happened; after it, the same nonce finds its lease.
        #[test]
        fn a_crash_around_the_commit_of_a_claim() {
            with_database(async |database| {
                let store = connect(&database.url()).await;
                for (point, there) in [
                    (concat!($prefix, "-before-claim-commit"), false),
                    (concat!($prefix, "-after-claim-commit"), true),
                ] {
                    let mut claim = request("claim");
                    crash_at(&database, point, "claim", claim.nonce);
                    let other = store.claim(&request("claim")).await.unwrap();
                    assert_eq!(matches!(other, Claim::InFlight { .. }), there, "{point}: {other:?}");
                    match other {
                        Claim::Granted(lease) => {
                            let _ = store.release(&Release { holder: lease.holder }).await.unwrap();
                        }
                        _ => {
                            claim.operation = request("claim").operation;
                            let lease = granted(store.claim(&claim).await.unwrap());
                            assert_eq!(
                                store.complete(&complete(&lease, "paid")).await.unwrap(),
                                Completion::Stored
                            );
                        }
                    }
                    database.run("DELETE FROM semel_operation").await;
                }
            });
        }

        // G-7, G-9: before the commit the record is as it was; after it, the outcome is stored.
        #[test]
        fn a_crash_around_the_commit_of_a_completion() {
            with_database(async |database| {
                let store = connect(&database.url()).await;
                for (point, state) in [
                    (concat!($prefix, "-before-complete-commit"), State::InProgress),
                    (concat!($prefix, "-after-complete-commit"), State::Completed),
                ] {
                    let mut claim = request("complete");
                    claim.nonce = Nonce::random();
                    crash_at(&database, point, "complete", claim.nonce);
                    let record = store.get(claim.operation.id()).await.unwrap().unwrap();
                    assert_eq!((record.state, record.nonce), (state, claim.nonce), "{point}");
                    let done = semel_core::verbs::Complete {
                        holder: record.holder(),
                        outcome: "paid".into(),
                        ttl_min: None,
                    };
                    assert_eq!(
                        store.complete(&done).await.unwrap(),
                        Completion::Stored,
                        "repeating it finds out"
                    );
                    assert_eq!(
                        store.get(claim.operation.id()).await.unwrap().unwrap().history.events().len(),
                        0
                    );
                    database.run("DELETE FROM semel_operation").await;
                }
            });
        }

        // G-9
        #[test]
        fn a_crash_around_the_commit_of_a_release() {
            with_database(async |database| {
                let store = connect(&database.url()).await;
                for (point, state) in [
                    (concat!($prefix, "-before-step-commit"), State::InProgress),
                    (concat!($prefix, "-after-step-commit"), State::Released),
                ] {
                    let claim = request("release");
                    crash_at(&database, point, "release", claim.nonce);
                    let record = store.get(claim.operation.id()).await.unwrap().unwrap();
                    assert_eq!((record.state, record.nonce), (state, claim.nonce), "{point}");
                    let release = Release { holder: record.holder() };
                    assert_eq!(
                        store.release(&release).await.unwrap(),
                        Change::Made,
                        "repeating it finds out"
                    );
                    let again = granted(store.claim(&request("release")).await.unwrap());
                    assert_eq!(again.attempt, 2);
                    database.run("DELETE FROM semel_operation").await;
                }
            });
        }
    };
}

pub(crate) use crashes;
