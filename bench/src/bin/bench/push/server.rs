//! The real server, and what is asked of it.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Messages of one request.
const BATCH: u64 = 5_000;

pub(crate) struct PushServer {
    child: Child,
    address: String,
}

impl PushServer {
    pub(crate) fn start(dir: &Path, durability: &str) -> io::Result<Self> {
        let mut serve = Command::new(duewheel_bench::server::binary()?);
        serve.args(["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--log", "error"]);
        serve.args(["--durability", durability, "--data"]).arg(dir.join("data"));
        let mut child = serve.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).read_line(&mut line)?;
        let address = line.trim().rsplit('/').next().unwrap_or_default().to_owned();
        Ok(PushServer { child, address })
    }

    pub(crate) fn target(&self, name: &str, url: &str, concurrency: u32, timeout_ms: u64) -> io::Result<()> {
        let body = format!(
            r#"{{"url": "{url}", "networks": ["127.0.0.1/32"], "concurrency": {concurrency}, "timeout_ms": {timeout_ms}}}"#
        );
        self.ask("PUT", &format!("/v1/targets/{name}"), "application/json", &body).map(drop)
    }

    /// Delivers a queue to a target.
    pub(crate) fn deliver(&self, queue: &str, target: &str) -> io::Result<()> {
        let body = format!(r#"{{"target": "{target}"}}"#);
        self.ask("PATCH", &format!("/v1/queues/{queue}/config"), "application/json", &body).map(drop)
    }

    pub(crate) fn pause(&self, target: &str) -> io::Result<()> {
        self.ask("POST", &format!("/v1/targets/{target}/pause"), "application/json", "{}").map(drop)
    }

    pub(crate) fn resume(&self, target: &str) -> io::Result<()> {
        self.ask("POST", &format!("/v1/targets/{target}/resume"), "application/json", "{}").map(drop)
    }

    pub(crate) fn purge(&self, queue: &str) -> io::Result<()> {
        self.ask("POST", &format!("/v1/queues/{queue}/purge"), "application/json", "{}").map(drop)
    }

    /// Enqueues so many messages of 100 bytes; `due` is the field of the n-th one's due time.
    pub(crate) fn enqueue(&self, queue: &str, count: u64, due: impl Fn(u64) -> String) -> io::Result<()> {
        let path = format!("/v1/queues/{queue}/messages");
        let body = ".".repeat(100);
        let mut from = 0;
        while from < count {
            let until = count.min(from + BATCH);
            let mut lines = String::new();
            for n in from..until {
                writeln!(lines, r#"{{"body": "{body}", {}}}"#, due(n)).map_err(io::Error::other)?;
            }
            let results = self.ask("POST", &path, "application/x-ndjson", &lines)?;
            if let Some(refused) = results.lines().find(|line| !line.contains(r#""status":201"#)) {
                return Err(io::Error::other(refused.to_owned()));
            }
            from = until;
        }
        Ok(())
    }

    /// One request on a connection of its own; its answer, if that is a success.
    fn ask(&self, method: &str, path: &str, content_type: &str, body: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        let (address, length) = (&self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: {content_type}\r\n\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if !head.starts_with("HTTP/1.1 2") {
            return Err(io::Error::other(format!("{method} {path}: {answer}")));
        }
        if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            return Ok(body.to_owned());
        }
        // Chunks end with lines; their sizes are lines of their own.
        Ok(body.lines().filter(|line| line.starts_with('{')).map(|line| format!("{line}\n")).collect())
    }
}

impl Drop for PushServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
