//! The ledger in the effect's transaction, without a broker.

use std::time::Duration;

use semel::inbox::Received::{Behind, Conflict, Duplicate, New};
use semel::inbox::{
    Applied, Arrival, Aside, Batch, Failure, Id, Judged, Kept, Offset, Overview, Received, SetAside, State,
    Verdict,
};

use crate::world::{World, arrival};

crate::on_every_database!(
    a_second_delivery_is_a_duplicate_and_its_effect_happens_once,
    copies_in_one_batch_have_one_effect,
    another_payload_under_the_same_id_is_a_dead_letter_and_parks_its_key,
    a_failed_batch_leaves_no_effect_and_no_row,
    what_somebody_else_applied_meanwhile_is_not_set_aside,
    groups_and_sources_have_ledgers_of_their_own,
    a_place_that_is_used_again_loses_no_message,
    a_key_no_index_takes_keeps_its_order_all_the_same,
    two_transactions_with_the_same_messages_apply_them_once,
    an_id_that_is_known_is_given_to_no_letter,
    a_letter_that_has_an_id_is_applied_under_no_other,
    the_sweep_deletes_what_is_old_and_settled_and_nothing_else,
    sweeping_beside_consumers_holds_nobody_up,
    a_call_without_a_result_is_made_again_and_with_one_never,
    a_call_without_a_result_waits_while_its_key_is_parked,
    payload_hash_size_and_time_are_kept_for_inspection,
);

fn committed(received: &[Received]) -> Applied {
    Applied::Committed(received.to_vec())
}

async fn a_second_delivery_is_a_duplicate_and_its_effect_happens_once(world: World) {
    // G-45
    let batch = [arrival("1", None, "a"), arrival("2", None, "b")];
    assert_eq!(world.apply(&batch).await, committed(&[New, New]));
    assert_eq!(world.apply(&batch).await, committed(&[Duplicate, Duplicate]));
    let third = [batch[1].clone(), arrival("3", None, "c")];
    assert_eq!(world.apply(&third).await, committed(&[Duplicate, New]));
    assert_eq!(world.effects().await, ["1", "2", "3"]);
}

async fn copies_in_one_batch_have_one_effect(world: World) {
    // G-45
    let one = arrival("1", None, "a");
    let batch = [one.clone(), arrival("2", None, "b"), one.clone(), one];
    assert_eq!(world.apply(&batch).await, committed(&[New, New, Duplicate, Duplicate]));
    assert_eq!(world.effects().await, ["1", "2"]);
}

async fn another_payload_under_the_same_id_is_a_dead_letter_and_parks_its_key(world: World) {
    // G-45
    assert_eq!(world.apply(&[arrival("1", Some("k"), "pay 10")]).await, committed(&[New]));
    let batch =
        [arrival("1", Some("k"), "pay 90"), arrival("2", Some("k"), "b"), arrival("3", Some("j"), "c")];
    assert_eq!(world.apply(&batch).await, committed(&[Conflict, Behind, New]));
    assert_eq!(world.effects().await, ["1", "3"], "neither skipped nor applied");
    // Delivered again: no second letter.
    assert_eq!(world.apply(&batch).await, committed(&[Conflict, Duplicate, Duplicate]));

    let letters = world.inbox.letters("g", None, 0, 10).await.unwrap();
    let seen: Vec<_> = letters.iter().map(|letter| (letter.aside, &letter.message.payload[..])).collect();
    assert_eq!(seen, [(Aside::Dead, &b"pay 90"[..]), (Aside::Behind, &b"b"[..])]);
    assert!(letters[0].reason.contains("another payload"), "{}", letters[0].reason);
    assert_eq!(letters[0].message, batch[0].message, "it is kept whole");
    assert!(world.inbox.due("g", 10).await.unwrap().is_empty(), "nobody has judged yet");

    let judged = world.inbox.judge("g", letters[0].number, &Verdict::Discard).await.unwrap();
    assert_eq!(judged, Judged::Made);
    let due = world.inbox.due("g", 10).await.unwrap();
    assert_eq!(due.len(), 1, "what waited behind it goes on");
    let mut next = arrival("2", Some("k"), "b");
    next.letter = Some(due[0].number);
    assert_eq!(world.apply(&[next.clone()]).await, committed(&[New]));
    assert_eq!(world.apply(&[next]).await, committed(&[Duplicate]), "a letter is applied once");
    assert_eq!(world.effects().await, ["1", "3", "2"]);
}

