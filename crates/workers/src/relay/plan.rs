//! What becomes of each message of a batch, decided from what the sink said. Nothing here waits or asks.

use std::collections::HashSet;
use std::time::Duration;

use semel_core::mutant;
use semel_core::outbox::{Entry, Settled};

use super::settings::{Next, Retry};
use crate::sinks::Receipt;

/// A batch on its way.
pub(super) struct Plan {
    entries: Vec<Entry>,
    fates: Vec<Fate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// To be published, after so many tries in this batch.
    Open(u32),
    Settled(Settled),
}

/// What to do after receipts were taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// All is settled.
    Save,
    /// Publish what is open, at once.
    GoOn,
    /// The same after a short pause: something failed.
    Pause,
    /// The sink is down: wait, then publish what is open.
    Wait(String),
    /// Drop everything.
    Fenced,
}

impl Plan {
    pub(super) fn new(entries: Vec<Entry>) -> Self {
        let fate = |entry: &Entry| match entry.behind && !mutant::on("relay-behind-published") {
            true => Fate::Settled(Settled::Behind),
            false => Fate::Open(0),
        };
        let fates = entries.iter().map(fate).collect();
        Self { entries, fates }
    }

    pub(super) fn entry(&self, index: usize) -> &Entry {
        &self.entries[index]
    }

    /// What is still to be published, in order.
    pub(super) fn open(&self) -> Vec<usize> {
        let open = self.fates.iter().enumerate().filter(|(_, fate)| matches!(fate, Fate::Open(_)));
        open.map(|(index, _)| index).collect()
    }

    /// How many from the beginning are open: what can land together with a position.
    pub(super) fn open_first(&self) -> usize {
        self.fates.iter().take_while(|fate| matches!(fate, Fate::Open(_))).count()
    }

    /// The fates from the beginning up to the first that is open.
    pub(super) fn settled(&self) -> Vec<Settled> {
        let settled = self.fates.iter().map_while(|fate| match fate {
            Fate::Settled(settled) => Some(settled.clone()),
            Fate::Open(_) => None,
        });
        settled.collect()
    }

    /// Takes in what the sink said of the entries at `indexes`.
    pub(super) fn take_in(
        &mut self,
        indexes: &[usize],
        receipts: Vec<Receipt>,
        retry: &Retry,
        jitter: f64,
    ) -> Then {
        // A sink that takes others is not down: what it does not take is on an ill way of its own, and must
        // not hold up the lane. The same goes, from then on, for what it did not take.
        let landed = receipts.contains(&Receipt::Landed) && !mutant::on("relay-ill-topic-stops-lane");
        let mut down = None;
        let mut failed = false;
        let mut ill: HashSet<String> = HashSet::new();
        let mut answers = receipts.into_iter();
        for index in indexes {
            // A sink that says too little has not said that it landed.
            let receipt = answers.next().unwrap_or(Receipt::Unsent);
            let Fate::Open(tries) = self.fates[*index] else { continue };
            self.fates[*index] = match receipt {
                Receipt::Landed => Fate::Settled(Settled::Sent),
                Receipt::Unsent => Fate::Open(tries),
                Receipt::Fenced => return Then::Fenced,
                Receipt::Down(reason) => {
                    let key = self.entries[*index].message.key.clone();
                    // Later ones of its key wait for it, whatever the sink says of them.
                    let first = key.is_none_or(|key| ill.insert(key));
                    let counts = first && (landed || tries > 0);
                    match landed {
                        true => failed = true,
                        false => drop(down.get_or_insert(reason.clone())),
                    }
                    match counts {
                        true if tries + 1 < retry.quick_tries => Fate::Open(tries + 1),
                        true => Fate::Settled(aside(retry, self.entries[*index].tries, None, reason, jitter)),
                        false => Fate::Open(tries),
                    }
                }
                Receipt::Refused(reason) => Fate::Settled(dead(reason)),
                Receipt::Failed { after: None, .. } if tries + 1 < retry.quick_tries => {
                    failed = true;
                    Fate::Open(tries + 1)
                }
                Receipt::Failed { reason, after } => {
                    Fate::Settled(aside(retry, self.entries[*index].tries, after, reason, jitter))
                }
            };
        }
        self.close_keys();
        match down {
            _ if self.open().is_empty() => Then::Save,
            Some(reason) => Then::Wait(reason),
            None if failed => Then::Pause,
            None => Then::GoOn,
        }
    }

    /// Whatever comes after a message that was set aside waits with it, if it has the same key.
    fn close_keys(&mut self) {
        let mut closed: HashSet<&str> = HashSet::new();
        for (entry, fate) in self.entries.iter().zip(&mut self.fates) {
            let Some(key) = entry.message.key.as_deref() else { continue };
            match fate {
                Fate::Settled(Settled::Sent) => {}
                Fate::Settled(_) => drop(closed.insert(key)),
                Fate::Open(_) if closed.contains(key) => *fate = Fate::Settled(Settled::Behind),
                Fate::Open(_) => {}
            }
        }
    }
}

