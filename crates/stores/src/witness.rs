//! A small file that remembers how far a store has come, away from the store.
//!
//! It trails by a second at most, which loses nothing: it says "at least this far".

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::Token;
use semel_core::error::{Error, Kind};
use semel_core::store::Mark;

use crate::horizon::Seen;

const HEAD: &str = "semel witness 1";

/// What the file remembers; nothing if there is none yet.
pub(crate) fn read(path: &Path) -> Result<Seen, Error> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Seen::default()),
        Err(error) => return Err(unusable(path, "cannot be read").because(error)),
    };
    parse(&text).ok_or_else(|| {
        unusable(path, "is not a witness of a store; if it is damaged, delete it after making sure that the database was not restored")
    })
}

/// Replaces the file as one step: after a crash it is the old one or the new one.
pub(crate) fn write(path: &Path, seen: Seen) -> std::io::Result<()> {
    let Some(store_id) = seen.store_id else { return Ok(()) };
    // Others may share the file; it never goes down.
    let is_further = |old: Seen| old.store_id == seen.store_id && old.mark >= seen.mark;
    if read(path).is_ok_and(is_further) {
        return Ok(());
    }
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let hex: String = store_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{HEAD}\nstore {hex}\nepoch {}\ntoken {}\n", seen.mark.epoch, seen.mark.token);
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.{}", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed)));
    let beside = PathBuf::from(beside);
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn parse(text: &str) -> Option<Seen> {
    let mut lines = text.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let hex = lines.next()?.strip_prefix("store ")?;
    let epoch = lines.next()?.strip_prefix("epoch ")?.parse().ok()?;
    let token = Token(lines.next()?.strip_prefix("token ")?.parse().ok()?);
    let mut store_id = [0; 16];
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in store_id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(Seen { store_id: Some(store_id), mark: Mark { epoch, token } })
}

fn unusable(path: &Path, why: &str) -> Error {
    Error::new(Kind::Misconfigured, format!("the witness file {} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_comes_back_and_a_cut_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        assert_eq!(read(&path).unwrap(), Seen::default());
        let seen = Seen { store_id: Some([0xab; 16]), mark: Mark { epoch: 3, token: Token(77) } };
        write(&path, seen).unwrap();
        assert_eq!(read(&path).unwrap(), seen);
        fs::write(&path, "semel witness 1\nstore abab\n").unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), Kind::Misconfigured);
    }
}
