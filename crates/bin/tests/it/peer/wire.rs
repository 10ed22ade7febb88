//! A client's end of a connection: bytes go out, whole replies come in.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(String),
    Unix(PathBuf),
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    unread: Vec<u8>,
}

/// What came. The bytes of the last two are the beginning of a reply, as a rule none.
#[derive(Debug)]
pub(crate) enum Heard {
    Reply(Vec<u8>),
    Closed(Vec<u8>),
    Nothing(Vec<u8>),
}

impl Connection {
    pub(crate) fn open(address: &Address) -> std::io::Result<Connection> {
        let stream = match address {
            Address::Tcp(at) => {
                let stream = TcpStream::connect(at)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        };
        Ok(Connection { stream, unread: Vec::new() })
    }

    /// The server may have closed already; that is seen when its replies are read.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        };
    }

    /// Says that nothing more comes; replies are still read.
    pub(crate) fn half_close(&self) {
        let _ = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// One whole reply, with the body if it has one.
    pub(crate) fn receive(&mut self, patience: Duration) -> Heard {
        let until = Instant::now() + patience;
        loop {
            if let Some(length) = reply_length(&self.unread) {
                let rest = self.unread.split_off(length);
                return Heard::Reply(std::mem::replace(&mut self.unread, rest));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Heard::Nothing(std::mem::take(&mut self.unread));
            }
            let mut bytes = [0; 16384];
            match self.read(&mut bytes, left) {
                Ok(0) => return Heard::Closed(std::mem::take(&mut self.unread)),
                Ok(n) => self.unread.extend_from_slice(&bytes[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // A reset: the server closed with something of ours unread.
                Err(_) => return Heard::Closed(std::mem::take(&mut self.unread)),
            }
        }
    }

    fn read(&mut self, bytes: &mut [u8], patience: Duration) -> std::io::Result<usize> {
        match &mut self.stream {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.read(bytes)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.read(bytes)
            }
        }
    }
}

/// Length of the first reply in the bytes once it is there in full.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|w| w == b"\r\n")?;
    let mut words = bytes[..line].split(|b| *b == b' ');
    let size = match words.next() {
        Some(b"OK") => words.next(),
        Some(b"RESERVED" | b"FOUND") => words.nth(1),
        _ => return Some(line + 2),
    };
    let size: usize = std::str::from_utf8(size?).ok()?.parse().ok()?;
    let length = line + 2 + size + 2;
    (bytes.len() >= length).then_some(length)
}

/// Bytes as a transcript would spell them.
pub(crate) fn show(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        match byte {
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            0 => out.push_str("\\0"),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}
