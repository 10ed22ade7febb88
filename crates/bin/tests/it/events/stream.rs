//! A reader of server-sent events.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fixture::PATIENCE;

/// A connection with a stream of events.
pub(super) struct EventReader {
    stream: TcpStream,
    unread: String,
    /// The last id of the stream.
    pub(super) id: String,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadEvent {
    pub(super) name: String,
    /// Its own id; events without a position have none.
    pub(super) id: Option<String>,
    pub(super) data: Value,
}

impl ReadEvent {
    pub(super) fn text(&self, field: &str) -> &str {
        self.data[field].as_str().unwrap_or_default()
    }

    /// Its name and message.
    pub(super) fn brief(&self) -> String {
        format!("{} {}", self.name, self.text("id")).trim_end().to_owned()
    }
}

impl EventReader {
    /// Follows; `more` are headers, each with CRLF behind it. Returns when the stream has begun, so that it has all that
    /// comes later.
    pub(super) async fn open(address: &str, path: &str, more: &str) -> EventReader {
        EventReader::unread(address, path, more).await.begun().await
    }

    /// Reads the head of the answer.
    pub(super) async fn begun(mut self) -> EventReader {
        let head = self.head().await;
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        self
    }

    pub(super) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await.expect("a head")
    }

    /// Sends the request and reads nothing.
    pub(super) async fn unread(address: &str, path: &str, more: &str) -> EventReader {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        // Version 1.0 has no chunks.
        let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n{more}\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        EventReader { stream, unread: String::new(), id: String::new() }
    }

    /// Reads up to a mark; `None` at the end of the stream.
    async fn until(&mut self, mark: &str) -> Option<String> {
        let read = async {
            loop {
                if let Some((part, behind)) = self.unread.split_once(mark) {
                    let part = part.to_owned();
                    self.unread = behind.to_owned();
                    return Some(part);
                }
                let mut bytes = vec![0; 64 * 1024];
                // A server that was killed resets its connections.
                let n = self.stream.read(&mut bytes).await.unwrap_or(0);
                if n == 0 {
                    return None;
                }
                self.unread.push_str(std::str::from_utf8(&bytes[..n]).expect("all names here are ASCII"));
            }
        };
        timeout(PATIENCE, read).await.expect("something in time")
    }

    /// The next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<ReadEvent> {
        loop {
            let part = self.until("\n\n").await?;
            let field = |name: &str| part.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            let id = field("id: ");
            if let Some(id) = &id {
                self.id.clone_from(id);
            }
            if let Some(data) = field("data: ") {
                let data = serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {part}"));
                return Some(ReadEvent { name: field("event: ").expect("a name"), id, data });
            }
        }
    }

    /// Events up to the one of which this is true.
    pub(super) async fn up_to(&mut self, is_last: impl Fn(&ReadEvent) -> bool) -> Vec<ReadEvent> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("the stream goes on");
            let ends = is_last(&event);
            events.push(event);
            if ends {
                return events;
            }
        }
    }

    /// The status of an answer that is no stream.
    pub(super) async fn refusal(mut self) -> (u16, String) {
        let mut text = String::new();
        timeout(PATIENCE, self.stream.read_to_string(&mut text)).await.expect("in time").expect("text");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, text)
    }
}
