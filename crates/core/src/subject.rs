//! A key for each subject, so that all that was sealed for one can be made unreadable at once.
//!
//! Outcomes of a policy with a subject are sealed with that subject's own key. The keys are in a place of
//! their own, never in the store that holds what they seal: a backup of the store then keeps nothing
//! readable of a subject who was forgotten, however old it is. In that place each key is wrapped by the
//! [`Keyring`]'s active key, so the place alone reads nothing either.
//!
//! A place keeps wrapped keys under digests of subjects; it sees neither a key nor a name. It decides nothing,
//! and it remembers nothing of what was forgotten: a subject who comes back gets a new key.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::KeyInit;

use crate::codec::hex;
use crate::digest::sha256;
use crate::error::{Error, Kind};
use crate::mutant;
use crate::outcome::Unreadable;
use crate::seal::Keyring;
use crate::store::Pending;

/// Bytes of a key's id.
pub const KEY_ID_BYTES: usize = 16;
/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes of a subject's digest.
pub const SUBJECT_ID_BYTES: usize = 32;

/// What a subject's key is known by: random, and so says nothing of the subject.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl KeyId {
    /// Before every id.
    pub const FIRST: Self = Self([0; KEY_ID_BYTES]);

    /// The id as bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_ID_BYTES] {
        &self.0
    }

    /// From bytes a place or an outcome gave back.
    pub fn from_bytes(bytes: [u8; KEY_ID_BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().flat_map(|byte| hex(*byte)).try_for_each(|digit| write!(f, "{digit}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// A subject as a key place knows it: a digest of the name. It keeps the name from being read by chance;
/// whoever can guess names can compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubjectId([u8; SUBJECT_ID_BYTES]);

impl SubjectId {
    /// The digest of a name.
    pub fn of(subject: &str) -> Self {
        Self(sha256(&[b"semel subject 1", subject.as_bytes()].concat()))
    }

    /// The digest as bytes.
    pub fn as_bytes(&self) -> &[u8; SUBJECT_ID_BYTES] {
        &self.0
    }
}

/// A subject's key as its place keeps it: sealed with a key of the ring, bound to its own id.
#[derive(Clone, PartialEq, Eq)]
pub struct Wrapped {
    /// What the key is known by.
    pub id: KeyId,
    /// Which key of the ring wraps it.
    pub master: String,
    /// Nonce and sealed bytes.
    pub sealed: Bytes,
}

impl fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrapped").field("id", &self.id).field("master", &self.master).finish_non_exhaustive()
    }
}

/// What came of forgetting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// There was a key, and it is gone.
    Key,
    /// There was none: the subject never had one, or an earlier call took it.
    Nothing,
}

/// A place that keeps the keys of subjects.
///
/// No verb has a default. All of them may be repeated, also after an answer that got lost, and several
/// processes may use a place at once. What is dropped halfway was applied or was not.
pub trait SubjectKeys: Send + Sync + 'static {
    /// The key of a subject. If there is none, `offered` becomes it; of several offered at once one does, and
    /// all callers are given that one.
    ///
    /// After a crash right after it: the key that was answered is there. Nothing is sealed with a key before
    /// this was answered.
    fn obtain<'a>(&'a self, subject: SubjectId, offered: &'a Wrapped) -> Pending<'a, Wrapped>;

    /// The key with this id. `None`: it was forgotten, or was never here.
    fn find(&self, key: KeyId) -> Pending<'_, Option<Wrapped>>;

    /// Puts a key's new wrapping in place of the old one. A key that is not there stays so.
    ///
    /// After a crash right after it: the key is wrapped the new way or the old way.
    fn rewrap<'a>(&'a self, fresh: &'a Wrapped) -> Pending<'a, ()>;

    /// Keys that `master` wraps, with ids above `after` in their order, at most `limit`.
    fn wrapped_by<'a>(&'a self, master: &'a str, after: KeyId, limit: u32) -> Pending<'a, Vec<Wrapped>>;

    /// Removes a subject's key, for good.
    ///
    /// After a crash right after it: the key is gone, and what it sealed is unreadable; or it is still there,
    /// and forgetting is to be repeated. What a place keeps beside its current state (a log, backups) it must
    /// say in its docs.
    fn forget(&self, subject: SubjectId) -> Pending<'_, Forgotten>;
}

