//! An animal as a process: this test binary, started again with [`ORDER`] set.
//!
//! It is started, killed and cut off from its store by shell commands, the ones a tester is given as
//! hooks. It keeps its port and its files when it comes back, and ends by itself when its cage is gone.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::client::{Heard, Wish, get};
use super::list::Animal;
use super::service::Den;
use super::store::{journal, switch};

const ORDER: &str = "SEMEL_ZOO_ANIMAL";
const PATIENCE: Duration = Duration::from_secs(60);
/// Below the ephemeral range, so that no outgoing connection sits on the port between two lives.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What a process is told: which animal, and where it lives.
pub(super) struct Order {
    animal: &'static Animal,
    home: PathBuf,
}

pub(crate) struct Cage {
    animal: &'static Animal,
    home: tempfile::TempDir,
}

impl Cage {
    /// Starts it. It is gone when the cage is dropped.
    pub(crate) fn of(animal: &'static Animal) -> Self {
        let cage = Self { animal, home: tempfile::tempdir().expect("a temporary directory") };
        cage.start();
        cage
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    /// Returns once it listens, on the port it had before.
    pub(crate) fn start_command(&self) -> String {
        let exe = std::env::current_exe().expect("the test knows where it is");
        let home = self.home.path().display();
        format!(
            "{ORDER}='{} {home}' '{}' --exact zoo::animal --nocapture --test-threads=1 >'{home}/log' 2>&1 & \
             for _ in $(seq 1500); do [ -e '{home}/ready' ] && exit 0; sleep 0.02; done; exit 1",
            self.animal.name,
            exe.display()
        )
    }

    pub(crate) fn kill_command(&self) -> String {
        let home = self.home.path().display();
        format!("kill -9 $(cat '{home}/pid') && rm -f '{home}/pid' '{home}/ready'")
    }

    pub(crate) fn store_stop_command(&self) -> String {
        format!("touch '{}'", switch(self.home.path()).display())
    }

    pub(crate) fn store_start_command(&self) -> String {
        format!("rm '{}'", switch(self.home.path()).display())
    }

    pub(super) fn start(&self) {
        shell(&self.start_command());
    }

    pub(super) fn kill(&self) {
        shell(&self.kill_command());
    }

    pub(super) fn restart(&self) {
        self.kill();
        self.start();
    }

    pub(super) fn stop_store(&self) {
        shell(&self.store_stop_command());
    }

    pub(super) fn start_store(&self) {
        shell(&self.store_start_command());
    }

    pub(super) fn send(&self, wish: &Wish) -> Heard {
        wish.send(&self.address())
    }

    /// Sends until the answer is not "in flight".
    pub(super) fn insist(&self, wish: &Wish) -> Heard {
        let mut heard = self.send(wish);
        wait_for("the attempt ends", || {
            heard = self.send(wish);
            heard.status != 409
        });
        heard
    }

    pub(super) fn count(&self, tag: &str) -> usize {
        get(&self.address(), &format!("/count/{tag}")).parse().expect("a number")
    }

    /// Waits until the effect has happened, however its request ends.
    pub(super) fn wait_for_effect(&self, tag: &str) {
        wait_for("the effect", || self.count(tag) > 0);
    }

    /// Waits until something of this operation is on disk.
    pub(super) fn wait_for_record(&self, key: &str) {
        let journal = journal(self.home.path());
        wait_for("the record", || {
            std::fs::read_to_string(&journal).is_ok_and(|text| text.ends_with('\n') && text.contains(key))
        });
    }

    pub(super) fn address(&self) -> String {
        let port = std::fs::read_to_string(self.home.path().join("port")).expect("the animal has a port");
        format!("127.0.0.1:{port}")
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        if self.home.path().join("pid").exists() {
            let _ = Command::new("sh").args(["-c", &self.kill_command()]).status();
        }
    }
}

impl Order {
    pub(super) fn given() -> Option<Self> {
        let order = std::env::var(ORDER).ok()?;
        let (name, home) = order.split_once(' ').expect("an animal and its home");
        Some(Self { animal: Animal::named(name).expect("a known animal"), home: home.into() })
    }
}

/// The life of an animal, until it is killed or its home is gone.
#[tokio::main]
pub(super) async fn live(Order { animal, home }: Order) {
    // In one step, so that nobody reads half a number; and first, since whoever is heard of may be killed.
    let pid = home.join("pid");
    std::fs::write(pid.with_extension("new"), std::process::id().to_string()).expect("the home takes a file");
    std::fs::rename(pid.with_extension("new"), pid).expect("the home takes a file");
    let listener = listen(&home.join("port")).await;
    let den = Den::open(&home, animal.habits);
    tokio::spawn(async move { axum::serve(listener, den.router()).await });
    std::fs::write(home.join("ready"), "").expect("the home takes a file");
    while home.exists() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The port of before, or a free one.
async fn listen(kept: &Path) -> tokio::net::TcpListener {
    if let Ok(port) = std::fs::read_to_string(kept) {
        let address = format!("127.0.0.1:{port}");
        // Whoever was killed a moment ago may still hold it.
        loop {
            match tokio::net::TcpListener::bind(&address).await {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
    let start =
        PORTS.start + u16::try_from(std::process::id() % u32::from(PORTS.end - PORTS.start)).unwrap_or(0);
    for port in (start..PORTS.end).chain(PORTS.start..start) {
        if let Ok(listener) = tokio::net::TcpListener::bind(("127.0.0.1", port)).await {
            std::fs::write(kept, port.to_string()).expect("the home takes a file");
            return listener;
        }
    }
    panic!("no free port");
}

fn shell(command: &str) {
    let status = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).status();
    assert!(status.expect("sh is there").success(), "{command}");
}

/// The first finding of `look` within this time, if there is one.
pub(super) fn watch<T>(time: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let found = look();
        if found.is_some() || start.elapsed() > time {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
