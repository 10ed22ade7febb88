//! The connection to a beanstalkd whose jobs are imported, and its replies, parsed strictly: a source may be broken or
//! hostile.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, slice};

use duewheel_core::QueueName;

use super::failure::CommandFailure;

/// The largest number of commands that are sent before their replies are read. So many commands fit in the buffers of
/// the kernel, so the source never waits for this side.
pub(super) const IN_FLIGHT: usize = 500;
/// The largest body that is kept. In base64 it fits in a request of duewheel.
pub(super) const MAX_BODY: u64 = 11 * 1024 * 1024;
const CONNECT: Duration = Duration::from_secs(5);
/// The time limit of a reply. No command that is sent here makes a beanstalkd wait.
const REPLY: Duration = Duration::from_secs(30);
/// The longest line of a reply; the longest real one names a tube.
const MAX_LINE: u64 = 512;
/// The largest dictionary or list: some 80,000 tubes with the longest names.
const MAX_DATA: u64 = 16 * 1024 * 1024;

trait SourceStream: Read + Write + fmt::Debug {}
impl<T: Read + Write + fmt::Debug> SourceStream for T {}

/// A connection to a beanstalkd.
#[derive(Debug)]
pub(super) struct BeanstalkSource {
    address: String,
    stream: BufReader<Box<dyn SourceStream>>,
}

/// The reply to a `peek` or a `reserve-job`.
#[derive(Debug)]
pub(super) struct SourceJob {
    pub(super) id: u64,
    pub(super) is_reserved: bool,
    pub(super) size: u64,
    /// Empty if the size is above [`MAX_BODY`].
    pub(super) body: Vec<u8>,
}

impl BeanstalkSource {
    /// Connects to `HOST:PORT` or `unix:PATH`.
    pub(super) fn connect(address: &str) -> Result<BeanstalkSource, CommandFailure> {
        let stream = open(address).map_err(|error| {
            CommandFailure::Unreachable(format!("cannot reach a beanstalkd at {address}: {error}"))
        })?;
        Ok(BeanstalkSource {
            address: address.to_owned(),
            stream: BufReader::with_capacity(256 * 1024, stream),
        })
    }

    /// Sends commands, [`IN_FLIGHT`] at most. Each has a reply that must be read.
    pub(super) fn send(&mut self, commands: &str) -> Result<(), CommandFailure> {
        let written = self.stream.get_mut().write_all(commands.as_bytes());
        written.map_err(|error| self.lost(&error))
    }

    pub(super) fn stats(&mut self) -> Result<SourceStats, CommandFailure> {
        self.send("stats\r\n")?;
        SourceStats::parse(&self.data()?.unwrap_or_default())
    }

    /// The number of jobs in a tube.
    pub(super) fn jobs_in(&mut self, tube: &str) -> Result<u64, CommandFailure> {
        self.send(&format!("stats-tube {tube}\r\n"))?;
        self.data()?.map_or(Ok(0), |text| jobs(&text))
    }

    pub(super) fn tubes(&mut self) -> Result<Vec<String>, CommandFailure> {
        self.send("list-tubes\r\n")?;
        tubes(&self.data()?.unwrap_or_default())
    }

    /// The states of at most [`IN_FLIGHT`] jobs; `None` for those that do not exist.
    pub(super) fn stats_jobs(&mut self, ids: &[u64]) -> Result<Vec<Option<JobStats>>, CommandFailure> {
        self.send(&ids.iter().map(|id| format!("stats-job {id}\r\n")).collect::<String>())?;
        let read = |id: &u64| {
            let Some(text) = self.data()? else { return Ok(None) };
            let job = JobStats::parse(&text)?;
            if job.id == *id { Ok(Some(job)) } else { Err(strange(&format!("job {id}"), text.as_bytes())) }
        };
        ids.iter().map(read).collect()
    }

    pub(super) fn stats_job(&mut self, id: u64) -> Result<Option<JobStats>, CommandFailure> {
        Ok(self.stats_jobs(slice::from_ref(&id))?.pop().flatten())
    }

    pub(super) fn use_tube(&mut self, tube: &str) -> Result<(), CommandFailure> {
        self.send(&format!("use {tube}\r\n"))?;
        self.is_done(&format!("USING {tube}")).map(drop)
    }

    /// Puts a job with the longest delay. Returns its id, or `None` if the source accepts no job.
    pub(super) fn put_asleep(&mut self, body: &str) -> Result<Option<u64>, CommandFailure> {
        self.send(&format!("put 4294967295 {} 60 {}\r\n{body}\r\n", u32::MAX, body.len()))?;
        let line = self.line()?;
        match (numbers(&line, "INSERTED"), &*line) {
            (Some([id]), _) => Ok(Some(id)),
            (None, "DRAINING" | "JOB_TOO_BIG" | "OUT_OF_MEMORY") => Ok(None),
            (None, _) => Err(strange("INSERTED", line.as_bytes())),
        }
    }

