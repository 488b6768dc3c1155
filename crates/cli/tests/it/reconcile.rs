//! The SQL of docs/reconcile.md on Postgres. The example services, and the same SQL on SQLite, are driven
//! by a recoverer in `src/gateway/ask/examples.rs`.

use std::path::Path;

use crate::engines::engines;

fn statement(file: &str) -> String {
    let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/reconcile/sql");
    std::fs::read_to_string(sql.join(file)).expect("the example is there")
}

#[test]
fn the_statements_fence_late_attempts_on_postgres_too() {
    // G-15
    let dir = tempfile::tempdir().expect("a temporary directory");
    for engine in engines() {
        let url = engine.fresh(dir.path());
        let mut script = statement("receipts.sql");
        for name in ["begin", "finish", "reconcile"] {
            script += &format!("PREPARE {name}_ AS {}", statement(&format!("{name}.sql")));
        }
        for call in [
            "reconcile_('lost', 41)",
            "begin_('lost', 41)",
            "begin_('lost', 42)",
            "reconcile_('lost', 43)",
            "finish_(201, 'charged', 'lost')",
            "reconcile_('lost', 44)",
            "begin_('lost', 45)",
        ] {
            script += &format!("SELECT '{}';\nEXECUTE {call};\n", call.replace('\'', ""));
        }
        if let Some(rows) = engine.query(&url, &script) {
            let expected = [
                "reconcile_(lost, 41)",
                "|||41",
                "begin_(lost, 41)",
                "begin_(lost, 42)",
                "42",
                "reconcile_(lost, 43)",
                "|42||41",
                "finish_(201, charged, lost)",
                "reconcile_(lost, 44)",
                "201|42|charged|41",
                "begin_(lost, 45)",
            ];
            assert_eq!(rows.lines().collect::<Vec<_>>(), expected);
            semel_testkit::ledger("reconcile in SQL", engine.name, 1);
        }
        engine.remove(&url);
    }
}
