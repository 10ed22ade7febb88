//! A connection to a beanstalkd that sends many commands before it reads their answers.
//!
//! Requests are written by a thread of their own, so that this side always reads: two full buffers cannot wait for each
//! other, however much is in flight.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::reply::{self, BadReply, JobStats, SourceStats, TubeCounts, numbers, strange};

const CONNECT: Duration = Duration::from_secs(5);
/// The time limit of an answer, or of a part of it. No command that is sent here makes a beanstalkd wait.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest line of an answer; the longest real one names a tube.
const MAX_LINE: u64 = 512;
/// Largest answer to a `stats…` command. The largest real one has some 1,500 bytes.
const MAX_STATS: u64 = 64 * 1024;
/// Largest list of tubes: some 80,000 with the longest names.
const MAX_TUBES: u64 = 16 * 1024 * 1024;
/// Largest body that is kept. In base64 it fits in a request of duewheel.
pub(crate) const MAX_BODY: u64 = 11 * 1024 * 1024;

/// A connection to a beanstalkd.
#[derive(Debug)]
pub(crate) struct BeanstalkSource {
    address: String,
    reader: BufReader<SourceStream>,
    writer: Sender<Vec<u8>>,
}

#[derive(Debug)]
enum SourceStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A job's body.
#[derive(Debug)]
pub(crate) enum Body {
    Kept(Vec<u8>),
    /// The body was read, but is too large to be kept: its size.
    Skipped(u64),
}

/// The answer to a put.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PutAnswer {
    Inserted(u64),
    /// The source accepts no job, or not this one: its word.
    Refused(String),
}

/// A state of jobs whose first one in a tube can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TubeHead {
    Ready,
    Delayed,
    Buried,
}

impl TubeHead {
    fn command(self) -> &'static str {
        match self {
            TubeHead::Ready => "peek-ready",
            TubeHead::Delayed => "peek-delayed",
            TubeHead::Buried => "peek-buried",
        }
    }
}

impl BeanstalkSource {
    /// Connects to `HOST:PORT` or `unix:PATH`.
    pub(crate) fn connect(address: &str) -> Result<BeanstalkSource, BadReply> {
        let stream = SourceStream::connect(address)
            .map_err(|error| BadReply(format!("cannot reach a beanstalkd at {address}: {error}")))?;
        let broken = |error: io::Error| BadReply(format!("{address}: {error}"));
        let mut out = stream.try_clone().map_err(broken)?;
        let (writer, requests) = channel::<Vec<u8>>();
        // The thread ends when the sender is dropped or the connection ends.
        std::thread::spawn(move || {
            for request in requests {
                if out.write_all(&request).is_err() {
                    // The reader notices it by the end of its stream.
                    out.shutdown();
                    return;
                }
            }
        });
        Ok(BeanstalkSource {
            address: address.to_owned(),
            reader: BufReader::with_capacity(256 * 1024, stream),
            writer,
        })
    }

    /// Sends commands, with `CRLF` behind each. An answer to each must be read.
    pub(crate) fn send(&mut self, requests: Vec<u8>) {
        // A writer that has ended has shut the connection down, which the next read reports.
        let _ = self.writer.send(requests);
    }

    pub(crate) fn stats(&mut self) -> Result<SourceStats, BadReply> {
        self.send(b"stats\r\n".to_vec());
        match self.read_data(MAX_STATS)? {
            Some(bytes) => reply::stats(&bytes),
            None => Err(strange("OK", b"NOT_FOUND")),
        }
    }

    /// The counts of a tube; `None` when the tube does not exist.
    pub(crate) fn stats_tube(&mut self, tube: &str) -> Result<Option<TubeCounts>, BadReply> {
        self.send(format!("stats-tube {tube}\r\n").into_bytes());
        self.read_data(MAX_STATS)?.map(|bytes| reply::stats_tube(&bytes)).transpose()
    }

    pub(crate) fn tubes(&mut self) -> Result<Vec<String>, BadReply> {
        self.send(b"list-tubes\r\n".to_vec());
        match self.read_data(MAX_TUBES)? {
            Some(bytes) => reply::tubes(&bytes),
            None => Err(strange("OK", b"NOT_FOUND")),
        }
    }

    pub(crate) fn use_tube(&mut self, tube: &str) -> Result<(), BadReply> {
        self.send(format!("use {tube}\r\n").into_bytes());
        let line = self.read_line()?;
        if line.strip_prefix("USING ") == Some(tube) {
            Ok(())
        } else {
            Err(strange("USING", line.as_bytes()))
        }
    }

