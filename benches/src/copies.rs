//! Filling a table quickly: one record made by the store itself, copied with new names inside the database.

/// `INSERT … SELECT` that copies a row of `semel_operation`. `columns` are all of the table's;
/// `changed` says which of them get an expression instead of the copied value. `source` is what
/// stands after `FROM`, with the row to copy as `one` and a running number as `n`.
pub(crate) fn statement(columns: &[String], changed: &[(&str, &str)], source: &str) -> String {
    let value = |column: &String| match changed.iter().find(|(name, _)| name == column) {
        Some((_, expression)) => (*expression).to_owned(),
        None => format!("one.{column}"),
    };
    let values = columns.iter().map(value).collect::<Vec<_>>().join(", ");
    format!("INSERT INTO semel_operation ({}) SELECT {values} FROM {source}", columns.join(", "))
}

/// The number of records in words short enough for a table.
pub(crate) fn records(count: u64) -> String {
    match count {
        1_000_000.. => format!("{}M records", count / 1_000_000),
        1_000.. => format!("{}k records", count / 1_000),
        _ => format!("{count} records"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_changes() {
        let columns = ["id", "state"].map(str::to_owned);
        let sql = statement(&columns, &[("id", "randomblob(32)")], "t AS one");
        assert_eq!(
            sql,
            "INSERT INTO semel_operation (id, state) SELECT randomblob(32), one.state FROM t AS one"
        );
        assert_eq!(records(10_000_000), "10M records");
    }
}
