//! Errors of the system in the style of all others: in small letters, without numbers, and with advice.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// Prints a line on standard error, which may be gone.
pub(super) fn on_stderr(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// An error without the numbers and capitals of the system: `a: no such file` for `a: No such file (os error 2)`.
pub(super) fn plain_words(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once(" (os error ")
        && let Some((_, behind)) = behind.split_once(')')
    {
        let (named, words) = before.split_at(before.rfind(": ").map_or(0, |at| at + 2));
        out.push_str(named);
        let mut words = words.chars();
        out.extend(words.next().into_iter().flat_map(char::to_lowercase));
        out.push_str(words.as_str());
        rest = behind;
    }
    out + rest
}

/// Why a file cannot be read, or made, or a folder be used: `a/b: there is no folder a; make it first`.
#[must_use]
pub fn of_file(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let why = match (error.kind(), folder) {
        (io::ErrorKind::NotFound, Some(folder)) => {
            format!("there is no folder {}; make it first", folder.display())
        }
        (io::ErrorKind::NotFound, None) => "there is no such file or folder; is the name right?".to_owned(),
        (io::ErrorKind::IsADirectory, _) => "is a folder; name a file".to_owned(),
        (io::ErrorKind::NotADirectory, _) if path.is_file() => "is a file; name a folder".to_owned(),
        (io::ErrorKind::NotADirectory, _) => "lies in a file, not in a folder".to_owned(),
        _ => error.to_string(),
    };
    format!("{}: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_lose_numbers_and_capitals() {
        for (text, plain) in [
            ("FILE x: Is a directory (os error 21)", "FILE x: is a directory"),
            ("No such file (os error 2)", "no such file"),
            ("a: B (os error 1); b: C (os error 22), too", "a: b; b: c, too"),
            ("a: B (os error 1", "a: B (os error 1"),
            ("nothing: Of it", "nothing: Of it"),
        ] {
            assert_eq!(plain_words(text), plain);
        }
    }

    #[test]
    fn file_errors_say_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let said = |name: &str| {
            let path = dir.path().join(name);
            of_file(&path, &std::fs::read(&path).unwrap_err())
        };
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(said("none/x").ends_with("none; make it first"), "{}", said("none/x"));
        assert!(said("none").ends_with("is the name right?"), "{}", said("none"));
        assert!(said("").ends_with("is a folder; name a file"), "{}", said(""));
        assert!(said("file/x").ends_with("not in a folder"), "{}", said("file/x"));
    }
}
