//! Words of a shell: foreign bytes as literals, and names that are new in every run.

use crate::verify::safety::is_secret;
use crate::verify::scenario::Call;

/// Most characters of a key that are made new; the rest of a long one is kept, and so is its length.
const FRESH_MAX: usize = 36;
/// Fewer cannot be made new.
const FRESH_MIN: usize = 4;
/// Parts of a key from this length are the random ones; shorter parts may have a meaning.
const PIECE_MIN: usize = 6;

/// Variables that are no place for a secret.
const OWN: [&str; 6] = ["BASH_ENV", "ENV", "IFS", "PATH", "ROUNDS", "SHELL"];

/// A shell word that stands for these bytes. A zero byte cannot stand in a word and is left out.
pub(super) fn quote(bytes: &[u8]) -> String {
    let mut word = String::new();
    let mut open = false;
    let mut put = |letter: Option<char>, odd: &[u8]| {
        if open != letter.is_some() {
            word.push('\'');
            open = !open;
        }
        match letter {
            Some('\'') => word.push_str("'\\''"),
            Some(letter) => word.push(letter),
            None => odd
                .iter()
                .filter(|byte| **byte != 0)
                .for_each(|byte| word.push_str(&format!("$'\\x{byte:02x}'"))),
        }
    };
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            // A line feed stays a line feed; anything else that cannot be seen is written by number.
            if letter.is_control() && letter != '\n' {
                put(None, letter.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                put(Some(letter), &[]);
            }
        }
        put_odd(&mut put, chunk.invalid());
    }
    if open {
        word.push('\'');
    }
    if word.is_empty() { "''".to_owned() } else { word }
}

fn put_odd(put: &mut impl FnMut(Option<char>, &[u8]), odd: &[u8]) {
    if !odd.is_empty() {
        put(None, odd);
    }
}

/// Everything in requests that a script must not repeat as it is.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Text to be replaced, and what by; of keys and of everything else.
    tags: Vec<(Vec<u8>, String)>,
    keys: Vec<(Vec<u8>, String)>,
    /// Variable, what it is, header name and value.
    secrets: Vec<(String, String, String, Vec<u8>)>,
    /// Lines that make the names, in order.
    pub(super) made: Vec<String>,
}

