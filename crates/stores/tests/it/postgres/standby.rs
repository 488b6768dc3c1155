//! A real standby, made from the test server: refused, or promoted with and without all that was committed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use semel_core::EffectStore;
use semel_core::error::Kind;
use semel_stores::postgres::{Options, PostgresStore};

use super::rig::{Database, client, complete, connect, granted, named, patient, request, with_database};

/// Runs a program of PostgreSQL as the user the server runs as.
pub(super) fn run(program: &Path, arguments: &[&str]) -> Output {
    let user = std::env::var("SEMEL_TEST_PG_OS_USER").unwrap_or_default();
    let mut command = match user.is_empty() || user == std::env::var("USER").unwrap_or_default() {
        true => Command::new(program),
        false => {
            let mut command = Command::new("runuser");
            command.args(["-u", &user, "--"]).arg(program);
            command
        }
    };
    command.args(arguments).output().unwrap()
}

pub(super) fn must(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A standby of the test server, in a folder of its own.
struct Standby {
    programs: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    primary: String,
    slot: String,
}

impl Standby {
    async fn of(database: &Database) -> Option<Self> {
        let programs = PathBuf::from(named("SEMEL_TEST_PG_BIN")?);
        let folder = tempfile::tempdir().unwrap();
        // The server's user must be able to reach and own it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (primary, slot) = (database.url(), database.name.clone());
        // Before the copy begins: others copy too, and their checkpoints remove what nobody claims.
        database.run(&format!("SELECT pg_create_physical_replication_slot('{slot}', true)")).await;
        let standby = Self { programs, folder, port, primary, slot };
        let data = standby.data();
        let (from, slot) = (&standby.primary, &standby.slot);
        let backup = ["-D", &data, "-d", from, "-S", slot, "-R", "-X", "stream", "-c", "fast", "--no-sync"];
        must(&run(&standby.programs.join("pg_basebackup"), &backup));
        Some(standby)
    }

    fn data(&self) -> String {
        self.folder.path().join("data").to_str().unwrap().to_owned()
    }

    fn control(&self, arguments: &[&str]) {
        let data = self.data();
        let arguments: Vec<_> = ["-D", &data, "-w", "-t", "60"].iter().chain(arguments).copied().collect();
        must(&run(&self.programs.join("pg_ctl"), &arguments));
    }

    /// Starts it, with a setting in place of what it was made with.
    fn start(&self, setting: &str) {
        let settings = format!("-c port={} -c shared_buffers=16MB -c hot_standby=on {setting}", self.port);
        let log = self.folder.path().join("log");
        self.control(&["-l", log.to_str().unwrap(), "-o", &settings, "start"]);
    }

    fn stop(&self) {
        self.control(&["-m", "immediate", "stop"]);
    }

    /// The address of the same database there.
    fn url(&self, database: &Database) -> String {
        let url = database.url();
        let (user, place) = url.rsplit_once('@').unwrap();
        format!("{user}@127.0.0.1:{}/{}", self.port, place.split_once('/').unwrap().1)
    }

    /// Waits until it has everything that was committed so far.
    async fn catch_up(&self, database: &Database) {
        let committed: String =
            database.client().await.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
        let standby = client(&self.url(database)).await;
        let has = "SELECT coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)";
        while !standby.query_one(has, &[&committed]).await.unwrap().get::<_, bool>(0) {}
    }

    /// Makes it the primary of what it has, without asking the old one for more.
    fn promote_with_what_it_has(&self) {
        self.start("-c primary_conninfo=");
        self.control(&["promote"]);
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let _ = run(&self.programs.join("pg_ctl"), &["-D", &self.data(), "-w", "-m", "immediate", "stop"]);
        // It belongs to the server's user.
        let _ = run(Path::new("rm"), &["-r", &self.data()]);
        // What ended a moment ago may hold it still.
        let drop = format!(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '{0}';
             SELECT pg_drop_replication_slot('{0}')",
            self.slot
        );
        let dropped = run(&self.programs.join("psql"), &["-q", "-d", &self.primary, "-c", &drop]);
        if !dropped.status.success() {
            eprintln!("{} stays behind: {}", self.slot, String::from_utf8_lossy(&dropped.stderr));
        }
    }
}

#[test]
fn a_standby_is_refused_with_a_sentence() {
    with_database(async |database| {
        connect(&database.url()).await;
        let Some(standby) = Standby::of(&database).await else { return };
        standby.start("");
        let error = PostgresStore::connect(&standby.url(&database)).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::ReadOnly, "{error}");
        assert!(error.to_string().contains("standby"), "{error}");
    });
}

