//! Postgres goes away at the worst moments, under a gateway that stays.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::rig::{Caller, Gateway, ORDER, PATIENCE, Upstream, until};
use crate::engines::engines;

/// Which commit is cut, and on which side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    carries: Carries,
    side: Side,
}

/// What the batch in a transaction is about. One client asks here, so it is about one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carries {
    Claim,
    Completion,
}

impl Carries {
    /// Only claims name their keys.
    fn is_in(self, said: &str) -> bool {
        said.contains("semel_fly(") && said.contains("severed-commit-") == (self == Self::Claim)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// COMMIT never arrives.
    Before,
    /// The server has committed; nobody hears it.
    After,
}

/// Between the gateway and Postgres. It reads the messages it carries, and breaks a connection exactly
/// there.
struct Severing {
    url: String,
    order: Arc<Mutex<Option<Cut>>>,
    happened: Arc<Notify>,
}

impl Severing {
    async fn to(url: &str) -> Self {
        let (user, place) = url.rsplit_once('@').expect("the URL names a user");
        let (server, database) = place.split_once('/').expect("the URL names a database");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (order, happened) = (Arc::<Mutex<Option<Cut>>>::default(), Arc::new(Notify::new()));
        let (server, given, rung) = (server.to_owned(), order.clone(), happened.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let line = Line { order: given.clone(), happened: rung.clone(), state: Arc::default() };
                let server = server.clone();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    // Nothing that is passed on may wait for an acknowledgement.
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    // Whoever ends first takes both ends along.
                    tokio::select! {
                        _ = line.calls(from_client, to_server) => {}
                        _ = line.answers(from_server, to_client) => {}
                    }
                });
            }
        });
        // In the clear, so that what is carried can be read.
        let url = format!("{user}@{address}/{database}?sslmode=disable");
        Self { url, order, happened }
    }

    fn cut_next(&self, cut: Cut) {
        *self.order.lock().expect("no panic") = Some(cut);
    }

    async fn happened(&self) {
        tokio::time::timeout(PATIENCE, self.happened.notified()).await.expect("the cut is made");
    }
}

/// One connection.
struct Line {
    order: Arc<Mutex<Option<Cut>>>,
    happened: Arc<Notify>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Statements and their values since the last commit.
    said: String,
    /// The answer to the commit that is on its way is the one to lose.
    loses_answer: bool,
}

impl Line {
    /// Whether the commit that comes now is the one to cut, and where.
    fn due(&self) -> Option<Side> {
        let said = std::mem::take(&mut self.state.lock().expect("no panic").said);
        let mut order = self.order.lock().expect("no panic");
        order.take_if(|cut| cut.carries.is_in(&said)).map(|cut| cut.side)
    }

    async fn calls(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        // The first message has no kind.
        let mut length = [0; 4];
        from.read_exact(&mut length).await?;
        let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
        from.read_exact(&mut startup).await?;
        to.write_all(&[&length[..], &startup].concat()).await?;
        loop {
            let (kind, message) = message(&mut from).await?;
            match kind {
                b'P' | b'B' => {
                    let text = String::from_utf8_lossy(&message[5..]).into_owned();
                    self.state.lock().expect("no panic").said += &text;
                }
                b'Q' if message[5..] == *b"COMMIT\0" => match self.due() {
                    Some(Side::Before) => {
                        self.happened.notify_one();
                        return Ok(());
                    }
                    Some(Side::After) => self.state.lock().expect("no panic").loses_answer = true,
                    None => {}
                },
                _ => {}
            }
            to.write_all(&message).await?;
        }
    }

    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        loop {
            let (kind, message) = message(&mut from).await?;
            let is_commit = kind == b'C' && message[5..] == *b"COMMIT\0";
            if is_commit && self.state.lock().expect("no panic").loses_answer {
                self.happened.notify_one();
                return Ok(());
            }
            to.write_all(&message).await?;
        }
    }
}

/// One message whole: its kind, its length, and what it says.
async fn message(from: &mut OwnedReadHalf) -> std::io::Result<(u8, Vec<u8>)> {
    let mut message = vec![0; 5];
    from.read_exact(&mut message).await?;
    let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]);
    message.resize(length as usize + 1, 0);
    from.read_exact(&mut message[5..]).await?;
    Ok((message[0], message))
}

fn arguments<'a>(upstream: &'a str, store: &'a str) -> Vec<&'a str> {
    vec!["--listen", "127.0.0.1:0", "--upstream", upstream, "--store", store, "--tenant", "none"]
}

#[tokio::test]
async fn a_connection_cut_at_a_commit_is_found_out_and_runs_nothing_twice() {
    // G-9, G-17
    let Some(engine) = engines().into_iter().find(|engine| engine.name == "postgres") else { return };
    let home = tempfile::tempdir().expect("a temporary directory");
    let store = engine.fresh(home.path());
    let severing = Severing::to(&store).await;
    let upstream = Upstream::start().await;
    let url = upstream.url();
    let gateway = Gateway::with(&arguments(&url, &severing.url)).await;
    let caller = Caller::of(&gateway.address);
    let mut cases = 0;
    for carries in [Carries::Claim, Carries::Completion] {
        for side in [Side::Before, Side::After] {
            let cut = Cut { carries, side };
            let (path, key) = (format!("/pay/{cases}"), format!("severed-commit-{cases:04}"));
            severing.cut_next(cut);
            let first = caller.post(&path, &key, ORDER).await;
            // It may have been found out in time or not; a success is one, and anything else is honest.
            assert!(first.status == 201 || [409, 503].contains(&first.status), "{cut:?}: {first:?}");
            let last = until(&caller, &path, &key, |heard| heard.status == 201).await;
            assert!(
                first.status != 201 || (last.is_replay() && last.body == first.body),
                "{cut:?}: {last:?}"
            );
            severing.happened().await;
            assert_eq!(upstream.count(&path), 1, "{cut:?}");
            let attempts =
                format!("SELECT state || ' ' || attempts FROM semel_operation WHERE key = '{key}'");
            let record = engine.query(&store, &attempts).expect("there is a server");
            let is_first = record.trim() == "2 1";
            assert!(is_first || first.status != 201, "{cut:?}: completed by its first attempt, not {record}");
            cases += 1;
        }
    }
    drop(gateway);
    engine.remove(&store);
    semel_testkit::ledger("gateway cut at a commit", "postgres", cases);
}

