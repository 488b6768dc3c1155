//! Fences and natural idempotency: what a database can refuse without any key.

use semel_core::EffectStore;
use semel_core::fence::{Guarded, Passage, Resource, Token};
use semel_stores::postgres::tx::fence;
use tokio_postgres::Client;

use super::rig::{connect, with_database};

fn account() -> Resource {
    Resource::parse("account/alice").unwrap()
}

/// A write to the account, if the fence lets it pass.
async fn write(client: &mut Client, token: Token, what: &str) -> Passage {
    let transaction = client.transaction().await.unwrap();
    let passage = fence::pass(&transaction, &account(), token).await.unwrap();
    if passage == Passage::Passed {
        transaction.execute("INSERT INTO entry (what) VALUES ($1)", &[&what]).await.unwrap();
        transaction.commit().await.unwrap();
    }
    passage
}

// G-70: the exact story. v3 times out, v4's refund applies, the late v3 is refused.
#[test]
fn a_late_retry_that_a_refund_has_overtaken_is_refused() {
    with_database(async |database| {
        connect(&database.url()).await;
        database.run("CREATE TABLE entry (what text NOT NULL)").await;
        let (mut slow, mut client) = (database.client().await, database.client().await);
        let third = fence::lease(&slow, &account()).await.unwrap();
        // The payment is on its way, nobody hears of it, and it is given up.
        let fourth = fence::lease(&client, &account()).await.unwrap();
        assert!(fourth > third);
        assert_eq!(write(&mut client, fourth, "refund").await, Passage::Passed);
        assert_eq!(write(&mut slow, third, "payment").await, Passage::Refused { last: fourth });
        assert_eq!(write(&mut client, fourth, "note").await, Passage::Passed, "its holder goes on");
        assert_eq!(database.number("SELECT count(*) FROM entry WHERE what = 'payment'").await, 0);

        // From plain SQL the write's transaction fails.
        let late = format!("BEGIN; SELECT semel_pass('account/alice', {third}); COMMIT");
        let error = client.batch_execute(&late).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "SM006");
        client.batch_execute("ROLLBACK").await.unwrap();
        let fifth: i64 = client.query_one("SELECT semel_lease('account/alice')", &[]).await.unwrap().get(0);
        // The token of an operation, say.
        let foreign = fence::pass(&client, &account(), Token(fifth as u64 + 100)).await.unwrap_err();
        assert!(foreign.to_string().contains("no lease gave"), "{foreign}");
    });
}

// G-70: what was rolled back has overtaken nobody, and who writes first makes the other wait.
#[test]
fn a_fence_moves_only_with_the_write_and_writers_take_turns() {
    with_database(async |database| {
        connect(&database.url()).await;
        database.run("CREATE TABLE entry (what text NOT NULL)").await;
        let (mut one, mut two) = (database.client().await, database.client().await);
        let older = fence::lease(&one, &account()).await.unwrap();
        let newer = fence::lease(&two, &account()).await.unwrap();
        let undone = two.transaction().await.unwrap();
        assert_eq!(fence::pass(&undone, &account(), newer).await.unwrap(), Passage::Passed);
        undone.rollback().await.unwrap();
        assert_eq!(write(&mut one, older, "first").await, Passage::Passed);

        let open = two.transaction().await.unwrap();
        assert_eq!(fence::pass(&open, &account(), newer).await.unwrap(), Passage::Passed);
        let late = tokio::spawn(async move { write(&mut one, older, "late").await });
        // It waits for the row until the other is done.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        while database.number(waits).await == 0 {}
        open.commit().await.unwrap();
        assert_eq!(late.await.unwrap(), Passage::Refused { last: newer });
        assert_eq!(database.number("SELECT count(*) FROM entry").await, 1);
    });
}

