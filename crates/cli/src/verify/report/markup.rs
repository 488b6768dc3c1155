//! Text for HTML, SVG and XML in which nothing foreign can become markup.
//!
//! Markup is taken only from the program's own text (`&'static str`); whatever was made while it ran goes
//! through the escape.

/// A piece of a document.
#[derive(Debug, Default)]
pub(super) struct Markup(String);

impl Markup {
    /// Markup that stands in the program.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Anything else, fit for content and for quoted attributes.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(letter),
                // XML 1.0 has no way to write these; their pictures say which they were.
                '\0'..='\x1f' => self.0.push(picture_of(letter)),
                '\x7f' => self.0.push('\u{2421}'),
                '\u{80}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => self.0.push('\u{fffd}'),
                _ if turns_text(letter) => self.0.push('\u{fffd}'),
                _ => self.0.push(letter),
            }
        }
        self
    }

    /// A coordinate, to a tenth.
    pub(super) fn number(&mut self, number: f64) -> &mut Self {
        let text = format!("{number:.1}");
        self.0.push_str(text.strip_suffix(".0").unwrap_or(&text));
        self
    }

    pub(super) fn append(&mut self, other: &Markup) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

fn picture_of(control: char) -> char {
    char::from_u32(0x2400 + u32::from(control)).unwrap_or('\u{fffd}')
}

/// Letters that change the direction of what follows: a report could be made to say another thing.
pub(super) fn turns_text(letter: char) -> bool {
    matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_text() {
        let mut page = Markup::default();
        page.raw("<b title=\"").text("\"' onload=x").raw("\">").text("</b>&\x1b\0\u{9b}\u{202e}").raw("</b>");
        let text = page.into_string();
        assert_eq!(text, "<b title=\"&quot;&#39; onload=x\">&lt;/b&gt;&amp;␛␀\u{fffd}\u{fffd}</b>");
    }
}
