//! Measures the structure of the product's source: import loops, arrows that point upwards, type names that come twice,
//! and the lengths of functions and files.
//!
//! ```text
//! cargo run -p duewheel-house            prints the table and every loop
//! cargo run -p duewheel-house -- --names prints the type names that more than one file defines, too
//! cargo test -p duewheel-house           fails when something has become worse than `limits.rs` allows
//! ```

mod arrows;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod hashes;
mod lengths;
mod limits;
mod names;
#[cfg(test)]
mod prose;
#[cfg(test)]
mod source;

use std::path::Path;
use std::process::ExitCode;

use crate::source::House;

fn main() -> ExitCode {
    let with_names = std::env::args().skip(1).any(|word| word == "--names");
    let house = match House::read(&root()) {
        Ok(house) => house,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", report(&house, with_names));
    ExitCode::SUCCESS
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn report(house: &House, with_names: bool) -> String {
    let mut lines = vec![format!(
        "{:<12} {:>5} {:>7} {:>6} {:>18} {:>22} {:>6} {:>8}",
        "crate", "files", "lines", "funcs", "func p50/p99/max", "file p50/p90/max", "loops", "largest"
    )];
    let mut all_functions = Vec::new();
    let mut all_files = Vec::new();
    for part in &house.crates {
        let functions = lengths::functions(part);
        let files = lengths::files(part);
        let loops = arrows::loops(part);
        lines.push(format!(
            "{:<12} {:>5} {:>7} {:>6} {:>18} {:>22} {:>6} {:>8}",
            part.name,
            part.files.len(),
            files.iter().sum::<usize>(),
            functions.len(),
            lengths::say(&functions, &[50, 99, 100]),
            lengths::say(&files, &[50, 90, 100]),
            loops.len(),
            loops.iter().map(Vec::len).max().unwrap_or(0),
        ));
        all_functions.extend(functions);
        all_files.extend(files);
    }
    all_functions.sort_unstable();
    all_files.sort_unstable();
    lines.push(format!(
        "all: functions {} (p50/p90/p99/max {}), files p50/p90/max {}",
        all_functions.len(),
        lengths::say(&all_functions, &[50, 90, 99, 100]),
        lengths::say(&all_files, &[50, 90, 100]),
    ));
    for part in &house.crates {
        for files in arrows::loops(part) {
            lines.push(format!("loop of {} in {}: {}", files.len(), part.name, files.join(" ")));
        }
    }
    for arrow in arrows::upward(house) {
        lines.push(format!("upward: {arrow}"));
    }
    let twice = names::twice(house);
    let types = names::count(house);
    lines.push(format!("type names: {types}; defined in more than one file: {}", twice.len()));
    if with_names {
        lines.extend(twice.into_iter().map(|(name, files)| format!("  {name}: {}", files.join(" "))));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a structure that gets worse. A change that makes a figure smaller lowers it in `limits.rs`, too.
    #[test]
    fn nothing_has_become_worse() {
        let house = House::read(&root()).expect("the source");
        let mut worse = Vec::new();
        let mut within = |what: String, is: usize, most: usize| {
            if is > most {
                worse.push(format!("{what}: {is}, and {most} are allowed"));
            }
        };
        for part in &house.crates {
            let loops = arrows::loops(part);
            let looped = loops.iter().map(Vec::len).sum();
            within(format!("files in import loops of {}", part.name), looped, limits::LOOPS);
            let longest = lengths::functions(part).last().copied().unwrap_or(0);
            within(format!("lines of the longest function of {}", part.name), longest, limits::FUNCTION);
            let largest = lengths::files(part).last().copied().unwrap_or(0);
            within(format!("lines of the largest file of {}", part.name), largest, limits::FILE);
        }
        within("upward arrows".into(), arrows::upward(&house).len(), 0);
        within("type names in more than one file".into(), names::twice(&house).len(), limits::NAMES_TWICE);
        assert!(worse.is_empty(), "{}\n{}", worse.join("\n"), report(&house, false));
    }

    /// Guards against answers and records that depend on the order of a hash table.
    #[test]
    fn pure_crates_avoid_hash_order() {
        let ordered = hashes::ordered(&House::read(&root()).expect("the source"));
        assert!(ordered.is_empty(), "{}", ordered.join("\n"));
    }

    /// Guards against comments and texts that only their author understands.
    #[test]
    fn comments_and_texts_are_plain_english() {
        let unclear = prose::unclear(&root()).expect("the source");
        assert!(unclear.is_empty(), "{}", unclear.join("\n"));
    }

    /// Guards against documents that go on naming a test or a file after it got another name.
    #[test]
    fn documents_name_existing_tests_and_files() {
        let mut missing = documents::missing_tests(&root()).expect("documents and source");
        missing.extend(documents::missing_paths(&root()).expect("documents"));
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }
}