impl Names {
    pub(super) fn of<'a>(
        calls: impl Iterator<Item = &'a Call> + Clone,
        counted: &[&str],
        key_header: &str,
    ) -> Self {
        let mut names = Self::default();
        for tag in counted {
            names.tag(tag);
        }
        for call in calls.clone() {
            let headers =
                call.request.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(key_header));
            let parts = headers.map(|(_, value)| value.as_slice());
            for part in parts.chain([call.request.url.as_bytes(), &call.request.body]) {
                tags_in(part).into_iter().for_each(|tag| names.tag(&tag));
            }
            names.secret(call, key_header);
        }
        let mut keys: Vec<&[u8]> = calls
            .flat_map(|call| &call.request.headers)
            .filter(|(name, _)| name.eq_ignore_ascii_case(key_header))
            .map(|(_, value)| value.as_slice())
            .collect();
        // Short ones first: a longer key may be a shorter one with something added, and must stay so.
        keys.sort_by_key(|key| core(key).len());
        keys.into_iter().for_each(|key| names.key(key));
        names
    }

    fn tag(&mut self, tag: &str) {
        if self.tags.iter().any(|(there, _)| there == tag.as_bytes()) {
            return;
        }
        let number = self.tags.len() + 1;
        self.made.push(format!("TAG_{number}=t-$(fresh 12)-{number}"));
        self.tags.push((tag.as_bytes().to_vec(), format!("TAG_{number}")));
        // The longest first, so that none is taken for the start of another.
        self.tags.sort_by_key(|(tag, _)| std::cmp::Reverse(tag.len()));
    }

    fn key(&mut self, key: &[u8]) {
        let core = core(key);
        if core.len() < FRESH_MIN || self.keys.iter().any(|(there, _)| contains(key, there)) {
            return;
        }
        let name = format!("KEY_{}", self.keys.len() + 1);
        let twin = self.keys.iter().find(|(there, _)| there.eq_ignore_ascii_case(core));
        let made = match twin {
            Some((_, twin)) if core.iter().all(|byte| !byte.is_ascii_lowercase()) => {
                format!("{name}=$(printf %s \"${twin}\" | tr a-z A-Z)")
            }
            Some((_, twin)) if core.iter().all(|byte| !byte.is_ascii_uppercase()) => {
                format!("{name}=$(printf %s \"${twin}\" | tr A-Z a-z)")
            }
            _ => format!("{name}={}", fresh(core)),
        };
        self.made.push(made);
        self.keys.push((core.to_vec(), name));
    }

    fn secret(&mut self, call: &Call, key_header: &str) {
        let is_secret = |name: &str| is_secret(name) && !name.eq_ignore_ascii_case(key_header);
        let secret = call.request.headers.iter().filter(|(name, _)| is_secret(name));
        for (name, value) in secret {
            self.hide(name, value, format!("the value of the header {name}"));
        }
        for (name, value) in secret_parameters(&call.request.url) {
            self.hide(name, value.as_bytes(), format!("the value of the query parameter {name}"));
        }
        if let Some(user) = user(&call.request.url) {
            self.hide("userinfo", user.as_bytes(), "the name and password before the host".to_owned());
        }
    }

    fn hide(&mut self, name: &str, value: &[u8], what: String) {
        let is_there =
            |(_, _, there, known): &(String, String, String, Vec<u8>)| there == name && known == value;
        if self.secrets.iter().any(is_there) {
            return;
        }
        let letters = name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
        let mut base = letters.collect::<String>().to_ascii_uppercase();
        // No variable begins with a digit, and none of the script's own is overwritten.
        if !base.starts_with(|first: char| first.is_ascii_alphabetic()) || OWN.contains(&base.as_str()) {
            base = format!("SECRET_{base}");
        }
        let others = self.secrets.iter().filter(|(_, _, there, _)| there.eq_ignore_ascii_case(name)).count();
        let (variable, what) = match others {
            0 => (base, what),
            _ => (format!("{base}_{}", others + 1), format!("{what}, for somebody else")),
        };
        self.secrets.push((variable, what, name.to_owned(), value.to_vec()));
    }

    /// Variables a user has to set, and what to.
    pub(super) fn needed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.secrets.iter().map(|(variable, what, ..)| (variable.as_str(), what.as_str()))
    }

    /// The variable of a tag.
    pub(super) fn variable(&self, tag: &str) -> Option<&str> {
        self.tags.iter().find(|(there, _)| there == tag.as_bytes()).map(|(_, name)| name.as_str())
    }

    /// Text with the tags in it made new.
    pub(super) fn word(&self, text: &[u8]) -> String {
        replaced(text, &self.tags)
    }

    /// One header line.
    pub(super) fn header(&self, name: &str, value: &[u8], key_header: &str) -> String {
        let secret = self.secrets.iter().find(|(_, _, there, known)| there == name && known == value);
        if let Some((variable, ..)) = secret {
            return format!("{}\"${variable}\"", quote(format!("{name}: ").as_bytes()));
        }
        let mark = if value.is_empty() { ":" } else { ": " };
        let line = [name.as_bytes(), mark.as_bytes(), value].concat();
        replaced(&line, if name.eq_ignore_ascii_case(key_header) { &self.keys } else { &self.tags })
    }

    /// An address without its secrets.
    pub(super) fn url(&self, url: &str) -> String {
        let mut hidden: Vec<(usize, usize, &str)> = Vec::new();
        let inside = |part: &str| part.as_ptr() as usize - url.as_ptr() as usize;
        let parts = secret_parameters(url).into_iter().chain(user(url).map(|user| ("userinfo", user)));
        for (name, value) in parts {
            let known =
                self.secrets.iter().find(|(_, _, there, known)| there == name && known == value.as_bytes());
            if let Some((variable, ..)) = known {
                hidden.push((inside(value), value.len(), variable));
            }
        }
        hidden.sort_unstable();
        let (mut word, mut at) = (String::new(), 0);
        for (from, length, variable) in hidden {
            word += &format!("{}\"${variable}\"", self.word(&url.as_bytes()[at..from]));
            at = from + length;
        }
        if at < url.len() {
            word += &self.word(&url.as_bytes()[at..]);
        }
        word
    }
}