// G-13: a pooler may lead an open connection to a standby, which lacks what it has not read yet.
#[test]
fn a_standby_that_is_late_has_lost_nothing() {
    with_database(async |database| {
        let store = connect(&database.url()).await;
        let Some(standby) = Standby::of(&database).await else { return };
        // It never hears of anything.
        standby.start("-c primary_conninfo=");
        let token = charge(&store, "only-there").await;
        let late = client(&standby.url(&database)).await;
        let lost = "SELECT semel_is_lost('\\x00'::bytea, $1)";
        assert!(!late.query_one(lost, &[&token]).await.unwrap().get::<_, bool>(0));
        let here = database.client().await;
        assert!(here.query_one(lost, &[&token]).await.unwrap().get::<_, bool>(0), "no such record is here");
        let none = "SELECT semel_fly(NULL, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
            '{}', ARRAY['\\x01'::bytea], '{1}', ARRAY['\\x02'::bytea], ARRAY['\\x03'::bytea], '\\x00', $1)";
        let refused = |error: tokio_postgres::Error| error.code().map(|code| code.code().to_owned());
        assert_eq!(refused(late.query(none, &[&token]).await.unwrap_err()).as_deref(), Some("25006"));
        assert_eq!(refused(here.query(none, &[&token]).await.unwrap_err()).as_deref(), Some("SM009"));
    });
}

/// The newest token the sequence says it gave.
async fn drawn(url: &str) -> i64 {
    client(url).await.query_one("SELECT last_value FROM semel_token", &[]).await.unwrap().get(0)
}

fn with_witness(url: String, witness: &Path) -> Options {
    let mut options = patient(url);
    options.witness = Some(witness.to_owned());
    options
}

/// Claims and completes an operation.
async fn charge(store: &PostgresStore, key: &str) -> i64 {
    let lease = granted(store.claim(&request(key)).await.unwrap());
    store.complete(&complete(&lease, "charged")).await.unwrap();
    lease.holder.token.0 as i64
}

// G-13: the server logs a sequence 32 numbers ahead, so what is promoted counts above what it lacks.
#[test]
fn a_promoted_standby_that_lacks_a_few_operations_is_noticed() {
    with_database(async |database| {
        let folder = tempfile::tempdir().unwrap();
        let (witness, other) = (folder.path().join("witness"), folder.path().join("other"));
        let store = PostgresStore::connect_with(with_witness(database.url(), &witness)).await.unwrap();
        let Some(standby) = Standby::of(&database).await else { return };
        standby.start("");
        charge(&store, "arrived").await;
        standby.catch_up(&database).await;
        standby.stop();
        let mut lost = 0;
        for n in 0..10 {
            lost = charge(&store, &format!("lost-{n}")).await;
        }
        store.close().await;
        // Somebody who claimed nothing, and only saw what was there.
        let onlooker = PostgresStore::connect_with(with_witness(database.url(), &other)).await.unwrap();
        onlooker.close().await;
        standby.promote_with_what_it_has();

        let url = standby.url(&database);
        assert!(drawn(&url).await > lost, "the counter does not show it");
        let unaware = connect(&url).await;
        assert!(charge(&unaware, "others-go-on").await > lost);
        for witness in [&witness, &other] {
            let store = PostgresStore::connect_with(with_witness(url.clone(), witness)).await.unwrap();
            let error = store.claim(&request("lost-9")).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), Kind::WentBack, "{error}");
            assert!(error.to_string().contains("a record that was committed is not there"), "{error}");
            assert!(store.status().await.unwrap().went_back_from.is_some());
        }
        let store = PostgresStore::connect_with(with_witness(url.clone(), &witness)).await.unwrap();
        let mark = store.acknowledge_restore("ops").await.unwrap();
        assert!(granted(store.claim(&request("lost-9")).await.unwrap()).holder.token > mark.token);
        store.close().await;
        for witness in [&witness, &other] {
            let store = PostgresStore::connect_with(with_witness(url.clone(), witness)).await.unwrap();
            assert_eq!(store.status().await.unwrap().went_back_from, None, "it was acknowledged");
        }
    });
}

// G-13
#[test]
fn a_promoted_standby_that_has_everything_goes_on() {
    with_database(async |database| {
        let folder = tempfile::tempdir().unwrap();
        let options = |url| with_witness(url, &folder.path().join("witness"));
        let store = PostgresStore::connect_with(options(database.url())).await.unwrap();
        let Some(standby) = Standby::of(&database).await else { return };
        standby.start("");
        let mut newest = 0;
        for n in 0..3 {
            newest = charge(&store, &format!("arrived-{n}")).await;
        }
        store.close().await;
        standby.catch_up(&database).await;
        standby.stop();
        standby.promote_with_what_it_has();
        let url = standby.url(&database);
        assert!(drawn(&url).await > newest);
        let store = PostgresStore::connect_with(options(url)).await.unwrap();
        assert_eq!(store.status().await.unwrap().went_back_from, None);
        charge(&store, "afterwards").await;
    });
}
