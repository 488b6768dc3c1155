//! What every place of subjects' keys must do, as tests any backend can run.
//!
//! A place keeps what it is given and forgets what it is told to; what a key opens is none of its
//! business. So the keys here are random bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::store::Pending;
use semel_core::subject::{Forgotten, KeyId, MemorySubjectKeys, SubjectId, SubjectKeys, Wrapped};

use crate::{BoxFuture, ledger};

/// Makes a fresh rig: a new, empty place nobody else uses.
pub type Maker = Arc<dyn Fn() -> BoxFuture<'static, Arc<dyn Rig>> + Send + Sync>;

/// One place under test. Dropping the rig removes it.
pub trait Rig: Send + Sync + 'static {
    /// What runs, for people.
    fn engine(&self) -> &'static str;

    /// A new handle on the place, as another process would have, or this one after a restart. A place that
    /// lives in this process gives the same again.
    fn open(&self) -> BoxFuture<'_, Arc<dyn SubjectKeys>>;
}

/// A demand on a place.
pub struct Case {
    /// The demand, as a sentence with underscores.
    pub name: &'static str,
    /// Panics if the rig's place does not meet it.
    pub run: fn(Arc<dyn Rig>) -> BoxFuture<'static, ()>,
}

const CASE_TIME_MAX: Duration = Duration::from_secs(120);

/// One `#[test]` per case, each on a fresh rig of the [`Maker`] that the expression gives.
#[macro_export]
macro_rules! subject_keys {
    ($maker:expr) => {
        $crate::subject_key_cases! { [tests $maker] }
    };
}

/// The list.
#[doc(hidden)]
#[macro_export]
macro_rules! subject_key_cases {
    ($how:tt) => {
        $crate::expand_subject_key_cases! { $how
            a_subject_has_one_key_and_keeps_it,
            of_many_who_want_a_new_key_at_once_all_get_the_same,
            a_forgotten_key_is_found_no_more_and_a_subject_who_returns_gets_another,
            forgetting_is_the_end_of_a_key_whoever_asks_meanwhile,
            rewrapping_changes_what_is_there_and_brings_nothing_back,
            keys_are_found_by_who_wraps_them_page_by_page,
        }
    };
}

/// Turns the list into tests, or into a list of values.
#[doc(hidden)]
#[macro_export]
macro_rules! expand_subject_key_cases {
    ([tests $maker:expr] $($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                // G-20
                $crate::subjects::prove_named(&$maker, stringify!($name));
            }
        )*
    };
    ([list] $($name:ident,)*) => {
        vec![$(Case { name: stringify!($name), run: |rig| Box::pin($name(rig)) },)*]
    };
}

/// Every case.
pub fn cases() -> Vec<Case> {
    crate::subject_key_cases!([list])
}

/// Runs the case of this name on a fresh rig. What `subject_keys!` expands to.
pub fn prove_named(maker: &Maker, name: &str) {
    let case = cases().into_iter().find(|case| case.name == name).expect("the list names every case");
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let rig = maker().await;
        let engine = rig.engine();
        if tokio::time::timeout(CASE_TIME_MAX, (case.run)(rig)).await.is_err() {
            panic!("{name}: no end within {CASE_TIME_MAX:?}");
        }
        ledger("subject keys", engine, 1);
    });
}

/// The rig of the reference.
pub fn memory() -> Maker {
    struct Memory(MemorySubjectKeys);
    impl Rig for Memory {
        fn engine(&self) -> &'static str {
            "memory"
        }

        fn open(&self) -> BoxFuture<'_, Arc<dyn SubjectKeys>> {
            Box::pin(async { Arc::new(self.0.clone()) as Arc<dyn SubjectKeys> })
        }
    }
    Arc::new(|| Box::pin(async { Arc::new(Memory(MemorySubjectKeys::new())) as Arc<dyn Rig> }))
}

