//! When two replies count as the same.
//!
//! Byte for byte, but for what this file takes out; each rule has its reason beside it.

use std::collections::BTreeMap;

use super::pair::CLOSED;
use super::server::{Asked, Kind};
use super::wire::show;

/// The ids one server has given out, in the order in which they were first seen.
///
/// beanstalkd uses up an id for a put that it refuses afterwards (EXPECTED_CRLF, DRAINING); ours need not. So ids are
/// compared by that order, and `{1}` in a transcript stands for the first.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    seen: Vec<u64>,
}

impl Ids {
    fn number(&mut self, id: u64) -> usize {
        let at = self.seen.iter().position(|seen| *seen == id).unwrap_or_else(|| {
            self.seen.push(id);
            self.seen.len() - 1
        });
        at + 1
    }

    pub(crate) fn forget(&mut self) {
        self.seen.clear();
    }

    /// Puts this server's ids in the place of `{1}`.
    pub(crate) fn fill_in(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|b| *b == b'{') {
            let digits = rest[at + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
            let end = at + 1 + digits;
            if digits == 0 || rest.get(end) != Some(&b'}') {
                out.extend_from_slice(&rest[..=at]);
                rest = &rest[at + 1..];
                continue;
            }
            let number = std::str::from_utf8(&rest[at + 1..end]).ok().and_then(|s| s.parse::<usize>().ok());
            let id = number.and_then(|n| self.seen.get(n.checked_sub(1)?));
            let id = id.ok_or_else(|| format!("no id {} yet", show(&rest[at..=end])))?;
            out.extend_from_slice(&rest[..at]);
            out.extend_from_slice(id.to_string().as_bytes());
            rest = &rest[end + 1..];
        }
        out.extend_from_slice(rest);
        Ok(out)
    }
}

/// A reply in the form in which it is compared and shown.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Normal {
    pub(crate) lines: Vec<String>,
}

impl Normal {
    pub(crate) fn of(bytes: &[u8]) -> Normal {
        Normal { lines: vec![show(bytes)] }
    }

    pub(crate) fn is_same(&self, other: &Normal) -> bool {
        self.lines.len() == other.lines.len()
            && self.lines.iter().zip(&other.lines).all(|(one, another)| same_line(one, another))
    }
}

/// Fields that count whole seconds: the two servers are asked one after the other, and a second may end in between.
const SECONDS: [&str; 3] = ["age", "time-left", "pause-time-left"];

fn same_line(one: &str, another: &str) -> bool {
    let near = || {
        let ((key, one), (other, another)) = (one.split_once(": ")?, another.split_once(": ")?);
        let (one, another): (i64, i64) = (one.parse().ok()?, another.parse().ok()?);
        Some(key == other && SECONDS.contains(&key) && (one - another).abs() <= 1)
    };
    one == another || near().unwrap_or(false)
}

/// `asked` is what was last sent on the connection.
pub(crate) fn normal(kind: Kind, asked: &[u8], reply: &[u8], ids: &mut Ids, own: Asked) -> Normal {
    let end = reply.windows(2).position(|w| w == b"\r\n").unwrap_or(reply.len());
    let (line, rest) = (show(&reply[..end]), &reply[end..]);
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [word @ ("INSERTED" | "BURIED"), id] if rest == b"\r\n" => match id.parse() {
            Ok(id) => Normal { lines: vec![format!("{word} {{{}}}\\r\\n", ids.number(id))] },
            Err(_) => Normal::of(reply),
        },
        [word @ ("RESERVED" | "FOUND"), id, size] => match id.parse() {
            Ok(id) => {
                let body = show(rest);
                Normal { lines: vec![format!("{word} {{{}}} {size}{body}", ids.number(id))] }
            }
            Err(_) => Normal::of(reply),
        },
        // The size is right, or the end of the reply would not have been found here. Ids and versions differ in length.
        ["OK", _] if rest.ends_with(b"\n\r\n") => {
            let body = &rest[2..rest.len() - 3];
            let lines: Vec<String> = body.split(|b| *b == b'\n').map(show).collect();
            Normal { lines: document(kind, asked, lines, ids, own) }
        }
        _ => Normal::of(reply),
    }
}

