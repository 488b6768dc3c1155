//! `semel verify` as a user meets it: here what it refuses, and its other modes; below, what it finds.

mod caught;
mod layer;
mod own;
mod run;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn verify(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_semel")).arg("verify").args(arguments).output();
    output.expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A mode that keeps running, and the address it says it listens on.
struct Listening {
    child: Child,
    address: String,
}

impl Listening {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .arg("verify")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("its output is ours");
        BufReader::new(stdout).read_line(&mut line).expect("it says where it listens");
        let address = line.split("on http://").nth(1).and_then(|rest| rest.split(';').next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, address }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn heard(address: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers or ends");
    text(&answer)
}

#[test]
fn what_cannot_be_checked_is_refused_with_a_sentence_and_two() {
    for (arguments, named) in [
        (&["http://192.0.2.1/pay"][..], "--i-own-this-target"),
        (&["http://me:s3cret@127.0.0.1:1/pay?token=s3cret"], "cannot be reached"),
        (&["--profile", "ieft", "http://127.0.0.1:1/"], "did you mean `ietf`?"),
        (&["--curl", "none.sh"], "none.sh"),
        (&["ftp://127.0.0.1/"], "write http://HOST:PORT/PATH"),
        (&["http://127.0.0.1:1/", "--only", "nothing"], "no check or family is called `nothing`"),
        (&["http://127.0.0.1:1/", "--other-route", "http://192.0.2.1/"], "--i-own-this-target"),
        (&["http://127.0.0.1:1/", "--count-url", "http://192.0.2.1/{tag}"], "--i-own-this-target"),
        (&["--provider", "127.0.0.1:0", "--record-to", "http://192.0.2.1/"], "--i-own-this-target"),
        (
            &["http://192.0.2.1/", "--front", "127.0.0.1:0", "--cut", "in-head", "--every", "2"],
            "--i-own-this-target",
        ),
        (
            &["http://127.0.0.1:1/", "--front", "127.0.0.1:0", "--cut", "in-head", "--every", "1m"],
            "number of answers",
        ),
        (&[], "nothing to check"),
        (&["http://127.0.0.1:1/", "-H", "Bearer s3cret"], "--header: a header is written"),
        (&["http://127.0.0.1:1/", "--other-tenant", "X-Token: s3cret\r\n"], "cannot be reached"),
        (
            &["http://127.0.0.1:1/", "--other-tenant", "X-Token: s3\r\ncret"],
            "X-Token has a control character",
        ),
        (&["http://127.0.0.1:1/", "--race", "5000"], "1000"),
    ] {
        let output = verify(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(named), "{arguments:?}: {said}");
        assert!(!said.contains("s3cret") && !said.contains("panicked"), "{arguments:?}: {said}");
    }
    let help = text(&verify(&["--help"]).stdout);
    assert!(help.contains("Exit codes: 0") && help.contains("--tag-at"), "{help}");
}

#[test]
fn a_provider_alone_counts_and_a_front_cuts() {
    let provider = Listening::start(&["--provider", "127.0.0.1:0"]);
    let url = format!("http://{}/", provider.address);
    let front = Listening::start(&[&url, "--front", "127.0.0.1:0", "--cut", "before-head", "--every", "2"]);
    assert!(heard(&front.address, "/charge?r=t-one").contains("\"ok\":true"));
    assert_eq!(heard(&front.address, "/charge?r=t-one"), "", "the second is cut");
    assert!(heard(&provider.address, "/.semel/count/t-one").ends_with("\r\n\r\n2\n"), "and happened");
}

#[test]
fn a_canary_ends_with_one_at_the_first_failure() {
    // A provider makes a new answer for every request: as a service it ignores keys.
    let service = Listening::start(&["--provider", "127.0.0.1:0"]);
    let url = format!("http://{}/pay", service.address);
    let count = format!("http://{}/.semel/count/{{tag}}", service.address);
    let common = [&url, "-d", r#"{"r":"{tag}"}"#, "-H", "X-Api-Token: s3cret-s3cret", "--count-url", &count];
    let canary = |more: &[&str]| {
        verify(&[&common[..], &["--canary", "--every", "10ms", "--times", "3"], more].concat())
    };
    let output = canary(&[]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), out.lines().count()), (Some(1), 1), "{out}{err}");
    assert!(out.contains("FAILED") && out.contains("another body"), "{out}");
    assert!(err.contains("seed "), "{err}");
    assert!(!(out + &err).contains("s3cret"));
    let output = canary(&["--keep-going", "--seed", "9"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), out.lines().count()), (Some(1), 3), "{out}{err}");
    assert!(err.contains("seed 9"), "{err}");
}
