//! What was read ahead of the database, in its order.
//!
//! It knows neither Kafka nor the database. A place without messages is told only behind every message before it: whoever keeps
//! it sooner would pass over them.

use std::collections::VecDeque;
use std::time::Duration;

use semel_core::error::{Error, Kind};
use semel_core::inbox::Offset;
use semel_core::mutant;
use tokio::sync::mpsc::Receiver;

use crate::consumer::Delivery;

/// What the thread has to give, in the order it was read.
#[derive(Debug)]
pub(super) enum Given {
    Message(Delivery),
    /// Between the messages that were given before and this place there is none.
    Passed(Offset),
    /// What lies behind this place was deleted. It is an error only if the group still goes on there: somebody else may have taken
    /// the partition since, and applied what is gone.
    Gone(Offset, Error),
}

pub(super) struct Ahead {
    given: Receiver<Result<Given, Error>>,
    waiting: VecDeque<Delivery>,
    /// Comes when all that was read before it has been given out.
    behind: Option<Result<Given, Error>>,
    /// Behind all that has been given out. The error comes next, if this place is kept.
    place: Option<(Offset, Option<Error>)>,
}

impl Ahead {
    pub(super) fn new(given: Receiver<Result<Given, Error>>) -> Self {
        Self { given, waiting: VecDeque::new(), behind: None, place: None }
    }

    /// The next messages. None within `wait`, or a place to be kept: ask [`passed`](Self::passed). Of a place that the database
    /// refused it must know that it is not ours any more.
    pub(super) async fn read(
        &mut self,
        limit: usize,
        wait: Duration,
        is_ours: impl Fn(&Offset) -> bool,
    ) -> Result<Vec<Delivery>, Error> {
        if let Some((place, Some(error))) = self.place.take()
            && (is_ours(&place) || mutant::on("kafka-source-lost-place-refused"))
        {
            return Err(error);
        }
        if self.waiting.is_empty() {
            let given = match self.behind.take() {
                Some(given) => given,
                None => match tokio::time::timeout(wait, self.given.recv()).await {
                    Ok(Some(given)) => given,
                    Ok(None) => Err(Error::new(Kind::Closed, "the thread that reads from Kafka has ended")),
                    Err(_) => return Ok(Vec::new()),
                },
            };
            match given? {
                Given::Message(delivery) => self.waiting.push_back(delivery),
                Given::Passed(offset) => {
                    self.place = Some((offset, None));
                    return Ok(Vec::new());
                }
                Given::Gone(offset, error) => {
                    self.place = Some((offset, Some(error)));
                    return Ok(Vec::new());
                }
            }
        }
        while self.waiting.len() < limit
            && self.behind.is_none()
            && let Ok(given) = self.given.try_recv()
        {
            match given {
                Ok(Given::Message(delivery)) => self.waiting.push_back(delivery),
                Ok(Given::Passed(offset)) if mutant::on("kafka-source-place-before-messages") => {
                    self.place = Some((offset, None));
                }
                behind => self.behind = Some(behind),
            }
        }
        let count = self.waiting.len().min(limit);
        Ok(self.waiting.drain(..count).collect())
    }

    /// A place behind all that was read.
    pub(super) fn passed(&self) -> Option<&Offset> {
        self.place.as_ref().map(|(offset, _)| offset)
    }

    /// Forgets what is not wanted of it any more.
    pub(super) fn retain(&mut self, wanted: impl FnMut(&Delivery) -> bool) {
        self.waiting.retain(wanted);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::inbox::Incoming;
    use tokio::sync::mpsc::channel;

    use super::*;
    use crate::consumer::Receipt;

    #[tokio::test]
    async fn a_place_and_an_error_are_told_behind_the_messages_before_them_and_before_those_after() {
        // G-44, G-47
        let (sender, given) = channel(9);
        let message = |n| Delivery { receipt: Receipt(n), message: Incoming::default(), position: None };
        let offset = Offset { topic: "t".into(), partition: 0, generation: 1, first: 6, next: 6 };
        for n in 0..2 {
            sender.try_send(Ok(Given::Message(message(n)))).unwrap();
        }
        sender.try_send(Ok(Given::Passed(offset.clone()))).unwrap();
        sender.try_send(Ok(Given::Message(message(2)))).unwrap();
        sender.try_send(Err(Error::new(Kind::Damaged, "gone"))).unwrap();
        let mut ahead = Ahead::new(given);
        let mut seen = Vec::new();
        let error = loop {
            match ahead.read(9, Duration::ZERO, |_| true).await {
                Ok(read) => {
                    let receipts: Vec<u64> = read.iter().map(|delivery| delivery.receipt.0).collect();
                    seen.push((receipts, ahead.passed().map(|offset| offset.next)));
                }
                Err(error) => break error,
            }
        };
        assert_eq!(seen, [(vec![0, 1], None), (vec![], Some(6)), (vec![2], None)]);
        assert_eq!((error.kind(), ahead.passed()), (Kind::Damaged, None));
    }

    #[tokio::test]
    async fn what_is_gone_is_an_error_once_its_place_was_asked_for_and_is_still_ours() {
        // G-44, G-47
        for is_ours in [true, false] {
            let (sender, given) = channel(9);
            let offset = Offset { topic: "t".into(), partition: 0, generation: 1, first: 6, next: 6 };
            sender.try_send(Ok(Given::Gone(offset, Error::new(Kind::Damaged, "gone")))).unwrap();
            let after = Delivery { receipt: Receipt(1), message: Incoming::default(), position: None };
            sender.try_send(Ok(Given::Message(after))).unwrap();
            let mut ahead = Ahead::new(given);
            let read = ahead.read(9, Duration::ZERO, |_| true).await.unwrap();
            assert!(read.is_empty());
            assert_eq!(ahead.passed().map(|offset| offset.next), Some(6), "whoever keeps it is asked first");
            match ahead.read(9, Duration::ZERO, |_| is_ours).await {
                Ok(read) => assert_eq!((is_ours, read.len()), (false, 1), "other partitions are read on"),
                Err(error) => assert_eq!((is_ours, error.kind()), (true, Kind::Damaged)),
            }
            assert_eq!(ahead.passed(), None);
        }
    }
}
