//! One keep-alive connection, with as little work on it as possible: the load generator runs on the server's cores.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One keep-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: vec![0; 512 * 1024], filled: 0 })
    }

    /// Sends a request unchanged, and reads the whole answer: status and body.
    pub(crate) async fn call(&mut self, request: &[u8]) -> io::Result<(u16, &[u8])> {
        self.stream.write_all(request).await?;
        self.filled = 0;
        let head = loop {
            self.read().await?;
            if let Some(end) = find(&self.buffer[..self.filled], b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = std::str::from_utf8(&self.buffer[..head]).map_err(|_| bad("head"))?;
        let status = text.get(9..12).and_then(|s| s.parse().ok()).ok_or_else(|| bad("status"))?;
        let length = text
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|n| n.parse::<usize>().ok())
            .ok_or_else(|| bad("content-length"))?;
        if self.buffer.len() < head + length {
            self.buffer.resize(head + length, 0);
        }
        while self.filled < head + length {
            self.read().await?;
        }
        Ok((status, &self.buffer[head..head + length]))
    }

    async fn read(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.buffer[self.filled..]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.filled += n;
                Ok(())
            }
        }
    }
}

/// A request with a body.
pub(crate) fn post(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// A request without a body.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").into_bytes()
}

pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
