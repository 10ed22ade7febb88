//! A small blocking HTTP/1.1 client that hides nothing: no pools, retries in [`done`] alone, and an incomplete answer is returned as
//! far as it arrived.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The pause before a request is sent again that was refused for now.
const AGAIN: Duration = Duration::from_millis(50);

/// One keep-alive connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    host: SocketAddr,
    sound: Soundness,
}

/// Whether another request may be sent over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Soundness {
    /// Another request may be sent.
    Open,
    /// An error occurred, or the server announced that it closes the connection.
    Closed,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// The body, as far as it arrived.
    pub body: Vec<u8>,
    /// Whether the body is complete.
    pub end: Completeness,
}

/// Whether an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// It arrived up to its announced end.
    Whole,
    /// The connection broke before its end.
    Cut,
}

impl Connection {
    /// Connects. `patience` bounds each read and write.
    pub fn open(host: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&host, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection { stream: BufReader::new(stream), host, sound: Soundness::Open })
    }

    /// Whether another request may be sent.
    pub fn soundness(&self) -> Soundness {
        self.sound
    }

    /// Sends a request and waits for its answer. After an error it is unknown whether the server has acted upon the
    /// request.
    pub fn request(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<Response> {
        let result = self.exchange(method, path, kind, body);
        if result.as_ref().map_or(true, |r| r.end == Completeness::Cut) {
            self.sound = Soundness::Closed;
        }
        result
    }

    fn exchange(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<Response> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;

        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.ok_or_else(|| bad(format!("not a status line: {line:?}")))?;
        let mut length = None;
        let mut chunked = false;
        let mut retry_after = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(format!("not a header: {line:?}")))?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse::<u64>().ok(),
                "retry-after" => retry_after = Some(value.to_owned()),
                "transfer-encoding" => chunked = value.eq_ignore_ascii_case("chunked"),
                "connection" if value.eq_ignore_ascii_case("close") => self.sound = Soundness::Closed,
                _ => {}
            }
        }
        let mut body = Vec::new();
        let whole = if chunked { self.chunks(&mut body) } else { self.bytes(length.unwrap_or(0), &mut body) };
        let end = if whole.is_ok() { Completeness::Whole } else { Completeness::Cut };
        Ok(Response { status, retry_after, body, end })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    fn bytes(&mut self, length: u64, body: &mut Vec<u8>) -> io::Result<()> {
        let read = (&mut self.stream).take(length).read_to_end(body)?;
        if read as u64 == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let length =
                u64::from_str_radix(&line, 16).map_err(|_| bad(format!("not a chunk's length: {line:?}")))?;
            self.bytes(length, body)?;
            self.line()?;
            if length == 0 {
                return Ok(());
            }
        }
    }
}

/// Sends a request over a connection of its own; returns status and JSON. [`Value::Null`] stands for an empty body, and
/// for an answer that is not JSON.
///
/// # Errors
///
/// There is no answer, or it is incomplete.
pub fn ask(
    host: SocketAddr,
    patience: Duration,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<(u16, Value), String> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let answer = Connection::open(host, patience)
        .and_then(|mut connection| connection.request(method, path, "application/json", &body))
        .map_err(|e| format!("{method} {path}: {e}"))?;
    if answer.end == Completeness::Cut {
        return Err(format!("{method} {path}: the answer was cut"));
    }
    Ok((answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)))
}

/// As [`ask`], for a request that must be answered with success; returns the JSON. A server with too much to do refuses
/// it for now (429): then it is sent again, as a client does.
///
/// # Errors
///
/// There is no answer, it is incomplete, or it is an error until the time limit has passed.
pub fn done(
    host: SocketAddr,
    patience: Duration,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, String> {
    let deadline = Instant::now() + patience;
    loop {
        match ask(host, patience, method, path, body)? {
            (200..=299, value) => return Ok(value),
            (429, _) if Instant::now() < deadline => std::thread::sleep(AGAIN),
            (status, value) => return Err(format!("{method} {path} {body}: {status} {value}")),
        }
    }
}

fn bad(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A queue's name or a key, escaped as a part of a path.
pub fn escape(text: &str) -> String {
    let mut out = String::new();
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

/// A wall-clock time as RFC 3339 with milliseconds.
pub fn rfc3339(wall_ms: u64) -> String {
    let (days, ms) = (wall_ms / 86_400_000, wall_ms % 86_400_000);
    // Days to year, month, day (Hinnant, "chrono-Compatible Low-Level Date Algorithms", 2013).
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (s, ms) = (ms / 1_000, ms % 1_000);
    let (h, m, s) = (s / 3_600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn times_are_formatted_by_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(rfc3339(4_102_444_799_999), "2099-12-31T23:59:59.999Z");
        assert_eq!(escape("a/b ü"), "a%2Fb%20%C3%BC");
    }

    #[test]
    fn response_endings_are_distinguished() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answers: [&[u8]; 3] = [
                b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nRetry-After: 3\r\n\r\nok",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            ];
            let mut buffer = [0; 1_000];
            for answer in answers {
                assert!(stream.read(&mut buffer).unwrap() > 0);
                stream.write_all(answer).unwrap();
            }
        });
        let mut connection = Connection::open(host, Duration::from_secs(5)).unwrap();
        let mut ask = || connection.request("GET", "/", "text/plain", b"x").unwrap();
        let (retry_after, end) = (Some("3".to_owned()), Completeness::Whole);
        assert_eq!(ask(), Response { status: 201, retry_after, body: b"ok".to_vec(), end });
        assert_eq!(ask().body, b"abcd");
        let (retry_after, end) = (None, Completeness::Cut);
        assert_eq!(ask(), Response { status: 200, retry_after, body: b"half".to_vec(), end });
        assert_eq!(connection.soundness(), Soundness::Closed);
        server.join().unwrap();
    }
}
