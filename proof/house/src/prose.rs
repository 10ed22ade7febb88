//! Comments and texts of the product in plain English: phrases that say less than a plain sentence, and summaries that
//! do not stand alone.
//!
//! Only phrases are listed that have no good use in a comment, so a finding is never a matter of taste. `docs` and tests
//! are free of the rule: a test's story may quote anybody.

use std::fs;
use std::path::Path;

use crate::documents::below;

/// Words of talk, where a comment names its subject: clients, callers, nodes.
const PHRASES: [&str; 11] = [
    "behind everybody's back",
    "bug of ours",
    "by so much",
    "for so long a ",
    "is heard of",
    "nobody there any more",
    "somebody",
    "take part no more",
    "want of room",
    "what became of",
    "whoever",
];

/// Words that no text of an error, a log line or a help has either: a stranger does not know whom they mean.
const WORDS: [&str; 5] = ["at most so many", "everybody", "needed no more", "nobody", "takes part no more"];

/// Beginnings of summaries that refer to another line: rustdoc shows a summary alone.
const OPENINGS: [&str; 6] = ["As [`", "As above", "The same,", "The same;", "Those of them", "Whose"];

/// Beginnings of summaries with a word in place of the noun, which is in another line.
const PRONOUNS: [&str; 11] =
    ["It ", "Its ", "Like [`", "Of ", "See [`", "That ", "The same ", "Their ", "These ", "They ", "Those "];

/// The places with such a phrase or beginning, in the crates of the product.
pub(crate) fn unclear(root: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let openings = [&OPENINGS[..], &PRONOUNS].concat();
    for path in below(&root.join("crates"), "rs")? {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if name.contains("/tests") || name.contains("_tests") || !name.contains("/src/") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
        let unclear =
            unclear_in(&text, &openings).into_iter().chain(unclear_texts_in(&text)).chain(repeated_in(&text));
        found.extend(unclear.map(|(line, what)| format!("{name}:{line}: {what}")));
    }
    found.sort();
    Ok(found)
}

/// The places in one file, by the number of the line.
fn unclear_in(text: &str, openings: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_behind_doc = false;
    for (line, number) in text.lines().map(str::trim_start).zip(1..) {
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(comment) = doc.or_else(|| line.strip_prefix("//")).map(str::trim) else {
            is_behind_doc = false;
            continue;
        };
        let lower = comment.to_lowercase();
        let phrases = PHRASES.iter().filter(|phrase| lower.contains(**phrase));
        found.extend(phrases.map(|phrase| (number, format!("\"{phrase}\""))));
        if doc.is_some() && !is_behind_doc {
            let openings = openings.iter().filter(|opening| comment.starts_with(**opening));
            found.extend(
                openings.map(|opening| (number, format!("a summary that begins with \"{opening}\""))),
            );
        }
        is_behind_doc = doc.is_some();
    }
    found
}

/// The string literals of one file with such a phrase, by the number of the line. Those of tests at its end are free.
fn unclear_texts_in(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    for (line, number) in product.lines().zip(1..) {
        if line.trim_start().starts_with("//") {
            continue;
        }
        let line = line.replace("\\\"", "").to_lowercase();
        let literals: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        let phrases = PHRASES.iter().chain(&WORDS);
        let phrases = phrases.filter(|phrase| literals.iter().any(|literal| literal.contains(**phrase)));
        found.extend(phrases.map(|phrase| (number, format!("a text with \"{phrase}\""))));
    }
    found
}

/// Errors whose text repeats their source: printers of chains print it twice. `transparent` does not.
fn repeated_in(text: &str) -> impl Iterator<Item = (usize, String)> {
    let is_repeated = |(of, variant): &(&str, &str)| {
        let has_source = variant.contains("(#[from]") || variant.contains("(#[source]");
        has_source && of.trim_start().starts_with("#[error(") && of.contains("{0")
    };
    let pairs = text.lines().zip(text.lines().skip(1)).zip(1..);
    pairs
        .filter(move |(pair, _)| is_repeated(pair))
        .map(|(_, line)| (line, "an error whose text repeats its source".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_repeat_their_source_are_found() {
        let text = "#[error(\"{0}\")]\nA(#[from] E),\n#[error(transparent)]\nB(#[from] E),\n\
                    #[error(\"queue name {0}\")]\nC(E),\n#[error(\"no answer\")]\nD(#[source] E),\n";
        assert_eq!(repeated_in(text).map(|(line, _)| line).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn product_text_phrases_are_found() {
        let text = "fail(\"nobody owns it\");\nlet nobody = \"it has no owner\";\n// \"nobody\"\n\
                    log(\"a \\\"b\\\" of somebody\");\n#[cfg(test)]\nmod tests {\nassert!(x, \"nobody\");\n}\n";
        let found: Vec<usize> = unclear_texts_in(text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(found, [1, 4]);
    }

    #[test]
    fn unclear_phrases_and_summaries_are_found() {
        let text = "//! Whoever asks is served.\n\n/// As [`put`].\n/// As [`get`], in a second line.\nfn f() {}\n\
                    // It is refused for want of room.\nlet whoever = 1;\n/// Serves every client.\nfn g() {}\n\
                    enum E {\n/// It is served.\nA,\n/// The client is served. It ends.\nB }\n";
        let found: Vec<usize> = unclear_in(text, &[&OPENINGS[..], &PRONOUNS].concat())
            .into_iter()
            .map(|(line, _)| line)
            .collect();
        assert_eq!(found, [1, 3, 6, 11]);
    }
}
