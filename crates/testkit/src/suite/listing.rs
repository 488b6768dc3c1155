//! What a store holds can be found: by state, by the parts of its identity, page by page, none missed.

use std::sync::Arc;

use semel_core::record::{Record, Recovery, State};
use semel_core::store::Filter;
use semel_core::verbs::{Change, Completion};
use semel_core::{Operation, OperationId, Token};

use crate::Rig;
use crate::scene::{DAY, RECOVERIES, Shop, operation, operation_in};
use crate::twin;

// G-15
pub(super) async fn the_unsettled_are_found_page_by_page_and_none_is_missed(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let mut open = Vec::new();
    for n in 0..23 {
        let order = operation(&format!("unsettled-0000{n:02}"));
        let lease = shop.grant(&order, RECOVERIES[n % 3]).await;
        match n % 4 {
            0 => drop(shop.complete(lease.holder, "paid").await),
            1 => open.push((order.id(), State::InProgress)),
            2 => {
                shop.report_unknown(lease.holder).await;
                open.push((order.id(), State::Unknown));
            }
            _ => drop(shop.release(lease.holder).await),
        }
    }
    // An old key claimed again moves to the end.
    let again = operation("unsettled-000003");
    shop.grant(&again, Recovery::Hold).await;
    open.push((again.id(), State::InProgress));
    shop.shift(3 * DAY);
    shop.sweep().await;
    let unsettled = Filter::unsettled();
    for limit in [1, 2, 5, 1000] {
        assert_eq!(twin::walk(&*shop.store(), &unsettled, limit).await, open, "in pages of {limit}");
    }
    let page = shop.store().list(&unsettled, Token(0), 1000).await.expect("a page is answered");
    for record in page.records {
        assert_eq!(shop.record(record.operation.id()).await, record, "records are whole");
        assert!(page.now > record.created_at);
    }
    let newest = shop.record(again.id()).await.token;
    for filter in [Filter::default(), unsettled] {
        let end = shop.store().list(&filter, newest, 10).await.expect("a page is answered");
        assert!(end.records.is_empty() && end.next.is_none());
    }
}

const STATES: [State; 5] =
    [State::InProgress, State::Completed, State::Released, State::Unknown, State::Tombstone];

/// A claimed operation, brought into a state.
async fn bring(shop: &Shop, order: &Arc<Operation>, state: State) {
    let holder = shop.grant(order, Recovery::Hold).await.holder;
    match state {
        State::InProgress => {}
        State::Released => assert_eq!(shop.release(holder).await, Change::Made),
        State::Unknown => assert_eq!(shop.report_unknown(holder).await, Change::Made),
        State::Completed | State::Tombstone => {
            assert_eq!(shop.complete(holder, "paid").await, Completion::Stored);
            if state == State::Tombstone {
                assert_eq!(shop.purge(order.id()).await, Change::Made);
            }
        }
    }
}

/// Many operations that differ in one part or another, in all states.
async fn fill(shop: &Shop) -> Vec<(Arc<Operation>, State)> {
    let mut all = Vec::new();
    for namespace in ["shop", "shop-2"] {
        for tenant in [None, Some("alice"), Some("Alice")] {
            for route in ["charge", "POST /orders/{id}"] {
                for key in ["listed-key-00001", "listed-key-00002", "LISTED-KEY-00001"] {
                    let order = operation_in(namespace, tenant, route, key);
                    let state = STATES[all.len() % STATES.len()];
                    bring(shop, &order, state).await;
                    all.push((order, state));
                }
            }
        }
    }
    all
}

/// Which operations a filter is to find.
type Expected = fn(&Operation, State) -> bool;

// G-81: an operator finds an operation by its key, and by whatever else is known of it.
pub(super) async fn operations_are_found_by_any_of_their_parts(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    let all = fill(&shop).await;
    let key = Some(all[0].0.key().clone());
    let none = Filter::default();
    let text = |text: &str| Some(text.to_owned());
    let filters: [(Filter, Expected); 12] = [
        (none.clone(), |_, _| true),
        (Filter { namespace: text("shop"), ..none.clone() }, |order, _| order.scope().namespace() == "shop"),
        (Filter { tenant: Some(None), ..none.clone() }, |order, _| order.scope().tenant().is_none()),
        (Filter { tenant: Some(text("alice")), ..none.clone() }, |order, _| {
            order.scope().tenant() == Some("alice")
        }),
        (Filter { route: text("charge"), ..none.clone() }, |order, _| order.scope().route() == "charge"),
        (Filter { key: key.clone(), ..none.clone() }, |order, _| order.key().as_str() == "listed-key-00001"),
        (Filter { states: Some(vec![State::Completed]), ..none.clone() }, |_, state| {
            state == State::Completed
        }),
        (Filter { states: Some(vec![State::Unknown]), ..none.clone() }, |_, state| state == State::Unknown),
        (Filter { states: Some(vec![State::Unknown, State::Tombstone]), ..none.clone() }, |_, state| {
            matches!(state, State::Unknown | State::Tombstone)
        }),
        (Filter { states: Some(Vec::new()), ..none.clone() }, |_, _| false),
        (Filter { route: text("no\0such"), ..none.clone() }, |_, _| false),
        (Filter { tenant: Some(None), route: text("charge"), key, ..Filter::unsettled() }, |order, state| {
            let scope = order.scope();
            scope.tenant().is_none()
                && scope.route() == "charge"
                && order.key().as_str() == "listed-key-00001"
                && matches!(state, State::InProgress | State::Unknown)
        }),
    ];
    for (filter, expected) in &filters {
        let expected: Vec<(OperationId, State)> = all
            .iter()
            .filter(|(order, state)| expected(order, *state))
            .map(|(order, state)| (order.id(), *state))
            .collect();
        for limit in [1, 7, 1000] {
            let found = twin::walk(&*shop.store(), filter, limit).await;
            assert_eq!(found, expected, "{filter:?} in pages of {limit}");
        }
    }
    let page = shop.store().list(&none, Token(0), 1000).await.expect("a page is answered");
    for record in page.records {
        let whole = shop.record(record.operation.id()).await;
        assert_eq!(record, Record { outcome: None, ..whole }, "whole but for the outcome");
    }
}

// G-11, G-81: however little matches, a call stays short.
pub(super) async fn a_listing_looks_at_no_more_records_than_its_limit(rig: Arc<dyn Rig>) {
    let shop = Shop(rig);
    for n in 0..25 {
        shop.completed(&operation(&format!("haystack-00000{n:02}")), "paid").await;
    }
    let needle = operation("needle-000000001");
    shop.completed(&needle, "paid").await;
    let filter = Filter { key: Some(needle.key().clone()), ..Filter::default() };
    let (mut after, mut pages) = (Token(0), 0);
    let found = loop {
        let page = shop.store().list(&filter, after, 10).await.expect("a page is answered");
        pages += 1;
        match (page.records.first(), page.next) {
            (Some(record), _) => break record.operation.id(),
            (None, Some(next)) => {
                assert!(next > after, "a page without a match says where to go on");
                after = next;
            }
            (None, None) => panic!("the listing ended before the needle"),
        }
    };
    assert_eq!(found, needle.id());
    assert_eq!(pages, 3, "ten, ten, and the rest");
    let none = shop.store().list(&filter, Token(0), 0).await.expect("a page is answered");
    assert!(none.records.is_empty(), "a look at nothing finds nothing");
}
