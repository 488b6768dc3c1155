//! Random histories of writers, a relay that fails and dies, and an operator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use semel_core::outbox::{Aside, Cursor, Entry, Judged, Settled, Verdict};
use semel_core::{Message, MessageId};

use super::Rig;
use super::scene::{Post, dead, later, message, next, save, settle, to};
use crate::scene::{HOUR, MINUTE, long};

const SEEDS: u64 = 2;
const SEEDS_LONG: u64 = 12;
const STEPS: usize = 120;

/// What must come out, by key; a message without one is a key of its own.
#[derive(Default)]
struct Plan {
    /// Messages of each key in order, without those that were discarded.
    expected: BTreeMap<String, Vec<MessageId>>,
    /// What reached the sink, saved or not.
    published: BTreeSet<MessageId>,
    /// What was settled as sent, in that order.
    settled: BTreeMap<String, Vec<MessageId>>,
}

fn key_of(message: &Message) -> String {
    message.key.clone().unwrap_or_else(|| message.id.to_string())
}

impl Plan {
    fn wrote(&mut self, message: &Message) {
        self.expected.entry(key_of(message)).or_default().push(message.id);
    }

    /// Nothing reaches the sink before everything of its key that was written before it.
    fn publishes(&mut self, entry: &Entry) {
        let key = key_of(&entry.message);
        for earlier in self.expected.get(&key).into_iter().flatten() {
            if *earlier == entry.message.id {
                self.published.insert(*earlier);
                return;
            }
            assert!(self.published.contains(earlier), "{} overtakes {earlier} of {key}", entry.message.id);
        }
        panic!("{} of {key} is published and was not to be", entry.message.id);
    }

    fn settles(&mut self, entry: &Entry) {
        self.settled.entry(key_of(&entry.message)).or_default().push(entry.message.id);
    }
}

// G-40, G-41, G-42, G-44
pub(super) async fn whatever_fails_each_key_is_published_in_order_and_nothing_is_lost(rig: Arc<dyn Rig>) {
    let post = Post(rig);
    for seed in 0..if long() { SEEDS_LONG } else { SEEDS } {
        let mut plan = Plan::default();
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        let mut cursors = post.relay().await.cursors;
        for step in 0..STEPS {
            match dice.below(10) {
                0..=2 => write(&post, &mut plan, &mut dice, step).await,
                3..=7 => {
                    let at = dice.below(cursors.len() as u64) as usize;
                    relay(&post, &mut plan, &mut dice, &mut cursors[at]).await;
                }
                8 => post.shift(dice.below(8) as i64 * MINUTE),
                _ => judge(&post, &mut plan, &mut dice).await,
            }
        }
        finish(&post, &mut plan, cursors).await;
        plan.expected.retain(|_, ids| !ids.is_empty());
        assert_eq!(plan.settled, plan.expected, "seed {seed}");
        let overview = post.outbox().overview().await.expect("an overview is answered");
        let left = overview.backlog.iter().map(|line| line.waiting + line.aside + line.dead).sum::<u64>();
        assert_eq!(left, 0, "seed {seed}: {overview:?}");
        post.lapse();
    }
}

async fn write(post: &Post, plan: &mut Plan, dice: &mut Dice, step: usize) {
    let messages: Vec<Message> = (0..1 + dice.below(6))
        .map(|n| match dice.below(8) {
            0 => to("orders.paid", &format!("{step}-{n}")),
            key => message(&format!("customer-{key}"), &format!("{step}-{n}")),
        })
        .collect();
    let open = post.hold(&messages).await;
    if dice.below(6) == 0 {
        open.roll_back().await;
    } else {
        open.commit().await;
        messages.iter().for_each(|message| plan.wrote(message));
    }
}

/// Reads a batch, publishes what it can, and saves all of it, a part, or nothing, because it died.
async fn relay(post: &Post, plan: &mut Plan, dice: &mut Dice, cursor: &mut Box<dyn Cursor>) {
    let mut read = next(cursor, 1 + dice.below(9) as usize).await;
    if dice.below(4) == 0 {
        // The world goes on between reading and publishing.
        judge(post, plan, dice).await;
        write(post, plan, dice, STEPS).await;
        let more = next(cursor, read.len() + dice.below(9) as usize).await;
        assert_eq!(more[..read.len()], read, "nothing was saved");
        read = more;
    }
    let settled = settle(&read, |entry| match dice.below(10) {
        0 | 1 => later(1 + dice.below(12) as i64),
        2 => dead(),
        _ => {
            plan.publishes(entry);
            Settled::Sent
        }
    });
    if dice.below(5) == 0 {
        let lane = cursor.term().lane;
        post.lapse();
        *cursor = post.take(lane).await;
        return;
    }
    let kept = read.len() - dice.below(read.len() as u64 / 2 + 1) as usize;
    save(cursor, &settled[..kept]).await;
    for (entry, settled) in read.iter().zip(&settled[..kept]) {
        if *settled == Settled::Sent {
            plan.settles(entry);
        }
    }
}

async fn judge(post: &Post, plan: &mut Plan, dice: &mut Dice) {
    let letters = post.outbox().aside(Some(Aside::Dead), 0, 100).await.expect("letters are listed");
    if letters.is_empty() {
        return;
    }
    let letter = &letters[dice.below(letters.len() as u64) as usize];
    let id = letter.entry.message.id;
    let ids = plan.expected.get_mut(&key_of(&letter.entry.message)).expect("its key is known");
    let at = ids.iter().position(|expected| *expected == id).expect("it was written");
    let keyed = letter.entry.message.key.is_some();
    let verdict = match dice.below(3) {
        0 => Verdict::Replay,
        1 if keyed => {
            let edited = Message { id: MessageId::new(), ..(*letter.entry.message).clone() };
            ids[at] = edited.id;
            Verdict::Edit(Box::new(edited))
        }
        _ => {
            ids.remove(at);
            Verdict::Discard
        }
    };
    assert_eq!(post.judge(id, verdict).await, Judged::Made);
}

/// All trouble ends: everything goes out.
async fn finish(post: &Post, plan: &mut Plan, mut cursors: Vec<Box<dyn Cursor>>) {
    loop {
        let letters = post.outbox().aside(Some(Aside::Dead), 0, 100).await.expect("letters are listed");
        if letters.is_empty() {
            break;
        }
        for letter in letters {
            assert_eq!(post.judge(letter.entry.message.id, Verdict::Replay).await, Judged::Made);
        }
    }
    post.shift(HOUR);
    for _ in 0..STEPS {
        for cursor in &mut cursors {
            let read = next(cursor, 50).await;
            let settled = settle(&read, |entry| {
                plan.publishes(entry);
                Settled::Sent
            });
            save(cursor, &settled).await;
            for (entry, settled) in read.iter().zip(settled) {
                if settled == Settled::Sent {
                    plan.settles(entry);
                }
            }
        }
    }
}

/// SplitMix64: the same seed, the same history.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }
}
