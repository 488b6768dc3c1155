//! How far the store had come, kept outside of it.
//!
//! A database cannot tell that it was restored from an older copy: the copy believes itself. A
//! small file beside it remembers the furthest token seen, so that the copy is found out when it is
//! opened. It is no part of the database and belongs into no backup: restored together with its
//! database it would say what the copy says. It may lag a second behind; that much can be restored
//! unnoticed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use semel_core::Token;
use semel_core::error::{Error, Kind};
use semel_core::store::Mark;

use super::place::Place;
use crate::replace::replace;

const HEAD: &str = "semel witness 1";

/// Which store was seen, and how far it had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) store_id: [u8; 16],
    pub(super) mark: Mark,
    /// The store was found behind this mark, and nobody has accepted that. Earlier builds do not read it.
    pub(super) behind: bool,
}

impl Witness {
    /// Whether what is written down already says as much, or more.
    fn is_no_news_to(self, old: Self) -> bool {
        if old.store_id != self.store_id {
            // That another store was here keeps this one closed, and opens for the other when it is put back.
            return self.behind;
        }
        match (old.behind, self.behind) {
            (false, false) | (true, true) => old.mark >= self.mark,
            // Somebody found it behind, and this says nothing of a later epoch.
            (true, false) => self.mark.epoch <= old.mark.epoch,
            // Accepted since.
            (false, true) => old.mark.epoch > self.mark.epoch,
        }
    }

    /// Reads the file. One that cannot be read is an error: believing that nothing was ever seen
    /// would open the store to a restored copy.
    pub(super) fn load(path: &Path) -> Result<Option<Self>, Error> {
        let refuse = |why: String| {
            let text = format!(
                "the witness {} cannot be read ({why}); make sure that the database beside it was not \
                 restored from an older copy, then delete the witness",
                path.display()
            );
            Error::new(Kind::Damaged, text)
        };
        match fs::read_to_string(path) {
            Ok(text) => parse(&text).map(Some).ok_or_else(|| refuse("it is damaged".into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let text = format!(
                    "this user may not read the witness {}, which another one wrote; run everything that opens the \
                     database as one user, or change the owner of both",
                    path.display()
                );
                Err(Error::new(Kind::Denied, text).because(error))
            }
            Err(error) => Err(refuse(error.to_string())),
        }
    }

    /// Replaces the file in one step that survives a crash: before it the old one is there, after
    /// it the new one.
    pub(super) fn save(&self, path: &Path, database: &Path) -> io::Result<()> {
        let Mark { epoch, token } = self.mark;
        let behind = if self.behind { "behind\n" } else { "" };
        let id: String = self.store_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{HEAD}\nstore {id}\nepoch {epoch}\ntoken {token}\n{behind}");
        replace(path, &text, Some(database))
    }
}

/// Where a database is witnessed: mostly one file, and two where the database was named by a link.
pub(super) struct Witnesses {
    paths: Vec<PathBuf>,
    database: PathBuf,
    /// Threads of a process compare and write in turn.
    writing: Mutex<()>,
}

impl Witnesses {
    /// The one that was chosen, or those beside the database.
    pub(super) fn at(chosen: Option<&Path>, place: &Place, suffix: &str) -> Self {
        let paths = chosen.map_or_else(|| place.beside(suffix), |path| vec![path.to_owned()]);
        Self { paths, database: place.path().to_owned(), writing: Mutex::default() }
    }

    /// Where somebody found the store behind and nobody accepted that, if so. One that cannot be read hides no other.
    pub(super) fn behind(&self, store_id: [u8; 16]) -> Option<Mark> {
        let found = self.paths.iter().filter_map(|path| Witness::load(path).ok().flatten());
        found
            .filter(|witness| witness.store_id == store_id && witness.behind)
            .map(|witness| witness.mark)
            .max()
    }