// G-13, G-70
#[test]
fn after_an_acknowledged_restore_no_token_is_given_again() {
    with_database(async |database| {
        connect(&database.url()).await.close().await;
        database.run("CREATE TABLE entry (what text NOT NULL)").await;
        let client = database.client().await;
        fence::lease(&client, &account()).await.unwrap();
        drop(client);
        let backup = database.copy().await;
        let client = database.client().await;
        let payment = fence::lease(&client, &account()).await.unwrap();
        drop(client);

        let store = connect(&backup.url()).await;
        assert!(store.status().await.unwrap().went_back_from.is_some());
        store.acknowledge_restore("ops").await.unwrap();
        let mut client = backup.client().await;
        let refund = fence::lease(&client, &account()).await.unwrap();
        assert!(refund > payment, "{refund} and {payment}");
        assert_eq!(write(&mut client, refund, "refund").await, Passage::Passed);
        assert_eq!(write(&mut client, payment, "payment").await, Passage::Refused { last: refund });
        assert_eq!(fence::lease(&client, &account()).await.unwrap(), Token(refund.0 + 1));

        // The same backup once more, by somebody who knows nothing of the first time: the same epoch begins again.
        let again = database.copy().await;
        connect(&again.url()).await.acknowledge_restore("ops").await.unwrap();
        let epoch = "SELECT epoch FROM semel_meta";
        assert_eq!(again.number(epoch).await, backup.number(epoch).await);
        let later = fence::lease(&again.client().await, &account()).await.unwrap();
        assert!(later.0 > refund.0 + 1, "{later} and {refund}");
    });
}

// G-70: a token or a passage that a crash takes back would be had twice.
#[test]
fn tokens_and_passages_are_durable_also_where_commits_are_not() {
    with_database(async |database| {
        connect(&database.url()).await;
        let client = database.client().await;
        client.batch_execute("SET synchronous_commit = off").await.unwrap();
        for call in ["SELECT semel_lease('account/alice')", "SELECT semel_pass('account/alice', 1)"] {
            client.batch_execute(&format!("BEGIN; {call}")).await.unwrap();
            let setting: String = client.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
            assert_eq!(setting, "on", "{call}");
            client.batch_execute("COMMIT").await.unwrap();
        }
    });
}

/// The statements of docs/messaging/transactions.md, as they stand there.
const CREATE: &str = "WITH made AS (
    INSERT INTO orders (id, note) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING true AS created, note
)
SELECT created, note FROM made
UNION ALL
SELECT false, note FROM orders WHERE id = $1
LIMIT 1";
const UPDATE: &str =
    "UPDATE orders SET note = $2, version = version + 1 WHERE id = $1 AND version = $3 RETURNING version";
const MOVE: &str = "UPDATE orders SET status = $3 WHERE id = $1 AND status = $2 RETURNING status";

// G-71
#[test]
fn create_update_and_move_are_idempotent_without_a_key() {
    with_database(async |database| {
        let client = database.client().await;
        let table = "CREATE TABLE orders (id text PRIMARY KEY, note text NOT NULL,
            version integer NOT NULL DEFAULT 1, status text NOT NULL DEFAULT 'open')";
        client.batch_execute(table).await.unwrap();
        let created = async |note: &str| {
            let row = client.query_one(CREATE, &[&"o-7", &note]).await.unwrap();
            (row.get::<_, bool>(0), row.get::<_, String>(1))
        };
        assert_eq!(created("first").await, (true, "first".into()));
        assert_eq!(created("second").await, (false, "first".into()), "the second call gets the existing one");
        let updated = async |note: &str, version: i32| {
            let rows = client.execute(UPDATE, &[&"o-7", &note, &version]).await.unwrap();
            Guarded::of_rows(rows).unwrap()
        };
        assert_eq!(updated("changed", 1).await, Guarded::Made);
        assert_eq!(updated("changed", 1).await, Guarded::Refused, "a repetition changes nothing");
        let moved = async |from: &str, to: &str| {
            Guarded::of_rows(client.execute(MOVE, &[&"o-7", &from, &to]).await.unwrap()).unwrap()
        };
        assert_eq!(moved("open", "paid").await, Guarded::Made);
        assert_eq!(moved("open", "paid").await, Guarded::Refused);
        assert_eq!(moved("paid", "sent").await, Guarded::Made);
        let text = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/messaging/transactions.md"
        ));
        let text = text.unwrap();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        for statement in [CREATE, UPDATE, MOVE] {
            assert!(words(&text).contains(&words(statement)), "the page shows what is tested: {statement}");
        }
    });
}
