//! Keys of subjects on a real server, directly and through a pooler.

use std::sync::Arc;

use semel_core::SubjectKeys;
use semel_core::error::Kind;
use semel_core::subject::{Forgotten, SubjectId};
use semel_stores::postgres::PostgresSubjectKeys;
use semel_testkit::BoxFuture;
use semel_testkit::subjects::{Maker, Rig, offer};

use super::rig::{Database, connect, named, patient, with_database};

mod direct {
    semel_testkit::subject_keys!(match super::maker("postgres", "SEMEL_TEST_POSTGRES") {
        Some(maker) => maker,
        None => return,
    });
}

mod pooled {
    semel_testkit::subject_keys!(match super::maker("pgbouncer", "SEMEL_TEST_PGBOUNCER") {
        Some(maker) => maker,
        None => return,
    });
}

struct Keys {
    engine: &'static str,
    url: String,
    _database: Database,
}

fn maker(engine: &'static str, by_way_of: &str) -> Option<Maker> {
    let (server, way) = (named("SEMEL_TEST_POSTGRES")?, named(by_way_of)?);
    Some(Arc::new(move || {
        let (server, way) = (server.clone(), way.clone());
        Box::pin(async move {
            let database = Database::create(&server).await;
            let url = database.through(&way);
            Arc::new(Keys { engine, url, _database: database }) as Arc<dyn Rig>
        })
    }))
}

async fn open(url: &str) -> PostgresSubjectKeys {
    PostgresSubjectKeys::connect_with(patient(url.to_owned())).await.unwrap()
}

impl Rig for Keys {
    fn engine(&self) -> &'static str {
        self.engine
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn SubjectKeys>> {
        Box::pin(async { Arc::new(open(&self.url).await) as Arc<dyn SubjectKeys> })
    }
}

#[test]
fn a_store_is_no_place_for_keys_in_whatever_schema_it_is() {
    // G-20
    with_database(async |database| {
        connect(&database.url()).await.close().await;
        for url in [database.url(), format!("{}?options=-csearch_path%3Dkeys", database.url())] {
            database.run("CREATE SCHEMA IF NOT EXISTS keys").await;
            let refused = PostgresSubjectKeys::connect_with(patient(url)).await.map(drop).unwrap_err();
            assert_eq!(refused.kind(), Kind::Misconfigured, "{refused}");
            assert!(refused.to_string().contains("of their own"), "{refused}");
        }
    });
}

#[test]
fn a_key_is_made_and_forgotten_durably_whatever_the_database_was_told() {
    // G-20
    with_database(async |database| {
        let name = &database.name;
        database.run(&format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
        let place = open(&database.url()).await;
        database
            .run(
                "CREATE TABLE seen (what text, how text);
                 CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     INSERT INTO seen VALUES (TG_OP, current_setting('synchronous_commit'));
                     RETURN NULL;
                 END $$;
                 CREATE TRIGGER see AFTER INSERT OR DELETE ON semel_subject_key
                     FOR EACH ROW EXECUTE FUNCTION see();",
            )
            .await;
        place.obtain(SubjectId::of("anna"), &offer("m")).await.unwrap();
        assert_eq!(place.forget(SubjectId::of("anna")).await.unwrap(), Forgotten::Key);
        let durable = "SELECT count(*) FROM seen WHERE how = 'on' AND what IN ('INSERT', 'DELETE')";
        assert_eq!(database.number(durable).await, 2);
        assert_eq!(database.number("SELECT count(*) FROM seen").await, 2);
    });
}

#[test]
fn a_connection_that_broke_is_not_given_to_the_next_call() {
    // G-20
    with_database(async |database| {
        let place = open(&database.url()).await;
        let key = place.obtain(SubjectId::of("anna"), &offer("m")).await.unwrap();
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        database.client().await.query(cut, &[]).await.unwrap();
        let mut found = place.find(key.id).await;
        if let Err(error) = &found {
            // Cut while it was being used: the call says so, and the next one has another.
            assert!(error.is_retryable(), "{error:?}");
            found = place.find(key.id).await;
        }
        assert_eq!(found.unwrap(), Some(key));
    });
}
