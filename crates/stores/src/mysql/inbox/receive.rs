//! What each message of a batch is: written down first, then looked at.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use mysql_async::Value;
use mysql_async::prelude::Queryable;
use semel_core::error::{Error, Kind};
use semel_core::inbox::{self, Arrival, Entry, Reach, Reached, Received, State};
use semel_core::mutant;

use super::super::chores::no_row;
use super::super::fault::Fault;
use super::super::row;
use super::super::say::{Said, inline, json, say, tell};
use super::super::sql::{TX_INSIDE, each};
use super::{signed, sql};

/// A batch in the ledger, in an open transaction.
#[derive(Clone, Debug)]
pub struct Begun {
    /// What each message is, in the order of the batch.
    pub received: Vec<Received>,
    /// For [`finish`](super::finish).
    pub(super) number: i64,
    /// How far relays have come with its new messages, by source, lane and key.
    further: BTreeMap<(String, u64, String), Reach>,
}

impl Begun {
    /// The statement that keeps how far relays have come, if any has.
    pub(super) fn further(&self, group: &str) -> String {
        if self.further.is_empty() {
            return String::new();
        }
        let mut values: Vec<Value> = Vec::new();
        for ((source, lane, key), Reach { epoch, sequence, since, prior }) in &self.further {
            values.extend([
                group.into(),
                source.as_str().into(),
                signed(*lane).into(),
                key.as_str().into(),
                signed(*epoch).into(),
                signed(*sequence).into(),
                since.map(signed).into(),
                signed(*prior).into(),
            ]);
        }
        inline(&each(sql::FURTHER, self.further.len()), &values) + ";\n"
    }
}

/// Writes the ledger rows of a batch and says what each message is. Apply those that are [`Received::New`]; set aside
/// whatever is not that and no duplicate.
///
/// It waits while another transaction is about to apply the same messages, and then knows better. After a crash before
/// the COMMIT: nothing was received. Without an open transaction it fails, and nothing was received either.
///
/// # Cancellation
/// The transaction must be rolled back.
pub async fn receive(tx: &mut impl Queryable, group: &str, arrivals: &[Arrival]) -> Result<Begun, Error> {
    let begun = receive_as(tx, group, arrivals, State::Done, View::Theirs).await;
    begun.map_err(|fault| fault.error())
}

/// Whose transaction it is.
pub(super) enum View<'a> {
    /// A caller's: it must be open, and may look at an old state.
    Theirs,
    /// Ours, which looks at what is committed when it looks. It begins with these statements, each with its end.
    Ours(&'a str),
}

impl View<'_> {
    fn begins(&self) -> Cow<'_, str> {
        match self {
            Self::Theirs if mutant::on("my-inbox-without-transaction") => "".into(),
            Self::Theirs => TX_INSIDE.into(),
            Self::Ours(settings) => (*settings).into(),
        }
    }

    /// Whoever looks at an old state must wait for the newest. Otherwise a letter that somebody is about to apply is
    /// still there, and only its own key waits for it.
    fn parked(&self) -> &'static str {
        match self {
            Self::Theirs => sql::PARKED_HELD,
            Self::Ours(_) => sql::PARKED,
        }
    }
}

/// The same for a state, and for transactions of our own.
pub(super) async fn receive_as(
    tx: &mut impl Queryable,
    group: &str,
    arrivals: &[Arrival],
    asked: State,
    view: View<'_>,
) -> Result<Begun, Fault> {
    let arrivals = &*inbox::vouched(arrivals);
    let firsts = inbox::firsts(arrivals);
    let mut fresh: Vec<&Arrival> =
        firsts.iter().map(|index| &arrivals[*index]).filter(|arrival| arrival.letter.is_none()).collect();
    fresh.sort_by_key(|arrival| name(arrival));
    let questions = Questions::of(&fresh);
    let before = view.begins();
    let text = before.clone().into_owned() + &questions.text(group, &fresh, asked, view.parked());
    let begins = before.matches(";\n").count();
    let said = say(tx, &text).await?;
    if mutant::on("my-inbox-ledger-apart") {
        say(tx, "COMMIT; START TRANSACTION").await?;
    }
    let number = row::int(said.row(begins + 2).ok_or_else(no_row)?, 0)?;
    let seen = questions.read(&said, begins + 3 + usize::from(!fresh.is_empty()))?;
    let mut step = Step { tx, group, asked, seen, further: BTreeMap::new() };
    let mut found = Vec::with_capacity(firsts.len());
    for index in firsts {
        found.push((index, step.receive(&arrivals[index]).await?));
    }
    let received = inbox::in_order(arrivals, &found, &step.seen.fences);
    Ok(Begun { received, number, further: step.further })
}