/// The lines of a YAML answer.
fn document(kind: Kind, asked: &[u8], mut lines: Vec<String>, ids: &mut Ids, own: Asked) -> Vec<String> {
    let form = lines.get(1).and_then(|line| line.split_once(": ")).and_then(|(key, _)| form(key));
    let Some(form) = form else {
        // beanstalkd lists tubes by age; ours does not keep that order. Watch lists keep theirs.
        if asked == b"list-tubes\r\n" {
            lines[1..].sort();
        }
        return lines;
    };
    let mut out: Vec<String> = vec![lines[0].clone()];
    if kind == Kind::Ours {
        out.extend(form.violation(&lines).map(|what| format!("not 1.13's form: {what}")));
    }
    for line in &lines[1..] {
        let Some((key, value)) = line.split_once(": ") else {
            out.push(line.clone());
            continue;
        };
        // 1.12 does not quote most strings that 1.13 quotes. `violation` holds ours to 1.13.
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        let value = match (form.name, key) {
            ("stats-job", "id") => value.parse().map(|id| format!("{{{}}}", ids.number(id))).ok(),
            // The test's own questions, which differ in number.
            ("stats", "cmd-stats") => value.parse().map(|n: u64| (n - own.stats).to_string()).ok(),
            ("stats", "cmd-stats-tube") => value.parse().map(|n: u64| (n - own.stats_tube).to_string()).ok(),
            ("stats", key) => shape(key, value),
            _ => None,
        }
        .unwrap_or_else(|| value.to_owned());
        out.push(format!("{key}: {value}"));
    }
    out
}

/// What is about the process, the machine or the clock is compared by its shape alone.
fn shape(key: &str, value: &str) -> Option<String> {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let (fits, shape) = match key {
        "pid" | "uptime" => (digits(value), "a number"),
        key if key.starts_with("binlog-") => (digits(value), "a number"),
        "rusage-utime" | "rusage-stime" => {
            let parts = value.split_once('.');
            (parts.is_some_and(|(s, us)| digits(s) && digits(us) && us.len() == 6), "seconds.microseconds")
        }
        "id" => (value.len() == 16 && value.bytes().all(|b| b.is_ascii_hexdigit()), "16 hex digits"),
        "version" | "hostname" | "os" | "platform" => (!value.is_empty(), "a text"),
        _ => return None,
    };
    fits.then(|| format!("({shape})"))
}

/// Which fields an answer has, in which order: the formats of 1.13's `prot.c`.
struct Form {
    name: &'static str,
    fields: &'static [&'static str],
}

/// Those whose values 1.13 puts in quotes.
const QUOTED: [&str; 6] = ["version", "hostname", "os", "platform", "name", "tube"];

fn form(first: &str) -> Option<&'static Form> {
    [&STATS, &STATS_TUBE, &STATS_JOB].into_iter().find(|form| form.fields[0] == first)
}

impl Form {
    fn violation(&self, lines: &[String]) -> Option<String> {
        if lines[0] != "---" {
            return Some("does not begin with ---".to_owned());
        }
        let fields: Vec<(&str, &str)> = lines[1..].iter().filter_map(|line| line.split_once(": ")).collect();
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        if names != self.fields || fields.len() != lines.len() - 1 {
            return Some(format!("the fields are {names:?}"));
        }
        let wrong = fields.iter().find(|(name, value)| {
            let quoted = value.len() >= 2 && value.starts_with('"') && value.ends_with('"');
            quoted != QUOTED.contains(name)
        });
        wrong.map(|(name, value)| format!("quotes: {name}: {value}"))
    }
}

const STATS: Form = Form {
    name: "stats",
    fields: &[
        "current-jobs-urgent",
        "current-jobs-ready",
        "current-jobs-reserved",
        "current-jobs-delayed",
        "current-jobs-buried",
        "cmd-put",
        "cmd-peek",
        "cmd-peek-ready",
        "cmd-peek-delayed",
        "cmd-peek-buried",
        "cmd-reserve",
        "cmd-reserve-with-timeout",
        "cmd-delete",
        "cmd-release",
        "cmd-use",
        "cmd-watch",
        "cmd-ignore",
        "cmd-bury",
        "cmd-kick",
        "cmd-touch",
        "cmd-stats",
        "cmd-stats-job",
        "cmd-stats-tube",
        "cmd-list-tubes",
        "cmd-list-tube-used",
        "cmd-list-tubes-watched",
        "cmd-pause-tube",
        "job-timeouts",
        "total-jobs",
        "max-job-size",
        "current-tubes",
        "current-connections",
        "current-producers",
        "current-workers",
        "current-waiting",
        "total-connections",
        "pid",
        "version",
        "rusage-utime",
        "rusage-stime",
        "uptime",
        "binlog-oldest-index",
        "binlog-current-index",
        "binlog-records-migrated",
        "binlog-records-written",
        "binlog-max-size",
        "draining",
        "id",
        "hostname",
        "os",
        "platform",
    ],
};

