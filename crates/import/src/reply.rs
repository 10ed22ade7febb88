//! Replies of a beanstalkd, parsed strictly: a source may be broken or hostile.

use std::fmt;

use crate::error::ImportError;

/// A source that does not answer as a beanstalkd does, or not at all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadReply(pub(crate) String);

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<BadReply> for ImportError {
    fn from(broken: BadReply) -> Self {
        ImportError::failed(broken)
    }
}

/// Numbers of jobs by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TubeCounts {
    pub(crate) ready: u64,
    pub(crate) reserved: u64,
    pub(crate) delayed: u64,
    pub(crate) buried: u64,
}

impl TubeCounts {
    pub(crate) fn total(self) -> u64 {
        [self.reserved, self.delayed, self.buried].iter().fold(self.ready, |sum, n| sum.saturating_add(*n))
    }

    pub(crate) fn plus(self, other: TubeCounts) -> TubeCounts {
        TubeCounts {
            ready: self.ready.saturating_add(other.ready),
            reserved: self.reserved.saturating_add(other.reserved),
            delayed: self.delayed.saturating_add(other.delayed),
            buried: self.buried.saturating_add(other.buried),
        }
    }
}

/// The fields of the answer to `stats` that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceStats {
    pub(crate) counts: TubeCounts,
    /// The number of jobs put since the process began. Ids may be greater, because they survive a restart with a
    /// binlog.
    pub(crate) total_jobs: u64,
    /// The random id of each start of the process; older versions do not report it.
    pub(crate) instance: Option<String>,
    pub(crate) version: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Ready,
    Delayed,
    Reserved,
    Buried,
}

/// The answer to `stats-job`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobStats {
    pub(crate) id: u64,
    pub(crate) tube: String,
    pub(crate) state: JobState,
    pub(crate) priority: u32,
    pub(crate) ttr: u64,
    /// Whole seconds, rounded down, until the job is ready.
    pub(crate) time_left: u64,
}

/// A dictionary as beanstalkd writes it: a line for each member, scalars only.
struct Dictionary<'a>(&'a str);

impl<'a> Dictionary<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, BadReply> {
        let text = text(bytes)?;
        Ok(Dictionary(text.strip_prefix("---\n").ok_or_else(|| strange("a dictionary", bytes))?))
    }

    fn find(&self, name: &str) -> Option<&'a str> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
        // Newer versions quote names.
        Some(value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value))
    }

    fn text(&self, name: &str) -> Result<&'a str, BadReply> {
        self.find(name).ok_or_else(|| BadReply(format!("the source's answer has no `{name}`")))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, BadReply> {
        let text = self.text(name)?;
        text.parse().map_err(|_| strange(name, text.as_bytes()))
    }

    fn counts(&self) -> Result<TubeCounts, BadReply> {
        Ok(TubeCounts {
            ready: self.number("current-jobs-ready")?,
            reserved: self.number("current-jobs-reserved")?,
            delayed: self.number("current-jobs-delayed")?,
            buried: self.number("current-jobs-buried")?,
        })
    }
}

pub(crate) fn stats(bytes: &[u8]) -> Result<SourceStats, BadReply> {
    let all = Dictionary::parse(bytes)?;
    Ok(SourceStats {
        counts: all.counts()?,
        total_jobs: all.number("total-jobs")?,
        instance: all.find("id").filter(|id| is_name(id)).map(str::to_owned),
        version: all.text("version")?.chars().filter(|c| !c.is_control()).take(40).collect(),
    })
}

pub(crate) fn stats_tube(bytes: &[u8]) -> Result<TubeCounts, BadReply> {
    Dictionary::parse(bytes)?.counts()
}

pub(crate) fn stats_job(bytes: &[u8]) -> Result<JobStats, BadReply> {
    let all = Dictionary::parse(bytes)?;
    let state = match all.text("state")? {
        "ready" => JobState::Ready,
        "delayed" => JobState::Delayed,
        "reserved" => JobState::Reserved,
        "buried" => JobState::Buried,
        other => return Err(strange("a state", other.as_bytes())),
    };
    // A delay that has just run out may be reported as a negative number.
    let time_left: i64 = all.number("time-left")?;
    Ok(JobStats {
        id: all.number("id")?,
        tube: tube(all.text("tube")?)?,
        state,
        priority: all.number("pri")?,
        ttr: all.number("ttr")?,
        time_left: u64::try_from(time_left).unwrap_or(0),
    })
}

pub(crate) fn tubes(bytes: &[u8]) -> Result<Vec<String>, BadReply> {
    let list = text(bytes)?.strip_prefix("---\n").ok_or_else(|| strange("a list of tubes", bytes))?;
    list.lines()
        .map(|line| tube(line.strip_prefix("- ").ok_or_else(|| strange("a tube", line.as_bytes()))?))
        .collect()
}

