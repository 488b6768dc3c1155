//! Waiting for a store, but not for ever: a call whose answer got lost must not end the work for good.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use semel_core::error::Kind;
use semel_core::store::Pending;
use semel_core::{Error, Runtime, mutant};

/// How long one call may take. What is given up is done again by a later pass.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// What the store answers in time.
pub(crate) async fn answered<T>(runtime: &dyn Runtime, call: Pending<'_, T>) -> Result<T, Error> {
    if mutant::on("recovery-waits-for-ever") {
        return call.await;
    }
    match select(call, pin!(runtime.sleep(ANSWER_MAX))).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => {
            let text = format!("the store did not answer within {ANSWER_MAX:?}");
            Err(Error::new(Kind::TimedOut, text).maybe_applied())
        }
    }
}
