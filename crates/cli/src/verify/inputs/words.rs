//! Words of a shell command: quotes, escapes, continued lines, variables. It runs nothing.

use std::iter::Peekable;
use std::str::Chars;

/// The words of one simple command. What follows a pipe or a redirection only touches its output, and is
/// left out.
pub(super) fn split(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Vec<String>, String> {
    if text.lines().any(|line| line.trim_end().ends_with('^')) && text.contains("^\"") {
        return Err("this was copied for the Windows command prompt; copy it as cURL (bash)".into());
    }
    Reader { rest: text.chars().peekable(), variable }.words()
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn words(&mut self) -> Result<Vec<String>, String> {
        let mut words = Vec::new();
        // `None` between words: an empty pair of quotes is a word, too.
        let mut word: Option<String> = None;
        while let Some(next) = self.rest.next() {
            match next {
                '\n' | '\r' if words.is_empty() && word.is_none() => {}
                '\n' => {
                    words.extend(word.take());
                    self.nothing_more()?;
                    break;
                }
                space if space.is_whitespace() => words.extend(word.take()),
                '#' if word.is_none() => while self.rest.next_if(|next| *next != '\n').is_some() {},
                '|' | '>' => {
                    words.extend(word.take());
                    return Ok(words);
                }
                ';' | '&' => {
                    words.extend(word.take());
                    self.nothing_more().map_err(|_| {
                        format!(
                            "an unquoted `{next}` ends a shell command; put the URL in quotes, and give \
                             one command"
                        )
                    })?;
                    break;
                }
                '`' | '<' | '(' | ')' => return Err(substitution(next)),
                '\'' => self.single(word.get_or_insert_default())?,
                '"' => self.double(word.get_or_insert_default())?,
                '$' => self.dollar(word.get_or_insert_default(), false)?,
                '\\' => match self.rest.next() {
                    Some('\r') => drop(self.rest.next_if_eq(&'\n')),
                    Some('\n') | None => {}
                    Some(plain) => word.get_or_insert_default().push(plain),
                },
                plain => word.get_or_insert_default().push(plain),
            }
        }
        words.extend(word);
        Ok(words)
    }

    fn nothing_more(&mut self) -> Result<(), String> {
        loop {
            match self.rest.next() {
                None => return Ok(()),
                Some('#') => while self.rest.next_if(|next| *next != '\n').is_some() {},
                Some(space) if space.is_whitespace() => {}
                Some(_) => {
                    return Err(
                        "there is a second line after the curl command; end lines that go on with a \
                                backslash, and give one command"
                            .into(),
                    );
                }
            }
        }
    }

    fn single(&mut self, word: &mut String) -> Result<(), String> {
        loop {
            match self.rest.next().ok_or_else(unclosed)? {
                '\'' => return Ok(()),
                plain => word.push(plain),
            }
        }
    }

    fn double(&mut self, word: &mut String) -> Result<(), String> {
        loop {
            match self.rest.next().ok_or_else(unclosed)? {
                '"' => return Ok(()),
                '`' => return Err(substitution('`')),
                '$' => self.dollar(word, true)?,
                '\\' => match self.rest.next().ok_or_else(unclosed)? {
                    '\n' => {}
                    escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                    other => word.extend(['\\', other]),
                },
                plain => word.push(plain),
            }
        }
    }

    /// After a `$`: a variable, or a quote in which escapes mean characters.
    fn dollar(&mut self, word: &mut String, quoted: bool) -> Result<(), String> {
        match self.rest.peek() {
            Some('\'') if !quoted => {
                self.rest.next();
                self.ansi(word)
            }
            Some('(') => Err(substitution('(')),
            Some('{') => {
                self.rest.next();
                let mut name = String::new();
                while let Some(next) = self.rest.next_if(|next| *next != '}') {
                    name.push(next);
                }
                self.rest.next().ok_or_else(unclosed)?;
                self.variable(&name, word)
            }
            Some(first) if first.is_ascii_alphabetic() || *first == '_' => {
                let mut name = String::new();
                while let Some(next) = self.rest.next_if(|next| next.is_ascii_alphanumeric() || *next == '_')
                {
                    name.push(next);
                }
                self.variable(&name, word)
            }
            _ => {
                word.push('$');
                Ok(())
            }
        }
    }

    fn variable(&self, name: &str, word: &mut String) -> Result<(), String> {
        match (self.variable)(name) {
            Some(value) => word.push_str(&value),
            None => return Err(format!("the command uses ${name}, which is not set in the environment")),
        }
        Ok(())
    }

    /// `$'…'`, as browsers write bodies. Escaped bytes can be pieces of one character.
    fn ansi(&mut self, word: &mut String) -> Result<(), String> {
        let mut bytes = Vec::new();
        let put = |bytes: &mut Vec<u8>, one: char| bytes.extend(one.encode_utf8(&mut [0; 4]).bytes());
        loop {
            match self.rest.next().ok_or_else(unclosed)? {
                '\'' => break,
                '\\' => match self.rest.next().ok_or_else(unclosed)? {
                    'n' => bytes.push(b'\n'),
                    'r' => bytes.push(b'\r'),
                    't' => bytes.push(b'\t'),
                    'a' => bytes.push(7),
                    'b' => bytes.push(8),
                    'f' => bytes.push(12),
                    'v' => bytes.push(11),
                    'e' | 'E' => bytes.push(27),
                    'x' => bytes.push(u8::try_from(self.digits(16, 2)?).map_err(|_| unclosed())?),
                    'u' => put(&mut bytes, self.character(4)?),
                    'U' => put(&mut bytes, self.character(8)?),
                    octal @ '0'..='7' => {
                        let mut value = octal.to_digit(8).unwrap_or(0);
                        for _ in 0..2 {
                            let Some(more) = self.rest.peek().and_then(|next| next.to_digit(8)) else {
                                break;
                            };
                            self.rest.next();
                            value = value * 8 + more;
                        }
                        bytes.push((value & 0xff) as u8);
                    }
                    escaped @ ('\\' | '\'' | '"' | '?') => put(&mut bytes, escaped),
                    other => {
                        bytes.push(b'\\');
                        put(&mut bytes, other);
                    }
                },
                plain => put(&mut bytes, plain),
            }
        }
        let text = String::from_utf8(bytes);
        word.push_str(&text.map_err(|_| "a quote has bytes that are no text; give the body as a file")?);
        Ok(())
    }

    fn digits(&mut self, radix: u32, most: usize) -> Result<u32, String> {
        let mut text = String::new();
        while text.len() < most
            && let Some(digit) = self.rest.next_if(|next| next.is_digit(radix))
        {
            text.push(digit);
        }
        u32::from_str_radix(&text, radix).map_err(|_| "an escape in a quote has no digits".to_owned())
    }

    /// `\uXXXX`; browsers write characters beyond four digits as two of them.
    fn character(&mut self, most: usize) -> Result<char, String> {
        let wrong = || "an escape in a quote names no character".to_owned();
        let first = self.digits(16, most)?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or_else(wrong);
        }
        if self.rest.next() != Some('\\') || self.rest.next() != Some('u') {
            return Err(wrong());
        }
        let second = self.digits(16, most)?;
        let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400).ok_or_else(wrong)?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + low).ok_or_else(wrong)
    }
}