/// A subject's key, ready for use. It is in memory only.
#[derive(Clone)]
pub struct Key {
    id: KeyId,
    pub(crate) cipher: XChaCha20Poly1305,
}

impl Key {
    /// What it is known by.
    pub fn id(&self) -> KeyId {
        self.id
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What wrapping is bound to: a key moved under another id does not open.
fn bound_to(id: KeyId) -> Vec<u8> {
    let id: &[u8] = if mutant::on("subject-key-unbound") { b"" } else { id.as_bytes() };
    [b"semel subject key 1", id].concat()
}

/// A new key, wrapped by the ring's active one.
fn make(ring: &Keyring) -> Wrapped {
    let (mut id, mut key) = ([0; KEY_ID_BYTES], [0; KEY_BYTES]);
    getrandom::fill(&mut id).expect("the operating system gives random bytes");
    getrandom::fill(&mut key).expect("the operating system gives random bytes");
    wrap(KeyId(id), &key, ring)
}

fn wrap(id: KeyId, key: &[u8; KEY_BYTES], ring: &Keyring) -> Wrapped {
    let (master, sealed) = ring.seal_bytes(&bound_to(id), key);
    Wrapped { id, master: master.to_owned(), sealed: sealed.into() }
}

fn unwrap_bytes(wrapped: &Wrapped, ring: &Keyring) -> Result<[u8; KEY_BYTES], Unreadable> {
    let broken = || Unreadable::SealBroken { key: wrapped.master.clone() };
    let plain = ring.open_bytes(&wrapped.master, &bound_to(wrapped.id), &wrapped.sealed)?;
    plain.try_into().map_err(|_| broken())
}

/// The key inside a wrapping.
fn unwrap(wrapped: &Wrapped, ring: &Keyring) -> Result<Key, Unreadable> {
    let key = unwrap_bytes(wrapped, ring)?;
    Ok(Key { id: wrapped.id, cipher: XChaCha20Poly1305::new((&key).into()) })
}

/// A subject's key, made if there is none. It is there durably when this is answered.
pub(crate) async fn obtain(
    subject: SubjectId,
    place: &dyn SubjectKeys,
    ring: &Keyring,
) -> Result<Key, Error> {
    let wrapped = place.obtain(subject, &make(ring)).await?;
    unwrap(&wrapped, ring).map_err(|why| {
        // Not replaced by a new one: others may hold the key that opens it.
        let sentence = "the key of a subject does not open, so nothing can be sealed with it; add the key that wraps \
                        it to the keyring";
        Error::new(Kind::Misconfigured, sentence).because(why)
    })
}

/// The key an outcome names; an outcome whose key is gone cannot be read.
pub(crate) async fn find(
    id: KeyId,
    place: &dyn SubjectKeys,
    ring: &Keyring,
) -> Result<Result<Key, Unreadable>, Error> {
    Ok(match place.find(id).await? {
        Some(wrapped) => unwrap(&wrapped, ring),
        None => Err(Unreadable::SubjectKeyMissing { key: id.to_string() }),
    })
}

/// Most keys rewrapped in one step.
const REWRAP_STEP: u32 = 200;

/// Wraps with the ring's active key whatever its older ones wrap, so that those can be taken out of the ring.
/// Then no copy of the place from before opens any more, wherever it is.
///
/// # Cancellation
/// Safe. What was not rewrapped opens as before.
pub async fn rewrap_all(place: &dyn SubjectKeys, ring: &Keyring) -> Result<Rewrapped, Error> {
    let mut done = Rewrapped::default();
    for older in ring.older() {
        let mut after = KeyId::FIRST;
        loop {
            let found = place.wrapped_by(older, after, REWRAP_STEP).await?;
            let Some(last) = found.last() else { break };
            after = last.id;
            for wrapped in &found {
                match unwrap_bytes(wrapped, ring) {
                    Ok(key) => {
                        place.rewrap(&wrap(wrapped.id, &key, ring)).await?;
                        done.rewrapped += 1;
                    }
                    Err(_) => done.shut += 1,
                }
            }
        }
    }
    Ok(done)
}

/// What [`rewrap_all`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrapped {
    /// Keys the active key wraps now.
    pub rewrapped: u64,
    /// Keys that do not open although the ring has a key of that id.
    pub shut: u64,
}

/// Keys of subjects in memory: the reference the others are compared with. They are forgotten with the
/// process, and all they sealed with them.
#[derive(Clone, Default)]
pub struct MemorySubjectKeys(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    by_subject: BTreeMap<SubjectId, KeyId>,
    keys: BTreeMap<KeyId, Wrapped>,
}

impl MemorySubjectKeys {
    /// No keys yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemorySubjectKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySubjectKeys").finish_non_exhaustive()
    }
}

