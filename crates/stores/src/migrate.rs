//! Forward-only migrations, the part that does not depend on the database: what a store has, what
//! this build knows, and what follows.
//!
//! There is no way down. A newer schema says which builds may still use it; a build that may not
//! refuses to touch it instead of guessing.

use semel_core::error::{Error, Kind};
use sha2::{Digest, Sha256};

/// One step of the schema, as this build knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migration {
    /// From 1, without gaps.
    pub(crate) version: u32,
    /// For people.
    pub(crate) name: &'static str,
    /// What it runs.
    pub(crate) sql: &'static str,
    /// Builds that know fewer migrations than this must not use the schema after it.
    pub(crate) minimum_reader: u32,
}

impl Migration {
    /// SHA-256 of its text: an applied migration must never be edited.
    pub(crate) fn checksum(&self) -> [u8; 32] {
        Sha256::digest(self.sql.as_bytes()).into()
    }
}

/// What a store lacks, as [`plan`](crate::plan) found it. Opening the store applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The names of the migrations, oldest first; empty if there is nothing to do.
    pub names: Vec<&'static str>,
    /// All of it as SQL, one transaction, for whoever applies it by hand; on MySQL, where DDL commits by itself,
    /// statements that can be run again. No secret is in it: those are made when it runs.
    pub script: String,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Missing {
    pub(crate) fn of(
        migrations: &[Migration],
        begin: &str,
        record: impl Fn(&Migration) -> String,
        found: &str,
    ) -> Self {
        let names = migrations.iter().map(|migration| migration.name).collect::<Vec<_>>();
        let mut script = String::new();
        if !names.is_empty() {
            script += begin;
            for migration in migrations {
                script += &format!("\n-- {}: {}\n{}", migration.version, migration.name, migration.sql);
                script += &record(migration);
                if migration.version == 1 {
                    script += found;
                }
            }
            script += "\nCOMMIT;\n";
        }
        Self { names, script }
    }
}

/// A checksum as digits.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One step of the schema, as a store remembers it.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    pub(crate) version: u32,
    pub(crate) name: String,
    pub(crate) checksum: Vec<u8>,
    pub(crate) minimum_reader: u32,
}

/// The migrations still to apply, oldest first; none if the store is as new as this build, or newer
/// and still readable.
pub(crate) fn plan(found: &[Applied], known: &'static [Migration]) -> Result<&'static [Migration], Error> {
    let refuse = |sentence: String| Err(Error::new(Kind::Schema, sentence));
    let reader = known.len() as u32;
    for (applied, version) in found.iter().zip(1..) {
        let Applied { name, .. } = applied;
        if applied.version != version {
            return refuse(format!(
                "the store's schema lacks migration {version}; restore the table semel_schema from a backup"
            ));
        }
        match known.get(version as usize - 1) {
            Some(ours) if applied.checksum != ours.checksum() => {
                return refuse(format!(
                    "migration {version} ({name}) of the store is not the one this build carries; \
                     use the build that made the store, or a later release of it"
                ));
            }
            None if applied.minimum_reader > reader => {
                return refuse(format!(
                    "the store's schema is at version {version} ({name}), which needs a build that knows \
                     version {}; this one knows {reader}: upgrade it",
                    applied.minimum_reader
                ));
            }
            _ => {}
        }
    }
    Ok(known.get(found.len()..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    static KNOWN: [Migration; 2] = [
        Migration { version: 1, name: "first", sql: "create a", minimum_reader: 1 },
        Migration { version: 2, name: "second", sql: "create b", minimum_reader: 1 },
    ];

    fn applied(version: u32, sql: &str, minimum_reader: u32) -> Applied {
        let checksum = Sha256::digest(sql.as_bytes()).to_vec();
        Applied { version, name: format!("m{version}"), checksum, minimum_reader }
    }

    #[test]
    fn what_is_missing_is_applied_in_order() {
        assert_eq!(plan(&[], &KNOWN).unwrap().len(), 2);
        let rest = plan(&[applied(1, "create a", 1)], &KNOWN).unwrap();
        assert_eq!(rest.iter().map(|m| m.version).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_newer_schema_is_used_only_if_it_says_that_this_build_may() {
        let both = [applied(1, "create a", 1), applied(2, "create b", 1)];
        let newer = |minimum| [&both[..], &[applied(3, "create c", minimum)]].concat();
        assert!(plan(&newer(2), &KNOWN).unwrap().is_empty());
        let error = plan(&newer(3), &KNOWN).unwrap_err();
        assert_eq!(error.kind(), Kind::Schema);
        assert!(error.to_string().contains("upgrade"), "{error}");
    }

    #[test]
    fn an_edited_or_missing_migration_is_refused() {
        let edited = plan(&[applied(1, "create a2", 1)], &KNOWN).unwrap_err();
        assert!(edited.to_string().contains("migration 1"), "{edited}");
        let gap = plan(&[applied(2, "create b", 1)], &KNOWN).unwrap_err();
        assert!(gap.to_string().contains("lacks migration 1"), "{gap}");
    }
}