/// A server of its own: it can be restarted without troubling anybody.
struct Server {
    home: tempfile::TempDir,
    port: u16,
}

impl Server {
    /// `None` where PostgreSQL's programs are not known.
    fn start() -> Option<Self> {
        std::env::var_os("SEMEL_TEST_PG_BIN")?;
        let home = tempfile::tempdir().expect("a temporary directory");
        // The server's user must be able to reach and own it.
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o777)).expect("it is opened");
        let mut server = Self { home, port: 0 };
        let cluster = ["--username=semel", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"];
        server.run("initdb", &cluster).expect("a cluster is made");
        let log = server.home.path().join("log").display().to_string();
        let started = (0..5).any(|_| {
            // Below the ephemeral range, so that no outgoing connection sits on it.
            server.port = 20_000 + u16::from(semel::Nonce::random().as_bytes()[0]) * 40;
            let settings = format!(
                "-c port={} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c shared_buffers=16MB",
                server.port
            );
            server.run("pg_ctl", &["-w", "-t", "60", "-l", &log, "-o", &settings, "start"]).is_ok()
        });
        assert!(started, "it does not start: {}", std::fs::read_to_string(&log).unwrap_or_default());
        Some(server)
    }

    /// Runs a program of PostgreSQL as the user the server runs as.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let programs = std::env::var("SEMEL_TEST_PG_BIN").expect("it was looked at");
        let user = std::env::var("SEMEL_TEST_PG_OS_USER").unwrap_or_default();
        let program = Path::new(&programs).join(program);
        let mut command = match user.is_empty() || user == std::env::var("USER").unwrap_or_default() {
            true => Command::new(program),
            false => {
                let mut command = Command::new("runuser");
                command.args(["-u", &user, "--"]).arg(program);
                command
            }
        };
        command.args(arguments).env("PGDATA", self.home.path().join("data"));
        // Its output goes to a file: a server that inherits a pipe keeps it open.
        let said = self.home.path().join("said");
        let file = std::fs::File::create(&said).expect("it is made");
        let status = command.current_dir(self.home.path()).stdout(Stdio::null()).stderr(file).status();
        match status.expect("it runs").success() {
            true => Ok(()),
            false => Err(std::fs::read_to_string(&said).unwrap_or_default()),
        }
    }

    fn url(&self) -> String {
        format!("postgres://semel@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    fn restart(&self, how: &str) {
        self.run("pg_ctl", &["-w", "-t", "60", "-m", how, "restart"]).expect("it starts again");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // If it never started, there is nothing to stop.
        let _ = self.run("pg_ctl", &["-w", "-m", "immediate", "stop"]);
    }
}

#[tokio::test]
async fn a_server_restarted_under_load_costs_time_and_no_second_effect() {
    // G-9, G-17, G-18
    const WORKERS: usize = 8;
    /// How many requests come before a restart, and after the last.
    const BETWEEN: usize = 30;
    let Some(server) = tokio::task::spawn_blocking(Server::start).await.expect("no panic") else {
        assert!(std::env::var_os("SEMEL_TEST_REQUIRE").is_none(), "SEMEL_TEST_PG_BIN is not set");
        eprintln!("SKIPPED postgres: SEMEL_TEST_PG_BIN is not set; ./test starts a server");
        return;
    };
    let upstream = Upstream::start().await;
    let (url, store) = (upstream.url(), server.url());
    let mut given = arguments(&url, &store);
    given.extend(["--store-patience", "500ms"]);
    let gateway = Gateway::with(&given).await;
    let enough = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for worker in 0..WORKERS {
        let (caller, enough) = (Caller::of(&gateway.address), enough.clone());
        load.spawn(async move {
            let mut paths = Vec::new();
            while !enough.load(Ordering::SeqCst) {
                let at = paths.len();
                let (path, key) =
                    (format!("/pay/{worker}-{at}"), format!("severed-load-{worker:02}-{at:04}"));
                let first = caller.post(&path, &key, ORDER).await;
                let is_honest = [201, 409, 503].contains(&first.status);
                assert!(is_honest, "{key}: {first:?}");
                let last = until(&caller, &path, &key, |heard| heard.status == 201).await;
                let is_same = last.is_replay() && last.body == first.body;
                assert!(first.status != 201 || is_same, "{key}: {first:?}, then {last:?}");
                paths.push(path);
            }
            paths
        });
    }
    let server = Arc::new(server);
    for how in ["immediate", "fast"] {
        for _ in 0..BETWEEN {
            upstream.comes().await;
        }
        let server = server.clone();
        tokio::task::spawn_blocking(move || server.restart(how)).await.expect("it is restarted");
    }
    for _ in 0..BETWEEN {
        upstream.comes().await;
    }
    enough.store(true, Ordering::SeqCst);
    let paths: Vec<String> = load.join_all().await.into_iter().flatten().collect();
    for path in &paths {
        assert_eq!(upstream.count(path), 1, "{path}");
    }
    drop(gateway);
    tokio::task::spawn_blocking(move || drop(server)).await.expect("it is stopped");
    semel_testkit::ledger("restarted under load", "postgres", paths.len() as u64);
}