impl SubjectKeys for MemorySubjectKeys {
    fn obtain<'a>(&'a self, subject: SubjectId, offered: &'a Wrapped) -> Pending<'a, Wrapped> {
        Box::pin(async move {
            let mut kept = self.lock();
            let id = *kept.by_subject.entry(subject).or_insert(offered.id);
            Ok(kept.keys.entry(id).or_insert_with(|| offered.clone()).clone())
        })
    }

    fn find(&self, key: KeyId) -> Pending<'_, Option<Wrapped>> {
        Box::pin(async move { Ok(self.lock().keys.get(&key).cloned()) })
    }

    fn rewrap<'a>(&'a self, fresh: &'a Wrapped) -> Pending<'a, ()> {
        Box::pin(async move {
            let mut kept = self.lock();
            match kept.keys.get_mut(&fresh.id) {
                Some(wrapped) => *wrapped = fresh.clone(),
                None if mutant::on("rewrap-brings-back") => {
                    kept.keys.insert(fresh.id, fresh.clone());
                }
                None => {}
            }
            Ok(())
        })
    }

    fn wrapped_by<'a>(&'a self, master: &'a str, after: KeyId, limit: u32) -> Pending<'a, Vec<Wrapped>> {
        Box::pin(async move {
            let kept = self.lock();
            let found = kept.keys.values().filter(|key| key.id > after && key.master == master);
            Ok(found.take(limit as usize).cloned().collect())
        })
    }

    fn forget(&self, subject: SubjectId) -> Pending<'_, Forgotten> {
        Box::pin(async move {
            let mut kept = self.lock();
            let Some(id) = kept.by_subject.remove(&subject) else { return Ok(Forgotten::Nothing) };
            if !mutant::on("forget-leaves-the-key") {
                kept.keys.remove(&id);
            }
            Ok(Forgotten::Key)
        })
    }
}

/// The place a policy names, for settings that can be shown.
#[derive(Clone)]
pub(crate) struct Place(pub(crate) Arc<dyn SubjectKeys>);

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

