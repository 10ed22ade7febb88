//! The server as a process. Its binary is in the same folder as the benchmarks'.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time of one answer.
pub const ANSWER: Duration = Duration::from_secs(30);
/// Longest time until a started server says its address.
pub const ADDRESS: Duration = Duration::from_secs(30);

/// Builds the server.
///
/// # Errors
/// It does not build.
pub fn build() -> io::Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--package", "duewheel-server"])
        .status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("the server does not build")) }
}

/// The path of the binary.
///
/// # Errors
/// The path of this program is not known.
pub fn binary() -> io::Result<PathBuf> {
    let here = std::env::current_exe()?;
    Ok(here.with_file_name("duewheel"))
}

/// A running server. Killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where it serves HTTP.
    pub address: SocketAddr,
    connection: Connection,
}

/// Requests to an address, which share a connection while it lives.
#[derive(Debug)]
pub struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Connection {
    /// A connection that is made when it is needed.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Connection { address, stream: None }
    }

    /// Status and body of the answer. A server ends a connection that rests for long: then the request goes over a new
    /// one.
    ///
    /// # Errors
    /// The server cannot be reached, or does not answer within 30 s.
    pub fn call(&mut self, method: &str, path: &str, kind: &str, body: &str) -> io::Result<(u16, String)> {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        let request = [head.as_bytes(), body.as_bytes()].concat();
        if let Some(stream) = self.stream.take() {
            match self.exchange(stream, &request) {
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
                    ) => {}
                answer => return answer,
            }
        }
        let stream = TcpStream::connect_timeout(&self.address, ANSWER)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        self.exchange(stream, &request)
    }

    /// Posts until it is answered with a success; again for a while when the server asks for that.
    ///
    /// # Errors
    /// As of [`Connection::call`], or another answer.
    pub fn ask(&mut self, path: &str, kind: &str, body: &str) -> io::Result<String> {
        let deadline = Instant::now() + ANSWER;
        loop {
            match self.call("POST", path, kind, body)? {
                (200..=299, answer) => return Ok(answer),
                (429 | 503, _) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
                (status, answer) => return Err(io::Error::other(format!("{path}: {status}: {answer}"))),
            }
        }
    }

    fn exchange(&mut self, mut stream: TcpStream, request: &[u8]) -> io::Result<(u16, String)> {
        stream.write_all(request)?;
        let answer = read_answer(&mut stream)?;
        // After a refusal the server may close it.
        self.stream = (answer.0 == 200).then_some(stream);
        Ok(answer)
    }
}

impl Server {
    /// Starts `duewheel serve` with these arguments, and waits until it is ready. Returns how long that took.
    ///
    /// # Errors
    /// It does not start, or is not ready within `limit`.
    pub fn start<A: AsRef<OsStr>>(
        args: impl IntoIterator<Item = A>,
        limit: Duration,
    ) -> io::Result<(Self, Duration)> {
        let mut command = Command::new(binary()?);
        command.args(["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--log", "error"]).args(args);
        let began = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take();
        let mut server = Server {
            child,
            address: ([127, 0, 0, 1], 0).into(),
            connection: Connection::new(([127, 0, 0, 1], 0).into()),
        };
        let mut out = BufReader::new(out.ok_or(ErrorKind::BrokenPipe)?);
        let (say, said) = mpsc::channel();
        // It ends with the child's output.
        thread::spawn(move || {
            let mut line = String::new();
            while out.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                let _ = say.send(std::mem::take(&mut line));
            }
        });
        let line = said.recv_timeout(ADDRESS).map_err(|_| io::Error::other("the server says no address"))?;
        let address = line.trim().rsplit('/').next().and_then(|address| address.parse().ok());
        server.address = address.ok_or_else(|| io::Error::other(format!("no address in {line:?}")))?;
        server.connection = Connection::new(server.address);
        while server.call("GET", "/readyz", "", "")?.0 != 200 {
            if began.elapsed() > limit {
                return Err(io::Error::other("the server does not become ready"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok((server, began.elapsed()))
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }

    /// The number of its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// See [`Connection::call`].
    ///
    /// # Errors
    /// As those of the connection.
    pub fn call(&mut self, method: &str, path: &str, kind: &str, body: &str) -> io::Result<(u16, String)> {
        self.connection.call(method, path, kind, body)
    }

    /// See [`Connection::ask`].
    ///
    /// # Errors
    /// As those of the connection.
    pub fn ask(&mut self, path: &str, kind: &str, body: &str) -> io::Result<String> {
        self.connection.ask(path, kind, body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads an answer with a length. Ends with an error when nothing comes for [`ANSWER`].
fn read_answer(stream: &mut TcpStream) -> io::Result<(u16, String)> {
    let mut read = Vec::new();
    let mut some = vec![0; 64 * 1024];
    let mut end = None;
    loop {
        let n = stream.read(&mut some)?;
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        read.extend_from_slice(&some[..n]);
        if end.is_none()
            && let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&read[..at]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|n| n.trim().parse().ok()).ok_or(ErrorKind::InvalidData)?;
            let status = head.get(9..12).and_then(|s| s.parse().ok()).ok_or(ErrorKind::InvalidData)?;
            end = Some((status, at + 4, at + 4 + length));
        }
        if let Some((status, from, to)) = end
            && read.len() >= to
        {
            return Ok((status, String::from_utf8_lossy(&read[from..to]).into_owned()));
        }
    }
}
