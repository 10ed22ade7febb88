//! Transcripts: what is said to both servers, in files. What they answer is not written down; it must be the same.
//!
//! | line | meaning |
//! |---|---|
//! | `A: stats-job {1}` | connection A sends the line and CRLF and reads one reply |
//! | `A> put 0 0 60 1\r\nx\r\n` | sends exactly these bytes |
//! | `A>> stats\r\n` | the same, each byte by itself |
//! | `A<` `A<3` | reads one reply, three replies |
//! | `A<-` | nothing comes for a short while |
//! | `A<end` | the server closes |
//! | `A<known NAME` | a known difference, see `compare.rs` |
//! | `!close A` `!halfclose A` | closes, and waits until both have seen it; says that nothing more will be sent |
//! | `!until TUBE FIELD VALUE` | waits until `stats-tube` says so |
//! | `!wait MS` `!drain` | real time passes; SIGUSR1 |
//!
//! Escapes: `\r` `\n` `\t` `\0` `\s` (a space) `\\` `\xFF` and `\(a*200)` for 200 times `a`. `{1}` is the first id
//! seen.

use std::time::Duration;

use super::compare;
use super::pair::{Pair, SILENT};

/// So many differences of a file are told.
const TOLD: usize = 10;

/// Runs one file; the error names it and the lines. It goes on behind a difference as long as replies come.
pub(crate) fn run(pair: &mut Pair, file: &str, text: &str) -> Result<(), String> {
    let mut differ = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Err(what) = step(pair, line) {
            let over = what.contains(SILENT) || differ.len() + 1 == TOLD;
            differ.push(format!("{file}:{}: {line}\n{what}", at + 1));
            if over {
                return Err(differ.join("\n"));
            }
        }
    }
    if let Err(what) = pair.finish() {
        differ.push(format!("{file}: at the end\n{what}"));
    }
    if differ.is_empty() { Ok(()) } else { Err(differ.join("\n")) }
}

fn step(pair: &mut Pair, line: &str) -> Result<(), String> {
    if let Some(line) = line.strip_prefix('!') {
        return directive(pair, line);
    }
    let end = line.find(|c: char| !c.is_ascii_alphanumeric()).ok_or("not a line of a transcript")?;
    let (name, rest) = line.split_at(end);
    if let Some(text) = rest.strip_prefix(": ").or_else(|| (rest == ":").then_some("")) {
        let mut bytes = unescape(text)?;
        bytes.extend_from_slice(b"\r\n");
        pair.ask(name, &bytes).map(drop)
    } else if let Some(text) = rest.strip_prefix(">> ") {
        pair.send_in_bytes(name, &unescape(text)?)
    } else if let Some(text) = rest.strip_prefix("> ") {
        pair.send(name, &unescape(text)?)
    } else if let Some(what) = rest.strip_prefix('<') {
        expect(pair, name, what)
    } else {
        Err("not a line of a transcript".to_owned())
    }
}

fn expect(pair: &mut Pair, name: &str, what: &str) -> Result<(), String> {
    match what.split_once(' ').unwrap_or((what, "")) {
        ("", "") => pair.receive(name).map(drop),
        ("-", "") => pair.nothing(name),
        ("end", "") => pair.end(name),
        ("known", known) => {
            let known = compare::known(known).ok_or("no such known difference")?;
            pair.receive_known(name, known)
        }
        (times, "") => {
            let times: usize = times.parse().map_err(|_| "how many replies?".to_owned())?;
            // All of them, so that what follows is not mixed up with them.
            let mut differ = Vec::new();
            for nth in 1..=times {
                if let Err(what) = pair.receive(name) {
                    differ.push(format!("  reply {nth}:\n{what}"));
                    if what.contains(SILENT) {
                        break;
                    }
                }
            }
            if differ.is_empty() { Ok(()) } else { Err(differ.join("\n")) }
        }
        _ => Err("read what?".to_owned()),
    }
}

fn directive(pair: &mut Pair, line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["close", name] => pair.close(name),
        ["halfclose", name] => {
            pair.half_close(name);
            Ok(())
        }
        ["until", tube, field, value] => pair.until(Some(tube), field, value),
        ["wait", ms] => {
            let ms = ms.parse().map_err(|_| "how many milliseconds?".to_owned())?;
            std::thread::sleep(Duration::from_millis(ms));
            Ok(())
        }
        ["drain"] => pair.drain(),
        _ => Err("no such directive".to_owned()),
    }
}

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        if *first != b'\\' {
            out.push(*first);
            rest = more;
            continue;
        }
        let (escape, more) = more.split_first().ok_or("a \\ at the end")?;
        rest = more;
        match escape {
            b'r' => out.push(b'\r'),
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b's' => out.push(b' '),
            b'0' => out.push(0),
            b'\\' => out.push(b'\\'),
            b'x' => {
                let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok()).unwrap_or_default();
                out.push(u8::from_str_radix(digits, 16).map_err(|_| "\\x without two digits".to_owned())?);
                rest = &rest[2..];
            }
            b'(' => {
                let end = rest.iter().position(|b| *b == b')').ok_or("\\( without )")?;
                let inner = std::str::from_utf8(&rest[..end]).map_err(|e| e.to_string())?;
                let (what, times) = inner.rsplit_once('*').ok_or("\\(…*N)")?;
                let times: usize = times.parse().map_err(|_| "\\(…*N)".to_owned())?;
                out.extend_from_slice(unescape(what)?.repeat(times).as_slice());
                rest = &rest[end + 1..];
            }
            other => return Err(format!("what is \\{}?", char::from(*other))),
        }
    }
    Ok(out)
}

#[test]
fn escapes_are_bytes() {
    assert_eq!(unescape(r"a\r\n\0\s\\\xff\(ab*2)c\(\r\n*1)"), Ok(b"a\r\n\0 \\\xffababc\r\n".to_vec()));
    for wrong in [r"\", r"\q", r"\x1", r"\(a", r"\(a)", r"\(a*b)"] {
        assert!(unescape(wrong).is_err(), "{wrong}");
    }
}
