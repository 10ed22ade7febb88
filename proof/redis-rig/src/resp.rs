//! Redis' protocol as far as tests need it: it sends commands, and reads replies of the second version.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::settings::Login;
use crate::tls::Certificates;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string, simple or not.
    Bytes(Vec<u8>),
    /// An integer.
    Number(i64),
    /// The null reply.
    Nothing,
    /// A list of replies.
    List(Vec<Value>),
    /// A refusal, which begins with its word.
    Error(String),
}

impl Value {
    /// The value as text; `None` if it is neither string nor integer, or not UTF-8.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
            Value::Number(n) => Some(n.to_string()),
            Value::Nothing | Value::List(_) | Value::Error(_) => None,
        }
    }

    /// The value as a number, which a string may contain, too.
    pub fn number(&self) -> Option<u64> {
        self.text()?.parse().ok()
    }

    /// The elements of a list; empty for all others.
    pub fn list(&self) -> &[Value] {
        match self {
            Value::List(values) => values,
            _ => &[],
        }
    }
}

trait Duplex: Read + Write + Send {}
impl<T: Read + Write + Send> Duplex for T {}

/// A connection. It cannot be used any more after an error, because a reply may have been cut.
pub struct Wire {
    stream: BufReader<Box<dyn Duplex>>,
    broken: bool,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Wire {
    /// Connects. Each read and write waits for at most `patience`.
    ///
    /// # Errors
    ///
    /// The connection is refused or not made in time.
    pub fn open(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        Ok(Wire::over(Box::new(tcp(address, patience)?)))
    }

    /// Connects over TLS, and trusts only this authority.
    ///
    /// # Errors
    ///
    /// See [`Wire::open`]; or the certificates cannot be used.
    pub fn open_tls(address: SocketAddr, patience: Duration, by: &Certificates) -> io::Result<Self> {
        let name = address.ip().into();
        let session = rustls::ClientConnection::new(by.client()?, name).map_err(io::Error::other)?;
        Ok(Wire::over(Box::new(rustls::StreamOwned::new(session, tcp(address, patience)?))))
    }

    fn over(stream: Box<dyn Duplex>) -> Self {
        Wire { stream: BufReader::new(stream), broken: false }
    }

    /// Logs in.
    ///
    /// # Errors
    ///
    /// The connection fails, or the server refuses the login.
    pub fn login(&mut self, login: &Login) -> io::Result<()> {
        let reply = match login {
            Login::Nobody => return Ok(()),
            Login::Password(password) => self.command(&["AUTH", password])?,
            Login::User { name, password } => self.command(&["AUTH", name, password])?,
        };
        match reply {
            Value::Error(e) => Err(io::Error::new(ErrorKind::PermissionDenied, e)),
            _ => Ok(()),
        }
    }

    /// Sends one command and returns its reply. A refusal of the server is a [`Value::Error`], not an error of this
    /// function.
    ///
    /// # Errors
    ///
    /// The connection fails, or has failed before.
    pub fn command(&mut self, words: &[&str]) -> io::Result<Value> {
        self.send(&[words.iter().map(|w| w.as_bytes().to_vec()).collect()])?;
        self.read()
    }

    /// Sends commands, each of which gets one reply.
    ///
    /// # Errors
    ///
    /// The connection fails.
    pub fn send(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<()> {
        let mut out = Vec::new();
        for command in commands {
            out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for word in command {
                out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                out.extend_from_slice(word);
                out.extend_from_slice(b"\r\n");
            }
        }
        let stream = self.stream.get_mut();
        let result = stream.write_all(&out).and_then(|()| stream.flush());
        self.broken |= result.is_err();
        result
    }

    /// Reads the next reply.
    ///
    /// # Errors
    ///
    /// The connection fails or has failed before, or the bytes are not a reply.
    pub fn read(&mut self) -> io::Result<Value> {
        if self.broken {
            return Err(io::Error::other("the replies before it were cut"));
        }
        let result = self.value();
        self.broken = result.is_err();
        result
    }

    /// Whether it may still be used.
    pub fn is_sound(&self) -> bool {
        !self.broken
    }

    fn value(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed"));
        };
        let strange = || io::Error::other(format!("answered {line:?}"));
        let number = || line.get(1..).and_then(|n| n.parse::<i64>().ok()).ok_or_else(strange);
        Ok(match line.as_bytes().first() {
            Some(b'+') => Value::Bytes(line.as_bytes()[1..].to_vec()),
            Some(b'-') => Value::Error(line[1..].to_owned()),
            Some(b':') => Value::Number(number()?),
            Some(b'$') => match usize::try_from(number()?) {
                Err(_) => Value::Nothing,
                Ok(len) => {
                    let mut bytes = vec![0; len + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(len);
                    Value::Bytes(bytes)
                }
            },
            Some(b'*') => match usize::try_from(number()?) {
                Err(_) => Value::Nothing,
                Ok(len) => Value::List((0..len).map(|_| self.value()).collect::<io::Result<_>>()?),
            },
            _ => return Err(strange()),
        })
    }
}

fn tcp(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}
