//! A small file that remembers how far a store has come, away from the store.
//!
//! It trails by a second at most, which loses nothing: it says "at least this far".

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use semel_core::error::{Error, Kind};
use semel_core::store::Mark;
use semel_core::{OperationId, Token};

use crate::horizon::{Kept, Seen};
use crate::replace::replace;

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
    write_further(path, seen, Mark::max)
}

/// The same for whoever has another word of which of two marks is further.
pub(crate) fn write_further(
    path: &Path,
    seen: Seen,
    further: impl Fn(Mark, Mark) -> Mark,
) -> std::io::Result<()> {
    let Some(store_id) = seen.store_id else { return Ok(()) };
    // Others may share the file; it never goes down, and one that cannot be read stays for whoever looks at it.
    let old = read(path).map_err(std::io::Error::other)?;
    let old = Some(old).filter(|old| old.store_id == seen.store_id).unwrap_or_default();
    let seen = Seen { mark: further(old.mark, seen.mark), last: Kept::newer(old.last, seen.last), ..seen };
    if old == seen {
        return Ok(());
    }
    let (store, Mark { epoch, token }) = (hex(&store_id), seen.mark);
    let mut text = format!("{HEAD}\nstore {store}\nepoch {epoch}\ntoken {token}\n");
    if let Some(Kept { operation, token }) = seen.last {
        // The last line: builds that do not know it read no further.
        text += &format!("record {} {token}\n", hex(operation.as_bytes()));
    }
    replace(path, &text, None)
}

fn parse(text: &str) -> Option<Seen> {
    let mut lines = text.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let store_id = bytes(lines.next()?.strip_prefix("store ")?)?;
    let epoch = lines.next()?.strip_prefix("epoch ")?.parse().ok()?;
    let token = Token(lines.next()?.strip_prefix("token ")?.parse().ok()?);
    let last = match lines.next() {
        Some(line) => Some(record(line)?),
        None => None,
    };
    Some(Seen { store_id: Some(store_id), mark: Mark { epoch, token }, last })
}

fn record(line: &str) -> Option<Kept> {
    let (operation, token) = line.strip_prefix("record ")?.split_once(' ')?;
    Some(Kept { operation: OperationId::from_bytes(bytes(operation)?), token: Token(token.parse().ok()?) })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if hex.len() != 2 * N || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
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
        let last = |token| {
            let operation = OperationId::from_bytes([0xcd; 32]);
            Some(Kept { operation, token: Token(token) })
        };
        let seen = Seen { store_id: Some([0xab; 16]), mark: Mark { epoch: 3, token: Token(77) }, last: None };
        write(&path, seen).unwrap();
        assert_eq!(read(&path).unwrap(), seen);
        write(&path, Seen { last: last(70), ..seen }).unwrap();
        assert_eq!(read(&path).unwrap(), Seen { last: last(70), ..seen });
        write(&path, Seen { mark: Mark { epoch: 3, token: Token(78) }, last: last(69), ..seen }).unwrap();
        let further = Seen { mark: Mark { epoch: 3, token: Token(78) }, last: last(70), ..seen };
        assert_eq!(read(&path).unwrap(), further, "neither goes down");
        let other = Seen { store_id: Some([0xac; 16]), mark: Mark::default(), last: None };
        write(&path, other).unwrap();
        assert_eq!(read(&path).unwrap(), other, "of another store nothing stays");
        for record in ["record", "record cdcd 7", &format!("record {} x", "cd".repeat(32))] {
            fs::write(
                &path,
                format!("semel witness 1\nstore {}\nepoch 1\ntoken 7\n{record}\n", "ab".repeat(16)),
            )
            .unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), Kind::Misconfigured, "{record}");
        }
        fs::write(&path, "semel witness 1\nstore abab\n").unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), Kind::Misconfigured);
    }
}