const STATS_TUBE: Form = Form {
    name: "stats-tube",
    fields: &[
        "name",
        "current-jobs-urgent",
        "current-jobs-ready",
        "current-jobs-reserved",
        "current-jobs-delayed",
        "current-jobs-buried",
        "total-jobs",
        "current-using",
        "current-watching",
        "current-waiting",
        "cmd-delete",
        "cmd-pause-tube",
        "pause",
        "pause-time-left",
    ],
};

const STATS_JOB: Form = Form {
    name: "stats-job",
    fields: &[
        "id",
        "tube",
        "state",
        "pri",
        "age",
        "delay",
        "ttr",
        "time-left",
        "file",
        "reserves",
        "timeouts",
        "releases",
        "buries",
        "kicks",
    ],
};

/// A difference that is meant to be there. A transcript names it; each side must then answer as is said here.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) theirs: &'static [&'static str],
    pub(crate) ours: &'static [&'static str],
    pub(crate) reason: &'static str,
}

/// The list is repeated for users in docs/beanstalk.md.
pub(crate) const KNOWN: &[Known] = &[
    Known {
        name: "reserve-timeout-not-a-number",
        theirs: &["TIMED_OUT\\r\\n"],
        ours: &["BAD_FORMAT\\r\\n"],
        reason: "1.12 reads it with strtol and takes 0 when there is no number; 1.13 refuses",
    },
    Known {
        name: "reserve-timeout-negative-zero",
        theirs: &["TIMED_OUT\\r\\n"],
        ours: &["BAD_FORMAT\\r\\n"],
        reason: "strtol of 1.12 takes a sign, 1.13 does not",
    },
    Known {
        name: "reserve-timeout-too-large",
        theirs: &["TIMED_OUT\\r\\n"],
        ours: &["BAD_FORMAT\\r\\n"],
        reason: "1.12 cuts it to 32 bits; 1.13 refuses what is above 2^31-1",
    },
    Known {
        name: "reserve-timeout-without-end",
        theirs: &[],
        ours: &["BAD_FORMAT\\r\\n"],
        reason: "1.12 waits without an end for a number below 0; 1.13 refuses it",
    },
    Known {
        name: "reserve-timeout-beyond-int",
        theirs: &[],
        ours: &[],
        reason: "1.12 waits without an end for a number above 2^31-1, 1.13 refuses it; ours waits as long as was said",
    },
    Known {
        name: "one-waits-many-come-kicked-1",
        theirs: &["RESERVED {1} 1\\r\\na\\r\\n"],
        ours: &["RESERVED {2} 1\\r\\nb\\r\\n"],
        reason: "of jobs that become ready by one command, beanstalkd gives the waiting client the first, ours the most urgent",
    },
    Known {
        name: "one-waits-many-come-kicked-2",
        theirs: &["RESERVED {3} 1\\r\\na\\r\\n"],
        ours: &["RESERVED {4} 1\\r\\nb\\r\\n"],
        reason: "as one-waits-many-come-kicked-1",
    },
    Known {
        name: "one-waits-many-come-closed",
        theirs: &["RESERVED {5} 1\\r\\na\\r\\n"],
        ours: &["RESERVED {6} 1\\r\\nb\\r\\n"],
        reason: "as one-waits-many-come-kicked-1",
    },
    Known {
        name: "pause-outlives-its-tube",
        theirs: &["RESERVED {10} 1\\r\\ng\\r\\n"],
        ours: &["TIMED_OUT\\r\\n"],
        reason: "beanstalkd forgets the pause of a tube to which nothing refers any more; ours keeps it to its end",
    },
    Known {
        name: "line-of-225-bytes",
        theirs: &["BAD_FORMAT\\r\\n"],
        ours: &["BAD_FORMAT\\r\\n", "UNKNOWN_COMMAND\\r\\n"],
        reason: "beanstalkd drops 224 bytes with the CR among them, does not know the LF for an end and swallows the next line too",
    },
    Known {
        name: "lone-cr",
        theirs: &["BAD_FORMAT\\r\\n"],
        ours: &["UNKNOWN_COMMAND\\r\\n", "USING default\\r\\n", "BAD_FORMAT\\r\\n"],
        reason: "beanstalkd looks only at the first CR: a CR without LF makes it wait for 224 bytes and drop them",
    },
    Known {
        name: "first-line-unknown",
        theirs: &["UNKNOWN_COMMAND\\r\\n", "USING default\\r\\n"],
        ours: &["UNKNOWN_COMMAND\\r\\n", CLOSED],
        reason: "who begins so speaks another protocol, and a web page may have written what follows: ours carries out nothing of it",
    },
    Known {
        name: "first-line-too-long",
        theirs: &["BAD_FORMAT\\r\\n", "USING default\\r\\n"],
        ours: &["BAD_FORMAT\\r\\n", CLOSED],
        reason: "as first-line-unknown",
    },
];

