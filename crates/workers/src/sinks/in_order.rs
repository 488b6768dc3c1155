//! Many messages at once, but of each key one.

use std::collections::{HashMap, VecDeque};
use std::future::Future;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use semel_core::mutant;

use super::{Parcel, Receipt};

/// Sends parcels with at most `width` on their way. The next of a key leaves when the one before it has
/// landed; after anything else, the rest of that key is unsent. Once the sink is down nothing more leaves.
pub async fn in_order<'a, Sent>(
    parcels: &'a [Parcel],
    width: usize,
    send: impl Fn(&'a Parcel) -> Sent,
) -> Vec<Receipt>
where
    Sent: Future<Output = Receipt>,
{
    let mut receipts = vec![Receipt::Unsent; parcels.len()];
    let mut waiting: HashMap<&str, VecDeque<usize>> = HashMap::new();
    let mut free = VecDeque::new();
    for (index, parcel) in parcels.iter().enumerate() {
        match parcel.key.as_deref() {
            Some(key) if !mutant::on("relay-order-not-kept") => match waiting.get_mut(key) {
                Some(queue) => queue.push_back(index),
                None => {
                    waiting.insert(key, VecDeque::new());
                    free.push_back(index);
                }
            },
            _ => free.push_back(index),
        }
    }
    let mut flying = FuturesUnordered::new();
    let mut down = false;
    loop {
        while !down && flying.len() < width {
            let Some(index) = free.pop_front() else { break };
            let sent = send(&parcels[index]);
            flying.push(async move { (index, sent.await) });
        }
        let Some((index, receipt)) = flying.next().await else { return receipts };
        down |= matches!(receipt, Receipt::Down(_) | Receipt::Fenced);
        let queue = parcels[index].key.as_deref().and_then(|key| waiting.get_mut(key));
        if receipt == Receipt::Landed
            && let Some(next) = queue.and_then(VecDeque::pop_front)
        {
            free.push_back(next);
        }
        receipts[index] = receipt;
    }
}