fn name(arrival: &Arrival) -> (&str, &str) {
    (&arrival.message.source, arrival.id.as_str())
}

/// What is asked in one message, by source: each list is a statement.
#[derive(Default)]
struct Questions<'a> {
    ids: BTreeMap<&'a str, Vec<&'a str>>,
    keys: BTreeMap<&'a str, BTreeSet<Cow<'a, str>>>,
    lanes: BTreeMap<(&'a str, u64), BTreeSet<Cow<'a, str>>>,
}

/// What was told.
#[derive(Default)]
struct Seen {
    entries: HashMap<(String, Vec<u8>), (Entry, bool)>,
    parked: HashSet<(String, Vec<u8>)>,
    fences: Reached,
}

impl<'a> Questions<'a> {
    fn of(arrivals: &[&'a Arrival]) -> Self {
        let mut questions = Self::default();
        for arrival in arrivals {
            let (source, id) = name(arrival);
            questions.ids.entry(source).or_default().push(id);
            let Some(key) = arrival.message.ordering_key() else { continue };
            if let Some(fence) = arrival.fence {
                questions.lanes.entry((source, fence.lane)).or_default().insert(key.clone());
            }
            questions.keys.entry(source).or_default().insert(key);
        }
        questions
    }

    fn text(&self, group: &str, arrivals: &[&Arrival], asked: State, parked: &str) -> String {
        let mut statements = vec![inline(sql::BEGIN, &[group.into()])];
        if !arrivals.is_empty() {
            let mut values: Vec<Value> = Vec::with_capacity(6 * arrivals.len());
            for arrival in arrivals {
                values.extend(entry_values(group, arrival, asked));
            }
            statements.push(inline(&each(sql::INSERT, arrivals.len()), &values));
        }
        let mut ask = |sql: &str, list: String, values: &[Value]| {
            statements.push(inline(&sql.replace("/*json*/", &list), values));
        };
        for (source, ids) in &self.ids {
            let list = json(ids.iter().map(|id| id.as_bytes()));
            ask(&sql::look(), list, &[group.into(), (*source).into()]);
        }
        for (source, keys) in &self.keys {
            let list = json(keys.iter().map(|key| key.as_bytes()));
            ask(parked, list, &[group.into(), (*source).into()]);
        }
        for ((source, lane), keys) in &self.lanes {
            let list = json(keys.iter().map(|key| key.as_bytes()));
            ask(sql::FENCES, list, &[group.into(), (*source).into(), signed(*lane).into()]);
        }
        statements.join(";\n")
    }

    /// Reads the answers, from the set of the first list on.
    fn read(&self, said: &Said, first: usize) -> Result<Seen, Error> {
        let mut sets = said.sets.iter().skip(first);
        let mut seen = Seen::default();
        for source in self.ids.keys() {
            for found in sets.next().ok_or_else(no_row)? {
                let hash = row::bytes(found, 1)?.try_into().map_err(|_| damaged())?;
                let state = u8::try_from(row::int(found, 2)?).ok().and_then(State::from_byte);
                let entry = Entry { hash, state: state.ok_or_else(damaged)? };
                let named = ((*source).to_owned(), row::bytes(found, 0)?.to_vec());
                seen.entries.insert(named, (entry, row::int(found, 3)? == 1));
            }
        }
        for source in self.keys.keys() {
            for found in sets.next().ok_or_else(no_row)? {
                seen.parked.insert(((*source).to_owned(), row::bytes(found, 0)?.to_vec()));
            }
        }
        for (source, lane) in self.lanes.keys() {
            for found in sets.next().ok_or_else(no_row)? {
                let key = String::from_utf8(row::bytes(found, 0)?.to_vec()).map_err(|_| damaged())?;
                let named = ((*source).to_owned(), *lane, key);
                let number = |at| row::int(found, at).map(|number| number as u64);
                let since = row::maybe_int(found, 3)?.map(|since| since as u64);
                let reach = Reach { epoch: number(1)?, sequence: number(2)?, since, prior: number(4)? };
                seen.fences.insert(named, reach);
            }
        }
        Ok(seen)
    }
}

/// One message after the other; only what is not plain asks the server again.
struct Step<'a, C> {
    tx: &'a mut C,
    group: &'a str,
    asked: State,
    seen: Seen,
    further: BTreeMap<(String, u64, String), Reach>,
}

