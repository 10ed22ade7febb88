//! Finds names of tests and files in documents that do not exist any more.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders with source.
const SOURCE: [&str; 3] = ["crates", "proof", "bench"];

/// The names of tests in `docs/testing.md` and `docs/guarantees.md` without a function.
pub(crate) fn missing_tests(root: &Path) -> Result<Vec<String>, String> {
    let mut functions = BTreeSet::new();
    for folder in SOURCE {
        for file in below(&root.join(folder), "rs")? {
            let text = read(&file)?;
            let after = text.split("fn ").skip(1);
            functions.extend(after.map(|rest| word(rest).to_owned()));
        }
    }
    let mut missing = Vec::new();
    for document in ["docs/testing.md", "docs/guarantees.md"] {
        let text = read(&root.join(document))?;
        let tests = quoted(&text).filter(|name| is_test(name) && !functions.contains(*name));
        missing.extend(tests.map(|name| format!("{document}: {name}")));
    }
    Ok(missing)
}

/// The paths of source in `docs` and `ARCHITECTURE.md` without a file.
pub(crate) fn missing_paths(root: &Path) -> Result<Vec<String>, String> {
    let mut documents = below(&root.join("docs"), "md")?;
    documents.push(root.join("ARCHITECTURE.md"));
    let mut missing = Vec::new();
    for document in documents {
        let text = read(&document)?;
        let absent = quoted(&text).filter(|path| is_path(path) && !root.join(path).exists());
        missing.extend(absent.map(|path| format!("{}: {path}", document.display())));
    }
    Ok(missing)
}

/// The text between backquotes, outside blocks of code.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    let prose = text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    prose.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Whether this is the name of a test: such names are sentences.
fn is_test(name: &str) -> bool {
    name.matches('_').count() >= 3 && word(name).len() == name.len()
}

fn is_path(text: &str) -> bool {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    SOURCE.iter().any(|folder| text.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
        && text.chars().all(is_of_path)
}

/// The name that a text begins with.
fn word(text: &str) -> &str {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.split(|c| !is_of_name(c)).next().unwrap_or_default()
}

/// All files with this extension in a folder and its subfolders.
pub(crate) fn below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
            let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
