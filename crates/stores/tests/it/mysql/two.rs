//! Two processes, here two stores, on one database.

use std::collections::HashSet;
use std::sync::Arc;

use semel_core::Claim;
use semel_core::store::EffectStore;
use semel_core::verbs::Completion;
use tokio::task::JoinSet;

use super::rig::{complete, connect, granted, request, with_database};

// G-8, G-9
#[test]
fn two_stores_on_one_database_grant_each_key_once_and_no_token_twice() {
    with_database(async |database| {
        let stores = [Arc::new(connect(&database.url()).await), Arc::new(connect(&database.url()).await)];
        let mut claims = JoinSet::new();
        for key in 0..200 {
            for store in &stores {
                let store = store.clone();
                claims.spawn(async move {
                    match store.claim(&request(&format!("shared-{key}"))).await.unwrap() {
                        Claim::Granted(lease) => {
                            let stored = store.complete(&complete(&lease, "paid")).await.unwrap();
                            assert_eq!(stored, Completion::Stored);
                            Some(lease.holder)
                        }
                        Claim::InFlight { .. } | Claim::Completed { .. } => None,
                        other => panic!("{other:?}"),
                    }
                });
            }
        }
        let holders: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
        assert_eq!(holders.len(), 200, "each key has one holder");
        let tokens: HashSet<_> = holders.iter().map(|holder| holder.token).collect();
        assert_eq!(tokens.len(), 200, "and no token came twice");
        for store in &stores {
            let lease = granted(store.claim(&request("next")).await.unwrap());
            assert!(tokens.iter().all(|token| lease.holder.token > *token));
            store.release(&semel_core::verbs::Release { holder: lease.holder }).await.unwrap();
        }
    });
}