/// Query parameters that are secret, with their values as they stand in the address.
fn secret_parameters(url: &str) -> Vec<(&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, value)| is_secret(name) && !value.is_empty()).collect()
}

fn user(url: &str) -> Option<&str> {
    let rest = url.split_once("://")?.1;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    authority.rsplit_once('@').map(|(user, _)| user)
}

/// A word in which each of these is its variable.
fn replaced(text: &[u8], names: &[(Vec<u8>, String)]) -> String {
    let (mut word, mut literal, mut at) = (String::new(), 0, 0);
    while at < text.len() {
        let rest = &text[at..];
        let found = names.iter().find(|(name, _)| rest.starts_with(name));
        let Some((name, variable)) = found else {
            at += 1;
            continue;
        };
        if literal < at {
            word += &quote(&text[literal..at]);
        }
        word += &format!("\"${variable}\"");
        at += name.len();
        literal = at;
    }
    if literal < at || word.is_empty() {
        word += &quote(&text[literal..at]);
    }
    word
}

/// The part of a key that makes it this key and no other: its longest run of plain characters.
fn core(key: &[u8]) -> &[u8] {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let runs = key.split(|byte| !is_plain(byte));
    // Of runs as long as each other the first.
    let longest = runs.fold(&key[..0], |best, run| if run.len() > best.len() { run } else { best });
    &longest[..longest.len().min(FRESH_MAX)]
}

/// An expression for text of this shape that is new: as long, and with the same marks in it.
fn fresh(core: &[u8]) -> String {
    let text = String::from_utf8_lossy(core);
    let pieces: Vec<&str> = text.split_inclusive(['-', '_']).collect();
    let random = |piece: &str| {
        let body = piece.trim_end_matches(['-', '_']);
        let case = if body.bytes().all(|byte| byte.is_ascii_digit()) {
            " | tr a-f 0-5"
        } else if body.bytes().any(|byte| byte.is_ascii_uppercase()) {
            " | tr a-f A-F"
        } else {
            ""
        };
        format!("$(fresh {}{case}){}", body.len(), &piece[body.len()..])
    };
    let is_long = |piece: &str| piece.trim_end_matches(['-', '_']).len() >= PIECE_MIN;
    if !pieces.iter().any(|piece| is_long(piece)) {
        return format!("$(fresh {})", text.len());
    }
    pieces.iter().map(|piece| if is_long(piece) { random(piece) } else { (*piece).to_owned() }).collect()
}

