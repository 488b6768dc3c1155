//! The user's commands, run by `sh`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::safety::command_shown;

/// Most output read of a command.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// Most of it shown in an error, from its end.
const SHOWN_CHARS_MAX: usize = 1000;

/// A command that runs. Its output goes to files without a name: a server that it leaves behind
/// would hold a pipe open, and its end would never be seen.
pub(super) struct Running {
    /// As it may be shown.
    command: String,
    pub(super) child: Child,
    stdout: File,
    stderr: File,
}

pub(super) fn begin(command: &str, variables: &[(&str, &str)]) -> Result<Running, String> {
    let shown = command_shown(command);
    let failed = |error: std::io::Error| format!("`{shown}` cannot be run: {error}");
    let (stdout, stderr) = (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
    let child = Command::new("sh")
        .args(["-c", command])
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().map_err(failed)?)
        .stderr(stderr.try_clone().map_err(failed)?)
        .spawn()
        .map_err(failed)?;
    Ok(Running { command: shown, child, stdout, stderr })
}

/// Runs a command to its end and gives back what it printed. The error is a sentence with its output.
///
/// # Cancellation
///
/// A dropped future leaves the command running.
pub(super) async fn run(
    command: &str,
    variables: &[(&str, &str)],
    limit: Duration,
) -> Result<String, String> {
    let mut running = begin(command, variables)?;
    match tokio::time::timeout(limit, running.child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(read(&mut running.stdout)),
        Ok(Ok(status)) => Err(running.failed(&format!("ended with {status}"))),
        Ok(Err(error)) => Err(running.failed(&format!("cannot be waited for: {error}"))),
        Err(_) => {
            let _ = running.child.kill().await;
            Err(running.failed(&format!("did not end within {}s", limit.as_secs())))
        }
    }
}

impl Running {
    pub(super) fn failed(&mut self, how: &str) -> String {
        let printed = format!("{}{}", read(&mut self.stderr), read(&mut self.stdout));
        let printed = printed.trim();
        let start = printed.char_indices().rev().nth(SHOWN_CHARS_MAX - 1).map_or(0, |(at, _)| at);
        match &printed[start..] {
            "" => format!("`{}` {how} and printed nothing", self.command),
            shown => format!("`{}` {how}; it printed: {shown}", self.command),
        }
    }
}

/// What is in the file, its last part if it is long.
fn read(file: &mut File) -> String {
    let length = file.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut bytes = Vec::new();
    // The command shares the position; it has ended, or its output is only looked at.
    let _ = file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES_MAX)));
    let _ = file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// In single quotes for a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn output_is_given_back_and_variables_are_seen() {
        assert_eq!(run("echo \"n: $N\"; echo no >&2", &[("N", "7")], LIMIT).await.unwrap(), "n: 7\n");
    }

    #[tokio::test]
    async fn a_failure_shows_what_was_printed() {
        let said = run("echo out; echo wrong >&2; exit 3", &[], LIMIT).await.unwrap_err();
        assert!(said.contains("3") && said.contains("wrong") && said.contains("out"), "{said}");
        assert!(run("exit 1", &[], LIMIT).await.unwrap_err().contains("printed nothing"));
        let long = run("yes é | head -n 5000; exit 1", &[], LIMIT).await.unwrap_err();
        assert!(long.chars().count() < SHOWN_CHARS_MAX + 200, "{}", long.len());
    }

    #[tokio::test]
    async fn a_command_that_does_not_end_is_given_up() {
        let said = run("echo begun; exec sleep 600", &[], Duration::from_millis(300)).await.unwrap_err();
        assert!(said.contains("did not end") && said.contains("begun"), "{said}");
    }

    #[tokio::test]
    async fn what_a_command_leaves_behind_holds_nothing_up() {
        // The sleeper keeps stdout open.
        assert_eq!(run("sleep 5 & echo done", &[], Duration::from_secs(4)).await.unwrap(), "done\n");
    }

    #[tokio::test]
    async fn quoting_keeps_a_text_whole() {
        let awkward = "it's $HOME `x` \"y\" \\";
        assert_eq!(run(&format!("printf %s {}", quoted(awkward)), &[], LIMIT).await.unwrap(), awkward);
    }
}
