//! Text of others, written so that it commands no terminal and begins no line.

use std::borrow::Cow;

/// Text in which each character that moves a cursor, begins a line or turns the direction of writing is an escape
/// sequence of Rust.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_command) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_command(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Control characters, the separators of lines and paragraphs, and the characters with the property `Bidi_Control`
/// (<https://www.unicode.org/reports/tr9/#Bidi_Controls>), which let a text look like another one.
fn is_command(c: char) -> bool {
    let is_bidi =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_bidi || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_terminal_are_escaped() {
        assert_eq!(plain("a\u{1b}[2J\n\u{202e}b"), "a\\u{1b}[2J\\n\\u{202e}b");
        for harmless in ["", "größe", "中文", "नमस्ते", "👩\u{200d}🚀", "\"quoted\" \\"] {
            assert!(matches!(plain(harmless), Cow::Borrowed(text) if text == harmless));
        }
    }
}