/// Tags as runs make them: `t-`, the seed, `-`, a number, both hexadecimal, and nothing that goes on behind it.
fn tags_in(text: &[u8]) -> Vec<String> {
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| memchr::memmem::find(rest, b"t-")) {
        let start = at + found;
        at = start + 2;
        let begins = start == 0 || !text[start - 1].is_ascii_alphanumeric();
        let run = |from: usize, is: fn(&u8) -> bool| text[from..].iter().take_while(|byte| is(byte)).count();
        let is_hex: fn(&u8) -> bool = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let seed = run(at, is_hex);
        let dash = at + seed;
        if !begins || seed == 0 || text.get(dash) != Some(&b'-') {
            continue;
        }
        let end = dash + 1 + run(dash + 1, is_hex);
        if end > dash + 1 && !text.get(end).is_some_and(u8::is_ascii_alphanumeric) {
            at = end;
            tags.push(String::from_utf8_lossy(&text[start..at]).into_owned());
        }
    }
    tags
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::report::samples;
    use crate::verify::scenario::How;

    /// What bash makes of a word.
    fn said(word: &str) -> Vec<u8> {
        let script = format!("printf %s {word}");
        std::process::Command::new("bash").args(["-c", &script]).output().unwrap().stdout
    }

    #[test]
    fn bash_reads_a_word_as_it_was_meant() {
        for text in [
            &b""[..],
            b"plain",
            b"it's $HOME `id` \\ \"x\" !",
            b"a\n\r\x1b\x7fb",
            b"\xff\xfe'\xc3\xa9",
            "é✓".as_bytes(),
        ] {
            assert_eq!(said(&quote(text)), text, "{}", quote(text));
        }
        let hostile = samples::HOSTILE.replace('\0', "");
        assert_eq!(said(&quote(samples::HOSTILE.as_bytes())), hostile.as_bytes());
    }

    #[test]
    fn tags_and_keys_become_variables_wherever_they_stand() {
        let one = samples::payment("http://h/p/t-4f-1?x=t-4f-12", "t-4f-1", "k-4f9c2d11-7");
        let two = samples::payment("http://h/p", "t-4f-2", "\"k-4f9c2d11-7\"");
        let calls = [samples::call("a", &one, How::Plain), samples::call("b", &two, How::Plain)];
        let names = Names::of(calls.iter(), &["t-4f-1"], "idempotency-key");
        assert_eq!(names.url(&one.url), "'http://h/p/'\"$TAG_1\"'?x='\"$TAG_2\"");
        assert_eq!(names.word(&two.body), "'{\"amount\":2000,\"reference\":\"'\"$TAG_3\"'\"}'");
        let header = |value: &[u8]| names.header("Idempotency-Key", value, "idempotency-key");
        assert_eq!(header(b"k-4f9c2d11-7"), "'Idempotency-Key: '\"$KEY_1\"");
        assert_eq!(header(b"\"k-4f9c2d11-7\""), "'Idempotency-Key: \"'\"$KEY_1\"'\"'");
        assert!(names.made.contains(&"KEY_1=k-$(fresh 8)-7".to_owned()), "{:?}", names.made);
        assert_eq!(names.variable("t-4f-1"), Some("TAG_1"));
    }

    #[test]
    fn a_new_key_has_the_shape_of_the_old_one() {
        for (key, made) in [
            ("550e8400-e29b-41d4-a716-446655440000", "$(fresh 8)-e29b-41d4-a716-$(fresh 12 | tr a-f 0-5)"),
            ("1234567890", "$(fresh 10 | tr a-f 0-5)"),
            ("ABCDEF12", "$(fresh 8 | tr a-f A-F)"),
            ("k-1-2", "$(fresh 5)"),
        ] {
            assert_eq!(fresh(key.as_bytes()), made);
        }
        assert_eq!(core(b"\"abcdef\" x").len(), 6);
        assert_eq!(core(&[b'a'; 255]).len(), FRESH_MAX);
    }

    #[test]
    fn a_tag_is_taken_whole_or_not_at_all() {
        let tags = |text: &str| tags_in(text.as_bytes());
        assert_eq!(tags("a t-4f-00ab12cd34ef, t-4f-12-refund"), ["t-4f-00ab12cd34ef", "t-4f-12"]);
        assert!(tags("t-4f-12xyz t-zz-1 cat-4f-1 t-4f-").is_empty());
    }

    #[test]
    fn a_variable_has_a_name_that_a_shell_takes() {
        let request = samples::payment("http://h/p?2fa-token=abc", "t-1-1", "k");
        let calls = [samples::call("a", &request, How::Plain)];
        let names = Names::of(calls.iter(), &[], "idempotency-key");
        assert!(names.needed().any(|(variable, _)| variable == "SECRET_2FA_TOKEN"));
    }

    #[test]
    fn secrets_are_asked_for_and_not_written() {
        let url = format!("http://me:{0}@h/p?token={0}&a=1", samples::SECRET);
        let request = samples::payment(&url, "t-1-1", "k");
        let other = request.clone().instead("Authorization", "Bearer other");
        let calls = [samples::call("a", &request, How::Plain), samples::call("b", &other, How::Plain)];
        let names = Names::of(calls.iter(), &[], "idempotency-key");
        let needed: Vec<_> = names.needed().map(|(variable, _)| variable).collect();
        assert_eq!(needed, ["AUTHORIZATION", "TOKEN", "USERINFO", "AUTHORIZATION_2"]);
        assert_eq!(names.url(&url), "'http://'\"$USERINFO\"'@h/p?token='\"$TOKEN\"'&a=1'");
        let (name, value) = &other.headers.iter().find(|(name, _)| name == "Authorization").unwrap();
        assert_eq!(names.header(name, value, "k"), "'Authorization: '\"$AUTHORIZATION_2\"");
    }
}