pub(crate) fn known(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

/// The two replies below each other, only the lines that differ if there are many.
pub(crate) fn difference(theirs: &Normal, ours: &Normal) -> String {
    if theirs.lines.len() == 1 || ours.lines.len() == 1 {
        return format!("  theirs: {}\n  ours:   {}", theirs.lines.join("\\n"), ours.lines.join("\\n"));
    }
    let mut out = String::new();
    let lines = theirs.lines.len().max(ours.lines.len());
    for at in 0..lines {
        let (one, another) = (theirs.lines.get(at), ours.lines.get(at));
        if !one.zip(another).is_some_and(|(one, another)| same_line(one, another)) {
            let text = |line: Option<&String>| line.map_or("(no line)", String::as_str).to_owned();
            out.push_str(&format!("  theirs: {}\n  ours:   {}\n", text(one), text(another)));
        }
    }
    out.trim_end().to_owned()
}

/// So that a name is not taken twice.
#[test]
fn known_differences_have_name_and_reason() {
    let names: BTreeMap<_, _> = KNOWN.iter().map(|known| (known.name, known.reason)).collect();
    assert_eq!(names.len(), KNOWN.len());
    assert!(names.values().all(|reason| !reason.is_empty()));
}

#[test]
fn what_counts_as_the_same() {
    let own = Asked::default();
    let see = |kind, asked: &str, reply: &str| {
        normal(kind, asked.as_bytes(), reply.as_bytes(), &mut Ids::default(), own)
    };
    let same = |asked: &str, theirs: &str, ours: &str| {
        see(Kind::Theirs, asked, theirs).is_same(&see(Kind::Ours, asked, ours))
    };
    let tube = |name: &str, left: u32| {
        let zeros: String = STATS_TUBE.fields[1..13].iter().map(|field| format!("{field}: 0\n")).collect();
        let body = format!("---\nname: {name}\n{zeros}pause-time-left: {left}\n\r\n");
        format!("OK {}\r\n{body}", body.len() - 2)
    };
    let list = |names: &str| format!("OK {}\r\n---\n{names}\r\n", names.len() + 4);
    for (asked, theirs, ours, expected) in [
        ("", "INSERTED 7\r\n", "INSERTED 1234\r\n", true),
        ("", "INSERTED 7\r\n", "BURIED 7\r\n", false),
        ("", "INSERTED 7\r\n", "INSERTED x\r\n", false),
        ("", "FOUND 7 1\r\na\r\n", "FOUND 8 1\r\na\r\n", true),
        ("", "FOUND 7 1\r\na\r\n", "FOUND 8 1\r\nb\r\n", false),
        ("list-tubes\r\n", &list("- a\n- b\n"), &list("- b\n- a\n"), true),
        ("list-tubes-watched\r\n", &list("- a\n- b\n"), &list("- b\n- a\n"), false),
        ("", &tube("t", 5), &tube("\"t\"", 5), true),
        ("", &tube("t", 5), &tube("\"t\"", 4), true),
        ("", &tube("t", 5), &tube("\"t\"", 3), false),
        ("", &tube("t", 5), &tube("\"u\"", 5), false),
        // 1.12's form is theirs, not ours.
        ("", &tube("t", 5), &tube("t", 5), false),
        ("", &tube("t", 5), &tube("\"t\"", 5).replace("total-jobs", "all-jobs"), false),
    ] {
        assert_eq!(same(asked, theirs, ours), expected, "{theirs:?} {ours:?}");
    }
}