async fn a_failed_batch_leaves_no_effect_and_no_row(world: World) {
    // G-45
    let batch = [arrival("1", None, "a"), arrival("2", None, "poison"), arrival("3", None, "c")];
    let Applied::Failed { at: Some(1), failure: Failure::Never(_) } = world.apply(&batch).await else {
        panic!("the second is to blame");
    };
    assert!(world.effects().await.is_empty());
    assert_eq!(world.inbox.overview().await.unwrap(), []);
    assert_eq!(world.apply(&[batch[0].clone(), batch[2].clone()]).await, committed(&[New, New]));
}

fn later(arrival: &Arrival) -> SetAside<'_> {
    SetAside {
        message: &arrival.message,
        id: Some(&arrival.id),
        letter: None,
        aside: Aside::Later,
        reason: "not today".into(),
        tries: 1,
        again_in: Duration::ZERO,
    }
}

async fn what_somebody_else_applied_meanwhile_is_not_set_aside(world: World) {
    // G-45: one consumer failed and rolled back, another applied its copy, then the first sets it aside.
    let one = arrival("1", Some("k"), "a");
    assert_eq!(world.apply(std::slice::from_ref(&one)).await, committed(&[New]));
    let generation = world.inbox.assign("g", "orders", 0).await.unwrap().generation;
    let offsets = [Offset { topic: "orders".into(), partition: 0, generation, first: 0, next: 1 }];
    assert_eq!(world.inbox.set_aside("g", &[later(&one)], &offsets).await.unwrap(), Kept::Kept);
    assert!(world.inbox.letters("g", None, 0, 9).await.unwrap().is_empty());
    assert!(world.inbox.due("g", 9).await.unwrap().is_empty(), "nothing to apply again");
    assert_eq!(world.inbox.assign("g", "orders", 0).await.unwrap().next, Some(1), "it goes on");
    assert_eq!(world.apply(&[one]).await, committed(&[Duplicate]));
    assert_eq!(world.effects().await, ["1"]);

    // Nobody applied this one, and another payload under a known id is still kept.
    let (open, other) = (arrival("2", Some("j"), "b"), arrival("1", Some("i"), "z"));
    world.inbox.set_aside("g", &[later(&open), later(&other)], &[]).await.unwrap();
    assert_eq!(world.inbox.letters("g", None, 0, 9).await.unwrap().len(), 2);
}

async fn groups_and_sources_have_ledgers_of_their_own(world: World) {
    // G-45
    let one = arrival("1", None, "a");
    let mut elsewhere = one.clone();
    elsewhere.message.source = "other".into();
    assert_eq!(world.apply(&[one.clone(), elsewhere]).await, committed(&[New, New]));
    let batch = Batch { group: "h".into(), arrivals: vec![one], offsets: Vec::new() };
    assert_eq!(world.apply.apply(&batch).await.unwrap(), committed(&[New]));
    assert_eq!(world.effects().await.len(), 3);
}

