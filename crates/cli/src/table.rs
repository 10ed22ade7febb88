//! Tables for people.

use std::io::{self, Write};

use serde_json::Value;

use duewheel_api::terminal;

/// Prints a line for each count that is not 0.
pub(super) fn print_counts(out: &mut dyn Write, counts: &[(u64, &str)]) -> io::Result<()> {
    counts.iter().filter(|(n, _)| *n > 0).try_for_each(|(n, what)| writeln!(out, "{n} {what}"))
}

/// Prints rows under a head, each column as wide as its widest cell.
pub(super) fn print(out: &mut dyn Write, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(&widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(&mut head.iter().copied())?;
    for row in rows {
        line(&mut row.iter().map(String::as_str))?;
    }
    Ok(())
}

/// The title of a column, and the text of a row in it.
pub type Column<'a> = (&'a str, &'a dyn Fn(&Value) -> String);

/// Prints rows that are members of an answer.
///
/// # Errors
/// The output is closed.
pub fn print_rows<'a>(
    out: &mut dyn Write,
    rows: impl IntoIterator<Item = &'a Value>,
    columns: &[Column<'_>],
) -> io::Result<()> {
    let head: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let row = |row: &'a Value| columns.iter().map(|(_, text)| text(row)).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(row).collect();
    print(out, &head, &rows)
}

/// The text of a member, for [`print_rows`].
pub fn member(name: &str) -> impl Fn(&Value) -> String {
    move |row| cell(row, name)
}

/// Prints a line for each of these members that an answer has.
pub(super) fn print_members(
    out: &mut dyn Write,
    width: usize,
    answer: &Value,
    names: &[&str],
) -> io::Result<()> {
    let mut present = names.iter().filter(|name| !answer[**name].is_null());
    present.try_for_each(|name| writeln!(out, "{name:<width$}{}", cell(answer, name)))
}

/// The elements of a list in an answer.
pub(super) fn elements<'a>(answer: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    answer[name].as_array().into_iter().flatten()
}

/// The texts of a list.
pub(super) fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// A member of an answer as text for people; `-` when it is missing.
pub(super) fn cell(object: &Value, name: &str) -> String {
    match object.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => plain(text),
        Some(other) => other.to_string(),
    }
}

/// The beginning of a body, on one line, for a list.
pub fn body_cell(message: &Value) -> String {
    body(message, 40)
}

/// The beginning of a body, on one line.
pub(super) fn body(message: &Value, most: usize) -> String {
    let text = match (message.get("body"), message.get("body_base64")) {
        (Some(Value::String(text)), _) => plain(text),
        (_, Some(Value::String(text))) => format!("base64:{text}"),
        _ => String::new(),
    };
    if text.chars().count() <= most {
        return text;
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// `1 message`, `2 messages`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `1 message was`, `2 messages were`.
pub(super) fn were(count: u64, noun: &str) -> String {
    format!("{} {}", counted(count, noun), if count == 1 { "was" } else { "were" })
}

/// `1 message is`, `2 messages are`.
pub(super) fn are(count: u64, noun: &str) -> String {
    format!("{} {}", counted(count, noun), if count == 1 { "is" } else { "are" })
}

/// A number of an answer with its noun.
pub(super) fn cell_counted(object: &Value, name: &str, noun: &str) -> String {
    object[name]
        .as_u64()
        .map_or_else(|| format!("{} {noun}s", cell(object, name)), |count| counted(count, noun))
}

/// A rate of an answer, as [`per_second`] shows it.
pub(super) fn rate(object: &Value, name: &str) -> String {
    object[name].as_f64().map_or_else(|| cell(object, name), per_second)
}

/// A number a second in the unit in which people read it: `1.2/s`, `0.3/min`.
pub(super) fn per_second(per_second: f64) -> String {
    let (mut number, mut unit) = (per_second, "s");
    for (longer, of) in [("min", 60.0), ("h", 60.0)] {
        // Below this it would be shown as 0.
        if number < 0.095 {
            (number, unit) = (number * of, longer);
        }
    }
    match () {
        () if per_second == 0.0 => "0".to_owned(),
        () if number < 9.95 => format!("{}/{unit}", format!("{number:.1}").trim_end_matches(".0")),
        () => format!("{number:.0}/{unit}"),
    }
}

/// Text of others as a cell.
pub(super) fn plain(text: &str) -> String {
    terminal::plain(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shown_in_readable_units() {
        for (per_second, shown) in [
            (0.0, "0"),
            (1.234, "1.2/s"),
            (2.0, "2/s"),
            (0.1, "0.1/s"),
            (0.09, "5.4/min"),
            (0.0033, "0.2/min"),
            (0.001, "3.6/h"),
            (9.97, "10/s"),
            (12_345.6, "12346/s"),
        ] {
            assert_eq!(rate(&serde_json::json!({ "acked": per_second }), "acked"), shown);
        }
        assert_eq!(rate(&serde_json::json!({}), "acked"), "-");
    }

    #[test]
    fn table_columns_align_and_escape_controls() {
        let mut out = Vec::new();
        let rows = vec![vec!["1".into(), plain("a\u{1b}[2Jü")], vec!["1000".into(), "-".into()]];
        print(&mut out, &["ID", "KEY"], &rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "ID    KEY\n1     a\\u{1b}[2Jü\n1000  -\n");
        let message = serde_json::json!({"body": "abcdefgh"});
        assert_eq!(body(&message, 4), "abc…");
        assert_eq!(body(&message, 8), "abcdefgh");
    }
}