fn unclosed() -> String {
    "a quote is opened and never closed".into()
}

fn substitution(sign: char) -> String {
    format!("an unquoted `{sign}` would run a command or read a file in a shell; write its value out")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        split(text, &|name| (name == "TOKEN").then(|| "s3cret".to_owned())).unwrap()
    }

    #[test]
    fn quotes_escapes_and_continued_lines_are_read_as_a_shell_does() {
        assert_eq!(words("a 'b c'd \"e\\\"f\" g\\ h"), ["a", "b cd", "e\"f", "g h"]);
        assert_eq!(words("a \\\n  b \\\r\n c"), ["a", "b", "c"]);
        assert_eq!(words("\n\n a '' \"\" # said\n"), ["a", "", ""]);
        assert_eq!(words(r#"a "x\y $5 $" '$TOKEN \n'"#), ["a", r"x\y $5 $", r"$TOKEN \n"]);
        assert_eq!(words("a \"x\\\ny\""), ["a", "xy"]);
    }

    #[test]
    fn escapes_in_dollar_quotes_are_characters() {
        assert_eq!(words(r"$'\x41\102\u00e9\'\n\\'"), ["AB\u{e9}'\n\\"]);
        assert_eq!(words(r"$'\ud83d\ude00\U0001F600\xf0\x9f\x98\x80'"), ["😀😀😀"]);
        for bad in [r"$'\xff'", r"$'\ud83d'", r"$'\u'", "$'open"] {
            assert!(split(bad, &|_| None).is_err(), "{bad}");
        }
    }

    #[test]
    fn variables_come_from_the_environment_or_are_named() {
        assert_eq!(words("-H \"A: Bearer $TOKEN\" ${TOKEN}x"), ["-H", "A: Bearer s3cret", "s3cretx"]);
        assert!(split("$NOBODY", &|_| None).unwrap_err().contains("$NOBODY"));
    }

    #[test]
    fn what_a_shell_would_run_is_refused_and_what_reads_the_output_left_out() {
        assert_eq!(words("curl x | jq ."), ["curl", "x"]);
        assert_eq!(words("curl x > out"), ["curl", "x"]);
        assert_eq!(words("curl x;\n"), ["curl", "x"]);
        for bad in
            ["curl `id`", "curl $(id)", "curl \"$(id)\"", "curl h/?a=1&b=2", "curl a\ncurl b", "curl 'a"]
        {
            assert!(split(bad, &|_| None).is_err(), "{bad}");
        }
        assert!(split("curl ^\"http://h/^\" ^\n -H ^\"a: b^\"", &|_| None).unwrap_err().contains("bash"));
    }
}