    /// The first job of a state in the used tube: `peek-ready`, `peek-delayed` or `peek-buried`.
    pub(super) fn head(&mut self, command: &str) -> Result<Option<SourceJob>, CommandFailure> {
        self.send(&format!("{command}\r\n"))?;
        self.job()
    }

    /// Whether a job can be reserved by its id, which beanstalkd supports since 1.12.
    pub(super) fn knows_reserve_job(&mut self) -> Result<bool, CommandFailure> {
        // No job has this id. Older versions answer the command like a misspelt `reserve`.
        self.send("reserve-job 0\r\n")?;
        match &*self.line()? {
            "NOT_FOUND" => Ok(true),
            "UNKNOWN_COMMAND" | "BAD_FORMAT" => Ok(false),
            other => Err(strange("NOT_FOUND", other.as_bytes())),
        }
    }

    /// The reply to a `peek` or a `reserve-job`.
    pub(super) fn job(&mut self) -> Result<Option<SourceJob>, CommandFailure> {
        let line = self.line()?;
        if line == "NOT_FOUND" {
            return Ok(None);
        }
        let reserved = numbers(&line, "RESERVED");
        let found = reserved.or_else(|| numbers(&line, "FOUND"));
        let [id, size] = found.ok_or_else(|| strange("FOUND", line.as_bytes()))?;
        Ok(Some(SourceJob { id, is_reserved: reserved.is_some(), size, body: self.chunk(size, MAX_BODY)? }))
    }

    /// Whether the next reply is this one. Otherwise it must be `NOT_FOUND`.
    pub(super) fn is_done(&mut self, reply: &str) -> Result<bool, CommandFailure> {
        let line = self.line()?;
        if line == reply || line == "NOT_FOUND" {
            return Ok(line == reply);
        }
        Err(strange(reply, line.as_bytes()))
    }

    pub(super) fn delete(&mut self, id: u64) -> Result<bool, CommandFailure> {
        self.send(&format!("delete {id}\r\n"))?;
        self.is_done("DELETED")
    }

    fn line(&mut self) -> Result<String, CommandFailure> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line);
        match read {
            Err(error) => return Err(self.lost(&error)),
            Ok(0) => return Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
        }
        let text = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
        text.map(str::to_owned).ok_or_else(|| strange("a line", &line))
    }

    /// The text behind an `OK`; `None` for `NOT_FOUND`.
    fn data(&mut self) -> Result<Option<String>, CommandFailure> {
        let line = self.line()?;
        match numbers(&line, "OK") {
            None if line == "NOT_FOUND" => Ok(None),
            Some([size]) if size <= MAX_DATA => {
                let text = String::from_utf8(self.chunk(size, MAX_DATA)?);
                text.map(Some).map_err(|error| strange("text", error.as_bytes()))
            }
            Some(_) | None => Err(strange("OK", line.as_bytes())),
        }
    }

    /// Reads bytes and the end of the line behind them, and returns them if they are at most `most`.
    fn chunk(&mut self, size: u64, most: u64) -> Result<Vec<u8>, CommandFailure> {
        // The buffer grows as the bytes arrive: a size that is only claimed costs nothing.
        let (mut bytes, mut end) = (Vec::new(), [0; 2]);
        let mut rest = (&mut self.stream).take(size);
        let read = match size <= most {
            true => rest.read_to_end(&mut bytes).map(|read| read as u64),
            false => io::copy(&mut rest, &mut io::sink()),
        };
        let read = read.and_then(|read| match read == size {
            true => self.stream.read_exact(&mut end),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        read.map_err(|error| self.lost(&error))?;
        if end == *b"\r\n" { Ok(bytes) } else { Err(strange("the end of a line", &end)) }
    }

    fn lost(&self, error: &io::Error) -> CommandFailure {
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the source has closed the connection".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("the source has not answered for {} s", REPLY.as_secs())
            }
            _ => error.to_string(),
        };
        CommandFailure::Failed(format!("{}: {what}", self.address))
    }
}