async fn a_place_that_is_used_again_loses_no_message(world: World) {
    // G-45: a stream was deleted and made again, and its sequences begin anew.
    let at = |id, payload| {
        let mut arrival = arrival(id, None, payload);
        arrival.message.place = "7".into();
        arrival
    };
    let arrivals = [at("1", "a"), at("2", "a"), at("3", "c"), at("3", "d")];
    let named = arrivals.iter().map(|arrival| SetAside { aside: Aside::Dead, ..later(arrival) });
    let nameless = arrivals[2..].iter().map(|arrival| SetAside { id: None, ..later(arrival) });
    let letters: Vec<_> = named.chain(nameless).collect();
    for delivery in ["first", "second"] {
        for letter in &letters {
            world.inbox.set_aside("g", std::slice::from_ref(letter), &[]).await.unwrap();
        }
        let kept = world.inbox.letters("g", None, 0, 99).await.unwrap();
        let kept: Vec<_> = kept
            .iter()
            .map(|one| (one.id.as_ref().map(|id| id.as_str()), &one.message.payload[..]))
            .collect();
        let all: Vec<_> =
            letters.iter().map(|one| (one.id.map(|id| id.as_str()), &one.message.payload[..])).collect();
        assert_eq!(kept, all, "a letter each, after the {delivery} delivery");
    }
}

async fn a_key_no_index_takes_keeps_its_order_all_the_same(world: World) {
    // G-41
    for (n, key) in ["a\0b".to_owned(), "long".repeat(4000)].iter().enumerate() {
        let of = |name: &str, payload| arrival(&format!("{n}{name}"), Some(key), payload);
        assert_eq!(world.apply(&[of("1", "a")]).await, committed(&[New]));
        assert_eq!(world.apply(&[of("1", "z"), of("2", "b")]).await, committed(&[Conflict, Behind]));
        assert_eq!(world.apply(&[of("3", "c")]).await, committed(&[Behind]));
        let letters = world.inbox.letters("g", None, 0, 9).await.unwrap();
        world.inbox.judge("g", letters[0].number, &Verdict::Discard).await.unwrap();
        for name in ["2", "3"] {
            let letter = world.inbox.due("g", 9).await.unwrap().remove(0);
            assert_eq!(letter.id.as_ref().unwrap().as_str(), format!("{n}{name}"));
            assert_eq!(letter.message.ordering_key(), of("2", "b").message.ordering_key());
            let again = Arrival::of(letter.id.unwrap(), letter.message);
            let again = Arrival { letter: Some(letter.number), ..again };
            assert_eq!(world.apply(&[again]).await, committed(&[New]));
        }
    }
    assert_eq!(world.effects().await, ["01", "02", "03", "11", "12", "13"]);
}

async fn two_transactions_with_the_same_messages_apply_them_once(world: World) {
    // G-45
    let ids: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
    let batch: Vec<_> = ids.iter().map(|id| arrival(id, None, "a")).collect();
    let mut backwards = batch.clone();
    backwards.reverse();
    let mut applied = 0;
    for _ in 0..5 {
        let both = [world.apply(&batch), world.apply(&backwards), world.apply(&batch)];
        for one in futures_util::future::join_all(both).await {
            let Applied::Committed(received) = one else { panic!("{one:?}") };
            applied += received.iter().filter(|received| **received == New).count();
        }
    }
    assert_eq!(applied, 40);
    assert_eq!(world.effects().await.len(), 40);
}

