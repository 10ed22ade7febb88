//! One connection, with as little work on it as possible: the load generator runs on the servers' cores.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::redis::resp;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    /// Redis' own.
    Redis,
    /// beanstalkd's, puts only.
    Beanstalk,
    /// HTTP.
    Http,
}

impl Speech {
    /// The end of the reply that begins at `at`, if it is complete.
    fn end(self, bytes: &[u8], at: usize) -> io::Result<Option<usize>> {
        match self {
            Speech::Redis => resp::end(bytes, at),
            Speech::Beanstalk => {
                let Some(length) = bytes[at..].iter().position(|b| *b == b'\n') else { return Ok(None) };
                let reply = &bytes[at..=at + length];
                if reply.starts_with(b"INSERTED ") { Ok(Some(at + length + 1)) } else { Err(strange(reply)) }
            }
            Speech::Http => http_end(bytes, at),
        }
    }
}

/// One keep-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    speech: Speech,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr, speech: Speech) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, speech, buffer: vec![0; 256 * 1024] })
    }

    /// Sends requests unchanged, and reads this number of replies.
    ///
    /// # Errors
    /// One of them is a refusal.
    pub(crate) async fn call(&mut self, requests: &[u8], replies: usize) -> io::Result<&[u8]> {
        self.stream.write_all(requests).await?;
        let (mut filled, mut seen, mut left) = (0, 0, replies);
        while left > 0 {
            if filled == self.buffer.len() {
                self.buffer.resize(2 * filled, 0);
            }
            match self.stream.read(&mut self.buffer[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => filled += n,
            }
            while left > 0
                && let Some(end) = self.speech.end(&self.buffer[..filled], seen)?
            {
                (seen, left) = (end, left - 1);
            }
        }
        if seen < filled {
            return Err(io::Error::other("more replies than requests"));
        }
        Ok(&self.buffer[..filled])
    }
}

fn http_end(bytes: &[u8], at: usize) -> io::Result<Option<usize>> {
    let reply = &bytes[at..];
    let Some(head) = find(reply, b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&reply[..head]).map_err(io::Error::other)?;
    if !text.starts_with("HTTP/1.1 200") && !text.starts_with("HTTP/1.1 201") {
        return Err(strange(reply));
    }
    let length = text.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|n| n.parse().ok()).ok_or_else(|| strange(reply))?;
    let end = at + head + 4 + length;
    Ok((end <= bytes.len()).then_some(end))
}

/// The position of some bytes in others.
pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

fn strange(reply: &[u8]) -> io::Error {
    io::Error::other(format!("answered {}", String::from_utf8_lossy(&reply[..reply.len().min(400)])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_reply_ends_with_its_body() {
        let reply = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";
        for cut in 0..reply.len() {
            assert_eq!(Speech::Http.end(&reply[..cut], 0).unwrap(), None, "cut at {cut}");
        }
        assert_eq!(Speech::Http.end(reply, 0).unwrap(), Some(reply.len()));
        assert!(Speech::Http.end(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n", 0).is_err());
    }

    #[test]
    fn beanstalk_put_must_be_inserted() {
        assert_eq!(Speech::Beanstalk.end(b"INSERTED 1\r\nINSERTED 2\r\n", 12).unwrap(), Some(24));
        assert!(Speech::Beanstalk.end(b"DRAINING\r\n", 0).is_err());
    }
}