/// Something to offer.
pub fn offer(master: &str) -> Wrapped {
    let (mut id, mut sealed) = ([0; 16], vec![0; 72]);
    getrandom::fill(&mut id).expect("there are random bytes");
    getrandom::fill(&mut sealed).expect("there are random bytes");
    Wrapped { id: KeyId::from_bytes(id), master: master.into(), sealed: sealed.into() }
}

async fn obtain(place: &Arc<dyn SubjectKeys>, subject: &str) -> Wrapped {
    place.obtain(SubjectId::of(subject), &offer("m-1")).await.expect("the place answers")
}

async fn find(place: &Arc<dyn SubjectKeys>, id: KeyId) -> Option<Wrapped> {
    place.find(id).await.expect("the place answers")
}

async fn a_subject_has_one_key_and_keeps_it(rig: Arc<dyn Rig>) {
    let place = rig.open().await;
    let first = offer("m-1");
    let anna = place.obtain(SubjectId::of("anna"), &first).await.expect("the place answers");
    assert_eq!(anna, first, "what was offered first is the key");
    let ben = obtain(&place, "ben").await;
    assert_ne!(anna.id, ben.id);
    for place in [place, rig.open().await] {
        assert_eq!(obtain(&place, "anna").await, anna, "the next offer is not taken");
        assert_eq!(find(&place, anna.id).await, Some(anna.clone()));
        assert_eq!(find(&place, ben.id).await, Some(ben.clone()));
        assert_eq!(find(&place, offer("m-1").id).await, None);
    }
}

async fn of_many_who_want_a_new_key_at_once_all_get_the_same(rig: Arc<dyn Rig>) {
    let places = [rig.open().await, rig.open().await];
    for round in 0..8 {
        let tasks: Vec<_> = (0..16)
            .map(|n| {
                let (place, subject) = (places[n % 2].clone(), format!("new-{round}"));
                tokio::spawn(async move { obtain(&place, &subject).await })
            })
            .collect();
        let mut keys = Vec::new();
        for task in tasks {
            keys.push(task.await.expect("nobody panics"));
        }
        assert!(keys.iter().all(|key| *key == keys[0]), "one subject, one key");
        assert_eq!(find(&places[round % 2], keys[0].id).await.as_ref(), keys.first());
    }
}

async fn a_forgotten_key_is_found_no_more_and_a_subject_who_returns_gets_another(rig: Arc<dyn Rig>) {
    let place = rig.open().await;
    let (anna, ben) = (obtain(&place, "anna").await, obtain(&place, "ben").await);
    assert_eq!(place.forget(SubjectId::of("anna")).await.expect("the place answers"), Forgotten::Key);
    assert_eq!(place.forget(SubjectId::of("anna")).await.expect("the place answers"), Forgotten::Nothing);
    assert_eq!(place.forget(SubjectId::of("nobody")).await.expect("the place answers"), Forgotten::Nothing);
    for place in [&place, &rig.open().await] {
        assert_eq!(find(place, anna.id).await, None);
        assert_eq!(find(place, ben.id).await, Some(ben.clone()), "others keep theirs");
    }
    let again = obtain(&place, "anna").await;
    assert_ne!(again.id, anna.id);
    for place in [&place, &rig.open().await] {
        assert_eq!(find(place, anna.id).await, None, "the old one does not come back");
        assert_eq!(find(place, again.id).await, Some(again.clone()));
        assert_eq!(find(place, ben.id).await, Some(ben.clone()));
    }
}

