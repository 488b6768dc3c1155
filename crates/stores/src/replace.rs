//! Replaces a small file as one step.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const SUFFIX: &str = ".new";
/// How many characters make a name of its own.
const RANDOM_CHARS: usize = 6;
/// Nobody takes so long.
const LEFT_FOR: Duration = Duration::from_secs(60);

/// Puts a text in the place of a file: after a crash it is the old one or the new one. Who may read the old one may read
/// the new one; the first is for those who may read what it belongs to, or else for its owner alone.
pub(crate) fn replace(path: &Path, text: &str, belongs_to: Option<&Path>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A name nobody else writes to, which goes if this fails: processes and handles may share the file.
    let name = path.file_name().unwrap_or_default();
    let mut fresh = tempfile::Builder::new().prefix(name).suffix(SUFFIX).tempfile_in(folder)?;
    // Once per file.
    static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if SWEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned()) {
        sweep(folder, name);
    }
    fresh.write_all(text.as_bytes())?;
    if let Some(model) =
        [Some(path), belongs_to].into_iter().flatten().find_map(|path| fs::metadata(path).ok())
    {
        give_to(fresh.as_file(), &model);
    }
    fresh.as_file().sync_all()?;
    fresh.persist(path)?;
    File::open(folder)?.sync_all()
}

/// Removes what those left who ended, or were killed, within it.
fn sweep(folder: &Path, name: &OsStr) {
    let is_left = |entry: &fs::DirEntry| {
        let other = entry.file_name();
        let (other, name) = (other.as_encoded_bytes(), name.as_encoded_bytes());
        let ours = other.strip_prefix(name).and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
        let age =
            entry.metadata().and_then(|file| file.modified()).map(|at| at.elapsed().unwrap_or_default());
        ours.is_some_and(|random| random.len() == RANDOM_CHARS) && age.is_ok_and(|age| age > LEFT_FOR)
    };
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    found.filter(is_left).for_each(|entry| drop(fs::remove_file(entry.path())));
}

/// Owner, group and mode, as far as this user may: an operator who is root shall not shut the service out.
#[cfg(unix)]
fn give_to(file: &File, model: &fs::Metadata) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    // The mode first: what was given away is not this user's to change.
    let _ = file.set_permissions(fs::Permissions::from_mode(model.mode() & 0o666));
    let (owner, group) = (Some(model.uid()), Some(model.gid()));
    let _ = fchown(file, owner, group).or_else(|_| fchown(file, None, group));
}

#[cfg(not(unix))]
fn give_to(_: &File, _: &fs::Metadata) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_a_failure_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        replace(&path, "old", None).unwrap();
        replace(&path, "new", None).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        replace(&taken, "text", None).unwrap_err();
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "the file and the directory");
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - 2 * LEFT_FOR;
        for name in ["witnessAbC123.new", "witness", "witness.new", "witnessAbC1234.new", "otherAbC123.new"] {
            File::create(folder.path().join(name)).unwrap().set_modified(old).unwrap();
        }
        File::create(folder.path().join("witnessDeF456.new")).unwrap();
        sweep(folder.path(), OsStr::new("witness"));
        assert!(!folder.path().join("witnessAbC123.new").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
    }

    #[cfg(unix)]
    #[test]
    fn whoever_may_read_the_old_file_may_read_the_new_one() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let is = |name| {
            let found = fs::metadata(path(name)).unwrap();
            (found.mode() & 0o777, found.uid())
        };
        replace(&path("alone"), "text", None).unwrap();
        assert_eq!(is("alone").0, 0o600);
        fs::write(path("database"), "").unwrap();
        fs::set_permissions(path("database"), fs::Permissions::from_mode(0o660)).unwrap();
        // Only root may give files away.
        let _ = chown(path("database"), Some(1234), None);
        replace(&path("witness"), "text", Some(&path("database"))).unwrap();
        assert_eq!(is("witness"), is("database"));
        fs::set_permissions(path("witness"), fs::Permissions::from_mode(0o644)).unwrap();
        replace(&path("witness"), "text", Some(&path("database"))).unwrap();
        assert_eq!(is("witness"), (0o644, is("database").1));
    }
}