/// Why stored bytes gave no outcome.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    /// They cannot be read; the effect they tell of has happened.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The key place did not answer. They may well be readable later.
    #[error("the place of subjects' keys did not answer: {0}")]
    Away(#[source] Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, OperationId, Outcome, Scope, seal};

    fn ring(id: &str, byte: u8) -> Keyring {
        Keyring::new(id, &[byte; 32]).unwrap()
    }

    fn operation() -> OperationId {
        Operation::new(Scope::shared("test", "r").unwrap(), "a".parse().unwrap()).id()
    }

    #[test]
    fn a_wrapped_key_opens_under_its_own_id_and_its_own_master_only() {
        // G-20
        let (first, second) = (make(&ring("m", 1)), make(&ring("m", 1)));
        assert!(unwrap(&first, &ring("m", 1)).is_ok());
        let swapped = Wrapped { id: second.id, ..first.clone() };
        let broken = Err(Unreadable::SealBroken { key: "m".into() });
        assert_eq!(unwrap(&swapped, &ring("m", 1)).map(drop), broken);
        assert_eq!(unwrap(&first, &ring("m", 2)).map(drop), broken);
        let missing = Err(Unreadable::KeyMissing { key: "m".into() });
        assert_eq!(unwrap(&first, &ring("other", 1)).map(drop), missing);
        for cut in 0..first.sealed.len() {
            let short = Wrapped { sealed: first.sealed.slice(..cut), ..first.clone() };
            assert_eq!(unwrap(&short, &ring("m", 1)).map(drop), broken);
        }
    }

    #[test]
    fn what_a_subjects_key_sealed_names_a_random_id_and_opens_for_its_operation_only() {
        // G-20
        let ring = ring("m", 1);
        let key = unwrap(&make(&ring), &ring).unwrap();
        let stored = seal::close_for(&Outcome::text("card 4242"), operation(), &key);
        assert!(!stored.windows(4).any(|window| window == b"4242"));
        assert_eq!(seal::subject_key(&stored), Some(key.id()));
        assert_eq!(seal::open_with(&stored, operation(), &key), Ok(Outcome::text("card 4242")));
        // The ring alone does not open it, nor does another subject's key put under its id.
        let missing = Unreadable::SubjectKeyMissing { key: key.id().to_string() };
        assert_eq!(seal::open(&stored, operation(), Some(&ring)), Err(missing));
        let other = Key { id: key.id(), ..unwrap(&make(&ring), &ring).unwrap() };
        assert!(matches!(seal::open_with(&stored, operation(), &other), Err(Unreadable::SealBroken { .. })));
        let elsewhere = Operation::new(Scope::shared("test", "r").unwrap(), "b".parse().unwrap()).id();
        assert!(matches!(seal::open_with(&stored, elsewhere, &key), Err(Unreadable::SealBroken { .. })));
        for cut in 0..stored.len() {
            assert!(seal::open_with(&stored.slice(..cut), operation(), &key).is_err());
        }
    }

    #[tokio::test]
    async fn rotation_rewraps_what_is_there_and_brings_nothing_back() {
        // G-20
        let place = MemorySubjectKeys::new();
        let (anna, ben) = (SubjectId::of("anna"), SubjectId::of("ben"));
        let old = ring("2025", 5);
        let key = obtain(anna, &place, &old).await.unwrap();
        let gone = obtain(ben, &place, &old).await.unwrap();
        let late = place.find(gone.id()).await.unwrap().unwrap();
        assert_eq!(place.forget(ben).await.unwrap(), Forgotten::Key);
        let both = old.with_older("2026", &[6; 32]).unwrap().activate("2026").unwrap();
        // Read before it was forgotten, written after.
        place.rewrap(&wrap(late.id, &unwrap_bytes(&late, &both).unwrap(), &both)).await.unwrap();
        assert_eq!(place.find(gone.id()).await.unwrap(), None, "rewrapping must not bring a key back");
        let report = rewrap_all(&place, &both).await.unwrap();
        assert_eq!(report, Rewrapped { rewrapped: 1, shut: 0 });
        assert_eq!(rewrap_all(&place, &both).await.unwrap(), Rewrapped::default());
        let stored = seal::close_for(&Outcome::text("x"), operation(), &key);
        let again = find(key.id(), &place, &ring("2026", 6)).await.unwrap().unwrap();
        assert_eq!(seal::open_with(&stored, operation(), &again), Ok(Outcome::text("x")));
        let wrong = ring("2026", 9).with_older("2027", &[7; 32]).unwrap().activate("2027").unwrap();
        assert_eq!(rewrap_all(&place, &wrong).await.unwrap(), Rewrapped { rewrapped: 0, shut: 1 });
    }

    #[test]
    fn debug_shows_ids_and_no_keys() {
        let key = unwrap(&make(&ring("m", 1)), &ring("m", 1)).unwrap();
        assert_eq!(format!("{key:?}"), format!("Key {{ id: KeyId({}), .. }}", key.id()));
    }
}