async fn forgetting_is_the_end_of_a_key_whoever_asks_meanwhile(rig: Arc<dyn Rig>) {
    let (asking, forgetting) = (rig.open().await, rig.open().await);
    let over = Arc::new(AtomicBool::new(false));
    let (place, ended) = (asking.clone(), over.clone());
    let askers = tokio::spawn(async move {
        while !ended.load(Ordering::SeqCst) {
            obtain(&place, "anna").await;
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..12 {
        let before = obtain(&forgetting, "anna").await;
        forgetting.forget(SubjectId::of("anna")).await.expect("the place answers");
        for place in [&asking, &forgetting] {
            assert_eq!(find(place, before.id).await, None);
            assert_ne!(obtain(place, "anna").await.id, before.id, "who asks afterwards gets another");
        }
    }
    over.store(true, Ordering::SeqCst);
    askers.await.expect("nobody panics");
}

async fn rewrapping_changes_what_is_there_and_brings_nothing_back(rig: Arc<dyn Rig>) {
    let place = rig.open().await;
    let (anna, ben) = (obtain(&place, "anna").await, obtain(&place, "ben").await);
    place.forget(SubjectId::of("ben")).await.expect("the place answers");
    for key in [&anna, &ben] {
        let fresh = Wrapped { id: key.id, ..offer("m-2") };
        place.rewrap(&fresh).await.expect("the place answers");
        let expected = (key.id == anna.id).then_some(fresh);
        assert_eq!(find(&place, key.id).await, expected);
    }
    assert_eq!(obtain(&rig.open().await, "anna").await.id, anna.id, "it is the same key");
    assert_ne!(obtain(&place, "ben").await.id, ben.id);
}

async fn keys_are_found_by_who_wraps_them_page_by_page(rig: Arc<dyn Rig>) {
    let place = rig.open().await;
    let mut old = Vec::new();
    for n in 0..7 {
        old.push(obtain(&place, &format!("subject-{n}")).await);
    }
    let new = place.obtain(SubjectId::of("late"), &offer("m-2")).await.expect("the place answers");
    old.sort_by_key(|key| key.id);
    let (mut seen, mut after) = (Vec::new(), KeyId::FIRST);
    loop {
        let page = place.wrapped_by("m-1", after, 3).await.expect("the place answers");
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        after = last.id;
        seen.extend(page);
    }
    assert_eq!(seen, old);
    let others = place.wrapped_by("m-2", KeyId::FIRST, 3).await.expect("the place answers");
    assert_eq!(others, [new]);
}

/// A place that can go away, and counts what it was asked.
pub struct FaultyKeys {
    place: Arc<dyn SubjectKeys>,
    away: AtomicBool,
    asked: AtomicU32,
}

impl FaultyKeys {
    /// Over a place.
    pub fn new(place: Arc<dyn SubjectKeys>) -> Arc<Self> {
        Arc::new(Self { place, away: AtomicBool::new(false), asked: AtomicU32::new(0) })
    }

    /// From now on it cannot be reached, or can again.
    pub fn go_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// How many calls came.
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    fn there(&self) -> Result<&Arc<dyn SubjectKeys>, Error> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match self.away.load(Ordering::SeqCst) {
            true => Err(Error::new(Kind::Unreachable, "the place of keys is away")),
            false => Ok(&self.place),
        }
    }
}

impl SubjectKeys for FaultyKeys {
    fn obtain<'a>(&'a self, subject: SubjectId, offered: &'a Wrapped) -> Pending<'a, Wrapped> {
        Box::pin(async move { self.there()?.obtain(subject, offered).await })
    }

    fn find(&self, key: KeyId) -> Pending<'_, Option<Wrapped>> {
        Box::pin(async move { self.there()?.find(key).await })
    }

    fn rewrap<'a>(&'a self, fresh: &'a Wrapped) -> Pending<'a, ()> {
        Box::pin(async move { self.there()?.rewrap(fresh).await })
    }

    fn wrapped_by<'a>(&'a self, master: &'a str, after: KeyId, limit: u32) -> Pending<'a, Vec<Wrapped>> {
        Box::pin(async move { self.there()?.wrapped_by(master, after, limit).await })
    }

    fn forget(&self, subject: SubjectId) -> Pending<'_, Forgotten> {
        Box::pin(async move { self.there()?.forget(subject).await })
    }
}
