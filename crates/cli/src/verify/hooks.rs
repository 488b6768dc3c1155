//! The user's commands: kill and start the service, stop and start its store.

use std::sync::Arc;
use std::time::Duration;

use semel::runtime::Boxed;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::safety::{Secrets, command_shown};
use super::scenario::Hook;
use super::setup::Hooks;
use super::shell;

/// How long a command may take, and the service to accept connections after a start.
pub(super) const HOOK_MAX: Duration = Duration::from_secs(120);
/// How long a killed service may still hold its port. Something else may hold it for good.
const PORT_CLOSES_MAX: Duration = Duration::from_secs(2);
/// How often the port is tried.
const PORT_PAUSE: Duration = Duration::from_millis(50);

/// Commands for `sh`, and where the service is.
#[derive(Clone, Debug, Default)]
pub(super) struct Commands {
    pub(super) kill: Option<String>,
    pub(super) start: Option<String>,
    pub(super) store_stop: Option<String>,
    pub(super) store_start: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) limit: Duration,
    pub(super) secrets: Secrets,
}

impl Commands {
    fn command(&self, hook: Hook) -> Option<&String> {
        match hook {
            Hook::Kill => self.kill.as_ref(),
            Hook::Start => self.start.as_ref(),
            Hook::StoreStop => self.store_stop.as_ref(),
            Hook::StoreStart => self.store_start.as_ref(),
        }
    }

    async fn go(&self, hook: Hook) -> Result<(), String> {
        let command = self.command(hook).ok_or("no command was given for it")?;
        match hook {
            Hook::Start => self.begin(command).await,
            Hook::Kill => {
                shell::run(command, &[], self.limit).await?;
                let closed = Instant::now() + PORT_CLOSES_MAX;
                while self.accepts().await && Instant::now() < closed {
                    sleep(PORT_PAUSE).await;
                }
                Ok(())
            }
            Hook::StoreStop | Hook::StoreStart => shell::run(command, &[], self.limit).await.map(drop),
        }
    }

    /// A start command may be the service itself, which does not end, or bring it up and end.
    async fn begin(&self, command: &str) -> Result<(), String> {
        let was_open = self.accepts().await;
        let deadline = Instant::now() + self.limit;
        let mut running = shell::begin(command, &[])?;
        loop {
            let ended = running
                .child
                .try_wait()
                .map_err(|error| format!("`{}` is lost: {error}", command_shown(command)))?;
            match ended {
                Some(status) if !status.success() => {
                    return Err(running.failed(&format!("ended with {status}")));
                }
                // A port that was open before says nothing until the command has ended.
                Some(_) if self.accepts().await => return Ok(()),
                None if !was_open && self.accepts().await => return Ok(()),
                _ => {}
            }
            if Instant::now() >= deadline {
                let how = match ended {
                    Some(_) => format!(
                        "ended, but nothing listens on {}:{} after {}s",
                        self.host,
                        self.port,
                        self.limit.as_secs()
                    ),
                    None => format!(
                        "neither ended nor opened {}:{} within {}s",
                        self.host,
                        self.port,
                        self.limit.as_secs()
                    ),
                };
                return Err(running.failed(&how));
            }
            sleep(PORT_PAUSE).await;
        }
    }

    async fn accepts(&self) -> bool {
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        matches!(timeout(Duration::from_secs(1), connecting).await, Ok(Ok(_)))
    }
}

/// Shared with every run of a hook.
#[derive(Clone)]
pub(super) struct Shell(pub(super) Arc<Commands>);

impl Hooks for Shell {
    fn has(&self, hook: Hook) -> bool {
        self.0.command(hook).is_some()
    }

    fn run(&self, hook: Hook) -> Boxed<Result<(), String>> {
        let commands = self.0.clone();
        Box::pin(async move {
            let said = commands.go(hook).await;
            let secrets = commands.secrets.and_of_command(commands.command(hook).map_or("", String::as_str));
            said.map_err(|said| secrets.hide(&said))
        })
    }

    fn shell(&self, hook: Hook) -> Option<String> {
        self.0.command(hook).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A port that nobody listens on now.
    async fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
    }

