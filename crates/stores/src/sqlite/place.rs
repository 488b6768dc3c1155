//! Where the database is, and whether it is still there.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use semel_core::error::{Error, Kind};
use semel_core::mutant;

use super::error::Fault;

/// The path of a database and the file found there when it was opened.
pub(super) struct Place {
    /// As it was named, which may be by a link.
    name: PathBuf,
    /// Where the file itself is: what SQLite calls its path, and beside which it keeps its log.
    path: PathBuf,
    found: Identity,
}

/// What tells a file from another that was put in its place.
type Identity = (u64, u64);

impl Place {
    /// Makes the file if there is none.
    pub(super) fn at(path: &Path) -> Result<Self, Error> {
        // Absolute: the working directory may change, and SQLite reads some relative names as URIs.
        let name = std::path::absolute(path).map_err(|error| {
            let text = format!("`{}` is no path a database can have: {error}", path.display());
            Error::new(Kind::Misconfigured, text)
        })?;
        create(&name).map_err(|error| explain(&name, error))?;
        let found = identity(&name).map_err(|error| explain(&name, error))?;
        // Whoever joins a transaction knows no other name.
        let path = fs::canonicalize(&name).map_err(|error| explain(&name, error))?;
        Ok(Self { name, path, found })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is the path of the file that was found when the database was opened.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        identity(path).is_ok_and(|now| now == self.found)
    }

    /// The path with something after its name; and the same beside a link by which the file was named, which may lead
    /// to another file the next time.
    pub(super) fn beside(&self, suffix: &str) -> Vec<PathBuf> {
        let with = |path: &Path| {
            let mut path = path.as_os_str().to_owned();
            path.push(suffix);
            PathBuf::from(path)
        };
        if mutant::on("sqlite-witness-beside-the-link-alone") {
            return vec![with(&self.name)];
        }
        let mut all = vec![with(&self.path)];
        // A link in front of the last name leads to the same directory.
        let directory = self.name.parent().and_then(|directory| fs::canonicalize(directory).ok());
        let named = directory.zip(self.name.file_name()).map(|(directory, name)| directory.join(name));
        if let Some(named) = named.filter(|named| *named != self.path)
            && !mutant::on("sqlite-witness-beside-the-file-alone")
        {
            all.push(with(&named));
        }
        all
    }

    /// Refuses when the file is gone or another one is there. SQLite would go on with a file that
    /// nobody will find again, and every answer would be lost with it.
    ///
    /// By name only: opening and closing the file here would drop the locks of this process.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.check_at(&self.path)?;
        // A link may have come to lead elsewhere.
        if self.name == self.path { Ok(()) } else { self.check_at(&self.name) }
    }

    fn check_at(&self, path: &Path) -> Result<(), Fault> {
        match identity(path) {
            Ok(now) if now == self.found || mutant::on("sqlite-replaced-unnoticed") => Ok(()),
            Ok(_) => Err(Fault::displaced("another file is there")),
            Err(error) => Err(Fault::displaced(error.to_string())),
        }
    }
}

/// For its owner alone: it holds the keys of fingerprints and what was answered to clients.
fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let file = fs::metadata(path)?;
    if file.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok((file.dev(), file.ino()))
}

/// Elsewhere an open file cannot be replaced.
#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Identity> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok((0, 0))
}

fn explain(path: &Path, error: io::Error) -> Error {
    let at = path.display();
    let (kind, text) = match error.kind() {
        io::ErrorKind::NotFound => {
            let parent = path.parent().unwrap_or(path).display();
            (
                Kind::Misconfigured,
                format!("the directory {parent} of the database {at} does not exist; make it"),
            )
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            (Kind::Misconfigured, format!("{at} cannot be a database: {error}; name a file in a directory"))
        }
        io::ErrorKind::PermissionDenied => (
            Kind::Denied,
            format!("this user may not make or open the database {at}; change its owner or mode"),
        ),
        io::ErrorKind::ReadOnlyFilesystem => {
            (Kind::ReadOnly, format!("the database {at} is on a read-only file system; choose another path"))
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (Kind::Full, format!("there is no room for the database {at}; free space on its disk"))
        }
        _ => (Kind::Unreachable, format!("the database {at} cannot be opened: {error}")),
    };
    Error::new(kind, text).because(error)
}
