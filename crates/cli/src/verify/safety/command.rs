//! Commands of the user's as they may be shown: their passwords are theirs.

use super::{HIDDEN, is_secret};

/// Flags whose value is `user:password`.
const USER_FLAGS: [&str; 3] = ["-u", "--user", "--proxy-user"];
/// Programs with a short flag for a password, and the flag.
const SHORT_FLAGS: [(&str, &str); 5] =
    [("mysql", "-p"), ("mariadb", "-p"), ("sshpass", "-p"), ("redis-cli", "-a"), ("valkey-cli", "-a")];
const QUOTES: [char; 3] = ['\'', '"', '`'];

/// The command without what proves who somebody is: `PGPASSWORD=x`, `--password x`, `-u user:x`, `http://user:x@host`,
/// `Authorization: x`, `?token=x`, `"secret":"x"`. What the shell is told to look up, `$PW`, stays: it is no secret.
pub(crate) fn command_shown(command: &str) -> String {
    let mut hidden = found(command);
    hidden.sort_unstable();
    let (mut shown, mut at) = (String::new(), 0);
    for (from, to) in hidden {
        if to <= at {
            continue;
        }
        if from >= at {
            shown += &command[at..from];
            shown += HIDDEN;
        }
        at = to;
    }
    shown + &command[at..]
}

/// The secrets of a command, to take them out of what it prints.
pub(crate) fn command_secrets(command: &str) -> impl Iterator<Item = &str> {
    found(command).into_iter().map(|(from, to)| &command[from..to])
}

fn found(command: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut put = |(from, to): (usize, usize)| {
        let is_looked_up = command[from..to].starts_with('$');
        if from < to && !is_looked_up {
            found.push((from, to));
        }
    };
    for (at, mark) in command.match_indices(['=', ':']) {
        let before = &command[..at];
        let name = before.trim_end_matches(QUOTES).trim_end_matches('\\');
        let (start, is_json) = (name_start(name), name.len() < before.len());
        if !is_secret(&name[start..]) {
            continue;
        }
        let rest = &command[at + 1..];
        let from = at + 1 + (rest.len() - rest.trim_start_matches(' ').len());
        match mark {
            "=" => put(value(command, at + 1)),
            _ if is_json => put(value(command, from)),
            // A header goes on to the end of its quotes; before `//` stands the scheme of a URL.
            _ if !rest.starts_with("//") => put((from, until(command, from, &['\'', '"', '\n']))),
            _ => {}
        }
    }
    for (at, word) in words(command) {
        let next = at + word.len();
        let after = next + (command[next..].len() - command[next..].trim_start_matches([' ', '\t']).len());
        if word.starts_with("--") && is_secret(word) && !word.contains('=') && after > next {
            put(value(command, after));
        }
        let flag =
            |flag: &&str| word.strip_prefix(*flag).filter(|rest| !flag.starts_with("--") || rest.is_empty());
        if let Some(glued) = USER_FLAGS.iter().find_map(flag) {
            let (from, to) = value(command, if glued.is_empty() { after } else { next - glued.len() });
            if let Some(colon) = command[from..to].find(':') {
                put((from + colon + 1, to));
            }
        }
        for (program, short) in SHORT_FLAGS {
            if command.contains(program)
                && let Some(glued) = word.strip_prefix(short)
            {
                put(value(command, if glued.is_empty() { after } else { next - glued.len() }));
            }
        }
    }
    for (at, mark) in command.match_indices("://") {
        let from = at + mark.len();
        let to = until(command, from, &['/', '?', '#', ' ', '\t', '\n', '\'', '"', '`']);
        if let Some(host) = command[from..to].rfind('@') {
            put((from, from + host));
        }
    }
    found
}

fn name_start(text: &str) -> usize {
    text.trim_end_matches(|one: char| one.is_ascii_alphanumeric() || matches!(one, '_' | '-' | '.')).len()
}

fn until(text: &str, from: usize, ends: &[char]) -> usize {
    text[from..].find(ends).map_or(text.len(), |end| from + end)
}

/// A value that begins here: all that is within its quotes, or else up to the end of the word.
fn value(text: &str, from: usize) -> (usize, usize) {
    let rest = &text[from..];
    let bare = rest.trim_start_matches('\\');
    match bare.chars().next().filter(|first| QUOTES.contains(first)) {
        Some(quote) => {
            let from = from + rest.len() - bare.len() + 1;
            let to = until(text, from, &[quote]);
            (from, from + text[from..to].trim_end_matches('\\').len())
        }
        None => (from, until(text, from, &[' ', '\t', '\n', ';', '&', '|', ')', '\'', '"', '`', ',', '}'])),
    }
}

/// Words and where they begin; quotes are marks between them.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let ends = [' ', '\t', '\n', ';', '&', '|', '(', ')', '\'', '"', '`'];
    let offset = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split(ends).filter(|word| !word.is_empty()).map(move |word| (offset(word), word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_commands_are_hidden_and_the_rest_stays() {
        for (command, shown) in [
            ("PGPASSWORD=pw psql -c 'x'", "PGPASSWORD=(hidden) psql -c 'x'"),
            ("sh -c 'PGPASSWORD=\"p w\" psql'; true", "sh -c 'PGPASSWORD=\"(hidden)\" psql'; true"),
            ("curl -u me:pw http://h/", "curl -u me:(hidden) http://h/"),
            ("curl -ume:pw -s h", "curl -ume:(hidden) -s h"),
            ("curl --user 'me:p w' h", "curl --user 'me:(hidden)' h"),
            ("psql postgres://me:p@w@h/db?a=1", "psql postgres://(hidden)@h/db?a=1"),
            ("tool --password pw --name x", "tool --password (hidden) --name x"),
            ("tool --api-key=pw x", "tool --api-key=(hidden) x"),
            ("curl -H 'Authorization: Bearer a b' h", "curl -H 'Authorization: (hidden)' h"),
            ("curl -H \"X-Token: t\" h", "curl -H \"X-Token: (hidden)\" h"),
            ("curl 'http://h/?token=t&a=1'", "curl 'http://h/?token=(hidden)&a=1'"),
            ("curl -d '{\"secret\": \"s\",\"a\":1}' h", "curl -d '{\"secret\": \"(hidden)\",\"a\":1}' h"),
            ("mysql -ppw -u root db", "mysql -p(hidden) -u root db"),
            ("redis-cli -a pw shutdown", "redis-cli -a (hidden) shutdown"),
        ] {
            assert_eq!(command_shown(command), shown);
        }
    }

    #[test]
    fn what_holds_no_secret_is_shown_as_it_is() {
        for command in [
            "kill -9 $(cat gateway.pid)",
            "PGPASSWORD=$PW psql",
            "curl -u \"me:$PW\" h",
            "grep -c \"$SEMEL_TAG\" receipts.jsonl || true",
            "docker stop -t 0 db && design=1 tar -u x",
            "mkdir -p /tmp/a; until curl -sf localhost:8080/payments >/dev/null; do sleep 0.1; done",
            "",
            "é=ü: --password",
        ] {
            assert_eq!(command_shown(command), command);
        }
    }
}