    /// Puts a job with the longest possible delay.
    pub(crate) fn put_asleep(&mut self, body: &str) -> Result<PutAnswer, BadReply> {
        let length = body.len();
        self.send(format!("put 4294967295 {} 60 {length}\r\n{body}\r\n", u32::MAX).into_bytes());
        let line = self.read_line()?;
        if let Some([id]) = numbers(&line, "INSERTED") {
            return Ok(PutAnswer::Inserted(id));
        }
        match &*line {
            "DRAINING" | "JOB_TOO_BIG" | "OUT_OF_MEMORY" => Ok(PutAnswer::Refused(line)),
            _ => Err(strange("INSERTED", line.as_bytes())),
        }
    }

    /// A job at a head of the used tube.
    pub(crate) fn head(&mut self, head: TubeHead) -> Result<Option<(u64, Body)>, BadReply> {
        self.send(format!("{}\r\n", head.command()).into_bytes());
        self.read_job("FOUND")
    }

    /// Whether a job can be reserved by its id, which beanstalkd supports since 1.12.
    pub(crate) fn knows_reserve_job(&mut self) -> Result<bool, BadReply> {
        // No job has this id. Older versions answer the command like a misspelt `reserve`.
        self.send(b"reserve-job 0\r\n".to_vec());
        match &*self.read_line()? {
            "NOT_FOUND" => Ok(true),
            "UNKNOWN_COMMAND" | "BAD_FORMAT" => Ok(false),
            other => Err(strange("NOT_FOUND", other.as_bytes())),
        }
    }

    /// The answer to a `stats-job`.
    pub(crate) fn read_stats_job(&mut self, id: u64) -> Result<Option<JobStats>, BadReply> {
        let Some(bytes) = self.read_data(MAX_STATS)? else { return Ok(None) };
        let job = reply::stats_job(&bytes)?;
        if job.id == id { Ok(Some(job)) } else { Err(strange(&format!("job {id}"), &bytes)) }
    }

    pub(crate) fn stats_job(&mut self, id: u64) -> Result<Option<JobStats>, BadReply> {
        self.send(format!("stats-job {id}\r\n").into_bytes());
        self.read_stats_job(id)
    }

    /// The answer to a `peek` (`FOUND`) or a `reserve-job` (`RESERVED`).
    pub(crate) fn read_job(&mut self, word: &str) -> Result<Option<(u64, Body)>, BadReply> {
        let line = self.read_line()?;
        if line == "NOT_FOUND" {
            return Ok(None);
        }
        let [id, size] = numbers(&line, word).ok_or_else(|| strange(word, line.as_bytes()))?;
        if size <= MAX_BODY {
            return Ok(Some((id, Body::Kept(self.read_chunk(size)?))));
        }
        let skipped = io::copy(&mut (&mut self.reader).take(size), &mut io::sink());
        let skipped = skipped.map_err(|error| self.lost(&error))?;
        if skipped < size {
            return Err(self.lost(&io::ErrorKind::UnexpectedEof.into()));
        }
        self.read_end()?;
        Ok(Some((id, Body::Skipped(size))))
    }

    /// Reads the answer to a command that has one word for success: whether it was that word, or `NOT_FOUND`.
    pub(crate) fn read_done(&mut self, word: &str) -> Result<bool, BadReply> {
        let line = self.read_line()?;
        match &*line {
            done if done == word => Ok(true),
            "NOT_FOUND" => Ok(false),
            _ => Err(strange(word, line.as_bytes())),
        }
    }

    pub(crate) fn delete(&mut self, id: u64) -> Result<bool, BadReply> {
        self.send(format!("delete {id}\r\n").into_bytes());
        self.read_done("DELETED")
    }

    fn read_line(&mut self) -> Result<String, BadReply> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(MAX_LINE).read_until(b'\n', &mut line);
        read.map_err(|error| self.lost(&error))?;
        if line.is_empty() {
            return Err(self.lost(&io::ErrorKind::UnexpectedEof.into()));
        }
        let text = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
        text.map(str::to_owned).ok_or_else(|| strange("a line", &line))
    }

    /// The data behind an `OK`; `None` for `NOT_FOUND`.
    fn read_data(&mut self, most: u64) -> Result<Option<Vec<u8>>, BadReply> {
        let line = self.read_line()?;
        if line == "NOT_FOUND" {
            return Ok(None);
        }
        match numbers(&line, "OK") {
            Some([size]) if size <= most => Ok(Some(self.read_chunk(size)?)),
            Some(_) | None => Err(strange("OK", line.as_bytes())),
        }
    }

    fn read_chunk(&mut self, size: u64) -> Result<Vec<u8>, BadReply> {
        // The buffer grows as the bytes arrive: a size that is only claimed costs nothing.
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(size).read_to_end(&mut bytes);
        read.map_err(|error| self.lost(&error))?;
        if (bytes.len() as u64) < size {
            return Err(self.lost(&io::ErrorKind::UnexpectedEof.into()));
        }
        self.read_end()?;
        Ok(bytes)
    }

    fn read_end(&mut self) -> Result<(), BadReply> {
        let mut end = [0; 2];
        self.reader.read_exact(&mut end).map_err(|error| self.lost(&error))?;
        if end == *b"\r\n" { Ok(()) } else { Err(strange("the end of a line", &end)) }
    }

    fn lost(&self, error: &io::Error) -> BadReply {
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the source has closed the connection".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("the source has not answered for {} s", ANSWER.as_secs())
            }
            _ => error.to_string(),
        };
        BadReply(format!("{}: {what}", self.address))
    }
}

