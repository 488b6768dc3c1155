//! The engines end-to-end tests run on.

use std::path::Path;
use std::process::Command;

/// One engine that is there, and where its store can be made to die.
pub(crate) struct Engine {
    pub(crate) name: &'static str,
    pub(crate) crash_points: &'static [(&'static str, u32)],
    server: Option<String>,
}

/// SQLite always; Postgres where `./test` started one.
pub(crate) fn engines() -> Vec<Engine> {
    let sqlite = Engine { name: "sqlite", crash_points: SQLITE, server: None };
    match std::env::var("SEMEL_TEST_POSTGRES") {
        Ok(url) => vec![sqlite, Engine { name: "postgres", crash_points: POSTGRES, server: Some(url) }],
        Err(_) if std::env::var("SEMEL_TEST_REQUIRE").is_ok() => panic!("SEMEL_TEST_POSTGRES is not set"),
        Err(_) => {
            eprintln!("SKIPPED postgres: SEMEL_TEST_POSTGRES is not set; ./test starts a server");
            vec![sqlite]
        }
    }
}

/// The first commit of a victim is its claim, the second its completion.
const SQLITE: &[(&str, u32)] = &[
    ("sqlite-before-commit", 0),
    ("sqlite-after-commit", 0),
    ("sqlite-before-commit", 1),
    ("sqlite-after-commit", 1),
];

const POSTGRES: &[(&str, u32)] = &[
    ("pg-before-claim-commit", 0),
    ("pg-after-claim-commit", 0),
    ("pg-before-complete-commit", 0),
    ("pg-after-complete-commit", 0),
];

impl Engine {
    /// The URL of a store nobody has used.
    pub(crate) fn fresh(&self, dir: &Path) -> String {
        let Some(server) = &self.server else {
            return format!("sqlite:{}", dir.join("semel.db").display());
        };
        let name = format!("semel_e2e_{}", &semel::Nonce::random().to_string()[..12]);
        self.psql(server, &format!("CREATE DATABASE {name}"));
        let (base, query) =
            server.split_once('?').map_or((server.as_str(), ""), |(base, query)| (base, query));
        let (host, _) = base.rsplit_once('/').expect("the URL names a database");
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        format!("{host}/{name}{query}")
    }

    /// Removes what [`fresh`](Self::fresh) made on a server.
    pub(crate) fn remove(&self, url: &str) {
        if let Some(server) = &self.server {
            let path = url.split('?').next().expect("split gives at least one part");
            let name = path.rsplit('/').next().expect("the URL names a database");
            self.psql(server, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        }
    }

    /// Runs SQL on a database of this engine's server and gives back the rows; `None` without a server.
    pub(crate) fn query(&self, url: &str, sql: &str) -> Option<String> {
        self.server.as_ref().map(|_| self.psql(url, sql))
    }

    fn psql(&self, server: &str, sql: &str) -> String {
        let psql = std::env::var("SEMEL_TEST_PG_BIN").map_or("psql".into(), |bin| format!("{bin}/psql"));
        let done = Command::new(psql).args([server, "-qXAt", "-v", "ON_ERROR_STOP=1", "-c", sql]).output();
        let done = done.expect("psql starts");
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}
