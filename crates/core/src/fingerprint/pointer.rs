use super::canonical::decimal;
use super::error::Error;

/// The most pointers one [`Pointers`] holds.
pub const POINTERS_MAX: usize = 256;

/// A set of JSON pointers (RFC 6901): places to leave out of a fingerprint, or to redact.
///
/// - A reference token matches the member of that name, or the array element of that index written without
///   leading zeros. `-` is only a member name; there is no element after the last.
/// - In a form or a multipart body `/name` is the field or part of that name, all of them if there are
///   several.
/// - Names are compared after decoding: `/a` finds `"\u0061"`. Duplicate members are all found.
/// - The empty pointer is refused: to leave out a whole body is not a matter of pointers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pointers {
    // A trie; node 0 is the root. Empty when there are no pointers.
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    children: Vec<(Vec<u8>, usize)>,
    ends_here: bool,
}

/// How far into the pointers a walk has come. Off every pointer it is `None`, which costs nothing to carry.
pub(super) type Cursor = Option<usize>;

/// What the pointers say about one step down.
pub(super) enum Step {
    /// A pointer ends here: the value is meant.
    Hit,
    /// Go on with this cursor.
    On(Cursor),
}

impl Pointers {
    /// No pointers.
    pub const fn none() -> Self {
        Self { nodes: Vec::new() }
    }

    /// Reads pointers such as `/meta/sent_at`.
    pub fn parse<P: AsRef<str>>(pointers: &[P]) -> Result<Self, Error> {
        if pointers.len() > POINTERS_MAX {
            return Err(Error::TooManyPointers { count: pointers.len() });
        }
        let mut parsed = Self::none();
        for pointer in pointers {
            parsed.insert(pointer.as_ref())?;
        }
        Ok(parsed)
    }

    /// Whether there are no pointers.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn root(&self) -> Cursor {
        if self.nodes.is_empty() { None } else { Some(0) }
    }

    pub(super) fn member(&self, cursor: Cursor, name: &[u8]) -> Step {
        let Some(node) = cursor.map(|at| &self.nodes[at]) else {
            return Step::On(None);
        };
        match node.children.iter().find(|(token, _)| token == name) {
            Some(&(_, child)) if self.nodes[child].ends_here => Step::Hit,
            Some(&(_, child)) => Step::On(Some(child)),
            None => Step::On(None),
        }
    }

    pub(super) fn index(&self, cursor: Cursor, index: usize) -> Step {
        if cursor.is_none() {
            return Step::On(None);
        }
        self.member(cursor, decimal(index, &mut [0; 20]))
    }

    fn insert(&mut self, pointer: &str) -> Result<(), Error> {
        let refuse = |why| Error::Pointer { pointer: pointer.to_owned(), why };
        if pointer.is_empty() {
            return Err(refuse("stands for the whole body"));
        }
        let tokens = pointer.strip_prefix('/').ok_or_else(|| refuse("does not start with a slash"))?;
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for token in tokens.split('/') {
            let token = unescape(token).ok_or_else(|| refuse("has a ~ that is neither ~0 nor ~1"))?;
            at = self.child(at, token);
        }
        self.nodes[at].ends_here = true;
        Ok(())
    }

    fn child(&mut self, parent: usize, token: Vec<u8>) -> usize {
        if let Some(&(_, child)) = self.nodes[parent].children.iter().find(|(known, _)| *known == token) {
            return child;
        }
        let child = self.nodes.len();
        self.nodes.push(Node::default());
        self.nodes[parent].children.push((token, child));
        child
    }
}

fn unescape(token: &str) -> Option<Vec<u8>> {
    let mut bytes = token.bytes();
    let mut plain = Vec::with_capacity(token.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'~' => match bytes.next()? {
                b'0' => b'~',
                b'1' => b'/',
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(plain)
}