impl Drop for BeanstalkSource {
    fn drop(&mut self) {
        // The writer's half would keep the connection open, and with it our reservations.
        self.reader.get_ref().shutdown();
    }
}

impl SourceStream {
    fn connect(address: &str) -> io::Result<SourceStream> {
        let stream = match address.strip_prefix("unix:") {
            Some(path) => SourceStream::Unix(UnixStream::connect(path)?),
            None => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
                let mut connected = None;
                for candidate in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&candidate, CONNECT) {
                        Ok(stream) => {
                            connected = Some(stream);
                            break;
                        }
                        Err(error) => last = error,
                    }
                }
                let stream = connected.ok_or(last)?;
                stream.set_nodelay(true)?;
                SourceStream::Tcp(stream)
            }
        };
        match &stream {
            SourceStream::Tcp(stream) => stream.set_read_timeout(Some(ANSWER))?,
            SourceStream::Unix(stream) => stream.set_read_timeout(Some(ANSWER))?,
        }
        Ok(stream)
    }

    fn try_clone(&self) -> io::Result<SourceStream> {
        Ok(match self {
            SourceStream::Tcp(stream) => SourceStream::Tcp(stream.try_clone()?),
            SourceStream::Unix(stream) => SourceStream::Unix(stream.try_clone()?),
        })
    }

    fn shutdown(&self) {
        // The connection may be down already.
        let _ = match self {
            SourceStream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            SourceStream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for SourceStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            SourceStream::Tcp(stream) => stream.read(buffer),
            SourceStream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for SourceStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            SourceStream::Tcp(stream) => stream.write(bytes),
            SourceStream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

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

    fn end(source: BeanstalkSource, saying: JoinHandle<()>) {
        drop(source);
        saying.join().unwrap();
    }

    #[test]
    fn hostile_source_reply_is_refused() {
        let endless = vec![b'a'; 100_000];
        for answer in [
            &b"OK 9999999999999\r\n---\n"[..],
            b"OK 65537\r\n",
            b"OK 10\r\n---\n",
            b"OK 4\r\n---\nxx",
            b"OK -1\r\n",
            b"NOT_FOUND\n",
            b"",
            b"\xff\xfe\r\n",
            &endless,
        ] {
            let (mut source, saying) = says(answer.to_vec());
            assert!(source.stats().is_err(), "{:?}", &answer[..answer.len().min(20)]);
            end(source, saying);
        }
    }

    #[test]
    fn oversized_source_body_is_skipped() {
        let size = MAX_BODY + 1;
        let mut answer = format!("FOUND 1 {size}\r\n").into_bytes();
        answer.resize(answer.len() + usize::try_from(size).unwrap(), b'x');
        answer.extend_from_slice(b"\r\nFOUND 2 3\r\na\r\n\r\nFOUND 3 4\r\nab");
        let (mut source, saying) = says(answer);
        source.send(b"peek 1\r\n".to_vec());
        assert!(matches!(source.read_job("FOUND"), Ok(Some((1, Body::Skipped(n)))) if n == size));
        assert!(matches!(source.read_job("FOUND"), Ok(Some((2, Body::Kept(b)))) if b == b"a\r\n"));
        assert!(source.read_job("FOUND").is_err(), "cut off");
        end(source, saying);
    }

    #[test]
    fn nobody_there_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let said = BeanstalkSource::connect(&address).unwrap_err().to_string();
        assert!(said.starts_with(&format!("cannot reach a beanstalkd at {address}: ")), "{said}");
        assert!(BeanstalkSource::connect("unix:/nowhere/at/all").is_err());
        assert!(BeanstalkSource::connect("11300").is_err());
    }
}