    fn hooks(commands: Commands) -> Shell {
        let limit = if commands.limit.is_zero() { Duration::from_secs(20) } else { commands.limit };
        Shell(Arc::new(Commands { host: "127.0.0.1".into(), limit, ..commands }))
    }

    #[tokio::test]
    async fn what_was_not_given_is_not_there() {
        let hooks = hooks(Commands { kill: Some("true".into()), ..Commands::default() });
        assert!(hooks.has(Hook::Kill) && !hooks.has(Hook::Start));
        assert_eq!(hooks.shell(Hook::Kill).as_deref(), Some("true"));
        assert!(hooks.run(Hook::StoreStop).await.is_err());
        assert_eq!(hooks.run(Hook::Kill).await, Ok(()));
    }

    #[tokio::test]
    async fn a_failing_command_is_told_with_its_output_and_without_secrets() {
        let header = [("X-Token".to_owned(), "abcdefgh".to_owned())];
        let secrets = Secrets::of(header.iter(), std::iter::empty(), "");
        let commands = Commands {
            store_stop: Some("echo no abcdefgh >&2; exit 5".into()),
            secrets,
            ..Commands::default()
        };
        let said = hooks(commands).run(Hook::StoreStop).await.unwrap_err();
        assert!(
            said.contains("5") && said.contains("printed: no (hidden)") && !said.contains("printed: no abc"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_failing_command_is_told_without_its_own_passwords() {
        let stop =
            "DB_PASSWORD=hunter2hunter2; echo $DB_PASSWORD pw; tool() { return 3; }; tool --password pw";
        let commands = Commands { store_stop: Some(stop.into()), ..Commands::default() };
        let said = hooks(commands).run(Hook::StoreStop).await.unwrap_err();
        assert!(said.contains("printed: (hidden) pw") && said.contains("--password (hidden)"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }

    #[tokio::test]
    async fn a_start_ends_when_the_port_accepts() {
        let (place, port) = (tempfile::tempdir().unwrap(), free_port().await);
        let mark = place.path().join("started");
        let opening = mark.clone();
        // Listens once the command has run, as a service does that takes its time.
        let service = tokio::spawn(async move {
            while !opening.exists() {
                sleep(Duration::from_millis(5)).await;
            }
            let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
            loop {
                drop(listener.accept().await);
            }
        });
        // One that ends, and one that stays: both are started when the port accepts.
        for command in
            [format!("touch {}", mark.display()), format!("touch {}; exec sleep 3", mark.display())]
        {
            let hooks = hooks(Commands { start: Some(command), port, ..Commands::default() });
            assert_eq!(hooks.run(Hook::Start).await, Ok(()));
            assert!(mark.exists());
        }
        service.abort();
    }

    #[tokio::test]
    async fn a_start_that_fails_or_opens_nothing_is_told() {
        let port = free_port().await;
        let start = |command: &str| {
            let limit = Duration::from_millis(400);
            hooks(Commands { start: Some(command.into()), port, limit, ..Commands::default() })
        };
        let said = start("echo broken; exit 2").run(Hook::Start).await.unwrap_err();
        assert!(said.contains("broken"), "{said}");
        let said = start("true").run(Hook::Start).await.unwrap_err();
        assert!(said.contains("nothing listens"), "{said}");
        let said = start("exec sleep 3").run(Hook::Start).await.unwrap_err();
        assert!(said.contains("neither ended nor opened"), "{said}");
    }

    #[tokio::test]
    async fn a_kill_waits_until_the_port_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let place = tempfile::tempdir().unwrap();
        let mark = place.path().join("killed");
        let closing = mark.clone();
        // Dies a little after it was told to.
        tokio::spawn(async move {
            while !closing.exists() {
                sleep(Duration::from_millis(5)).await;
            }
            sleep(Duration::from_millis(200)).await;
            drop(listener);
        });
        let hooks =
            hooks(Commands { kill: Some(format!("touch {}", mark.display())), port, ..Commands::default() });
        assert_eq!(hooks.run(Hook::Kill).await, Ok(()));
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }
}
