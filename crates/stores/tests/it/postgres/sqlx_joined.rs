//! The same in transactions of sqlx.

use std::sync::Arc;

use semel_core::store::EffectStore;
use semel_core::{Message, Outcome, Refusal, State};
use semel_stores::postgres::tx::{self, Begun, Fate};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};

use super::joined::{call, payments, replayed, run, shop};
use super::proxy::{Cut, Proxy};
use super::rig::{self, with_database};

const EFFECT: &str = "INSERT INTO payment (who) VALUES ('alice')";

async fn pay(pool: &PgPool, wish: &semel_core::joined::Call) -> Option<String> {
    let mut transaction = pool.begin().await.unwrap();
    match tx::begin(&mut *transaction, wish).await.unwrap() {
        Begun::Run(running) => {
            transaction.execute(EFFECT).await.unwrap();
            let outcome = Outcome::text("paid with sqlx");
            let said = [Message::new("payments.made".parse().unwrap(), "paid").key("it's alice")];
            let finished = tx::finish(&mut *transaction, running, &outcome, &said).await.unwrap();
            let resolve = async |lost| {
                let mut other = pool.acquire().await.unwrap();
                tx::resolve(&mut *other, lost, tx::PATIENCE).await
            };
            let _ = tx::commit(transaction, finished, resolve).await.unwrap();
            Some("paid with sqlx".into())
        }
        Begun::Replay(outcome) => Some(String::from_utf8(outcome.body_bytes().unwrap().to_vec()).unwrap()),
        Begun::Refused(Refusal::InFlight { .. }) => None,
        Begun::Refused(why) => panic!("{why}"),
    }
}

async fn pool(url: &str, connections: u32) -> PgPool {
    let options: PgConnectOptions = url.parse().unwrap();
    // As behind poolers that keep no statements.
    let options = options.statement_cache_capacity(0);
    PgPoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
}

// G-30
#[test]
fn with_sqlx_duplicates_at_once_make_one_effect() {
    with_database(async |database| {
        let (store, prints) = shop(&database).await;
        let wish = call(&prints, "k-1", "20 euro");
        let pool = Arc::new(pool(&database.url(), 8).await);
        let racing: Vec<_> = (0..16)
            .map(|_| {
                let (pool, wish) = (pool.clone(), wish.clone());
                tokio::spawn(async move {
                    loop {
                        if let Some(answer) = pay(&pool, &wish.again()).await {
                            return answer;
                        }
                    }
                })
            })
            .collect();
        for rival in racing {
            assert_eq!(rival.await.unwrap(), "paid with sqlx");
        }
        assert_eq!(payments(&database).await, 1);
        let said = "SELECT count(*) FROM semel_outbox WHERE key = 'it''s alice' AND payload = 'paid'";
        assert_eq!(database.number(said).await, 1);
        let record = store.get(wish.operation().id()).await.unwrap().unwrap();
        assert_eq!((record.state, record.attempts), (State::Completed, 1));
        assert_eq!(record.print, wish.request().print);
        // And a transaction of the other driver reads it.
        let mut client = database.client().await;
        let transaction = client.transaction().await.unwrap();
        assert_eq!(replayed(tx::begin(&transaction, &wish.again()).await.unwrap()), "paid with sqlx");
    });
}

// G-31
#[test]
fn with_sqlx_a_pooler_may_stand_between() {
    let Some(pooler) = rig::named("SEMEL_TEST_PGBOUNCER") else { return };
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let pool = pool(&format!("{}?sslmode=disable", database.through(&pooler)), 4).await;
        for key in ["k-1", "k-1", "k-2", "k-2"] {
            assert_eq!(pay(&pool, &call(&prints, key, "x")).await.unwrap(), "paid with sqlx");
        }
        assert_eq!(payments(&database).await, 2);
    });
}

// G-30: at most two round trips beyond the caller's own; a commit whose answer is lost is found.
#[test]
fn with_sqlx_an_operation_costs_two_round_trips_and_a_lost_commit_is_found() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let proxy = Proxy::to(&database.url()).await;
        let mut connection = PgConnection::connect(&proxy.url()).await.unwrap();
        let mut other = PgConnection::connect(&database.url()).await.unwrap();
        let before = proxy.turns();
        let mut transaction = connection.begin().await.unwrap();
        let running = run(tx::begin(&mut *transaction, &call(&prints, "k-1", "x")).await.unwrap());
        transaction.execute(EFFECT).await.unwrap();
        let finished = tx::finish(&mut *transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
        let _ = tx::commit(transaction, finished, async |_| unreachable!("its answer came")).await.unwrap();
        assert_eq!(proxy.turns() - before, 3 + 2, "BEGIN, effect, COMMIT, and two of ours");
        assert_eq!(tx::resolve(&mut other, finished, tx::PATIENCE).await.unwrap(), Fate::Committed);

        let mut transaction = connection.begin().await.unwrap();
        let running = run(tx::begin(&mut *transaction, &call(&prints, "k-2", "x")).await.unwrap());
        transaction.execute(EFFECT).await.unwrap();
        let finished = tx::finish(&mut *transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
        // An empty transaction is open after the commit.
        proxy.cut_next(Cut::Answer);
        let resolve = async |lost| tx::resolve(&mut other, lost, tx::PATIENCE).await;
        let _ = tx::commit(transaction, finished, resolve).await.unwrap();
        assert_eq!(payments(&database).await, 2);
    });
}

// G-30: an error that may have come after the COMMIT is looked into, and one that cannot is not.
#[test]
fn with_sqlx_an_error_that_may_follow_the_commit_is_looked_into() {
    with_database(async |database| {
        let (_store, prints) = shop(&database).await;
        let late = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                RAISE EXCEPTION 'not today' USING ERRCODE = TG_ARGV[0];
            END $$";
        database.run(late).await;
        let mut connection = PgConnection::connect(&database.url()).await.unwrap();
        let mut other = PgConnection::connect(&database.url()).await.unwrap();
        for (code, is_asked) in [("57014", true), ("23514", false)] {
            let trigger = format!(
                "DROP TRIGGER IF EXISTS late ON payment; CREATE CONSTRAINT TRIGGER late AFTER INSERT ON payment
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse('{code}')"
            );
            database.run(&trigger).await;
            let mut transaction = connection.begin().await.unwrap();
            let running = run(tx::begin(&mut *transaction, &call(&prints, "k-1", "x")).await.unwrap());
            transaction.execute(EFFECT).await.unwrap();
            let finished = tx::finish(&mut *transaction, running, &Outcome::text("paid"), &[]).await.unwrap();
            let mut asked = false;
            let resolve = async |lost| {
                asked = true;
                tx::resolve(&mut other, lost, tx::PATIENCE).await
            };
            let error = tx::commit(transaction, finished, resolve).await.unwrap_err();
            assert!(asked == is_asked && !error.outcome_is_unknown(), "{code}: {error:?}");
            assert_eq!(payments(&database).await, 0);
        }
    });
}
