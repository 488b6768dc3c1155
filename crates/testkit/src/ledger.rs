//! A file in which suites note that they ran, so that a run can prove what it covered.

use std::io::Write;

/// Appends `suite<TAB>engine<TAB>cases<TAB>ok` to the file named by `SEMEL_TEST_LEDGER`; without
/// that variable it does nothing. Call it after the cases passed.
///
/// # Panics
/// When the file cannot be written: a run without its ledger proves nothing.
pub fn ledger(suite: &str, engine: &str, cases: u64) {
    let Some(path) = std::env::var_os("SEMEL_TEST_LEDGER") else { return };
    let line = format!("{suite}\t{engine}\t{cases}\tok\n");
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the ledger named by SEMEL_TEST_LEDGER can be appended to");
}