fn open(address: &str) -> io::Result<Box<dyn SourceStream>> {
    if let Some(path) = address.strip_prefix("unix:") {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(REPLY))?;
        stream.set_write_timeout(Some(REPLY))?;
        return Ok(Box::new(stream));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(REPLY))?;
                stream.set_write_timeout(Some(REPLY))?;
                return Ok(Box::new(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The fields of the reply to `stats` that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceStats {
    /// The number of jobs now.
    pub(crate) jobs: u64,
    /// The number of jobs put since the process began. Ids may be greater, because they survive a restart with a
    /// binlog.
    pub(crate) total_jobs: u64,
    pub(crate) max_job_size: u64,
    /// The random id of each start of the process; versions before 1.10 have none.
    pub(crate) instance: Option<String>,
}

impl SourceStats {
    pub(crate) fn parse(text: &str) -> Result<SourceStats, CommandFailure> {
        Ok(SourceStats {
            jobs: jobs(text)?,
            total_jobs: number(text, "total-jobs")?,
            max_job_size: number(text, "max-job-size")?,
            instance: field(text, "id").ok().and_then(|id| tube(id).ok()),
        })
    }
}

/// The state of a job. Each is the index of its column in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Ready,
    Delayed,
    Buried,
    Reserved,
}

/// The reply to `stats-job`.
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

impl JobStats {
    pub(crate) fn parse(text: &str) -> Result<JobStats, CommandFailure> {
        let state = match field(text, "state")? {
            "ready" => JobState::Ready,
            "delayed" => JobState::Delayed,
            "reserved" => JobState::Reserved,
            "buried" => JobState::Buried,
            other => return Err(strange("a state", other.as_bytes())),
        };
        Ok(JobStats {
            id: number(text, "id")?,
            tube: tube(field(text, "tube")?)?,
            state,
            priority: number(text, "pri")?,
            ttr: number(text, "ttr")?,
            // A delay that has just run out may be reported as a negative number.
            time_left: u64::try_from(number::<i64>(text, "time-left")?).unwrap_or(0),
        })
    }
}

/// The names in a list of tubes.
pub(crate) fn tubes(text: &str) -> Result<Vec<String>, CommandFailure> {
    let list = text.strip_prefix("---\n").ok_or_else(|| strange("a list of tubes", text.as_bytes()))?;
    let name = |line: &str| tube(line.strip_prefix("- ").unwrap_or_default());
    list.lines().map(name).collect()
}

/// The number of jobs that the reply to `stats` or `stats-tube` counts.
pub(crate) fn jobs(text: &str) -> Result<u64, CommandFailure> {
    ["ready", "reserved", "delayed", "buried"].iter().try_fold(0, |sum: u64, state| {
        Ok(sum.saturating_add(number(text, &format!("current-jobs-{state}"))?))
    })
}

/// The numbers of a line such as `FOUND 7 12`.
pub(crate) fn numbers<const N: usize>(line: &str, word: &str) -> Option<[u64; N]> {
    let words = line.strip_prefix(word)?.strip_prefix(' ')?.split(' ');
    let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?;
    words.map(number).collect::<Option<Vec<u64>>>()?.try_into().ok()
}

/// A field of a dictionary as beanstalkd writes it: a line for each, scalars only.
fn field<'a>(text: &'a str, name: &str) -> Result<&'a str, CommandFailure> {
    let lines = text.strip_prefix("---\n").ok_or_else(|| strange("a dictionary", text.as_bytes()))?;
    let value = lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let value = value.ok_or_else(|| CommandFailure::Failed(format!("the source's reply has no `{name}`")))?;
    // Newer versions quote names.
    Ok(value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value))
}

fn number<T: FromStr>(text: &str, name: &str) -> Result<T, CommandFailure> {
    let value = field(text, name)?;
    value.parse().map_err(|_| strange(name, value.as_bytes()))
}

fn tube(name: &str) -> Result<String, CommandFailure> {
    match is_tube(name) {
        true => Ok(name.to_owned()),
        false => Err(strange("a tube's name", name.as_bytes())),
    }
}

/// Whether a tube may have this name.
pub(super) fn is_tube(name: &str) -> bool {
    QueueName::new(name).is_ok_and(|name| name.is_plain())
}

