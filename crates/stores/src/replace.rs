//! Replaces a small file as one step.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Puts a text in the place of a file: after a crash it is the old one or the new one. For its owner alone, as what it
/// belongs to is.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A name nobody else writes to, which goes if this fails: processes and handles may share the file.
    let mut fresh = tempfile::Builder::new()
        .prefix(path.file_name().unwrap_or_default())
        .suffix(".new")
        .tempfile_in(folder)?;
    fresh.write_all(text.as_bytes())?;
    fresh.as_file().sync_all()?;
    fresh.persist(path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_a_failure_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        replace(&path, "old").unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        replace(&taken, "text").unwrap_err();
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "the file and the directory");
    }
}