    /// All there are. One that speaks of another store counts as much as one that is further.
    pub(super) fn load(&self) -> Result<Vec<Witness>, Error> {
        self.paths.iter().filter_map(|path| Witness::load(path).transpose()).collect()
    }

    /// Writes those to which it is news.
    pub(super) fn save(&self, fresh: Witness) {
        self.save_if(fresh, |old| !fresh.is_no_news_to(old));
    }

    /// Writes those that are missing or to which it is news. One that cannot be written weakens the notice of a restored
    /// copy; it is no reason to refuse work.
    pub(super) fn save_if(&self, fresh: Witness, is_news: impl Fn(Witness) -> bool) {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        for path in &self.paths {
            // What cannot be read may say that the store is closed.
            let saved = Witness::load(path).map_err(io::Error::other).and_then(|old| match old {
                Some(old) if !is_news(old) => Ok(()),
                _ => fresh.save(path, &self.database),
            });
            if let Err(error) = saved {
                let witness = path.display();
                tracing::warn!(%witness, %error, "the witness could not be written; a restored copy may go unnoticed");
            }
        }
    }
}

fn parse(text: &str) -> Option<Witness> {
    let mut lines = text.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let store_id = bytes(lines.next()?.strip_prefix("store ")?)?;
    let epoch = lines.next()?.strip_prefix("epoch ")?.parse().ok()?;
    let token = Token(lines.next()?.strip_prefix("token ")?.parse().ok()?);
    let behind = lines.next() == Some("behind");
    Some(Witness { store_id, mark: Mark { epoch, token }, behind })
}

fn bytes(hex: &str) -> Option<[u8; 16]> {
    let mut out = [0; 16];
    if hex.len() != 2 * out.len() || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_comes_back_and_a_cut_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w");
        assert_eq!(Witness::load(&path).unwrap(), None);
        let mark = Mark { epoch: 3, token: Token(u64::MAX) };
        let closed = Witness { store_id: [0xa5; 16], mark, behind: true };
        closed.save(&path, &path).unwrap();
        assert_eq!(Witness::load(&path).unwrap(), Some(closed));
        let seen = Witness { behind: false, ..closed };
        seen.save(&path, &path).unwrap();
        assert_eq!(Witness::load(&path).unwrap(), Some(seen));
        let whole = fs::read_to_string(&path).unwrap();
        let last_digit = whole.find("token ").unwrap() + "token ".len();
        for cut in 0..=last_digit {
            fs::write(&path, &whole[..cut]).unwrap();
            let error = Witness::load(&path).unwrap_err();
            assert_eq!(error.kind(), Kind::Damaged, "cut at {cut}");
            assert!(error.to_string().contains("delete the witness"), "{error}");
        }
    }

    // G-13
    #[test]
    fn a_witness_is_replaced_by_what_is_further_and_one_of_a_store_behind_by_a_later_epoch() {
        let of = |id, epoch, token, behind| Witness {
            store_id: [id; 16],
            mark: Mark { epoch, token: Token(token) },
            behind,
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w");
        let witnesses = Witnesses { paths: vec![path.clone()], database: path, writing: Mutex::default() };
        let after = |fresh: Witness| {
            witnesses.save(fresh);
            witnesses.load().unwrap()[0]
        };
        let first = of(1, 1, 10, false);
        assert_eq!(after(first), first);
        assert_eq!(after(of(1, 1, 9, false)), first);
        assert_eq!(after(of(2, 1, 90, true)), first, "the first one may be put back");
        let behind = of(1, 1, 10, true);
        assert_eq!(after(behind), behind);
        assert_eq!(after(of(1, 1, 90, false)), behind);
        assert_eq!(witnesses.behind([1; 16]), Some(behind.mark));
        let accepted = of(1, 2, 5, false);
        assert_eq!(after(accepted), accepted);
        assert_eq!(after(behind), accepted, "that is past");
        let other = of(2, 1, 3, false);
        assert_eq!(after(other), other, "accepted in its place");
    }
}
