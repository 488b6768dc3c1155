//! Statements sent in one go, answered in one go.
//!
//! The server runs them in the order they were sent, so a transaction can leave whole, COMMIT
//! included, without waiting for the answers in between: if one of them fails, the COMMIT that follows
//! only ends the failure.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Row;

use super::connect::{Live, Param};
use super::fault::Fault;
use crate::crash;

type Answer = Result<Vec<Row>, tokio_postgres::Error>;
type Sent<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// A statement and its bound values.
pub(super) type Statement<'a> = (&'a str, &'a [Param<'a>]);

/// How a pipeline ends.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// The transaction stays open for what follows.
    Open,
    /// COMMIT, and the places to crash at right before and right after it.
    Commit(&'static [(&'static str, &'static str)]),
}

impl Live {
    /// Sends statements together, after `begin` if one is given, and takes all their answers.
    pub(super) async fn run(
        &self,
        limit: Duration,
        begin: Option<&str>,
        statements: &[Statement<'_>],
        end: End,
    ) -> Result<Vec<Vec<Row>>, Fault> {
        let (client, commits) = (&self.client, matches!(end, End::Commit(_)));
        let simple = |sql| -> Sent<'_> {
            Box::pin(async move { client.batch_execute(sql).await.map(|()| Vec::new()) })
        };
        let mut sent: Vec<Sent<'_>> = Vec::with_capacity(statements.len() + 3);
        // A pipeline without BEGIN goes on in a transaction that began well.
        sent.push(begin.map_or_else(|| Box::pin(async { Ok(Vec::new()) }) as Sent<'_>, simple));
        for (sql, params) in statements {
            sent.push(Box::pin(client.query_typed(sql, params)));
        }
        if let End::Commit(crashes) = end {
            sent.push(Box::pin(async move {
                crashes.iter().for_each(|(before, _)| crash::point(before));
                client.batch_execute("COMMIT").await.map(|()| Vec::new())
            }));
        }
        let answers = timeout(limit, in_order(sent)).await.map_err(|_| Fault::timed_out(commits))?;
        judge(&answers, commits)?;
        if let End::Commit(crashes) = end {
            crashes.iter().for_each(|(_, after)| crash::point(after));
        }
        Ok(answers.into_iter().skip(1).take(statements.len()).flatten().collect())
    }
}

fn judge(answers: &[Answer], commits: bool) -> Result<(), Fault> {
    let errors: Vec<_> = answers.iter().map(|answer| answer.as_ref().err()).collect();
    match errors.split_last() {
        Some((commit, before)) if commits => Fault::judge(before, *commit),
        _ => errors.into_iter().flatten().next().map_or(Ok(()), |error| Err(Fault::of(error))),
    }
}

/// Waits for all, and polls them in their order: the driver sends a statement at its first poll, and a
/// COMMIT must not overtake. What fails at its first poll was never sent; then nothing after it is either, for a
/// COMMIT would commit the rest. The connection is given up after that, by who judges the answers.
async fn in_order(futures: Vec<Sent<'_>>) -> Vec<Answer> {
    let mut waiting: Vec<(Sent<'_>, Option<Answer>)> =
        futures.into_iter().map(|future| (future, None)).collect();
    let mut sent = 0;
    poll_fn(|context| {
        let mut all = Poll::Ready(());
        for at in 0..waiting.len() {
            let (future, answer) = &mut waiting[at];
            if answer.is_some() {
                continue;
            }
            match future.as_mut().poll(context) {
                Poll::Ready(Err(error)) if at == sent => {
                    *answer = Some(Err(error));
                    waiting.truncate(at + 1);
                    return Poll::Ready(());
                }
                Poll::Ready(ready) => *answer = Some(ready),
                Poll::Pending => all = Poll::Pending,
            }
            sent = sent.max(at + 1);
        }
        all
    })
    .await;
    waiting.into_iter().filter_map(|(_, answer)| answer).collect()
}
