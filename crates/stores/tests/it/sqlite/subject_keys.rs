//! Keys of subjects in a file: the suite every place passes, and what only a file can suffer.

use std::io::Write;

use semel_core::SubjectKeys;
use semel_core::subject::{Forgotten, KeyId, SubjectId, Wrapped};
use semel_stores::sqlite::SqliteSubjectKeys;
use semel_testkit::BoxFuture;
use semel_testkit::subjects::{Maker, Rig, offer};

use super::*;

semel_testkit::subject_keys!(maker());

struct File(Disk);

fn maker() -> Maker {
    Arc::new(|| Box::pin(async { Arc::new(File(Disk::new())) as Arc<dyn Rig> }))
}

impl Rig for File {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn SubjectKeys>> {
        Box::pin(async { Arc::new(open(&self.0)) as Arc<dyn SubjectKeys> })
    }
}

fn open(disk: &Disk) -> SqliteSubjectKeys {
    SqliteSubjectKeys::open(disk.path()).unwrap()
}

fn anna() -> SubjectId {
    SubjectId::of("anna")
}

/// Whether bytes are anywhere in the file or beside it.
fn is_on_disk(disk: &Disk, bytes: &[u8]) -> bool {
    std::fs::read_dir(disk.0.path()).unwrap().any(|entry| {
        let held = std::fs::read(entry.unwrap().path()).unwrap();
        held.windows(bytes.len()).any(|window| window == bytes)
    })
}

#[tokio::test]
async fn a_forgotten_key_is_nowhere_in_the_file_nor_in_its_log() {
    // G-20: many, so that pages are split, merged and used again in between.
    let disk = Disk::new();
    let place = open(&disk);
    let mut keys = Vec::new();
    for n in 0..600 {
        let subject = SubjectId::of(&format!("subject-{n}"));
        keys.push((subject, place.obtain(subject, &offer("m-1")).await.unwrap()));
    }
    for (_, key) in keys.iter_mut().step_by(3) {
        *key = Wrapped { id: key.id, ..offer("a-longer-name-of-a-master") };
        place.rewrap(key).await.unwrap();
    }
    assert!(is_on_disk(&disk, &keys[0].1.sealed), "the search finds what is there");
    for round in 0..4 {
        let (gone, kept): (Vec<_>, Vec<_>) =
            keys.into_iter().enumerate().partition(|(at, _)| at % 4 == round % 3);
        for (_, (subject, _)) in &gone {
            assert_eq!(place.forget(*subject).await.unwrap(), Forgotten::Key);
        }
        for (at, (_, key)) in &gone {
            assert!(!is_on_disk(&disk, &key.sealed), "round {round}: key {at} is still on disk");
        }
        keys = kept.into_iter().map(|(_, key)| key).collect();
        for n in 0..40 {
            let subject = SubjectId::of(&format!("late-{round}-{n}"));
            keys.push((subject, place.obtain(subject, &offer("m-2")).await.unwrap()));
        }
        for (_, key) in &keys {
            assert_eq!(place.find(key.id).await.unwrap().as_ref(), Some(key));
        }
    }
}

#[tokio::test]
async fn a_reader_who_holds_the_log_keeps_forgetting_from_being_called_done() {
    // G-20
    let disk = Disk::new();
    let place = open(&disk);
    let key = place.obtain(anna(), &offer("m-1")).await.unwrap();
    let reader = disk.meddle();
    reader.execute_batch("BEGIN; SELECT count(*) FROM semel_subject_key;").unwrap();
    let busy = place.forget(anna()).await.unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy, "{busy}");
    assert_eq!(place.find(key.id).await.unwrap(), None, "it is gone all the same");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(place.forget(anna()).await.unwrap(), Forgotten::Nothing);
    assert!(!is_on_disk(&disk, &key.sealed));
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_is_for_its_owner_alone_and_missed_when_it_is_taken_away() {
    // G-20
    use std::os::unix::fs::PermissionsExt;
    let disk = Disk::new();
    let place = open(&disk);
    place.obtain(anna(), &offer("m-1")).await.unwrap();
    for file in std::fs::read_dir(disk.0.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.path());
    }
    let elsewhere = disk.0.path().join("elsewhere");
    std::fs::rename(disk.path(), &elsewhere).unwrap();
    // A key that goes into a file nobody will find again must not be used.
    refused(place.obtain(SubjectId::of("ben"), &offer("m-1")).await, Kind::Unreachable);
    refused(place.find(KeyId::FIRST).await, Kind::Unreachable);
    refused(place.forget(anna()).await, Kind::Unreachable);
    std::fs::rename(&elsewhere, disk.path()).unwrap();
    assert_eq!(place.forget(anna()).await.unwrap(), Forgotten::Key);
}

#[tokio::test]
async fn a_store_is_no_place_for_keys_and_a_newer_file_says_upgrade() {
    // G-20
    let disk = Disk::new();
    drop(disk.open());
    let same = SqliteSubjectKeys::open(disk.path()).map(drop);
    assert!(refused(same, Kind::Misconfigured).contains("of their own"));
    let disk = Disk::new();
    drop(open(&disk));
    disk.meddle().execute_batch("UPDATE semel_key_schema SET version = 2").unwrap();
    let newer = SqliteSubjectKeys::open(disk.path()).map(drop);
    assert!(refused(newer, Kind::Schema).contains("upgrade"));
}

/// Obtains or forgets, as it is told, and says so.
#[tokio::test]
async fn child_that_dies_with_a_key() {
    let Some(path) = given_to_child() else { return };
    let place = SqliteSubjectKeys::open(path).unwrap();
    let key = place.obtain(anna(), &offer("m-1")).await.unwrap();
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nobtained {}", key.id).unwrap();
    out.flush().unwrap();
    drop(out);
    place.forget(anna()).await.unwrap();
    println!("\nforgotten");
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn a_crash_leaves_a_key_that_was_answered_and_forgetting_can_be_repeated() {
    // G-20
    for (point, answered, stays) in [
        ("keys-before-obtain", false, false),
        ("keys-obtained", false, true),
        ("keys-before-forget", true, true),
        ("keys-before-emptied", true, false),
        ("keys-forgotten", true, false),
    ] {
        let disk = Disk::new();
        drop(open(&disk));
        let mut command = child("sqlite::subject_keys::child_that_dies_with_a_key", &disk.path());
        let output = command.env("SEMEL_CRASH_AT", point).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && !said.contains("\nforgotten"), "{point}: {said}");
        assert_eq!(said.contains("\nobtained"), answered, "{point}: {said}");
        let place = open(&disk);
        let mut sealed: Vec<Vec<u8>> = Vec::new();
        for key in place.wrapped_by("m-1", KeyId::FIRST, 10).await.unwrap() {
            sealed.push(key.sealed.to_vec());
        }
        assert_eq!(sealed.len(), usize::from(stays), "{point}");
        let expected = if stays { Forgotten::Key } else { Forgotten::Nothing };
        assert_eq!(place.forget(anna()).await.unwrap(), expected, "{point}");
        assert!(sealed.iter().all(|key| !is_on_disk(&disk, key)), "{point}");
        let log = disk.0.path().join("semel.db-wal");
        assert_eq!(std::fs::metadata(log).map_or(0, |log| log.len()), 0, "{point}: the log is empty");
    }
}