/// The error for a reply that the protocol does not allow.
fn strange(expected: &str, got: &[u8]) -> CommandFailure {
    let got = String::from_utf8_lossy(&got[..got.len().min(80)]).escape_default().to_string();
    let what = format!("this is no beanstalkd, or a broken one: expected {expected}, got `{got}`");
    CommandFailure::Failed(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener};
    use std::thread::JoinHandle;

    const JOB: &str = "---\nid: 7\ntube: a/b\nstate: delayed\npri: 4294967295\nage: 3\ndelay: 9\nttr: 4294967295\n\
                       time-left: 5\nfile: 0\nreserves: 0\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0\n";

    fn text(failure: CommandFailure) -> String {
        match failure {
            CommandFailure::Failed(what) | CommandFailure::Unreachable(what) => what,
            other => panic!("{other:?}"),
        }
    }

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
        assert_eq!(JobStats::parse(JOB).unwrap(), job);
        assert_eq!(JobStats::parse(&JOB.replace("a/b", "\"a/b\"")).unwrap(), job);
        let overdue = JobStats::parse(&JOB.replace("left: 5", "left: -1")).unwrap();
        assert_eq!(overdue, JobStats { time_left: 0, ..job });
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
            assert!(JobStats::parse(&JOB.replacen(from, to, 1)).is_err(), "{from} {to}");
        }
        assert!(tubes("---\n- a\n- b c\n").is_err());
        assert!(tubes("- a\n").is_err());
        assert!(tubes(&format!("---\n- {}\n", "t".repeat(201))).is_err());
        let said = text(strange("x", b"\x1b[2J"));
        assert!(!said.contains('\x1b'), "{said}");
    }

    #[test]
    fn tubes_are_listed() {
        assert_eq!(tubes("---\n- default\n- a;b\n").unwrap(), ["default", "a;b"]);
        assert!(tubes("---\n").unwrap().is_empty());
    }

    #[test]
    fn server_and_tube_counts_parse() {
        let text = "---\ncurrent-jobs-urgent: 0\ncurrent-jobs-ready: 1\ncurrent-jobs-reserved: 2\n\
                    current-jobs-delayed: 3\ncurrent-jobs-buried: 4\ntotal-jobs: 99\nmax-job-size: 65535\n\
                    version: \"1.13\"\ndraining: false\nid: 6d4f\n";
        let expected =
            SourceStats { jobs: 10, total_jobs: 99, max_job_size: 65_535, instance: Some("6d4f".into()) };
        assert_eq!(SourceStats::parse(text).unwrap(), expected);
        assert_eq!(SourceStats::parse(&text.replace("id: 6d4f\n", "")).unwrap().instance, None);
        let most = text.replace("ready: 1", &format!("ready: {}", u64::MAX));
        assert_eq!(jobs(&most).unwrap(), u64::MAX);
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

    /// A server that sends `answer` to each client, and closes the connection.
    fn says(answer: Vec<u8>) -> (BeanstalkSource, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let saying = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1];
            stream.read_exact(&mut request).unwrap();
            let _ = stream.write_all(&answer);
            let _ = stream.shutdown(Shutdown::Write);
            // The server waits for the client to close, so that unread data does not turn the end into a reset.
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        (BeanstalkSource::connect(&address).unwrap(), saying)
    }

    #[test]
    fn hostile_source_reply_is_refused() {
        let endless = vec![b'a'; 100_000];
        for answer in [
            &b"OK 9999999999999\r\n---\n"[..],
            b"OK 65537\r\n",
            b"OK 10\r\n---\n",
            b"OK 4\r\n---\nxx",
            b"OK 5\r\n---\n\xff\r\n",
            b"OK -1\r\n",
            b"NOT_FOUND\n",
            b"NOT_FOUND\r\n",
            b"",
            b"\xff\xfe\r\n",
            &endless,
        ] {
            let (mut source, saying) = says(answer.to_vec());
            assert!(source.stats().is_err(), "{:?}", &answer[..answer.len().min(20)]);
            drop(source);
            saying.join().unwrap();
        }
    }

    #[test]
    fn oversized_source_body_is_skipped() {
        let size = MAX_BODY + 1;
        let mut answer = format!("FOUND 1 {size}\r\n").into_bytes();
        answer.resize(answer.len() + usize::try_from(size).unwrap(), b'x');
        answer.extend_from_slice(b"\r\nRESERVED 2 3\r\na\r\n\r\nFOUND 3 4\r\nab");
        let (mut source, saying) = says(answer);
        source.send("peek 1\r\n").unwrap();
        let job = source.job().unwrap().unwrap();
        assert_eq!((job.id, job.size, job.body.len(), job.is_reserved), (1, size, 0, false));
        let job = source.job().unwrap().unwrap();
        assert_eq!((job.id, &*job.body, job.is_reserved), (2, &b"a\r\n"[..], true));
        assert!(source.job().is_err(), "cut off");
        drop(source);
        saying.join().unwrap();
    }

    #[test]
    fn nobody_there_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let said = text(BeanstalkSource::connect(&address).unwrap_err());
        assert!(said.starts_with(&format!("cannot reach a beanstalkd at {address}: ")), "{said}");
        assert!(BeanstalkSource::connect("unix:/nowhere/at/all").is_err());
        assert!(BeanstalkSource::connect("11300").is_err());
    }
}
