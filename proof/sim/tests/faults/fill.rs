//! What fills a disk: clients that enqueue until each is refused with 507, and a neighbour that takes whatever is free.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use duewheel_sim::http::{Completeness, Connection};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage};

/// Clients that enqueue beside each other.
const CLIENTS: usize = 4;
/// Between two tries while the server is behind with its work.
const BEHIND: Duration = Duration::from_millis(20);
/// A disk is full when a client was refused for so long: a merge may make room of what was removed before.
const FULL_FOR: Duration = Duration::from_secs(2);
/// Changes that are asked for over one connection.
const CHANGES: usize = 64;

/// What the messages are that fill a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// The queue, which nobody else uses.
    pub(crate) queue: &'static str,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// Messages of a batch; 1 is no batch.
    pub(crate) batch: usize,
    pub(crate) delay: &'static str,
}

impl Shape {
    fn message(&self) -> Value {
        json!({"body": "x".repeat(self.body), "delay": self.delay})
    }

    fn path(&self) -> String {
        format!("/v1/queues/{}/messages", self.queue)
    }
}

/// What became of a request.
#[derive(Debug)]
enum Answered {
    /// The ids of what was accepted.
    All(Vec<String>),
    /// The disk is full; what was accepted before it was.
    Full(Vec<String>),
    /// The server asks to come again.
    Later(Vec<String>),
}

/// Enqueues messages of this shape until each client was refused with 507 for [`FULL_FOR`]. Returns the ids of what was
/// accepted.
///
/// # Errors
/// Another answer than success, 429 and 507; or the disk is not full after [`PATIENCE`].
pub(crate) fn until_full(stage: &Stage<'_>, shape: Shape) -> Result<Vec<String>, String> {
    let address = stage.address.ok_or("no server")?;
    let ids: Vec<Result<Vec<String>, String>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(move || client(address, shape))).collect();
        let ended = clients.into_iter().map(|client| client.join());
        ended.map(|ids| ids.unwrap_or_else(|_| Err("a client panicked".into()))).collect()
    });
    let ids: Result<Vec<Vec<String>>, String> = ids.into_iter().collect();
    Ok(ids?.concat())
}

fn client(address: SocketAddr, shape: Shape) -> Result<Vec<String>, String> {
    let mut ids = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let mut refused_since = None;
    let mut connection = Connection::open(address, PATIENCE).map_err(|e| e.to_string())?;
    loop {
        match enqueue(&mut connection, shape)? {
            Answered::All(some) => ids.extend(some),
            Answered::Full(some) => {
                if !some.is_empty() {
                    refused_since = None;
                }
                ids.extend(some);
                if refused_since.get_or_insert_with(Instant::now).elapsed() > FULL_FOR {
                    return Ok(ids);
                }
                sleep(BEHIND);
                continue;
            }
            Answered::Later(some) => {
                ids.extend(some);
                sleep(BEHIND);
            }
        }
        refused_since = None;
        if Instant::now() > deadline {
            return Err(format!(
                "{}: not full after {PATIENCE:?}, {} accepted by one client",
                shape.name,
                ids.len()
            ));
        }
    }
}

/// A batch, or one message.
fn enqueue(connection: &mut Connection, shape: Shape) -> Result<Answered, String> {
    let message = shape.message().to_string();
    let (kind, body) = match shape.batch {
        1 => ("application/json", message),
        n => ("application/x-ndjson", format!("{message}\n").repeat(n)),
    };
    let answer =
        connection.request("POST", &shape.path(), kind, body.as_bytes()).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&answer.body);
    if answer.end == Completeness::Cut {
        return Err(format!("{}: the answer was cut: {text}", shape.name));
    }
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or(Value::Null));
    let lines: Vec<(u64, Value)> = match answer.status {
        200 if shape.batch > 1 => {
            lines.map(|line: Value| (line["status"].as_u64().unwrap_or(0), line)).collect()
        }
        status => lines.map(|line| (u64::from(status), line)).collect(),
    };
    let mut ids = Vec::new();
    let (mut full, mut later) = (false, false);
    for (status, line) in lines {
        match (status, line["code"].as_str()) {
            (201, _) => ids.extend(line["id"].as_str().map(str::to_owned)),
            (507, Some("disk_full")) => full = true,
            // The store is behind with a flush.
            (429, _) => later = true,
            _ => return Err(format!("{}: an enqueue on a disk that fills: {status} {line}", shape.name)),
        }
    }
    Ok(if full {
        Answered::Full(ids)
    } else if later {
        Answered::Later(ids)
    } else {
        Answered::All(ids)
    })
}

/// One message of this shape: whether it was accepted, and its id.
///
/// # Errors
/// Another answer than success, 429 and 507.
pub(crate) fn one(stage: &Stage<'_>, shape: Shape) -> Result<Option<String>, String> {
    let address = stage.address.ok_or("no server")?;
    let mut connection = Connection::open(address, PATIENCE).map_err(|e| e.to_string())?;
    match enqueue(&mut connection, Shape { batch: 1, ..shape })? {
        Answered::All(ids) => Ok(ids.into_iter().next()),
        Answered::Full(_) | Answered::Later(_) => Ok(None),
    }
}

/// What became of a row of changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes {
    /// So many of the first were made.
    pub(crate) made: usize,
    /// Whether the next one was refused because of the disk; it was certainly not applied.
    pub(crate) refused: bool,
}

/// Asks for something about each of these messages, until it is refused with 507 `disk_full` or 503
/// `storage_unavailable`.
///
/// # Errors
/// Any other refusal; and 503 without `Retry-After` or with another outcome than `not_applied`.
pub(crate) fn change(
    stage: &Stage<'_>,
    requests: impl IntoIterator<Item = (&'static str, String, Value)>,
) -> Result<Changes, String> {
    let address = stage.address.ok_or("no server")?;
    let open = || Connection::open(address, PATIENCE).map_err(|e| e.to_string());
    let mut connection = open()?;
    let mut made = 0;
    for (n, (method, path, body)) in requests.into_iter().enumerate() {
        if n % CHANGES == CHANGES - 1 {
            connection = open()?;
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = connection
            .request(method, &path, "application/json", body.as_bytes())
            .map_err(|e| format!("{method} {path}: {e}"))?;
        let said: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        match (answer.status, said["code"].as_str()) {
            (200..=299, _) => made += 1,
            (507, Some("disk_full")) => return Ok(Changes { made, refused: true }),
            (503, Some("storage_unavailable"))
                if said["outcome"] == "not_applied" && answer.retry_after.is_some() =>
            {
                return Ok(Changes { made, refused: true });
            }
            (status, _) => return Err(format!("{method} {path} on a full disk: {status} {said}")),
        }
    }
    Ok(Changes { made, refused: false })
}

/// Takes all the room there is.
///
/// # Errors
/// The file cannot be opened.
pub(crate) fn take_all(ballast: &Path) -> Result<(), String> {
    let mut file = OpenOptions::new().append(true).create(true).open(ballast).map_err(|e| e.to_string())?;
    let piece = vec![1; 64 * 1024];
    let mut size = piece.len();
    while size > 0 {
        match file.write(&piece[..size]) {
            Ok(n) if n == size => {}
            Ok(_) | Err(_) => size /= 2,
        }
    }
    Ok(())
}

#[test]
fn filling_disk_ends_when_full() {
    let folder = tempfile::tempdir().expect("a folder");
    let full = folder.path().join("full");
    // /dev/full says "no space left" to every write: filling it ends at once.
    std::os::unix::fs::symlink("/dev/full", &full).expect("a link");
    take_all(&full).expect("filled");
}
