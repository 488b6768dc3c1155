//! What we tell others to do, we do: every check holds for our gateway and our layer, and each is shown.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::layer;
use super::run::{Target, all_checks, free_port};
use crate::engines::engines;

/// Plays all checks but the one that needs keys to be forgotten soon, and that one on a service of its own.
fn holds_everything(target: impl Fn(&Path, Memory) -> (Target, Life)) {
    let mut shown = Vec::new();
    for memory in [Memory::Long, Memory::Short] {
        let home = tempfile::tempdir().expect("a temporary directory");
        let (target, life) = target(home.path(), memory);
        life.start();
        let card = target.verify(
            home.path(),
            match memory {
                Memory::Long => &["--profile", "semel", "--strict", "--skip", "expiry"],
                Memory::Short => &["--profile", "semel", "--strict", "--only", "expiry", "--expiry", "2s"],
            },
        );
        let odd: Vec<_> = card.found.iter().filter(|(_, found)| *found != "pass").collect();
        assert!(odd.is_empty() && card.code == Some(0), "{odd:#?}\n{}", card.said);
        shown.extend(card.found.into_keys());
    }
    let mut all = all_checks();
    all.sort();
    shown.sort();
    assert_eq!(shown, all);
}

/// For how long keys are remembered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Long,
    /// Two seconds.
    Short,
}

/// A service that is started and killed by commands, and killed when dropped.
pub(super) struct Life {
    pub(super) start: String,
    pub(super) pid: PathBuf,
}

impl Life {
    fn start(&self) {
        let status = Command::new("sh").args(["-c", &self.start]).status().expect("sh is there");
        assert!(status.success(), "{}", self.start);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(&self.pid) {
            let _ = Command::new("kill").args(["-9", pid.trim()]).status();
        }
    }
}

/// The gateway before the demo service, which it can be asked through. `store` is where its store is.
fn gateway(home: &Path, memory: Memory, store: &str) -> (Target, Life) {
    let port = free_port();
    let exe = env!("CARGO_BIN_EXE_semel");
    let pid = home.join("pid");
    let ttl = if memory == Memory::Short { "--ttl 2s --retry-window 500ms" } else { "" };
    let here = home.display();
    // It is ready when it says so: a port may accept before that.
    let start = format!(
        "cd '{here}' && : >out && {{ '{exe}' gateway --upstream demo --listen 127.0.0.1:{port} --store '{store}' \
         --tenant credential --recovery ask:http://127.0.0.1:{port}/reconcile --lease 600ms --run-max 1500ms \
         --store-patience 1s {ttl} --log-filter warn >out 2>>log & echo $! >pid; }} && \
         for _ in $(seq 1500); do grep -q 'gateway listening' out && exit 0; sleep 0.02; done; exit 1"
    );
    let origin = format!("http://127.0.0.1:{port}");
    let more = [
        "--other-method",
        "GET",
        "--failing-data",
        r#"{"amount":100,"currency":"XTS","reference":"{tag}"}"#,
        "--slow-url",
        &format!("{origin}/payments?delay=2.2"),
    ];
    let target = Target {
        path: "/payments?delay=0.05",
        count: "/payments?reference={tag}",
        pointer: Some("/charges"),
        kill: format!("kill -9 $(cat '{}')", pid.display()),
        start: start.clone(),
        store_stop: String::new(),
        store_start: String::new(),
        more: more.map(str::to_owned).to_vec(),
        origin,
    };
    (target, Life { start, pid })
}

/// Commands that take a directory away and give it back.
pub(super) fn moves(directory: &Path) -> (String, String) {
    let (here, away) = (directory.display(), directory.with_extension("away"));
    (format!("mv '{here}' '{}'", away.display()), format!("mv '{}' '{here}'", away.display()))
}

#[test]
fn every_check_holds_for_the_gateway_on_sqlite() {
    holds_everything(|home, memory| {
        let place = home.join("store");
        std::fs::create_dir(&place).expect("it is made");
        let (mut target, life) = gateway(home, memory, &format!("sqlite:{}/semel.db", place.display()));
        (target.store_stop, target.store_start) = moves(&place);
        (target, life)
    });
}

#[test]
fn every_check_holds_for_the_gateway_on_postgres() {
    let Some(engine) = engines().into_iter().find(|engine| engine.name == "postgres") else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let url = engine.fresh(scratch.path());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    holds_everything(|home, memory| {
        let switch = home.join("store-is-away");
        let store = runtime.block_on(behind_a_switch(&url, switch.clone()));
        let (mut target, life) = gateway(home, memory, &store);
        let (switch, seen) = (switch.display(), seen(&switch).display().to_string());
        let wait =
            |until: &str| format!("for _ in $(seq 500); do {until} && exit 0; sleep 0.02; done; exit 1");
        target.store_stop = format!("touch '{switch}'; {}", wait(&format!("[ -e '{seen}' ]")));
        target.store_start = format!("rm '{switch}'; {}", wait(&format!("[ ! -e '{seen}' ]")));
        (target, life)
    });
    engine.remove(&url);
}

/// Exists while nobody gets through.
fn seen(switch: &Path) -> PathBuf {
    switch.with_extension("seen")
}

/// The URL of the same database through a proxy that ends all connections, and takes none, while a file exists.
async fn behind_a_switch(url: &str, switch: PathBuf) -> String {
    let (before, rest) = url.split_once('@').expect("the URL has a user");
    let (server, rest) = rest.split_once('/').expect("the URL names a database");
    let server = server.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, told) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        while switch.parent().is_some_and(Path::exists) {
            let is_away = switch.exists();
            let _ = tell.send(is_away);
            let _ = match is_away {
                true => std::fs::write(seen(&switch), ""),
                false => std::fs::remove_file(seen(&switch)),
            };
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (server, mut told) = (server.clone(), told.clone());
            tokio::spawn(async move {
                if *told.borrow() {
                    return;
                }
                let Ok(mut there) = TcpStream::connect(&server).await else { return };
                let _ = (client.set_nodelay(true), there.set_nodelay(true));
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut there) => {}
                    _ = told.wait_for(|is_away| *is_away) => {}
                }
            });
        }
    });
    format!("{before}@127.0.0.1:{port}/{rest}")
}

#[test]
fn every_check_holds_for_the_layer_in_a_service() {
    holds_everything(layer::service);
}