async fn an_id_that_is_known_is_given_to_no_letter(world: World) {
    // G-45
    let (done, open) = (arrival("done", None, "a"), arrival("open", None, "b"));
    assert_eq!(world.apply(std::slice::from_ref(&done)).await, committed(&[New]));
    let intended = Batch { group: "g".into(), arrivals: vec![open], offsets: Vec::new() };
    world.inbox.intend(&intended).await.unwrap();
    // The message that was applied came once more without its id, and another without one.
    let mut again = done.clone();
    again.message.place = "elsewhere".into();
    let other = arrival("x", None, "c");
    for nameless in [&again, &other] {
        let letter = SetAside { id: None, aside: Aside::Dead, ..later(nameless) };
        world.inbox.set_aside("g", &[letter], &[]).await.unwrap();
    }
    let letters = world.inbox.letters("g", None, 0, 9).await.unwrap();
    let replay = async |letter: usize, id: &str| {
        let verdict = Verdict::Replay(Some(Id::parse(id).unwrap()));
        world.inbox.judge("g", letters[letter].number, &verdict).await.unwrap()
    };
    assert_eq!(replay(0, "done").await, Judged::IdUsed(State::Done));
    assert_eq!(replay(1, "done").await, Judged::IdUsed(State::Done), "also of another payload");
    assert_eq!(replay(1, "open").await, Judged::IdUsed(State::Intended));
    assert!(world.inbox.due("g", 9).await.unwrap().is_empty(), "nothing has changed");
    assert_eq!(world.inbox.letters("g", None, 0, 9).await.unwrap(), letters);

    assert_eq!(replay(1, "own").await, Judged::Made);
    assert_eq!(replay(0, "own").await, Judged::IdUsed(State::Aside), "from then on it is known");
    assert_eq!(replay(1, "own").await, Judged::Made, "once more is no harm");
    let due = world.inbox.due("g", 9).await.unwrap();
    let [letter] = &due[..] else { panic!("{due:?}") };
    let copy = arrival("own", None, "c");
    assert_eq!(world.apply(std::slice::from_ref(&copy)).await, committed(&[Duplicate]), "it is set aside");
    let next = Arrival { letter: Some(letter.number), ..copy.clone() };
    assert_eq!(world.apply(&[next]).await, committed(&[New]));
    assert_eq!(world.apply(&[copy]).await, committed(&[Duplicate]));
    assert_eq!(world.effects().await, ["done", "own"]);
}

async fn a_letter_that_has_an_id_is_applied_under_no_other(world: World) {
    // G-44, G-45
    let dead = arrival("own", None, "a");
    let letter = SetAside { aside: Aside::Dead, ..later(&dead) };
    world.inbox.set_aside("g", &[letter], &[]).await.unwrap();
    let letters = world.inbox.letters("g", None, 0, 9).await.unwrap();
    let judge = async |id: Option<&str>| {
        let verdict = Verdict::Replay(id.map(|id| Id::parse(id).unwrap()));
        world.inbox.judge("g", letters[0].number, &verdict).await.unwrap()
    };
    assert_eq!(judge(Some("another")).await, Judged::HasId);
    assert_eq!(world.inbox.letters("g", None, 0, 9).await.unwrap(), letters, "nothing has changed");
    assert!(world.inbox.due("g", 9).await.unwrap().is_empty());
    assert_eq!(judge(Some("own")).await, Judged::Made);
    assert_eq!(judge(None).await, Judged::Made);
    assert_eq!(world.inbox.due("g", 9).await.unwrap().len(), 1);
}

async fn the_sweep_deletes_what_is_old_and_settled_and_nothing_else(world: World) {
    // G-46
    let conflict = [arrival("1", Some("k"), "a"), arrival("1", Some("k"), "b"), arrival("2", Some("k"), "c")];
    assert_eq!(world.apply(&conflict).await, committed(&[New, Conflict, Behind]));
    let intended = Batch { group: "g".into(), arrivals: vec![arrival("9", None, "x")], offsets: Vec::new() };
    assert_eq!(world.inbox.intend(&intended).await.unwrap(), [New]);
    assert_eq!(
        world.apply(&[arrival("3", None, "d"), arrival("4", None, "e")]).await,
        committed(&[New, New])
    );
    world.run("UPDATE semel_inbox SET handled_at = handled_at - 5000000000 WHERE id <> '4'").await;
    let hour = Duration::from_secs(3600);
    assert_eq!(world.inbox.sweep("h", hour, 10).await.unwrap().deleted, 0, "not this group's");
    let mut deleted = 0;
    loop {
        let swept = world.inbox.sweep("g", hour, 1).await.unwrap();
        deleted += swept.deleted;
        if !swept.more {
            break;
        }
    }
    let left = world.texts("SELECT id FROM semel_inbox ORDER BY id").await;
    // 2 has a letter, 9 has no result, 4 is young. 1's row is old, but its id has a letter, too.
    assert_eq!(left.iter().filter(|id| *id != "1").collect::<Vec<_>>(), ["2", "4", "9"]);
    assert!(deleted >= 1);
    assert_eq!(world.apply(&[arrival("4", None, "e")]).await, committed(&[Duplicate]));
}