fn aside(retry: &Retry, before: u32, after: Option<Duration>, reason: String, jitter: f64) -> Settled {
    match retry.after(before, after, jitter) {
        Next::Wait(again_in) => Settled::Later { reason, again_in },
        Next::GiveUp => dead(format!("given up after {} rounds: {reason}", before + 1)),
    }
}

fn dead(reason: String) -> Settled {
    if mutant::on("relay-drops-poison") { Settled::Sent } else { Settled::Dead { reason } }
}

#[cfg(test)]
mod tests {
    use semel_core::{Message, Topic};

    use super::*;

    fn plan(keys: &[Option<&str>]) -> Plan {
        let topic = Topic::parse("orders").unwrap();
        let entries = keys.iter().zip(1..).map(|(key, sequence)| {
            let message = Message::new(topic.clone(), "{}");
            let message = key.iter().fold(message, |message, key| message.key(*key)).into();
            Entry { sequence, message, tries: 0, behind: false }
        });
        Plan::new(entries.collect())
    }

    fn failed() -> Receipt {
        Receipt::Failed { reason: "no".into(), after: None }
    }

    #[test]
    fn a_message_that_fails_is_tried_a_few_times_then_set_aside_with_those_behind_it() {
        // G-41, G-44
        let mut plan = plan(&[Some("a"), Some("b"), Some("a"), None]);
        let retry = Retry { quick_tries: 2, ..Retry::default() };
        let receipts = vec![failed(), Receipt::Landed, Receipt::Unsent, Receipt::Landed];
        assert_eq!(plan.take_in(&[0, 1, 2, 3], receipts, &retry, 1.0), Then::Pause);
        assert_eq!(plan.open(), [0, 2]);
        assert_eq!(plan.settled(), []);
        assert_eq!(plan.take_in(&[0, 2], vec![failed(), Receipt::Unsent], &retry, 1.0), Then::Save);
        let later = Settled::Later { reason: "no".into(), again_in: retry.first_wait };
        assert_eq!(plan.settled(), [later, Settled::Sent, Settled::Behind, Settled::Sent]);
    }

    #[test]
    fn what_a_sink_refuses_is_a_dead_letter_at_once() {
        // G-44
        let mut plan = plan(&[Some("a"), None]);
        let receipts = vec![Receipt::Refused("too large".into()), Receipt::Landed];
        assert_eq!(plan.take_in(&[0, 1], receipts, &Retry::default(), 1.0), Then::Save);
        assert_eq!(plan.settled(), [Settled::Dead { reason: "too large".into() }, Settled::Sent]);
    }

    #[test]
    fn nothing_is_set_aside_while_the_sink_is_down() {
        // G-44
        let mut plan = plan(&[Some("a"), Some("b")]);
        let down = || Receipt::Down("refused".into());
        for _ in 0..100 {
            let then = plan.take_in(&[0, 1], vec![down(), Receipt::Unsent], &Retry::default(), 1.0);
            assert_eq!(then, Then::Wait("refused".into()));
        }
        assert_eq!(plan.open(), [0, 1]);
    }

    #[test]
    fn what_an_otherwise_healthy_sink_does_not_take_is_set_aside() {
        // G-41, G-44
        let mut plan = plan(&[Some("a"), Some("b"), Some("a")]);
        let down = || Receipt::Down("no leader".into());
        let retry = Retry { quick_tries: 2, ..Retry::default() };
        let receipts = vec![down(), Receipt::Landed, down()];
        assert_eq!(plan.take_in(&[0, 1, 2], receipts, &retry, 1.0), Then::Pause);
        assert_eq!(plan.open(), [0, 2]);
        assert_eq!(plan.take_in(&[0, 2], vec![down(), down()], &retry, 1.0), Then::Save);
        let later = Settled::Later { reason: "no leader".into(), again_in: retry.first_wait };
        assert_eq!(plan.settled(), [later, Settled::Sent, Settled::Behind]);
    }

    #[test]
    fn a_sink_that_goes_down_in_the_middle_of_a_batch_sets_aside_no_more_than_what_was_on_its_way() {
        // G-44
        let mut plan = plan(&[Some("a"), Some("b"), Some("c")]);
        let down = || Receipt::Down("refused".into());
        let receipts = vec![Receipt::Landed, down(), Receipt::Unsent];
        assert_eq!(plan.take_in(&[0, 1, 2], receipts, &Retry::default(), 1.0), Then::Pause);
        for _ in 0..100 {
            let then = plan.take_in(&[2], vec![down()], &Retry::default(), 1.0);
            assert_eq!(then, Then::Wait("refused".into()));
        }
        assert_eq!(plan.open(), [1, 2]);
    }

    #[test]
    fn a_sink_that_says_too_little_has_not_said_that_it_landed() {
        let mut plan = plan(&[None, None]);
        assert_eq!(plan.take_in(&[0, 1], vec![Receipt::Landed], &Retry::default(), 1.0), Then::GoOn);
        assert_eq!(plan.open(), [1]);
    }
}
