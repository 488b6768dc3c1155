//! A real standby, made from the test server and refused.

use std::path::Path;
use std::process::{Command, Output};

use semel_core::error::Kind;
use semel_stores::postgres::PostgresStore;

use super::rig::{connect, named, with_database};

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

#[test]
fn a_standby_is_refused_with_a_sentence() {
    with_database(async |database| {
        let Some(programs) = named("SEMEL_TEST_PG_BIN") else { return };
        connect(&database.url()).await;
        let folder = tempfile::tempdir().unwrap();
        // The server's user must be able to reach and own it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let (programs, data) = (Path::new(&programs), folder.path().join("data"));
        let data = data.to_str().unwrap();
        let admin = database.through(&database.url());
        must(&run(
            &programs.join("pg_basebackup"),
            &["-D", data, "-d", &admin, "-R", "-X", "stream", "-c", "fast", "--no-sync"],
        ));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = format!("-c port={port} -c shared_buffers=16MB -c hot_standby=on");
        let control = programs.join("pg_ctl");
        let log = folder.path().join("log");
        let started = run(
            &control,
            &["-D", data, "-w", "-t", "60", "-l", log.to_str().unwrap(), "-o", &settings, "start"],
        );
        let url = database.url();
        let (user, place) = url.rsplit_once('@').unwrap();
        let name = place.split_once('/').unwrap().1;
        let refused = PostgresStore::connect(&format!("{user}@127.0.0.1:{port}/{name}")).await.map(drop);
        must(&run(&control, &["-D", data, "-w", "-m", "immediate", "stop"]));
        must(&started);
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), Kind::ReadOnly, "{error}");
        assert!(error.to_string().contains("standby"), "{error}");
        must(&run(Path::new("rm"), &["-r", data]));
    });
}