async fn sweeping_beside_consumers_holds_nobody_up(world: World) {
    // G-46
    let mut applied = 0;
    for round in 0..8 {
        let batch: Vec<_> = (0..20).map(|n| arrival(&format!("{round}-{n}"), None, "a")).collect();
        // Old enough for the sweep that runs beside the next round, which delivers half of them again.
        let (done, swept) =
            futures_util::future::join(world.apply(&batch), world.inbox.sweep("g", Duration::ZERO, 7)).await;
        assert!(matches!(done, Applied::Committed(_)), "{done:?}");
        swept.unwrap();
        applied += 20;
    }
    assert_eq!(world.effects().await.len(), applied);
}

async fn a_call_without_a_result_is_made_again_and_with_one_never(world: World) {
    // G-47
    let batch = Batch { group: "g".into(), arrivals: vec![arrival("1", None, "a")], offsets: Vec::new() };
    assert_eq!(world.inbox.intend(&batch).await.unwrap(), [New]);
    assert_eq!(world.inbox.intend(&batch).await.unwrap(), [New], "a crash before the result calls again");
    world.inbox.finish(&batch, &[Duration::from_millis(5)]).await.unwrap();
    assert_eq!(world.inbox.intend(&batch).await.unwrap(), [Duplicate]);
}

async fn a_call_without_a_result_waits_while_its_key_is_parked(world: World) {
    // G-41, G-47: both calls began, then the first failed and was set aside.
    let (first, second) = (arrival("1", Some("k"), "a"), arrival("2", Some("k"), "b"));
    let batch =
        |arrivals: &[Arrival]| Batch { group: "g".into(), arrivals: arrivals.to_vec(), offsets: Vec::new() };
    let both = batch(&[first.clone(), second.clone()]);
    assert_eq!(world.inbox.intend(&both).await.unwrap(), [New, New]);
    world.inbox.set_aside("g", &[later(&first)], &[]).await.unwrap();
    assert_eq!(world.inbox.intend(&batch(std::slice::from_ref(&second))).await.unwrap(), [Behind]);
    assert_eq!(
        world.inbox.intend(&batch(std::slice::from_ref(&second))).await.unwrap(),
        [Duplicate],
        "it has a letter"
    );

    for expected in [first, second] {
        let due = world.inbox.due("g", 9).await.unwrap();
        let [letter] = &due[..] else { panic!("one at a time: {due:?}") };
        assert_eq!(letter.id.as_ref(), Some(&expected.id), "in their order");
        let again = batch(&[Arrival { letter: Some(letter.number), ..expected }]);
        world.inbox.finish(&again, &[Duration::from_millis(5)]).await.unwrap();
    }
    assert!(world.inbox.letters("g", None, 0, 9).await.unwrap().is_empty());
}

async fn payload_hash_size_and_time_are_kept_for_inspection(world: World) {
    world.apply(&[arrival("1", None, "12345")]).await;
    let kept = world.texts("SELECT CAST(size AS TEXT) FROM semel_inbox WHERE state = 2").await;
    assert_eq!(kept, ["5"]);
    let took = world
        .texts(
            "SELECT CAST(count(*) AS TEXT) FROM semel_inbox i JOIN semel_inbox_batch b ON b.batch = i.batch",
        )
        .await;
    assert_eq!(took, ["1"]);
    let groups = world.inbox.overview().await.unwrap();
    assert_eq!(groups, [Overview { group: "g".into(), ledger: 1, ..Overview::default() }]);
}