impl<C: Queryable> Step<'_, C> {
    async fn receive(&mut self, arrival: &Arrival) -> Result<Received, Fault> {
        if let Some(letter) = arrival.letter {
            return self.take(arrival, letter).await;
        }
        let (source, id) = name(arrival);
        let found = self.seen.entries.get(&(source.to_owned(), id.as_bytes().to_vec())).copied();
        let (entry, is_new) = found.ok_or_else(no_row)?;
        let (stale, parked) = (self.is_stale(arrival), self.is_parked(arrival));
        if is_new {
            let received = match (stale, parked) {
                (true, _) => Received::Stale,
                (false, true) => Received::Behind,
                (false, false) => Received::New,
            };
            if received != Received::New {
                let values = [self.group.into(), source.into(), id.into()];
                tell(self.tx, sql::SHELVE, &values).await?;
            }
            return Ok(self.noted(arrival, received));
        }
        let judged = inbox::judge(arrival, entry, self.asked);
        // Also a call that began before and has no result waits while its key is parked.
        if judged == Received::New && parked {
            return Ok(Received::Behind);
        }
        let was_aside = judged == Received::Duplicate && entry.state == State::Aside;
        if !was_aside || arrival.fence.is_none() || stale || !self.takes_stale_letter(arrival).await? {
            return Ok(judged);
        }
        let received = if parked { Received::Behind } else { Received::New };
        let state = if parked { State::Aside } else { self.asked };
        tell(self.tx, sql::AGAIN, &entry_values(self.group, arrival, state)).await?;
        Ok(self.noted(arrival, received))
    }

    /// A message that was set aside takes its letter away. One whose letter is gone was applied by somebody else.
    async fn take(&mut self, arrival: &Arrival, letter: u64) -> Result<Received, Fault> {
        if !self.takes(letter).await? {
            return Ok(Received::Duplicate);
        }
        tell(self.tx, sql::AGAIN, &entry_values(self.group, arrival, self.asked)).await?;
        Ok(Received::New)
    }

    async fn takes(&mut self, letter: u64) -> Result<bool, Fault> {
        let said = tell(self.tx, sql::TAKE_LETTER, &[signed(letter).into(), self.group.into()]).await?;
        Ok(row::int(said.row(1).ok_or_else(no_row)?, 0)? == 1)
    }

    /// Whether a message that was kept as stale now comes from the rightful holder of its lane. Its letter is then
    /// gone, and it counts as never seen.
    async fn takes_stale_letter(&mut self, arrival: &Arrival) -> Result<bool, Fault> {
        let (source, id) = name(arrival);
        let said = tell(self.tx, sql::STALE_LETTER, &[self.group.into(), source.into(), id.into()]).await?;
        match said.row(0) {
            Some(letter) => self.takes(row::int(letter, 0)? as u64).await,
            None => Ok(false),
        }
    }

    fn is_parked(&self, arrival: &Arrival) -> bool {
        let Some(key) = arrival.message.ordering_key() else { return false };
        self.seen.parked.contains(&(arrival.message.source.clone(), key.as_bytes().to_vec()))
    }

    fn is_stale(&self, arrival: &Arrival) -> bool {
        let (Some(key), Some(fence)) = (arrival.message.ordering_key(), arrival.fence) else { return false };
        let named = (arrival.message.source.clone(), fence.lane, key.into_owned());
        let place = arrival.message.number();
        self.seen.fences.get(&named).is_some_and(|reach| reach.is_stale(fence, place))
    }

    /// Remembers how far the relay of a new message has come.
    fn noted(&mut self, arrival: &Arrival, received: Received) -> Received {
        if let (Received::New, Some(key), Some(fence)) =
            (received, arrival.message.ordering_key(), arrival.fence)
        {
            let named = (arrival.message.source.clone(), fence.lane, key.into_owned());
            let place = arrival.message.number();
            self.further.entry(named).or_insert_with(|| Reach::of(fence, place)).further(fence, place);
        }
        received
    }
}

/// The values of `insert.sql` and `again.sql`.
fn entry_values(group: &str, arrival: &Arrival, state: State) -> [Value; 6] {
    let (source, id) = name(arrival);
    let size = u32::try_from(arrival.size()).unwrap_or(u32::MAX);
    [group.into(), source.into(), id.into(), (state as u8).into(), size.into(), arrival.hash[..].into()]
}

fn damaged() -> Error {
    Error::new(Kind::Damaged, "the ledger holds a row that cannot be read")
}