/// The numbers of a line such as `FOUND 7 12`.
pub(crate) fn numbers<const N: usize>(line: &str, word: &str) -> Option<[u64; N]> {
    let rest = line.strip_prefix(word)?;
    let mut numbers = [0; N];
    let mut words = rest.strip_prefix(' ')?.split(' ');
    for number in &mut numbers {
        let digits = words.next()?;
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = digits.parse().ok()?;
    }
    words.next().is_none().then_some(numbers)
}

/// The error for an answer that the protocol does not allow.
pub(crate) fn strange(expected: &str, got: &[u8]) -> BadReply {
    let got = String::from_utf8_lossy(&got[..got.len().min(80)]).escape_default().to_string();
    BadReply(format!("this is no beanstalkd, or a broken one: expected {expected}, got `{got}`"))
}

fn text(bytes: &[u8]) -> Result<&str, BadReply> {
    std::str::from_utf8(bytes).map_err(|_| strange("text", bytes))
}

fn tube(name: &str) -> Result<String, BadReply> {
    if is_name(name) { Ok(name.to_owned()) } else { Err(strange("a tube's name", name.as_bytes())) }
}

/// Whether a tube may have this name.
pub fn is_name(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "---\nid: 7\ntube: a/b\nstate: delayed\npri: 4294967295\nage: 3\ndelay: 9\nttr: 4294967295\n\
                       time-left: 5\nfile: 0\nreserves: 0\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0\n";

    #[test]
    fn job_stats_of_any_version_parse() {
        let job = JobStats {
            id: 7,
            tube: "a/b".into(),
            state: JobState::Delayed,
            priority: u32::MAX,
            ttr: 4_294_967_295,
            time_left: 5,
        };
        assert_eq!(stats_job(JOB.as_bytes()), Ok(job.clone()));
        assert_eq!(stats_job(JOB.replace("a/b", "\"a/b\"").as_bytes()), Ok(job.clone()));
        assert_eq!(
            stats_job(JOB.replace("left: 5", "left: -1").as_bytes()),
            Ok(JobStats { time_left: 0, ..job })
        );
    }

    #[test]
    fn malformed_source_replies_are_refused() {
        for (from, to) in [
            ("---\n", ""),
            ("delayed", "asleep"),
            ("id: 7\n", ""),
            ("pri: 4294967295", "pri: 4294967296"),
            ("ttr: 4", "ttr: -4"),
            ("a/b", "a b"),
            ("a/b", "-a"),
            ("a/b", ""),
        ] {
            assert!(stats_job(JOB.replacen(from, to, 1).as_bytes()).is_err(), "{from} {to}");
        }
        assert!(stats_job(b"---\n\xff").is_err());
        assert!(tubes(b"---\n- a\n- b c\n").is_err());
        assert!(tubes(b"- a\n").is_err());
        let long = format!("---\n- {}\n", "t".repeat(201));
        assert!(tubes(long.as_bytes()).is_err());
        let said = strange("x", b"\x1b[2J").to_string();
        assert!(!said.contains('\x1b'), "{said}");
    }

    #[test]
    fn tubes_are_listed() {
        assert_eq!(tubes(b"---\n- default\n- a;b\n"), Ok(vec!["default".into(), "a;b".into()]));
        assert_eq!(tubes(b"---\n"), Ok(vec![]));
    }

    #[test]
    fn server_and_tube_counts_parse() {
        let text = "---\ncurrent-jobs-urgent: 0\ncurrent-jobs-ready: 1\ncurrent-jobs-reserved: 2\n\
                    current-jobs-delayed: 3\ncurrent-jobs-buried: 4\ntotal-jobs: 99\nversion: \"1.13\"\n\
                    draining: false\nid: 6d4f\n";
        let counts = TubeCounts { ready: 1, reserved: 2, delayed: 3, buried: 4 };
        let expected =
            SourceStats { counts, total_jobs: 99, instance: Some("6d4f".into()), version: "1.13".into() };
        assert_eq!(stats(text.as_bytes()), Ok(expected));
        assert_eq!(stats_tube(text.as_bytes()), Ok(counts));
        assert_eq!(counts.total(), 10);
        let most = TubeCounts { ready: u64::MAX, ..counts };
        assert_eq!(most.plus(most).total(), u64::MAX);
    }

    #[test]
    fn numbers_of_a_line() {
        assert_eq!(numbers("FOUND 7 12", "FOUND"), Some([7, 12]));
        for line in [
            "FOUND 7",
            "FOUND 7 12 1",
            "FOUND  7 12",
            "FOUND +7 12",
            "FOUND 7 x",
            "FOUNDED 7 12",
            "NOT_FOUND",
        ] {
            assert_eq!(numbers::<2>(line, "FOUND"), None, "{line}");
        }
        assert_eq!(numbers::<1>("OK 18446744073709551616", "OK"), None);
    }
}
